// NVFP4 codes and scales back to values.
//
//     out[m, n] = (e2m1(codes[m, n]) * e4m3(scales[m, n / 16])) * gsa[m * gsa_stride]
//
// The first product is exact in float32, the second is rounded, then the result to the output type.
// codes [M, N / 2], element 2 j in the low nibble of byte j; scales [M, N / 16] E4M3 bytes, or with
// NVFP4_SCALE_LAYOUT 1 in 128x4 order; the top bit of a scale is ignored, 0x7F gives NaN. gsa [M]
// fp32, or [1] with gsa_stride 0. out [M, N] bf16 (NVFP4_OUTPUT 0), fp16 (1) or fp32 (2).
//
// Block: blockDim.y rows by blockDim.x threads; thread tx takes every blockDim.x-th 8 columns of
// its row, from block to block of gridDim.y. Grid: (ceil(M / blockDim.y), y, 1). No shared memory.
#include "formats.cuh"

#ifndef NVFP4_OUTPUT
#define NVFP4_OUTPUT 0
#endif
#ifndef NVFP4_SCALE_LAYOUT
#define NVFP4_SCALE_LAYOUT 0
#endif

#if NVFP4_OUTPUT == 0
typedef bf16_t OutputValue;
#elif NVFP4_OUTPUT == 1
typedef fp16_t OutputValue;
#else
typedef float OutputValue;
#endif

constexpr int kCodesPerWord = 8;

constexpr int kOutputWords = kCodesPerWord * sizeof(OutputValue) / 4;

// 8 values in the output type.
struct OutputWords {
    uint32_t words[kOutputWords];
};

// NaN has one pattern, as in the 16-bit types.
__device__ __forceinline__ uint32_t float_bits(float value) {
    return value == value ? __float_as_uint(value) : 0x7FFFFFFF;
}

// `codes` holds element i in nibble i.
__device__ __forceinline__ OutputWords decode(uint32_t codes, float scale, float gsa) {
    // A code's magnitude at the top of float16's mantissa is its value times 2^-14, 0.5 as a
    // subnormal: elements 0 and 4 in the halves of one word, then 1 and 5, 2 and 6, 3 and 7.
    const float scaled = scale * 16384.0f;
    float value[kCodesPerWord];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t nibbles = codes >> 4 * i;
        const uint32_t pair = (nibbles & 0x00080008) << 12 | (nibbles & 0x00070007) << 9;
        const float low = ptx::f16_to_float(static_cast<uint16_t>(pair));
        const float high = ptx::f16_to_float(static_cast<uint16_t>(pair >> 16));
        value[i] = low * scaled * gsa;
        value[i + 4] = high * scaled * gsa;
    }
    OutputWords result;
#pragma unroll
    for (int i = 0; i < kCodesPerWord / 2; i++) {
#if NVFP4_OUTPUT == 0
        result.words[i] = ptx::floats_to_bf16x2(value[2 * i], value[2 * i + 1]);
#elif NVFP4_OUTPUT == 1
        result.words[i] =
            ptx::join_halves(ptx::float_to_f16(value[2 * i]), ptx::float_to_f16(value[2 * i + 1]));
#else
        result.words[2 * i] = float_bits(value[2 * i]);
        result.words[2 * i + 1] = float_bits(value[2 * i + 1]);
#endif
    }
    return result;
}

__device__ __forceinline__ int64_t scale_offset(int64_t m, uint32_t c, uint32_t num_groups) {
#if NVFP4_SCALE_LAYOUT == 1
    const uint32_t row = static_cast<uint32_t>(m & 127);
    const int64_t tile = (m >> 7) * ((num_groups + 3) / 4) + c / 4;  // 128 rows by 4 scales
    return tile * 512 + row % 32 * 16 + row / 32 * 4 + c % 4;
#else
    return m * num_groups + c;
#endif
}

// Codes lie at multiples of 4 bytes and results at multiples of 16 if kAligned.
template <bool kAligned>
__device__ __forceinline__ uint32_t load_codes(const uint8_t* __restrict__ codes) {
    if constexpr (kAligned) {
        return __ldg(reinterpret_cast<const uint32_t*>(codes));
    } else {
        uint32_t word = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) word |= static_cast<uint32_t>(codes[i]) << 8 * i;
        return word;
    }
}

template <bool kAligned>
__device__ __forceinline__ void store_values(OutputValue* __restrict__ out,
                                             const OutputWords& values) {
    if constexpr (kAligned) {
#pragma unroll
        for (int i = 0; i < kOutputWords / 4; i++) {
            const uint32_t* w = values.words + 4 * i;
            reinterpret_cast<uint4*>(out)[i] = make_uint4(w[0], w[1], w[2], w[3]);
        }
    } else if constexpr (sizeof(OutputValue) == 2) {
#pragma unroll
        for (int i = 0; i < kCodesPerWord; i++)
            reinterpret_cast<uint16_t*>(out)[i] =
                static_cast<uint16_t>(values.words[i / 2] >> 16 * (i % 2));
    } else {
#pragma unroll
        for (int i = 0; i < kCodesPerWord; i++)
            reinterpret_cast<uint32_t*>(out)[i] = values.words[i];
    }
}

template <bool kAligned, int kUnroll>
__device__ __forceinline__ void dequantize_row(const uint8_t* __restrict__ codes,
                                               const uint8_t* __restrict__ scales, float gsa,
                                               OutputValue* __restrict__ out, int64_t m,
                                               uint32_t num_words) {
    for (uint32_t first = blockIdx.y * blockDim.x * kUnroll + threadIdx.x; first < num_words;
         first += gridDim.y * blockDim.x * kUnroll) {
        uint32_t word[kUnroll], byte[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; u++) {
            const uint32_t i = first + u * blockDim.x;
            if (i < num_words) {
                word[u] = load_codes<kAligned>(codes + static_cast<int64_t>(i) * 4);
                byte[u] = __ldg(scales + scale_offset(m, i / 2, num_words / 2));
            }
        }
#pragma unroll
        for (int u = 0; u < kUnroll; u++) {
            const uint32_t i = first + u * blockDim.x;
            if (i < num_words)
                store_values<kAligned>(out + static_cast<int64_t>(i) * kCodesPerWord,
                                       decode(word[u], e4m3_value(byte[u]), gsa));
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    dequantize_nvfp4_kernel(const uint8_t* __restrict__ codes, const uint8_t* __restrict__ scales,
                            const float* __restrict__ gsa, OutputValue* __restrict__ out, int M,
                            int N, uint32_t gsa_stride) {
    const int64_t m = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
    if (m >= M) return;
    const uint32_t num_words = static_cast<uint32_t>(N) / kCodesPerWord;
    const float row_gsa = gsa[m * gsa_stride];
    const bool is_aligned =
        ((reinterpret_cast<uint64_t>(codes) & 3) | (reinterpret_cast<uint64_t>(out) & 15)) == 0;
    codes += m * num_words * 4;
    out += m * N;
    if (is_aligned) {
        dequantize_row<true, 4>(codes, scales, row_gsa, out, m, num_words);
    } else {
        dequantize_row<false, 1>(codes, scales, row_gsa, out, m, num_words);
    }
}
