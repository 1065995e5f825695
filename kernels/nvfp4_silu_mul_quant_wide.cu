// nvfp4_silu_mul_quant.cu with a table of the SiLU, for sizes that make up for it.
//
//     h[m, i] ~= e2m1(code[m, i]) * e4m3(scale[m, i / 16]);  h: see swiglu.cuh
//
// Arguments and defines are those of nvfp4_silu_mul_quant.cu.
//
// Grid (x, 1, 1), x up to 65535: one block per multiprocessor; block (1024, 1, 1). A block fills
// its table, 32 KiB of static shared memory, and works on every x-th run of 1024 groups of 16,
// counted along rows.
#include "quantize_act.cuh"
#include "swiglu_group.cuh"
#include "swiglu_table.cuh"

extern "C" __global__ void __launch_bounds__(1024)
    nvfp4_silu_mul_quant_wide_kernel(const bf16_t* __restrict__ gate, const bf16_t* __restrict__ up,
                                     uint8_t* __restrict__ y, float gate_scale, float up_scale,
                                     uint64_t k, uint64_t kpad, uint32_t m) {
    constexpr uint32_t kThreads = 1024;
    __shared__ float entries[swiglu::SiluTable::kEntries];
    const swiglu::SiluTable table(entries, gate_scale);
    __syncthreads();
    const uint32_t num_groups = static_cast<uint32_t>(kpad) / kGroupSize;
    const uint32_t columns = static_cast<uint32_t>(k);
    // The next group is `step` further, in rows and groups.
    const uint32_t step = gridDim.x * kThreads;
    const uint32_t step_rows = step / num_groups;
    const uint32_t step_groups = step % num_groups;
    const uint32_t start = blockIdx.x * kThreads + threadIdx.x;
    uint32_t row = start / num_groups;
    uint32_t group = start % num_groups;
#pragma unroll 1
    while (row < m) {
        uint32_t gates[8], ups[8];
        act::load_pairs(gate + row * k, group, columns, gates);
        act::load_pairs(up + row * k, group, columns, ups);
        float h[kGroupSize];
        swiglu::silu_mul_by_table(table, gates, ups, gate_scale, up_scale, h);
        finish_group(h, group * kGroupSize, columns);
        act::store_group(y, m, row, group, quantize_group_search<kNearestLow>(h));
        row += step_rows;
        group += step_groups;
        if (group >= num_groups) {
            group -= num_groups;
            row++;
        }
    }
}
