"""Launchers of the quantizers to linear NVFP4 codes, of their decode scales and of the way back."""

from nvfp4cupy.launchers.quantize.amax import AmaxGsa, FindNonfinite
from nvfp4cupy.launchers.quantize.dequantize import Dequantize
from nvfp4cupy.launchers.quantize.fused import AmaxQuantize
from nvfp4cupy.launchers.quantize.rows import (
    DeinterleaveQuantizeFromBuffer,
    Quantize,
    QuantizeFromBuffer,
)

__all__ = [
    "AmaxGsa",
    "AmaxQuantize",
    "DeinterleaveQuantizeFromBuffer",
    "Dequantize",
    "FindNonfinite",
    "Quantize",
    "QuantizeFromBuffer",
]
