"""The public functions: NumPy arrays go to the reference, GPU arrays to the kernels."""

from __future__ import annotations

from nvfp4cupy.layouts import (
    NVFP4_BLOCK_BYTES,
    NVFP4_MMQ_SMEM,
    QK_NVFP4,
    fp4_act_scratch_bytes,
    nvfp4_mmq_smem,
    nvfp4_mmq_weight_bytes,
    swizzle_scales,
    unswizzle_scales,
)
from nvfp4cupy.ops.dequantize import dequantize_nvfp4
from nvfp4cupy.ops.gemm import nvfp4_mmq_gemm, nvfp4_mmq_gemm_tiled, nvfp4_w4a16_gemm
from nvfp4cupy.ops.mmq import nvfp4_mmq_quantize_act, nvfp4_mmq_repack, nvfp4_mmq_unpack
from nvfp4cupy.ops.quantize import (
    amax_gsa,
    amax_quantize_nvfp4,
    deinterleave_quantize_from_buffer,
    quantize_nvfp4,
    quantize_nvfp4_from_buffer,
)
from nvfp4cupy.ops.swiglu import nvfp4_scale_bf16, nvfp4_silu_mul_quant, nvfp4_silu_mul_scaled

__all__ = [
    "NVFP4_BLOCK_BYTES",
    "NVFP4_MMQ_SMEM",
    "QK_NVFP4",
    "amax_gsa",
    "amax_quantize_nvfp4",
    "deinterleave_quantize_from_buffer",
    "dequantize_nvfp4",
    "fp4_act_scratch_bytes",
    "nvfp4_mmq_gemm",
    "nvfp4_mmq_gemm_tiled",
    "nvfp4_mmq_quantize_act",
    "nvfp4_mmq_repack",
    "nvfp4_mmq_smem",
    "nvfp4_mmq_unpack",
    "nvfp4_mmq_weight_bytes",
    "nvfp4_scale_bf16",
    "nvfp4_silu_mul_quant",
    "nvfp4_silu_mul_scaled",
    "nvfp4_w4a16_gemm",
    "quantize_nvfp4",
    "quantize_nvfp4_from_buffer",
    "swizzle_scales",
    "unswizzle_scales",
]
