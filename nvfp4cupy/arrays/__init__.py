"""What came in: NumPy or GPU arrays, their dtype, strides and device, `out=`, overlap, streams."""

from __future__ import annotations

from nvfp4cupy.arrays.checks import (
    check_output,
    check_overlap,
    check_same_side,
    empty,
    is_row_major,
    output,
    row_stride,
    span,
    uploaded,
)
from nvfp4cupy.arrays.gpu import (
    context,
    cupy,
    current_device,
    is_capturing,
    is_gpu,
    missing_gpu,
    runs_on_stream,
)
from nvfp4cupy.arrays.intake import Array, intake

__all__ = [
    "Array",
    "check_output",
    "check_overlap",
    "check_same_side",
    "context",
    "cupy",
    "current_device",
    "empty",
    "intake",
    "is_capturing",
    "is_gpu",
    "is_row_major",
    "missing_gpu",
    "output",
    "row_stride",
    "runs_on_stream",
    "span",
    "uploaded",
]
