// SwiGLU of scaled GEMM outputs, rounded to bf16.
//
//     out[i] = bf16(h[i]),  i in [0, total);  h: see swiglu.cuh
//
// gate, up, out: bf16, any alignment of their elements; out may be gate. NaN becomes 0x7FFF.
// Defines: NVFP4_SWIGLU_LIMIT, NVFP4_NO_SWIGLU_LIMIT.
//
// atlas_nvfp4_silu_mul_scaled: grid (ceil(total, 256), 1, 1), block (256, 1, 1); one block in eight
// works, see nvfp4_scale_bf16.cu. nvfp4_silu_mul_scaled_wide_kernel: grid (ceil(total, 8192), 1,
// 1), block (256, 1, 1), 8192 elements a block. No shared memory.
//
// Source: nvfp4_mmq.rs, nvfp4_silu_mul_scaled.
#include "elementwise.cuh"
#include "ptx.cuh"
#include "swiglu.cuh"
#include "types.cuh"

struct SiluMulScaled {
    struct Values {
        uint4 gate, up;
    };

    const bf16_t* gate;
    const bf16_t* up;
    bf16_t* out;
    float gate_scale, up_scale;

    __device__ __forceinline__ uint32_t elements_to_boundary() const {
        const uint32_t head = elementwise::elements_to_boundary(gate);
        const bool is_shared = head == elementwise::elements_to_boundary(up) &&
                               head == elementwise::elements_to_boundary(out);
        return is_shared ? head : elementwise::kVector;
    }

    __device__ __forceinline__ Values load(uint64_t i) const {
        return {*reinterpret_cast<const uint4*>(gate + i), *reinterpret_cast<const uint4*>(up + i)};
    }

    __device__ __forceinline__ void store(uint64_t i, const Values& v) const {
        float h[elementwise::kVector];
        swiglu::silu_mul<4>({v.gate.x, v.gate.y, v.gate.z, v.gate.w},
                            {v.up.x, v.up.y, v.up.z, v.up.w}, gate_scale, up_scale, h);
        *reinterpret_cast<uint4*>(out + i) =
            make_uint4(ptx::floats_to_bf16x2(h[0], h[1]), ptx::floats_to_bf16x2(h[2], h[3]),
                       ptx::floats_to_bf16x2(h[4], h[5]), ptx::floats_to_bf16x2(h[6], h[7]));
    }

    __device__ __forceinline__ void element(uint64_t i) const {
        float h[2];
        swiglu::silu_mul<1>({gate[i]}, {up[i]}, gate_scale, up_scale, h);
        out[i] = ptx::float_to_bf16(h[0]);
    }
};

constexpr int kMirroredVectors = 1;
constexpr int kWideVectors = 4;

// out may be gate, so neither is __restrict__.
extern "C" __global__ void __launch_bounds__(256)
    atlas_nvfp4_silu_mul_scaled(const bf16_t* gate, const bf16_t* __restrict__ up, bf16_t* out,
                                float gate_scale, float up_scale, uint32_t total) {
    if (blockIdx.x % (elementwise::kSpan<kMirroredVectors> / elementwise::kThreads) != 0) return;
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * elementwise::kThreads;
    elementwise::run_span<kMirroredVectors>(SiluMulScaled{gate, up, out, gate_scale, up_scale},
                                            first, total);
}

extern "C" __global__ void __launch_bounds__(256, 4)
    nvfp4_silu_mul_scaled_wide_kernel(const bf16_t* gate, const bf16_t* __restrict__ up,
                                      bf16_t* out, float gate_scale, float up_scale,
                                      uint64_t total) {
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * elementwise::kSpan<kWideVectors>;
    elementwise::run_span<kWideVectors>(SiluMulScaled{gate, up, out, gate_scale, up_scale}, first,
                                        total);
}
