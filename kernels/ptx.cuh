// Every inline PTX instruction of the project, one small function each, named after what it does.
// Kernels call these names only, so that another implementation of this header (a CPU one, in the
// tests) can stand in for the hardware.
//
// Source: PTX ISA 8.8.
#pragma once

#include "types.cuh"

// The FP4 matrix instruction exists for the arch-specific and family targets of compute capability
// 12.x alone; __CUDA_ARCH__ is 1200 for plain sm_120 too, which lacks it.
#if defined(__CUDA_ARCH_FEAT_SM120_ALL) || \
    (defined(__CUDA_ARCH_FAMILY_SPECIFIC__) && __CUDA_ARCH_FAMILY_SPECIFIC__ / 100 == 12)
#define NVFP4_HAS_FP4_MMA 1
#else
#define NVFP4_HAS_FP4_MMA 0
#endif

namespace ptx {

// ---- memory ------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Starts an asynchronous copy of 4 or 16 bytes; both addresses are multiples of the size. Only the
// first `num_valid` bytes are read, the rest of the destination is zeroed.
template <int kBytes>
__device__ __forceinline__ void cp_async(void* shared, const void* global, int num_valid = kBytes) {
    static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16, "");
    if constexpr (kBytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
                     "l"(global), "r"(num_valid)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)),
                     "l"(global), "n"(kBytes), "r"(num_valid)
                     : "memory");
    }
}

__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's latest groups are still in flight.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// The same pointer into global memory, whose parts the compiler cannot see: it adds offsets to it,
// in one instruction, instead of taking sums apart and adding all parts at each use.
template <class T>
__device__ __forceinline__ T* held_in_register(T* pointer) {
    asm("" : "+l"(pointer));
    __builtin_assume(__isGlobal(pointer));
    return pointer;
}

// Waits until num_threads threads of the block, whole warps, have come to barrier `id`, in [1, 16);
// what they wrote before is then visible to all of them. __syncthreads has barrier 0.
__device__ __forceinline__ void barrier_sync(uint32_t id, uint32_t num_threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

// 16-byte load of data that no thread of the grid writes; not kept in L1.
__device__ __forceinline__ uint4 load_streaming(const uint4* pointer) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(pointer));
    return v;
}

// Four 8x8 tiles of 16-bit elements; lane l gives the 16-byte row l % 8 of tile l / 8.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(shared_row))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], const void* shared_row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(shared_address(shared_row))
                 : "memory");
}

// ---- bits and conversions ----------------------------------------------------------------------

// Bytes of {b, a} (a = bytes 0-3, b = 4-7) picked by the nibbles of `selector`.
__device__ __forceinline__ uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector));
    return d;
}

// Products of two pairs of float16 values.
__device__ __forceinline__ uint32_t mul_f16x2(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

// Both float16 values of `values`, each times |float16 half kHalf of `scales`|.
template <int kHalf>
__device__ __forceinline__ uint32_t mul_f16x2_by_magnitude(uint32_t values, uint32_t scales) {
    static_assert(kHalf == 0 || kHalf == 1, "");
    uint32_t d;
    if constexpr (kHalf == 0) {
        asm("{\n\t.reg .b16 low, high;\n\t.reg .b32 pair;\n\tmov.b32 {low, high}, %2;\n\t"
            "mov.b32 pair, {low, low};\n\tabs.f16x2 pair, pair;\n\tmul.rn.f16x2 %0, %1, pair;\n\t}"
            : "=r"(d)
            : "r"(values), "r"(scales));
    } else {
        asm("{\n\t.reg .b16 low, high;\n\t.reg .b32 pair;\n\tmov.b32 {low, high}, %2;\n\t"
            "mov.b32 pair, {high, high};\n\tabs.f16x2 pair, pair;\n\tmul.rn.f16x2 %0, %1, "
            "pair;\n\t}"
            : "=r"(d)
            : "r"(values), "r"(scales));
    }
    return d;
}

// Products of two pairs of bfloat16 values, subnormals included; fma with -0 is exact and exists
// from compute capability 8.0 on.
__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000));
    return d;
}

// Both bfloat16 values of `values`, each times bfloat16 half kHalf of `factors`.
template <int kHalf>
__device__ __forceinline__ uint32_t mul_bf16x2_by_half(uint32_t values, uint32_t factors) {
    static_assert(kHalf == 0 || kHalf == 1, "");
    uint32_t d;
    if constexpr (kHalf == 0) {
        asm("{\n\t.reg .b16 low, high;\n\t.reg .b32 pair;\n\tmov.b32 {low, high}, %2;\n\t"
            "mov.b32 pair, {low, low};\n\tfma.rn.bf16x2 %0, %1, pair, %3;\n\t}"
            : "=r"(d)
            : "r"(values), "r"(factors), "r"(0x80008000));
    } else {
        asm("{\n\t.reg .b16 low, high;\n\t.reg .b32 pair;\n\tmov.b32 {low, high}, %2;\n\t"
            "mov.b32 pair, {high, high};\n\tfma.rn.bf16x2 %0, %1, pair, %3;\n\t}"
            : "=r"(d)
            : "r"(values), "r"(factors), "r"(0x80008000));
    }
    return d;
}

// Both float16 values of `values`, each times float16 half kHalf of `factors`, plus those of
// `addends`.
template <int kHalf>
__device__ __forceinline__ uint32_t fma_f16x2_by_half(uint32_t values, uint32_t factors,
                                                      uint32_t addends) {
    static_assert(kHalf == 0 || kHalf == 1, "");
    uint32_t d;
    if constexpr (kHalf == 0) {
        asm("{\n\t.reg .b16 low, high;\n\t.reg .b32 pair;\n\tmov.b32 {low, high}, %2;\n\t"
            "mov.b32 pair, {low, low};\n\tfma.rn.f16x2 %0, %1, pair, %3;\n\t}"
            : "=r"(d)
            : "r"(values), "r"(factors), "r"(addends));
    } else {
        asm("{\n\t.reg .b16 low, high;\n\t.reg .b32 pair;\n\tmov.b32 {low, high}, %2;\n\t"
            "mov.b32 pair, {high, high};\n\tfma.rn.f16x2 %0, %1, pair, %3;\n\t}"
            : "=r"(d)
            : "r"(values), "r"(factors), "r"(addends));
    }
    return d;
}

// min(|a|, b) of each pair of float16 values; b where a is NaN.
__device__ __forceinline__ uint32_t min_magnitude_f16x2(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("{\n\t.reg .b32 pair;\n\tabs.f16x2 pair, %1;\n\tmin.f16x2 %0, pair, %2;\n\t}"
        : "=r"(d)
        : "r"(a), "r"(b));
    return d;
}

// (mask & a) | (~mask & b)
__device__ __forceinline__ uint32_t bit_select(uint32_t mask, uint32_t a, uint32_t b) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(d) : "r"(mask), "r"(a), "r"(b));
    return d;
}

// Two E4M3 bytes (bits 0-7 and 8-15) as float16 values, low byte in the low half; 0x7F is NaN. The
// sign of the result is that of the byte, or plus.
__device__ __forceinline__ uint32_t e4m3x2_to_f16x2(uint32_t bytes) {
#if __CUDA_ARCH__ >= 890
    uint32_t d;
    asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %1;\n\t"
        "cvt.rn.f16x2.e4m3x2 %0, low;\n\t}"
        : "=r"(d)
        : "r"(bytes));
    return d;
#else
    // E4M3 bits at the top of float16's mantissa and exponent are the value times 2^-8, subnormals
    // included; adding 1 carries into bit 7 for 0x7F alone, which becomes exponent 31.
    uint32_t magnitudes = byte_permute(bytes, 0, 0x4140) & 0x007F007F;
    uint32_t nan = ((magnitudes + 0x00010001) & 0x00800080) * 0xF8;
    return mul_f16x2((magnitudes << 7) | nan, 0x5C005C00);
#endif
}

__device__ __forceinline__ float f16_to_float(uint16_t bits) {
    float d;
    asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"(bits));
    return d;
}

__device__ __forceinline__ uint16_t float_to_f16(float value) {
    uint16_t d;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(d) : "f"(value));
    return d;
}

// low | high << 16; rounds to nearest even, above 65504 to infinity.
__device__ __forceinline__ uint32_t floats_to_f16x2(float low, float high) {
    uint32_t d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

// low | high << 16; rounds toward zero, above 65504 to 65504.
__device__ __forceinline__ uint32_t floats_to_f16x2_toward_zero(float low, float high) {
    uint32_t d;
    asm("cvt.rz.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

__device__ __forceinline__ void f16x2_to_floats(uint32_t pair, float& low, float& high) {
    asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\t"
        "cvt.f32.f16 %0, l;\n\tcvt.f32.f16 %1, h;\n\t}"
        : "=f"(low), "=f"(high)
        : "r"(pair));
}

// Rounds to nearest even; NaN becomes 0x7FFF.
__device__ __forceinline__ uint16_t float_to_bf16(float value) {
    uint16_t d;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(d) : "f"(value));
    return d;
}

// low | high << 16
__device__ __forceinline__ uint32_t floats_to_bf16x2(float low, float high) {
    uint32_t d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

// The larger and the smaller of each pair of values; NaN if one of them is.
__device__ __forceinline__ uint32_t max_nan_bf16x2(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

__device__ __forceinline__ uint32_t min_nan_bf16x2(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

__device__ __forceinline__ uint32_t max_nan_f16x2(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

__device__ __forceinline__ uint32_t min_nan_f16x2(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

__device__ __forceinline__ float max_nan(float a, float b) {
    float d;
    asm("max.NaN.ftz.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
    return d;
}

// The smaller of each pair of signed 16-bit integers.
__device__ __forceinline__ uint32_t min_s16x2(uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 900
    uint32_t d;
    asm("min.s16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
#else
    const int low_a = static_cast<int16_t>(a), low_b = static_cast<int16_t>(b);
    const int a32 = static_cast<int>(a), b32 = static_cast<int>(b);
    // The upper halves decide the order of the whole words unless they are equal.
    return byte_permute(static_cast<uint32_t>(low_a < low_b ? low_a : low_b),
                        static_cast<uint32_t>(a32 < b32 ? a32 : b32), 0x7610);
#endif
}

// low | high << 16
__device__ __forceinline__ uint32_t join_halves(uint16_t low, uint16_t high) {
    uint32_t d;
    asm("mov.b32 %0, {%1, %2};" : "=r"(d) : "h"(low), "h"(high));
    return d;
}

#if __CUDA_ARCH__ >= 900
// min(a + b, c) of each pair of unsigned 16-bit integers.
__device__ __forceinline__ uint32_t add_min_u16x2(uint32_t a, uint32_t b, uint32_t c) {
    return __viaddmin_u16x2(a, b, c);
}

// max(a + b, c) of each pair of signed 16-bit integers.
__device__ __forceinline__ uint32_t add_max_s16x2(uint32_t a, uint32_t b, uint32_t c) {
    return __viaddmax_s16x2(a, b, c);
}
#endif

#if __CUDA_ARCH__ >= 890
// Rounds to E4M3, nearest, ties to even, at most 448: low byte from a, the next from b; NaN is
// 0x7F.
__device__ __forceinline__ uint16_t floats_to_e4m3x2(float a, float b) {
    uint16_t bytes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %2, %1;" : "=h"(bytes) : "f"(a), "f"(b));
    return bytes;
}
#endif

__device__ __forceinline__ float reciprocal_approximate(float value) {
    float d;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(d) : "f"(value));
    return d;
}

// The largest value of the warp's 32 lanes, which must all be here.
__device__ __forceinline__ uint32_t warp_max(uint32_t value) {
    uint32_t d;
    asm volatile("redux.sync.max.u32 %0, %1, 0xFFFFFFFF;" : "=r"(d) : "r"(value));
    return d;
}

// ---- matrix instructions -----------------------------------------------------------------------
// Fragments of one warp, lane = 4 g + t: A holds rows g and g + 8, B column g, C and D rows g,
// g + 8 and columns 2 t, 2 t + 1.

// d[16, 8] += a[16, 16] b[16, 8], float16 operands, float32 accumulators.
__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4],
                                                 const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// d[16, 8] += a[16, 16] b[16, 8], bfloat16 operands, float32 accumulators.
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4],
                                                  const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#if NVFP4_HAS_FP4_MMA
// d[16, 8] += (a * scale_a)[16, 64] (b * scale_b)[64, 8], E2M1 operands with one E4M3 scale per 16
// of k. scale_a is taken from the lanes with t in {2 kSelectorA, 2 kSelectorA + 1} (row g from the
// even, row g + 8 from the odd one), scale_b from those with t == kSelectorB; byte i of a scale
// register belongs to k in [16 i, 16 i + 16).
template <int kSelectorA, int kSelectorB>
__device__ __forceinline__ void mma_m16n8k64_e2m1(float (&d)[4], const uint32_t (&a)[4],
                                                  const uint32_t (&b)[2], uint32_t scale_a,
                                                  uint32_t scale_b) {
    asm volatile(
        "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col"
        ".f32.e2m1.e2m1.f32.ue4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3}, {%10}, {0, %12}, {%11}, {0, %13};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(scale_a),
          "r"(scale_b), "n"(kSelectorA), "n"(kSelectorB));
}
#endif

}  // namespace ptx
