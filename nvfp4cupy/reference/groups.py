"""Quantize groups of 16 float32 values to E2M1 codes and one E4M3 scale."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from nvfp4cupy.formats import (
    E2M1_MAX,
    E2M1_VALUES,
    E4M3_MAX_BYTE,
    F32,
    F64,
    GROUP_SIZE,
    U8,
    Rounding,
    e2m1_encode,
    e2m1_magnitude,
    e2m1_sign,
    e4m3_decode,
    e4m3_encode,
)
from nvfp4cupy.reference.amax import largest_magnitude
from nvfp4cupy.reference.flush import divide_flushed, fma_flushed

ScaleSearch: TypeAlias = Literal[0, 2]
SCALE_SEARCHES: tuple[ScaleSearch, ...] = (0, 2)

SEARCH_OFFSETS = (0, -1, 1, -2, 2)  # in this order: on equal errors the earlier one stays
SMALLEST_AMAX = np.float32(6 * 2.0**-9)  # below, amax / 6 is under the smallest scale, 2^-9
FLOAT32_MAX = np.finfo(np.float32).max


def quantize_groups(v: F32, rounding: Rounding, scale_search: int) -> tuple[U8, U8]:
    """Quantize values that are already divided by the decode scale.

    Args:
        v: float32 ``(rows, cols)``, C-contiguous, cols a multiple of 16, no subnormals.
        rounding: rule of the codes, see ``formats.e2m1_magnitude``.
        scale_search: 0 takes the scale from the amax of the group; 2 tries that scale and its two
            neighbours on either side and keeps the one with the least squared error.

    Returns:
        codes: uint8 ``(rows, cols)``, one code per byte.
        scales: uint8 ``(rows, cols / 16)``.

    Raises:
        ValueError: ``rounding`` or ``scale_search`` is unknown.
    """
    if scale_search not in SCALE_SEARCHES:
        raise ValueError(f"scale_search must be 0 or 2, got {scale_search!r}")
    groups = v.reshape(-1, GROUP_SIZE)
    with np.errstate(all="ignore"):
        quantize = _search_scales if scale_search else _scales_from_amax
        codes, scales = quantize(groups, rounding)
    return codes.reshape(v.shape), scales.reshape(v.shape[0], v.shape[1] // GROUP_SIZE)


def _scales_from_amax(v: F32, rounding: Rounding) -> tuple[U8, U8]:
    """``scale = e4m3(amax / 6)``, codes from ``v / scale``; groups of small values become zero."""
    largest = largest_magnitude(v, axis=1)
    is_zero = largest < SMALLEST_AMAX
    scales = e4m3_encode(largest / np.float32(E2M1_MAX))
    scales[is_zero] = 0
    # Above SMALLEST_AMAX the scale is at least 2^-9; a divisor of 1 stands in for scale 0.
    divisor = np.where(is_zero, np.float32(1), e4m3_decode(scales))
    codes = e2m1_encode(divide_flushed(v, divisor[:, None]), rounding)
    codes[is_zero] = 0
    return codes, scales


def _search_scales(v: F32, rounding: Rounding) -> tuple[U8, U8]:
    """Try five scales around ``e4m3(amax / 6)`` and keep the first with the least error."""
    magnitude = np.abs(v.T, order="C")  # [16, groups]: one element of all groups is contiguous
    largest = largest_magnitude(magnitude, axis=0)
    center = e4m3_encode(largest / np.float32(E2M1_MAX)).astype(np.int16)
    best_error = np.full(center.shape, FLOAT32_MAX)
    scales = np.zeros(center.shape, np.uint8)
    codes = np.zeros(magnitude.shape, np.uint8)
    for offset in SEARCH_OFFSETS:
        in_range = (center + offset >= 0) & (center + offset <= E4M3_MAX_BYTE)
        candidate = np.where(in_range, center + offset, 0).astype(np.uint8)
        candidate_codes, error = _try_scale(magnitude, candidate, rounding)
        # False for NaN and infinity: a group that is not finite keeps scale 0 and codes 0.
        better = in_range & (error < best_error)
        np.copyto(best_error, error, where=better)
        np.copyto(scales, candidate, where=better)
        np.copyto(codes, candidate_codes, where=better)
    return codes.T | e2m1_sign(v, rounding), scales


def _try_scale(magnitude: F32, scales: U8, rounding: Rounding) -> tuple[U8, F32]:
    """Return the codes 0..7 under a scale and ``sum((|v| - q * s)^2)``, fma in element order."""
    s = e4m3_decode(scales)
    inverse = np.where(scales == 0, np.float32(0), np.float32(1) / s)
    codes = e2m1_magnitude(magnitude * inverse, rounding)
    difference: F64 = (magnitude - np.take(E2M1_VALUES, codes) * s).astype(np.float64)
    squares = np.square(difference, out=difference)  # exact: 2 * 24 bits
    error = np.zeros(s.shape, np.float32)
    for square in squares:
        error = fma_flushed(square, error)
    return codes, error
