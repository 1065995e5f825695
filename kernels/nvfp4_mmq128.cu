// W4A4 GEMM with 128 tokens a block: out[m, n] = sum_k A[m, k] W[n, k]. The body, its formula and
// layouts: mmq_gemm.cuh.
//
// w: block_nvfp4 (n, k / 64, 36). a: block_fp4_mmq (ceil(k / 256), m, 144). out: (m, n), bfloat16
// unless NVFP4_OUTPUT says otherwise. Grid (ceil(n, 128), ceil(m, 128), 1), block (32, 8, 1),
// dynamic shared memory 57856 bytes. `nc`: n % 128 == 0; `wc`: any n.
//
// Source: spark_model/layers/ops/nvfp4_mmq.rs, nvfp4_mmq_gemm.
#include "mmq_gemm.cuh"

// Built for plain sm_120, the body without row checks spills 8 bytes when it scales; the one with
// them does not, and gives the same output.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1200 && !NVFP4_HAS_FP4_MMA
constexpr bool kChecksAll = true;
#else
constexpr bool kChecksAll = false;
#endif

extern "C" __global__ void __launch_bounds__(256)
    atlas_nvfp4_mmq128_nc(const uint8_t* __restrict__ w, const uint8_t* __restrict__ a,
                          void* __restrict__ out, uint32_t n, uint32_t m, uint32_t k,
                          uint32_t w_stride, uint32_t a_stride, uint32_t out_stride) {
    mmq::gemm<128, false, false>({w, a, n, m, k, w_stride, a_stride},
                                 {out, n, m, out_stride, nullptr, 0, nullptr});
}

extern "C" __global__ void __launch_bounds__(256)
    atlas_nvfp4_mmq128_nc_scaled(const uint8_t* __restrict__ w, const uint8_t* __restrict__ a,
                                 void* __restrict__ out, uint32_t n, uint32_t m, uint32_t k,
                                 uint32_t w_stride, uint32_t a_stride, uint32_t out_stride,
                                 const float* __restrict__ out_scale, uint32_t out_scale_stride,
                                 const float* __restrict__ row_scale) {
    mmq::gemm<128, kChecksAll, true>(
        {w, a, n, m, k, w_stride, a_stride},
        {out, n, m, out_stride, out_scale, out_scale_stride, row_scale});
}

extern "C" __global__ void __launch_bounds__(256)
    atlas_nvfp4_mmq128_wc(const uint8_t* __restrict__ w, const uint8_t* __restrict__ a,
                          void* __restrict__ out, uint32_t n, uint32_t m, uint32_t k,
                          uint32_t w_stride, uint32_t a_stride, uint32_t out_stride) {
    mmq::gemm<128, true, false>({w, a, n, m, k, w_stride, a_stride},
                                {out, n, m, out_stride, nullptr, 0, nullptr});
}

extern "C" __global__ void __launch_bounds__(256)
    atlas_nvfp4_mmq128_wc_scaled(const uint8_t* __restrict__ w, const uint8_t* __restrict__ a,
                                 void* __restrict__ out, uint32_t n, uint32_t m, uint32_t k,
                                 uint32_t w_stride, uint32_t a_stride, uint32_t out_stride,
                                 const float* __restrict__ out_scale, uint32_t out_scale_stride,
                                 const float* __restrict__ row_scale) {
    mmq::gemm<128, true, true>({w, a, n, m, k, w_stride, a_stride},
                               {out, n, m, out_stride, out_scale, out_scale_stride, row_scale});
}
