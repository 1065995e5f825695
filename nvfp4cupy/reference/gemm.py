"""Multiply activations by NVFP4 weights: float32 sums over k in steps of 64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.formats import F32, F64, U8, to_float32
from nvfp4cupy.layouts import (
    FP4_MMQ_BLOCK_BYTES,
    FP4_MMQ_BLOCK_VALUES,
    NVFP4_BLOCK_BYTES,
    QK_NVFP4,
    block_fp4_mmq_to_linear,
    block_nvfp4_to_linear,
    div_ceil,
)
from nvfp4cupy.reference.dequantize import decode_linear
from nvfp4cupy.reference.flush import float32_scalar, multiply_flushed
from nvfp4cupy.reference.output import OutputType, round_output

Scale = NDArray[np.float32] | float | None

_OUTPUT_VALUES = 1 << 22  # outputs computed at a time: 32 MB of float64 sums


def nvfp4_mmq_gemm(
    a: U8,
    blocks: U8,
    *,
    out_scale: Scale = None,
    row_scale: F32 | None = None,
    dtype: OutputType = "bfloat16",
) -> NDArray[Any]:
    """Multiply quantized activations by quantized weights: ``out[m, n] = sum_k A[m, k] * W[n, k]``.

    Each product and each sum over 64 values of k is exact; these sums are rounded to float32 and
    added in float32, k ascending. Then ``(sum * out_scale) * row_scale`` in float32, then one
    rounding to ``dtype``. Without ``out_scale`` the weight's decode scale is the caller's to apply.

    Args:
        a: uint8 ``(ceil(k / 256), m, 144)``, from ``nvfp4_mmq_quantize_act``.
        blocks: uint8 ``(n, k / 64, 36)``, from ``nvfp4_mmq_repack``. k follows from it.
        out_scale: float32, one number or ``(n,)``: decode scale of the weights.
        row_scale: float32 ``(m,)``: decode scale of each row of A.
        dtype: ``"bfloat16"``, ``"float16"`` or ``"float32"``.

    Returns:
        ``(m, n)`` of that dtype; zeros when k = 0.

    Raises:
        TypeError: a is not uint8.
        ValueError: a shape or ``dtype`` does not fit.

    Kernel: ``kernels/nvfp4_mmq128.cu``.
    """
    if a.dtype != np.uint8:
        raise TypeError(f"a must be uint8 blocks of quantized activations, got {a.dtype}")
    check_operands(a, blocks)
    return _gemm(a, blocks, out_scale, row_scale, dtype)


def nvfp4_w4a16_gemm(
    x: NDArray[Any], blocks: U8, *, out_scale: Scale = None, dtype: OutputType = "bfloat16"
) -> NDArray[Any]:
    """Multiply plain activations by quantized weights: ``out[m, n] = sum_k x[m, k] * W[n, k]``.

    Sums and rounding as in ``nvfp4_mmq_gemm``, but that a sum over 64 values of k may be inexact
    in float64 before it is rounded to float32.

    Args:
        x: bfloat16 (or float16, float32) ``(m, k)``.
        blocks: uint8 ``(n, k / 64, 36)``, from ``nvfp4_mmq_repack``.
        out_scale: float32, one number or ``(n,)``: decode scale of the weights.
        dtype: ``"bfloat16"``, ``"float16"`` or ``"float32"``.

    Returns:
        ``(m, n)`` of that dtype.

    Raises:
        TypeError: the dtype of x is none of those above.
        ValueError: a shape or ``dtype`` does not fit.

    Kernel: ``kernels/nvfp4_w4a16_mmq128.cu``.
    """
    check_operands(x, blocks)
    return _gemm(x, blocks, out_scale, None, dtype)


def _gemm(
    a: NDArray[Any], blocks: U8, out_scale: Scale, row_scale: F32 | None, dtype: OutputType
) -> NDArray[Any]:
    m, n, k = sizes(a, blocks)
    result = np.zeros((m, n), round_output(np.empty(0, np.float32), dtype).dtype)
    if k == 0:  # zeros, whatever the scales
        return result
    width = max(1, _OUTPUT_VALUES // max(m, 1))
    column_scale = None if out_scale is None else column_scales(out_scale, n)
    for left in range(0, n, width):
        columns = slice(left, min(left + width, n))
        total = np.zeros((m, columns.stop - left), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for a_step, w_step in decoded_steps(a, blocks[columns]):
                total += (a_step @ w_step.T).astype(np.float32)
        if column_scale is not None:
            total = multiply_flushed(total, column_scale[columns])
        if row_scale is not None:
            total = multiply_flushed(total, to_float32(row_scale)[:, None])
        result[:, columns] = round_output(total, dtype)
    return result


def decoded_steps(a: NDArray[Any], blocks: U8) -> Iterator[tuple[F64, F64]]:
    """Yield the decoded operands of each 64-wide step of k: float64 (m, 64), (n, 64)."""
    k = blocks.shape[1] * QK_NVFP4
    per_act_block = FP4_MMQ_BLOCK_VALUES // QK_NVFP4
    for i, left in enumerate(range(0, k, FP4_MMQ_BLOCK_VALUES)):
        w_blocks = blocks[:, i * per_act_block : (i + 1) * per_act_block]
        weights = decode_linear(*block_nvfp4_to_linear(w_blocks)).astype(np.float64)
        if a.dtype == np.uint8:
            values = decode_linear(*block_fp4_mmq_to_linear(a[i : i + 1])).astype(np.float64)
        else:
            values = to_float32(a[:, left : left + FP4_MMQ_BLOCK_VALUES]).astype(np.float64)
        for first in range(0, weights.shape[1], QK_NVFP4):
            step = slice(first, first + QK_NVFP4)
            yield values[:, step], weights[:, step]


def sizes(a: NDArray[Any], blocks: U8) -> tuple[int, int, int]:
    """Return m, n and k of quantized (uint8) or plain activations and weights."""
    m = a.shape[1] if a.dtype == np.uint8 else a.shape[0]
    return m, blocks.shape[0], blocks.shape[1] * QK_NVFP4


def check_operands(a: NDArray[Any], blocks: U8) -> None:
    """Refuse operands whose shapes do not fit each other with a ValueError."""
    if blocks.ndim != 3 or blocks.shape[2] != NVFP4_BLOCK_BYTES:
        raise ValueError(f"blocks must have shape (n, k/64, 36), got {blocks.shape}")
    k = blocks.shape[1] * QK_NVFP4
    if a.dtype == np.uint8:
        num_blocks = div_ceil(k, FP4_MMQ_BLOCK_VALUES)
        if a.ndim != 3 or a.shape[0] != num_blocks or a.shape[2] != FP4_MMQ_BLOCK_BYTES:
            raise ValueError(f"a must have shape ({num_blocks}, m, 144) for k={k}, got {a.shape}")
    elif a.ndim != 2 or a.shape[1] != k:
        raise ValueError(f"x must have shape (m, {k}), got {a.shape}")


def column_scales(out_scale: NDArray[np.float32] | float, n: int) -> F32:
    """Return ``out_scale`` as one float32 number for each of the n outputs."""
    if np.ndim(out_scale) == 0:
        return np.repeat(float32_scalar(float(out_scale)), n)
    out_scale = np.asarray(out_scale)
    if out_scale.shape not in ((n,), (1,)):
        raise ValueError(f"out_scale must be a number or have shape ({n},), got {out_scale.shape}")
    return np.broadcast_to(to_float32(out_scale), (n,))
