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
#include "swiglu_group.cuh"

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
        finish_group(h, group * kGroupSize, k);
    }

    __device__ __forceinline__ QuantizedGroup quantized(uint32_t group) const {
        float h[kGroupSize];
        values(group, h);
        if constexpr (kRounds) {
            uint32_t pairs[8];
#pragma unroll
            for (int j = 0; j < 8; j++) pairs[j] = ptx::floats_to_bf16x2(h[2 * j], h[2 * j + 1]);
            return quantize_bf16_group_search(pairs);
        } else {
            return quantize_group_search<kNearestLow>(h);
        }
    }
};

extern "C" __global__ void __launch_bounds__(128)
    atlas_nvfp4_silu_mul_quant(const bf16_t* __restrict__ gate, const bf16_t* __restrict__ up,
                               uint8_t* __restrict__ y, float gate_scale, float up_scale,
                               uint64_t k, uint64_t kpad, uint32_t m) {
    const uint64_t first = blockIdx.x * k;
    const SwigluRow row = {gate + first, up + first, gate_scale, up_scale,
                           static_cast<uint32_t>(k)};
    act::quantize(row, y, kpad, m);
}

extern "C" __global__ void __launch_bounds__(128)
    atlas_nvfp4_silu_mul_quant_rowscale(const bf16_t* __restrict__ gate,
                                        const bf16_t* __restrict__ up, uint8_t* __restrict__ y,
                                        float gate_scale, float up_scale, uint64_t k, uint64_t kpad,
                                        uint32_t m, float* __restrict__ row_scale) {
    const uint64_t first = blockIdx.x * k;
    const SwigluRow row = {gate + first, up + first, gate_scale, up_scale,
                           static_cast<uint32_t>(k)};
    act::quantize_with_row_scale(row, y, kpad, m, row_scale);
}
