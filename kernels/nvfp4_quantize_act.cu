// Quantizes bf16 activations to block_fp4_mmq.
//
//     x[m, i] ~= e2m1(code[m, i]) * e4m3(scale[m, i / 16])   [* row_scale[m]]
//
// x [m, k], rows row_stride >= k elements apart, any alignment of its elements; y [kpad / 256, m]
// of 144 bytes, a multiple of 4 bytes; kpad is k rounded up to 256. Rounding nearest_low, scale by
// the search of scale_search.cuh. row_scale [m]: the row's largest magnitude / 2688, 1 for a zero
// row.
//
// Grid (m, ceil(kpad, 2048), 1), block (128, 1, 1), see quantize_act.cuh. No dynamic shared memory.
//
// Source: nvfp4_mmq.rs, nvfp4_mmq_quantize_act.
#include "quantize_act.cuh"

struct Bf16Row {
    const bf16_t* row;
    uint32_t k;

    __device__ __forceinline__ void values(uint32_t group, float (&v)[kGroupSize]) const {
        uint32_t pairs[8];
        act::load_pairs(row, group, k, pairs);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            v[2 * j] = act::low_half(pairs[j]);
            v[2 * j + 1] = act::high_half(pairs[j]);
        }
    }

    __device__ __forceinline__ QuantizedGroup quantized(uint32_t group) const {
        uint32_t pairs[8];
        act::load_pairs(row, group, k, pairs);
        return quantize_bf16_group_search(pairs);
    }
};

extern "C" __global__ void __launch_bounds__(128)
    atlas_nvfp4_quantize_bf16(const bf16_t* __restrict__ x, uint8_t* __restrict__ y, uint64_t k,
                              uint64_t row_stride, uint64_t kpad, uint32_t m) {
    act::quantize(Bf16Row{x + blockIdx.x * row_stride, static_cast<uint32_t>(k)}, y, kpad, m);
}

extern "C" __global__ void __launch_bounds__(128)
    atlas_nvfp4_quantize_bf16_rowscale(const bf16_t* __restrict__ x, uint8_t* __restrict__ y,
                                       uint64_t k, uint64_t row_stride, uint64_t kpad, uint32_t m,
                                       float* __restrict__ row_scale) {
    act::quantize_with_row_scale(Bf16Row{x + blockIdx.x * row_stride, static_cast<uint32_t>(k)}, y,
                                 kpad, m, row_scale);
}
