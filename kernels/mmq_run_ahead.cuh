// The GEMM's loop where copies and addresses, not products, are the limit: registers are filled a
// stage ahead, so that every stage of the ring is in flight.
#pragma once

#include "mmq_copy.cuh"
#include "mmq_mma.cuh"
#include "mmq_pipeline.cuh"
#include "mmq_stage.cuh"
#include "ptx.cuh"

#if NVFP4_USE_FP4_MMA

namespace mmq {

// Fills the operand registers from the next stage, and the stage they were read from with the
// copies of a later one.
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

}  // namespace mmq

#endif
