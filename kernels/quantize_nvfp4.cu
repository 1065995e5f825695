// Quantizes rows to NVFP4 with decode scales that are known.
//
//     x[m, n] ~= e2m1(codes[m, n]) * e4m3(scales[m, n / 16]) * gsa[m]
//
// x [M, N] bf16 (NVFP4_INPUT 0), fp16 (1) or fp32 (2), N % 16 == 0; gsa [M] or one number, fp32.
// out_fp4 [M, N / 2], element 2 j in the low nibble of byte j; out_sf [M, N / 16] E4M3 bytes, or
// with NVFP4_SCALE_LAYOUT 1 the 128x4 order, [roundup(M, 128), roundup(N / 16, 4)], padding zero.
// Defines: NVFP4_ROUNDING (0 half_step, 1 nearest_low, 2 nearest_even), NVFP4_SCALE_SEARCH.
//
// Grid and block: see quantize_rows.cuh. No shared memory.
#include "quantize_rows.cuh"

__device__ __forceinline__ void quantize(const Input* __restrict__ x, int M, int N, float gsa,
                                         const float* __restrict__ row_gsa, uint8_t* out_fp4,
                                         uint8_t* out_sf) {
    const int64_t m = this_row();
    const uint32_t num_groups = static_cast<uint32_t>(N) / kGroupSize;
    const RowOutput output(out_fp4, out_sf, m, num_groups);
    if (m < M) {
        if (row_gsa != nullptr) gsa = row_gsa[m];
        const Contiguous source = {ptx::held_in_register(x + m * N)};
        if (are_aligned(x, out_fp4)) {
            quantize_row<true, kGroupsPerThread>(source, num_groups, gsa, output);
        } else {
            quantize_row<false, 1>(source, num_groups, gsa, output);
        }
        if constexpr (kSwizzled) output.zero_scales(num_groups, num_groups);
    } else if (kSwizzled && m < (static_cast<int64_t>(M) + 127) / 128 * 128) {
        output.zero_scales(0, num_groups);
    }
}

extern "C" __global__ void __launch_bounds__(256, 3)
    quantize_nvfp4_from_buffer_kernel(const Input* __restrict__ x, int M, int N,
                                      const float* __restrict__ gsa, uint8_t* __restrict__ out_fp4,
                                      uint8_t* __restrict__ out_sf) {
    quantize(x, M, N, 0.0f, gsa, out_fp4, out_sf);
}

extern "C" __global__ void __launch_bounds__(256, 3)
    quantize_nvfp4_kernel(const Input* __restrict__ x, int M, int N, float gsa,
                          uint8_t* __restrict__ out_fp4, uint8_t* __restrict__ out_sf) {
    quantize(x, M, N, gsa, nullptr, out_fp4, out_sf);
}
