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
// A block computes 128 features of kTokens tokens. Stages of 128 k flow through shared memory by
// asynchronous copies; of each stage, four warps take the first 64 k and four the second, and the
// two sums, over even and over odd steps, are added at the end. NVFP4_DETERMINISTIC_KBLOCKS=1 sums
// in the order of the document instead: each 64-wide step from zero, then added, k ascending.
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

// How kTokens tokens by 128 features are shared out.
template <int kTokens>
struct Tile {
    static constexpr int kGroups = NVFP4_DETERMINISTIC_KBLOCKS ? 1 : kStageBlocks;
    static constexpr int kGroupWarps = 8 / kGroups;
    static constexpr int kWarpsB = kTokens >= 64 ? 2 : 1;
    static constexpr int kWarpsA = kGroupWarps / kWarpsB;
    static constexpr int kTilesA = kRows / kWarpsA / 16;
    static constexpr int kTilesB = kTokens / kWarpsB / 8;
    static constexpr int kStages = kTokens == 16 ? 4 : 3;
    // Whether registers are filled one stage ahead: pays where multiplying is the limit, and takes
    // a stage of shared memory from the copies in flight.
    static constexpr bool kAhead = kTokens == 128 && kGroups == 2;
    static_assert(kStages * Stage<kTokens>::kBytes <= shared_bytes(kTokens), "");
};

// This thread's part of the copies that fill a stage.
template <int kTokens, bool kCheckRows>
class StageCopy {
    static constexpr int kWeightParts = kRows / 16;
    static constexpr int kActParts = kTokens < 64 ? 1 : kTokens / 64;

   public:
    static constexpr int kParts = kWeightParts + kActParts + 2;

    __device__ __forceinline__ StageCopy(const Problem& p, uint32_t thread, uint32_t first_row,
                                         uint32_t first_token)
        : thread_(thread),
          row_bytes_(p.w_stride * kWeightBlockBytes),
          last_row_(p.n - 1 - first_row),
          act_step_(static_cast<uint64_t>(p.a_stride) * kActBlockBytes) {
        const uint8_t* w = p.w + static_cast<uint64_t>(first_row) * row_bytes_;
        uint32_t word = thread % 16;
        code_row_ = thread / 16;
        codes_ = w + word / 8 * kWeightBlockBytes + 4 + word % 8 * 4;
        if (!kCheckRows) codes_ += static_cast<uint64_t>(code_row_) * row_bytes_;
        uint32_t scale_row = thread / 2;
        if (kCheckRows) scale_row = min(scale_row, last_row_);
        scales_ = w + static_cast<uint64_t>(scale_row) * row_bytes_ + thread % 2 * kWeightBlockBytes;
        act_ = p.a + static_cast<uint64_t>(first_token) * kActBlockBytes;
        uint32_t last_token = p.m - 1 - first_token;
#pragma unroll
        for (int i = 0; i < kActParts; ++i) {
            act_codes_[i] = min(thread / 4 + 64 * i, last_token) * kActBlockBytes + kActScaleBytes +
                            thread % 4 * 16;
        }
        act_scales_ = min(thread / 2, last_token) * kActBlockBytes + thread % 2 * 4;
    }

    // Copy number i, in [0, kParts), of the stage that the pointers are at. With kCheckK, blocks
    // from num_blocks on are left out.
    template <bool kCheckK>
    __device__ __forceinline__ void part(int i, uint8_t* stage, uint32_t num_blocks) const {
        using S = Stage<kTokens>;
        if (i < kWeightParts) {
            if (kCheckK && block_ + thread_ % 16 / 8 >= num_blocks) return;
            uint8_t* to = stage + S::kWeightCodes + code_word_offset(code_row_, thread_ % 16);
            ptx::cp_async<4>(to + i * 16 * kCodeRowBytes, weight_codes(i));
        } else if (i < kWeightParts + kActParts) {
            int pass = i - kWeightParts;
            if (kTokens < 64 && thread_ >= kTokens * 4) return;
            if (kCheckK && block_ >= num_blocks) return;
            uint8_t* to = stage + S::kActCodes + code_offset(thread_ / 4, thread_ % 4);
            ptx::cp_async<16>(to + pass * 64 * kCodeRowBytes,
                              act_ + (act_codes_[pass] + block_ / 2 % 2 * (kCodeRowBytes)));
        } else if (i == kWeightParts + kActParts) {
            if (kCheckK && block_ + thread_ % 2 >= num_blocks) return;
            ptx::cp_async<4>(
                stage + S::kWeightScales + thread_ % 2 * S::kWeightScalePitch + thread_ / 2 * 4,
                scales_);
        } else {
            if (kTokens < 128 && thread_ >= kTokens * 2) return;
            if (kCheckK && block_ >= num_blocks) return;
            ptx::cp_async<4>(stage + S::kActScales + thread_ % 2 * S::kActScalePitch + thread_ / 2 * 4,
                             act_ + (act_scales_ + block_ / 2 % 2 * 8));
        }
    }

    // Moves the pointers to the next stage.
    __device__ __forceinline__ void advance() {
        codes_ += kStageBlocks * kWeightBlockBytes;
        scales_ += kStageBlocks * kWeightBlockBytes;
        block_ += kStageBlocks;
        if (block_ % 4 == 0) act_ += act_step_;
    }

   private:
    __device__ __forceinline__ const uint8_t* weight_codes(int i) const {
        if (kCheckRows) {
            return codes_ + static_cast<uint64_t>(row_bytes_) * min(code_row_ + 16 * i, last_row_);
        }
        return codes_ + static_cast<uint64_t>(row_bytes_) * (16 * i);
    }

    uint32_t thread_;
    uint32_t row_bytes_;  // w_stride = k / 64 <= 2^26, so it fits
    uint32_t last_row_, code_row_;
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
    uint32_t lane, group, first_row, first_token;
    uint32_t a_codes, b_codes, a_scales, b_scales;  // this lane's bytes of a stage

    __device__ __forceinline__ WarpView(uint32_t warp, uint32_t lane) : lane(lane) {
        group = warp / T::kGroupWarps;
        first_row = warp % T::kWarpsA * (16 * T::kTilesA);
        first_token = warp % T::kGroupWarps / T::kWarpsA * (8 * T::kTilesB);
        a_codes = S::kWeightCodes + code_offset_of_block(code_offset(first_row + a_load_row(lane),
                                                                     a_load_half(lane)),
                                                         group);
        b_codes = S::kActCodes + code_offset_of_block(code_offset(first_token + b_load_row(lane),
                                                                  b_load_half(lane)),
                                                      group);
        a_scales = S::kWeightScales + (first_row + X::lane_a_scale(lane)) * 4;
        b_scales = S::kActScales + (first_token + X::lane_b_scale(lane)) * 4;
    }
    // `other` is 1 for the other step of the stage than the warp's own.
    __device__ __forceinline__ void load_a(X& x, int i, const uint8_t* stage, uint32_t other) const {
        ptx::ldmatrix_x4(x.a[i],
                         stage + code_offset_of_block(a_codes, other) + i * 16 * kCodeRowBytes);
    }
    __device__ __forceinline__ void load_b(X& x, int pair, const uint8_t* stage,
                                           uint32_t other) const {
        uint32_t r[4];
        ptx::ldmatrix_x4(r, stage + code_offset_of_block(b_codes, other) + pair * 16 * kCodeRowBytes);
        x.b[2 * pair][0] = r[0];
        x.b[2 * pair][1] = r[1];
        x.b[2 * pair + 1][0] = r[2];
        x.b[2 * pair + 1][1] = r[3];
    }
    __device__ __forceinline__ void load_a_scales(X& x, int i, const uint8_t* stage,
                                                  uint32_t other) const {
        const uint8_t* scales = stage + (a_scales + (group ^ other) * S::kWeightScalePitch);
        x.load_a_scales(reinterpret_cast<const uint32_t*>(scales), i, lane);
    }
    __device__ __forceinline__ void load_b_scales(X& x, int i, const uint8_t* stage,
                                                  uint32_t other) const {
        const uint8_t* scales = stage + (b_scales + (group ^ other) * S::kActScalePitch);
        x.load_b_scales(reinterpret_cast<const uint32_t*>(scales), i, lane);
    }
    __device__ __forceinline__ void load(X& x, const uint8_t* stage, uint32_t other) const {
#pragma unroll
        for (int i = 0; i < T::kTilesA; ++i) load_a(x, i, stage, other);
#pragma unroll
        for (int i = 0; i < T::kTilesB / 2; ++i) load_b(x, i, stage, other);
#pragma unroll
        for (int i = 0; i < X::kNumScalesA; ++i) load_a_scales(x, i, stage, other);
#pragma unroll
        for (int i = 0; i < X::kNumScalesB; ++i) load_b_scales(x, i, stage, other);
        x.prepare();
    }
};

// Fills the operand registers from the next stage, and the shared memory of the one after it.
template <int kTokens, bool kCheckRows, bool kCheckK>
struct StageRefill {
    static constexpr bool kActive = true;
    using X = typename WarpView<kTokens>::X;
    using Copy = StageCopy<kTokens, kCheckRows>;
    const WarpView<kTokens>& view;
    const Copy& copy;
    X& x;
    const uint8_t* next;
    uint8_t* fill;
    uint32_t num_blocks;

    __device__ __forceinline__ void a(int i) const { view.load_a(x, i, next, 0); }
    __device__ __forceinline__ void b(int pair) const { view.load_b(x, pair, next, 0); }
    __device__ __forceinline__ void a_scales(int i) const { view.load_a_scales(x, i, next, 0); }
    __device__ __forceinline__ void b_scales(int i) const { view.load_b_scales(x, i, next, 0); }
    __device__ __forceinline__ void slot(int s) const {
        if (s % 2 == 1 && s / 2 < Copy::kParts) copy.template part<kCheckK>(s / 2, fill, num_blocks);
    }
};

// The block's loop over k.
template <int kTokens, bool kCheckRows>
class Mainloop {
    // With the FP4 instruction addresses would be a third of the loop; they become constants.
    static constexpr bool kUnroll = NVFP4_HAS_FP4_MMA && Tile<kTokens>::kAhead;
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
          shared_(shared),
          num_blocks_(p.k / kBlockK) {}

    __device__ __forceinline__ void run(Accumulators& acc) {
        uint32_t num_stages = (num_blocks_ + 1) / 2;
        if (num_stages == 0) return;
#pragma unroll
        for (int i = 0; i < T::kStages - 1; ++i) {
            copy_all<true>(shared_ + i * S::kBytes);
            ptx::cp_async_commit();
            copy_.advance();
        }
        X x;
        if (T::kAhead) {
            ptx::cp_async_wait<T::kStages - 2>();
            __syncthreads();
            view_.load(x, shared_, 0);
        }
        uint32_t stage = 0;
        if constexpr (kUnroll) {
            // All copies of these trips are of whole stages.
            for (; 2 * (stage + 2 * T::kStages - 1) <= num_blocks_; stage += T::kStages) {
#pragma unroll
                for (uint32_t i = 0; i < T::kStages; ++i) {
                    step<false>(acc, x, stage + i, shared_ + (i + T::kAhead) % T::kStages * S::kBytes,
                                shared_ + (i + T::kStages - 1) % T::kStages * S::kBytes);
                }
            }
        }
        uint32_t read = T::kAhead * S::kBytes, fill = (T::kStages - 1) * S::kBytes;
        for (; stage < num_stages; ++stage) {
            step<true>(acc, x, stage, shared_ + read, shared_ + fill);
            read = read == (T::kStages - 1) * S::kBytes ? 0 : read + S::kBytes;
            fill = fill == (T::kStages - 1) * S::kBytes ? 0 : fill + S::kBytes;
        }
    }

   private:
    template <bool kCheckK>
    __device__ __forceinline__ void copy_all(uint8_t* to) {
#pragma unroll
        for (int i = 0; i < Copy::kParts; ++i) copy_.template part<kCheckK>(i, to, num_blocks_);
    }

    template <bool kCheckK>
    __device__ __forceinline__ void step(Accumulators& acc, X& x, uint32_t stage,
                                         const uint8_t* read, uint8_t* fill) {
        // The stage to be read has landed, and every warp is done with the one to be filled.
        ptx::cp_async_wait<T::kStages - 2 - T::kAhead>();
        __syncthreads();
        if constexpr (T::kAhead) {
            StageRefill<kTokens, kCheckRows, kCheckK> refill{view_, copy_, x, read, fill, num_blocks_};
            if (!kCheckK || 2 * stage + view_.group < num_blocks_) {
                multiply(acc, x, refill);
            }
            ptx::cp_async_commit();
        } else {
            copy_all<kCheckK>(fill);
            ptx::cp_async_commit();
#pragma unroll
            for (uint32_t i = 0; i < kStageBlocks / T::kGroups; ++i) {
                if (kCheckK && 2 * stage + (view_.group ^ i) >= num_blocks_) break;
                view_.load(x, read, i);
                multiply_block(acc, x);
            }
        }
        copy_.advance();
    }

    static __device__ __forceinline__ void multiply_block(Accumulators& acc, X& x) {
        if (!NVFP4_DETERMINISTIC_KBLOCKS) {
            multiply(acc, x, NoRefill());
            return;
        }
        Accumulators sum = {};
        multiply(sum, x, NoRefill());
#pragma unroll
        for (int i = 0; i < T::kTilesA; ++i) {
#pragma unroll
            for (int j = 0; j < T::kTilesB; ++j) {
#pragma unroll
                for (int v = 0; v < 4; ++v) acc[i][j][v] += sum[i][j][v];
            }
        }
    }

    const WarpView<kTokens>& view_;
    Copy copy_;
    uint8_t* shared_;
    uint32_t num_blocks_;
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
    write_tile<kTokens, T::kGroups, T::kWarpsB, kCheckRows, kScaled>(
        acc, out, reinterpret_cast<float*>(shared), view.group, view.first_row, view.first_token,
        kAccumulatorScale);
}

}  // namespace mmq
