"""Prepare the operands of the MMQ GEMM: repack weights, quantize activations."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.formats import F32, U8, pack_codes, to_float32
from nvfp4cupy.layouts import (
    FP4_MMQ_BLOCK_VALUES,
    NibbleOrder,
    block_fp4_mmq_shape,
    block_nvfp4_to_linear,
    kpad,
    linear_to_block_fp4_mmq,
    linear_to_block_nvfp4,
)
from nvfp4cupy.reference.chunks import CHUNK_VALUES
from nvfp4cupy.reference.flush import divide_flushed
from nvfp4cupy.reference.groups import quantize_groups
from nvfp4cupy.reference.quantize import amax_gsa


def nvfp4_mmq_repack(packed: U8, scales: U8, *, nibble_order: NibbleOrder = "low_first") -> U8:
    """Move checkpoint weights into block_nvfp4 rows; every bit is kept.

    Args:
        packed: uint8 ``(n, k / 2)``, k a multiple of 64.
        scales: uint8 E4M3 ``(n, k / 16)``.
        nibble_order: which nibble of a byte holds the even element: ``"low_first"`` or
            ``"high_first"``.

    Returns:
        uint8 ``(n, k / 64, 36)``: 4 scale bytes, then per group of 16 the 8 bytes
        ``code[j] | code[8 + j] << 4``.

    Raises:
        ValueError: a shape or ``nibble_order`` does not fit.

    Kernel: ``kernels/nvfp4_repack.cu``.
    """
    return linear_to_block_nvfp4(packed, scales, nibble_order=nibble_order)


def nvfp4_mmq_unpack(blocks: U8) -> tuple[U8, U8]:
    """Undo ``nvfp4_mmq_repack``.

    Args:
        blocks: uint8 ``(n, k / 64, 36)``.

    Returns:
        packed: uint8 ``(n, k / 2)``, low nibble first.
        scales: uint8 ``(n, k / 16)``.

    Raises:
        ValueError: the shape does not fit.

    Kernel: ``kernels/nvfp4_repack.cu``.
    """
    return block_nvfp4_to_linear(blocks)


@overload
def nvfp4_mmq_quantize_act(x: NDArray[Any], *, row_scale: Literal[False] = False) -> U8: ...
@overload
def nvfp4_mmq_quantize_act(x: NDArray[Any], *, row_scale: Literal[True]) -> tuple[U8, F32]: ...
@overload
def nvfp4_mmq_quantize_act(x: NDArray[Any], *, row_scale: bool) -> U8 | tuple[U8, F32]: ...


def nvfp4_mmq_quantize_act(x: NDArray[Any], *, row_scale: bool = False) -> U8 | tuple[U8, F32]:
    """Quantize activations to block_fp4_mmq: ``x ~= e2m1(codes) * e4m3(scales)``.

    Rounding ``nearest_low`` and the +-2 scale search, see ``quantize_nvfp4_from_buffer``. There is
    no scale above the groups': magnitudes above 2688 saturate, those under 2^-11 vanish. A group
    with NaN or infinity gets scale byte 0 and keeps only its signs.

    Args:
        x: bfloat16, float16 or float32 ``(m, k)``, any k; columns up to the next multiple of 256
            count as zero.
        row_scale: quantize ``x / amax_gsa(x)[:, None]`` instead, and return that scale too.

    Returns:
        uint8 ``(kpad / 256, m, 144)``: 16 scale bytes, then per group of 16 the 8 bytes
        ``code[j] | code[8 + j] << 4``. With ``row_scale`` a pair: the blocks and float32 ``(m,)``.

    Raises:
        TypeError: the dtype of x is none of those above.

    Kernel: ``kernels/nvfp4_quantize_act.cu``.
    """
    scale = amax_gsa(x) if row_scale else None
    blocks = np.empty(block_fp4_mmq_shape(*x.shape), np.uint8)
    for row, col in act_chunks(*x.shape):
        v = to_float32(x[row, col])
        if scale is not None:
            v = divide_flushed(v, scale[row, None])
        store_act_blocks(blocks, v, row, col)
    return blocks if scale is None else (blocks, scale)


def act_chunks(m: int, k: int) -> list[tuple[slice, slice]]:
    """Cut ``(m, k)`` into row ranges of one or more whole 256-wide k-blocks."""
    width = min(kpad(k), CHUNK_VALUES)
    height = max(1, CHUNK_VALUES // max(width, 1))
    return [
        (slice(top, min(top + height, m)), slice(left, min(left + width, k)))
        for top in range(0, m, height)
        for left in range(0, k, width or 1)
    ]


def store_act_blocks(blocks: U8, v: F32, row: slice, col: slice) -> None:
    """Quantize one chunk of ``act_chunks`` into its place in ``blocks``."""
    padded = np.zeros((v.shape[0], kpad(v.shape[1])), np.float32)
    padded[:, : v.shape[1]] = v
    codes, scales = quantize_groups(padded, "nearest_low", 2)
    first = col.start // FP4_MMQ_BLOCK_VALUES
    stop = first + padded.shape[1] // FP4_MMQ_BLOCK_VALUES
    blocks[first:stop, row] = linear_to_block_fp4_mmq(pack_codes(codes), scales)
