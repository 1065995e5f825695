// The largest magnitude of inputs: of a few words in registers, of a row, over the threads of a
// row.
#pragma once

#include "formats.cuh"

#ifndef NVFP4_INPUT
#define NVFP4_INPUT 0
#endif

#if NVFP4_INPUT == 0
typedef bf16_t Input;
#elif NVFP4_INPUT == 1
typedef fp16_t Input;
#else
typedef float Input;
#endif

// ---- words in registers ------------------------------------------------------------------------

// A largest magnitude, and its bits as inputs have them: in both halves if they are 16 bits.
struct Amax {
    float value;
    uint32_t bits;
};

// Largest and smallest value of words of inputs; NaN once there was a NaN. float32: |value| only.
struct Extremes {
    uint32_t largest, smallest;

    __device__ __forceinline__ void add(uint32_t word) {
#if NVFP4_INPUT == 0
        largest = ptx::max_nan_bf16x2(largest, word);
        smallest = ptx::min_nan_bf16x2(smallest, word);
#elif NVFP4_INPUT == 1
        largest = ptx::max_nan_f16x2(largest, word);
        smallest = ptx::min_nan_f16x2(smallest, word);
#else
        largest =
            __float_as_uint(ptx::max_nan(__uint_as_float(largest), fabsf(__uint_as_float(word))));
#endif
    }

    __device__ __forceinline__ Amax amax_or_nan() const {
#if NVFP4_INPUT == 0
        const uint32_t both = ptx::max_nan_bf16x2(largest, smallest ^ 0x80008000);
        const uint32_t bits = ptx::max_nan_bf16x2(both, both << 16 | both >> 16);
        return {__uint_as_float(bits & 0xFFFF0000), bits};
#elif NVFP4_INPUT == 1
        const uint32_t both = ptx::max_nan_f16x2(largest, smallest ^ 0x80008000);
        const uint32_t bits = ptx::max_nan_f16x2(both, both << 16 | both >> 16);
        return {ptx::f16_to_float(static_cast<uint16_t>(bits)), bits};
#else
        return {__uint_as_float(largest), largest};
#endif
    }
};

constexpr Extremes kNoExtremes = {0, 0};

// ---- a thread's share of a row -----------------------------------------------------------------

constexpr int kInputsPerLoad = 16 / sizeof(Input);

__device__ __forceinline__ bool is_aligned_16(const void* pointer) {
    return (reinterpret_cast<uint64_t>(pointer) & 15) == 0;
}

// max |x|, NaN if there is a NaN, over every blockDim.x-th piece of a row from threadIdx.x on. A
// piece is 16 bytes if kAligned, one element if not.
template <bool kAligned>
__device__ __forceinline__ float share_amax_or_nan(const Input* __restrict__ row, int N) {
    Extremes extremes = kNoExtremes;
    if constexpr (kAligned) {
        constexpr int kUnroll = 8;  // 128 bytes in flight per thread
        const uint32_t num_loads = static_cast<uint32_t>(N) / kInputsPerLoad;
        const uint4* fours = reinterpret_cast<const uint4*>(row);
        for (uint32_t first = threadIdx.x; first < num_loads; first += kUnroll * blockDim.x) {
            uint4 four[kUnroll];
#pragma unroll
            for (int u = 0; u < kUnroll; u++) {
                const uint32_t i = first + u * blockDim.x;
                four[u] = i < num_loads ? ptx::load_streaming(fours + i) : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int u = 0; u < kUnroll; u++) {
                extremes.add(four[u].x);
                extremes.add(four[u].y);
                extremes.add(four[u].z);
                extremes.add(four[u].w);
            }
        }
        return extremes.amax_or_nan().value;
    } else {
        float amax = 0.0f;
        for (uint32_t i = threadIdx.x; i < static_cast<uint32_t>(N); i += blockDim.x)
            amax = ptx::max_nan(amax, fabsf(to_float(row[i])));
        return amax;
    }
}

// The same with NaN ignored.
template <bool kAligned>
__device__ __forceinline__ float share_amax(const Input* __restrict__ row, int N) {
    float amax = share_amax_or_nan<kAligned>(row, N);
    if (amax != amax) {
        constexpr int kPiece = kAligned ? kInputsPerLoad : 1;
        amax = 0.0f;
        for (int64_t i = static_cast<int64_t>(threadIdx.x) * kPiece; i < N;
             i += static_cast<int64_t>(blockDim.x) * kPiece) {
            for (int j = 0; j < kPiece; j++) amax = fmaxf(amax, fabsf(to_float(row[i + j])));
        }
    }
    return amax;
}

// ---- over the threads of a row -----------------------------------------------------------------

// The largest of the values, none negative, of the blockDim.x threads (a power of two) with the
// same threadIdx.y; called by the whole block, of 256 threads.
__device__ __forceinline__ float row_max(float value) {
    __shared__ uint32_t of_warp[8];
    uint32_t bits = __float_as_uint(value);  // in the order of the values
    if (blockDim.x < 32) {
        for (int step = blockDim.x / 2; step > 0; step /= 2) {
            const uint32_t other = __shfl_xor_sync(0xFFFFFFFF, bits, step);
            bits = bits > other ? bits : other;
        }
        return __uint_as_float(bits);
    }
    bits = ptx::warp_max(bits);
    if (blockDim.x > 32) {
        const uint32_t warp = (threadIdx.y * blockDim.x + threadIdx.x) / 32;
        if (threadIdx.x % 32 == 0) of_warp[warp] = bits;
        __syncthreads();
        // The warps of this row are blockDim.x / 32 in succession, a power of two.
        const uint32_t others = blockDim.x / 32 - 1;
        bits = ptx::warp_max(of_warp[(warp & ~others) | (threadIdx.x & others)]);
    }
    return __uint_as_float(bits);
}

// A row's decode scale, amax / 2688: its largest value becomes 6 * 448. A row of zeros gets 1.
__device__ __forceinline__ float gsa_of_amax(float amax) {
    const float smallest_fast = 8.271806e-25f, largest_fast = 1.329228e+36f;  // 2^-80, 2^120
    if (amax >= smallest_fast && amax <= largest_fast) {
        // 1 / 2688 to 48 bits. 2688 = 21 * 2^7: a quotient that is no float is 1/42 ulp or more
        // away from every midpoint of two floats, and the sum is off by 2^-22 ulp before it is
        // rounded.
        return __fmaf_rn(amax, 3.7202382e-04f, amax * -6.9294835e-12f);
    }
    if (amax == 0.0f) return 1.0f;
    return fmaxf(__fdiv_rn(amax, 2688.0f), 1.17549435e-38f);  // 2^-126
}

// This thread's row; at or beyond the last one there may be padding, or nothing.
__device__ __forceinline__ int64_t this_row() {
    return static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
}
