// The memory that a kernel may touch, and what is known of each byte: included by runtime.cpp
// alone.
#pragma once

#include <link.h>
#include <sys/mman.h>

#include <bit>
#include <cstring>
#include <string>

#include "state.h"

extern "C" char __executable_start, _end;

namespace emu {
namespace {

// Who touched a byte last.
struct Shadow {
    uint64_t write_time = 0, read_time = 0;
    uint32_t read_warps = 0;  // whose reads no later reader has seen to be over
    uint32_t read_lanes = 0;  // of read_warp, since its last barrier
    int16_t write_thread = 0;
    uint8_t read_warp = 0;
    bool atomic = false;     // the last write was atomic
    bool in_flight = false;  // an asynchronous copy will write here
    bool read_by_earlier_block = false;
};

struct Region {
    const char* name;
    char* begin;
    size_t size;
    bool shared, writable, initialized;
    Shadow* shadow;  // one for each byte; null for an input
};

std::vector<Region> regions;
int poison = -1;  // what shared memory holds that nobody wrote; -1: reading it is an error

// The call before `pc` as an offset in the executable, which the Python side resolves.
unsigned long place(const void* pc) {
    return static_cast<const char*>(pc) - &__executable_start - 1;
}

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
    return thread == current->id || time < block.seen[current->warp()][thread / 32];
}

// Those of `warps` that have not seen this thread's barriers since `time`.
uint32_t unordered(uint32_t warps, uint64_t time) {
    uint32_t result = 0;
    for (; warps; warps &= warps - 1) {
        const int warp = std::countr_zero(warps);
        if (time >= block.seen[current->warp()][warp]) result |= 1u << warp;
    }
    return result;
}

void check_read(Region& r, Shadow& s, ptrdiff_t offset, size_t n, const void* pc) {
    const bool mine = s.write_time >= block.start;
    if (r.shared ? !mine && poison < 0 : !s.write_time && !r.initialized)
        fail_access("read of uninitialized memory", r, offset, n, pc);
    if (mine ? !ordered(s.write_time, s.write_thread) : !r.shared && s.write_time)
        fail_access("race: read of what another thread wrote", r, offset, n, pc);
    const int warp = current->warp();
    if (s.read_time && s.read_time < block.start) s.read_by_earlier_block = true;
    if (s.read_time < block.start) s.read_warps = 0;
    if (s.read_warp != warp || s.read_time < block.seen[warp][warp]) s.read_lanes = 0;
    s.read_warps = unordered(s.read_warps, s.read_time) | 1u << warp;
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
    bool read =
        !r.shared && (s.read_by_earlier_block || (s.read_time && s.read_time < block.start));
    if (s.read_time >= block.start) {
        read |= unordered(s.read_warps & ~(1u << warp), s.read_time);
        read |= s.read_warp == warp && s.read_time >= block.seen[warp][warp] &&
                (s.read_lanes & ~(1u << lane()));
    }
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
        fail("%s of %zu bytes at %p, outside every array @%#lx", verb, n, address, place(pc));
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

void check_coverage() {
    for (const Region& r : regions) {
        if (r.shared || r.initialized) continue;
        for (size_t i = 0; i < r.size; i++)
            if (!r.shadow[i].write_time)
                fail("byte %zu of %s, which has %zu, was never written", i, r.name, r.size);
    }
}

}  // namespace

void check_access(const void* address, size_t num_bytes, Access access) {
    check(address, num_bytes, access, __builtin_return_address(0));
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

}  // namespace emu

// What the compiler calls before every load and store of memory that another thread could see.
#define HOOKS(N)                                                            \
    void __tsan_read##N(void* p) {                                          \
        emu::check(p, N, emu::Access::kRead, __builtin_return_address(0));  \
    }                                                                       \
    void __tsan_write##N(void* p) {                                         \
        emu::check(p, N, emu::Access::kWrite, __builtin_return_address(0)); \
    }                                                                       \
    void __tsan_unaligned_read##N(void* p) {                                \
        emu::check(p, N, emu::Access::kRead, __builtin_return_address(0));  \
    }                                                                       \
    void __tsan_unaligned_write##N(void* p) {                               \
        emu::check(p, N, emu::Access::kWrite, __builtin_return_address(0)); \
    }

extern "C" {
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16) void __tsan_read_range(void* p, size_t n) {
    emu::check(p, n, emu::Access::kRead, __builtin_return_address(0));
}
void __tsan_write_range(void* p, size_t n) {
    emu::check(p, n, emu::Access::kWrite, __builtin_return_address(0));
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
}
