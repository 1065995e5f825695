// Runs one launch: every thread of a block is a fiber, and every load and store that the compiler's
// race instrumentation reports is checked against the arrays and a shadow of each byte.
#include "runtime.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <string>
#include <vector>

extern "C" char __executable_start, _end;

namespace emu {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr int kMaxThreads = 1024;

// The clock ticks at every barrier of a block or warp. Two accesses by different threads are in
// order only if a barrier of both lies between them.
uint64_t now = 0;

// Who touched a byte last.
struct Shadow {
    uint64_t write_time = 0, read_time = 0;
    uint32_t read_warps = 0;  // since the block's last barrier
    uint32_t read_lanes = 0;  // of read_warp, since its last barrier
    int16_t write_thread = 0;
    uint8_t read_warp = 0;
    bool atomic = false;            // the last write was atomic
    bool in_flight = false;         // an asynchronous copy will write here
    bool read_by_earlier_block = false;
};

struct Region {
    const char* name;
    char* begin;
    size_t size;
    bool shared, writable, initialized;
    Shadow* shadow;  // one for each byte; null for an input
};

struct Copy {
    char* shared;
    const char* global;
    int num_bytes, num_valid;
};

enum class State { kReady, kWarp, kBlock, kDone };

struct Thread {
    ucontext_t context;
    char* stack;
    int id;
    Index index;
    State state;
    const char* wait_name;
    int line;
    int predicate;  // of the barrier; after it, how many held
    uint32_t mask;
    void* payload;
    WarpFunction function;
    std::vector<Copy> open_group;
    std::deque<std::vector<Copy>> groups;

    int warp() const { return id / 32; }
};

struct Block {
    Index index;
    uint64_t start, barrier;  // times of its first moment and of its last barrier
    uint64_t warp_barrier[kMaxThreads / 32];
};

const Kernel* kernel = kernels;
Index grid, block_dim;
Block block;
std::vector<Thread> threads;
std::vector<Region> regions;
std::vector<uint64_t> values;
int poison = -1;  // what shared memory holds that nobody wrote; -1: reading it is an error
Thread* current = nullptr;
bool checking = false;
ucontext_t scheduler;

// The call before `pc` as an offset in the executable, which the Python side resolves.
unsigned long place(const void* pc) { return static_cast<const char*>(pc) - &__executable_start - 1; }

[[noreturn]] void fail_access(const char* what, const Region& r, ptrdiff_t offset, size_t n,
                              const void* pc) {
    fail("%s: %zu bytes at byte %td of %s, which has %zu @%#lx", what, n, offset, r.name, r.size,
         place(pc));
}

// The region that holds `address`, else the nearest one within 64 KiB, else null.
Region* find_region(const char* address) {
    Region* nearest = nullptr;
    size_t best = 64 << 10;
    for (Region& r : regions) {
        if (address >= r.begin && address < r.begin + r.size) return &r;
        const size_t distance =
            address < r.begin ? r.begin - address : address - (r.begin + r.size);
        if (distance < best) best = distance, nearest = &r;
    }
    return nearest;
}

bool ordered(uint64_t time, int thread) {
    const bool same_warp = thread / 32 == current->warp();
    return thread == current->id ||
           time < (same_warp ? block.warp_barrier[current->warp()] : block.barrier);
}

void check_read(Region& r, Shadow& s, ptrdiff_t offset, size_t n, const void* pc) {
    const bool mine = s.write_time >= block.start;
    if (r.shared ? !mine && poison < 0 : !s.write_time && !r.initialized)
        fail_access("read of uninitialized memory", r, offset, n, pc);
    if (mine ? !ordered(s.write_time, s.write_thread) : !r.shared && s.write_time)
        fail_access("race: read of what another thread wrote", r, offset, n, pc);
    const int warp = current->warp();
    if (s.read_time && s.read_time < block.start) s.read_by_earlier_block = true;
    if (s.read_time < block.barrier) s.read_warps = s.read_lanes = 0;
    if (s.read_warp != warp || s.read_time < block.warp_barrier[warp]) s.read_lanes = 0;
    s.read_warps |= 1u << warp;
    s.read_lanes |= 1u << lane();
    s.read_warp = warp;
    s.read_time = now;
}

void check_write(Region& r, Shadow& s, ptrdiff_t offset, size_t n, bool atomic, const void* pc) {
    const int warp = current->warp();
    const bool mine = s.write_time >= block.start;
    if (!(atomic && s.atomic) &&
        (mine ? !ordered(s.write_time, s.write_thread) : !r.shared && s.write_time))
        fail_access("race: write over what another thread wrote", r, offset, n, pc);
    bool read = !r.shared && (s.read_by_earlier_block || (s.read_time && s.read_time < block.start));
    if (s.read_time >= block.barrier)
        read |= (s.read_warps & ~(1u << warp)) || (s.read_warp == warp &&
                                                   s.read_time >= block.warp_barrier[warp] &&
                                                   (s.read_lanes & ~(1u << lane())));
    if (read) fail_access("race: write over what another thread reads", r, offset, n, pc);
    s.write_time = now;
    s.write_thread = current->id;
    s.atomic = atomic;
}

void check(const void* address, size_t n, Access access, const void* pc) {
    if (!checking) return;
    const char* a = static_cast<const char*>(address);
    if (a >= current->stack && a < current->stack + kStackBytes) return;
    Region* r = find_region(a);
    const char* verb = access == Access::kRead ? "read" : "write";
    if (!r) {
        if (access == Access::kRead && a >= &__executable_start && a < &_end) return;
        fail("%s of %zu bytes at %p, outside every array @%#lx", verb, n, address,
             place(pc));
    }
    const ptrdiff_t offset = a - r->begin;
    if (offset < 0 || offset + n > r->size)
        fail_access((std::string("out of bounds ") + verb).c_str(), *r, offset, n, pc);
    if (access != Access::kRead && !r->writable)
        fail_access("write to an input", *r, offset, n, pc);
    if (!r->shadow) return;
    for (size_t i = offset; i < offset + n; i++) {
        Shadow& s = r->shadow[i];
        if (s.in_flight) fail_access("access during an asynchronous copy", *r, offset, n, pc);
        if (access == Access::kRead)
            check_read(*r, s, offset, n, pc);
        else
            check_write(*r, s, offset, n, access == Access::kAtomic, pc);
    }
}

void yield() { swapcontext(&current->context, &scheduler); }

[[noreturn]] void fail_deadlock() {
    std::string text;
    for (const Thread& t : threads) {
        auto same = [&t](const Thread& o) {
            return o.state == t.state && o.line == t.line && o.mask == t.mask &&
                   o.wait_name == t.wait_name;
        };
        if (std::find_if(threads.begin(), threads.end(), same)->id != t.id) continue;
        char line[200];
        snprintf(line, sizeof line, "; %td threads from %d on are at %s, line %d, mask %#x",
                 std::count_if(threads.begin(), threads.end(), same), t.id, t.wait_name, t.line,
                 t.mask);
        text += line;
    }
    fail("deadlock in block (%u, %u, %u)%s", block.index.x, block.index.y, block.index.z,
         text.c_str());
}

void fiber_main() {
    kernel->call(values.data());
    current->state = State::kDone;
    current->wait_name = "its end";
    current->line = current->mask = 0;
    yield();
}

void start_thread(Thread& t) {
    t.state = State::kReady;
    t.open_group.clear();
    t.groups.clear();
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack;
    t.context.uc_stack.ss_size = kStackBytes;
    makecontext(&t.context, fiber_main, 0);
}

void run_block(const std::vector<int>& order) {
    block.start = block.barrier = ++now;
    std::fill(std::begin(block.warp_barrier), std::end(block.warp_barrier), now);
    for (Region& r : regions) {
        if (!r.shared) continue;
        memset(r.begin, poison, r.size);
        for (size_t i = 0; i < r.size; i++) r.shadow[i].in_flight = false;
    }
    for (Thread& t : threads) start_thread(t);
    for (size_t num_done = 0; num_done < threads.size();) {
        bool progress = false;
        for (int i : order) {
            if (threads[i].state != State::kReady) continue;
            current = &threads[i];
            checking = progress = true;
            swapcontext(&scheduler, &current->context);
            checking = false;
            num_done += current->state == State::kDone;
        }
        if (!progress) fail_deadlock();
    }
}

std::vector<int> permutation(int n, int order) {
    std::vector<int> indices(n);
    std::iota(indices.begin(), indices.end(), 0);
    if (order == 1) std::reverse(indices.begin(), indices.end());
    if (order > 1) std::shuffle(indices.begin(), indices.end(), std::mt19937(order));
    return indices;
}

// Zeroed memory that costs nothing until it is touched.
char* reserve(size_t size, int protection) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* p = mmap(nullptr, size, protection, flags, -1, 0);
    if (p == MAP_FAILED) fail("no address space for %zu bytes", size);
    return static_cast<char*>(p);
}

void add_region(const char* name, char* begin, size_t size, bool shared, const char* access) {
    const bool writable = strcmp(access, "in") != 0;
    void* shadow = writable ? reserve(size * sizeof(Shadow) + 1, PROT_READ | PROT_WRITE) : nullptr;
    regions.push_back({name, begin, size, shared, writable, strcmp(access, "out") != 0,
                       static_cast<Shadow*>(shadow)});
}

// Shared variables are thread_local ones, so all of them lie in the executable's TLS block.
int add_shared_regions(dl_phdr_info* info, size_t, void* data) {
    size_t capacity = 0;
    char* dynamic = dynamic_shared(&capacity);
    const size_t used = *static_cast<size_t*>(data);
    if (used > capacity) fail("the kernel declares no dynamic shared memory, the launch %zu", used);
    if (capacity) add_region("dynamic shared memory", dynamic, used, true, "out");
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_TLS) continue;
        char* begin = static_cast<char*>(info->dlpi_tls_data);
        char* end = begin + info->dlpi_phdr[i].p_memsz;
        char* middle = capacity ? dynamic : end;
        add_region("static shared memory", begin, middle - begin, true, "out");
        if (capacity)
            add_region("static shared memory", dynamic + capacity, end - dynamic - capacity, true,
                       "out");
    }
    return 1;  // the executable comes first; its libraries are of no interest
}

// Maps `size` bytes of the file between two guards that nobody may touch.
char* map_array(int fd, long file_offset, size_t delta, size_t size) {
    const size_t page = 4096, length = (delta + size + page - 1) / page * page;
    const size_t guard = 64 << 10;
    char* base = reserve(length + 2 * guard, PROT_NONE) + guard;
    if (length && mmap(base, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                       file_offset) == MAP_FAILED)
        fail("cannot map an array of %zu bytes", size);
    return base + delta;
}

void read_argument(int fd, std::string* signature) {
    char kind[2], name[100], access[10];
    unsigned long long value;
    long file_offset;
    size_t delta, size;
    if (scanf("%1s %99s %llx", kind, name, &value) != 3) fail("malformed argument");
    *signature += kind;
    if (*kind == 'p' && value) {
        if (scanf("%ld %zu %zu %9s", &file_offset, &delta, &size, access) != 4)
            fail("malformed pointer");
        char* begin = map_array(fd, file_offset, delta, size);
        add_region(strdup(name), begin, size, false, access);
        value = reinterpret_cast<uint64_t>(begin);
    }
    values.push_back(value);
}

void check_coverage() {
    for (const Region& r : regions) {
        if (r.shared || r.initialized) continue;
        for (size_t i = 0; i < r.size; i++)
            if (!r.shadow[i].write_time)
                fail("byte %zu of %s, which has %zu, was never written", i, r.name, r.size);
    }
}

void run_grid(int order, int num_listed) {
    const long num_blocks = 1l * grid.x * grid.y * grid.z;
    std::vector<Index> listed(num_listed);
    for (Index& b : listed)
        if (scanf("%u %u %u", &b.x, &b.y, &b.z) != 3) fail("malformed block");
    const std::vector<int> thread_order = permutation(threads.size(), order);
    for (long i : permutation(num_listed ? num_listed : num_blocks, order)) {
        const unsigned y = i / grid.x;
        block.index = num_listed ? listed[i] : Index(i % grid.x, y % grid.y, y / grid.y);
        run_block(thread_order);
    }
    if (!num_listed) check_coverage();
}

void make_threads() {
    const int n = block_dim.x * block_dim.y * block_dim.z;
    threads.resize(n);
    for (int i = 0; i < n; i++) {
        Thread& t = threads[i];
        t.id = i;
        t.index = {i % block_dim.x, i / block_dim.x % block_dim.y,
                   i / block_dim.x / block_dim.y};
        char* base = reserve(kStackBytes + 4096, PROT_READ | PROT_WRITE);
        mprotect(base, 4096, PROT_NONE);  // catches a stack that overflows
        t.stack = base + 4096;
    }
}

}  // namespace

Index thread_index() { return current->index; }
Index block_index() { return block.index; }
Index block_size() { return block_dim; }
Index grid_size() { return grid; }
unsigned lane() { return current->id % 32; }

void fail(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("emulator: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs("\n", stderr);
    _exit(3);
}

void check_access(const void* address, size_t num_bytes, Access access) {
    check(address, num_bytes, access, __builtin_return_address(0));
}

void warp_collective(const char* name, int line, uint32_t mask, void* payload, WarpFunction f) {
    Thread& me = *current;
    if (!(mask >> lane() & 1))
        fail("%s, line %d: lane %u is not in its own mask %#x", name, line, lane(), mask);
    me.state = State::kWarp;
    me.wait_name = name;
    me.line = line;
    me.mask = mask;
    me.payload = payload;
    me.function = f;
    void* payloads[32] = {};
    for (size_t i = 0, id = me.warp() * 32; i < 32; i++, id++) {
        if (!(mask >> i & 1)) continue;
        if (id >= threads.size()) fail("%s, line %d: the warp has no lane %zu", name, line, i);
        const Thread& t = threads[id];
        const bool arrived = t.state == State::kWarp && t.function == f && t.mask == mask &&
                             !strcmp(t.wait_name, name);
        if (!arrived) return yield();
        payloads[i] = t.payload;
    }
    checking = false;
    f(payloads, mask);
    checking = true;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) threads[me.warp() * 32 + i].state = State::kReady;
}

void sync_warp(uint32_t mask, int line) {
    warp_collective("__syncwarp", line, mask, nullptr, [](void* const*, uint32_t mask) {
        const int first = current->warp() * 32;
        const uint32_t all = ~0u >> (32 - std::min<int>(32, threads.size() - first));
        // A part of the warp counts as unordered, which can only report too much.
        if (mask == all) block.warp_barrier[current->warp()] = ++now;
    });
}

int block_barrier(int predicate, int line) {
    Thread& me = *current;
    me.state = State::kBlock;
    me.wait_name = "__syncthreads";
    me.line = line;
    me.mask = 0;
    me.predicate = predicate != 0;
    int num_holding = 0;
    for (const Thread& t : threads) {
        if (t.state != State::kBlock) return yield(), me.predicate;
        if (t.line != line)
            fail("divergent barrier: thread %d is at line %d, thread %d at line %d", me.id, line,
                 t.id, t.line);
        num_holding += t.predicate;
    }
    for (Thread& t : threads) {
        t.state = State::kReady;
        t.predicate = num_holding;
    }
    block.barrier = ++now;
    std::fill(std::begin(block.warp_barrier), std::end(block.warp_barrier), now);
    return num_holding;
}

void async_copy(void* shared, const void* global, int num_bytes, int num_valid) {
    const void* pc = __builtin_return_address(0);
    if ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(global)) % num_bytes)
        fail("misaligned asynchronous copy of %d bytes @%#lx", num_bytes, place(pc));
    if (num_valid) check(global, num_valid, Access::kRead, pc);
    check(shared, num_bytes, Access::kWrite, pc);
    Region* r = find_region(static_cast<char*>(shared));
    if (!r || !r->shared) fail("asynchronous copy to other than shared memory");
    for (int i = 0; i < num_bytes; i++)
        r->shadow[static_cast<char*>(shared) - r->begin + i].in_flight = true;
    current->open_group.push_back(
        {static_cast<char*>(shared), static_cast<const char*>(global), num_bytes, num_valid});
}

void async_commit() {
    current->groups.push_back(std::move(current->open_group));
    current->open_group.clear();
}

void async_wait(int num_pending) {
    auto& groups = current->groups;
    for (; static_cast<int>(groups.size()) > num_pending; groups.pop_front()) {
        for (const Copy& c : groups.front()) {
            memset(c.shared, 0, c.num_bytes);
            memcpy(c.shared, c.global, c.num_valid);
            Region* r = find_region(c.shared);
            for (int i = 0; i < c.num_bytes; i++) {
                Shadow& s = r->shadow[c.shared - r->begin + i];
                s.in_flight = false;
                s.write_time = now;
            }
        }
    }
}

int run() {
    // What the -ftz=true of the GPU build gives: subnormal operands and results are zero.
    _mm_setcsr(_mm_getcsr() | 0x8040);
    char entry[200];
    int fd, order, num_args, num_listed;
    size_t shared_bytes;
    if (scanf("%199s %d %d %d %u %u %u %u %u %u %zu %d %d", entry, &fd, &order, &poison, &grid.x,
              &grid.y, &grid.z, &block_dim.x, &block_dim.y, &block_dim.z, &shared_bytes, &num_args,
              &num_listed) != 13)
        fail("malformed launch");
    while (kernel->name && strcmp(kernel->name, entry)) kernel++;
    if (!kernel->name) fail("there is no kernel %s", entry);
    std::string signature;
    for (int i = 0; i < num_args; i++) read_argument(fd, &signature);
    if (signature != kernel->signature)
        fail("the launcher passes %s, the kernel takes %s", signature.c_str(), kernel->signature);
    dl_iterate_phdr(add_shared_regions, &shared_bytes);
    make_threads();
    run_grid(order, num_listed);
    return 0;
}

}  // namespace emu

// What the compiler calls before every load and store of memory that another thread could see.
#define HOOKS(N)                                                                               \
    void __tsan_read##N(void* p) {                                                             \
        emu::check(p, N, emu::Access::kRead, __builtin_return_address(0));                     \
    }                                                                                          \
    void __tsan_write##N(void* p) {                                                            \
        emu::check(p, N, emu::Access::kWrite, __builtin_return_address(0));                    \
    }                                                                                          \
    void __tsan_unaligned_read##N(void* p) {                                                   \
        emu::check(p, N, emu::Access::kRead, __builtin_return_address(0));                     \
    }                                                                                          \
    void __tsan_unaligned_write##N(void* p) {                                                  \
        emu::check(p, N, emu::Access::kWrite, __builtin_return_address(0));                    \
    }

extern "C" {
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
void __tsan_read_range(void* p, size_t n) {
    emu::check(p, n, emu::Access::kRead, __builtin_return_address(0));
}
void __tsan_write_range(void* p, size_t n) {
    emu::check(p, n, emu::Access::kWrite, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}

int main() { return emu::run(); }
