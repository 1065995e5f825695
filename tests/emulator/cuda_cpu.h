// The part of CUDA C++ that the kernels use, for a C++20 compiler; included ahead of a kernel.
#pragma once

#include <bit>
#include <type_traits>

#include "runtime.h"

// Not from <cmath>: compiling that header takes longer than compiling a kernel.
#define fabsf __builtin_fabsf
#define memcpy __builtin_memcpy
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

// `inline` compiles an entry only where it is called. A block runs on one operating system thread,
// so thread_local gives both `__shared__ T x[4]` and `extern __shared__ T x[]` their meaning.
#define __global__ inline
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __shared__ thread_local
#define __align__(n) __attribute__((aligned(n)))
// CUDA takes it between the words of a declaration, where C++ does not.
#define alignas(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__

#define threadIdx (emu::thread_index())
#define blockIdx (emu::block_index())
#define blockDim (emu::block_size())
#define gridDim (emu::grid_size())

#define EMU_LINE int line = __builtin_LINE()

// ---- vector types ------------------------------------------------------------------------------

#define EMU_VECTOR_2(name, T, bytes)           \
    struct alignas(bytes) name##2 { T x, y; }; \
    inline name##2 make_##name##2(T x, T y) { return {x, y}; }
#define EMU_VECTOR_4(name, T, bytes)                 \
    struct alignas(bytes) name##4 { T x, y, z, w; }; \
    inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define EMU_VECTORS(name, T) \
    EMU_VECTOR_2(name, T, 2 * sizeof(T)) EMU_VECTOR_4(name, T, 4 * sizeof(T))
EMU_VECTORS(uchar, unsigned char)
EMU_VECTORS(ushort, unsigned short)
EMU_VECTORS(int, int)
EMU_VECTORS(uint, unsigned)
EMU_VECTORS(float, float)

// ---- barriers, votes, shuffles -----------------------------------------------------------------

inline void __syncthreads(EMU_LINE) { emu::block_barrier(0, 0, 0, line); }
inline int __syncthreads_count(int predicate, EMU_LINE) {
    return emu::block_barrier(0, 0, predicate, line);
}
inline int __syncthreads_or(int predicate, EMU_LINE) {
    return emu::block_barrier(0, 0, predicate, line) != 0;
}
inline int __syncthreads_and(int predicate, EMU_LINE) {
    return emu::block_barrier(0, 0, !predicate, line) == 0;
}
inline void __syncwarp(unsigned mask = ~0u, EMU_LINE) { emu::sync_warp(mask, line); }
inline void __threadfence() {}
inline void __threadfence_block() {}

namespace emu {

template <class T>
struct Shuffle {
    T value;
    unsigned source;
    T result;
};

template <class T>
void run_shuffle(void* const* payloads, uint32_t mask) {
    for (unsigned i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        auto* mine = static_cast<Shuffle<T>*>(payloads[i]);
        if (!(mask >> mine->source & 1))
            fail("a shuffle with mask %#x lets lane %u read lane %u", mask, i, mine->source);
        mine->result = static_cast<Shuffle<T>*>(payloads[mine->source])->value;
    }
}

template <class T>
T shuffle(const char* name, int line, unsigned mask, T value, unsigned source) {
    Shuffle<T> payload{value, source, T()};
    warp_collective(name, line, mask, &payload, run_shuffle<T>);
    return payload.result;
}

struct Vote {
    bool predicate;
    unsigned ballot;
};

inline void run_vote(void* const* payloads, uint32_t mask) {
    unsigned ballot = 0;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) ballot |= unsigned(static_cast<Vote*>(payloads[i])->predicate) << i;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) static_cast<Vote*>(payloads[i])->ballot = ballot;
}

inline unsigned vote(const char* name, int line, unsigned mask, bool predicate) {
    Vote payload{predicate, 0};
    warp_collective(name, line, mask, &payload, run_vote);
    return payload.ballot;
}

}  // namespace emu

// A source lane outside the segment of `width` lanes gives the lane its own value.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMU_LINE) {
    const unsigned first = emu::lane() & ~(width - 1);
    return emu::shuffle("__shfl_sync", line, mask, value, first | (source & (width - 1)));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, EMU_LINE) {
    const unsigned source = emu::lane() ^ lane_mask, last = emu::lane() | (width - 1);
    return emu::shuffle("__shfl_xor_sync", line, mask, value,
                        source <= last ? source : emu::lane());
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_LINE) {
    const unsigned place = emu::lane() & (width - 1);
    return emu::shuffle("__shfl_up_sync", line, mask, value,
                        place >= delta ? emu::lane() - delta : emu::lane());
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_LINE) {
    const unsigned place = emu::lane() & (width - 1);
    return emu::shuffle("__shfl_down_sync", line, mask, value,
                        place + delta < unsigned(width) ? emu::lane() + delta : emu::lane());
}
inline unsigned __ballot_sync(unsigned mask, int predicate, EMU_LINE) {
    return emu::vote("__ballot_sync", line, mask, predicate);
}
inline int __any_sync(unsigned mask, int predicate, EMU_LINE) {
    return emu::vote("__any_sync", line, mask, predicate) != 0;
}
inline int __all_sync(unsigned mask, int predicate, EMU_LINE) {
    return emu::vote("__all_sync", line, mask, predicate) == mask;
}

// ---- atomics -----------------------------------------------------------------------------------

namespace emu {

template <class T, class F>
__attribute__((no_sanitize("thread"))) T atomic(T* address, F update) {
    check_access(address, sizeof(T), Access::kAtomic);
    const T old = *address;
    *address = update(old);
    return old;
}

}  // namespace emu

template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
    return emu::atomic(address, [=](T old) { return T(old + value); });
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value) {
    return emu::atomic(address, [=](T old) { return old < value ? old : value; });
}
// ---- arithmetic --------------------------------------------------------------------------------

template <class T>
T __ldg(const T* address) {
    return *address;
}
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }

inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }

// NaN loses, -0 is below +0, and a subnormal operand comes out as zero.
namespace emu {
inline float flushed(float x) { return x == 0.0f ? __builtin_copysignf(0.0f, x) : x; }
}  // namespace emu
inline float fmax_cuda(float x, float y) {
    if (x != x) return emu::flushed(y);
    if (y != y || x > y) return emu::flushed(x);
    return x == y && !__builtin_signbit(x) ? emu::flushed(x) : emu::flushed(y);
}
inline float fmin_cuda(float x, float y) {
    if (x != x) return emu::flushed(y);
    if (y != y || x < y) return emu::flushed(x);
    return x == y && __builtin_signbit(x) ? emu::flushed(x) : emu::flushed(y);
}
#define fmaxf fmax_cuda
#define fminf fmin_cuda
template <class A, class B>
constexpr auto min(A a, B b) {
    using T = std::common_type_t<A, B>;
    return T(a) < T(b) ? T(a) : T(b);
}
template <class A, class B>
constexpr auto max(A a, B b) {
    using T = std::common_type_t<A, B>;
    return T(a) > T(b) ? T(a) : T(b);
}

inline int __ffs(int x) { return x ? std::countr_zero(unsigned(x)) + 1 : 0; }
