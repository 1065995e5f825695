// One group of 16 inputs: in registers, its largest magnitude, and the way from there to codes and
// a scale that divides.
//
//     v = x / gsa;  scale = e4m3(max |v| / 6);  code = e2m1(v / scale), or the scale search on v
//
// Defines: NVFP4_INPUT (amax.cuh), NVFP4_ROUNDING (0 half_step, 1 nearest_low, 2 nearest_even),
// NVFP4_SCALE_SEARCH.
#pragma once

#include "amax.cuh"
#include "scale_search.cuh"

#ifndef NVFP4_ROUNDING
#define NVFP4_ROUNDING 0
#endif
#ifndef NVFP4_SCALE_SEARCH
#define NVFP4_SCALE_SEARCH 0
#endif

constexpr Rounding kRounding = static_cast<Rounding>(NVFP4_ROUNDING);
constexpr bool kScaleSearch = NVFP4_SCALE_SEARCH != 0;

// ---- 16 inputs in registers --------------------------------------------------------------------

constexpr int kGroupWords = kGroupSize * sizeof(Input) / 4;  // 8, or 16 for float32

struct InputGroup {
    uint32_t words[kGroupWords];
};

// Element i, in ascending order.
__device__ __forceinline__ void set_element(InputGroup& group, int i, Input value) {
#if NVFP4_INPUT == 0
    group.words[i / 2] = i % 2 ? group.words[i / 2] | static_cast<uint32_t>(value) << 16 : value;
#elif NVFP4_INPUT == 1
    group.words[i / 2] =
        i % 2 ? group.words[i / 2] | static_cast<uint32_t>(value.bits) << 16 : value.bits;
#else
    group.words[i] = __float_as_uint(value);
#endif
}

// x is known to be a multiple of 16 bytes if kAligned, else of sizeof(Input).
template <bool kAligned>
__device__ __forceinline__ InputGroup load_group(const Input* __restrict__ x) {
    InputGroup group;
    if (kAligned || is_aligned_16(x)) {
#pragma unroll
        for (int i = 0; i < kGroupWords / 4; i++) {
            const uint4 four = __ldg(reinterpret_cast<const uint4*>(x) + i);
            group.words[4 * i] = four.x;
            group.words[4 * i + 1] = four.y;
            group.words[4 * i + 2] = four.z;
            group.words[4 * i + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < kGroupSize; i++) set_element(group, i, x[i]);
    }
    return group;
}

// Element i of a group, i known at compile time once the loop around it is unrolled.
__device__ __forceinline__ float element(const InputGroup& group, int i) {
#if NVFP4_INPUT == 0
    const uint32_t word = group.words[i / 2];
    return __uint_as_float(i % 2 ? word & 0xFFFF0000 : word << 16);
#elif NVFP4_INPUT == 1
    return ptx::f16_to_float(static_cast<uint16_t>(group.words[i / 2] >> 16 * (i % 2)));
#else
    return __uint_as_float(group.words[i]);
#endif
}

__device__ __forceinline__ Amax amax_or_nan(const InputGroup& group) {
    Extremes extremes = {group.words[0], group.words[0]};
#if NVFP4_INPUT == 2
    extremes.largest &= 0x7FFFFFFF;
#endif
#pragma unroll
    for (int i = 1; i < kGroupWords; i++) extremes.add(group.words[i]);
    return extremes.amax_or_nan();
}

// ---- codes and scale, with divisions -----------------------------------------------------------

// `input(i)` is element i as float32. Loops that are not unrolled: this is rare and must be small.
template <class At>
__device__ __forceinline__ QuantizedGroup quantize_slow(At input, float gsa) {
    float amax = 0.0f;
#pragma unroll 1
    for (int i = 0; i < kGroupSize; i++) amax = fmaxf(amax, fabsf(__fdiv_rn(input(i), gsa)));
    if (amax < kSmallestAmax) return {0, 0, 0};
    const uint32_t byte = e4m3_byte_of_sixth(amax);
    const float scale = e4m3_value(byte);
    uint64_t codes = 0;
#pragma unroll 1
    for (int i = 0; i < kGroupSize; i++) {
        const float quotient = __fdiv_rn(__fdiv_rn(input(i), gsa), scale);
        const uint32_t code =
            e2m1_magnitude<kRounding>(fabsf(quotient)) | e2m1_sign<kRounding>(quotient);
        codes |= static_cast<uint64_t>(code) << 4 * i;
    }
    return {static_cast<uint32_t>(codes), static_cast<uint32_t>(codes >> 32), byte};
}

// The scale search divides as well: its errors depend on every bit of v.
__device__ __forceinline__ QuantizedGroup quantize_searching(const InputGroup& group, float gsa) {
    float v[kGroupSize];
#pragma unroll
    for (int i = 0; i < kGroupSize; i++) v[i] = __fdiv_rn(element(group, i), gsa);
    return quantize_group_search<kRounding>(v);
}
