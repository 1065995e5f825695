// How 128 features by kTokens tokens are shared out among the warps of a block, and the asynchronous
// copies of FP4 operands that a thread makes.
//
// The 8 warps form two groups of 4. Group 0 sums over the even, group 1 over the odd steps of 64 k;
// each has a ring of stages of its own. With NVFP4_DETERMINISTIC_KBLOCKS=1 all 8 are one group.
//
// Weight rows lie 36 k / 64 bytes apart, so only 4-byte copies are aligned whatever k is. Activation
// rows are aligned to 16 bytes.
#pragma once

#include "layouts.cuh"
#include "mmq_fragments.cuh"
#include "ptx.cuh"

#ifndef NVFP4_DETERMINISTIC_KBLOCKS
#define NVFP4_DETERMINISTIC_KBLOCKS 0
#endif

namespace mmq {

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
// rows exist; with it those from num_rows on become zeros.
template <int kThreads, bool kCheckRows>
class WeightCopy {
    static constexpr int kPassRows = kThreads / 8;

   public:
    static constexpr int kParts = kRows / kPassRows + 1;

    __device__ __forceinline__ WeightCopy(const uint8_t* w, uint32_t w_stride, uint32_t num_rows,
                                          uint32_t thread, uint32_t block)
        : thread_(thread), row_bytes_(w_stride * layouts::kWeightBlockBytes), num_rows_(num_rows) {
        const uint8_t* from = w + static_cast<uint64_t>(block) * layouts::kWeightBlockBytes;
        codes_ = from + static_cast<uint64_t>(thread / 8) * row_bytes_ + kBlockScaleBytes +
                 thread % 8 * 4;
        scales_ = from + static_cast<uint64_t>(thread) * row_bytes_;
    }

    // Copy number i, in [0, kParts), to the places of the stage's codes and scales; zeros unless the
    // step exists.
    __device__ __forceinline__ void part(int i, uint8_t* codes, uint8_t* scales, bool exists) const {
        if (i < kParts - 1) {
            uint8_t* to = codes + code_word_offset(thread_ / 8, thread_ % 8);
            ptx::cp_async<4>(to + i * kPassRows * kCodeRowBytes,
                             codes_ + static_cast<uint64_t>(row_bytes_) * (kPassRows * i),
                             exists && has_row(thread_ / 8 + kPassRows * i) ? 4 : 0);
        } else if (kThreads == kRows || thread_ < kRows) {
            ptx::cp_async<4>(scales + thread_ * kBlockScaleBytes, scales_,
                             exists && has_row(thread_) ? 4 : 0);
        }
    }

    __device__ __forceinline__ void advance(int num_blocks) {
        codes_ += num_blocks * layouts::kWeightBlockBytes;
        scales_ += num_blocks * layouts::kWeightBlockBytes;
    }

   private:
    __device__ __forceinline__ bool has_row(uint32_t row) const {
        return !kCheckRows || row < num_rows_;
    }

    uint32_t thread_;
    uint32_t row_bytes_;  // fits, since w_stride = k / 64 < 2^26
    uint32_t num_rows_;
    const uint8_t *codes_, *scales_;
};

// Copies a step's quarter of the block_fp4_mmq of kTokens tokens, kThreads threads together. Tokens
// from num_tokens on become zeros.
template <int kTokens, int kThreads>
class ActCopy {
    static constexpr int kPassTokens = kThreads / 2;
    static constexpr int kBlockSteps = layouts::kActBlockValues / layouts::kWeightBlockValues;

   public:
    static constexpr int kParts = (kTokens + kPassTokens - 1) / kPassTokens + 1;

    __device__ __forceinline__ ActCopy(const uint8_t* a, uint32_t a_stride, uint32_t num_tokens,
                                       uint32_t thread, uint32_t block)
        : thread_(thread),
          block_(block),
          num_tokens_(num_tokens),
          from_(a),
          block_bytes_(static_cast<uint64_t>(a_stride) * layouts::kActBlockBytes) {}

    // Copy number i, in [0, kParts); zeros unless the step exists.
    __device__ __forceinline__ void part(int i, uint8_t* codes, uint8_t* scales, bool exists) const {
        uint32_t quarter = block_ % kBlockSteps;
        if (i < kParts - 1) {
            if (kTokens < kPassTokens && thread_ >= 2 * kTokens) return;
            uint32_t token = thread_ / 2 + kPassTokens * i;
            uint32_t offset = token * layouts::kActBlockBytes + kActScaleBytes + thread_ % 2 * 16;
            uint8_t* to = codes + code_offset(thread_ / 2, thread_ % 2);
            ptx::cp_async<16>(to + i * kPassTokens * kCodeRowBytes,
                              from_ + (offset + quarter * kCodeRowBytes),
                              exists && token < num_tokens_ ? 16 : 0);
        } else if (kTokens >= kThreads || thread_ < kTokens) {
            uint32_t offset = thread_ * layouts::kActBlockBytes;
            ptx::cp_async<4>(scales + thread_ * kBlockScaleBytes,
                             from_ + (offset + quarter * kBlockScaleBytes),
                             exists && thread_ < num_tokens_ ? 4 : 0);
        }
    }

    __device__ __forceinline__ void advance(int num_blocks) {
        block_ += num_blocks;
        if (block_ % kBlockSteps < num_blocks) from_ += block_bytes_;
    }

   private:
    uint32_t thread_, block_, num_tokens_;
    const uint8_t* from_;  // the block's first token
    uint64_t block_bytes_;
};

}  // namespace mmq
