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

// Groups of 16 gathered columns. Loads of 16 bytes each lie in a run if runs are multiples of that;
// of shorter runs of 16-bit inputs, 64 bytes hold the group and as much to leave out; others are
// gathered one element at a time.
struct Gathered {
    const Input* row;
    uint32_t granularity;
    int shift;  // log2(granularity), or -1

    __device__ __forceinline__ uint32_t column(uint32_t j) const {
        const uint32_t run = shift >= 0 ? j >> shift : j / granularity;
        return j + (run + 1) * granularity;  // = (2 run + 1) g + j % g
    }

    __device__ __forceinline__ static void load_four(const Input* from, uint32_t* words) {
        const uint4 four = __ldg(reinterpret_cast<const uint4*>(from));
        words[0] = four.x;
        words[1] = four.y;
        words[2] = four.z;
        words[3] = four.w;
    }

    // Every second run, of 1, 2 or 4 elements, of the 32 elements that begin at column 2 j.
    __device__ __forceinline__ InputGroup load_short_runs(uint32_t j) const {
        uint32_t words[2 * kGroupWords];
#pragma unroll
        for (int i = 0; i < kGroupWords / 2; i++)
            load_four(row + 2 * static_cast<int64_t>(j) + i * kInputsPerLoad, words + 4 * i);
        InputGroup group;
#pragma unroll
        for (int i = 0; i < kGroupWords; i++) {
            const uint32_t upper_halves = ptx::byte_permute(words[2 * i], words[2 * i + 1], 0x7632);
            const uint32_t of_four = words[4 * (i / 2) + 2 + i % 2];
            group.words[i] = granularity == 1   ? upper_halves
                             : granularity == 2 ? words[2 * i + 1]
                                                : of_four;
        }
        return group;
    }

    template <bool kAligned>
    __device__ __forceinline__ InputGroup load(uint32_t c) const {
        InputGroup group;
        if constexpr (kAligned) {
            if constexpr (sizeof(Input) == 2) {
                if (granularity < kInputsPerLoad) return load_short_runs(c * kGroupSize);
            }
#pragma unroll
            for (int i = 0; i < kGroupWords / 4; i++)
                load_four(row + column(c * kGroupSize + i * kInputsPerLoad), group.words + 4 * i);
        } else {
            uint32_t from = column(c * kGroupSize);
            uint32_t left = granularity - from % granularity;  // to the end of the run
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
    // Half of what lies between its loads is passed over, so half as many.
    constexpr int kUnroll = kGroupsPerThread > 1 ? kGroupsPerThread / 2 : 1;
    const int64_t m = this_row();
    const uint32_t num_groups = static_cast<uint32_t>(intermediate) / kGroupSize;
    const RowOutput output(out_fp4, out_sf, m, num_groups);
    if (m < M) {
        const bool is_power = (granularity & (granularity - 1)) == 0;
        const int shift = is_power ? __ffs(granularity) - 1 : -1;
        const Gathered source = {ptx::held_in_register(fused + m * N),
                                 static_cast<uint32_t>(granularity), shift};
        const bool is_short = sizeof(Input) == 2 && granularity < kInputsPerLoad && is_power;
        const bool is_aligned = are_aligned(fused, out_fp4) && N % kInputsPerLoad == 0 &&
                                (granularity % kInputsPerLoad == 0 || is_short);
        if (is_aligned) {
            quantize_row<true, kUnroll>(source, num_groups, gsa[m], output);
        } else {
            quantize_row<false, 1>(source, num_groups, gsa[m], output);
        }
        if constexpr (kSwizzled) output.zero_scales(num_groups, num_groups);
    } else if (kSwizzled && m < (static_cast<int64_t>(M) + 127) / 128 * 128) {
        output.zero_scales(0, num_groups);
    }
}
