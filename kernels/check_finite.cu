// The first row that holds a NaN or an infinity.
//
//     first[0] = min(first[0], m) over all rows m in which some |x[m, n]| is not finite
//
// x [M, N] bf16 (NVFP4_INPUT 0), fp16 (1) or fp32 (2), any N, row_stride elements from row to row;
// the caller sets first [1] to M or more beforehand.
//
// Block: blockDim.y rows by blockDim.x threads on each. Grid: (ceil(M / blockDim.y), 1, 1). No
// shared memory.
#include "amax.cuh"

extern "C" __global__ void __launch_bounds__(256)
    find_nonfinite_kernel(const Input* __restrict__ x, int M, int N, uint64_t row_stride,
                          int64_t* __restrict__ first) {
    const int64_t m = this_row();
    if (m >= M) return;
    const Input* row = x + m * row_stride;
    const bool is_aligned =
        is_aligned_16(x) && N % kInputsPerLoad == 0 && row_stride % kInputsPerLoad == 0;
    const float amax =
        is_aligned ? share_amax_or_nan<true>(row, N) : share_amax_or_nan<false>(row, N);
    if (!(amax <= 3.40282347e+38f)) atomicMin(first, m);  // FLT_MAX
}
