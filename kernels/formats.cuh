// Number formats: E2M1 and E4M3 codes, the three rounding rules, groups of 16 that share a scale.
//
//     x[i] ~= e2m1(code[i]) * e4m3(scale),   i in [0, 16)
//
// Built with flush-to-zero: a subnormal operand counts as a zero of its sign.
//
// Source: OCP Microscaling Formats v1.0 (E2M1), OCP 8-bit Floating Point v1.0 (E4M3).
#pragma once

#include "ptx.cuh"
#include "types.cuh"

// Where the points between neighbours of 0 | .5 | 1 | 1.5 | 2 | 3 | 4 | 6 lie, ties included:
//   kHalfStep     .25 .75 1.25 1.75 2.75 3.75 5.25: twice the value is rounded to an integer, ties
//                 to even, and 5, 7, 9, 10, 12 then go down
//   kNearestLow   .25 .75 1.25 1.75 2.5 3.5 5, ties down
//   kNearestEven  the same, ties to the even code
enum Rounding { kHalfStep = 0, kNearestLow = 1, kNearestEven = 2 };

constexpr int kGroupSize = 16;
constexpr uint32_t kE4m3MaxByte = 0x7E;         // 448; 0x7F is NaN
constexpr float kSmallestAmax = 6.0f / 512.0f;  // below, amax / 6 is under the smallest scale
constexpr uint32_t kOneBits = 127u << 23;       // 1.0f
constexpr uint32_t kExponentMask = 0xFFu << 23;

// One quantized group. Nibble i of `low` is the code of element i, of `high` that of element 8 + i.
struct QuantizedGroup {
    uint32_t low, high;
    uint32_t scale;  // an E4M3 byte
};

// ---- values to float32 -------------------------------------------------------------------------

__device__ __forceinline__ float to_float(bf16_t bits) {
    return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

__device__ __forceinline__ float to_float(fp16_t value) { return ptx::f16_to_float(value.bits); }

__device__ __forceinline__ float to_float(float value) { return value; }

// The value of an E2M1 code in [0, 16).
__device__ __forceinline__ float e2m1_value(uint32_t code) {
    const uint32_t magnitude = code & 7;
    // Codes from 2 on are floats with one mantissa bit; 1 is their subnormal, 0.5.
    const float normal = __uint_as_float((magnitude << 22) + ((127u - 1) << 23));
    const float value = magnitude < 2 ? 0.5f * static_cast<float>(magnitude) : normal;
    return __uint_as_float(__float_as_uint(value) | (code & 8) << 28);
}

// The value of an E4M3 byte; the top bit is ignored, 0x7F gives NaN.
__device__ __forceinline__ float e4m3_value(uint32_t byte) {
    const uint32_t magnitude = byte & 0x7F;
    const float normal = __uint_as_float((magnitude << 20) + (120u << 23));
    const float value = magnitude < 8 ? static_cast<float>(magnitude) * (1.0f / 512.0f) : normal;
    return magnitude == 0x7F ? __uint_as_float(0x7FFFFFFF) : value;
}

// Rounds to the nearest E4M3 number, ties to even, at most 448. Not above zero, or NaN: 0.
__device__ __forceinline__ uint32_t e4m3_byte(float value) {
    const float clamped = fminf(fmaxf(value, 0.0f), 448.0f);  // fmaxf: NaN gives 0
    const uint32_t bits = __float_as_uint(clamped);
    // Three mantissa bits stay and the exponent's bias goes from 127 to 7.
    const uint32_t normal = (bits + 0x7FFFF + (bits >> 20 & 1) >> 20) - (120 << 3);
    // Below 2^-6 the codes are multiples of 2^-9: the unit of floats near 2^14 in last place.
    const uint32_t small = __float_as_uint(clamped + 16384.0f) & 0xF;
    return clamped < 0.015625f ? small : normal;
}

// e4m3_byte(amax / 6), amax >= 0, where the quotient is rounded to float32 as a division rounds it.
__device__ __forceinline__ uint32_t e4m3_byte_of_sixth(float amax) {
    // 1/6 to 48 bits in two parts. The sum is off by less than 2^-48 of itself before it is
    // rounded, and a third of a float is at least 1/6 ulp away from every midpoint of two floats.
    const float a = fminf(amax, 4096.0f);  // from 2688 on the result is 448
    const float low = a * -4.967054e-09f;
    return e4m3_byte(__fmaf_rn(a, 0.16666667f, low));
}

// ---- rounding to E2M1 --------------------------------------------------------------------------

// A magnitude in [0, 6], split where the distance of E2M1 levels doubles: in [0, 2) they are 0.5
// apart, in [2, 4) 1, in [4, 6] 2.
struct Binade {
    float shift;      // 2^23 times that distance: floats from here to twice it are as far apart
    uint32_t offset;  // code of a level = level / distance + offset
};

__device__ __forceinline__ Binade binade_of(float magnitude) {
    const uint32_t bits = __float_as_uint(magnitude);
    const uint32_t exponent = (bits > kOneBits ? bits : kOneBits) & kExponentMask;
    return {__uint_as_float(exponent + (22u << 23)), (exponent - kOneBits) >> 22};
}

// Where the rounding of |a - level| to float32 decides: the first level at the smallest distance.
// NaN, and infinity, which is equally far from all levels, give 0.
__device__ __forceinline__ uint32_t e2m1_first_closest(float a) {
    float best = a;
    uint32_t code = 0;
#pragma unroll 1
    for (uint32_t i = 1; i < 8; i++) {  // rare, so small
        const float distance = a - e2m1_value(i);
        if (distance < best) {
            best = distance;
            code = i;
        }
    }
    return code;
}

constexpr float kDistancesRoundFrom = 33554432.0f;  // 2^25

// The code 0..7 of a magnitude; NaN gives 7 under kHalfStep and kNearestEven, 0 under kNearestLow.
template <Rounding kRounding>
__device__ __forceinline__ uint32_t e2m1_magnitude(float a) {
    const float clamped = fminf(a, 6.0f);  // NaN gives 6
    if constexpr (kRounding == kHalfStep) {
        const uint32_t steps = __float_as_uint(clamped * 2.0f + 8388608.0f) & 0xF;
        return steps < 5 ? steps : 4 + (steps > 5) + (steps > 7) + (steps > 10);
    } else {
        const Binade binade = binade_of(clamped);
        const float rounded = clamped + binade.shift;  // to the level's multiple, ties to even
        uint32_t code = __float_as_uint(rounded) - __float_as_uint(binade.shift) + binade.offset;
        if constexpr (kRounding == kNearestLow) {
            // The way up is half a distance, 2^-24 of the shift, only from a tie.
            const float way_up = (rounded - binade.shift) - clamped;
            if (way_up == binade.shift * 5.9604645e-08f) code--;
            if (!(a < kDistancesRoundFrom)) code = e2m1_first_closest(a);
        }
        return code;
    }
}

// Bit 3 of the code: the sign bit under kNearestEven, "below zero" under the others; not for NaN.
template <Rounding kRounding>
__device__ __forceinline__ uint32_t e2m1_sign(float value) {
    if constexpr (kRounding == kNearestEven) {
        return value == value ? __float_as_uint(value) >> 28 & 8 : 0;
    } else {
        return value < 0.0f ? 8 : 0;
    }
}

// ---- groups ------------------------------------------------------------------------------------

__device__ __forceinline__ float group_amax(const float (&v)[kGroupSize]) {
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < kGroupSize; i++) amax = fmaxf(amax, fabsf(v[i]));  // NaN is ignored
    return amax;
}

// Quantizes with the scale that the largest magnitude asks for:
//     amax = max |v|, NaN ignored; below 6 * 2^-9 everything is zero
//     scale = e4m3(amax / 6);  code[i] = e2m1(v[i] / scale)
template <Rounding kRounding>
__device__ __forceinline__ QuantizedGroup quantize_group(const float (&v)[kGroupSize]) {
    const float amax = group_amax(v);
    if (amax < kSmallestAmax) return {0, 0, 0};
    const uint32_t byte = e4m3_byte_of_sixth(amax);
    const float scale = e4m3_value(byte);
    uint32_t half[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < kGroupSize; i++) {
        const float quotient = __fdiv_rn(v[i], scale);
        const uint32_t code =
            e2m1_magnitude<kRounding>(fabsf(quotient)) | e2m1_sign<kRounding>(quotient);
        half[i / 8] |= code << 4 * (i % 8);
    }
    return {half[0], half[1], byte};
}
