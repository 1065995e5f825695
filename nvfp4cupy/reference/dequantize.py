"""Turn linear NVFP4 codes and scales back into values."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.formats import F32, GROUP_SIZE, U8, e2m1_decode, e4m3_decode, to_float32
from nvfp4cupy.layouts import ScaleLayout, scales_shape, unswizzle_scales
from nvfp4cupy.reference.chunks import chunks
from nvfp4cupy.reference.flush import float32_scalar, multiply_flushed
from nvfp4cupy.reference.output import OutputType, round_output


def dequantize_nvfp4(
    codes: U8,
    scales: U8,
    gsa: NDArray[Any] | float,
    *,
    dtype: OutputType = "bfloat16",
    scale_layout: ScaleLayout = "linear",
) -> NDArray[Any]:
    """Decode a matrix: ``y[m, n] = (e2m1(codes[m, n]) * e4m3(scales[m, n // 16])) * gsa[m]``.

    The first product is exact, the second is rounded to float32, the result to ``dtype``.

    Args:
        codes: uint8 ``(M, N / 2)``, element 2j in the low nibble of byte j.
        scales: uint8 E4M3 ``(M, N / 16)``, or ``(roundup(M, 128), roundup(N / 16, 4))`` in 128x4
            order. The top bit is ignored; 0x7F makes its group NaN.
        gsa: decode scale: float32 ``(M,)``, or one number for all rows.
        dtype: ``"bfloat16"``, ``"float16"`` or ``"float32"``.
        scale_layout: ``"linear"`` or ``"128x4"``.

    Returns:
        ``(M, N)`` of that dtype.

    Raises:
        ValueError: a shape or an option does not fit.

    Kernel: ``kernels/dequantize_nvfp4.cu``.
    """
    rows, cols = codes.shape[0], 2 * codes.shape[1]
    if cols % GROUP_SIZE:
        raise ValueError(f"codes must have a multiple of 8 columns, got shape {codes.shape}")
    expected = scales_shape(rows, cols // GROUP_SIZE, scale_layout)
    if scales.shape != expected:
        raise ValueError(f"scales must have shape {expected}, got {scales.shape}")
    if scale_layout == "128x4":
        scales = unswizzle_scales(scales, rows, cols // GROUP_SIZE)
    decode_scale = _row_scales(gsa, rows)
    result = round_output(np.empty((0, cols), np.float32), dtype)  # refuses an unknown dtype
    result = np.empty((rows, cols), result.dtype)
    for row, col in chunks(rows, cols):
        block = decode_linear(
            codes[row, col.start // 2 : col.stop // 2],
            scales[row, col.start // GROUP_SIZE : col.stop // GROUP_SIZE],
        )
        result[row, col] = round_output(multiply_flushed(block, decode_scale[row, None]), dtype)
    return result


def decode_linear(packed: U8, scales: U8) -> F32:
    """Return ``e2m1 * e4m3``, exact in float32: packed ``(r, c/2)``, scales ``(r, c/16)``."""
    rows, num_groups = scales.shape
    values = np.take(_pair_table(), packed, axis=0).reshape(rows, num_groups, GROUP_SIZE)
    values *= e4m3_decode(scales)[:, :, None]
    return values.reshape(rows, num_groups * GROUP_SIZE)


def _row_scales(gsa: NDArray[Any] | float, rows: int) -> F32:
    if np.ndim(gsa) == 0:
        return np.repeat(float32_scalar(float(gsa)), rows)
    gsa = np.asarray(gsa)
    if gsa.shape != (rows,):
        raise ValueError(f"gsa must be a number or have shape ({rows},), got {gsa.shape}")
    return to_float32(gsa)


@cache
def _pair_table() -> F32:
    """Both values of each packed byte: float32 [256, 2]."""
    byte = np.arange(256)
    return np.stack([e2m1_decode(byte & 15), e2m1_decode(byte >> 4)], axis=1)
