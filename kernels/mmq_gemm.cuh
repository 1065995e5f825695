// W4A4 GEMM: out[m, n] = sum_k A[m, k] W[n, k], float32 accumulation, without a scale above the
// blocks' own unless `out_scale` or `row_scale` is given:
//
//   out[m, n] = round((sum * out_scale[n * out_scale_stride]) * row_scale[m])
//
// W: block_nvfp4 (n, k / 64, 36), rows w_stride blocks apart. A: block_fp4_mmq (ceil(k / 256), m,
// 144), 256-wide blocks of k a_stride rows apart. out: (m, n), rows out_stride elements apart;
// NVFP4_OUTPUT 0, 1, 2 = bfloat16, float16, float32. k % 64 == 0.
//
// Grid (ceil(n, 128), ceil(m, kTokens)), block (32, 8). Dynamic shared memory shared_bytes(kTokens).
//
// A block computes 128 features of kTokens tokens in steps of 64 k, which flow through shared memory
// by asynchronous copies. Four warps take the even steps and four the odd ones, each k ascending;
// the two sums are added at the end.
//
// A step's products are added to the accumulators by the matrix instructions themselves. With
// NVFP4_DETERMINISTIC_KBLOCKS=1 each step starts from zero and is then added in float32, all steps in
// ascending order, which is what the document's kernel does.
//
// Source: spark_model/layers/ops/nvfp4_mmq.rs, nvfp4_mmq_gemm and nvfp4_mmq_gemm_tiled.
#pragma once

#include "mmq_copy.cuh"
#include "mmq_fragments.cuh"
#include "mmq_mma.cuh"
#include "mmq_output.cuh"
#include "mmq_pipeline.cuh"
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
                   keep_in_register(
                       code_offset(warp.first_row + a_load_row(lane), a_load_half(lane)))),
          b_codes_(ring + S::kActCodes +
                   keep_in_register(
                       code_offset(warp.first_token + b_load_token(lane), b_load_half(lane)))),
          a_scales_(ring + S::kWeightScales +
                    keep_in_register((warp.first_row + a_scale_of<T::kTilesA>(lane, 0)) *
                                     kBlockScaleBytes)),
          b_scales_(ring + S::kActScales +
                    keep_in_register((warp.first_token + b_scale_of<T::kTilesB>(lane, 0)) *
                                     kBlockScaleBytes)) {}

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

    static __device__ __forceinline__ uint32_t word_at(const uint8_t* bytes) {
        return *reinterpret_cast<const uint32_t*>(bytes);
    }

    const uint8_t *a_codes_, *b_codes_, *a_scales_, *b_scales_;  // this lane's, in the first stage
};

// acc += x, or acc += (0 + x) with the inner sum by the matrix instructions.
template <int kTilesA, int kTilesB>
__device__ __forceinline__ void accumulate(float (&acc)[kTilesA][kTilesB][4],
                                           const Operands<kTilesA, kTilesB>& x, uint32_t lane) {
    if constexpr (!NVFP4_DETERMINISTIC_KBLOCKS) {
        multiply(acc, x, lane);
    } else {
        float sum[kTilesA][kTilesB][4] = {};
        multiply(sum, x, lane);
#pragma unroll
        for (int i = 0; i < kTilesA; ++i) {
#pragma unroll
            for (int j = 0; j < kTilesB; ++j) {
#pragma unroll
                for (int v = 0; v < 4; ++v) acc[i][j][v] += sum[i][j][v];
            }
        }
    }
}

#if NVFP4_USE_FP4_MMA

// Fills the operand registers from the next stage, and the stage they were read from with the copies
// of a later one.
template <int kTokens, bool kCheckRows>
struct StageRefill {
    using View = WarpView<kTokens>;
    using Copy = StageCopy<kTokens, kCheckRows>;
    const View& view;
    const Copy& copy;
    typename View::X& x;
    uint32_t next, fill;  // bytes of the stages in the ring
    bool exists;          // the step to copy

    __device__ __forceinline__ void a(int i) const {
        view.load_a(x, i, next);
        if (i % 2 == 1) view.load_a_scales(x, i / 2, next);
    }
    __device__ __forceinline__ void b(int p) const {
        view.load_b(x, p, next);
        if (p % 2 == 1) view.load_b_scales(x, p / 2, next);
    }
    __device__ __forceinline__ void slot(int s) const {
        // Two at a time: before the first copy behind other loads ptxas puts three idle ones.
        if (2 * s < Copy::kParts) copy.part(2 * s, fill, exists);
        if (2 * s + 1 < Copy::kParts) copy.part(2 * s + 1, fill, exists);
    }
};

// The loop where copies and addresses, not products, are the limit: registers are filled a stage
// ahead, so that all kStages stages are in flight.
template <int kTokens, int kStages, bool kCheckRows>
class RunAhead {
    using T = Tile<kTokens>;
    using Copy = StageCopy<kTokens, kCheckRows>;
    using View = WarpView<kTokens>;
    using Accumulators = float[T::kTilesA][T::kTilesB][4];
    static constexpr uint32_t kBytes = Stage<kTokens>::kBytes;
    // Whole rings and whole block_fp4_mmq, which make every offset but the pointers' a constant.
    static constexpr int kTrip = 2 * kStages;
    static_assert(kTrip * T::kGroups % 4 == 0, "");

   public:
    __device__ __forceinline__ RunAhead(uint32_t group, Copy& copy, const View& view)
        : group_(group), copy_(copy), view_(view) {}

    __device__ __forceinline__ void run(Accumulators& acc, uint32_t num_steps, uint32_t lane) {
        uint32_t to_copy = group_;
#pragma unroll
        for (int i = 0; i < kStages; ++i) {
            copy_(i * kBytes, to_copy);
            ptx::cp_async_commit();
            to_copy += T::kGroups;
        }
        typename View::X x;
        ptx::cp_async_wait<kStages - 1>();
        sync_group<T::kGroupThreads>(group_);
        view_.load(x, 0);
        uint32_t step = 0;
        // All steps that a trip copies exist, in both groups.
        for (; step + (kStages + kTrip) * T::kGroups <= num_steps; step += kTrip * T::kGroups) {
#pragma unroll
            for (int i = 0; i < kTrip; ++i) {
                round(acc, x, lane, (i + 1) % kStages * kBytes, i % kStages * kBytes, true,
                      Copy::leaves(T::kGroups * (kStages + i)));
            }
        }
        to_copy += step;
        uint32_t fill = 0;
        for (; step < num_steps; step += T::kGroups, to_copy += T::kGroups) {
            uint32_t next = fill == (kStages - 1) * kBytes ? 0 : fill + kBytes;
            round(acc, x, lane, next, fill, to_copy < num_steps, Copy::leaves(to_copy));
            fill = next;
        }
    }

   private:
    __device__ __forceinline__ void round(Accumulators& acc, typename View::X& x, uint32_t lane,
                                          uint32_t next, uint32_t fill, bool exists, bool leaves) {
        // The next stage has landed, and every warp has this one in registers.
        ptx::cp_async_wait<kStages - 2>();
        sync_group<T::kGroupThreads>(group_);
        multiply(acc, x, lane,
                 StageRefill<kTokens, kCheckRows>{view_, copy_, x, next, fill, exists});
        ptx::cp_async_commit();
        copy_.advance(leaves);
    }

    uint32_t group_;
    Copy& copy_;
    const View& view_;
};

#endif

template <int kTokens, bool kCheckRows, bool kScaled>
__device__ __forceinline__ void gemm(const Problem& p, const Output& out) {
    using T = Tile<kTokens>;
    // As many as the launcher's shared memory holds: 4 at 16 tokens, 3 above, twice that in one ring.
    constexpr int kStages = shared_bytes(kTokens) / Stage<kTokens>::kBytes / T::kGroups;
    extern __shared__ __align__(16) uint8_t shared[];
    uint32_t lane = threadIdx.x, thread = threadIdx.y * 32 + lane;
    WarpPlace<kTokens> warp(threadIdx.y);
    uint8_t* ring =
        shared + keep_in_register(warp.group * (kStages * Stage<kTokens>::kBytes));
    WarpView<kTokens> view(ring, warp, lane);
    StageCopy<kTokens, kCheckRows> copy(ring, p, thread % T::kGroupThreads, warp.group);
    float acc[T::kTilesA][T::kTilesB][4] = {};
    uint32_t num_steps = p.k / layouts::kWeightBlockValues;
    if (num_steps > 0) {
#if NVFP4_USE_FP4_MMA
        if constexpr (kRunAhead<kTokens>) {
            RunAhead<kTokens, kStages, kCheckRows>(warp.group, copy, view).run(acc, num_steps, lane);
        } else
#endif
            run_pipeline<T::kGroups, kStages, Stage<kTokens>::kBytes>(
                warp.group, num_steps, copy, [&](uint32_t stage) {
                    typename WarpView<kTokens>::X x;
                    view.load(x, stage);
                    accumulate(acc, x, lane);
                });
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
    write_tile<kTokens, T::kGroups, T::kWarpsB, kCheckRows, kScaled>(
        acc, out, reinterpret_cast<float*>(shared), warp.group, warp.first_row, warp.first_token,
        kAccumulatorScale);
}

}  // namespace mmq
