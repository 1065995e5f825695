// What compiled kernels call in the emulator: indices, collectives, barriers, asynchronous copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace emu {

struct Index {
    unsigned x, y, z;
};

// The answer never changes within one fiber, hence `const`: the compiler may keep it.
[[gnu::const]] Index thread_index();
[[gnu::const]] Index block_index();
[[gnu::const]] Index block_size();
[[gnu::const]] Index grid_size();
[[gnu::const]] unsigned lane();

// Ends the process with a message; the Python side turns it into an EmulatorError.
[[noreturn]] [[gnu::format(printf, 1, 2)]] void fail(const char* format, ...);

enum class Access { kRead, kWrite, kAtomic };
void check_access(const void* address, size_t num_bytes, Access access);

// Waits for all lanes of `mask` to arrive with the same function and mask. The last one runs
// `function` on everybody's payload, where the lanes' results go too.
using WarpFunction = void (*)(void* const* payloads, uint32_t mask);
void warp_collective(const char* name, int line, uint32_t mask, void* payload, WarpFunction);
void sync_warp(uint32_t mask, int line);

// Waits for `num_threads` threads of the block, 0 for all, at barrier `id`, and at one and the same
// line; returns how many predicates hold.
int block_barrier(uint32_t id, uint32_t num_threads, int predicate, int line);

// Copies that happen as late as the program allows: when their thread waits for their group.
void async_copy(void* shared, const void* global, int num_bytes, int num_valid);
void async_commit();
void async_wait(int num_pending);

struct Kernel {
    const char* name;
    const char* signature;  // a letter for each parameter
    void (*call)(const uint64_t* values);
};

template <class T>
constexpr char letter() {
    if (std::is_pointer_v<T>) return 'p';
    if (std::is_floating_point_v<T>) return sizeof(T) == 4 ? 'f' : 'd';
    if (sizeof(T) == 8) return std::is_signed_v<T> ? 'I' : 'U';
    return sizeof(T) == 4 ? (std::is_signed_v<T> ? 'i' : 'u') : '?';
}

template <auto kEntry>
struct Entry;

template <class... P, void (*kEntry)(P...)>
struct Entry<kEntry> {
    static constexpr char kSignature[] = {letter<P>()..., 0};

    static void call(const uint64_t* values) { call(values, std::index_sequence_for<P...>()); }

    template <size_t... kIndex>
    __attribute__((no_sanitize("thread"))) static void call(const uint64_t* values,
                                                            std::index_sequence<kIndex...>) {
        kEntry(*reinterpret_cast<const P*>(values + kIndex)...);
    }
};

// Both are defined behind the kernels' text.
extern const Kernel kernels[];  // the last one is null
char* dynamic_shared(size_t* capacity);

}  // namespace emu
