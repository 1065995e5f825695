// Which lane holds which element of the 16x8x64 matrix step, and where a stage of operands lies in
// shared memory. Integers only.
//
// Lane = 4 g + t, g in [0, 8), t in [0, 4). A is 16 output features by 64 of k, B is 64 of k by 8
// tokens. A row of 64 codes is 8 words of 4 bytes in split-half order: word w holds elements
// 16 (w / 2) + 4 (w % 2) + j in the low nibbles of its bytes j, and those + 8 in the high ones.
//
//   A: registers 0, 2 = words t, 4 + t of row g; registers 1, 3 = those of row g + 8
//   B: registers 0, 1 = words t, 4 + t of token g
//   C: values 0, 1 = row g, tokens 2 t, 2 t + 1; values 2, 3 = row g + 8, the same tokens
//
// The instruction's own order has elements 8 w .. 8 w + 7 in word w. Both operands differ from it
// by the same permutation inside each group of 16, which has one scale, so the sum is the same.
//
// Source: PTX ISA 8.8, matrix fragments for mma.m16n8k64.
#pragma once

#include "types.cuh"

namespace mmq {

constexpr int kThreads = 256;          // of a block: (32, 8, 1)
constexpr int kRows = 128;             // output features of a block
constexpr int kBlockK = 64;            // k of a block_nvfp4 and of one matrix step
constexpr int kWeightBlockBytes = 36;  // 4 scales, 32 code bytes
constexpr int kActBlockK = 256;        // k of a block_fp4_mmq
constexpr int kActBlockBytes = 144;    // 16 scales, 128 code bytes
constexpr int kActScaleBytes = 16;
constexpr int kStageBlocks = 2;    // matrix steps of a stage: 128 of k
constexpr int kCodeRowBytes = 64;  // code bytes of one row of a stage

static_assert(kWeightBlockBytes == kBlockK / 16 + kBlockK / 2, "");
static_assert(kActBlockBytes == kActBlockK / 16 + kActBlockK / 2, "");
static_assert(kCodeRowBytes == kStageBlocks * kBlockK / 2, "");

// Element of k, in [0, 64), whose code is nibble `nibble` (from the low end) of word `word`.
__device__ constexpr uint32_t code_element(uint32_t word, uint32_t nibble) {
    return 16 * (word / 2) + 4 * (word % 2) + nibble / 2 + 8 * (nibble % 2);
}

// Byte of 16-byte chunk `chunk`, in [0, 4), of row `row` within a stage's codes. Two rows fill the
// 32 banks; the exclusive or spreads one chunk of 8 consecutive rows over all of them.
__device__ constexpr uint32_t code_offset(uint32_t row, uint32_t chunk) {
    return row * kCodeRowBytes + (chunk ^ (row >> 1 & 3)) * 16;
}

// Byte of code word `word`, in [0, 16), of row `row` within a stage's codes.
__device__ constexpr uint32_t code_word_offset(uint32_t row, uint32_t word) {
    return code_offset(row, word / 4) + word % 4 * 4;
}

// The other matrix step of a stage: chunks 2, 3 instead of 0, 1.
__device__ constexpr uint32_t code_offset_of_block(uint32_t offset, uint32_t block) {
    return offset ^ block * 32;
}

// Row and half (16 bytes) whose address a lane gives to the four-matrix load, so that the four
// registers it gets are those of A (16 rows) ...
__device__ constexpr uint32_t a_load_row(uint32_t lane) { return lane % 16; }
__device__ constexpr uint32_t a_load_half(uint32_t lane) { return lane / 16; }
// ... or those of B for two times 8 tokens.
__device__ constexpr uint32_t b_load_row(uint32_t lane) { return lane % 8 + lane / 16 * 8; }
__device__ constexpr uint32_t b_load_half(uint32_t lane) { return lane / 8 % 2; }

// Row of A register r's elements, and the word of that row.
__device__ constexpr uint32_t a_row(uint32_t lane, uint32_t r) { return lane / 4 + r % 2 * 8; }
__device__ constexpr uint32_t a_word(uint32_t lane, uint32_t r) { return lane % 4 + r / 2 * 4; }
// Token of B's registers, and register r's word.
__device__ constexpr uint32_t b_token(uint32_t lane) { return lane / 4; }
__device__ constexpr uint32_t b_word(uint32_t lane, uint32_t r) { return lane % 4 + r * 4; }
// Row and token of accumulator v.
__device__ constexpr uint32_t c_row(uint32_t lane, uint32_t v) { return lane / 4 + v / 2 * 8; }
__device__ constexpr uint32_t c_token(uint32_t lane, uint32_t v) { return lane % 4 * 2 + v % 2; }

// Row, in [0, 32), whose four scales a lane holds for two tiles of A: the instruction takes tile i's
// from the lanes with t in {2 i, 2 i + 1} (selector i).
__device__ constexpr uint32_t a_scale_row(uint32_t lane) {
    return lane % 4 / 2 * 16 + lane % 2 * 8 + lane / 4;
}
// Token, in [0, 32), whose four scales a lane holds for four tiles of B: tile i's are taken from the
// lanes with t == i (selector i).
__device__ constexpr uint32_t b_scale_token(uint32_t lane) { return lane % 4 * 8 + lane / 4; }

// One stage in shared memory: codes of the weights and of kTokens activation rows, then the scale
// words (4 scales, one matrix step), step by step.
template <int kTokens>
struct Stage {
    // 64 bytes between the two steps' scales: a warp copies both of 16 rows at once.
    static constexpr int kWeightScalePitch = kRows * 4 + 64;
    static constexpr int kActScalePitch = kTokens * 4 + (kTokens % 32 == 0 ? 64 : 0);
    static constexpr int kWeightCodes = 0;
    static constexpr int kActCodes = kWeightCodes + kRows * kCodeRowBytes;
    static constexpr int kWeightScales = kActCodes + kTokens * kCodeRowBytes;
    static constexpr int kActScales = kWeightScales + kStageBlocks * kWeightScalePitch;
    static constexpr int kBytes = kActScales + kStageBlocks * kActScalePitch;
    static_assert(kBytes % 16 == 0, "");
};

// Dynamic shared memory of a block, as the launcher asks for it.
__device__ constexpr int shared_bytes(int tokens) {
    return 4 * (tokens + (36 * tokens + 255) / 256 * 256 + kRows * 76);
}
static_assert(shared_bytes(16) == 42048 && shared_bytes(32) == 44160, "");
static_assert(shared_bytes(64) == 48384 && shared_bytes(128) == 57856, "");

}  // namespace mmq
