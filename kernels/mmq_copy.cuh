// How 128 features by kTokens tokens are shared out among the warps of a block, and the
// asynchronous copies of FP4 operands that a thread makes.
//
// The 8 warps form two groups of 4. Group 0 sums over the even, group 1 over the odd steps of 64 k;
// each has a ring of stages of its own. With NVFP4_DETERMINISTIC_KBLOCKS=1 all 8 are one group.
//
// Weight rows lie 36 k / 64 bytes apart, so only 4-byte copies are aligned whatever k is.
// Activation rows are aligned to 16 bytes.
#pragma once

#include "layouts.cuh"
#include "mmq_fragments.cuh"
#include "ptx.cuh"

#ifndef NVFP4_DETERMINISTIC_KBLOCKS
#define NVFP4_DETERMINISTIC_KBLOCKS 0
#endif

namespace mmq {

// The same number. With kKeep the compiler cannot compute it again in every step, as it does with
// what it takes for cheap to derive from the thread's index although registers are left.
template <bool kKeep>
__device__ __forceinline__ uint32_t keep_in_register(uint32_t value) {
    return kKeep ? __shfl_sync(0xFFFFFFFF, value, threadIdx.x) : value;
}

template <int kTokens>
struct Tile {
    static constexpr int kGroups = NVFP4_DETERMINISTIC_KBLOCKS ? 1 : 2;
    static constexpr int kGroupWarps = 8 / kGroups;
    static constexpr int kGroupThreads = 32 * kGroupWarps;
    // The warps of a group: kWarpsA in the features, kWarpsB in the tokens.
    static constexpr int kWarpsB = kTokens >= 32 * kGroups ? 2 : 1;
    static constexpr int kWarpsA = kGroupWarps / kWarpsB;
    static constexpr int kTilesA = kRows / kWarpsA / 16;
    static constexpr int kTilesB = kTokens / kWarpsB / 8;
};

// A warp's place in the block.
template <int kTokens>
struct WarpPlace {
    using T = Tile<kTokens>;
    uint32_t group, first_row, first_token;
    __device__ __forceinline__ explicit WarpPlace(uint32_t warp)
        : group(warp / T::kGroupWarps),
          first_row(warp % T::kWarpsA * (16 * T::kTilesA)),
          first_token(warp % T::kGroupWarps / T::kWarpsA * (8 * T::kTilesB)) {}
};

// Copies a step's block_nvfp4 of 128 weight rows, kThreads threads together. Without kCheckRows all
// rows exist; with it those from num_rows on become zeros. With kKeepPointers each copy has a
// pointer of its own in registers, where their number is not the limit; then the last row takes the
// place of those that do not exist, whose outputs are never stored.
template <int kThreads, bool kCheckRows, bool kKeepPointers>
class WeightCopy {
    static constexpr int kPassRows = kThreads / 8;
    static constexpr int kPasses = kRows / kPassRows;

 public:
    static constexpr int kParts = kPasses + 1;

    // `codes` and `scales` are the places in the first stage.
    __device__ __forceinline__ WeightCopy(uint8_t* codes, uint8_t* scales, const uint8_t* w,
                                          uint32_t w_stride, uint32_t num_rows, uint32_t thread,
                                          uint32_t step)
        : thread_(thread),
          row_bytes_(w_stride * layouts::kWeightBlockBytes),
          num_rows_(num_rows),
          to_codes_(codes +
                    keep_in_register<kKeepPointers>(code_word_offset(thread / 8, thread % 8))),
          to_scales_(scales + keep_in_register<kKeepPointers>(thread * kBlockScaleBytes)) {
        w += static_cast<uint64_t>(step) * layouts::kWeightBlockBytes;
        scales_ = w + row_offset(thread);
#pragma unroll
        for (int i = 0; i < kPointers; ++i) {
            codes_[i] =
                w + row_offset(thread / 8 + kPassRows * i) + kBlockScaleBytes + thread % 8 * 4;
        }
    }

    // Copy number i, in [0, kParts), into the stage at byte `stage`; zeros unless the step exists.
    __device__ __forceinline__ void part(int i, uint32_t stage, bool exists) const {
        if (i < kPasses) {
            const uint8_t* from = codes_[i % kPointers];
            if (!kKeepPointers) from += static_cast<uint64_t>(row_bytes_) * (kPassRows * i);
            ptx::cp_async<4>(to_codes_ + stage + i * kPassRows * kCodeRowBytes, from,
                             exists & has_row(thread_ / 8 + kPassRows * i) ? 4 : 0);
        } else if (kThreads == kRows || thread_ < kRows) {
            ptx::cp_async<4>(to_scales_ + stage, scales_, exists & has_row(thread_) ? 4 : 0);
        }
    }

    __device__ __forceinline__ void advance(int num_steps) {
#pragma unroll
        for (int i = 0; i < kPointers; ++i) codes_[i] += num_steps * layouts::kWeightBlockBytes;
        scales_ += num_steps * layouts::kWeightBlockBytes;
    }

 private:
    static constexpr int kPointers = kKeepPointers ? kPasses : 1;

    __device__ __forceinline__ uint64_t row_offset(uint32_t row) const {
        if (kCheckRows && kKeepPointers) row = min(row, num_rows_ - 1);
        return static_cast<uint64_t>(row_bytes_) * row;
    }
    __device__ __forceinline__ bool has_row(uint32_t row) const {
        return !kCheckRows || kKeepPointers || row < num_rows_;
    }

    uint32_t thread_;
    uint32_t row_bytes_;  // fits, since w_stride = k / 64 < 2^26
    uint32_t num_rows_;
    uint8_t *to_codes_, *to_scales_;
    const uint8_t *codes_[kPointers], *scales_;
};

// Copies a step's quarter of the block_fp4_mmq of kTokens tokens, kThreads threads together. Tokens
// from num_tokens on become zeros, or the last token with kKeepPointers, as above.
template <int kTokens, int kThreads, bool kKeepPointers>
class ActCopy {
    static constexpr int kPassTokens = kThreads / 2;
    static constexpr int kPasses = (kTokens + kPassTokens - 1) / kPassTokens;
    static constexpr int kBlockSteps = layouts::kActBlockValues / layouts::kWeightBlockValues;

 public:
    static constexpr int kParts = kPasses + 1;

    // `codes` and `scales` are the places in the first stage; step < kBlockSteps.
    __device__ __forceinline__ ActCopy(uint8_t* codes, uint8_t* scales, const uint8_t* a,
                                       uint32_t a_stride, uint32_t num_tokens, uint32_t thread,
                                       uint32_t step)
        : thread_(thread),
          num_tokens_(num_tokens),
          to_codes_(codes + keep_in_register<kKeepPointers>(code_offset(thread / 2, thread % 2))),
          to_scales_(scales + keep_in_register<kKeepPointers>(thread * kBlockScaleBytes)),
          block_bytes_(static_cast<uint64_t>(a_stride) * layouts::kActBlockBytes) {
#pragma unroll
        for (int i = 0; i < kPointers; ++i) {
            codes_[i] = a + (row_offset(thread / 2 + kPassTokens * i) + kActScaleBytes +
                             step * kCodeRowBytes + thread % 2 * 16);
        }
        scales_ = a + (row_offset(thread) + step * kBlockScaleBytes);
    }

    // Copy number i, in [0, kParts), into the stage at byte `stage`; zeros unless the step exists.
    __device__ __forceinline__ void part(int i, uint32_t stage, bool exists) const {
        if (i < kPasses) {
            if (kTokens < kPassTokens && thread_ >= 2 * kTokens) return;
            const uint8_t* from = codes_[i % kPointers];
            if (!kKeepPointers) from += i * kPassTokens * layouts::kActBlockBytes;
            ptx::cp_async<16>(to_codes_ + stage + i * kPassTokens * kCodeRowBytes, from,
                              exists & has_token(thread_ / 2 + kPassTokens * i) ? 16 : 0);
        } else if (kTokens >= kThreads || thread_ < kTokens) {
            ptx::cp_async<4>(to_scales_ + stage, scales_, exists & has_token(thread_) ? 4 : 0);
        }
    }

    // On by num_steps, 1 or 2; `leaves` says that this leads to another block_fp4_mmq.
    __device__ __forceinline__ void advance(int num_steps, bool leaves) {
        uint64_t codes = num_steps * kCodeRowBytes, scales = num_steps * kBlockScaleBytes;
        if (leaves) {
            codes += block_bytes_ - kBlockSteps * kCodeRowBytes;
            scales += block_bytes_ - kBlockSteps * kBlockScaleBytes;
        }
#pragma unroll
        for (int i = 0; i < kPointers; ++i) codes_[i] += codes;
        scales_ += scales;
    }
    static __device__ __forceinline__ bool leaves(int num_steps, uint32_t step) {
        return step % kBlockSteps + num_steps >= kBlockSteps;
    }

 private:
    static constexpr int kPointers = kKeepPointers ? kPasses : 1;

    __device__ __forceinline__ uint32_t row_offset(uint32_t token) const {
        if (kKeepPointers) token = min(token, num_tokens_ - 1);
        return token * layouts::kActBlockBytes;
    }
    __device__ __forceinline__ bool has_token(uint32_t token) const {
        return kKeepPointers || token < num_tokens_;
    }

    uint32_t thread_, num_tokens_;
    uint8_t *to_codes_, *to_scales_;
    const uint8_t *codes_[kPointers], *scales_;
    uint64_t block_bytes_;
};

}  // namespace mmq
