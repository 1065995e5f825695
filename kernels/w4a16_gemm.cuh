// W4A16 GEMM: out[m, n] = sum_k a[m, k] W[n, k], float32 accumulation, and then as in
// mmq_output.cuh
//
//   out[m, n] = round((sum * out_scale[n * out_scale_stride]) * row_scale[m])
//
// W: block_nvfp4 (n, k / 64, 36), rows w_stride blocks apart. a: bfloat16 (m, k), rows a_stride
// elements apart. out: (m, n), rows out_stride elements apart. k % 64 == 0.
//
// Grid (ceil(n, 128), ceil(m, kTokens)), block (32, 8). Dynamic shared memory: Stages::kRingBytes
// for each of two groups of warps.
//
// A weight e2m1 * e4m3 has at most 6 significant bits, so it is exact in bfloat16: a decoded weight
// is code * 2^-126 * (scale * 2^119), and the accumulators hold the sum times 2^-7.
//
// A block computes 128 features of kTokens tokens; the stages and the order of the sum are those of
// mmq_gemm.cuh.
//
// Source: contract of our own beside nvfp4_mmq_gemm_tiled, for checkpoints calibrated as W4A16.
#pragma once

#include "layouts.cuh"
#include "mmq_copy.cuh"
#include "mmq_fragments.cuh"
#include "mmq_output.cuh"
#include "mmq_pipeline.cuh"
#include "ptx.cuh"

namespace w4a16 {

using mmq::kCodeRowBytes;
using mmq::kRows;

constexpr int kActRowBytes = 2 * layouts::kWeightBlockValues;  // 64 of k
constexpr float kAccumulatorScale = 128.0f;                    // 2^7

// Byte of 16-byte chunk `chunk`, in [0, 8), of token `token` in a stage. A load takes 8 bytes of
// chunks c and c ^ 2 of 4 consecutive tokens, 128 bytes in all; the exclusive or puts them into 32
// different banks.
__device__ constexpr uint32_t act_offset(uint32_t token, uint32_t chunk) {
    return token * kActRowBytes + (chunk ^ (token % 2 + token / 2 % 2 * 4)) * 16;
}

template <int kTokens>
struct Stages {
    static constexpr int kWeightCodes = 0;
    static constexpr int kWeightScales = kRows * kCodeRowBytes;
    static constexpr int kActs = kWeightScales + kRows * mmq::kBlockScaleBytes;
    static constexpr int kBytes = kActs + kTokens * kActRowBytes;
    // With 128 tokens, 2 of each group fit the 99 KB of compute capability 8.6, 8.9 and 12.x.
    static constexpr int kCount = kTokens == 128 ? 2 : kTokens == 64 ? 3 : 4;
    static constexpr int kRingBytes = kCount * kBytes;
};

struct Problem {
    const uint8_t* w;
    const bf16_t* a;
    uint32_t n, m, k;
    uint32_t w_stride, a_stride;
};

// This thread's part of the copies that fill a stage.
template <int kTokens, bool kCheckRows>
class StageCopy {
    using S = Stages<kTokens>;
    static constexpr int kThreads = mmq::Tile<kTokens>::kGroupThreads;
    static constexpr int kPassTokens = kThreads / 8;
    using Weights = mmq::WeightCopy<kThreads, kCheckRows, false>;

 public:
    __device__ __forceinline__ StageCopy(uint8_t* ring, const Problem& p, uint32_t thread,
                                         uint32_t group)
        : StageCopy(ring, p, thread, group, blockIdx.x * kRows, blockIdx.y * kTokens) {}

    // Copies step `step`, where the pointers are, into the stage at byte `stage`.
    __device__ __forceinline__ void operator()(uint32_t stage, uint32_t step) {
#pragma unroll
        for (int i = 0; i < Weights::kParts; ++i) weights_.part(i, stage, step < num_steps_);
#pragma unroll
        for (int i = 0; i < kTokens / kPassTokens; ++i) {
            bool exists = step < num_steps_ & thread_ / 8 + kPassTokens * i < num_tokens_;
            copy8(to_ + stage + i * kPassTokens * kActRowBytes,
                  from_ + static_cast<uint64_t>(stride_) * (kPassTokens * i), exists);
        }
        weights_.advance(mmq::Tile<kTokens>::kGroups);
        from_ += mmq::Tile<kTokens>::kGroups * layouts::kWeightBlockValues;
    }

 private:
    __device__ __forceinline__ StageCopy(uint8_t* ring, const Problem& p, uint32_t thread,
                                         uint32_t group, uint32_t first_row, uint32_t first_token)
        : weights_(ring + S::kWeightCodes, ring + S::kWeightScales,
                   p.w + static_cast<uint64_t>(first_row) * p.w_stride * layouts::kWeightBlockBytes,
                   p.w_stride, p.n - first_row, thread, group),
          thread_(thread),
          num_tokens_(p.m - first_token),
          num_steps_(p.k / layouts::kWeightBlockValues),
          stride_(p.a_stride),
          to_(ring + S::kActs + act_offset(thread / 8, thread % 8)),
          from_(p.a + static_cast<uint64_t>(first_token + thread / 8) * p.a_stride +
                group * layouts::kWeightBlockValues + thread % 8 * 8),
          aligned_(reinterpret_cast<uint64_t>(p.a) % 16 == 0 && p.a_stride % 8 == 0) {}

    __device__ __forceinline__ void copy8(uint8_t* to, const bf16_t* from, bool exists) const {
        if (aligned_) {
            ptx::cp_async<16>(to, from, exists ? 16 : 0);
        } else {
#pragma unroll 1
            for (int i = 0; i < 8; ++i) {
                reinterpret_cast<bf16_t*>(to)[i] = exists ? from[i] : static_cast<bf16_t>(0);
            }
        }
    }

    Weights weights_;
    uint32_t thread_, num_tokens_, num_steps_, stride_;
    uint8_t* to_;
    const bf16_t* from_;
    bool aligned_;
};

// Four codes, elements j = 0..3 of a word's high or low nibbles, as bfloat16 values times 2^-126:
// sign in bit 15, exponent and mantissa in bits 8 to 6. `bytes01` has the word's bytes 0 and 1 at
// bits 0 and 16. One select brings sign and magnitude together, the mask drops all other bits.
template <int kHigh>
__device__ __forceinline__ uint32_t decode2(uint32_t bytes) {
    uint32_t merged = kHigh ? ptx::bit_select(0x80008000, bytes << 8, bytes << 2)
                            : ptx::bit_select(0x80008000, bytes << 12, bytes << 6);
    return merged & 0x81C081C0;
}

// The scales of the groups whose codes a lane holds, bytes (0, 2) or (1, 3) of a scale word, times
// 2^119 as bfloat16. E4M3 bits at the top of bfloat16's mantissa and exponent are the value times
// 2^-120, subnormals included; adding 1 carries into bit 7 for 0x7F alone, which becomes NaN.
__device__ __forceinline__ uint32_t lane_scales(uint32_t scales, uint32_t lane) {
    uint32_t bytes = ptx::byte_permute(scales, 0, 0x4240 + lane / 2 % 2 * 0x0101) & 0x007F007F;
    uint32_t nan = ((bytes + 0x00010001) & 0x00800080) * 0xFF;
    uint32_t exact = ptx::mul_bf16x2(bytes << 4 | nan, 0x7B807B80);  // 2^120
    return ptx::mul_bf16x2(exact, 0x7B007B00);                       // 2^119
}

// One warp's part of a step: kTilesA x kTilesB tiles of 16 features by 8 tokens.
template <int kTokens>
class WarpStep {
    using T = mmq::Tile<kTokens>;
    using S = Stages<kTokens>;

 public:
    using Accumulators = float[T::kTilesA][T::kTilesB][4];

    __device__ __forceinline__ WarpStep(const uint8_t* ring, const mmq::WarpPlace<kTokens>& warp,
                                        uint32_t lane)
        : lane_(lane),
          codes_(S::kWeightCodes + mmq::code_offset(warp.first_row + lane, 0)),
          scales_(S::kWeightScales + (warp.first_row + lane / 4) * mmq::kBlockScaleBytes),
          acts_(S::kActs + act_offset(warp.first_token + lane / 4, lane / 2 % 2 * 2) +
                lane % 2 * 8),
          ring_(ring) {}

    __device__ __forceinline__ void operator()(Accumulators& acc, uint32_t at) const {
        const uint8_t* stage = ring_ + at;
        uint32_t scales[2 * T::kTilesA];
#pragma unroll
        for (int r = 0; r < 2 * T::kTilesA; ++r) {
            const uint8_t* word = stage + scales_ + 8 * r * mmq::kBlockScaleBytes;
            scales[r] = lane_scales(*reinterpret_cast<const uint32_t*>(word), lane_);
        }
        half<0>(acc, stage, scales);
        half<1>(acc, stage, scales);
    }

 private:
    // The 32 of k of groups 2 kHalf and 2 kHalf + 1.
    template <int kHalf>
    __device__ __forceinline__ void half(Accumulators& acc, const uint8_t* stage,
                                         const uint32_t (&scales)[2 * T::kTilesA]) const {
        uint32_t words[2 * T::kTilesA];
#pragma unroll
        for (int r = 0; r < 2 * T::kTilesA; r += 4) {
            uint32_t four[4];
            ptx::ldmatrix_x4(four, stage + (codes_ ^ kHalf * 16) + 8 * r * kCodeRowBytes);
#pragma unroll
            for (int i = 0; i < 4; ++i) words[r + i] = four[i];
        }
        product<1, kHalf>(acc, stage, words, scales);
        product<0, kHalf>(acc, stage, words, scales);
    }

    // One 16-wide product: lane 4 g + t has elements 16 (t / 2) + 8 kHigh + 4 (t % 2) + 0..3 of
    // the 32.
    template <int kHigh, int kHalf>
    __device__ __forceinline__ void product(Accumulators& acc, const uint8_t* stage,
                                            const uint32_t (&words)[2 * T::kTilesA],
                                            const uint32_t (&scales)[2 * T::kTilesA]) const {
        uint32_t a[T::kTilesA][4];
#pragma unroll
        for (int r = 0; r < 2 * T::kTilesA; ++r) {
            uint32_t low = ptx::byte_permute(words[r], 0, 0x4140);
            uint32_t high = ptx::byte_permute(words[r], 0, 0x4342);
            a[r / 2][r % 2] = ptx::mul_bf16x2_by_half<kHalf>(decode2<kHigh>(low), scales[r]);
            a[r / 2][2 + r % 2] = ptx::mul_bf16x2_by_half<kHalf>(decode2<kHigh>(high), scales[r]);
        }
#pragma unroll
        for (int j = 0; j < T::kTilesB; ++j) {
            const uint8_t* from = stage + (acts_ ^ (4 * kHalf + kHigh) * 16) + 8 * j * kActRowBytes;
            uint2 pair = *reinterpret_cast<const uint2*>(from);
            uint32_t b[2] = {pair.x, pair.y};
#pragma unroll
            for (int i = 0; i < T::kTilesA; ++i) ptx::mma_m16n8k16_bf16(acc[i][j], a[i], b);
        }
    }

    uint32_t lane_, codes_, scales_, acts_;  // this lane's bytes of a stage
    const uint8_t* ring_;
};

template <int kTokens, bool kCheckRows, bool kScaled>
__device__ __forceinline__ void gemm(const Problem& p, const mmq::Output& out) {
    using T = mmq::Tile<kTokens>;
    using S = Stages<kTokens>;
    extern __shared__ __align__(16) uint8_t shared[];
    uint32_t lane = threadIdx.x, thread = threadIdx.y * 32 + lane;
    mmq::WarpPlace<kTokens> warp(threadIdx.y);
    uint8_t* ring = shared + warp.group * S::kRingBytes;
    WarpStep<kTokens> multiply(ring, warp, lane);
    StageCopy<kTokens, kCheckRows> copy(ring, p, thread % T::kGroupThreads, warp.group);
    float acc[T::kTilesA][T::kTilesB][4] = {};
    uint32_t num_steps = p.k / layouts::kWeightBlockValues;
    if (num_steps > 0) {
        mmq::run_pipeline<T::kGroups, S::kCount, S::kBytes>(
            warp.group, num_steps, copy, [&](uint32_t stage) { multiply(acc, stage); });
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
    mmq::write_tile<kTokens, T::kGroups, T::kWarpsB, kCheckRows, kScaled>(
        acc, out, reinterpret_cast<float*>(shared), warp.group, warp.first_row, warp.first_token,
        kAccumulatorScale);
}

}  // namespace w4a16
