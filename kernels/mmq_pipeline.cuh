// The loop over k that the GEMM kernels share: a ring of stages in shared memory, filled by
// asynchronous copies while earlier ones are multiplied.
#pragma once

#include "ptx.cuh"

namespace mmq {

// Runs steps first, first + kStride, ... below num_steps >= 1, which all threads of the block have in
// common; groups of threads may differ in `first`, in [0, kStride).
//
// `copy(stage, exists)` starts this thread's copies of the next step into a stage, or fills it with
// zeros; `multiply(stage)` works on one that has landed. Every group makes as many rounds as the one
// with the most steps, so that no branch splits the loop: the last round of another may add zeros.
template <int kStride, int kStages, int kStageBytes, class Copy, class Multiply>
__device__ __forceinline__ void run_pipeline(uint8_t* ring, uint32_t first, uint32_t num_steps,
                                             Copy& copy, const Multiply& multiply) {
    uint32_t to_copy = first;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
        copy(ring + i * kStageBytes, to_copy < num_steps);
        ptx::cp_async_commit();
        to_copy += kStride;
    }
    uint32_t read = 0, fill = (kStages - 1) * kStageBytes;
    for (uint32_t step = 0; step < num_steps; step += kStride) {
        // The stage to be read has landed, and every warp is done with the one to be filled.
        ptx::cp_async_wait<kStages - 2>();
        __syncthreads();
        copy(ring + fill, to_copy < num_steps);
        ptx::cp_async_commit();
        to_copy += kStride;
        multiply(ring + read);
        read = read == (kStages - 1) * kStageBytes ? 0 : read + kStageBytes;
        fill = fill == (kStages - 1) * kStageBytes ? 0 : fill + kStageBytes;
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
}

}  // namespace mmq
