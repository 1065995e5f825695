// The loop over k that the GEMM kernels share: a ring of stages in shared memory, filled by
// asynchronous copies while earlier ones are multiplied.
#pragma once

#include "mmq_fragments.cuh"
#include "ptx.cuh"

namespace mmq {

// Barrier of the kThreads threads that share a ring; `group` tells the rings of a block apart.
template <int kThreads>
__device__ __forceinline__ void sync_group(uint32_t group) {
    if (kThreads == kBlockThreads) {
        __syncthreads();
    } else {
        ptx::barrier_sync(1 + group, kThreads);
    }
}

// Runs steps group, group + kGroups, ... below num_steps >= 1 for one of kGroups groups of threads,
// each with a ring of its own.
//
// `copy(stage, step)` starts this thread's copies of a step into the stage at byte `stage` of the
// ring, zeros from num_steps on; `multiply(stage)` works on one that has landed. Every group makes
// as many rounds as the one with the most steps, so that no branch splits the loop: the last round
// of another adds zeros.
template <int kGroups, int kStages, int kStageBytes, class Copy, class Multiply>
__device__ __forceinline__ void run_pipeline(uint32_t group, uint32_t num_steps, Copy& copy,
                                             const Multiply& multiply) {
    uint32_t to_copy = group;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
        copy(i * kStageBytes, to_copy);
        ptx::cp_async_commit();
        to_copy += kGroups;
    }
    uint32_t read = 0, fill = (kStages - 1) * kStageBytes;
    for (uint32_t step = 0; step < num_steps; step += kGroups) {
        // The stage to be read has landed, and every warp is done with the one to be filled.
        ptx::cp_async_wait<kStages - 2>();
        sync_group<kBlockThreads / kGroups>(group);
        copy(fill, to_copy);
        ptx::cp_async_commit();
        to_copy += kGroups;
        multiply(read);
        read = read == (kStages - 1) * kStageBytes ? 0 : read + kStageBytes;
        fill = fill == (kStages - 1) * kStageBytes ? 0 : fill + kStageBytes;
    }
}

}  // namespace mmq
