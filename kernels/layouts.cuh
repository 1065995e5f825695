// Byte layouts that hold 16-element groups of E2M1 codes next to their scales, and the bit moves
// between the two orders of a group's codes.
//
//     natural:       nibble i of the group's 8 bytes is code i
//     split halves:  byte j, in [0, 8), is code[j] | code[8 + j] << 4
//
// Checkpoints and `QuantizedGroup` are in natural order, the blocks below in split halves.
//
// Source: nvfp4_mmq.rs, block_nvfp4 and block_fp4_mmq; nvfp4cupy/layouts.py has the same constants.
#pragma once

#include "ptx.cuh"
#include "types.cuh"

namespace layouts {

constexpr int kGroupValues = 16;
constexpr int kWeightBlockValues = 64;
constexpr int kActBlockValues = 256;

// Weights: arrays (n, k / 64) of these.
struct BlockNvfp4 {
    uint32_t scales;    // byte s: E4M3 scale of group s
    uint32_t codes[8];  // words 2 s and 2 s + 1: group s
};

// Activations: arrays (kpad / 256, m) of these.
struct BlockFp4Mmq {
    uint32_t scales[4];  // byte s of all 16: E4M3 scale of group s
    uint32_t codes[32];  // words 2 s and 2 s + 1: group s
};

constexpr int kWeightBlockBytes = sizeof(BlockNvfp4);
constexpr int kActBlockBytes = sizeof(BlockFp4Mmq);
// Words of one weight row in the shared-memory tile that the GEMM's launch contract counts.
constexpr int kWeightTileWords = 76;

static_assert(kWeightBlockBytes == 36 && alignof(BlockNvfp4) == 4, "");
static_assert(kActBlockBytes == 144 && alignof(BlockFp4Mmq) == 4, "");
static_assert(kWeightBlockBytes == (kWeightBlockValues / 2) + (kWeightBlockValues / 16), "");
static_assert(kActBlockBytes == (kActBlockValues / 2) + (kActBlockValues / 16), "");
// 256 values of codes and scales, 64 + 8 words, and 4 of padding.
static_assert(kWeightTileWords == 2 * kActBlockValues / 8 + 8 + 4, "");

// The 16 codes of a group: two words, in either order.
struct Codes {
    uint32_t first, second;
};

// Natural order to split halves. `even` and `odd` hold the bytes j = 0, 2, 4, 6 and 1, 3, 5, 7.
__device__ __forceinline__ Codes to_split_halves(Codes natural) {
    const uint32_t a = natural.first, b = natural.second;  // codes 0..7 and 8..15
    const uint32_t even = (a & 0x0F0F0F0F) | (b << 4 & 0xF0F0F0F0);
    const uint32_t odd = (a >> 4 & 0x0F0F0F0F) | (b & 0xF0F0F0F0);
    return {ptx::byte_permute(even, odd, 0x5140), ptx::byte_permute(even, odd, 0x7362)};
}

// The same, for a source whose bytes hold the even element in the high nibble.
__device__ __forceinline__ Codes swapped_to_split_halves(Codes swapped) {
    const uint32_t a = swapped.first, b = swapped.second;
    const uint32_t even = (a >> 4 & 0x0F0F0F0F) | (b & 0xF0F0F0F0);
    const uint32_t odd = (a & 0x0F0F0F0F) | (b << 4 & 0xF0F0F0F0);
    return {ptx::byte_permute(even, odd, 0x5140), ptx::byte_permute(even, odd, 0x7362)};
}

// Split halves to natural order.
__device__ __forceinline__ Codes to_natural(Codes halves) {
    const uint32_t even = ptx::byte_permute(halves.first, halves.second, 0x6420);
    const uint32_t odd = ptx::byte_permute(halves.first, halves.second, 0x7531);
    return {(even & 0x0F0F0F0F) | (odd << 4 & 0xF0F0F0F0),
            (even >> 4 & 0x0F0F0F0F) | (odd & 0xF0F0F0F0)};
}

}  // namespace layouts
