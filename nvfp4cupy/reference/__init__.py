"""The NumPy result of every kernel: the same bytes, on a machine with no GPU.

Each function takes NumPy arrays and returns fresh ones. Arithmetic follows the kernels: float32
with flush-to-zero, multiplications and additions not contracted.
"""

from nvfp4cupy.reference.bounds import gemm_error_bound, gemm_float64
from nvfp4cupy.reference.dequantize import dequantize_nvfp4
from nvfp4cupy.reference.gemm import nvfp4_mmq_gemm, nvfp4_w4a16_gemm
from nvfp4cupy.reference.mmq import nvfp4_mmq_quantize_act, nvfp4_mmq_repack, nvfp4_mmq_unpack
from nvfp4cupy.reference.quantize import (
    amax_gsa,
    amax_quantize_nvfp4,
    deinterleave_quantize_from_buffer,
    quantize_nvfp4,
    quantize_nvfp4_from_buffer,
)
from nvfp4cupy.reference.swiglu import (
    nvfp4_scale_bf16,
    nvfp4_silu_mul_quant,
    nvfp4_silu_mul_scaled,
)

__all__ = [
    "amax_gsa",
    "amax_quantize_nvfp4",
    "deinterleave_quantize_from_buffer",
    "dequantize_nvfp4",
    "gemm_error_bound",
    "gemm_float64",
    "nvfp4_mmq_gemm",
    "nvfp4_mmq_quantize_act",
    "nvfp4_mmq_repack",
    "nvfp4_mmq_unpack",
    "nvfp4_scale_bf16",
    "nvfp4_silu_mul_quant",
    "nvfp4_silu_mul_scaled",
    "nvfp4_w4a16_gemm",
    "quantize_nvfp4",
    "quantize_nvfp4_from_buffer",
]
