// The matrix step of one warp: kTilesA x kTilesB tiles of 16 features by 8 tokens, 64 of k.
//
//   acc[i][j] += (A_i * scales of A_i) (B_j * scales of B_j)      float32, E2M1 codes, E4M3 scales
//
// Two bodies on the same operand registers (see mmq_fragments.cuh): the FP4 instruction where the
// target has it; elsewhere float16 instructions on codes that are decoded in registers, each once.
// There a decoded value is code * 2^-14 * scale: at most 6 significant bits, a multiple of 2^-24
// below 1, hence exact in float16; the accumulators then hold the sum times 2^-28.
//
// NVFP4_SOFTWARE_FP4_MMA=1 takes the first body on any target, with a function in place of the
// instruction, so that a GPU without it can run the loads and loops made for it.
#pragma once

#include "mmq_fragments.cuh"
#include "ptx.cuh"

#ifndef NVFP4_SOFTWARE_FP4_MMA
#define NVFP4_SOFTWARE_FP4_MMA 0
#endif
// Whether the first body is taken.
#define NVFP4_USE_FP4_MMA (NVFP4_HAS_FP4_MMA || NVFP4_SOFTWARE_FP4_MMA)

namespace mmq {

#if NVFP4_HAS_FP4_MMA
constexpr float kAccumulatorScale = 1.0f;
#else
constexpr float kAccumulatorScale = 268435456.0f;  // 2^28
#endif

// One warp's operands of a step. A lane's scale registers are words of 4 scales.
template <int kTilesA, int kTilesB>
struct Operands {
    uint32_t a[kTilesA][4];
    uint32_t b[kTilesB][2];
#if NVFP4_USE_FP4_MMA
    static constexpr int kScalesA = (kTilesA + 1) / 2;  // registers, two tiles each
    static constexpr int kScalesB = (kTilesB + 3) / 4;  // registers, four tiles each
#else
    static constexpr int kScalesA = 2 * kTilesA;  // rows g and g + 8 of each tile
    static constexpr int kScalesB = kTilesB;      // token g of each tile
#endif
    uint32_t a_scales[kScalesA];
    uint32_t b_scales[kScalesB];
};

// Row (token) of a lane's scale register i, counted from the warp's first.
template <int kTilesA>
__device__ constexpr uint32_t a_scale_of(uint32_t lane, int i) {
    return NVFP4_USE_FP4_MMA ? a_scale_row(lane, kTilesA) + 32 * i : lane / 4 + 8 * i;
}
template <int kTilesB>
__device__ constexpr uint32_t b_scale_of(uint32_t lane, int i) {
    return NVFP4_USE_FP4_MMA ? b_scale_token(lane, kTilesB) + 32 * i : lane / 4 + 8 * i;
}

#if !NVFP4_HAS_FP4_MMA

// Eight codes as float16 values times 2^-14: sign in bit 15, exponent and mantissa in bits 11 to 9.
// `odd` has those of bytes 1 and 3, `even` those of bytes 0 and 2, of the high (kHigh = 1) or the
// low nibbles. One select brings signs and magnitudes together, the mask drops all other bits.
template <int kHigh>
__device__ __forceinline__ void decode(uint32_t word, uint32_t& odd, uint32_t& even) {
    uint32_t merged = kHigh ? ptx::bit_select(0x80808080, word, word >> 3)
                            : ptx::bit_select(0x80808080, word << 4, word << 1);
    odd = merged & 0x8E008E00;
    even = merged << 8 & 0x8E008E00;
}

// The same times half kHalf of `scales`.
template <int kHigh, int kHalf>
__device__ __forceinline__ void decode(uint32_t word, uint32_t scales, uint32_t& odd,
                                       uint32_t& even) {
    decode<kHigh>(word, odd, even);
    odd = ptx::mul_f16x2_by_magnitude<kHalf>(odd, scales);
    even = ptx::mul_f16x2_by_magnitude<kHalf>(even, scales);
}

// One tile's products of a quarter of the step, 16 of k: the high or the low nibbles of registers
// 2 kHalf, 2 kHalf + 1 of A and kHalf of B.
template <int kHigh, int kHalf>
__device__ __forceinline__ void multiply_tile(float (&d)[4], const uint32_t (&a)[4],
                                              const uint32_t (&b)[2], const uint32_t (&sa)[2],
                                              uint32_t sb) {
    uint32_t x[4], y[2];
    decode<kHigh, kHalf>(a[2 * kHalf], sa[0], x[0], x[2]);
    decode<kHigh, kHalf>(a[2 * kHalf + 1], sa[1], x[1], x[3]);
    decode<kHigh, kHalf>(b[kHalf], sb, y[0], y[1]);
    ptx::mma_m16n8k16_f16(d, x, y);
}

// The scales of the groups whose codes a lane holds, bytes (0, 2) or (1, 3) of a scale word, as
// float16.
__device__ __forceinline__ uint32_t lane_scales(uint32_t scales, uint32_t lane) {
    return ptx::e4m3x2_to_f16x2(ptx::byte_permute(scales, 0, 0x20 + lane / 2 % 2 * 0x11));
}

#endif

#if NVFP4_USE_FP4_MMA

// One tile's products, scales from the lanes that the selectors name.
template <int kSelectorA, int kSelectorB>
__device__ __forceinline__ void fp4_mma(float (&d)[4], const uint32_t (&a)[4],
                                        const uint32_t (&b)[2], uint32_t scales_a,
                                        uint32_t scales_b) {
#if NVFP4_HAS_FP4_MMA
    ptx::mma_m16n8k64_e2m1<kSelectorA, kSelectorB>(d, a, b, scales_a, scales_b);
#else
    uint32_t lane = threadIdx.x, quad = lane & ~3u;
    uint32_t row_scales = __shfl_sync(0xFFFFFFFF, scales_a, quad + 2 * kSelectorA);
    uint32_t row8_scales = __shfl_sync(0xFFFFFFFF, scales_a, quad + 2 * kSelectorA + 1);
    uint32_t token_scales = __shfl_sync(0xFFFFFFFF, scales_b, quad + kSelectorB);
    uint32_t sa[2] = {lane_scales(row_scales, lane), lane_scales(row8_scales, lane)};
    uint32_t sb = lane_scales(token_scales, lane);
    multiply_tile<1, 0>(d, a, b, sa, sb);
    multiply_tile<0, 0>(d, a, b, sa, sb);
    multiply_tile<1, 1>(d, a, b, sa, sb);
    multiply_tile<0, 1>(d, a, b, sa, sb);
#endif
}

struct NoRefill {
    __device__ __forceinline__ void a(int) const {}
    __device__ __forceinline__ void b(int) const {}
    __device__ __forceinline__ void slot(int) const {}
};

// While a step multiplies, the registers of x can be filled with the next one's, each as soon as
// its last use is past: `refill.a(i)` loads tile i of A, `refill.b(p)` tiles 2 p and 2 p + 1 of B,
// the last of those that share a scale register that register too. `refill.slot(s)`, s in [0,
// tiles), is for other work.
template <int kTilesA, int kTilesB, class Refill = NoRefill>
__device__ __forceinline__ void multiply(float (&acc)[kTilesA][kTilesB][4],
                                         Operands<kTilesA, kTilesB>& x, uint32_t /*lane*/,
                                         const Refill& refill = Refill()) {
#pragma unroll
    for (int i = 0; i < kTilesA; ++i) {
#pragma unroll
        for (int j = 0; j < kTilesB; ++j) {
            float (&d)[4] = acc[i][j];
            uint32_t sa = x.a_scales[i / 2], sb = x.b_scales[j / 4];
            // clang-format off
            switch (i % 2 * 4 + j % 4) {
                case 0: fp4_mma<0, 0>(d, x.a[i], x.b[j], sa, sb); break;
                case 1: fp4_mma<0, 1>(d, x.a[i], x.b[j], sa, sb); break;
                case 2: fp4_mma<0, 2>(d, x.a[i], x.b[j], sa, sb); break;
                case 3: fp4_mma<0, 3>(d, x.a[i], x.b[j], sa, sb); break;
                case 4: fp4_mma<1, 0>(d, x.a[i], x.b[j], sa, sb); break;
                case 5: fp4_mma<1, 1>(d, x.a[i], x.b[j], sa, sb); break;
                case 6: fp4_mma<1, 2>(d, x.a[i], x.b[j], sa, sb); break;
                case 7: fp4_mma<1, 3>(d, x.a[i], x.b[j], sa, sb); break;
            }
            // clang-format on
            refill.slot(i * kTilesB + j);
            if (i == kTilesA - 1 && j % 2 == 1) refill.b(j / 2);
        }
        refill.a(i);
    }
}

#else

// The same for all tiles, each operand decoded once. Successive instructions share A, which spares
// half of their operand reads.
template <int kHigh, int kHalf, int kTilesA, int kTilesB>
__device__ __forceinline__ void multiply_part(float (&acc)[kTilesA][kTilesB][4],
                                              const Operands<kTilesA, kTilesB>& x,
                                              const uint32_t (&a_scales)[2 * kTilesA],
                                              const uint32_t (&b_scales)[kTilesB]) {
    uint32_t b[kTilesB][2];
#pragma unroll
    for (int j = 0; j < kTilesB; ++j) {
        decode<kHigh, kHalf>(x.b[j][kHalf], b_scales[j], b[j][0], b[j][1]);
    }
#pragma unroll
    for (int i = 0; i < kTilesA; ++i) {
        uint32_t a[4];
        decode<kHigh, kHalf>(x.a[i][2 * kHalf], a_scales[2 * i], a[0], a[2]);
        decode<kHigh, kHalf>(x.a[i][2 * kHalf + 1], a_scales[2 * i + 1], a[1], a[3]);
#pragma unroll
        for (int j = 0; j < kTilesB; ++j) ptx::mma_m16n8k16_f16(acc[i][j], a, b[j]);
    }
}

template <int kTilesA, int kTilesB>
__device__ __forceinline__ void multiply(float (&acc)[kTilesA][kTilesB][4],
                                         const Operands<kTilesA, kTilesB>& x, uint32_t lane) {
    uint32_t a_scales[2 * kTilesA], b_scales[kTilesB];
#pragma unroll
    for (int r = 0; r < 2 * kTilesA; ++r) a_scales[r] = lane_scales(x.a_scales[r], lane);
#pragma unroll
    for (int j = 0; j < kTilesB; ++j) b_scales[j] = lane_scales(x.b_scales[j], lane);
    multiply_part<1, 0>(acc, x, a_scales, b_scales);
    multiply_part<0, 0>(acc, x, a_scales, b_scales);
    multiply_part<1, 1>(acc, x, a_scales, b_scales);
    multiply_part<0, 1>(acc, x, a_scales, b_scales);
}

#endif

}  // namespace mmq
