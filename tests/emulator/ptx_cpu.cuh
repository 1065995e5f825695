// CPU bodies behind the names of kernels/ptx.cuh.
#pragma once

#include "types.cuh"

// The driver defines it: 0 builds the portable path, 1 that of the FP4 matrix instruction.
#if NVFP4_HAS_FP4_MMA
#include <fragments.h>
#endif

// For what a whole warp computes at once: its memory is checked before.
#define EMU_FAST __attribute__((optimize("O2"), no_sanitize("thread", "undefined")))

namespace ptx {

// ---- memory ------------------------------------------------------------------------------------

template <int kBytes>
inline void cp_async(void* shared, const void* global, int num_valid = kBytes) {
    emu::async_copy(shared, global, kBytes, num_valid);
}

inline void cp_async_commit() { emu::async_commit(); }

template <int kPending>
inline void cp_async_wait() {
    emu::async_wait(kPending);
}

template <class T>
inline T* held_in_register(T* pointer) {
    return pointer;
}

inline void barrier_sync(uint32_t id, uint32_t num_threads) {
    if (id > 15 || num_threads % 32) emu::fail("barrier %u of %u threads", id, num_threads);
    emu::block_barrier(id, num_threads, 0, 0);
}

inline uint4 load_streaming(const uint4* pointer) { return *pointer; }

struct MatrixLoad {
    const void* row;
    uint32_t r[4];
};

// Register i of lane l holds the elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4 of tile i.
template <int kTiles>
EMU_FAST inline void run_ldmatrix(void* const* payloads, uint32_t) {
    for (int lane = 0; lane < 32; lane++) {
        for (int i = 0; i < kTiles; i++) {
            const void* row = static_cast<MatrixLoad*>(payloads[8 * i + lane / 4])->row;
            memcpy(&static_cast<MatrixLoad*>(payloads[lane])->r[i],
                   static_cast<const char*>(row) + 4 * (lane % 4), 4);
        }
    }
}

template <int kTiles>
inline void ldmatrix(const char* name, uint32_t (&r)[kTiles], const void* row) {
    if (emu::lane() < 8 * kTiles) {
        if (reinterpret_cast<uintptr_t>(row) % 16) emu::fail("misaligned row of %s", name);
        emu::check_access(row, 16, emu::Access::kRead);
    }
    MatrixLoad load{row, {}};
    emu::warp_collective(name, 0, ~0u, &load, run_ldmatrix<kTiles>);
    for (int i = 0; i < kTiles; i++) r[i] = load.r[i];
}

inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) { ldmatrix("ldmatrix_x4", r, row); }
inline void ldmatrix_x2(uint32_t (&r)[2], const void* row) { ldmatrix("ldmatrix_x2", r, row); }

// ---- bits and conversions ----------------------------------------------------------------------

inline uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t both = uint64_t(b) << 32 | a;
    uint32_t d = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t pick = selector >> 4 * i & 0xF;
        const uint32_t byte = both >> 8 * (pick & 7) & 0xFF;
        // The nibble's top bit asks for copies of the byte's sign.
        d |= (pick & 8 ? (byte & 0x80 ? 0xFFu : 0u) : byte) << 8 * i;
    }
    return d;
}

inline float f16_to_float(uint16_t bits) {
    const uint32_t magnitude = bits & 0x7FFF, sign = uint32_t(bits >> 15) << 31;
    if (magnitude > 0x7C00) return NAN;
    if (magnitude < 0x400) return __uint_as_float(__float_as_uint(magnitude * 0x1p-24f) | sign);
    const uint32_t bias = magnitude == 0x7C00 ? 255 - 31 : 127 - 15;
    return __uint_as_float((magnitude << 13) + (bias << 23) | sign);
}

// Rounds to the nearest, ties to even, or toward zero.
template <bool kNearest = true>
inline uint16_t double_to_f16(double value) {
    if (value != value) return 0x7FFF;
    const uint32_t sign = __builtin_signbit(value) ? 0x8000 : 0;
    const double magnitude = __builtin_fabs(value);
    if (magnitude >= 65520.0) return sign | (kNearest || magnitude == INFINITY ? 0x7C00 : 0x7BFF);
    // From 2^e on floats are multiples of 2^(e - 10); 2^10 of them carry into the exponent.
    const int e = magnitude < 0x1p-14 ? -14 : __builtin_ilogb(magnitude);
    const double units = __builtin_ldexp(magnitude, 10 - e);
    return sign | (((e + 14) << 10) + int(kNearest ? __builtin_nearbyint(units) : units));
}

inline uint16_t float_to_f16(float value) { return double_to_f16(value); }

inline uint32_t mul_f16x2(uint32_t a, uint32_t b) {
    auto half = [&](int shift) -> uint32_t {
        return float_to_f16(f16_to_float(a >> shift) * f16_to_float(b >> shift));
    };
    return half(16) << 16 | half(0);
}

template <int kHalf>
inline uint32_t mul_f16x2_by_magnitude(uint32_t values, uint32_t scales) {
    const uint32_t magnitude = scales >> 16 * kHalf & 0x7FFF;
    return mul_f16x2(values, magnitude << 16 | magnitude);
}

template <int kHalf>
inline uint32_t fma_f16x2_by_half(uint32_t values, uint32_t factors, uint32_t addends) {
    const double factor = f16_to_float(factors >> 16 * kHalf);
    auto half = [&](int shift) -> uint32_t {  // exact in float64 unless it overflows
        return double_to_f16(f16_to_float(values >> shift) * factor +
                             f16_to_float(addends >> shift));
    };
    return half(16) << 16 | half(0);
}

inline uint32_t floats_to_f16x2(float low, float high) {
    return uint32_t(float_to_f16(high)) << 16 | float_to_f16(low);
}

inline uint32_t floats_to_f16x2_toward_zero(float low, float high) {
    return uint32_t(double_to_f16<false>(high)) << 16 | double_to_f16<false>(low);
}

inline void f16x2_to_floats(uint32_t pair, float& low, float& high) {
    low = f16_to_float(pair);
    high = f16_to_float(pair >> 16);
}

inline uint32_t bit_select(uint32_t mask, uint32_t a, uint32_t b) {
    return (mask & a) | (~mask & b);
}

inline float e4m3(uint32_t byte) {
    const int exponent = byte >> 3 & 15, mantissa = byte & 7;
    const float value = exponent ? __builtin_ldexpf(8.0f + mantissa, exponent - 10)
                                 : __builtin_ldexpf(float(mantissa), -9);
    if ((byte & 0x7F) == 0x7F) return NAN;
    return byte & 0x80 ? -value : value;
}

inline uint32_t e4m3x2_to_f16x2(uint32_t bytes) {
    return uint32_t(float_to_f16(e4m3(bytes >> 8 & 0xFF))) << 16 | float_to_f16(e4m3(bytes & 0xFF));
}

inline uint16_t float_to_bf16(float value) {
    const uint32_t bits = __float_as_uint(value);
    return value != value ? 0x7FFF : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}

// By hand where the value is subnormal, which a conversion with flush-to-zero would lose.
inline double bf16_to_double(uint16_t bits) {
    if (bits & 0x7F80) return __uint_as_float(uint32_t(bits) << 16);
    return __builtin_ldexp(bits >> 15 ? -(bits & 127) : bits & 127, -133);
}

// The exact product of two values is normal in float32, or a multiple of 2^-133 at most once
// rounded.
inline uint16_t multiply_bf16(uint16_t a, uint16_t b) {
    const double product = bf16_to_double(a) * bf16_to_double(b);
    if (!(__builtin_fabs(product) < 0x1p-126)) return float_to_bf16(float(product));
    const uint16_t magnitude = __builtin_nearbyint(__builtin_fabs(product) * 0x1p133);
    return magnitude | ((a ^ b) & 0x8000);
}

inline uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
    return uint32_t(multiply_bf16(a >> 16, b >> 16)) << 16 | multiply_bf16(a, b);
}

template <int kHalf>
inline uint32_t mul_bf16x2_by_half(uint32_t values, uint32_t factors) {
    const uint32_t factor = factors >> 16 * kHalf & 0xFFFF;
    return mul_bf16x2(values, factor << 16 | factor);
}

inline uint32_t floats_to_bf16x2(float low, float high) {
    return uint32_t(float_to_bf16(high)) << 16 | float_to_bf16(low);
}

// The order of 16-bit floats as that of integers, -0 below +0. kInfinity are infinity's bits.
template <uint32_t kInfinity, bool kLarger>
inline uint32_t pick_pair(uint32_t a, uint32_t b) {
    uint32_t d = 0;
    for (int shift = 0; shift < 32; shift += 16) {
        const uint32_t x = a >> shift & 0xFFFF, y = b >> shift & 0xFFFF;
        auto key = [](uint32_t bits) { return bits >> 15 ? -int(bits & 0x7FFF) - 1 : int(bits); };
        const bool is_nan = (x & 0x7FFF) > kInfinity || (y & 0x7FFF) > kInfinity;
        d |= (is_nan ? 0x7FFF : (key(x) > key(y)) == kLarger ? x : y) << shift;
    }
    return d;
}

inline uint32_t max_nan_bf16x2(uint32_t a, uint32_t b) { return pick_pair<0x7F80, true>(a, b); }
inline uint32_t min_nan_bf16x2(uint32_t a, uint32_t b) { return pick_pair<0x7F80, false>(a, b); }
inline uint32_t max_nan_f16x2(uint32_t a, uint32_t b) { return pick_pair<0x7C00, true>(a, b); }
inline uint32_t min_nan_f16x2(uint32_t a, uint32_t b) { return pick_pair<0x7C00, false>(a, b); }

inline float max_nan(float a, float b) { return a != a || b != b ? NAN : fmaxf(a, b); }

inline uint32_t min_magnitude_f16x2(uint32_t a, uint32_t b) {
    auto half = [&](int shift) -> uint32_t {
        const uint32_t x = a >> shift & 0x7FFF, y = b >> shift & 0xFFFF;
        if ((y & 0x7FFF) > 0x7C00) return x > 0x7C00 ? 0x7FFF : x;
        return x > 0x7C00 || y >> 15 || y < x ? y : x;
    };
    return half(16) << 16 | half(0);
}

template <class T, class F>
inline uint32_t each_half(uint32_t a, uint32_t b, F f) {
    return uint32_t(uint16_t(f(T(a >> 16), T(b >> 16)))) << 16 | uint16_t(f(T(a), T(b)));
}

inline uint32_t min_s16x2(uint32_t a, uint32_t b) {
    return each_half<int16_t>(a, b, [](int x, int y) { return min(x, y); });
}

inline uint32_t add_min_u16x2(uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t sum = each_half<uint16_t>(a, b, [](int x, int y) { return x + y; });
    return each_half<uint16_t>(sum, c, [](int x, int y) { return min(x, y); });
}

inline uint32_t add_max_s16x2(uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t sum = each_half<int16_t>(a, b, [](int x, int y) { return x + y; });
    return each_half<int16_t>(sum, c, [](int x, int y) { return max(x, y); });
}

inline uint32_t float_to_e4m3(float value) {
    if (value != value) return 0x7F;
    const float magnitude = min(fabsf(value), 448.0f);
    const uint32_t sign = __builtin_signbit(value) ? 0x80 : 0, bits = __float_as_uint(magnitude);
    if (magnitude < __builtin_ldexpf(1.0f, -6))  // multiples of 2^-9
        return sign | uint32_t(__builtin_nearbyintf(__builtin_ldexpf(magnitude, 9)));
    return sign | ((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - ((127 - 7) << 3);
}

inline uint16_t floats_to_e4m3x2(float a, float b) {
    return float_to_e4m3(a) | float_to_e4m3(b) << 8;
}

inline uint32_t join_halves(uint16_t low, uint16_t high) { return uint32_t(high) << 16 | low; }

// As wrong as PTX allows, one unit in the last place either way: nobody may depend on that unit.
inline float reciprocal_approximate(float value) {
    const float exact = 1.0f / value;
    const uint32_t bits = __float_as_uint(exact), exponent = bits >> 23 & 255;
    if (exponent < 2 || exponent > 253) return exact;
    return __uint_as_float(bits + (__float_as_uint(value) * 0x9E3779B9u >> 30) % 3 - 1);
}

inline uint32_t warp_max(uint32_t value) {
    for (int step = 16; step > 0; step /= 2)
        value = max(value, __shfl_xor_sync(0xFFFFFFFF, value, step));
    return value;
}

// ---- matrix instructions -----------------------------------------------------------------------
// Sums are taken in float64 and rounded once to float32: the hardware's own rounding is not known.

struct Matrices {
    float* d;
    const uint32_t* a;
    const uint32_t* b;
    uint32_t scale_a, scale_b;
};

inline const Matrices& matrices(void* const* payloads, int lane) {
    return *static_cast<const Matrices*>(payloads[lane]);
}

template <double (*kDecode)(uint16_t)>
EMU_FAST inline void run_mma_m16n8k16(void* const* payloads, uint32_t) {
    double a[16][16], b[8][16];
    for (int lane = 0; lane < 32; lane++) {
        const int g = lane / 4, t = lane % 4;
        const Matrices& m = matrices(payloads, lane);
        for (int v = 0; v < 8; v++)
            a[g + v / 2 % 2 * 8][2 * t + v % 2 + v / 4 * 8] = kDecode(m.a[v / 2] >> v % 2 * 16);
        for (int v = 0; v < 4; v++)
            b[g][2 * t + v % 2 + v / 2 * 8] = kDecode(m.b[v / 2] >> v % 2 * 16);
    }
    for (int lane = 0; lane < 32; lane++) {
        for (int v = 0; v < 4; v++) {
            float& d = matrices(payloads, lane).d[v];
            double sum = d;
            for (int k = 0; k < 16; k++)
                sum += a[lane / 4 + v / 2 * 8][k] * b[lane % 4 * 2 + v % 2][k];
            d = float(sum);
        }
    }
}

inline double f16_to_double(uint16_t bits) { return f16_to_float(bits); }

inline void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    Matrices m{d, a, b, 0, 0};
    emu::warp_collective("mma_m16n8k16_f16", 0, ~0u, &m, run_mma_m16n8k16<f16_to_double>);
}

inline void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    Matrices m{d, a, b, 0, 0};
    emu::warp_collective("mma_m16n8k16_bf16", 0, ~0u, &m, run_mma_m16n8k16<bf16_to_double>);
}

#if NVFP4_HAS_FP4_MMA
inline float e2m1(uint32_t code) {
    constexpr float kLevels[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    return code & 8 ? -kLevels[code & 7] : kLevels[code & 7];
}

// The scales are unsigned: a set top bit is not looked at.
inline float ue4m3(uint32_t byte) { return e4m3(byte & 0x7F); }

// The lanes that the selectors leave out are never looked at.
template <int kSelectorA, int kSelectorB>
EMU_FAST inline void run_mma_m16n8k64(void* const* payloads, uint32_t) {
    float a[16][64], b[8][64], scale_a[16][4], scale_b[8][4];
    for (int lane = 0; lane < 32; lane++) {
        const Matrices& m = matrices(payloads, lane);
        for (int v = 0; v < 32; v++)
            a[kFragmentA[lane][v][0]][kFragmentA[lane][v][1]] = e2m1(m.a[v / 8] >> v % 8 * 4);
        for (int v = 0; v < 16; v++)
            b[kFragmentB[lane][v][0]][kFragmentB[lane][v][1]] = e2m1(m.b[v / 8] >> v % 8 * 4);
        for (int i = 0; i < 4; i++) {
            const auto& [row, row_k] = kFragmentScaleA[lane][i];
            const auto& [column, column_k] = kFragmentScaleB[lane][i];
            if (lane % 4 / 2 == kSelectorA) scale_a[row][row_k / 16] = ue4m3(m.scale_a >> 8 * i);
            if (lane % 4 == kSelectorB) scale_b[column][column_k / 16] = ue4m3(m.scale_b >> 8 * i);
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        for (int v = 0; v < 4; v++) {
            const auto& [row, column] = kFragmentC[lane][v];
            float& d = matrices(payloads, lane).d[v];
            double sum = d;
            for (int k = 0; k < 64; k++)
                sum += double(a[row][k] * scale_a[row][k / 16]) *
                       double(b[column][k] * scale_b[column][k / 16]);
            d = float(sum);
        }
    }
}

template <int kSelectorA, int kSelectorB>
inline void mma_m16n8k64_e2m1(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                              uint32_t scale_a, uint32_t scale_b) {
    static_assert(kSelectorA >= 0 && kSelectorA < 2 && kSelectorB >= 0 && kSelectorB < 4, "");
    Matrices m{d, a, b, scale_a, scale_b};
    emu::warp_collective("mma_m16n8k64_e2m1", 0, ~0u, &m, run_mma_m16n8k64<kSelectorA, kSelectorB>);
}
#endif

}  // namespace ptx
