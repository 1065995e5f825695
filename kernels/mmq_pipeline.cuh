// The loop over k that the GEMM kernels share: a ring of stages in shared memory, filled by
// asynchronous copies while earlier ones are multiplied.
#pragma once

#include "ptx.cuh"

namespace mmq {

// Runs steps first, first + kStride, ... of num_steps.
//
// `copy(stage)` starts this thread's copies of the next step into a stage, `skip()` passes over one
// that does not exist; `multiply(stage)` works on one that has landed. All threads of the block call
// this with the same num_steps.
template <int kStride, int kStages, int kStageBytes, class Copy, class Multiply>
__device__ __forceinline__ void run_pipeline(uint8_t* ring, uint32_t first, uint32_t num_steps,
                                             Copy& copy, const Multiply& multiply) {
    uint32_t to_copy = first;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
        if (to_copy < num_steps) copy(ring + i * kStageBytes);
        ptx::cp_async_commit();
        to_copy += kStride;
    }
    uint32_t read = 0, fill = (kStages - 1) * kStageBytes;
    // Every group makes as many rounds as the one with the most steps.
    for (uint32_t step = 0; step < num_steps; step += kStride) {
        // The stage to be read has landed, and every warp is done with the one to be filled.
        ptx::cp_async_wait<kStages - 2>();
        __syncthreads();
        if (to_copy < num_steps) copy(ring + fill);
        ptx::cp_async_commit();
        to_copy += kStride;
        if (step + first < num_steps) multiply(ring + read);
        read = read == (kStages - 1) * kStageBytes ? 0 : read + kStageBytes;
        fill = fill == (kStages - 1) * kStageBytes ? 0 : fill + kStageBytes;
    }
}

}  // namespace mmq
