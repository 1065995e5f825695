"""Round float32 results to the output types, as the kernels' conversions do."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.formats import F32, to_bfloat16

OutputType: TypeAlias = Literal["bfloat16", "float16", "float32"]
OUTPUT_TYPES: tuple[OutputType, ...] = ("bfloat16", "float16", "float32")


def round_output(x: F32, dtype: OutputType) -> NDArray[Any]:
    """Round float32 (no subnormals) to nearest even in another type.

    float16 overflows to infinity and keeps its subnormals. NaN gets the bits that the GPU writes:
    0x7FFF in the 16-bit types, 0x7FFFFFFF in float32.

    Raises:
        ValueError: ``dtype`` is not one of ``OUTPUT_TYPES``.
    """
    if dtype == "bfloat16":
        return to_bfloat16(x)
    result: NDArray[Any]
    if dtype == "float16":
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            result = x.astype(np.float16)
        result.view(np.uint16)[np.isnan(result)] = 0x7FFF
        return result
    if dtype == "float32":
        result = x.copy()
        result.view(np.uint32)[np.isnan(result)] = 0x7FFFFFFF
        return result
    raise ValueError(f"dtype must be one of {', '.join(OUTPUT_TYPES)}, got {dtype!r}")
