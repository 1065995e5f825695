// How the GEMM kernels of 128 features by kTokens tokens write their accumulators.
//
//   out[token, feature] = round((sum * out_scale[feature * out_scale_stride]) * row_scale[token])
//
// in float32, each product rounded, then one rounding to the output type; NaN is 0x7FFF in the
// 16-bit types. NVFP4_OUTPUT 0, 1, 2 = bfloat16, float16, float32.
#pragma once

#include "mmq_fragments.cuh"
#include "ptx.cuh"

#ifndef NVFP4_OUTPUT
#define NVFP4_OUTPUT 0
#endif

namespace mmq {

struct Output {
    void* data;
    uint32_t n, m, stride;
    const float* out_scale;  // or null
    uint32_t out_scale_stride;
    const float* row_scale;  // or null
};

#if NVFP4_OUTPUT == 2
typedef float output_t;
__device__ __forceinline__ output_t round_output(float value) { return value; }
#else
typedef uint16_t output_t;
__device__ __forceinline__ output_t round_output(float value) {
    return NVFP4_OUTPUT == 1 ? ptx::float_to_f16(value) : ptx::float_to_bf16(value);
}
#endif

// Four consecutive outputs, aligned to their size.
__device__ __forceinline__ void store4(output_t* to, const float (&v)[4]) {
#if NVFP4_OUTPUT == 2
    *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]);
#else
    uint32_t low = round_output(v[0]) | static_cast<uint32_t>(round_output(v[1])) << 16;
    uint32_t high = round_output(v[2]) | static_cast<uint32_t>(round_output(v[3])) << 16;
    *reinterpret_cast<uint2*>(to) = make_uint2(low, high);
#endif
}

constexpr int kSumPitch = kRows + 4;  // floats; 8 lanes g of 4 tokens 2 t reach 32 banks

// Scales and stores four features of one token.
template <bool kCheckRows, bool kScaled>
__device__ __forceinline__ void write4(const Output& out, float (&v)[4], uint32_t token,
                                       uint32_t feature, bool aligned) {
    if (kScaled) {
        float row = out.row_scale != nullptr ? out.row_scale[token] : 1.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            uint32_t column = feature + (kCheckRows ? min(i, out.n - 1 - feature) : i);
            if (out.out_scale != nullptr) {
                v[i] *= out.out_scale[static_cast<uint64_t>(column) * out.out_scale_stride];
            }
            if (out.row_scale != nullptr) v[i] *= row;
        }
    }
    output_t* to =
        static_cast<output_t*>(out.data) + static_cast<uint64_t>(token) * out.stride + feature;
    if (aligned && (!kCheckRows || out.n - feature >= 4)) {
        store4(to, v);
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (!kCheckRows || i < out.n - feature) to[i] = round_output(v[i]);
    }
}

// Writes the block's part of `out`: the sums times `factor`, scaled. All threads of the block call
// it; `sums` holds 16 * kWarpsB * kSumPitch floats.
template <int kTokens, int kGroups, int kWarpsB, bool kCheckRows, bool kScaled, int kTilesA,
          int kTilesB>
__device__ __forceinline__ void write_tile(const float (&acc)[kTilesA][kTilesB][4],
                                           const Output& out, float* sums, uint32_t group,
                                           uint32_t first_row, uint32_t first_token, float factor) {
    constexpr int kPassTokens = 16 * kWarpsB;  // 16 of each warp's
    constexpr int kWarpTokens = kTokens / kWarpsB;
    static_assert(kGroups * kPassTokens * kSumPitch * 4 <= shared_bytes(kTokens), "");
    uint32_t lane = threadIdx.x, warp = threadIdx.y;
    uint32_t feature = blockIdx.x * kRows + 4 * lane;
    bool aligned =
        out.stride % 4 == 0 && reinterpret_cast<uint64_t>(out.data) % (4 * sizeof(output_t)) == 0;
    float* mine = sums + group * (kPassTokens * kSumPitch) +
                  first_token / kWarpTokens * 16 * kSumPitch + first_row;
#pragma unroll
    for (int pass = 0; pass < kTilesB / 2; ++pass) {
        if (pass > 0) __syncthreads();
#pragma unroll
        for (int i = 0; i < kTilesA; ++i) {
#pragma unroll
            for (int v = 0; v < 8; ++v) {
                mine[(v / 4 * 8 + c_token(lane, v % 4)) * kSumPitch + 16 * i + c_row(lane, v % 4)] =
                    acc[i][2 * pass + v / 4][v % 4] * factor;
            }
        }
        __syncthreads();
#pragma unroll 1
        for (uint32_t i = 0; i < kPassTokens / 8; ++i) {
            uint32_t slot = 8 * i + warp;  // token of the pass
            uint32_t token = blockIdx.y * kTokens + slot / 16 * kWarpTokens + 16 * pass + slot % 16;
            if (token >= out.m || (kCheckRows && feature >= out.n)) continue;
            const float* sum = sums + slot * kSumPitch + 4 * lane;
            float v[4] = {sum[0], sum[1], sum[2], sum[3]};
            if (kGroups == 2)
                for (int q = 0; q < 4; ++q) v[q] += sum[kPassTokens * kSumPitch + q];
            write4<kCheckRows, kScaled>(out, v, token, feature, aligned);
        }
    }
}

}  // namespace mmq
