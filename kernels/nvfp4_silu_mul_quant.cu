// SwiGLU of scaled GEMM outputs, quantized to block_fp4_mmq.
//
//     h[m, i] ~= e2m1(code[m, i]) * e4m3(scale[m, i / 16])   [* row_scale[m]];  h: see swiglu.cuh
//
// gate, up [m, k] bf16, any alignment of their elements; y [kpad / 256, m] of 144 bytes, a multiple
// of 4 bytes; kpad is k rounded up to 256. h is float32, or rounded to bf16 if
// NVFP4_ROUND_INTERMEDIATE is 1. Rounding nearest_low, scale by the search of scale_search.cuh.
// row_scale [m]: the row's largest |h| / 2688, 1 for a zero row.
// Defines: NVFP4_SWIGLU_LIMIT, NVFP4_NO_SWIGLU_LIMIT, NVFP4_ROUND_INTERMEDIATE.
//
// Grid (m, ceil(kpad, 2048), 1), block (128, 1, 1), see quantize_act.cuh. No dynamic shared memory.
//
// Source: nvfp4_mmq.rs, nvfp4_silu_mul_quant.
#include "quantize_act.cuh"
#include "swiglu.cuh"

#ifndef NVFP4_ROUND_INTERMEDIATE
#define NVFP4_ROUND_INTERMEDIATE 0
#endif

struct SwigluRow {
    const bf16_t* gate;
    const bf16_t* up;
    float gate_scale, up_scale;
    uint32_t k;

    __device__ __forceinline__ void values(uint32_t group, float (&h)[kGroupSize]) const {
        uint32_t gates[8], ups[8];
        act::load_pairs(gate, group, k, gates);
        act::load_pairs(up, group, k, ups);
        swiglu::silu_mul<8>(gates, ups, gate_scale, up_scale, h);
        if (NVFP4_ROUND_INTERMEDIATE) {
#pragma unroll
            for (int i = 0; i < kGroupSize; i++) h[i] = to_float(ptx::float_to_bf16(h[i]));
        }
        const uint32_t first = group * kGroupSize;
        if (first + kGroupSize > k) {  // zero times a scale of infinity would not be zero
#pragma unroll
            for (int i = 0; i < kGroupSize; i++) {
                if (first + i >= k) h[i] = 0.0f;
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(128)
    atlas_nvfp4_silu_mul_quant(const bf16_t* __restrict__ gate, const bf16_t* __restrict__ up,
                               uint8_t* __restrict__ y, float gate_scale, float up_scale,
                               uint64_t k, uint64_t kpad, uint32_t m) {
    const uint64_t first = blockIdx.x * k;
    act::quantize(SwigluRow{gate + first, up + first, gate_scale, up_scale, static_cast<uint32_t>(k)}, y, kpad, m);
}

extern "C" __global__ void __launch_bounds__(128)
    atlas_nvfp4_silu_mul_quant_rowscale(const bf16_t* __restrict__ gate,
                                        const bf16_t* __restrict__ up, uint8_t* __restrict__ y,
                                        float gate_scale, float up_scale, uint64_t k,
                                        uint64_t kpad, uint32_t m,
                                        float* __restrict__ row_scale) {
    const uint64_t first = blockIdx.x * k;
    act::quantize_with_row_scale(SwigluRow{gate + first, up + first, gate_scale, up_scale, static_cast<uint32_t>(k)}, y,
                                 kpad, m, row_scale);
}
