// The search of scale_search.cuh for groups of bf16 values, rounding nearest_low: most candidates
// are ruled out by float16 arithmetic, and only what is left is computed in float32.
//
// In float16, times a power of two, the differences |v| - q s are exact: |v| has 8 significant
// bits, and so has what is left of it. Their squares are rounded, and the tensor cores add them up
// in float32. Such a sum is off by less than 1.01 * 2^-11 of itself + 2^-20, so a candidate is
// beaten if its sum is above the smallest by more than twice that.
#pragma once

#include "scale_search.cuh"

namespace search {

// Sums over the numbers of one lane, for all lanes of a warp, two at a time. Column n of the matrix
// product's B holds numbers of the lanes 4 n .. 4 n + 3; row 4 c + t of A, for sum c, picks those
// of lane 4 n + t. The other eight rows are zero. All numbers must be finite: rows multiply those
// of other lanes by zero.
class LaneSums {
 public:
    __device__ __forceinline__ LaneSums() : lane_(threadIdx.x % 32) {
        constexpr uint32_t kOnes = 0x3C003C00;
        // Lane 4 r + t holds columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of row r of A.
        const bool picks = lane_ / 4 % 4 == lane_ % 4;
        ones_[0] = picks && lane_ < 16 ? kOnes : 0;
        ones_[1] = picks && lane_ >= 16 ? kOnes : 0;
    }

    // Adds four float16 numbers to sum kSum, 0 or 1.
    template <int kSum>
    __device__ __forceinline__ void add(float (&sums)[4], const uint32_t (&numbers)[2]) const {
        ptx::mma_m16n8k16_f16(sums, {ones_[kSum], 0, ones_[kSum], 0}, numbers);
    }

    // This lane's sum kSum.
    template <int kSum>
    __device__ __forceinline__ float own(const float (&sums)[4]) const {
        const int source = 16 * kSum + 4 * (lane_ % 4) + lane_ / 8;
        const float even = __shfl_sync(0xFFFFFFFF, sums[0], source);
        const float odd = __shfl_sync(0xFFFFFFFF, sums[1], source);
        return lane_ / 4 % 2 ? odd : even;
    }

 private:
    uint32_t lane_;
    uint32_t ones_[2];
};

// Adds the squares of the differences under a scale to sum kSum.
template <int kSum>
__device__ __forceinline__ void add_squares(const Magnitudes& a, uint32_t byte, uint32_t half,
                                            const LaneSums& lanes, float (&sums)[4]) {
    const Candidate candidate(byte, a.factor);
#pragma unroll
    for (int j = 0; j < kGroupSize / 2; j += 2) {
        uint32_t squares[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t pair = a.pairs[j + i];
            const uint32_t codes = candidate.codes(pair, half);
            const uint32_t difference = ptx::fma_f16x2_by_half<1>(codes, candidate.halves, pair);
            squares[i] = ptx::mul_f16x2(difference, difference);
        }
        lanes.add<kSum>(sums, squares);
    }
}

// The candidates that may have the smallest error.
struct Rivals {
    float errors[kNumCandidates];
    float limit;  // for errors: up to here they may
    bool is_one;
    uint32_t byte;  // that one

    __device__ __forceinline__ Rivals(const Magnitudes& a, uint32_t center, uint32_t half) {
        const LaneSums lanes;
        float sums[3][4] = {};
        add_squares<0>(a, candidate_byte(center, 0), half, lanes, sums[0]);
        add_squares<1>(a, candidate_byte(center, 1), half, lanes, sums[0]);
        add_squares<0>(a, candidate_byte(center, 2), half, lanes, sums[1]);
        add_squares<1>(a, candidate_byte(center, 3), half, lanes, sums[1]);
        add_squares<0>(a, candidate_byte(center, 4), half, lanes, sums[2]);
        errors[0] = lanes.own<0>(sums[0]);
        errors[1] = lanes.own<1>(sums[0]);
        errors[2] = lanes.own<0>(sums[1]);
        errors[3] = lanes.own<1>(sums[1]);
        errors[4] = lanes.own<0>(sums[2]);
        float least = errors[0];
#pragma unroll
        for (int i = 1; i < kNumCandidates; i++) least = fminf(least, errors[i]);
        limit = __fmaf_rn(least, 1.0f + 0x1.05p-10f, 0x1p-18f);
        // A one for each, above the offset of the last. One out of range is not alone.
        constexpr uint32_t kOne = 16;
        uint32_t found = 0;
#pragma unroll
        for (int i = 0; i < kNumCandidates; i++) {
            if (errors[i] <= limit) found += kOne + (i % 2 ? 2 - (i + 1) / 2 : 2 + i / 2);
        }
        is_one = found < 2 * kOne;
        byte = center + found - kOne - 2;
    }
};

// The rival with the least error in float32.
__device__ __forceinline__ uint32_t best_rival(const float (&v)[kGroupSize], const Magnitudes& a,
                                               uint32_t center, uint32_t half,
                                               const Rivals& rivals) {
    float best = kNoError;
    uint32_t kept = 0;
#pragma unroll
    for (int i = 0; i < kNumCandidates; i++) {
        if (rivals.errors[i] <= rivals.limit) {
            const uint32_t byte = candidate_byte(center, i);
            const float error = squared_error(v, a, byte, half);
            if (error < best) kept = byte;
            best = fminf(error, best);
        }
    }
    return kept;
}

}  // namespace search

// Quantizes 16 bf16 values, in pairs. All lanes of a warp call it together.
__device__ __forceinline__ QuantizedGroup quantize_bf16_group_search(const uint32_t (&pairs)[8]) {
    uint32_t upper[8];
    uint32_t largest = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        upper[j] = pairs[j] & ~search::kSigns;
        largest = ptx::max_nan_bf16x2(largest, upper[j]);
    }
    largest = ptx::max_nan_bf16x2(largest, largest << 16);
    const float amax = __uint_as_float(largest & 0xFFFF0000);
    // Up to 32 times the largest scale the differences are exact. Not for NaN.
    const bool is_ordinary = amax < 8192.0f;
    const uint32_t half = search::half_fields(amax);
    search::Magnitudes magnitudes(upper, amax);
    uint32_t center = center_byte(amax);
    if (!is_ordinary) {  // any numbers that keep the sums finite
        center = 0;
        magnitudes.factor = 1.0f;
    }
    const search::Rivals rivals(magnitudes, center, half);
    float v[kGroupSize];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        v[2 * j] = __uint_as_float(pairs[j] << 16);
        v[2 * j + 1] = __uint_as_float(pairs[j] & 0xFFFF0000);
    }
    if (!is_ordinary) return quantize_group_search<kNearestLow>(v);
    uint32_t byte = rivals.byte;
    if (amax <= 0x1p-11f) {
        byte = 0;  // all codes are 0 under any scale
    } else if (!rivals.is_one) {
        byte = search::best_rival(v, magnitudes, center, half, rivals);
    }
    return search::encode(v, byte);
}
