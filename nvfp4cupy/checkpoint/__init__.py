"""NVFP4 tensors from safetensors (ModelOpt, compressed-tensors) and GGUF files, and back.

Everything here is NumPy. Global scales are decode scales (codes are multiplied by them); a file
that stores the reciprocal is converted when it is read or written, nowhere else.
"""

from nvfp4cupy.checkpoint.convert import convert_checkpoint
from nvfp4cupy.checkpoint.doctor import Finding, doctor
from nvfp4cupy.checkpoint.gguf_metadata import GGUFField
from nvfp4cupy.checkpoint.gguf_writer import write_gguf
from nvfp4cupy.checkpoint.quantize import (
    DEFAULT_EXCLUDE,
    DEFAULT_INCLUDE,
    QuantizeReport,
    quantize_checkpoint,
)
from nvfp4cupy.checkpoint.reader import Checkpoint
from nvfp4cupy.checkpoint.safetensors_writer import write_safetensors
from nvfp4cupy.checkpoint.save import TARGET_FORMATS, save_checkpoint
from nvfp4cupy.checkpoint.tensors import TensorInfo, TensorSpec
from nvfp4cupy.checkpoint.weight import NVFP4Weight, stack_experts

__all__ = [
    "DEFAULT_EXCLUDE",
    "DEFAULT_INCLUDE",
    "TARGET_FORMATS",
    "Checkpoint",
    "Finding",
    "GGUFField",
    "NVFP4Weight",
    "QuantizeReport",
    "TensorInfo",
    "TensorSpec",
    "convert_checkpoint",
    "doctor",
    "quantize_checkpoint",
    "save_checkpoint",
    "stack_experts",
    "write_gguf",
    "write_safetensors",
]
