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

#include "layouts.cuh"
#include "types.cuh"

namespace mmq {

constexpr int kBlockThreads = 256;  // (32, 8, 1)
constexpr int kRows = 128;          // output features of a block
constexpr int kCodeRowBytes = 32;   // code bytes of one row of a step
constexpr int kBlockScaleBytes = 4;
constexpr int kActScaleBytes = 16;

static_assert(kCodeRowBytes == layouts::kWeightBlockValues / 2, "");

// Element of k, in [0, 64), whose code is nibble `nibble` (from the low end) of word `word`.
__device__ constexpr uint32_t code_element(uint32_t word, uint32_t nibble) {
    return 16 * (word / 2) + 4 * (word % 2) + nibble / 2 + 8 * (nibble % 2);
}

// Byte of 16-byte chunk `chunk`, in [0, 2), of row `row` within a step's codes. Four rows fill the
// 32 banks; the exclusive or spreads one chunk of 8 consecutive rows over all of them.
__device__ constexpr uint32_t code_offset(uint32_t row, uint32_t chunk) {
    return row * kCodeRowBytes + (chunk ^ (row >> 2 & 1)) * 16;
}

// Byte of code word `word`, in [0, 8), of row `row` within a step's codes.
__device__ constexpr uint32_t code_word_offset(uint32_t row, uint32_t word) {
    return code_offset(row, word / 4) + word % 4 * 4;
}

// A load of four matrices takes 8x8 tiles of two bytes: lane l gives the address of row l % 8 of
// matrix l / 8, and lane 4 g + t gets word t of row g of matrix r into register r. For A the
// matrices are (rows 0-7, 8-15) of half 0, then of half 1, of the 8 words: one tile's registers 0
// to 3.
__device__ constexpr uint32_t a_load_row(uint32_t lane) { return lane % 16; }
__device__ constexpr uint32_t a_load_half(uint32_t lane) { return lane / 16; }
// For B they are halves 0 and 1 of 8 tokens, then of the next 8: two tiles' registers 0 and 1.
__device__ constexpr uint32_t b_load_token(uint32_t lane) { return lane / 16 * 8 + lane % 8; }
__device__ constexpr uint32_t b_load_half(uint32_t lane) { return lane / 8 % 2; }

// Row and token of accumulator v.
__device__ constexpr uint32_t c_row(uint32_t lane, uint32_t v) { return lane / 4 + v / 2 * 8; }
__device__ constexpr uint32_t c_token(uint32_t lane, uint32_t v) { return lane % 4 * 2 + v % 2; }

// Row, in [0, 32), whose four scales a lane holds for two tiles of A: the instruction takes tile
// i's from the lanes with t in {2 i, 2 i + 1} (selector i). One tile alone needs rows [0, 16) only.
__device__ constexpr uint32_t a_scale_row(uint32_t lane, uint32_t num_tiles) {
    return (lane % 4 / 2 * 16 + lane % 2 * 8 + lane / 4) % (16 * num_tiles);
}
// Token, in [0, 32), whose four scales a lane holds for four tiles of B: tile i's are taken from
// the lanes with t == i (selector i).
__device__ constexpr uint32_t b_scale_token(uint32_t lane, uint32_t num_tiles) {
    return (lane % 4 * 8 + lane / 4) % (8 * num_tiles);
}

// One stage in shared memory, 64 of k: codes of the weights and of kTokens activation rows, then a
// word of 4 scales for each row.
template <int kTokens>
struct Stage {
    static constexpr int kWeightCodes = 0;
    static constexpr int kActCodes = kWeightCodes + kRows * kCodeRowBytes;
    static constexpr int kWeightScales = kActCodes + kTokens * kCodeRowBytes;
    static constexpr int kActScales = kWeightScales + kRows * kBlockScaleBytes;
    static constexpr int kBytes = kActScales + kTokens * kBlockScaleBytes;
    static_assert(kBytes % 16 == 0, "");
};

// Dynamic shared memory of a block, as the launcher asks for it.
__device__ constexpr int shared_bytes(int tokens) {
    return 4 * (tokens + (36 * tokens + 255) / 256 * 256 + kRows * layouts::kWeightTileWords);
}
static_assert(shared_bytes(16) == 42048 && shared_bytes(32) == 44160, "");
static_assert(shared_bytes(64) == 48384 && shared_bytes(128) == 57856, "");

}  // namespace mmq
