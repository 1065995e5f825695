// W4A4 GEMM: out[m, n] = sum_k A[m, k] W[n, k], float32 accumulation, without a scale above the
// blocks' own unless `out_scale` or `row_scale` is given:
//
//   out[m, n] = round((sum * out_scale[n * out_scale_stride]) * row_scale[m])
//
// W: block_nvfp4 (n, k / 64, 36), rows w_stride blocks apart. A: block_fp4_mmq (ceil(k / 256), m,
// 144), 256-wide blocks of k a_stride rows apart. out: (m, n), rows out_stride elements apart;
// NVFP4_OUTPUT 0, 1, 2 = bfloat16, float16, float32. k % 64 == 0.
//
// Grid (ceil(n, 128), ceil(m, kTokens)), block (32, 8); dynamic shared memory as shared_bytes says.
//
// A block computes 128 features of kTokens tokens in steps of 64 k, which flow through shared
// memory by asynchronous copies. Four warps take the even steps and four the odd ones, each k
// ascending; the two sums are added at the end.
//
// A step's products are added to the accumulators by the matrix instructions themselves. With
// NVFP4_DETERMINISTIC_KBLOCKS=1 each step starts from zero and is then added in float32, all steps
// in ascending order, which is what the document's kernel does.
//
// Source: spark_model/layers/ops/nvfp4_mmq.rs, nvfp4_mmq_gemm and nvfp4_mmq_gemm_tiled.
#pragma once

#include "layouts.cuh"
#include "mmq_copy.cuh"
#include "mmq_mma.cuh"
#include "mmq_output.cuh"
#include "mmq_pipeline.cuh"
#include "mmq_run_ahead.cuh"
#include "mmq_stage.cuh"
#include "ptx.cuh"

namespace mmq {

// acc += x, or acc += (0 + x) with the inner sum by the matrix instructions.
template <int kTilesA, int kTilesB>
__device__ __forceinline__ void accumulate(float (&acc)[kTilesA][kTilesB][4],
                                           Operands<kTilesA, kTilesB>& x, uint32_t lane) {
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

template <int kTokens, bool kCheckRows, bool kScaled>
__device__ __forceinline__ void gemm(const Problem& p, const Output& out) {
    using T = Tile<kTokens>;
    // As many as the launcher's shared memory holds: 4 for 16 tokens, else 3; all in one ring, 8, 7
    // or 6.
    constexpr int kStages = shared_bytes(kTokens) / Stage<kTokens>::kBytes / T::kGroups;
    extern __shared__ __align__(16) uint8_t shared[];
    uint32_t lane = threadIdx.x, thread = threadIdx.y * 32 + lane;
    WarpPlace<kTokens> warp(threadIdx.y);
    uint8_t* ring = shared + keep_in_register<kRunAhead<kTokens>>(
                                 warp.group * (kStages * Stage<kTokens>::kBytes));
    WarpView<kTokens> view(ring, warp, lane);
    StageCopy<kTokens, kCheckRows> copy(ring, p, thread % T::kGroupThreads, warp.group);
    float acc[T::kTilesA][T::kTilesB][4] = {};
    uint32_t num_steps = p.k / layouts::kWeightBlockValues;
    if (num_steps > 0) {
#if NVFP4_USE_FP4_MMA
        if constexpr (kRunAhead<kTokens>) {
            RunAhead<kTokens, kStages, kCheckRows>(warp.group, copy, view)
                .run(acc, num_steps, lane);
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
