// The matrix step of one warp: kTilesA x kTilesB tiles of 16 features by 8 tokens, 64 of k.
//
//   acc[i][j] += (A_i * scales of A_i) (B_j * scales of B_j)      float32, E2M1 codes, E4M3 scales
//
// Two bodies with the same operand registers (see mmq_fragments.cuh): the FP4 instruction where the
// target has it, elsewhere float16 instructions on codes that are decoded in registers. There a
// decoded value is code * 2^-14 * scale: at most 6 significant bits, a multiple of 2^-24 below 1,
// hence exact in float16; the accumulators then hold the sum times 2^-28.
//
// While one step multiplies, its operand registers are filled with the next one's, each as soon as
// its last use is past: `Refill` loads them with a(tile), b(pair of tiles), a_scales(i) and b_scales(i),
// i the index of a scale register; slot(s), s in [0, kSlots), is called evenly in between, for other
// work.
#pragma once

#include "mmq_fragments.cuh"
#include "ptx.cuh"

namespace mmq {

#if NVFP4_HAS_FP4_MMA
constexpr float kAccumulatorScale = 1.0f;
#else
constexpr float kAccumulatorScale = 268435456.0f;  // 2^28
#endif

struct NoRefill {
    static constexpr bool kActive = false;
    __device__ __forceinline__ void a(int) const {}
    __device__ __forceinline__ void a_scales(int) const {}
    __device__ __forceinline__ void b(int) const {}
    __device__ __forceinline__ void b_scales(int) const {}
    __device__ __forceinline__ void slot(int) const {}
};

#if NVFP4_HAS_FP4_MMA

template <int kTilesA, int kTilesB>
struct Operands {
    static constexpr int kNumScalesA = (kTilesA + 1) / 2;  // registers, two tiles each
    static constexpr int kNumScalesB = (kTilesB + 3) / 4;  // registers, four tiles each
    uint32_t a[kTilesA][4];
    uint32_t b[kTilesB][2];
    uint32_t a_scales[kNumScalesA];
    uint32_t b_scales[kNumScalesB];

    // Reads scale register i; `scales` is the word of the warp's first row plus lane_a_scale(lane).
    __device__ __forceinline__ void load_a_scales(const uint32_t* scales, int i, uint32_t) {
        a_scales[i] = scales[32 * i];
    }
    __device__ __forceinline__ void load_b_scales(const uint32_t* scales, int i, uint32_t) {
        b_scales[i] = scales[32 * i];
    }
    static __device__ __forceinline__ uint32_t lane_a_scale(uint32_t lane) {
        return kTilesA == 1 ? a_scale_row(lane) % 16 : a_scale_row(lane);
    }
    static __device__ __forceinline__ uint32_t lane_b_scale(uint32_t lane) {
        return b_scale_token(lane) % (8 * kTilesB);
    }
    __device__ __forceinline__ void prepare() {}
};

template <int kTilesA, int kTilesB>
constexpr int kSlots = kTilesA * kTilesB;

template <int kTilesA, int kTilesB, class Refill>
__device__ __forceinline__ void multiply(float (&acc)[kTilesA][kTilesB][4],
                                         Operands<kTilesA, kTilesB>& x, const Refill& refill) {
#pragma unroll
    for (int i = 0; i < kTilesA; ++i) {
#pragma unroll
        for (int j = 0; j < kTilesB; ++j) {
            // clang-format off
            uint32_t sa = x.a_scales[i / 2], sb = x.b_scales[j / 4];
            switch (i % 2 * 4 + j % 4) {
                case 0: ptx::mma_m16n8k64_e2m1<0, 0>(acc[i][j], x.a[i], x.b[j], sa, sb); break;
                case 1: ptx::mma_m16n8k64_e2m1<0, 1>(acc[i][j], x.a[i], x.b[j], sa, sb); break;
                case 2: ptx::mma_m16n8k64_e2m1<0, 2>(acc[i][j], x.a[i], x.b[j], sa, sb); break;
                case 3: ptx::mma_m16n8k64_e2m1<0, 3>(acc[i][j], x.a[i], x.b[j], sa, sb); break;
                case 4: ptx::mma_m16n8k64_e2m1<1, 0>(acc[i][j], x.a[i], x.b[j], sa, sb); break;
                case 5: ptx::mma_m16n8k64_e2m1<1, 1>(acc[i][j], x.a[i], x.b[j], sa, sb); break;
                case 6: ptx::mma_m16n8k64_e2m1<1, 2>(acc[i][j], x.a[i], x.b[j], sa, sb); break;
                case 7: ptx::mma_m16n8k64_e2m1<1, 3>(acc[i][j], x.a[i], x.b[j], sa, sb); break;
            }
            // clang-format on
            refill.slot(i * kTilesB + j);
            if (i == kTilesA - 1 && j % 2 == 1) refill.b(j / 2);
            if (i == kTilesA - 1 && (j % 4 == 3 || j == kTilesB - 1)) refill.b_scales(j / 4);
        }
        refill.a(i);
        if (i % 2 == 1 || i == kTilesA - 1) refill.a_scales(i / 2);
    }
}

#else

// Eight codes as float16 values times 2^-14: sign in bit 15, exponent and mantissa in bits 11 to 9.
// `odd` has those of bytes 1 and 3, `even` those of bytes 0 and 2, of the high (kNibble = 1) or the
// low nibbles. One select brings signs and magnitudes together, the mask drops all other bits.
template <int kNibble>
__device__ __forceinline__ void decode(uint32_t word, uint32_t& odd, uint32_t& even) {
    uint32_t merged = kNibble == 1 ? ptx::bit_select(0x80808080, word, word >> 3)
                                   : ptx::bit_select(0x80808080, word << 4, word << 1);
    odd = merged & 0x8E008E00;
    even = merged << 8 & 0x8E008E00;
}

// The four 16-wide products of a step: kPart / 2 is the word of the row (the first has groups 0 and
// 1, the second groups 2 and 3), kPart % 2 = 0 takes the high nibbles.
template <int kPart>
__device__ __forceinline__ void decode_scaled(uint32_t word, uint32_t scales, uint32_t& odd,
                                              uint32_t& even) {
    decode<1 - kPart % 2>(word, odd, even);
    odd = ptx::mul_f16x2_by_magnitude<kPart / 2>(odd, scales);
    even = ptx::mul_f16x2_by_magnitude<kPart / 2>(even, scales);
}

// Bytes (0, 2) or (1, 3) of a scale word: the groups whose codes a lane holds.
__device__ __forceinline__ uint32_t lane_scales(uint32_t scales, uint32_t lane) {
    uint32_t selector = 0x20 + (lane / 2 % 2) * 0x11;
    return ptx::e4m3x2_to_f16x2(ptx::byte_permute(scales, 0, selector));
}

template <int kTilesA, int kTilesB>
struct Operands {
    static constexpr int kNumScalesA = kTilesA;
    static constexpr int kNumScalesB = kTilesB;
    uint32_t a[kTilesA][4];
    uint32_t b[kTilesB][2];
    uint32_t a_scales[kTilesA][2];  // rows g, g + 8; float16 pairs
    uint32_t b_scales[kTilesB];
    uint32_t a_first[kTilesA][4];  // decoded for part 0
    uint32_t b_first[2];           // tile 0, decoded for part 0

    __device__ __forceinline__ void load_a_scales(const uint32_t* scales, int i, uint32_t lane) {
        a_scales[i][0] = lane_scales(scales[16 * i], lane);
        a_scales[i][1] = lane_scales(scales[16 * i + 8], lane);
    }
    __device__ __forceinline__ void load_b_scales(const uint32_t* scales, int i, uint32_t lane) {
        b_scales[i] = lane_scales(scales[8 * i], lane);
    }
    static __device__ __forceinline__ uint32_t lane_a_scale(uint32_t lane) { return a_row(lane, 0); }
    static __device__ __forceinline__ uint32_t lane_b_scale(uint32_t lane) { return b_token(lane); }
    template <int kPart>
    __device__ __forceinline__ void decode_a(uint32_t (&fragments)[kTilesA][4], int unit) const {
        int i = unit / 2, r = unit % 2;  // r = 1: row g + 8
        decode_scaled<kPart>(a[i][kPart / 2 * 2 + r], a_scales[i][r], fragments[i][r],
                             fragments[i][2 + r]);
    }
    template <int kPart>
    __device__ __forceinline__ void decode_b(uint32_t (&fragment)[2], int j) const {
        decode_scaled<kPart>(b[j][kPart / 2], b_scales[j], fragment[0], fragment[1]);
    }
    __device__ __forceinline__ void prepare() {
#pragma unroll
        for (int unit = 0; unit < 2 * kTilesA; ++unit) decode_a<0>(a_first, unit);
        decode_b<0>(b_first, 0);
    }
};

template <int kTilesA, int kTilesB>
constexpr int kSlots = 4 * kTilesB;

// One 16-wide product, with the next part's A and the next tile's B decoded between its
// instructions.
template <int kPart, int kTilesA, int kTilesB, class Refill>
__device__ __forceinline__ void multiply_part(float (&acc)[kTilesA][kTilesB][4],
                                              Operands<kTilesA, kTilesB>& x,
                                              const uint32_t (&a)[kTilesA][4],
                                              uint32_t (&a_next)[kTilesA][4], uint32_t (&b)[2],
                                              const Refill& refill) {
    constexpr int kNext = (kPart + 1) % 4;
    // In part 2 all of A is decoded in the first half, so that it can be refilled for part 3.
    constexpr int kUnits = kPart == 2 ? 4 * kTilesA / kTilesB : (2 * kTilesA + kTilesB - 1) / kTilesB;
#pragma unroll
    for (int j = 0; j < kTilesB; ++j) {
        uint32_t b_next[2];
        if (j + 1 < kTilesB) {
            x.template decode_b<kPart>(b_next, j + 1);
        } else if (kPart != 3 || Refill::kActive) {
            x.template decode_b<kNext>(b_next, 0);
        }
#pragma unroll
        for (int unit = j * kUnits; unit < (j + 1) * kUnits; ++unit) {
            if (unit < 2 * kTilesA && (kPart != 3 || Refill::kActive)) {
                x.template decode_a<kNext>(a_next, unit);
            }
        }
#pragma unroll
        for (int i = 0; i < kTilesA; ++i) ptx::mma_m16n8k16_f16(acc[i][j], a[i], b);
        refill.slot(kPart * kTilesB + j);
        if (kPart == 2 && j == (kTilesB - 1) / 2) {
#pragma unroll
            for (int i = 0; i < kTilesA; ++i) {
                refill.a(i);
                refill.a_scales(i);
            }
        }
        if (kPart == 3 && j % 2 == 0) {
            refill.b(j / 2);
            refill.b_scales(j);
            refill.b_scales(j + 1);
        }
        b[0] = b_next[0];
        b[1] = b_next[1];
    }
}

template <int kTilesA, int kTilesB, class Refill>
__device__ __forceinline__ void multiply(float (&acc)[kTilesA][kTilesB][4],
                                         Operands<kTilesA, kTilesB>& x, const Refill& refill) {
    uint32_t a_other[kTilesA][4];
    multiply_part<0>(acc, x, x.a_first, a_other, x.b_first, refill);
    multiply_part<1>(acc, x, a_other, x.a_first, x.b_first, refill);
    multiply_part<2>(acc, x, x.a_first, a_other, x.b_first, refill);
    multiply_part<3>(acc, x, a_other, x.a_first, x.b_first, refill);
}

#endif

}  // namespace mmq
