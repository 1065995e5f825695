// Rows of float32 values to block_fp4_mmq: who works on what, and where the bytes go.
//
//     y[k / 256, m] = {16 E4M3 scales, 16 groups of codes in split halves} of 256 values of row m
//
// Grid (m, ceil(kpad, 2048), 1), block (128, 1, 1): block (x, y) has row x and its groups of 16
// from 128 y on, one per thread. kpad is a multiple of 256; values from k on are zero.
//
// With a row scale, values are divided by it: the row's largest magnitude / 2688. A block needs the
// whole row for that. If there are rows enough to fill a GPU, the first block of a row does it all;
// else every block finds the largest magnitude for itself.
//
// Source: nvfp4_mmq.rs, nvfp4_mmq_quantize_act.
#pragma once

#include "amax.cuh"
#include "layouts.cuh"
#include "scale_search_bf16.cuh"

namespace act {

constexpr uint32_t kThreads = 128;
constexpr uint32_t kGroupsPerBlock = layouts::kActBlockValues / kGroupSize;  // of 144 bytes
constexpr uint32_t kManyRows = 1024;

__device__ __forceinline__ float low_half(uint32_t pair) { return __uint_as_float(pair << 16); }

__device__ __forceinline__ float high_half(uint32_t pair) {
    return __uint_as_float(pair & 0xFFFF0000);
}

// The group's 16 bf16 values as pairs. `row` is a row's first element, `group` counts from there.
// Columns fit in 32 bits: the grid's y has room for 2^27.
__device__ __forceinline__ void load_pairs(const bf16_t* row, uint32_t group, uint32_t k,
                                           uint32_t (&pairs)[8]) {
    const uint32_t first = group * kGroupSize;
    if (first + kGroupSize <= k && reinterpret_cast<uint64_t>(row) % 16 == 0) {
        const uint4* fours = reinterpret_cast<const uint4*>(row + first);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 four = __ldg(fours + i);
            pairs[4 * i] = four.x;
            pairs[4 * i + 1] = four.y;
            pairs[4 * i + 2] = four.z;
            pairs[4 * i + 3] = four.w;
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint32_t i = first + 2 * j;
        const uint32_t low = i < k ? row[i] : 0;
        const uint32_t high = i + 1 < k ? row[i + 1] : 0;
        pairs[j] = low | high << 16;
    }
}

__device__ __forceinline__ void store_group(uint8_t* y, uint32_t m, uint32_t row, uint32_t group,
                                            const QuantizedGroup& quantized) {
    const uint64_t block = static_cast<uint64_t>(group / kGroupsPerBlock) * m + row;
    uint8_t* bytes = y + block * layouts::kActBlockBytes;
    const uint32_t place = group % kGroupsPerBlock;
    const layouts::Codes codes = layouts::to_split_halves({quantized.low, quantized.high});
    bytes[place] = static_cast<uint8_t>(quantized.scale);
    uint32_t* words = reinterpret_cast<uint32_t*>(bytes + kGroupsPerBlock) + 2 * place;
    if (reinterpret_cast<uint64_t>(y) % 8 == 0) {
        *reinterpret_cast<uint2*>(words) = make_uint2(codes.first, codes.second);
    } else {
        words[0] = codes.first;
        words[1] = codes.second;
    }
}

// Quantizes this block's groups. A Source gives the groups of row blockIdx.x:
//     quantized(group)    called by all lanes of a warp together; zero beyond the row
template <class Source>
__device__ __forceinline__ void quantize(const Source& source, uint8_t* y, uint64_t kpad,
                                         uint32_t m) {
    const uint32_t group = blockIdx.y * kThreads + threadIdx.x;
    const uint32_t num_groups = static_cast<uint32_t>(kpad) / kGroupSize;
    if (group / 32 * 32 >= num_groups) return;
    const QuantizedGroup quantized = source.quantized(group);
    if (group < num_groups) store_group(y, m, blockIdx.x, group, quantized);
}

// Divides by one number, correctly rounded.
struct Divisor {
    float value, reciprocal;

    // Whether `divide` is right.
    __device__ __forceinline__ bool is_moderate() const {
        return value >= 0x1p-30f && value <= 0x1p+60f;
    }

    // After the first correction the quotient is one of the two nearest floats, so the second gives
    // the nearest (Markstein), if the remainders are exact. They are not for |v| < 2^-80: there the
    // quotient is below 2^-50, so its code is 0 and its square too small to count.
    __device__ __forceinline__ float divide(float v) const {
        float q = v * reciprocal;
        q = __fmaf_rn(__fmaf_rn(-value, q, v), reciprocal, q);
        return __fmaf_rn(__fmaf_rn(-value, q, v), reciprocal, q);
    }
};

__device__ __forceinline__ void divide_group(float (&v)[kGroupSize], const Divisor& divisor) {
    if (divisor.is_moderate()) {
#pragma unroll
        for (int i = 0; i < kGroupSize; i++) v[i] = divisor.divide(v[i]);
        return;
    }
    float copy[kGroupSize];  // in local memory: rare, so short rather than fast
#pragma unroll
    for (int i = 0; i < kGroupSize; i++) copy[i] = v[i];
#pragma unroll 1
    for (int i = 0; i < kGroupSize; i++) copy[i] = __fdiv_rn(copy[i], divisor.value);
#pragma unroll
    for (int i = 0; i < kGroupSize; i++) v[i] = copy[i];
}

// The largest value of the block's threads.
__device__ __forceinline__ float block_max(float value) {
    __shared__ float of_warp[kThreads / 32];
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFF, value, step));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
    __syncthreads();
    value = of_warp[0];
#pragma unroll
    for (uint32_t i = 1; i < kThreads / 32; i++) value = fmaxf(value, of_warp[i]);
    return value;
}

// Quantizes this block's groups, or the row's, divided by the row's scale. A Source gives
//     values(group, v)
template <class Source>
__device__ __forceinline__ void quantize_with_row_scale(const Source& source, uint8_t* y,
                                                        uint64_t kpad, uint32_t m,
                                                        float* row_scale) {
    const bool is_alone = gridDim.x >= kManyRows;
    if (is_alone && blockIdx.y > 0) return;
    const uint32_t num_groups = static_cast<uint32_t>(kpad) / kGroupSize;
    float amax = 0.0f;
#pragma unroll 1
    for (uint32_t group = threadIdx.x; group < num_groups; group += kThreads) {
        float v[kGroupSize];
        source.values(group, v);
        amax = fmaxf(amax, group_amax(v));
    }
    const float scale = gsa_of_amax(block_max(amax));
    if (blockIdx.y == 0 && threadIdx.x == 0) row_scale[blockIdx.x] = scale;
    const Divisor divisor = {scale, __fdiv_rn(1.0f, scale)};
    const uint32_t step = is_alone ? kThreads : gridDim.y * kThreads;
#pragma unroll 1
    for (uint32_t group = blockIdx.y * kThreads + threadIdx.x; group < num_groups; group += step) {
        float v[kGroupSize];
        source.values(group, v);
        divide_group(v, divisor);
        store_group(y, m, blockIdx.x, group, quantize_group_search<kNearestLow>(v));
    }
}

}  // namespace act
