// Rows of inputs to linear codes and scales: who works on what, and where the bytes go.
//
// A block of 256 threads is blockDim.y rows by blockDim.x groups of 16 columns. Block (bx, by) owns
// the rows from bx * blockDim.y on, and of their groups every gridDim.y-th run of
// kGroupsPerThread * blockDim.x, from the by-th on. With 128x4 scales, the rows and groups of the
// padding are covered too, and get zero bytes.
#pragma once

#include "quantize_fast.cuh"

#ifndef NVFP4_SCALE_LAYOUT
#define NVFP4_SCALE_LAYOUT 0
#endif

constexpr bool kSwizzled = NVFP4_SCALE_LAYOUT != 0;
// Groups that a thread loads at once: 128 bytes in flight hide the latency of memory with the three
// or four blocks per multiprocessor that their registers allow. The scale search hides it by
// itself.
constexpr int kGroupsPerThread =
    kScaleSearch ? 1 : 128 / (kGroupSize * static_cast<int>(sizeof(Input)));
constexpr int kCodeBytes = kGroupSize / 2;

// Where a row's results go: 8 bytes of codes and a scale per group.
struct RowOutput {
    uint8_t* codes;
    uint8_t* scales;

    __device__ __forceinline__ RowOutput(uint8_t* out_fp4, uint8_t* out_sf, int64_t m,
                                         uint32_t num_groups)
        : codes(ptx::held_in_register(out_fp4 + m * num_groups * kCodeBytes)) {
        if constexpr (kSwizzled) {
            const uint32_t row = static_cast<uint32_t>(m & 127);
            const int64_t row_of_tiles = (m >> 7) * ((num_groups + 3) / 4);  // 128 rows x 4 scales
            scales = out_sf + row_of_tiles * 512 + row % 32 * 16 + row / 32 * 4;
        } else {
            scales = out_sf + m * num_groups;
        }
        scales = ptx::held_in_register(scales);
    }

    __device__ __forceinline__ void store_scale(uint32_t c, uint32_t byte) const {
        const uint64_t at = kSwizzled ? static_cast<uint64_t>(c / 4) * 512 + c % 4 : c;
        scales[at] = static_cast<uint8_t>(byte);
    }

    // Codes are known to lie at multiples of 8 bytes if kAligned.
    template <bool kAligned>
    __device__ __forceinline__ void store(uint32_t c, const QuantizedGroup& group) const {
        uint8_t* target = codes + static_cast<uint64_t>(c) * kCodeBytes;
        if (kAligned || (reinterpret_cast<uint64_t>(target) & (kCodeBytes - 1)) == 0) {
            *reinterpret_cast<uint2*>(target) = make_uint2(group.low, group.high);
        } else {
#pragma unroll
            for (int i = 0; i < kCodeBytes; i++)
                target[i] = static_cast<uint8_t>((i < 4 ? group.low : group.high) >> 8 * (i % 4));
        }
        store_scale(c, group.scale);
    }

    // Zero scales from group `first` to the end of the last group of four.
    __device__ __forceinline__ void zero_scales(uint32_t first, uint32_t num_groups) const {
        const uint32_t stop = (num_groups + 3) & ~3u;
        for (uint32_t c = first + blockIdx.y * blockDim.x + threadIdx.x; c < stop;
             c += gridDim.y * blockDim.x)
            store_scale(c, 0);
    }
};

// Groups whose columns lie together: group c is elements 16 c to 16 c + 15.
struct Contiguous {
    const Input* row;

    template <bool kAligned>
    __device__ __forceinline__ InputGroup load(uint32_t c) const {
        return load_group<kAligned>(row + static_cast<int64_t>(c) * kGroupSize);
    }

    __device__ __forceinline__ float element(uint32_t c, int i) const {
        return to_float(row[static_cast<int64_t>(c) * kGroupSize + i]);
    }
};

// Quantizes and stores a group that was loaded; false, and nothing stored, where that takes more.
template <bool kAligned>
__device__ __forceinline__ bool quantize_loaded(const InputGroup& group, const Amax& amax,
                                                const RowScale& row, const RowOutput& output,
                                                uint32_t c) {
    const float largest = divide(amax.value, row);
    if (!is_in_range(largest) || !keeps_signs<true>(group, amax)) return false;
    output.template store<kAligned>(c, quantize_fast<false>(group, row, largest));
    return true;
}

// Any group.
template <bool kAligned, class Source>
__device__ __forceinline__ void quantize_any(const Source& source, const RowScale& row,
                                             const RowOutput& output, uint32_t c) {
    const InputGroup group = source.template load<kAligned>(c);
    const Amax amax = amax_or_nan(group);
    const float largest = divide(amax.value, row);
    QuantizedGroup result = {0, 0, 0};
    if constexpr (kScaleSearch) {
        result = quantize_searching(group, row.gsa);
    } else if (is_in_wide_range(largest) && keeps_signs<false>(group, amax)) {
        result = quantize_fast<true>(group, row, largest);
    } else if (!(fabsf(largest) < kSmallestAmax)) {  // the sum may overflow to -infinity
        result = quantize_slow([&](int i) { return source.element(c, i); }, row.gsa);
    }
    output.template store<kAligned>(c, result);
}

// Bit u of `groups` asks for group first + u * blockDim.x.
template <bool kAligned, class Source>
__device__ __forceinline__ void quantize_left_over(uint32_t groups, const Source& source,
                                                   const RowScale& row, const RowOutput& output,
                                                   uint32_t first) {
#pragma unroll 1
    for (uint32_t c = first; groups != 0; groups >>= 1, c += blockDim.x)
        if (groups & 1) quantize_any<kAligned>(source, row, output, c);
}

// Loads group first + u * blockDim.x into groups[u], where there is one.
template <bool kAligned, int kUnroll, class Source>
__device__ __forceinline__ void load_groups(const Source& source, uint32_t first,
                                            uint32_t num_groups, InputGroup (&groups)[kUnroll]) {
#pragma unroll
    for (int u = 0; u < kUnroll; u++) {
        const uint32_t c = first + u * blockDim.x;
        if (c < num_groups) groups[u] = source.template load<kAligned>(c);
    }
}

// Quantizes a row whose decode scale is known, several groups at a time if everything is aligned.
template <bool kAligned, int kGroups, class Source>
__device__ __forceinline__ void quantize_row(const Source& source, uint32_t num_groups, float gsa,
                                             const RowOutput& output) {
    constexpr int kUnroll = kAligned ? kGroups : 1;
    uint32_t first = blockIdx.y * blockDim.x * kUnroll + threadIdx.x;
    InputGroup groups[kUnroll];
    if constexpr (kAligned) load_groups<kAligned>(source, first, num_groups, groups);
    if (first >= num_groups) return;
    const RowScale row = row_scale(gsa);  // waits for gsa, so behind the loads and a branch
    do {
        if constexpr (kAligned) {
            uint32_t left_over = 0;
#pragma unroll
            for (int u = 0; u < kUnroll; u++) {
                const uint32_t c = first + u * blockDim.x;
                if (c < num_groups &&
                    !quantize_loaded<kAligned>(groups[u], amax_or_nan(groups[u]), row, output, c))
                    left_over |= 1u << u;
            }
            quantize_left_over<kAligned>(left_over, source, row, output, first);
        } else {
            quantize_any<kAligned>(source, row, output, first);
        }
        first += gridDim.y * blockDim.x * kUnroll;
        if constexpr (kAligned) load_groups<kAligned>(source, first, num_groups, groups);
    } while (first < num_groups);
}

// Whether inputs can be loaded 16 bytes and codes stored 8 bytes at a time, by code made for that.
__device__ __forceinline__ bool are_aligned(const Input* x, const uint8_t* out_fp4) {
    // The scale search takes time enough to look at each address.
    return !kScaleSearch && is_aligned_16(x) &&
           (reinterpret_cast<uint64_t>(out_fp4) & (kCodeBytes - 1)) == 0;
}
