// W4A4 GEMM: out[m, n] = sum_k A[m, k] W[n, k], float32 accumulation, without a scale above the
// blocks' own unless `out_scale` or `row_scale` is given:
//
//   out[m, n] = round((sum * out_scale[n * out_scale_stride]) * row_scale[m])
//
// W: block_nvfp4 (n, k / 64, 36), rows w_stride blocks apart. A: block_fp4_mmq (ceil(k / 256), m,
// 144), 256-wide blocks of k a_stride rows apart. out: (m, n), rows out_stride elements apart;
// NVFP4_OUTPUT 0, 1, 2 = bfloat16, float16, float32. k % 64 == 0.
//
// Grid (ceil(n, 128), ceil(m, kTokens)), block (32, 8). Dynamic shared memory shared_bytes(kTokens).
//
// A block computes 128 features of kTokens tokens, each warp a part of them over all of k, in steps
// of 64, k ascending. Stages of two steps flow through shared memory by asynchronous copies.
//
// A step's products are added to the accumulators by the matrix instructions themselves. With
// NVFP4_DETERMINISTIC_KBLOCKS=1 each step starts from zero and is then added in float32, which is the
// order of the document's kernel.
//
// Weight rows lie 36 k / 64 bytes apart, so only 4-byte copies are aligned whatever k is.
//
// Source: spark_model/layers/ops/nvfp4_mmq.rs, nvfp4_mmq_gemm and nvfp4_mmq_gemm_tiled.
#pragma once

#include "mmq_fragments.cuh"
#include "mmq_mma.cuh"
#include "mmq_output.cuh"
#include "ptx.cuh"

#ifndef NVFP4_DETERMINISTIC_KBLOCKS
#define NVFP4_DETERMINISTIC_KBLOCKS 0
#endif

namespace mmq {

struct Problem {
    const uint8_t* w;
    const uint8_t* a;
    uint32_t n, m, k;
    uint32_t w_stride, a_stride;
};

// How 128 features by kTokens tokens are shared out among the 8 warps.
template <int kTokens>
struct Tile {
    static constexpr int kWarpsB = kTokens == 16 ? 1 : 2;
    static constexpr int kWarpsA = 8 / kWarpsB;
    static constexpr int kTilesA = kRows / kWarpsA / 16;
    static constexpr int kTilesB = kTokens / kWarpsB / 8;
    // As many stages as the launcher's shared memory holds: 4 at 16 tokens, else 3.
    static constexpr int kStages = shared_bytes(kTokens) / Stage<kTokens>::kBytes;
    static_assert(kStages >= 3, "");
};

// This thread's part of the copies that fill a stage.
template <int kTokens, bool kCheckRows>
class StageCopy {
    using S = Stage<kTokens>;
    static constexpr int kWeightParts = kRows / 16;
    static constexpr int kActParts = kTokens < 64 ? 1 : kTokens / 64;

   public:
    static constexpr int kParts = kWeightParts + kActParts + 2;

    __device__ __forceinline__ StageCopy(const Problem& p, uint32_t thread, uint32_t first_row,
                                         uint32_t first_token)
        : thread_(thread),
          row_bytes_(p.w_stride * layouts::kWeightBlockBytes),
          last_row_(p.n - 1 - first_row),
          num_blocks_(p.k / layouts::kWeightBlockValues),
          aligned_(reinterpret_cast<uint64_t>(p.a) % 16 == 0),
          act_step_(static_cast<uint64_t>(p.a_stride) * layouts::kActBlockBytes) {
        const uint8_t* w = p.w + static_cast<uint64_t>(first_row) * row_bytes_;
        uint32_t word = thread % 16;
        codes_ = w + word / 8 * layouts::kWeightBlockBytes + kBlockScaleBytes + word % 8 * 4;
        if (!kCheckRows) codes_ += static_cast<uint64_t>(thread / 16) * row_bytes_;
        uint32_t scale_row = kCheckRows ? min(thread / 2, last_row_) : thread / 2;
        scales_ = w + static_cast<uint64_t>(scale_row) * row_bytes_ +
                  thread % 2 * layouts::kWeightBlockBytes;
        act_ = p.a + static_cast<uint64_t>(first_token) * layouts::kActBlockBytes;
        uint32_t last_token = p.m - 1 - first_token;
#pragma unroll
        for (int i = 0; i < kActParts; ++i) {
            act_codes_[i] = min(thread / 4 + 64 * i, last_token) * layouts::kActBlockBytes +
                            kActScaleBytes + thread % 4 * 16;
        }
        act_scales_ = min(thread / 2, last_token) * layouts::kActBlockBytes +
                      thread % 2 * kBlockScaleBytes;
    }

    __device__ __forceinline__ bool aligned() const { return aligned_; }
    __device__ __forceinline__ uint32_t num_blocks() const { return num_blocks_; }

    // Copy number i, in [0, kParts), of the stage that the pointers are at. With kWhole the stage is
    // known to have both its blocks, and the activations to be aligned to 16 bytes.
    template <bool kWhole>
    __device__ __forceinline__ void part(int i, uint8_t* stage) const {
        if (i < kWeightParts) {
            if (!kWhole && block_ + thread_ % 16 / 8 >= num_blocks_) return;
            uint8_t* to = stage + S::kWeightCodes + code_word_offset(thread_ / 16, thread_ % 16);
            ptx::cp_async<4>(to + i * 16 * kCodeRowBytes, weight_codes(i));
        } else if (i < kWeightParts + kActParts) {
            int pass = i - kWeightParts;
            if (kTokens < 64 && thread_ >= kTokens * 4) return;
            if (!kWhole && block_ >= num_blocks_) return;
            uint8_t* to = stage + S::kActCodes + code_offset(thread_ / 4, thread_ % 4);
            copy16<kWhole>(to + pass * 64 * kCodeRowBytes,
                           act_ + (act_codes_[pass] + half_block() * kCodeRowBytes));
        } else if (i == kWeightParts + kActParts) {
            if (!kWhole && block_ + thread_ % 2 >= num_blocks_) return;
            ptx::cp_async<4>(stage + S::kWeightScales + thread_ * 4, scales_);
        } else {
            if (kTokens < 128 && thread_ >= kTokens * 2) return;
            if (!kWhole && block_ >= num_blocks_) return;
            ptx::cp_async<4>(stage + S::kActScales + thread_ * 4,
                             act_ + (act_scales_ + half_block() * kScaleRowBytes));
        }
    }

    template <bool kWhole>
    __device__ __forceinline__ void all(uint8_t* stage) const {
#pragma unroll
        for (int i = 0; i < kParts; ++i) part<kWhole>(i, stage);
    }

    // Moves the pointers to the next stage.
    __device__ __forceinline__ void advance() {
        codes_ += kStageBlocks * layouts::kWeightBlockBytes;
        scales_ += kStageBlocks * layouts::kWeightBlockBytes;
        block_ += kStageBlocks;
        if (half_block() == 0) act_ += act_step_;
    }

   private:
    // Which half of a block_fp4_mmq the stage is.
    __device__ __forceinline__ uint32_t half_block() const { return block_ / kStageBlocks % 2; }

    __device__ __forceinline__ const uint8_t* weight_codes(int i) const {
        uint32_t row = 16 * i;
        if (kCheckRows) row = min(thread_ / 16 + 16 * i, last_row_);
        return codes_ + static_cast<uint64_t>(row_bytes_) * row;
    }

    template <bool kWhole>
    __device__ __forceinline__ void copy16(uint8_t* to, const uint8_t* from) const {
        if (kWhole || aligned_) {
            ptx::cp_async<16>(to, from);
        } else {
#pragma unroll
            for (int i = 0; i < 16; i += 4) ptx::cp_async<4>(to + i, from + i);
        }
    }

    uint32_t thread_;
    uint32_t row_bytes_;  // fits, since w_stride = k / 64 < 2^26
    uint32_t last_row_;   // of the block's rows, the last that exists
    uint32_t num_blocks_;
    bool aligned_;
    uint32_t block_ = 0;  // first block of the stage
    const uint8_t *codes_, *scales_, *act_;
    uint32_t act_codes_[kActParts], act_scales_;
    uint64_t act_step_;
};

// Where a warp's operands lie in a stage.
template <int kTokens>
struct WarpView {
    using T = Tile<kTokens>;
    using S = Stage<kTokens>;
    using X = Operands<T::kTilesA, T::kTilesB>;
    uint32_t lane, first_row, first_token;
    uint32_t a_codes, b_codes, a_scales, b_scales;  // this lane's bytes of a stage

    __device__ __forceinline__ WarpView(uint32_t warp, uint32_t lane)
        : lane(lane),
          first_row(warp % T::kWarpsA * (16 * T::kTilesA)),
          first_token(warp / T::kWarpsA * (8 * T::kTilesB)) {
        a_codes = S::kWeightCodes + code_offset(first_row + lane % (16 * T::kTilesA), 0);
        b_codes = S::kActCodes + code_offset(first_token + lane % (8 * T::kTilesB), 0);
        a_scales = S::kWeightScales + (first_row + a_scale_of<T::kTilesA>(lane, 0)) * kScaleRowBytes;
        b_scales = S::kActScales + (first_token + b_scale_of<T::kTilesB>(lane, 0)) * kScaleRowBytes;
    }

    // Tiles 2 p and 2 p + 1 of A, chunk `half` of step `block`.
    __device__ __forceinline__ void load_a(X& x, int p, const uint8_t* stage, uint32_t block,
                                           uint32_t half) const {
        const uint8_t* row = stage + code_offset_of_chunk(a_codes, 2 * block + half);
        uint32_t r[4];
        load_matrices<2 * T::kTilesA>(r, row + p * 32 * kCodeRowBytes);
#pragma unroll
        for (int i = 0; i < 4 && i < 2 * T::kTilesA; ++i) {
            x.a[2 * p + a_matrix_tile(i)][a_matrix_register(i, half)] = r[i];
        }
    }
    // Tiles 4 q to 4 q + 3 of B, likewise.
    __device__ __forceinline__ void load_b(X& x, int q, const uint8_t* stage, uint32_t block,
                                           uint32_t half) const {
        const uint8_t* row = stage + code_offset_of_chunk(b_codes, 2 * block + half);
        uint32_t r[4];
        load_matrices<T::kTilesB>(r, row + q * 32 * kCodeRowBytes);
#pragma unroll
        for (int i = 0; i < 4 && i < T::kTilesB; ++i) {
            x.b[4 * q + b_matrix_tile(i)][b_matrix_register(half)] = r[i];
        }
    }
    __device__ __forceinline__ void load_a_scales(X& x, const uint8_t* stage, uint32_t block) const {
        const uint8_t* scales = stage + (a_scales + block * kBlockScaleBytes);
        constexpr int kStep = (NVFP4_USE_FP4_MMA ? 32 : 8) * kScaleRowBytes;
#pragma unroll
        for (int i = 0; i < X::kScalesA; ++i) x.a_scales[i] = word_at(scales + i * kStep);
    }
    __device__ __forceinline__ void load_b_scales(X& x, const uint8_t* stage, uint32_t block) const {
        const uint8_t* scales = stage + (b_scales + block * kBlockScaleBytes);
        constexpr int kStep = (NVFP4_USE_FP4_MMA ? 32 : 8) * kScaleRowBytes;
#pragma unroll
        for (int i = 0; i < X::kScalesB; ++i) x.b_scales[i] = word_at(scales + i * kStep);
    }
    __device__ __forceinline__ void load(X& x, const uint8_t* stage, uint32_t block) const {
        load_a_scales(x, stage, block);
        load_b_scales(x, stage, block);
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half) {
#pragma unroll
            for (int p = 0; p < (T::kTilesA + 1) / 2; ++p) load_a(x, p, stage, block, half);
#pragma unroll
            for (int q = 0; q < (T::kTilesB + 3) / 4; ++q) load_b(x, q, stage, block, half);
        }
    }

   private:
    template <int kMatrices>
    static __device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const uint8_t* row) {
        if constexpr (kMatrices == 2) {
            uint32_t two[2];
            ptx::ldmatrix_x2(two, row);
            r[0] = two[0];
            r[1] = two[1];
        } else {
            static_assert(kMatrices % 4 == 0, "");
            ptx::ldmatrix_x4(r, row);
        }
    }
    static __device__ __forceinline__ uint32_t word_at(const uint8_t* bytes) {
        return *reinterpret_cast<const uint32_t*>(bytes);
    }
};

// The block's loop over k.
template <int kTokens, bool kCheckRows>
class Mainloop {
    using T = Tile<kTokens>;
    using S = Stage<kTokens>;
    using X = Operands<T::kTilesA, T::kTilesB>;
    using Copy = StageCopy<kTokens, kCheckRows>;

   public:
    using Accumulators = float[T::kTilesA][T::kTilesB][4];

    __device__ __forceinline__ Mainloop(const Problem& p, uint8_t* shared,
                                        const WarpView<kTokens>& view, uint32_t thread)
        : view_(view),
          copy_(p, thread, blockIdx.x * kRows, blockIdx.y * kTokens),
          shared_(shared) {}

    __device__ __forceinline__ void run(Accumulators& acc) {
        uint32_t num_stages = (copy_.num_blocks() + 1) / kStageBlocks;
#pragma unroll
        for (int i = 0; i < T::kStages - 1; ++i) {
            copy_.template all<false>(shared_ + i * S::kBytes);
            ptx::cp_async_commit();
            copy_.advance();
        }
        uint32_t read = 0, fill = (T::kStages - 1) * S::kBytes;
        for (uint32_t stage = 0; stage < num_stages; ++stage) {
            step(acc, stage, shared_ + read, shared_ + fill);
            read = read == (T::kStages - 1) * S::kBytes ? 0 : read + S::kBytes;
            fill = fill == (T::kStages - 1) * S::kBytes ? 0 : fill + S::kBytes;
        }
    }

   private:
    __device__ __forceinline__ void step(Accumulators& acc, uint32_t stage, const uint8_t* read,
                                         uint8_t* fill) {
        // The stage to be read has landed, and every warp is done with the one to be filled.
        ptx::cp_async_wait<T::kStages - 2>();
        __syncthreads();
        copy_.template all<false>(fill);
        ptx::cp_async_commit();
        copy_.advance();
        uint32_t stop = min(copy_.num_blocks() - kStageBlocks * stage, 2u);
#pragma unroll 1
        for (uint32_t block = 0; block < stop; ++block) {
            X x;
            view_.load(x, read, block);
            multiply_block(acc, x);
        }
    }

    __device__ __forceinline__ void multiply_block(Accumulators& acc, const X& x) const {
        if constexpr (!NVFP4_DETERMINISTIC_KBLOCKS) {
            multiply(acc, x, view_.lane);
        } else {
            Accumulators sum = {};
            multiply(sum, x, view_.lane);
#pragma unroll
            for (int i = 0; i < T::kTilesA; ++i) {
#pragma unroll
                for (int j = 0; j < T::kTilesB; ++j) {
#pragma unroll
                    for (int v = 0; v < 4; ++v) acc[i][j][v] += sum[i][j][v];
                }
            }
        }
    }

    const WarpView<kTokens>& view_;
    Copy copy_;
    uint8_t* shared_;
};

template <int kTokens, bool kCheckRows, bool kScaled>
__device__ __forceinline__ void gemm(const Problem& p, const Output& out) {
    using T = Tile<kTokens>;
    extern __shared__ __align__(16) uint8_t shared[];
    uint32_t thread = threadIdx.y * 32 + threadIdx.x;
    WarpView<kTokens> view(threadIdx.y, threadIdx.x);
    float acc[T::kTilesA][T::kTilesB][4] = {};
    Mainloop<kTokens, kCheckRows>(p, shared, view, thread).run(acc);
    ptx::cp_async_wait<0>();
    __syncthreads();
    write_tile<kTokens, T::kWarpsB, kCheckRows, kScaled>(
        acc, out, reinterpret_cast<float*>(shared), view.first_row, view.first_token,
        kAccumulatorScale);
}

}  // namespace mmq
