// SwiGLU of scaled GEMM outputs, in float32:
//
//     g = min(gate * gate_scale, L);  u = min(max(up * up_scale, -L), L)
//     h = g / (1 + exp(-g)) * u
//
// every operation rounded, exp that of exp.cuh. L = NVFP4_SWIGLU_LIMIT, or no clamp if
// NVFP4_NO_SWIGLU_LIMIT is 1. NaN passes the clamps.
//
// Source: nvfp4_mmq.rs, nvfp4_silu_mul_scaled.
#pragma once

#include "exp.cuh"
#include "ptx.cuh"
#include "types.cuh"

#ifndef NVFP4_SWIGLU_LIMIT
#define NVFP4_SWIGLU_LIMIT 10.0f
#endif
#ifndef NVFP4_NO_SWIGLU_LIMIT
#define NVFP4_NO_SWIGLU_LIMIT 0
#endif

namespace swiglu {

constexpr bool kHasLimit = NVFP4_NO_SWIGLU_LIMIT == 0;
constexpr float kLimit = NVFP4_SWIGLU_LIMIT;
static_assert(kLimit > 0.0f, "");

// Up to here `moderate` is right: exp(-g) is a normal number, and the clamps change nothing.
constexpr float kModerateGate = kHasLimit && kLimit < 80.0f ? kLimit : 80.0f;
constexpr float kModerateUp = kHasLimit ? kLimit : 3.40282347e+38f;

__device__ __forceinline__ float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }

__device__ __forceinline__ float high_half(uint32_t pair) {
    return __uint_as_float(pair & 0xFFFF0000);
}

// g / d for d = 1 + exp(-g), correctly rounded. The hardware's own division, without its special
// cases and its last correction: tried for every g from -89 to 80 (those below -40 times 2^-32, d
// too) and every reciprocal within 2 ulp, the quotient is the rounded one but for g = 2^-23, d = 2
// - 2^-23, which needs (as that division does) the nearest reciprocal.
__device__ __forceinline__ float divide(float g, float d) {
    float r = ptx::reciprocal_approximate(d);
    r = __fmaf_rn(__fmaf_rn(-d, r, 1.0f), r, r);
    const float q = g * r;
    const float remainder = __fmaf_rn(d, q, -g);  // of this sign, so that -0 stays -0
    return __fmaf_rn(remainder, -r, q);
}

// silu(g) for |g| <= kModerateGate or NaN.
__device__ __forceinline__ float silu_moderate(float g) {
    return divide(g, 1.0f + exponential::of_moderate(-g));
}

// silu(min(g, L)) for any g.
__device__ __forceinline__ float silu_any(float g) {
    if (kHasLimit && g > kLimit) g = kLimit;
    if (g > 80.0f) return g;  // 1 + exp(-g) is 1
    const float d = 1.0f + exponential::of_any(-g);
    if (d > 3.40282347e+38f) return g * 0.0f;          // infinity: -0, or NaN for -infinity
    const float scale = g < -40.0f ? 0x1p-32f : 1.0f;  // keeps the reciprocal a normal number
    return divide(g * scale, d * scale);
}

__device__ __forceinline__ float clamped_up(float u) {
    if (kHasLimit && u > kLimit) u = kLimit;
    if (kHasLimit && u < -kLimit) u = -kLimit;
    return u;
}

// h[i] for any g and u. Rare, so short rather than fast: one copy of the code, on local memory.
template <int kCount>
__device__ __forceinline__ void silu_mul_any(const float (&g)[kCount], const float (&u)[kCount],
                                             float (&h)[kCount]) {
    float in[2][kCount], out[kCount];
#pragma unroll
    for (int i = 0; i < kCount; i++) {
        in[0][i] = g[i];
        in[1][i] = u[i];
    }
#pragma unroll 1
    for (int i = 0; i < kCount; i++) out[i] = silu_any(in[0][i]) * clamped_up(in[1][i]);
#pragma unroll
    for (int i = 0; i < kCount; i++) h[i] = out[i];
}

// h[i] for kPairs pairs of bf16 bits, element 2 j in the low half of pair j.
template <int kPairs>
__device__ __forceinline__ void silu_mul(const uint32_t (&gate)[kPairs],
                                         const uint32_t (&up)[kPairs], float gate_scale,
                                         float up_scale, float (&h)[2 * kPairs]) {
    float g[2 * kPairs], u[2 * kPairs];
    float g_max = 0.0f, u_max = 0.0f;
#pragma unroll
    for (int j = 0; j < kPairs; j++) {
        g[2 * j] = low_half(gate[j]) * gate_scale;
        g[2 * j + 1] = high_half(gate[j]) * gate_scale;
        u[2 * j] = low_half(up[j]) * up_scale;
        u[2 * j + 1] = high_half(up[j]) * up_scale;
    }
#pragma unroll
    for (int i = 0; i < 2 * kPairs; i++) {
        g_max = fmaxf(g_max, fabsf(g[i]));  // NaN is ignored: it comes out as NaN either way
        u_max = fmaxf(u_max, fabsf(u[i]));
    }
    if (g_max <= kModerateGate && u_max <= kModerateUp) {
#pragma unroll
        for (int i = 0; i < 2 * kPairs; i++) h[i] = silu_moderate(g[i]) * u[i];
    } else {
        silu_mul_any<2 * kPairs>(g, u, h);
    }
}

}  // namespace swiglu
