// Runs one launch: every thread of a block is a fiber, and every load and store that the compiler's
// race instrumentation reports is checked against the arrays and a shadow of each byte.
#include "runtime.h"

#include <unistd.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "memory.h"
#include "state.h"

// Saves the registers that a call preserves, and the stack pointer; takes up another stack where it
// was left. (ucontext would ask the kernel for the signal mask each time.)
extern "C" void emu_switch(void** saved_stack_pointer, void* stack_pointer);
asm(R"(
    .text
emu_switch:
    push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
    ret
)");

namespace emu {
namespace {

void yield() { emu_switch(&current->stack_pointer, scheduler_stack_pointer); }

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
    // What emu_switch takes up: six registers, where to return to, and a caller that never was.
    void** top = reinterpret_cast<void**>(t.stack + kStackBytes);
    std::fill(top - 8, top, nullptr);
    top[-2] = reinterpret_cast<void*>(fiber_main);
    t.stack_pointer = top - 8;
}

void run_block(const std::vector<int>& order) {
    block.start = ++now;
    for (auto& seen : block.seen) std::fill(std::begin(seen), std::end(seen), now);
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
            emu_switch(&scheduler_stack_pointer, current->stack_pointer);
            checking = false;
            num_done += current->state == State::kDone;
        }
        if (!progress) fail_deadlock();
    }
}

// Whatever one of these threads has seen to be over, all of them have from now on.
void pass_barrier(const std::vector<Thread*>& arrived) {
    bool takes_part[kMaxWarps] = {};
    for (const Thread* t : arrived) takes_part[t->warp()] = true;
    ++now;
    uint64_t joined[kMaxWarps] = {};
    for (int w = 0; w < kMaxWarps; w++) {
        for (int v = 0; v < kMaxWarps; v++)
            if (takes_part[v]) joined[w] = std::max(joined[w], block.seen[v][w]);
        if (takes_part[w]) joined[w] = now;
    }
    for (int v = 0; v < kMaxWarps; v++)
        if (takes_part[v]) std::copy(std::begin(joined), std::end(joined), block.seen[v]);
}

std::vector<int> permutation(int n, int order) {
    std::vector<int> indices(n);
    std::iota(indices.begin(), indices.end(), 0);
    if (order == 1) std::reverse(indices.begin(), indices.end());
    if (order > 1) std::shuffle(indices.begin(), indices.end(), std::mt19937(order));
    return indices;
}

void read_argument(int fd, std::string* signature) {
    char kind[2], name[100], access[10];
    unsigned long long value;
    long file_offset;
    size_t delta, size;
    if (scanf("%1s %99s %llx", kind, name, &value) != 3) fail("malformed argument");
    *signature += kind;
    if (*kind == 'p' && value == 2) {
        if (scanf("%zu", &size) != 1 || size >= values.size()) fail("malformed pointer");
        value = values[size];
    } else if (*kind == 'p' && value) {
        if (scanf("%ld %zu %zu %9s", &file_offset, &delta, &size, access) != 4)
            fail("malformed pointer");
        char* begin = map_array(fd, file_offset, delta, size);
        add_region(strdup(name), begin, size, false, access);
        value = reinterpret_cast<uint64_t>(begin);
    }
    values.push_back(value);
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
        t.index = {i % block_dim.x, i / block_dim.x % block_dim.y, i / block_dim.x / block_dim.y};
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
        if (mask == all) block.seen[current->warp()][current->warp()] = ++now;
    });
}

int block_barrier(uint32_t id, uint32_t num_threads, int predicate, int line) {
    Thread& me = *current;
    me.state = State::kBlock;
    me.wait_name = id ? "a barrier" : "__syncthreads";
    me.line = line;
    me.mask = id;
    me.barrier = id;
    me.predicate = predicate != 0;
    if (num_threads == 0) num_threads = threads.size();
    std::vector<Thread*> arrived;
    int num_holding = 0;
    for (Thread& t : threads) {
        if (t.state != State::kBlock || t.barrier != id) continue;
        if (t.line != line)
            fail("divergent barrier: thread %d is at line %d, thread %d at line %d", me.id, line,
                 t.id, t.line);
        num_holding += t.predicate;
        arrived.push_back(&t);
    }
    if (arrived.size() < num_threads) return yield(), me.predicate;
    pass_barrier(arrived);
    for (Thread* t : arrived) {
        t->state = State::kReady;
        t->predicate = num_holding;
    }
    return num_holding;
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

int main() { return emu::run(); }
