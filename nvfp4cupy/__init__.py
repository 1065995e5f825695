"""NVFP4 for NumPy and CuPy: quantizers, W4A4 GEMM, feed-forward, with bit-exact references.

The same functions take NumPy arrays (answered by the reference) and GPU arrays (answered by
kernels that are compiled on first use). Importing this module needs neither a GPU nor CuPy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from nvfp4cupy.checkpoint import (
        Checkpoint,
        NVFP4Weight,
        convert_checkpoint,
        doctor,
        quantize_checkpoint,
        save_checkpoint,
    )
    from nvfp4cupy.ffn import FeedForward
    from nvfp4cupy.ops import (
        amax_gsa,
        amax_quantize_nvfp4,
        deinterleave_quantize_from_buffer,
        dequantize_nvfp4,
        nvfp4_mmq_gemm,
        nvfp4_mmq_gemm_tiled,
        nvfp4_mmq_quantize_act,
        nvfp4_mmq_repack,
        nvfp4_mmq_unpack,
        nvfp4_scale_bf16,
        nvfp4_silu_mul_quant,
        nvfp4_silu_mul_scaled,
        nvfp4_w4a16_gemm,
        quantize_nvfp4,
        quantize_nvfp4_from_buffer,
    )

__version__ = "0.1.0"

# Modules are imported on first use of a name: who only wants a size does not wait for kernels.
_MODULE_OF = {
    "Checkpoint": "checkpoint",
    "FeedForward": "ffn",
    "NVFP4Weight": "checkpoint",
    "convert_checkpoint": "checkpoint",
    "doctor": "checkpoint",
    "quantize_checkpoint": "checkpoint",
    "save_checkpoint": "checkpoint",
    "amax_gsa": "ops",
    "amax_quantize_nvfp4": "ops",
    "deinterleave_quantize_from_buffer": "ops",
    "dequantize_nvfp4": "ops",
    "nvfp4_mmq_gemm": "ops",
    "nvfp4_mmq_gemm_tiled": "ops",
    "nvfp4_mmq_quantize_act": "ops",
    "nvfp4_mmq_repack": "ops",
    "nvfp4_mmq_unpack": "ops",
    "nvfp4_scale_bf16": "ops",
    "nvfp4_silu_mul_quant": "ops",
    "nvfp4_silu_mul_scaled": "ops",
    "nvfp4_w4a16_gemm": "ops",
    "quantize_nvfp4": "ops",
    "quantize_nvfp4_from_buffer": "ops",
}

__all__ = [
    "NVFP4_BLOCK_BYTES",
    "NVFP4_MMQ_SMEM",
    "QK_NVFP4",
    "Checkpoint",
    "FeedForward",
    "NVFP4Weight",
    "amax_gsa",
    "amax_quantize_nvfp4",
    "convert_checkpoint",
    "deinterleave_quantize_from_buffer",
    "dequantize_nvfp4",
    "doctor",
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
    "quantize_checkpoint",
    "quantize_nvfp4",
    "quantize_nvfp4_from_buffer",
    "save_checkpoint",
    "swizzle_scales",
    "unswizzle_scales",
]


# Parts that are reached as attributes too, and imported then.
_SUBMODULES = ("bench", "checkpoint", "ffn", "formats", "launchers", "layouts", "plot", "reference")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"{__name__}.{name}")
    if (module := _MODULE_OF.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_SUBMODULES, "__version__"})
