// What becomes of 16 values of SwiGLU before they are quantized.
//
// NVFP4_ROUND_INTERMEDIATE 1: they are rounded to bf16, as nvfp4_silu_mul_scaled does.
#pragma once

#include "formats.cuh"
#include "ptx.cuh"
#include "types.cuh"

#ifndef NVFP4_ROUND_INTERMEDIATE
#define NVFP4_ROUND_INTERMEDIATE 0
#endif

constexpr bool kRounds = NVFP4_ROUND_INTERMEDIATE != 0;

// What is left to do with 16 values of a row of k from element `first` on.
__device__ __forceinline__ void finish_group(float (&h)[kGroupSize], uint32_t first, uint32_t k) {
    if (first + kGroupSize > k) {  // zero times a scale of infinity would not be zero
#pragma unroll
        for (int i = 0; i < kGroupSize; i++) {
            if (first + i >= k) h[i] = 0.0f;
        }
    }
    if constexpr (kRounds) {
#pragma unroll
        for (int i = 0; i < kGroupSize; i++) h[i] = to_float(ptx::float_to_bf16(h[i]));
    }
}
