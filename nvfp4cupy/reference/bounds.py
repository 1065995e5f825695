"""The GEMM in float64, and how far from it any float32 implementation may be."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.formats import F32, F64, U8, to_float32
from nvfp4cupy.reference.gemm import Scale, check_operands, column_scales, decoded_steps, sizes
from nvfp4cupy.reference.output import OutputType

_TINY = 2.0**-126  # results below it are flushed
_FLOAT32_MAX = float(np.finfo(np.float32).max)
# Significant bits, largest absolute error of a tiny result, largest number of each output type.
# bfloat16 and float32 flush below 2^-126; float16 has subnormals, 2^-24 apart.
_PRECISION: dict[OutputType, tuple[int, float, float]] = {
    "bfloat16": (8, _TINY, 255 * 2.0**120),
    "float16": (11, 2.0**-25, 65504.0),
    "float32": (24, _TINY, _FLOAT32_MAX),
}


def gemm_float64(
    a: NDArray[Any], blocks: U8, *, out_scale: Scale = None, row_scale: F32 | None = None
) -> F64:
    """Return the GEMM in float64: what ``nvfp4_mmq_gemm`` or ``nvfp4_w4a16_gemm`` approximates.

    Args:
        a: quantized activations, uint8 ``(ceil(k / 256), m, 144)``, or plain ones ``(m, k)``.
        blocks: uint8 ``(n, k / 64, 36)``.
        out_scale: float32, one number or ``(n,)``.
        row_scale: float32 ``(m,)``.

    Returns:
        float64 ``(m, n)``.

    Raises:
        ValueError: a shape does not fit.
    """
    check_operands(a, blocks)
    column_fold, row_fold = _folds(a, blocks, out_scale, row_scale)
    m, n, _ = sizes(a, blocks)
    total = np.zeros((m, n))
    for a_step, w_step in decoded_steps(a, blocks):
        total += a_step @ w_step.T
    return total * column_fold * row_fold


def gemm_error_bound(
    a: NDArray[Any],
    blocks: U8,
    *,
    out_scale: Scale = None,
    row_scale: F32 | None = None,
    dtype: OutputType = "bfloat16",
    steps: int | None = None,
) -> F64:
    """Bound ``|out - gemm_float64(...)|`` for any float32 accumulation of the GEMM.

    With ``S = sum|a * w|`` and one step losing at most ``u = 2^-23`` of what it has (2^-24 when it
    rounds, 2^-23 when it truncates), ``steps`` additions in any order lose at most
    ``((1 + u)^steps - 1) * S``. The two scales are a rounding each, together one step more. The
    output type, of p significant bits, adds ``2^-p`` of the value. Flushed or subnormal numbers
    add an absolute term at each place where they can occur.

    Args:
        a: quantized activations, uint8 ``(ceil(k / 256), m, 144)``, or plain ones ``(m, k)``.
        blocks: uint8 ``(n, k / 64, 36)``.
        out_scale: float32, one number or ``(n,)``.
        row_scale: float32 ``(m,)``.
        dtype: type of the output.
        steps: float32 additions into one output; k / 16 by default, one for each 16-wide matrix
            instruction. The reference's own count is k / 64: a rounding and an addition, 2^-24
            each, for every 64 values.

    Returns:
        float64 ``(m, n)``; infinity where a sum, a scaled sum or the output may overflow.

    Raises:
        ValueError: a shape does not fit.
    """
    value = np.abs(gemm_float64(a, blocks, out_scale=out_scale, row_scale=row_scale))
    magnitude = np.zeros(value.shape)
    for a_step, w_step in decoded_steps(a, blocks):
        magnitude += np.abs(a_step) @ np.abs(w_step).T
    column_fold, row_fold = (np.abs(f) for f in _folds(a, blocks, out_scale, row_scale))
    k = sizes(a, blocks)[2]
    num_steps = (k // 16 if steps is None else steps) + 1
    error = magnitude * column_fold * row_fold * np.expm1(num_steps * np.log1p(2.0**-23))
    # The product with out_scale may flush before row_scale multiplies it; that product may too.
    error += _TINY * row_fold + _TINY
    if a.dtype != np.uint8:  # subnormal activations may count or not; 2688 is the largest weight
        error += k * 2688 * _TINY * column_fold * row_fold
    bits, absolute, largest = _PRECISION[dtype]
    reach = value + error  # at least the float32 number that is rounded to dtype
    overflows = magnitude * np.maximum(1, column_fold) * (1 + 2.0**-8) > _FLOAT32_MAX
    overflows |= reach * (1 + 2.0**-bits) > largest
    return np.where(overflows, np.inf, error + reach * 2.0**-bits + absolute)


def _folds(a: NDArray[Any], blocks: U8, out_scale: Scale, row_scale: F32 | None) -> tuple[F64, F64]:
    """Return the scales as float64: columns ``(n,)``, rows ``(m, 1)``; ones where there is none."""
    m, n, _ = sizes(a, blocks)
    columns = np.ones(n) if out_scale is None else column_scales(out_scale, n).astype(np.float64)
    rows = np.ones(m) if row_scale is None else to_float32(row_scale).astype(np.float64)
    return columns, rows[:, None]
