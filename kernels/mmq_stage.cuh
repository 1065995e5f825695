// A stage of the W4A4 GEMM, 64 of k: how a thread fills it and what a warp reads of it.
#pragma once

#include "layouts.cuh"
#include "mmq_copy.cuh"
#include "mmq_fragments.cuh"
#include "mmq_mma.cuh"
#include "ptx.cuh"

namespace mmq {

struct Problem {
    const uint8_t* w;
    const uint8_t* a;
    uint32_t n, m, k;
    uint32_t w_stride, a_stride;
};

// Whether the loop is run_ahead: only where the FP4 instruction leaves registers for it.
template <int kTokens>
constexpr bool kRunAhead = NVFP4_USE_FP4_MMA && !NVFP4_DETERMINISTIC_KBLOCKS && kTokens == 128;

// This thread's part of the copies that fill a stage.
template <int kTokens, bool kCheckRows>
class StageCopy {
    using S = Stage<kTokens>;
    using T = Tile<kTokens>;
    using Weights = WeightCopy<T::kGroupThreads, kCheckRows, kRunAhead<kTokens>>;
    using Activations = ActCopy<kTokens, T::kGroupThreads, kRunAhead<kTokens>>;

 public:
    static constexpr int kParts = Weights::kParts + Activations::kParts;

    __device__ __forceinline__ StageCopy(uint8_t* ring, const Problem& p, uint32_t thread,
                                         uint32_t group)
        : StageCopy(ring, p, thread, group, blockIdx.x * kRows, blockIdx.y * kTokens) {}

    // Copy number i, in [0, kParts), of the step that the pointers are at.
    __device__ __forceinline__ void part(int i, uint32_t stage, bool exists) const {
        if (i < Weights::kParts) {
            weights_.part(i, stage, exists);
        } else {
            activations_.part(i - Weights::kParts, stage, exists);
        }
    }

    // Moves on from that step; `leaves` says that it is the group's last in its block_fp4_mmq.
    __device__ __forceinline__ void advance(bool leaves) {
        weights_.advance(T::kGroups);
        activations_.advance(T::kGroups, leaves);
    }
    static __device__ __forceinline__ bool leaves(uint32_t step) {
        return Activations::leaves(T::kGroups, step);
    }

    __device__ __forceinline__ void operator()(uint32_t stage, uint32_t step) {
        bool exists = step < num_steps_;
#pragma unroll
        for (int i = 0; i < kParts; ++i) part(i, stage, exists);
        advance(leaves(step));
    }

 private:
    __device__ __forceinline__ StageCopy(uint8_t* ring, const Problem& p, uint32_t thread,
                                         uint32_t group, uint32_t first_row, uint32_t first_token)
        : weights_(ring + S::kWeightCodes, ring + S::kWeightScales,
                   p.w + static_cast<uint64_t>(first_row) * p.w_stride * layouts::kWeightBlockBytes,
                   p.w_stride, p.n - first_row, thread, group),
          activations_(ring + S::kActCodes, ring + S::kActScales,
                       p.a + static_cast<uint64_t>(first_token) * layouts::kActBlockBytes,
                       p.a_stride, p.m - first_token, thread, group),
          num_steps_(p.k / layouts::kWeightBlockValues) {}

    Weights weights_;
    Activations activations_;
    uint32_t num_steps_;
};

// Where a warp's operands lie in a stage.
template <int kTokens>
class WarpView {
    using T = Tile<kTokens>;
    using S = Stage<kTokens>;

 public:
    using X = Operands<T::kTilesA, T::kTilesB>;

    __device__ __forceinline__ WarpView(const uint8_t* ring, const WarpPlace<kTokens>& warp,
                                        uint32_t lane)
        : a_codes_(ring + S::kWeightCodes +
                   keep(code_offset(warp.first_row + a_load_row(lane), a_load_half(lane)))),
          b_codes_(ring + S::kActCodes +
                   keep(code_offset(warp.first_token + b_load_token(lane), b_load_half(lane)))),
          a_scales_(ring + S::kWeightScales +
                    keep((warp.first_row + a_scale_of<T::kTilesA>(lane, 0)) * kBlockScaleBytes)),
          b_scales_(ring + S::kActScales +
                    keep((warp.first_token + b_scale_of<T::kTilesB>(lane, 0)) * kBlockScaleBytes)) {
    }

    // Tile i of A.
    __device__ __forceinline__ void load_a(X& x, int i, uint32_t stage) const {
        ptx::ldmatrix_x4(x.a[i], a_codes_ + stage + i * 16 * kCodeRowBytes);
    }
    // Tiles 2 p and 2 p + 1 of B.
    __device__ __forceinline__ void load_b(X& x, int p, uint32_t stage) const {
        uint32_t r[4];
        ptx::ldmatrix_x4(r, b_codes_ + stage + p * 16 * kCodeRowBytes);
#pragma unroll
        for (int i = 0; i < 4; ++i) x.b[2 * p + i / 2][i % 2] = r[i];
    }
    __device__ __forceinline__ void load_a_scales(X& x, int i, uint32_t stage) const {
        x.a_scales[i] = word_at(a_scales_ + stage + i * kScaleStep);
    }
    __device__ __forceinline__ void load_b_scales(X& x, int i, uint32_t stage) const {
        x.b_scales[i] = word_at(b_scales_ + stage + i * kScaleStep);
    }
    __device__ __forceinline__ void load(X& x, uint32_t stage) const {
#pragma unroll
        for (int i = 0; i < X::kScalesA; ++i) load_a_scales(x, i, stage);
#pragma unroll
        for (int i = 0; i < X::kScalesB; ++i) load_b_scales(x, i, stage);
#pragma unroll
        for (int i = 0; i < T::kTilesA; ++i) load_a(x, i, stage);
#pragma unroll
        for (int p = 0; p < T::kTilesB / 2; ++p) load_b(x, p, stage);
    }

 private:
    static constexpr int kScaleStep = (NVFP4_USE_FP4_MMA ? 32 : 8) * kBlockScaleBytes;

    static __device__ __forceinline__ uint32_t keep(uint32_t value) {
        return keep_in_register<kRunAhead<kTokens>>(value);
    }
    static __device__ __forceinline__ uint32_t word_at(const uint8_t* bytes) {
        return *reinterpret_cast<const uint32_t*>(bytes);
    }

    const uint8_t *a_codes_, *b_codes_, *a_scales_, *b_scales_;  // this lane's, in the first stage
};

}  // namespace mmq
