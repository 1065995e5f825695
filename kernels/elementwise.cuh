// Element-wise work on bf16 arrays, 16 bytes at a time where their addresses allow it.
#pragma once

#include "types.cuh"

namespace elementwise {

constexpr int kThreads = 256;
constexpr int kVector = 8;  // elements in 16 bytes

// Elements of a block whose threads take kVectors times 16 bytes.
template <int kVectors>
constexpr uint32_t kSpan = kVectors * kVector * kThreads;

// Elements before the first 16-byte boundary of an array; bf16 addresses are even.
__device__ __forceinline__ uint32_t elements_to_boundary(const void* array) {
    return static_cast<uint32_t>(-reinterpret_cast<uint64_t>(array)) % 16 / 2;
}

// Works on elements [first, first + kSpan<kVectors>) below `total`, all shifted by the `head` of at
// most 7 elements that the first of these spans takes besides. An Operation has
//     elements_to_boundary()     the head, or kVector if its arrays do not share one
//     load(i), store(i, values)  8 elements from i on
//     element(i)                 one
template <int kVectors, class Operation>
__device__ __forceinline__ void run_span(const Operation& operation, uint64_t first,
                                         uint64_t total) {
    const uint32_t head = operation.elements_to_boundary();
    if (head == kVector) {
        const uint64_t stop = first + kSpan<kVectors> < total ? first + kSpan<kVectors> : total;
#pragma unroll 1
        for (uint64_t i = first + threadIdx.x; i < stop; i += kThreads) operation.element(i);
        return;
    }
    if (first == 0 && threadIdx.x < head && threadIdx.x < total) operation.element(threadIdx.x);
    first += head + threadIdx.x * kVector;
    typename Operation::Values values[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        const uint64_t i = first + v * kThreads * kVector;
        if (i + kVector <= total) values[v] = operation.load(i);
    }
#pragma unroll
    for (int v = 0; v < kVectors; v++) {
        const uint64_t i = first + v * kThreads * kVector;
        if (i + kVector <= total) {
            operation.store(i, values[v]);
        } else {
#pragma unroll 1
            for (uint64_t j = i; j < total; j++) operation.element(j);
        }
    }
}

}  // namespace elementwise
