// The decode scale of each row.
//
//     gsa[m] = max |x[m, :]| / 2688, at least 2^-126; 1 for a row of zeros
//
// NaN is ignored, infinity gives infinity. x [M, N] bf16 (NVFP4_INPUT 0), fp16 (1) or fp32 (2), any
// N; gsa [M] fp32.
//
// Block: blockDim.y rows by blockDim.x threads on each. Grid: (ceil(M / blockDim.y), 1, 1). Shared
// memory: one float per warp, static.
#include "amax.cuh"

extern "C" __global__ void __launch_bounds__(256)
    amax_gsa_kernel(const Input* __restrict__ x, int M, int N, float* __restrict__ gsa) {
    const int64_t m = this_row();
    float amax = 0.0f;
    if (m < M) {
        const Input* row = x + m * N;
        const bool is_aligned = is_aligned_16(x) && N % kInputsPerLoad == 0;
        amax = is_aligned ? share_amax<true>(row, N) : share_amax<false>(row, N);
    }
    amax = row_max(amax);
    if (m < M && threadIdx.x == 0) gsa[m] = gsa_of_amax(amax);
}
