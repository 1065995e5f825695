"""Quantize matrices to linear NVFP4 codes and scales, and find their decode scales."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.formats import (
    F32,
    FLOAT32_MIN_NORMAL,
    GROUP_SIZE,
    GSA_DIVISOR,
    U8,
    Rounding,
    pack_codes,
    to_float32,
)
from nvfp4cupy.layouts import ScaleLayout, scales_shape, swizzle_scales
from nvfp4cupy.reference.amax import largest_magnitude
from nvfp4cupy.reference.chunks import chunks
from nvfp4cupy.reference.flush import divide_flushed, float32_scalar
from nvfp4cupy.reference.groups import quantize_groups


def amax_gsa(x: NDArray[Any]) -> F32:
    """Find the decode scale of each row: ``gsa[m] = max|x[m, :]| / 2688``.

    NaN is ignored and infinity gives infinity. A row of zeros gives 1; nothing is below 2^-126.

    Args:
        x: bfloat16, float16 or float32 ``(M, N)``.

    Returns:
        float32 ``(M,)``, all positive.

    Kernel: ``kernels/amax_gsa.cu``.
    """
    rows, cols = x.shape
    amax = np.zeros(rows, np.float32)
    for row, col in chunks(rows, cols):
        raise_amax(amax[row], to_float32(x[row, col]))
    return gsa_from_amax(amax)


def raise_amax(amax: F32, values: F32) -> None:
    """Raise each row's amax, in place, to the largest magnitude in ``values``; NaN is ignored."""
    np.maximum(amax, largest_magnitude(values, axis=1), out=amax)


def gsa_from_amax(amax: F32) -> F32:
    """Return ``amax / 2688``, at least 2^-126; 1 where amax is zero."""
    with np.errstate(under="ignore"):
        gsa: F32 = np.maximum(amax / np.float32(GSA_DIVISOR), FLOAT32_MIN_NORMAL)
    gsa[amax == 0] = 1
    return gsa


def quantize_nvfp4_from_buffer(
    x: NDArray[Any],
    gsa: NDArray[Any],
    *,
    rounding: Rounding = "half_step",
    scale_search: int = 0,
    scale_layout: ScaleLayout = "linear",
) -> tuple[U8, U8]:
    """Quantize rows with their own decode scales: ``x ~= e2m1(codes) * e4m3(scales) * gsa[m]``.

    ``v = x / gsa[m]``. Without the search a group of 16 whose ``amax = max|v|`` is below 6 * 2^-9
    is all zero; else ``scale = e4m3(amax / 6)`` and the codes come from ``v / scale``. With
    ``scale_search=2`` the scale among ``e4m3(amax / 6)`` and two neighbours on either side that
    has the least squared error is kept (0 when a value of the group is not finite).

    NaN does not count in amax. ``half_step`` and ``nearest_even`` give 6 for it, ``nearest_low``
    0. An infinite v saturates the scale, and its code except under ``nearest_low``, which gives 0.

    Args:
        x: bfloat16, float16 or float32 ``(M, N)``, N a multiple of 16.
        gsa: float32 ``(M,)``, decode scales.
        rounding: rule of the codes, see ``formats.e2m1_magnitude``.
        scale_search: 0 or 2.
        scale_layout: ``"linear"`` or ``"128x4"``.

    Returns:
        codes: uint8 ``(M, N / 2)``, element 2j in the low nibble of byte j.
        scales: uint8 E4M3 ``(M, N / 16)``, or ``(roundup(M, 128), roundup(N / 16, 4))`` bytes in
            128x4 order with zero padding.

    Raises:
        TypeError: the dtype of x is none of those above.
        ValueError: a shape or an option does not fit.

    Kernel: ``kernels/quantize_nvfp4.cu``.
    """
    _check_columns("x", x.shape, x.shape[1])
    return _quantize(x, np.arange(x.shape[1]), gsa, rounding, scale_search, scale_layout)


def quantize_nvfp4(
    x: NDArray[Any],
    gsa: float,
    *,
    rounding: Rounding = "half_step",
    scale_search: int = 0,
    scale_layout: ScaleLayout = "linear",
) -> tuple[U8, U8]:
    """Quantize a matrix with one decode scale: ``x ~= e2m1(codes) * e4m3(scales) * gsa``.

    The same as ``quantize_nvfp4_from_buffer`` with ``gsa`` in every row.

    Raises:
        ValueError: gsa, as a float32 that is not subnormal, is not finite and above zero.

    Kernel: ``kernels/quantize_nvfp4.cu``.
    """
    scalar = float32_scalar(gsa)
    if not (np.isfinite(scalar) and scalar > 0):
        raise ValueError(f"gsa must be finite and at least 2^-126, got {gsa}")
    return quantize_nvfp4_from_buffer(
        x,
        np.repeat(scalar, x.shape[0]),
        rounding=rounding,
        scale_search=scale_search,
        scale_layout=scale_layout,
    )


def amax_quantize_nvfp4(
    x: NDArray[Any],
    *,
    rounding: Rounding = "half_step",
    scale_search: int = 0,
    scale_layout: ScaleLayout = "linear",
) -> tuple[U8, U8, F32]:
    """Find each row's decode scale and quantize with it.

    ``amax_gsa`` followed by ``quantize_nvfp4_from_buffer``.

    Returns:
        codes, scales: as ``quantize_nvfp4_from_buffer``.
        gsa: float32 ``(M,)``, as ``amax_gsa``.

    Kernel: ``kernels/amax_quantize_nvfp4.cu``.
    """
    gsa = amax_gsa(x)
    codes, scales = quantize_nvfp4_from_buffer(
        x, gsa, rounding=rounding, scale_search=scale_search, scale_layout=scale_layout
    )
    return codes, scales, gsa


def deinterleave_quantize_from_buffer(
    fused: NDArray[Any],
    intermediate: int,
    granularity: int,
    gsa: NDArray[Any],
    *,
    rounding: Rounding = "half_step",
    scale_search: int = 0,
    scale_layout: ScaleLayout = "linear",
) -> tuple[U8, U8]:
    """Quantize every second run of ``granularity`` columns: runs 1, 3, 5, ... of each row.

    Column j of the result is column ``(2 * (j / g) + 1) * g + j % g`` of ``fused``; columns from
    ``2 * intermediate`` on are ignored.

    Args:
        fused: bfloat16, float16 or float32 ``(M, N)``, ``N >= 2 * intermediate``.
        intermediate: columns of the result, a multiple of 16 and of granularity.
        granularity: length g of a run, at least 1.
        gsa: float32 ``(M,)``, decode scales.
        rounding: as ``quantize_nvfp4_from_buffer``.
        scale_search: as ``quantize_nvfp4_from_buffer``.
        scale_layout: as ``quantize_nvfp4_from_buffer``.

    Returns:
        codes, scales: as ``quantize_nvfp4_from_buffer`` with N = intermediate.

    Raises:
        TypeError: the dtype of fused is none of those above.
        ValueError: a size, a shape or an option does not fit.

    Kernel: ``kernels/deinterleave_quantize.cu``.
    """
    cols = fused.shape[1]
    _check_columns("intermediate", intermediate, intermediate)
    if granularity < 1 or intermediate % granularity:
        raise ValueError(
            f"granularity must be at least 1 and divide intermediate={intermediate}, "
            f"got {granularity}"
        )
    if cols < 2 * intermediate:
        raise ValueError(
            f"fused must have at least 2 * intermediate = {2 * intermediate} columns, got {cols}"
        )
    j = np.arange(intermediate)
    columns = (2 * (j // granularity) + 1) * granularity + j % granularity
    return _quantize(fused, columns, gsa, rounding, scale_search, scale_layout)


def _quantize(
    x: NDArray[Any],
    columns: NDArray[np.intp],
    gsa: NDArray[Any],
    rounding: Rounding,
    scale_search: int,
    scale_layout: ScaleLayout,
) -> tuple[U8, U8]:
    """Quantize ``x[:, columns]`` in pieces."""
    rows, cols = x.shape[0], columns.size
    if gsa.shape != (rows,):
        raise ValueError(f"gsa must have shape ({rows},), got {gsa.shape}")
    scales_shape(rows, cols // GROUP_SIZE, scale_layout)  # refuses an unknown layout at once
    decode_scale = to_float32(gsa)
    packed = np.empty((rows, cols // 2), np.uint8)
    scales = np.empty((rows, cols // GROUP_SIZE), np.uint8)
    for row, col in chunks(rows, cols):
        values = to_float32(np.take(x[row], columns[col], axis=1))
        v = divide_flushed(values, decode_scale[row, None])
        codes, group_scales = quantize_groups(v, rounding, scale_search)
        packed[row, col.start // 2 : col.stop // 2] = pack_codes(codes)
        scales[row, col.start // GROUP_SIZE : col.stop // GROUP_SIZE] = group_scales
    return packed, swizzle_scales(scales) if scale_layout == "128x4" else scales


def _check_columns(name: str, got: object, cols: int) -> None:
    if cols % GROUP_SIZE:
        raise ValueError(f"{name} must have a multiple of {GROUP_SIZE} columns, got {got}")
