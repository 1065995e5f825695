"""Operands of the W4A4 GEMM: repacked weights and quantized activations."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp4cupy import arrays, layouts, reference
from nvfp4cupy.launchers import mmq as launchers
from nvfp4cupy.layouts import NIBBLE_ORDERS, NibbleOrder
from nvfp4cupy.ops import checks

__all__ = ["nvfp4_mmq_quantize_act", "nvfp4_mmq_repack", "nvfp4_mmq_unpack"]

_UINT8 = np.dtype(np.uint8)
_FLOAT32 = np.dtype(np.float32)


@arrays.runs_on_stream
def nvfp4_mmq_repack(
    packed: Any,
    scales: Any,
    *,
    nibble_order: NibbleOrder = "low_first",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Move checkpoint weights into the rows of block_nvfp4 that the GEMM reads.

    A move of bits: codes and scale bytes stay what they are. The weight's decode scale takes no
    part; fold it downstream.

    Args:
        packed: uint8 ``(n, k // 2)``, ``k % 64 == 0``.
        scales: uint8 E4M3 bytes (or float8_e4m3fn) ``(n, k // 16)``.
        nibble_order: which nibble of a packed byte holds the even element: ``"low_first"``, or
            ``"high_first"`` for files that have them swapped.
        out: uint8 ``(n, k // 64, 36)`` to write to; allocated otherwise.
        stream: CuPy stream to run on; the current one otherwise.

    Returns:
        uint8 ``(n, k // 64, 36)``: 4 scale bytes, then for each group of 16 the 8 bytes
        ``code[j] | code[8 + j] << 4``.

    Raises:
        TypeError: a dtype is not uint8.
        ValueError: a shape, stride, device or ``nibble_order`` does not fit; nothing is written.

    Kernel: ``kernels/nvfp4_repack.cu``.
    """
    if nibble_order not in NIBBLE_ORDERS:
        raise ValueError(f"nibble_order must be one of {NIBBLE_ORDERS}, got {nibble_order!r}")
    packed, scales = checks.codes_and_scales(
        packed, scales, multiple=layouts.QK_NVFP4, codes_name="packed"
    )
    n, k = packed.shape[0], packed.shape[1] * 2
    launchers.MmqRepack.plan(n=n, k=k, nibble_order=nibble_order)  # refuses what no grid holds
    with arrays.context(packed, stream):
        blocks = arrays.output("out", out, layouts.block_nvfp4_shape(n, k), _UINT8, packed)
        if out is not None:
            arrays.check_overlap("out", blocks, packed=packed, scales=scales)
        if arrays.is_gpu(packed):
            launchers.MmqRepack()(packed, scales, blocks, n=n, k=k, nibble_order=nibble_order)
        else:
            blocks[...] = reference.nvfp4_mmq_repack(packed, scales, nibble_order=nibble_order)
    return blocks


@arrays.runs_on_stream
def nvfp4_mmq_unpack(blocks: Any, *, out: Any = None, stream: Any = None) -> tuple[Any, Any]:
    """Undo ``nvfp4_mmq_repack``: block_nvfp4 rows back to checkpoint order.

    Args:
        blocks: uint8 ``(n, k // 64, 36)``.
        out: pair (packed, scales) to write to; allocated otherwise.
        stream: CuPy stream to run on; the current one otherwise.

    Returns:
        packed: uint8 ``(n, k // 2)``, element ``2j`` in the low nibble of byte ``j``.
        scales: uint8 E4M3 bytes ``(n, k // 16)``.

    Raises:
        TypeError: a dtype is not uint8.
        ValueError: a shape, stride or device does not fit; nothing is written.

    Kernel: ``kernels/nvfp4_repack.cu``.
    """
    blocks, n, k = checks.weight_blocks(blocks)
    given = checks.out_tuple(out, 2)
    with arrays.context(blocks, stream):
        shapes = checks.scale_pair_shapes(n, k, "linear")
        packed = arrays.check_output("out[0]", given[0], shapes[0], _UINT8, blocks)
        scales = arrays.check_output("out[1]", given[1], shapes[1], _UINT8, blocks)
        if packed is not None:
            arrays.check_overlap("out[0]", packed, blocks=blocks, **{"out[1]": scales})
        if scales is not None:
            arrays.check_overlap("out[1]", scales, blocks=blocks)
        packed = arrays.empty(shapes[0], _UINT8, blocks) if packed is None else packed
        scales = arrays.empty(shapes[1], _UINT8, blocks) if scales is None else scales
        if arrays.is_gpu(blocks):
            launchers.MmqUnpack()(blocks, packed, scales, n=n, k=k)
        else:
            packed[...], scales[...] = reference.nvfp4_mmq_unpack(blocks)
    return packed, scales


@arrays.runs_on_stream
def nvfp4_mmq_quantize_act(
    x: Any,
    *,
    row_scale: bool = False,
    dtype: str | None = None,
    check_finite: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Quantize activations to the blocks that the GEMM reads: ``x ~= e2m1 * e4m3 [* row_scale]``.

    Each group of 16 takes the best of five scales around ``e4m3(amax / 6)`` by squared error;
    codes are rounded by ``nearest_low``. Without ``row_scale`` there is no scale above the
    groups': magnitudes above 2688 saturate and those under 2^-11 vanish. A group that holds a NaN
    or an infinity gets scale byte 0 and keeps only its signs.

    Args:
        x: bfloat16 ``(m, k)``, any ``k``; rows of contiguous elements, at any row stride.
        row_scale: quantize ``x / amax_gsa(x)`` row by row and return that scale too, for the
            GEMM's ``row_scale``.
        dtype: ``"bfloat16"`` to read uint16 elements as bfloat16 bits.
        check_finite: refuse NaN and infinity; waits for the GPU.
        out: uint8 ``(kpad // 256, m, 144)`` to write to, with ``row_scale`` a pair of it and
            float32 ``(m,)``; allocated otherwise.
        stream: CuPy stream to run on; the current one otherwise.

    Returns:
        uint8 ``(kpad // 256, m, 144)``, kpad being k rounded up to 256: 16 scale bytes, then for
        each group of 16 the 8 bytes ``code[j] | code[8 + j] << 4``; the tail is zero. With
        ``row_scale`` a pair: these blocks and float32 ``(m,)``.

    Raises:
        TypeError: a dtype is not bfloat16.
        ValueError: a shape, stride or device does not fit, or a row is not finite; nothing is
            written.

    Kernel: ``kernels/nvfp4_quantize_act.cu``.
    """
    checks.check_flags(row_scale=row_scale, check_finite=check_finite)
    x = checks.float_matrix("x", x, dtypes=("bfloat16",), dtype=dtype, strided_rows=True)
    m, k = x.shape
    stride = arrays.row_stride(x)
    launchers.MmqQuantizeAct.plan(m=m, k=k, row_stride=stride, row_scale=row_scale)
    with arrays.context(x, stream):
        given = act_outputs(out, m, k, row_scale, x=x)
        if check_finite:
            checks.finite_rows("x", x)
        blocks, scale = allocate_act(given, m, k, row_scale, x)
        if arrays.is_gpu(x):
            launchers.MmqQuantizeAct()(x, blocks, scale, m=m, k=k, row_stride=stride)
        elif row_scale:
            blocks[...], scale[...] = reference.nvfp4_mmq_quantize_act(x, row_scale=True)
        else:
            blocks[...] = reference.nvfp4_mmq_quantize_act(x)
    return (blocks, scale) if row_scale else blocks


def act_outputs(out: Any, m: int, k: int, row_scale: bool, **operands: Any) -> tuple[Any, Any]:
    """Check the caller's activation blocks and row scales; None for what is to be allocated."""
    like = next(iter(operands.values()))
    shape = layouts.block_fp4_mmq_shape(m, k)
    given = checks.out_tuple(out, 2) if row_scale else (out, None)
    name = "out[0]" if row_scale else "out"
    blocks = arrays.check_output(name, given[0], shape, _UINT8, like)
    scale = arrays.check_output("out[1]", given[1], (m,), _FLOAT32, like)
    if blocks is not None:
        arrays.check_overlap(name, blocks, **operands, **{"out[1]": scale})
    if scale is not None:
        arrays.check_overlap("out[1]", scale, **operands)
    return blocks, scale


def allocate_act(
    given: tuple[Any, Any], m: int, k: int, row_scale: bool, like: Any
) -> tuple[Any, Any]:
    """Allocate what ``act_outputs`` left open; without columns every row scale is 1 already."""
    blocks, scale = given
    if blocks is None:
        blocks = arrays.empty(layouts.block_fp4_mmq_shape(m, k), _UINT8, like)
    if row_scale and scale is None:
        scale = arrays.empty((m,), _FLOAT32, like)
    if row_scale and k == 0:
        scale.fill(1)  # there is no group to launch a thread for
    return blocks, scale
