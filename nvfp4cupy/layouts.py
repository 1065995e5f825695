"""Shapes, sizes and byte layouts of NVFP4 data; bytes are moved, never interpreted.

- **linear** (checkpoints): codes uint8 ``(n, k/2)``, element ``2j`` in the low nibble of byte j;
  scales uint8 ``(n, k/16)``.
- **block_nvfp4** (weights): uint8 ``(n, k/64, 36)``: 4 scales, then 4 sub-blocks of 8 bytes.
- **block_fp4_mmq** (activations): uint8 ``(kpad/256, m, 144)``: 16 scales, then 16 sub-blocks of
  8 bytes; all rows of one 256-wide k-block lie together.
- **128x4**: scales in the order that cuBLASLt and CUTLASS read.

A sub-block of 16 codes is in split halves: byte j is ``code[j] | code[8 + j] << 4``.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.formats import GROUP_SIZE, U8

NibbleOrder: TypeAlias = Literal["low_first", "high_first"]
ScaleLayout: TypeAlias = Literal["linear", "128x4"]

NIBBLE_ORDERS: tuple[NibbleOrder, ...] = ("low_first", "high_first")
SCALE_LAYOUTS: tuple[ScaleLayout, ...] = ("linear", "128x4")

QK_NVFP4 = 64  # values in one block_nvfp4
NVFP4_BLOCK_BYTES = 36  # 4 scales + 32 bytes of codes
FP4_MMQ_BLOCK_VALUES = 256  # values in one block_fp4_mmq
FP4_MMQ_BLOCK_BYTES = 144  # 16 scales + 128 bytes of codes
FP4_ACT_SLACK_BYTES = 1 << 20  # part of fp4_act_scratch_bytes; no kernel reads it

MMQ_TILES = (16, 32, 64, 128)  # activation rows per block of the tiled GEMM
MMQ_WEIGHT_ROWS = 128  # weight rows per block

SWIZZLE_ROWS = 128
SWIZZLE_COLS = 4

_LOW_NIBBLES = np.uint8(0x0F)
_HIGH_NIBBLES = np.uint8(0xF0)


def integer(name: str, value: Any) -> int:
    """Return an argument that must be an integer.

    Raises:
        TypeError: it is none, or a bool; the message names it.
    """
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    return int(value)


def size(name: str, value: Any) -> int:
    """Return an argument that must be an integer of at least 0.

    Raises:
        TypeError: it is no integer.
        ValueError: it is negative.
    """
    number = integer(name, value)
    if number < 0:
        raise ValueError(f"{name} must be at least 0, got {number}")
    return number


def div_ceil(a: int, b: int) -> int:
    """Return ``a / b`` rounded up."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """Return the smallest multiple of ``b`` that is at least ``a``."""
    return div_ceil(a, b) * b


def kpad(k: int) -> int:
    """Return ``k`` rounded up to 256, the width of quantized activations."""
    return round_up(size("k", k), FP4_MMQ_BLOCK_VALUES)


def block_nvfp4_shape(n: int, k: int) -> tuple[int, int, int]:
    """Return the shape ``(n, k/64, 36)`` of block_nvfp4 weights.

    Raises:
        TypeError: n or k is no integer.
        ValueError: one is negative, or k is not a multiple of 64.
    """
    n, k = size("n", n), size("k", k)
    if k % QK_NVFP4:
        raise ValueError(f"k must be a multiple of {QK_NVFP4}, got k={k}")
    return n, k // QK_NVFP4, NVFP4_BLOCK_BYTES


def block_fp4_mmq_shape(m: int, k: int) -> tuple[int, int, int]:
    """Return the shape ``(kpad/256, m, 144)`` of block_fp4_mmq activations.

    Raises:
        TypeError: m or k is no integer.
        ValueError: one is negative.
    """
    m, k = size("m", m), size("k", k)
    return div_ceil(k, FP4_MMQ_BLOCK_VALUES), m, FP4_MMQ_BLOCK_BYTES


def swizzled_scales_shape(rows: int, cols: int) -> tuple[int, int]:
    """Return the shape of ``(rows, cols)`` scales in the 128x4 layout: padded to 128 and 4.

    Raises:
        TypeError: rows or cols is no integer.
        ValueError: one is negative.
    """
    rows, cols = size("rows", rows), size("cols", cols)
    return round_up(rows, SWIZZLE_ROWS), round_up(cols, SWIZZLE_COLS)


def scales_shape(rows: int, cols: int, scale_layout: ScaleLayout) -> tuple[int, int]:
    """Return the shape of ``(rows, cols)`` scales in either layout.

    Raises:
        ValueError: ``scale_layout`` is not one of ``SCALE_LAYOUTS``.
    """
    if scale_layout not in SCALE_LAYOUTS:
        allowed = ", ".join(SCALE_LAYOUTS)
        raise ValueError(f"scale_layout must be one of {allowed}, got {scale_layout!r}")
    return (rows, cols) if scale_layout == "linear" else swizzled_scales_shape(rows, cols)


def nvfp4_mmq_weight_bytes(n: int, k: int) -> int:
    """Return the bytes of block_nvfp4 weights ``(n, k)``: ``n * (k / 64) * 36``.

    Raises:
        TypeError: n or k is no integer.
        ValueError: one is negative, or k is not a multiple of 64.
    """
    rows, num_blocks, block_bytes = block_nvfp4_shape(n, k)
    return rows * num_blocks * block_bytes


def fp4_act_scratch_bytes(m: int, k: int) -> int:
    """Return ``m * ceil(k / 256) * 144 + 2^20``, the scratch size callers reserve.

    The last MiB is slack: an array of exactly ``block_fp4_mmq_shape(m, k)`` is enough.

    Raises:
        TypeError: m or k is no integer.
        ValueError: one is negative.
    """
    num_blocks, rows, block_bytes = block_fp4_mmq_shape(m, k)
    return rows * num_blocks * block_bytes + FP4_ACT_SLACK_BYTES


def nvfp4_mmq_smem(mmq_x: int) -> int:
    """Return the dynamic shared memory of the tiled GEMM in bytes.

    ``4 * (mmq_x + roundup(36 * mmq_x, 256) + 128 * 76)``: row ids, activation tile, weight tile.

    Args:
        mmq_x: activation rows per block: 16, 32, 64 or 128.

    Raises:
        TypeError: mmq_x is no integer.
        ValueError: there is no kernel for this tile.
    """
    mmq_x = integer("mmq_x", mmq_x)
    if mmq_x not in MMQ_TILES:
        raise ValueError(f"mmq_x must be one of 16, 32, 64, 128, got {mmq_x}")
    word_bytes = 4
    row_ids = mmq_x
    activation_tile = round_up(mmq_x * FP4_MMQ_BLOCK_BYTES // word_bytes, 256)
    weight_tile = MMQ_WEIGHT_ROWS * 76  # 64 words of codes, 8 of scales, 4 of padding per row
    return word_bytes * (row_ids + activation_tile + weight_tile)


NVFP4_MMQ_SMEM = nvfp4_mmq_smem(128)


def linear_to_block_nvfp4(packed: U8, scales: U8, *, nibble_order: NibbleOrder = "low_first") -> U8:
    """Move linear codes and scales into block_nvfp4 rows, bit for bit.

    Args:
        packed: uint8 ``(n, k/2)``, k a multiple of 64.
        scales: uint8 ``(n, k/16)``.
        nibble_order: ``"low_first"``: element 2j is the low nibble of byte j; ``"high_first"``:
            the high one, as some published files have it.

    Returns:
        uint8 ``(n, k/64, 36)``.

    Raises:
        ValueError: a shape does not fit or ``nibble_order`` is unknown.
    """
    if nibble_order not in NIBBLE_ORDERS:
        allowed = ", ".join(NIBBLE_ORDERS)
        raise ValueError(f"nibble_order must be one of {allowed}, got {nibble_order!r}")
    n, k = _linear_shape(packed, scales, QK_NVFP4)
    blocks = np.empty(block_nvfp4_shape(n, k), np.uint8)
    _write_blocks(blocks, packed, scales, swapped=nibble_order == "high_first")
    return blocks


def block_nvfp4_to_linear(blocks: U8) -> tuple[U8, U8]:
    """Undo ``linear_to_block_nvfp4`` (low nibble first).

    Args:
        blocks: uint8 ``(n, k/64, 36)``.

    Returns:
        packed: uint8 ``(n, k/2)``.
        scales: uint8 ``(n, k/16)``.

    Raises:
        ValueError: the shape is not ``(n, k/64, 36)``.
    """
    _check_blocks(blocks, "(n, k/64, 36)", NVFP4_BLOCK_BYTES)
    return _read_blocks(blocks)


def linear_to_block_fp4_mmq(packed: U8, scales: U8) -> U8:
    """Move linear codes and scales into block_fp4_mmq, bit for bit.

    Args:
        packed: uint8 ``(m, kpad/2)``, kpad a multiple of 256, low nibble first.
        scales: uint8 ``(m, kpad/16)``.

    Returns:
        uint8 ``(kpad/256, m, 144)``.

    Raises:
        ValueError: a shape does not fit.
    """
    m, k = _linear_shape(packed, scales, FP4_MMQ_BLOCK_VALUES)
    blocks = np.empty(block_fp4_mmq_shape(m, k), np.uint8)
    _write_blocks(blocks.transpose(1, 0, 2), packed, scales)
    return blocks


def block_fp4_mmq_to_linear(blocks: U8) -> tuple[U8, U8]:
    """Undo ``linear_to_block_fp4_mmq``.

    Args:
        blocks: uint8 ``(kpad/256, m, 144)``.

    Returns:
        packed: uint8 ``(m, kpad/2)``.
        scales: uint8 ``(m, kpad/16)``.

    Raises:
        ValueError: the shape is not ``(kpad/256, m, 144)``.
    """
    _check_blocks(blocks, "(kpad/256, m, 144)", FP4_MMQ_BLOCK_BYTES)
    return _read_blocks(blocks.transpose(1, 0, 2))


def _linear_shape(packed: U8, scales: U8, multiple: int) -> tuple[int, int]:
    if packed.ndim != 2 or (2 * packed.shape[1]) % multiple:
        raise ValueError(
            f"packed must be (rows, k/2) with k a multiple of {multiple}, got shape {packed.shape}"
        )
    n, k = packed.shape[0], 2 * packed.shape[1]
    if scales.shape != (n, k // GROUP_SIZE):
        raise ValueError(
            f"scales must be {(n, k // GROUP_SIZE)} for packed {packed.shape}, got {scales.shape}"
        )
    return n, k


def _check_blocks(blocks: U8, shape: str, block_bytes: int) -> None:
    if blocks.ndim != 3 or blocks.shape[2] != block_bytes:
        raise ValueError(f"blocks must have shape {shape}, got {blocks.shape}")


def _write_blocks(blocks: U8, packed: U8, scales: U8, *, swapped: bool = False) -> None:
    """Fill ``(rows, blocks, bytes)``; ``swapped``: the even element is in the high nibble."""
    scale_bytes, halves = _parts(blocks)
    scale_bytes[...] = scales.reshape(scale_bytes.shape)
    pairs = packed.reshape(halves.shape)
    first, second = pairs[..., :4], pairs[..., 4:]  # codes 0..7, codes 8..15
    even, odd = (1, 0) if swapped else (0, 1)
    halves[..., even::2] = (first & _LOW_NIBBLES) | (second << np.uint8(4))
    halves[..., odd::2] = (first >> np.uint8(4)) | (second & _HIGH_NIBBLES)


def _read_blocks(blocks: U8) -> tuple[U8, U8]:
    """Undo ``_write_blocks``: ``(rows, blocks, bytes)`` to linear codes and scales."""
    scale_bytes, halves = _parts(blocks)
    pairs = np.empty(halves.shape, np.uint8)
    even, odd = halves[..., 0::2], halves[..., 1::2]
    pairs[..., :4] = (even & _LOW_NIBBLES) | (odd << np.uint8(4))
    pairs[..., 4:] = (even >> np.uint8(4)) | (odd & _HIGH_NIBBLES)
    rows, num_blocks, num_scales, subblock_bytes = halves.shape
    num_groups = num_blocks * num_scales
    return pairs.reshape(rows, num_groups * subblock_bytes), scale_bytes.reshape(rows, num_groups)


def _parts(blocks: U8) -> tuple[U8, U8]:
    """View blocks as scales ``(rows, blocks, s)`` and sub-blocks ``(rows, blocks, s, 8)``."""
    rows, num_blocks, block_bytes = blocks.shape
    num_scales = block_bytes // (1 + GROUP_SIZE // 2)  # a group is 1 byte of scale, 8 of codes
    halves = blocks[..., num_scales:]  # splitting the last axis never copies
    return blocks[..., :num_scales], halves.reshape(rows, num_blocks, num_scales, GROUP_SIZE // 2)


def swizzle_scales(scales: NDArray[Any]) -> NDArray[Any]:
    """Order scales as cuBLASLt and CUTLASS read them; padding bytes are zero.

    Byte ``((r/128) * ceil(cols, 4) + c/4) * 512 + (r % 32) * 16 + (r % 128)/32 * 4 + c % 4`` of
    the result is scale ``(r, c)``.

    Args:
        scales: uint8 (or any one-byte type) ``(rows, cols)``, a NumPy or CuPy array.

    Returns:
        The same type, ``(roundup(rows, 128), roundup(cols, 4))``, C-contiguous, whose bytes are in
        the swizzled order.

    Raises:
        TypeError: scales is no array, or its items are not one byte.
        ValueError: scales is not a matrix.
    """
    _check_scales(scales, "scales")
    rows, cols = scales.shape
    padded_rows, padded_cols = swizzled_scales_shape(rows, cols)
    codes = scales.view(np.uint8)
    padded = np.zeros_like(codes, shape=(padded_rows, padded_cols))  # on the GPU for a GPU array
    padded[:rows, :cols] = codes
    # [r/128, (r%128)/32, r%32, c/4, c%4] -> [r/128, c/4, r%32, (r%128)/32, c%4]
    tiles = padded.reshape(padded_rows // 128, 4, 32, padded_cols // 4, 4)
    swizzled = tiles.transpose(0, 3, 2, 1, 4).reshape(padded_rows, padded_cols)
    result: NDArray[Any] = swizzled.view(scales.dtype)
    return result


def unswizzle_scales(swizzled: NDArray[Any], rows: int, cols: int) -> NDArray[Any]:
    """Undo ``swizzle_scales``; padding is dropped.

    Args:
        swizzled: one-byte type, ``(roundup(rows, 128), roundup(cols, 4))``, C-contiguous, a NumPy
            or CuPy array.
        rows: rows to return.
        cols: columns to return.

    Returns:
        The same type, ``(rows, cols)``, a fresh C-contiguous array.

    Raises:
        TypeError: swizzled is no array, its items are not one byte, or rows or cols is no integer.
        ValueError: the shape does not fit ``rows`` and ``cols``.
    """
    _check_scales(swizzled, "swizzled")
    padded_rows, padded_cols = swizzled_scales_shape(rows, cols)
    if swizzled.shape != (padded_rows, padded_cols):
        raise ValueError(
            f"swizzled must be {(padded_rows, padded_cols)} for {rows} rows and {cols} columns, "
            f"got shape {swizzled.shape}"
        )
    tiles = swizzled.view(np.uint8).reshape(padded_rows // 128, padded_cols // 4, 32, 4, 4)
    linear = tiles.transpose(0, 3, 2, 1, 4).reshape(padded_rows, padded_cols)
    result: NDArray[Any] = linear[:rows, :cols].copy().view(swizzled.dtype)
    return result


def _check_scales(scales: NDArray[Any], name: str) -> None:
    if not (hasattr(scales, "__array_interface__") or hasattr(scales, "__cuda_array_interface__")):
        raise TypeError(f"{name} must be an array, got {type(scales).__name__}")
    if scales.dtype.itemsize != 1:
        raise TypeError(f"{name} must have one-byte items, got {scales.dtype}")
    if scales.ndim != 2:
        raise ValueError(f"{name} must be (rows, cols), got shape {scales.shape}")
