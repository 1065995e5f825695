// silu(min(gate * gate_scale, L)) of bf16 gates by table: under one scale there are 2^16 values of
// it, and all but a few gates lie in 32 binades.
//
// Source: swiglu.cuh.
#pragma once

#include "swiglu.cuh"

namespace swiglu {

// The gates of either sign from 2^-27 / |gate_scale| to about 2^5 / |gate_scale|, in shared memory.
class SiluTable {
 public:
    static constexpr uint32_t kEntries = 8192;

    // Called by the whole block, which must not look anything up before a barrier.
    __device__ __forceinline__ SiluTable(float* entries, float gate_scale) : entries_(entries) {
        constexpr int kBias = 127, kTop = 4;  // |gate * gate_scale| is below 2^(kTop + 1)
        const int scale_exponent =
            static_cast<int>(__float_as_uint(gate_scale) >> 23 & 0xFF) - kBias;
        const int lowest = kBias + kTop - scale_exponent - (kBinades - 1);
        // Exponents from 1 on, since 0 is that of zero and subnormals, to 254.
        lowest_ = static_cast<uint32_t>(min(max(lowest, 1), 255 - kBinades)) * 128;
        for (uint32_t i = threadIdx.x; i < kEntries; i += blockDim.x) {
            // Undoes `offset`: the lower bits were combined with those three places further up.
            const uint32_t bits = i & kMask;
            const uint32_t magnitude = lowest_ + (bits ^ bits >> 3 ^ bits >> 6 ^ bits >> 9);
            const uint32_t sign = i / (kMask + 1);
            entries[i] = silu_any(__uint_as_float(magnitude << 16 | sign << 31) * gate_scale);
        }
    }

    // Two gates as places in the table: 16 bits each, the sign, three zeros if the gate is in the
    // table, the distance from the lowest magnitude.
    __device__ __forceinline__ uint32_t places(uint32_t pair) const {
        return pair - lowest_ * 0x00010001;
    }
    static constexpr uint32_t kOutside = 0x70007000;

    __device__ __forceinline__ void look_up(uint32_t places, float& low, float& high) const {
        low = at(places << 2 ^ places >> 1);
        high = at(places >> 14 ^ places >> 17);
    }

 private:
    static constexpr int kBinades = 32;
    static constexpr uint32_t kMask = kBinades * 128 - 1;
    static_assert(kEntries == 2 * (kMask + 1), "");

    // A place p has entry (p ^ p >> 3) mod 2^13: that keeps places apart, and brings the sign down
    // to the others. `offset` is the entry's, in bytes, with other bits around it.
    __device__ __forceinline__ float at(uint32_t offset) const {
        return entries_[(offset & 4 * (kEntries - 1)) / 4];
    }

    const float* entries_;
    uint32_t lowest_;
};

// As silu_mul, 16 values at a time.
__device__ __forceinline__ void silu_mul_by_table(const SiluTable& table, const uint32_t (&gate)[8],
                                                  const uint32_t (&up)[8], float gate_scale,
                                                  float up_scale, float (&h)[16]) {
    uint32_t places[8];
    uint32_t all = 0;
    float u[16];
    float u_max = 0.0f;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        places[j] = table.places(gate[j]);
        all |= places[j];
        u[2 * j] = low_half(up[j]) * up_scale;
        u[2 * j + 1] = high_half(up[j]) * up_scale;
    }
#pragma unroll
    for (int i = 0; i < 16; i++) u_max = fmaxf(u_max, fabsf(u[i]));  // NaN is ignored
    if ((all & SiluTable::kOutside) == 0 && u_max <= kModerateUp) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float low, high;
            table.look_up(places[j], low, high);
            h[2 * j] = low * u[2 * j];
            h[2 * j + 1] = high * u[2 * j + 1];
        }
    } else {
        silu_mul<8>(gate, up, gate_scale, up_scale, h);
    }
}

}  // namespace swiglu
