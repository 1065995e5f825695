// e^x in float32: the operations of nvfp4cupy/reference/exp.py, so that CPU and GPU agree bit for
// bit.
//
//     t = x * log2(e) rounded to an integer;  r = x - t * ln 2, ln 2 in two parts
//     e^x = 2^t * (1 + r + r^2 * P(r)),  P of degree 4
//
// Compiled with -fmad=false: every product and sum below is rounded on its own.
//
// Source: nvfp4cupy/reference/exp.py, which states the operations and their error (at most 2 ulp).
#pragma once

#include "types.cuh"

namespace exponential {

constexpr float kLog2E = 0x1.715476p+0f;
constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: the unit of float32 sums near it is 1
constexpr float kLn2High = 0x1.62e4p-1f;
constexpr float kLn2Low = 0x1.7f7d1cp-20f;

// e^x = factor * 2^(bits(shifted) - bits(kShift)), factor in [0.70, 1.42].
struct Parts {
    float factor, shifted;
};

__device__ __forceinline__ Parts parts(float x) {
    const float shifted = x * kLog2E + kShift;
    const float t = shifted - kShift;
    // t has at most 8 bits and kLn2High 15, so their product is exact and the fma rounds as a
    // product and a difference do.
    float r = __fmaf_rn(t, -kLn2High, x);
    r = r - t * kLn2Low;
    float p = 0x1.6a5248p-10f * r + 0x1.12396ep-7f;
    p = p * r + 0x1.5558aap-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    return {(r * r) * p + r + 1.0f, shifted};
}

// For |x| <= 80, where the result is a normal number: adding n to the exponent's bits multiplies by
// 2^n. The lowest 9 bits of bits(kShift) are zero, so the shift leaves n alone. NaN gives anything.
__device__ __forceinline__ float of_moderate(float x) {
    const Parts p = parts(x);
    return __uint_as_float(__float_as_uint(p.factor) + (__float_as_uint(p.shifted) << 23));
}

// For any x. 2^n is applied in two factors since n runs from -185 to 185. NaN gives NaN.
__device__ __forceinline__ float of_any(float x) {
    if (x > 128.0f) x = 128.0f;
    if (x < -128.0f) x = -128.0f;
    const Parts p = parts(x);
    // Unsigned: for NaN the difference wraps around.
    const uint32_t n = __float_as_uint(p.shifted) - __float_as_uint(kShift);
    const uint32_t half = (n >> 1) | (n & 0x80000000);
    const float scaled = p.factor * __uint_as_float((half + 127) << 23);
    return scaled * __uint_as_float((n - half + 127) << 23);
}

}  // namespace exponential
