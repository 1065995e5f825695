// One group of 16 inputs to 16 E2M1 codes and an E4M3 scale, with a decode scale above them.
//
//     v = x / gsa;  scale = e4m3(max |v| / 6);  code = e2m1(v / scale)
//
// every operation rounded to float32. Two paths give the same bits. The slow one divides. The fast
// one multiplies by reciprocals that are kept in two parts, high + low, and is taken where that is
// proven to give what division gives:
//
//  - The codes depend on v only through comparisons with decision point * scale, the scale through
//    comparisons of max |v| with 6 * (midpoint of E4M3 numbers), the zero rule through one with
//    6 * 2^-9: all numbers of at most 9 significant bits. A quotient that is wrong in the last place
//    is therefore harmless unless it crosses, reaches or leaves such a number.
//  - x * high + x * low, two roundings, was compared with x / gsa for all 2^23 significands of gsa
//    and all 2^7 (bfloat16) or 2^10 (float16) of x, with high the rounded reciprocal and both of its
//    neighbours. Up to 813 quotients differ, in the last place; the only one that touches a number of
//    9 bits has gsa's significand all ones. float32 inputs take two residual corrections, after
//    which the quotient is the rounded one (Markstein).
//  - v / scale has a divisor of 4 bits, so its quotient is 1/30 ulp or more away from a midpoint of
//    floats that it does not hit, and v * high + v * low is off by 2^-22 ulp before it is rounded.
//
// What the fast path needs besides: `is_in_range` and `keeps_signs`.
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

// x is a multiple of 16 bytes if kAligned, else of sizeof(Input).
template <bool kAligned>
__device__ __forceinline__ InputGroup load_group(const Input* __restrict__ x) {
    InputGroup group;
    if constexpr (kAligned) {
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

// ---- fast path ---------------------------------------------------------------------------------

// A row's decode scale and 1 / gsa = inverse + inverse_low to 48 bits.
struct RowScale {
    float gsa;
    float inverse;  // NaN where the row takes the slow path
    float inverse_low;
};

__device__ __forceinline__ RowScale row_scale(float gsa) {
    const uint32_t bits = __float_as_uint(gsa);
    // Within 2^-60 and 2^60 no intermediate result that matters is subnormal or infinite.
    const bool is_regular = bits - (67u << 23) < (120u << 23) && (bits & 0x7FFFFF) != 0x7FFFFF;
    float inverse;
    if constexpr (sizeof(Input) == 2) {
        const float guess = ptx::reciprocal_approximate(gsa);
        inverse = __fmaf_rn(__fmaf_rn(-gsa, guess, 1.0f), guess, guess);  // the rounded one, or next
    } else {
        inverse = __frcp_rn(gsa);
    }
    if (!is_regular) inverse = __uint_as_float(0x7FFFFFFF);
    return {gsa, inverse, __fmaf_rn(-gsa, inverse, 1.0f) * inverse};
}

__device__ __forceinline__ float divide(float x, const RowScale& row) {
    if constexpr (sizeof(Input) == 2) {
        return __fmaf_rn(x, row.inverse, x * row.inverse_low);
    } else {
        float quotient = x * row.inverse;
#pragma unroll
        for (int i = 0; i < 2; i++)
            quotient = __fmaf_rn(__fmaf_rn(-quotient, row.gsa, x), row.inverse, quotient);
        return quotient;
    }
}

// Whether a quotient is in the range of the fast path: from 9 * 2^-9 on the scale is 2 * 2^-9 or
// more, and amax / scale at most 7.5, up to 448 * 7.5. NaN is not.
__device__ __forceinline__ bool is_in_range(float largest) {
    const uint32_t first = __float_as_uint(9.0f / 512.0f), last = __float_as_uint(448.0f * 7.5f);
    return __float_as_uint(largest) - first <= last - first;
}

// Whether no quotient of a negative element is flushed to zero, which would clear its sign bit:
// every negative x has |x| >= amax * 2^-90. With amax / gsa at least 2^-6 and the scale at most 448,
// neither x / gsa nor that over the scale is then near 2^-126. Zeros and subnormals, which are no
// harm, count as negative elements too if kStrict.
template <bool kStrict>
__device__ __forceinline__ bool keeps_signs(const InputGroup& group, const Amax& amax) {
#if NVFP4_INPUT == 0
    if constexpr (kStrict) {
        // As integers of 16 bits, negative numbers are those below 0, the smallest magnitude first.
        // (An amax below 2^-37 makes the limits positive: false then.)
        const uint32_t limits = amax.bits + 0x80008000 - (90 << 7) * 0x00010001;
        uint32_t smallest = limits;
#pragma unroll
        for (int i = 0; i < kGroupWords; i++) smallest = ptx::min_s16x2(smallest, group.words[i]);
        return smallest == limits;
    } else {
        const int limit = static_cast<int>(amax.bits >> 16) - (90 << 7);
        bool is_kept = true;
#pragma unroll
        for (int i = 0; i < kGroupSize; i++) {
            const uint32_t bits = group.words[i / 2] >> 16 * (i % 2) & 0xFFFF;
            const int magnitude = static_cast<int>(bits & 0x7FFF);
            is_kept &= bits < 0x8080 || magnitude >= limit;
        }
        return is_kept;
    }
#elif NVFP4_INPUT == 1
    return true;  // the smallest magnitude is 2^-24
#else
    const int limit = static_cast<int>(amax.bits) - (90 << 23);
    bool is_kept = true;
#pragma unroll
    for (int i = 0; i < kGroupSize; i++) {
        const int magnitude = static_cast<int>(group.words[i] & 0x7FFFFFFF);
        is_kept &= group.words[i] < 0x80800000 || magnitude >= limit;
    }
    return is_kept;
#endif
}

// The codes of 16 quotients v / scale times 2^-8, by the half-step rule; |quotient| < 7.75.
__device__ __forceinline__ void half_step_codes(const float (&t)[kGroupSize], uint32_t (&codes)[2]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float* q = t + 8 * half;
        // E4M3 numbers below 2^-5 are the multiples of 2^-9, and a byte is its multiple: rounding to
        // E4M3 rounds 512 t, twice the quotient, to an integer, ties to even. Sign in bit 7.
        uint32_t even, odd;
#if __CUDA_ARCH__ >= 890
        even = ptx::join_halves(ptx::floats_to_e4m3x2(q[0], q[2]), ptx::floats_to_e4m3x2(q[4], q[6]));
        odd = ptx::join_halves(ptx::floats_to_e4m3x2(q[1], q[3]), ptx::floats_to_e4m3x2(q[5], q[7]));
#else
        even = odd = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            // 2^14 + |t|: the unit in the last place is 2^-9.
            const uint32_t steps = __float_as_uint(fabsf(q[i]) + 16384.0f) & 0xF;
            const uint32_t byte = steps | (__float_as_uint(q[i]) >> 24 & 0x80);
            (i % 2 ? odd : even) |= byte << 8 * (i / 2);
        }
#endif
        const uint32_t low_nibbles = 0x0F0F0F0F;
        const uint32_t steps = ptx::bit_select(low_nibbles, even, odd << 4);
        const uint32_t signs = ptx::bit_select(low_nibbles, even >> 4, odd);  // bit 3 of each nibble
        // Steps 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 have the codes 0 1 2 3 4 4 5 5 6 6 6 7 7 7 7 7.
        // As bits, with steps h3 h2 h1 h0 (bit 0 of each nibble of x3, x2, x1, steps):
        const uint32_t x1 = steps >> 1, x2 = steps >> 2, x3 = steps >> 3;
        const uint32_t bit0_below_8 = ptx::bit_select(x2, x1, steps);
        const uint32_t bit0_from_8 = x2 | (x1 & steps);
        const uint32_t bit0 = ptx::bit_select(x3, bit0_from_8, bit0_below_8);
        const uint32_t bit1 = x2 | (~x1 & steps);  // h3 | (~h2 & h1), at bit 1
        const uint32_t bit2 = x1 | steps;          // h3 | h2, at bit 2
        const uint32_t middle = ptx::bit_select(0x22222222, bit1, bit2);
        const uint32_t outer = ptx::bit_select(0x11111111, bit0, signs);
        codes[half] = ptx::bit_select(0x66666666, middle, outer);
    }
}

// Half-step and nearest rounding without the scale search, see the top.
__device__ __forceinline__ QuantizedGroup quantize_fast(const InputGroup& group, const RowScale& row,
                                                        float largest) {
    uint32_t byte;
    float scale;
#if __CUDA_ARCH__ >= 890
    const float sixth = __fmaf_rn(largest, 0.16666667f, largest * -4.967054e-09f);
    byte = ptx::floats_to_e4m3x2(sixth, 0.0f);
    // E4M3 bits in float16's exponent and mantissa are the value times 2^-8, subnormals included.
    scale = ptx::f16_to_float(static_cast<uint16_t>(byte << 7));
#else
    byte = e4m3_byte_of_sixth(largest);
    scale = e4m3_value(byte) * (1.0f / 256.0f);
#endif
    // The half-step rule takes quotients times 2^-8.
    scale *= kRounding == kHalfStep ? 65536.0f : 256.0f;
    const float guess = ptx::reciprocal_approximate(scale);
    const float inverse = __fmaf_rn(__fmaf_rn(-scale, guess, 1.0f), guess, guess);  // 1 / scale
    // Never above -0 (the rounded reciprocals of 8 to 15 are too large or exact), so that x = -0
    // comes out as +0 from the sum below.
    const float inverse_low = -(__fmaf_rn(scale, inverse, -1.0f) * inverse);
    float t[kGroupSize];
#pragma unroll
    for (int i = 0; i < kGroupSize; i++) {
        const float v = divide(element(group, i), row);
        t[i] = __fmaf_rn(v, inverse, v * inverse_low);
    }
    uint32_t codes[2] = {0, 0};
    if constexpr (kRounding == kHalfStep) {
        half_step_codes(t, codes);
    } else {
#pragma unroll
        for (int i = 0; i < kGroupSize; i++) {
            uint32_t sign = __float_as_uint(t[i]) >> 28 & 8;
            if constexpr (kRounding == kNearestEven)
                sign = __float_as_uint(element(group, i)) >> 28 & 8;
            codes[i / 8] |= (e2m1_magnitude<kRounding, true>(fabsf(t[i])) | sign) << 4 * (i % 8);
        }
    }
    return {codes[0], codes[1], byte};
}

// ---- slow path ---------------------------------------------------------------------------------

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
