// Multiplies bf16 values by a number, in place.
//
//     data[i] = bf16(float32(data[i]) * scale),  i in [0, total)
//
// NaN becomes 0x7FFF; subnormal inputs count as zero. data may have any alignment of its elements.
//
// atlas_nvfp4_scale_bf16: grid (ceil(total, 256), 1, 1), block (256, 1, 1). 256 elements are too
// few to keep the memory busy, so one block in eight works for all of them, and the others end at
// once; starting them takes longer than the memory does. nvfp4_scale_bf16_wide_kernel: grid
// (ceil(total, 2048), 1, 1), block (256, 1, 1), 2048 elements a block. No shared memory.
//
// Source: nvfp4_mmq.rs, nvfp4_scale_bf16.
#include "elementwise.cuh"
#include "ptx.cuh"
#include "types.cuh"

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

constexpr int kVectors = 1;  // 16 bytes a thread are enough in flight
constexpr uint32_t kSpan = elementwise::kSpan<kVectors>;

extern "C" __global__ void __launch_bounds__(256)
    atlas_nvfp4_scale_bf16(bf16_t* __restrict__ data, float scale, uint32_t total) {
    if (blockIdx.x % (kSpan / elementwise::kThreads) != 0) return;
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * elementwise::kThreads;
    elementwise::run_span<kVectors>(ScaleBf16{data, scale}, first, total);
}

extern "C" __global__ void __launch_bounds__(256)
    nvfp4_scale_bf16_wide_kernel(bf16_t* __restrict__ data, float scale, uint64_t total) {
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * kSpan;
    elementwise::run_span<kVectors>(ScaleBf16{data, scale}, first, total);
}
