// Moves checkpoint weights into block_nvfp4 rows, and back; no bit changes.
//
//     blocks[r, b] = {scales[r, 4 b .. 4 b + 3], split halves of codes[r, 64 b .. 64 b + 63]}
//
// packed [n, k / 2]: element 2 j in the low nibble of byte j, or in the high one if
// NVFP4_HIGH_NIBBLE_FIRST is 1 (atlas_nvfp4_repack alone reads that); scales [n, k / 16];
// blocks [n, k / 64] of 36 bytes. k % 64 == 0. packed and scales may have any alignment, blocks
// that of 4 bytes.
//
// Rows follow one another without gaps in all three arrays, so n and k matter by their product
// only. Grid (ceil(n k / 64, 256), 1, 1), block (256, 1, 1): a block of threads moves 256 blocks of
// values, one per thread. 9216 bytes of static shared memory turn 36-byte steps into 16-byte
// accesses.
//
// Source: nvfp4_mmq.rs, nvfp4_mmq_repack.
#include "layouts.cuh"
#include "ptx.cuh"
#include "types.cuh"

#ifndef NVFP4_HIGH_NIBBLE_FIRST
#define NVFP4_HIGH_NIBBLE_FIRST 0
#endif

namespace repack {

using layouts::BlockNvfp4;
using layouts::Codes;

constexpr int kThreads = 256;
constexpr int kBlockWords = sizeof(BlockNvfp4) / 4;            // 9
constexpr int kTileWords = kThreads * kBlockWords;             // 2304
constexpr int kTileVectors = kTileWords / 4;                   // 576
constexpr int kPackedBytes = layouts::kWeightBlockValues / 2;  // 32 for each block of values
constexpr int kPackedVectors = kPackedBytes / 16;

__device__ __forceinline__ Codes split_halves(uint32_t first, uint32_t second) {
    return NVFP4_HIGH_NIBBLE_FIRST ? layouts::swapped_to_split_halves({first, second})
                                   : layouts::to_split_halves({first, second});
}

__device__ __forceinline__ bool is_aligned(const void* pointer, uint32_t bytes) {
    return reinterpret_cast<uint64_t>(pointer) % bytes == 0;
}

__device__ __forceinline__ uint32_t load_word(const uint8_t* bytes) {
    return bytes[0] | bytes[1] << 8 | bytes[2] << 16 | static_cast<uint32_t>(bytes[3]) << 24;
}

__device__ __forceinline__ void store_word(uint8_t* bytes, uint32_t word) {
#pragma unroll
    for (int i = 0; i < 4; i++) bytes[i] = static_cast<uint8_t>(word >> 8 * i);
}

// The blocks of values that this block of threads moves: `count` of them, from `first` on.
struct Tile {
    uint64_t first;
    uint32_t count;

    __device__ __forceinline__ Tile(uint32_t n, uint32_t k)
        : first(static_cast<uint64_t>(blockIdx.x) * kThreads) {
        const uint64_t total = static_cast<uint64_t>(n) * (k / layouts::kWeightBlockValues);
        count = total - first < kThreads ? static_cast<uint32_t>(total - first) : kThreads;
    }
};

// Thread t turns vectors t and t + 256 of the tile, each two groups, and scale word t.
__device__ __forceinline__ void pack_in_shared(const uint8_t* packed, const uint8_t* scales,
                                               const Tile& tile, uint32_t* shared) {
    const uint4* codes = reinterpret_cast<const uint4*>(packed + tile.first * kPackedBytes);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(scales) + tile.first;
    const uint32_t num_vectors = tile.count * kPackedVectors;
    uint4 four[kPackedVectors];
#pragma unroll
    for (int i = 0; i < kPackedVectors; i++) {
        const uint32_t at = threadIdx.x + i * kThreads;
        if (at < num_vectors) four[i] = ptx::load_streaming(codes + at);
    }
    if (threadIdx.x < tile.count) shared[threadIdx.x * kBlockWords] = words[threadIdx.x];
#pragma unroll
    for (int i = 0; i < kPackedVectors; i++) {
        const uint32_t at = threadIdx.x + i * kThreads;
        if (at >= num_vectors) break;
        uint32_t* block = shared + at / kPackedVectors * kBlockWords + 1 + at % kPackedVectors * 4;
        const Codes low = split_halves(four[i].x, four[i].y);
        const Codes high = split_halves(four[i].z, four[i].w);
        block[0] = low.first;
        block[1] = low.second;
        block[2] = high.first;
        block[3] = high.second;
    }
}

// The tile's blocks to consecutive words; 16 bytes at a time if `blocks` is a multiple of 16 bytes.
__device__ __forceinline__ void store_tile(const uint32_t* shared, uint32_t* blocks,
                                           uint32_t num_words, bool in_vectors) {
    uint32_t done = 0;
    if (in_vectors) {
        for (uint32_t i = threadIdx.x; i < num_words / 4; i += kThreads)
            reinterpret_cast<uint4*>(blocks)[i] = reinterpret_cast<const uint4*>(shared)[i];
        done = num_words & ~3u;
    }
    for (uint32_t i = done + threadIdx.x; i < num_words; i += kThreads) blocks[i] = shared[i];
}

__device__ __forceinline__ void load_tile(const uint32_t* blocks, uint32_t* shared,
                                          uint32_t num_words, bool in_vectors) {
    uint32_t done = 0;
    if (in_vectors) {
        uint4 four[(kTileVectors + kThreads - 1) / kThreads];
#pragma unroll
        for (int i = 0; i < (kTileVectors + kThreads - 1) / kThreads; i++) {
            const uint32_t at = threadIdx.x + i * kThreads;
            if (at < num_words / 4)
                four[i] = ptx::load_streaming(reinterpret_cast<const uint4*>(blocks) + at);
        }
#pragma unroll
        for (int i = 0; i < (kTileVectors + kThreads - 1) / kThreads; i++) {
            const uint32_t at = threadIdx.x + i * kThreads;
            if (at < num_words / 4) reinterpret_cast<uint4*>(shared)[at] = four[i];
        }
        done = num_words & ~3u;
    }
    for (uint32_t i = done + threadIdx.x; i < num_words; i += kThreads) shared[i] = blocks[i];
}

// One block of values per thread, byte by byte: for addresses that are multiples of nothing.
__device__ __forceinline__ void pack_bytes(const uint8_t* packed, const uint8_t* scales,
                                           const Tile& tile, uint32_t* shared) {
    if (threadIdx.x >= tile.count) return;
    const uint8_t* codes = packed + (tile.first + threadIdx.x) * kPackedBytes;
    uint32_t* block = shared + threadIdx.x * kBlockWords;
    block[0] = load_word(scales + (tile.first + threadIdx.x) * 4);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const Codes group = split_halves(load_word(codes + 8 * i), load_word(codes + 8 * i + 4));
        block[1 + 2 * i] = group.first;
        block[2 + 2 * i] = group.second;
    }
}

}  // namespace repack

extern "C" __global__ void __launch_bounds__(256)
    atlas_nvfp4_repack(const uint8_t* __restrict__ packed, const uint8_t* __restrict__ scales,
                       uint8_t* __restrict__ out_blocks, uint32_t n, uint32_t k) {
    using namespace repack;
    __shared__ alignas(16) uint32_t shared[kTileWords];
    const Tile tile(n, k);
    if (is_aligned(packed, 16) && is_aligned(scales, 4)) {
        pack_in_shared(packed, scales, tile, shared);
    } else {
        pack_bytes(packed, scales, tile, shared);
    }
    __syncthreads();
    uint32_t* blocks = reinterpret_cast<uint32_t*>(out_blocks) + tile.first * kBlockWords;
    store_tile(shared, blocks, tile.count * kBlockWords, is_aligned(out_blocks, 16));
}

extern "C" __global__ void __launch_bounds__(256)
    nvfp4_unpack_kernel(const uint8_t* __restrict__ blocks, uint8_t* __restrict__ packed,
                        uint8_t* __restrict__ scales, uint32_t n, uint32_t k) {
    using namespace repack;
    __shared__ alignas(16) uint32_t shared[kTileWords];
    const Tile tile(n, k);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(blocks) + tile.first * kBlockWords;
    load_tile(words, shared, tile.count * kBlockWords, is_aligned(blocks, 16));
    __syncthreads();
    const bool in_vectors = is_aligned(packed, 16) && is_aligned(scales, 4);
    // As in pack_in_shared.
    for (uint32_t at = threadIdx.x; at < tile.count * kPackedVectors; at += kThreads) {
        const uint32_t* block = shared + at / kPackedVectors * kBlockWords;
        const uint32_t* half = block + 1 + at % kPackedVectors * 4;
        const Codes low = layouts::to_natural({half[0], half[1]});
        const Codes high = layouts::to_natural({half[2], half[3]});
        uint8_t* out = packed + tile.first * kPackedBytes + at * 16;
        if (in_vectors) {
            *reinterpret_cast<uint4*>(out) =
                make_uint4(low.first, low.second, high.first, high.second);
        } else {
            store_word(out, low.first);
            store_word(out + 4, low.second);
            store_word(out + 8, high.first);
            store_word(out + 12, high.second);
        }
    }
    if (threadIdx.x < tile.count) {
        uint8_t* out = scales + (tile.first + threadIdx.x) * 4;
        const uint32_t word = shared[threadIdx.x * kBlockWords];
        if (in_vectors) {
            *reinterpret_cast<uint32_t*>(out) = word;
        } else {
            store_word(out, word);
        }
    }
}
