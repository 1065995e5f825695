// One group of 16 inputs to codes and a scale, without a division and without the scale search.
//
//     v = x / gsa;  scale = e4m3(max |v| / 6);  code = e2m1(v / scale)
//
// every operation rounded to float32. Reciprocals are kept in two parts, high + low, and multiplied
// by. That gives the bytes that division gives where a range and `keeps_signs` hold:
//
//  - The codes depend on v only through comparisons with decision point * scale, the scale through
//    comparisons of max |v| with 6 * (midpoint of E4M3 numbers): all numbers of at most 9
//    significant bits. A quotient that is wrong in the last place is harmless unless it crosses,
//    reaches or leaves such a number.
//  - x * high + x * low, two roundings, was compared with x / gsa for all 2^23 significands of gsa
//    and all 2^7 (bfloat16) or 2^10 (float16) of x, with high the rounded reciprocal and both of
//    its neighbours. Up to 813 quotients differ, in the last place; the only one that touches a
//    number of 10 bits or less has gsa's significand all ones. float32 inputs take two residual
//    corrections, after which the quotient is the rounded one (Markstein).
//  - v / scale has a divisor of 4 bits, so its quotient is 1/30 ulp or more away from every
//  midpoint
//    of floats, and v * high + v * low is off by 2^-22 ulp before it is rounded.
#pragma once

#include "quantize_group.cuh"

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
        inverse =
            __fmaf_rn(__fmaf_rn(-gsa, guess, 1.0f), guess, guess);  // the rounded one, or next
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

// ---- where it is right -------------------------------------------------------------------------

constexpr float kLargestQuotient = kRounding == kHalfStep ? 7.5f : 6.5f;  // all above 6 are alike

// Whether amax / gsa, NaN if there is a NaN, is in the range of quantize_fast without its clamp.
// Half steps: from 9 * 2^-9 on the scale is 2 * 2^-9 or more, and no quotient above 7.5, up to 448
// * 7.5. Nearest: from 6 * 2^-6 on the scale is a normal number and no quotient above 6.5, up to
// 448 * 6.5.
__device__ __forceinline__ bool is_in_range(float largest) {
    constexpr float kFirst = kRounding == kHalfStep ? 9.0f / 512.0f : 6.0f / 64.0f;
    constexpr float kLast = 448.0f * kLargestQuotient;
    const uint32_t first = __float_as_uint(kFirst), last = __float_as_uint(kLast);
    return __float_as_uint(largest) - first <= last - first;
}

// With its clamp: from 6 * 2^-9 on the scale is not zero; below 2^33 a quotient is below 2^25, up
// to where nearest_low sends all large ones to 6.
__device__ __forceinline__ bool is_in_wide_range(float largest) {
    return largest >= kSmallestAmax && largest < 8589934592.0f;
}

// Whether no quotient of a negative element is flushed to zero, which would clear its sign bit:
// every negative x has |x| >= amax * 2^-90. With amax / gsa at least 2^-6 and the scale at most
// 448, neither x / gsa nor that over the scale is then near 2^-126. Zeros and subnormals, which are
// no harm, count as negative elements too if kStrict. (kNearestEven takes the sign bit of x.)
template <bool kStrict>
__device__ __forceinline__ bool keeps_signs(const InputGroup& group, const Amax& amax) {
    if constexpr (kRounding == kNearestEven) return true;
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

// ---- rounding to codes -------------------------------------------------------------------------

// 2^k as a factor of the quotients, that half_step_codes and nearest_codes take.
constexpr float kQuotientFactor = kRounding == kHalfStep ? 1.0f / 256.0f : 1.0f / 64.0f;

// Codes of 8 quotients times 2^-8, |quotient| < 7.75, by the half-step rule; code i in nibble i.
__device__ __forceinline__ uint32_t half_step_codes(const float* q) {
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
    return ptx::bit_select(0x66666666, middle, outer);
}

// Codes of 8 quotients times 2^-6, |quotient| <= 6.5, to the nearest level; `sign` has their signs.
//
// A number is rounded to a level by adding a large one, the shift, and taking it off again: floats
// from 2^16 to 2^17 are 2^-7 apart, as the levels below 2 are here, and so on. The shift need not
// be a power of two, and where a binade ends the smaller distance does as well a little further: 2
// to 2.25 goes to 2 in steps of 0.5 as in steps of 1, 4 to 4.5 to 4. So it is 2^22 (1 - 2^-20)
// times the number, which leaves room to add that; at least 2^16 for the levels below 1.
__device__ __forceinline__ uint32_t nearest_codes(const float* q, const float* sign) {
    float level[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float a = fabsf(q[i]);
        const float shift = fmaxf(a * (4194304.0f - 4.0f), 65536.0f);
        if constexpr (kRounding == kNearestEven) {
            // An even multiple of the distance, so that ties go to even levels.
            const float even_shift = __uint_as_float(__float_as_uint(shift) & ~1u);
            level[i] = (a + even_shift) - even_shift;
        } else {
            // Ties go down: 2^-24 of a is between a half and one unit in its last place, so that a
            // tie gets below the decision point, and the next float stays above.
            level[i] = __fmaf_rn(a, 1.0f - 5.9604645e-08f, shift) - shift;
        }
        level[i] =
            __uint_as_float(__float_as_uint(level[i]) | (__float_as_uint(sign[i]) & 1u << 31));
    }
#if __CUDA_ARCH__ >= 890
    // 2^-6 is the smallest normal number of E4M3 and 2^-7 half of it, a subnormal: the byte of 2^-6
    // times a level is four times its code.
    const uint32_t even = ptx::join_halves(ptx::floats_to_e4m3x2(level[0], level[2]),
                                           ptx::floats_to_e4m3x2(level[4], level[6]));
    const uint32_t odd = ptx::join_halves(ptx::floats_to_e4m3x2(level[1], level[3]),
                                          ptx::floats_to_e4m3x2(level[5], level[7]));
    const uint32_t low = ptx::bit_select(0x07070707, even >> 2, even >> 4 & 0x08080808);
    const uint32_t high = ptx::bit_select(0x70707070, odd << 2, odd & 0x80808080);
    return low | high;
#else
    uint32_t codes = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        // Twice a level is 0, 1, 2, 3, 4, 6, 8 or 12: units of 2^-7, the last place from 2^16 on.
        const uint32_t twice = __float_as_uint(fabsf(level[i]) + 65536.0f) & 0xF;
        const uint32_t code = twice < 5 ? twice : 4 + (twice >> 2);
        codes |= (code | (__float_as_uint(level[i]) >> 28 & 8)) << 4 * i;
    }
    return codes;
#endif
}

// ---- the group ---------------------------------------------------------------------------------

// largest = amax / gsa. kClamp: it is only in the wide range.
template <bool kClamp>
__device__ __forceinline__ QuantizedGroup quantize_fast(const InputGroup& group,
                                                        const RowScale& row, float largest) {
    if constexpr (kClamp) largest = fminf(largest, 448.0f * kLargestQuotient);
#if __CUDA_ARCH__ >= 890
    // In two parts, 1 / 6 is exact enough for the same reason as 1 / scale.
    const float sixth = __fmaf_rn(largest, 0.16666667f, largest * -4.967054e-09f);
    const uint32_t byte = ptx::floats_to_e4m3x2(sixth, 0.0f);
    // E4M3 bits in float16's exponent and mantissa are the value times 2^-8, subnormals included.
    float scale = ptx::f16_to_float(static_cast<uint16_t>(byte << 7));
#else
    const uint32_t byte = e4m3_byte_of_sixth(largest);
    float scale = e4m3_value(byte) * (1.0f / 256.0f);
#endif
    scale *= 256.0f / kQuotientFactor;
    const float guess = ptx::reciprocal_approximate(scale);
    const float inverse = __fmaf_rn(__fmaf_rn(-scale, guess, 1.0f), guess, guess);  // rounded
    // The rounded reciprocals of 8 to 15 are exact or too large, so this is -0 or less, and x = -0
    // comes out as +0 from the sum below.
    const float inverse_low = -(__fmaf_rn(scale, inverse, -1.0f) * inverse);
    float x[kGroupSize], q[kGroupSize];
#pragma unroll
    for (int i = 0; i < kGroupSize; i++) {
        x[i] = element(group, i);
        const float v = divide(x[i], row);
        q[i] = __fmaf_rn(v, inverse, v * inverse_low);
        if constexpr (kClamp) {
            constexpr float kLimit = kLargestQuotient * kQuotientFactor;
            q[i] = fminf(fmaxf(q[i], -kLimit), kLimit);
        }
    }
    if constexpr (kRounding == kHalfStep) {
        return {half_step_codes(q), half_step_codes(q + 8), byte};
    } else {
        const float* sign = kRounding == kNearestEven ? x : q;
        return {nearest_codes(q, sign), nearest_codes(q + 8, sign + 8), byte};
    }
}
