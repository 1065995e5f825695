// Multiplies bf16 values by a number, in place.
//
//     data[i] = bf16(float32(data[i]) * scale),  i in [0, total)
//
// NaN becomes 0x7FFF; subnormal inputs count as zero. data may have any alignment of its elements.
//
// atlas_nvfp4_scale_bf16: grid (ceil(total, 256), 1, 1), block (256, 1, 1). 256 elements are too few
// to keep the memory busy, so every kBlocks-th block works for that many, and the others end at once.
// nvfp4_scale_bf16_wide_kernel: grid (ceil(total, 4096), 1, 1), block (256, 1, 1), a block works on
// 4096 elements. No shared memory.
//
// Source: nvfp4_mmq.rs, nvfp4_scale_bf16.
#include "elementwise.cuh"
#include "ptx.cuh"
#include "types.cuh"

#ifndef KBLOCKS
#define KBLOCKS 8
#endif
#ifndef WIDEV
#define WIDEV 2
#endif
struct ScaleBf16 {
    using Values = uint4;

    bf16_t* data;
    float scale;

    __device__ __forceinline__ uint32_t elements_to_boundary() const {
        return elementwise::elements_to_boundary(data);
    }

    __device__ __forceinline__ Values load(uint64_t i) const {
        return *reinterpret_cast<const uint4*>(data + i);
    }

    __device__ __forceinline__ uint32_t scaled(uint32_t pair) const {
        return ptx::floats_to_bf16x2(__uint_as_float(pair << 16) * scale,
                                     __uint_as_float(pair & 0xFFFF0000) * scale);
    }

    __device__ __forceinline__ void store(uint64_t i, const Values& v) const {
        *reinterpret_cast<uint4*>(data + i) =
            make_uint4(scaled(v.x), scaled(v.y), scaled(v.z), scaled(v.w));
    }

    __device__ __forceinline__ void element(uint64_t i) const {
        data[i] = static_cast<bf16_t>(scaled(data[i]));
    }
};

extern "C" __global__ void __launch_bounds__(256)
    atlas_nvfp4_scale_bf16(bf16_t* __restrict__ data, float scale, uint32_t total) {
    constexpr uint32_t kBlocks = KBLOCKS;
    if (blockIdx.x % kBlocks != 0) return;
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * elementwise::kThreads;
    elementwise::run_span<kBlocks / 8>(ScaleBf16{data, scale}, first, total);
}

extern "C" __global__ void __launch_bounds__(256)
    nvfp4_scale_bf16_wide_kernel(bf16_t* __restrict__ data, float scale, uint64_t total) {
    constexpr uint64_t kSpan = WIDEV * elementwise::kVector * elementwise::kThreads;
    elementwise::run_span<WIDEV>(ScaleBf16{data, scale}, blockIdx.x * kSpan, total);
}
