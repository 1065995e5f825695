// Quantizes every second run of `granularity` columns of fused rows, gathered.
//
//     x[m, j] = fused[m, (2 * (j / g) + 1) * g + j % g],  j in [0, intermediate),  g = granularity
//     x ~= e2m1(codes) * e4m3(scales) * gsa[m], as in quantize_nvfp4.cu
//
// fused [M, N] bf16 (NVFP4_INPUT 0), fp16 (1) or fp32 (2), N >= 2 * intermediate; intermediate is a
// multiple of 16 and of g. Outputs and defines as in quantize_nvfp4.cu with N = intermediate.
//
// Grid and block: see quantize_rows.cuh. No shared memory.
#include "quantize_rows.cuh"

// Groups of 16 gathered columns. Runs are loaded 16 bytes at a time if they and the rows are
// multiples of that, else one element at a time.
struct Gathered {
    const Input* row;
    uint32_t granularity;
    int shift;  // log2(granularity), or -1

    __device__ __forceinline__ int64_t column(uint32_t j) const {
        const uint32_t run = shift >= 0 ? j >> shift : j / granularity;
        return j + (static_cast<int64_t>(run) + 1) * granularity;  // = (2 run + 1) g + j % g
    }

    template <bool kAligned>
    __device__ __forceinline__ InputGroup load(uint32_t c) const {
        InputGroup group;
        if constexpr (kAligned) {
#pragma unroll
            for (int i = 0; i < kGroupWords / 4; i++) {
                const Input* piece = row + column(c * kGroupSize + i * kInputsPerLoad);
                const uint4 four = __ldg(reinterpret_cast<const uint4*>(piece));
                group.words[4 * i] = four.x;
                group.words[4 * i + 1] = four.y;
                group.words[4 * i + 2] = four.z;
                group.words[4 * i + 3] = four.w;
            }
        } else {
            int64_t from = column(c * kGroupSize);
            // Columns up to the end of the run, then over the next run.
            uint32_t left = granularity - static_cast<uint32_t>(from % granularity);
#pragma unroll
            for (int i = 0; i < kGroupSize; i++) {
                set_element(group, i, row[from]);
                from++;
                if (--left == 0) {
                    left = granularity;
                    from += granularity;
                }
            }
        }
        return group;
    }

    __device__ __forceinline__ float element(uint32_t c, int i) const {
        return to_float(row[column(c * kGroupSize + i)]);
    }
};

extern "C" __global__ void __launch_bounds__(256, 3) deinterleave_quantize_from_buffer_kernel(
    const Input* __restrict__ fused, int M, int N, int intermediate, int granularity,
    const float* __restrict__ gsa, uint8_t* __restrict__ out_fp4, uint8_t* __restrict__ out_sf) {
    const int64_t m = this_row();
    const uint32_t num_groups = static_cast<uint32_t>(intermediate) / kGroupSize;
    const RowOutput output(out_fp4, out_sf, m, num_groups);
    if (m < M) {
        const int shift = (granularity & (granularity - 1)) == 0 ? __ffs(granularity) - 1 : -1;
        const Gathered source = {ptx::held_in_register(fused + m * N),
                                 static_cast<uint32_t>(granularity), shift};
        const bool is_aligned = are_aligned(fused, out_fp4) && N % kInputsPerLoad == 0 &&
                                granularity % kInputsPerLoad == 0;
        if (is_aligned) {
            quantize_row<true>(source, num_groups, gsa[m], output);
        } else {
            quantize_row<false>(source, num_groups, gsa[m], output);
        }
        if constexpr (kSwizzled) output.zero_scales(num_groups, num_groups);
    } else if (kSwizzled && m < (static_cast<int64_t>(M) + 127) / 128 * 128) {
        output.zero_scales(0, num_groups);
    }
}
