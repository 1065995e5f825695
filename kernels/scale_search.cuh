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

// Sets `codes` (magnitudes, as QuantizedGroup has them) and returns the squared error.
template <Rounding kRounding>
__device__ __forceinline__ float try_scale(const float (&v)[kGroupSize], uint32_t byte,
                                           uint32_t (&codes)[2]) {
    const float scale = e4m3_value(byte);
    const float inverse = byte == 0 ? 0.0f : __fdiv_rn(1.0f, scale);
    float error = 0.0f;
    codes[0] = codes[1] = 0;
#pragma unroll
    for (int i = 0; i < kGroupSize; i++) {
        const float magnitude = fabsf(v[i]);
        // Infinity times the inverse 0 is NaN, so scale 0 is set apart.
        const uint32_t code = byte == 0 ? 0 : e2m1_magnitude<kRounding>(magnitude * inverse);
        const float difference = magnitude - e2m1_value(code) * scale;  // the product is exact
        error = __fmaf_rn(difference, difference, error);
        codes[i / 8] |= code << 4 * (i % 8);
    }
    return error;
}

template <Rounding kRounding>
__device__ __forceinline__ QuantizedGroup quantize_group_search(const float (&v)[kGroupSize]) {
    const int center = static_cast<int>(e4m3_byte_of_sixth(group_amax(v)));
    float best = 3.40282347e+38f;  // FLT_MAX
    QuantizedGroup group = {0, 0, 0};
#pragma unroll 1
    for (int i = 0; i < 5; i++) {
        const int step = (i + 1) >> 1;  // 0, 1, 1, 2, 2
        const int byte = center + (i & 1 ? -step : step);
        if (byte < 0 || byte > static_cast<int>(kE4m3MaxByte)) continue;
        uint32_t codes[2];
        const float error = try_scale<kRounding>(v, static_cast<uint32_t>(byte), codes);
        if (error < best) {  // false for NaN and infinity
            best = error;
            group = {codes[0], codes[1], static_cast<uint32_t>(byte)};
        }
    }
#pragma unroll
    for (int i = 0; i < kGroupSize; i++) {
        const uint32_t sign = e2m1_sign<kRounding>(v[i]) << 4 * (i % 8);
        if (i < 8) {
            group.low |= sign;
        } else {
            group.high |= sign;
        }
    }
    return group;
}
