// Quantizes a group of 16 with the E4M3 scale, out of five, that leaves the least squared error.
//
//     c0 = e4m3(max |v| / 6);  for c in c0, c0 - 1, c0 + 1, c0 - 2, c0 + 2 within [0, 0x7E]:
//         q[i] = e2m1(|v[i]| * (1 / s)),  s = e4m3 value of c (with s = 0, q = 0)
//         error = sum of (|v[i]| - q[i] * s)^2, fused multiply-adds in the order of i
//     the first c with the smallest error below FLT_MAX is kept; if there is none, scale 0
//
// Magnitudes are 0 under scale 0, signs stay.
#pragma once

#include "formats.cuh"

// e4m3_byte_of_sixth(amax) in fewer instructions, where the GPU converts to E4M3 itself.
__device__ __forceinline__ uint32_t center_byte(float amax) {
#if __CUDA_ARCH__ >= 890
    const float a = fminf(amax, 4096.0f);
    const float sixth = __fmaf_rn(a, 0.16666667f, a * -4.967054e-09f);
    return ptx::floats_to_e4m3x2(sixth, 0.0f) & 0xFF;
#else
    return e4m3_byte_of_sixth(amax);
#endif
}

// ---- any rounding, any group -------------------------------------------------------------------

// Sets `codes` (magnitudes, as QuantizedGroup has them) and returns the squared error.
template <Rounding kRounding, int kUnroll>
__device__ __forceinline__ float try_scale(const float (&v)[kGroupSize], uint32_t byte,
                                           uint64_t& codes) {
    const float scale = e4m3_value(byte);
    const float inverse = byte == 0 ? 0.0f : __fdiv_rn(1.0f, scale);
    float error = 0.0f;
    codes = 0;
#pragma unroll kUnroll
    for (int i = 0; i < kGroupSize; i++) {
        const float magnitude = fabsf(v[i]);
        // Infinity times the inverse 0 is NaN, so scale 0 is set apart.
        const uint32_t code = byte == 0 ? 0 : e2m1_magnitude<kRounding>(magnitude * inverse);
        const float difference = magnitude - e2m1_value(code) * scale;  // the product is exact
        error = __fmaf_rn(difference, difference, error);
        codes |= static_cast<uint64_t>(code) << 4 * i;
    }
    return error;
}

template <Rounding kRounding, int kUnroll>
__device__ __forceinline__ QuantizedGroup search_any(const float (&v)[kGroupSize], float amax) {
    const int center = static_cast<int>(e4m3_byte_of_sixth(amax));
    float best = 3.40282347e+38f;  // FLT_MAX
    uint64_t codes = 0;
    uint32_t scale = 0;
#pragma unroll 1
    for (int i = 0; i < 5; i++) {
        const int step = (i + 1) >> 1;  // 0, 1, 1, 2, 2
        const int byte = center + (i & 1 ? -step : step);
        if (byte < 0 || byte > static_cast<int>(kE4m3MaxByte)) continue;
        uint64_t tried;
        const float error = try_scale<kRounding, kUnroll>(v, static_cast<uint32_t>(byte), tried);
        if (error < best) {  // false for NaN and infinity
            best = error;
            codes = tried;
            scale = static_cast<uint32_t>(byte);
        }
    }
#pragma unroll kUnroll
    for (int i = 0; i < kGroupSize; i++)
        codes |= static_cast<uint64_t>(e2m1_sign<kRounding>(v[i])) << 4 * i;
    return {static_cast<uint32_t>(codes), static_cast<uint32_t>(codes >> 32), scale};
}

// ---- nearest_low, ordinary groups --------------------------------------------------------------
//
// float16 numbers times 2^-14 have E2M1 in their bits: code c is the number whose bits are c << 9,
// subnormals included. So two elements are rounded at once, as float16 pairs.

namespace search {

// Below, |v| / s is below 2^25 for every candidate, so that no distance is rounded.
constexpr float kOrdinaryAmax = 0x1p+33f;
constexpr float kNoError = 3.40282347e+38f;  // FLT_MAX: an error has to be below
constexpr uint32_t kCodeFields = 0x0E000E00;
constexpr uint32_t kHalfFields = 0x01000100;
constexpr uint32_t kSigns = 0x80008000;

constexpr int kNumCandidates = 5;

// Scale byte of candidate i: center + 0, - 1, + 1, - 2, + 2. One out of range becomes the end of
// the range, which has been tried before: it is not better than itself.
__device__ __forceinline__ uint32_t candidate_byte(uint32_t center, int i) {
    const int byte = static_cast<int>(center) + (i % 2 ? -(i + 1) / 2 : i / 2);
    constexpr int kLast = kE4m3MaxByte;
    return static_cast<uint32_t>(i % 2 ? max(byte, 0) : min(byte, kLast));
}

// kHalfFields, but not to the assembler, which would move the constant to a register again before
// each of its uses. `sign_is_plus` has no sign.
__device__ __forceinline__ uint32_t half_fields(float sign_is_plus) {
    return kHalfFields | __float_as_uint(sign_is_plus) >> 31;
}

// Pairs of magnitudes times 2^-14 to code fields, halves up, at most 6. Other bits are left over.
// `half` is kHalfFields.
__device__ __forceinline__ uint32_t rounded_fields(uint32_t pair, uint32_t half) {
#if __CUDA_ARCH__ >= 900
    return ptx::add_min_u16x2(pair, half, kCodeFields);
#else
    return ptx::min_nan_f16x2(pair, kCodeFields) + half;
#endif
}

// Magnitudes to eight significant bits, in float16, times the power of two that brings amax into
// [0.5, 1); an amax below 2^-10 stays lower. Those that are not normal then are below 2^-14 still,
// but not kept.
struct Magnitudes {
    uint32_t pairs[kGroupSize / 2];
    float factor;

    // `upper`: the upper halves of the float32 magnitudes, in pairs.
    __device__ __forceinline__ Magnitudes(const uint32_t (&upper)[kGroupSize / 2], float amax) {
        constexpr uint32_t kExponent = 14u << 23;   // float16's of [0.5, 1)
        constexpr uint32_t kSmallest = 117u << 23;  // 2^-10: keeps scales in float16's range
        uint32_t exponent = __float_as_uint(amax) & kExponentMask;
        exponent = exponent > kSmallest ? exponent : kSmallest;
        factor = __uint_as_float((253u << 23) - exponent);
        // Upper halves are 8 exponent and 7 mantissa bits: three bits further left, with amax's
        // exponent moved, they are float16.
        const uint32_t lowest = exponent - kExponent;
#if __CUDA_ARCH__ >= 900
        const uint32_t minus_lowest = ptx::byte_permute(0u - lowest, 0, 0x3232);
#else
        const uint32_t both = ptx::byte_permute(lowest, 0, 0x3232);
#endif
#pragma unroll
        for (int j = 0; j < kGroupSize / 2; j++) {
#if __CUDA_ARCH__ >= 900
            pairs[j] = ptx::add_max_s16x2(upper[j], minus_lowest, 0) * 8;
#else
            pairs[j] = (upper[j] - ptx::min_s16x2(upper[j], both)) * 8;
#endif
        }
    }
};

// A scale s as the candidates need it.
struct Candidate {
    float scale;      // s * 2^-8
    uint32_t halves;  // low: 2^-14 / (s * factor), high: -2^14 s * factor, in float16

    __device__ __forceinline__ Candidate(uint32_t byte, float factor) {
        // E4M3 bits at the top of float16's are the value times 2^-8.
        scale = ptx::f16_to_float(static_cast<uint16_t>(byte << 7));
        // |v| / s * 2^-14 must come out right on which side of a decision point it is, and not
        // below one if its 8 bits are that point, for more bits may follow. An inverse that is
        // 2^-11 too large does it: tried for all 8 significands of s and all 128 of |v|. Scale 0
        // has the inverse infinity and some codes, which times 0 are nothing.
        constexpr float kSlightlyLess = 4192256.0f;  // 2^22 (1 - 2^-11)
        const float inverse = ptx::reciprocal_approximate(scale * (factor * kSlightlyLess));
        halves = ptx::floats_to_f16x2(inverse, scale * (factor * -4194304.0f));
    }

    // The fields of two codes.
    __device__ __forceinline__ uint32_t codes(uint32_t pair, uint32_t half) const {
        return rounded_fields(ptx::mul_f16x2_by_magnitude<0>(pair, halves), half) & kCodeFields;
    }
};

// The squared error under a scale. At a decision point both codes leave the same.
__device__ __forceinline__ float squared_error(const float (&v)[kGroupSize], const Magnitudes& a,
                                               uint32_t byte, uint32_t half) {
    const Candidate candidate(byte, a.factor);
    const float scale = candidate.scale * -4194304.0f;  // -s 2^14
    float error = 0.0f;
#pragma unroll
    for (int j = 0; j < kGroupSize / 2; j++) {
        float q0, q1;  // times 2^-14
        ptx::f16x2_to_floats(candidate.codes(a.pairs[j], half), q0, q1);
        const float d0 = __fmaf_rn(q0, scale, fabsf(v[2 * j]));
        error = __fmaf_rn(d0, d0, error);
        const float d1 = __fmaf_rn(q1, scale, fabsf(v[2 * j + 1]));
        error = __fmaf_rn(d1, d1, error);
    }
    return error;
}

// Codes of 8 elements, signs included, under the inverse of their scale.
__device__ __forceinline__ uint32_t encode_half(const float (&v)[kGroupSize], int first,
                                                float inverse) {
    constexpr float kBelow = 0x1.fffffep-15f;  // times this: the next float towards zero, * 2^-14
    uint32_t fields[4];                        // elements i and i + 4 in bits 12-15 and 28-31
#pragma unroll
    for (int i = 0; i < 4; i++) {
        // + 0 makes -0 positive. Rounded toward zero from just below, only what is above a decision
        // point still reaches it.
        const float a = __fmaf_rn(v[first + i], inverse, 0.0f) * kBelow;
        const float b = __fmaf_rn(v[first + i + 4], inverse, 0.0f) * kBelow;
        const uint32_t pair = ptx::floats_to_f16x2_toward_zero(a, b);
        const uint32_t codes = ptx::min_magnitude_f16x2(pair, kCodeFields) * 8 + kHalfFields * 8;
        fields[i] = (codes & ~kSigns) | (pair & kSigns);
    }
    const uint32_t upper = (fields[3] & 0xF0F0F0F0) | (fields[2] >> 4 & 0x0F0F0F0F);
    const uint32_t lower = (fields[1] & 0xF0F0F0F0) | (fields[0] >> 4 & 0x0F0F0F0F);
    return ptx::byte_permute(lower, upper, 0x7351);
}

__device__ __forceinline__ QuantizedGroup encode(const float (&v)[kGroupSize], uint32_t byte) {
    const float s = ptx::f16_to_float(static_cast<uint16_t>(byte << 7)) * 256.0f;
    // One Newton step from any reciprocal within 3 ulp gives the rounded one for all 8
    // significands.
    float inverse = ptx::reciprocal_approximate(s);
    inverse = __fmaf_rn(__fmaf_rn(-s, inverse, 1.0f), inverse, inverse);
    if (byte == 0) inverse = 0x1p-40f;  // codes 0, and the signs stay
    return {encode_half(v, 0, inverse), encode_half(v, 8, inverse), byte};
}

__device__ __forceinline__ QuantizedGroup signs_only(const float (&v)[kGroupSize]) {
    QuantizedGroup group = {0, 0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        group.low |= e2m1_sign<kNearestLow>(v[i]) << 4 * i;
        group.high |= e2m1_sign<kNearestLow>(v[i + 8]) << 4 * i;
    }
    return group;
}

__device__ __forceinline__ QuantizedGroup nearest_low(const float (&v)[kGroupSize], float amax) {
    const uint32_t half = half_fields(amax);
    uint32_t upper[kGroupSize / 2];
#pragma unroll
    for (int j = 0; j < kGroupSize / 2; j++) {
        upper[j] = ~kSigns & ptx::byte_permute(__float_as_uint(v[2 * j]),
                                               __float_as_uint(v[2 * j + 1]), 0x7632);
    }
    const Magnitudes magnitudes(upper, amax);
    const uint32_t center = center_byte(amax);
    float best = kNoError;
    uint32_t kept = 0;
#pragma unroll
    for (int i = 0; i < kNumCandidates; i++) {
        const uint32_t byte = candidate_byte(center, i);
        const float error = squared_error(v, magnitudes, byte, half);
        if (error < best) kept = byte;
        best = fminf(error, best);  // NaN loses
    }
    return best < kNoError ? encode(v, kept) : signs_only(v);  // NaN in the group
}

// Any group: in local memory, short rather than fast.
__device__ __forceinline__ QuantizedGroup nearest_low_any(const float (&v)[kGroupSize],
                                                          float amax) {
    float copy[kGroupSize];
#pragma unroll
    for (int i = 0; i < kGroupSize; i++) copy[i] = v[i];
    return search_any<kNearestLow, 1>(copy, amax);
}

}  // namespace search

template <Rounding kRounding>
__device__ __forceinline__ QuantizedGroup quantize_group_search(const float (&v)[kGroupSize]) {
    const float amax = group_amax(v);
    if constexpr (kRounding == kNearestLow) {
        if (amax < search::kOrdinaryAmax) return search::nearest_low(v, amax);
        return search::nearest_low_any(v, amax);
    } else {
        return search_any<kRounding, kGroupSize>(v, amax);
    }
}
