// W4A16 GEMM with 128 tokens a block: out[m, n] = sum_k a[m, k] W[n, k]. The body, its formula and
// layouts: w4a16_gemm.cuh.
//
// w: block_nvfp4 (n, k / 64, 36). a: bfloat16 (m, k), rows a_stride elements apart. out: (m, n),
// bfloat16 unless NVFP4_OUTPUT says otherwise. Grid (ceil(n, 128), ceil(m, 128), 1), block (32, 8,
// 1), dynamic shared memory 83968 bytes. `nc`: n % 128 == 0; `wc`: any n.
//
// Source: the contract of nvfp4_mmq_gemm_tiled with activations that are not quantized.
#include "w4a16_gemm.cuh"

static_assert(2 * w4a16::Stages<128>::kRingBytes == 83968, "the launcher's shared memory");

extern "C" __global__ void __launch_bounds__(256)
    nvfp4_w4a16_mmq128_nc(const uint8_t* __restrict__ w, const bf16_t* __restrict__ a,
                          void* __restrict__ out, uint32_t n, uint32_t m, uint32_t k,
                          uint32_t w_stride, uint32_t a_stride, uint32_t out_stride) {
    w4a16::gemm<128, false, false>({w, a, n, m, k, w_stride, a_stride},
                                   {out, n, m, out_stride, nullptr, 0, nullptr});
}

extern "C" __global__ void __launch_bounds__(256)
    nvfp4_w4a16_mmq128_nc_scaled(const uint8_t* __restrict__ w, const bf16_t* __restrict__ a,
                                 void* __restrict__ out, uint32_t n, uint32_t m, uint32_t k,
                                 uint32_t w_stride, uint32_t a_stride, uint32_t out_stride,
                                 const float* __restrict__ out_scale, uint32_t out_scale_stride,
                                 const float* __restrict__ row_scale) {
    w4a16::gemm<128, false, true>({w, a, n, m, k, w_stride, a_stride},
                                  {out, n, m, out_stride, out_scale, out_scale_stride, row_scale});
}

extern "C" __global__ void __launch_bounds__(256)
    nvfp4_w4a16_mmq128_wc(const uint8_t* __restrict__ w, const bf16_t* __restrict__ a,
                          void* __restrict__ out, uint32_t n, uint32_t m, uint32_t k,
                          uint32_t w_stride, uint32_t a_stride, uint32_t out_stride) {
    w4a16::gemm<128, true, false>({w, a, n, m, k, w_stride, a_stride},
                                  {out, n, m, out_stride, nullptr, 0, nullptr});
}

extern "C" __global__ void __launch_bounds__(256)
    nvfp4_w4a16_mmq128_wc_scaled(const uint8_t* __restrict__ w, const bf16_t* __restrict__ a,
                                 void* __restrict__ out, uint32_t n, uint32_t m, uint32_t k,
                                 uint32_t w_stride, uint32_t a_stride, uint32_t out_stride,
                                 const float* __restrict__ out_scale, uint32_t out_scale_stride,
                                 const float* __restrict__ row_scale) {
    w4a16::gemm<128, true, true>({w, a, n, m, k, w_stride, a_stride},
                                 {out, n, m, out_stride, out_scale, out_scale_stride, row_scale});
}
