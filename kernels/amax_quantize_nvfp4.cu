// Finds each row's decode scale and quantizes the row with it, in one launch.
//
//     gsa[m] = max |x[m, :]| / 2688 (see amax_gsa.cu);  x[m, n] ~= e2m1 * e4m3 * gsa[m]
//
// Arguments and defines as in quantize_nvfp4.cu, but that gsa [M] is written.
//
// Block: blockDim.y rows by blockDim.x threads on each. Grid: (ceil(rows / blockDim.y), 1, 1), rows
// with the padding of 128x4 scales. A row of up to 128 * NVFP4_HELD_LOADS * blockDim.x bytes stays
// in registers between the two steps; a longer one (NVFP4_HELD_LOADS 0), or one that is not
// aligned, is read twice, the second time mostly from the L2 cache. Shared memory: one word per
// warp, static.
#include "quantize_rows.cuh"

#ifndef NVFP4_HELD_LOADS
#define NVFP4_HELD_LOADS 1
#endif

constexpr int kHeldGroups = NVFP4_HELD_LOADS * kGroupsPerThread;

__device__ __forceinline__ float amax_without_nan(const InputGroup& group) {
    float amax = 0.0f;
#pragma unroll
    for (int i = 0; i < kGroupSize; i++) amax = fmaxf(amax, fabsf(element(group, i)));
    return amax;
}

#if NVFP4_HELD_LOADS > 0
// num_groups is at most kHeldGroups * blockDim.x, and 0 for a thread without a row.
__device__ __forceinline__ float quantize_held_row(const Contiguous& source, uint32_t num_groups,
                                                   const RowOutput& output) {
    InputGroup groups[kHeldGroups];
    load_groups<true>(source, threadIdx.x, num_groups, groups);
    Amax amax[kHeldGroups];
    float largest = 0.0f;
#pragma unroll
    for (int u = 0; u < kHeldGroups; u++) {
        if (threadIdx.x + u * blockDim.x < num_groups) {
            amax[u] = amax_or_nan(groups[u]);
            const float value = amax[u].value;
            largest = fmaxf(largest, value == value ? value : amax_without_nan(groups[u]));
        }
    }
    const float gsa = gsa_of_amax(row_max(largest));
    const RowScale row = row_scale(gsa);
    uint32_t left_over = 0;
#pragma unroll
    for (int u = 0; u < kHeldGroups; u++) {
        const uint32_t c = threadIdx.x + u * blockDim.x;
        if (c < num_groups && !quantize_loaded<true>(groups[u], amax[u], row, output, c))
            left_over |= 1u << u;
    }
    quantize_left_over<true>(left_over, source, row, output, threadIdx.x);
    return gsa;
}
#endif

template <bool kAligned>
__device__ __forceinline__ float quantize_reread_row(const Contiguous& source, uint32_t num_groups,
                                                     const RowOutput& output) {
    const int num_columns = static_cast<int>(num_groups) * kGroupSize;
    const float gsa = gsa_of_amax(row_max(share_amax<kAligned>(source.row, num_columns)));
    quantize_row<kAligned, kGroupsPerThread>(source, num_groups, gsa, output);
    return gsa;
}

extern "C" __global__ void __launch_bounds__(256, 2)
    amax_quantize_nvfp4_kernel(const Input* __restrict__ x, int M, int N, float* __restrict__ gsa,
                               uint8_t* __restrict__ out_fp4, uint8_t* __restrict__ out_sf) {
    const int64_t m = this_row();
    const uint32_t num_groups = static_cast<uint32_t>(N) / kGroupSize;
    const RowOutput output(out_fp4, out_sf, m, num_groups);
    const Contiguous source = {ptx::held_in_register(x + m * N)};
    const uint32_t own_groups = m < M ? num_groups : 0;
    float row_gsa;
    if (!are_aligned(x, out_fp4)) {
        row_gsa = quantize_reread_row<false>(source, own_groups, output);
    } else {
#if NVFP4_HELD_LOADS > 0
        row_gsa = quantize_held_row(source, own_groups, output);
#else
        row_gsa = quantize_reread_row<true>(source, own_groups, output);
#endif
    }
    if (m < M && threadIdx.x == 0) gsa[m] = row_gsa;
    if constexpr (kSwizzled) {
        if (m < (static_cast<int64_t>(M) + 127) / 128 * 128)
            output.zero_scales(own_groups, num_groups);
    }
}
