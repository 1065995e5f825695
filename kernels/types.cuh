// Fixed-width integer types, without the toolkit headers that a run-time compiler may not find.
#pragma once

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

static_assert(sizeof(uint8_t) == 1 && sizeof(uint16_t) == 2, "");
static_assert(sizeof(uint32_t) == 4 && sizeof(uint64_t) == 8, "");

// Raw bits of a bfloat16 and of a float16: kernels convert them with integer or PTX code.
typedef uint16_t bf16_t;
struct fp16_t {
    uint16_t bits;
};
