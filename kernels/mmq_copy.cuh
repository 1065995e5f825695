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
// rows exist; with it the last one stands in for those beyond, whose outputs are never stored.
template <int kThreads, bool kCheckRows>
class WeightCopy {
    static constexpr int kPassRows = kThreads / 8;

   public:
    static constexpr int kParts = kRows / kPassRows + 1;

    __device__ __forceinline__ WeightCopy(const uint8_t* w, uint32_t w_stride, uint32_t num_rows,
                                          uint32_t thread, uint32_t block)
        : row_bytes_(w_stride * layouts::kWeightBlockBytes),
          last_row_(num_rows - 1),
          row_(thread / 8),
          to_codes_(code_word_offset(thread / 8, thread % 8)),
          to_scales_(thread * kBlockScaleBytes) {
        const uint8_t* from = w + static_cast<uint64_t>(block) * layouts::kWeightBlockBytes;
        codes_ = from + kBlockScaleBytes + thread % 8 * 4;
        if (!kCheckRows) codes_ += static_cast<uint64_t>(row_) * row_bytes_;
        uint32_t scale_row = kCheckRows ? min(thread, last_row_) : thread;
        scales_ = from + static_cast<uint64_t>(scale_row) * row_bytes_;
    }

    // Copy number i, in [0, kParts), to the places of the stage's codes and scales; zeros unless the
    // step exists.
    __device__ __forceinline__ void part(int i, uint8_t* codes, uint8_t* scales, bool exists) const {
        if (i < kParts - 1) {
            uint32_t row = kPassRows * i;
            if (kCheckRows) row = min(row_ + kPassRows * i, last_row_);
            ptx::cp_async<4>(codes + to_codes_ + i * kPassRows * kCodeRowBytes,
                             codes_ + static_cast<uint64_t>(row_bytes_) * row, exists ? 4 : 0);
        } else if (kThreads == kRows || to_scales_ < kRows * kBlockScaleBytes) {
            ptx::cp_async<4>(scales + to_scales_, scales_, exists ? 4 : 0);
        }
    }

    __device__ __forceinline__ void advance(int num_blocks) {
        codes_ += num_blocks * layouts::kWeightBlockBytes;
        scales_ += num_blocks * layouts::kWeightBlockBytes;
    }

   private:
    uint32_t row_bytes_;  // fits, since w_stride = k / 64 < 2^26
    uint32_t last_row_, row_;
    uint32_t to_codes_, to_scales_;
    const uint8_t *codes_, *scales_;
};

// Copies a step's quarter of the block_fp4_mmq of kTokens tokens, kThreads threads together. The
// last token stands in for those beyond.
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
          from_(a),
          block_bytes_(static_cast<uint64_t>(a_stride) * layouts::kActBlockBytes) {
#pragma unroll
        for (int i = 0; i < kParts - 1; ++i) {
            codes_[i] = min(thread / 2 + kPassTokens * i, num_tokens - 1) * layouts::kActBlockBytes +
                        kActScaleBytes + thread % 2 * 16;
        }
        scales_ = min(thread, num_tokens - 1) * layouts::kActBlockBytes;
    }

    // Copy number i, in [0, kParts); zeros unless the step exists.
    __device__ __forceinline__ void part(int i, uint8_t* codes, uint8_t* scales, bool exists) const {
        uint32_t quarter = block_ % kBlockSteps;
        if (i < kParts - 1) {
            if (kTokens < kPassTokens && thread_ >= 2 * kTokens) return;
            uint8_t* to = codes + code_offset(thread_ / 2, thread_ % 2);
            ptx::cp_async<16>(to + i * kPassTokens * kCodeRowBytes,
                              from_ + (codes_[i] + quarter * kCodeRowBytes), exists ? 16 : 0);
        } else if (kTokens >= kThreads || thread_ < kTokens) {
            ptx::cp_async<4>(scales + thread_ * kBlockScaleBytes,
                             from_ + (scales_ + quarter * kBlockScaleBytes), exists ? 4 : 0);
        }
    }

    __device__ __forceinline__ void advance(int num_blocks) {
        block_ += num_blocks;
        if (block_ % kBlockSteps < num_blocks) from_ += block_bytes_;
    }

   private:
    uint32_t thread_, block_;
    const uint8_t* from_;  // the block's first token
    uint64_t block_bytes_;
    uint32_t codes_[kParts - 1], scales_;
};

}  // namespace mmq
