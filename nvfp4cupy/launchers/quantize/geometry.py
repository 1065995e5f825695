"""Blocks, grids and compile-time options that the quantizers' launchers share."""

from __future__ import annotations

from typing import Literal, TypeAlias

from nvfp4cupy.formats import GROUP_SIZE, ROUNDINGS, Rounding
from nvfp4cupy.launch import MAX_GRID_YZ, Arg, div_ceil, pointer
from nvfp4cupy.layouts import SWIZZLE_ROWS, ScaleLayout, round_up, scales_shape

InputType: TypeAlias = Literal["bfloat16", "float16", "float32"]
Defines: TypeAlias = tuple[tuple[str, str], ...]

# Bytes of an element; the place in this table is what NVFP4_INPUT and NVFP4_OUTPUT say.
ITEM_BYTES: dict[str, int] = {"bfloat16": 2, "float16": 2, "float32": 4}
THREADS = 256
WARP = 32
LOAD_BYTES = 128  # that a thread of the quantizers has in flight


def check_sizes(**sizes: int) -> None:
    """Refuse negative sizes.

    Raises:
        ValueError: the message names the size.
    """
    for name, size in sizes.items():
        if size < 0:
            raise ValueError(f"{name} must not be negative, got {name}={size}")


def check_columns(name: str, columns: int) -> None:
    """Refuse columns that do not make whole groups.

    Raises:
        ValueError: the message names the size.
    """
    if columns % GROUP_SIZE:
        raise ValueError(f"{name} must be a multiple of {GROUP_SIZE}, got {name}={columns}")


def type_define(name: str, dtype: str) -> Defines:
    """Return the definition of an element type; bfloat16 is the default and has none.

    Raises:
        ValueError: there is no kernel for it.
    """
    if dtype not in ITEM_BYTES:
        raise ValueError(f"dtype must be one of {', '.join(ITEM_BYTES)}, got {dtype!r}")
    number = list(ITEM_BYTES).index(dtype)
    return ((name, str(number)),) if number else ()


def quantizer_defines(
    dtype: str, rounding: Rounding, scale_search: int, scale_layout: ScaleLayout
) -> Defines:
    """Return the definitions of a quantizer's options, sorted; none for the defaults.

    Raises:
        ValueError: an option is unknown.
    """
    if rounding not in ROUNDINGS:
        raise ValueError(f"rounding must be one of {', '.join(ROUNDINGS)}, got {rounding!r}")
    if scale_search not in (0, 2):
        raise ValueError(f"scale_search must be 0 or 2, got {scale_search!r}")
    scales_shape(0, 0, scale_layout)  # refuses an unknown layout
    defines = list(type_define("NVFP4_INPUT", dtype))
    if rule := ROUNDINGS.index(rounding):
        defines.append(("NVFP4_ROUNDING", str(rule)))
    if scale_layout == "128x4":
        defines.append(("NVFP4_SCALE_LAYOUT", "1"))
    if scale_search:
        defines.append(("NVFP4_SCALE_SEARCH", "1"))
    return tuple(defines)


def num_rows(m: int, scale_layout: ScaleLayout) -> int:
    """Return the rows that the grid covers: with those of the padding that it zeroes."""
    return round_up(m, SWIZZLE_ROWS) if scale_layout == "128x4" else m


def groups_per_thread(dtype: str, scale_search: int) -> int:
    """Return how many groups of 16 a thread of the quantizers loads at once: 128 bytes, or one."""
    return 1 if scale_search else LOAD_BYTES // (GROUP_SIZE * ITEM_BYTES[dtype])


def row_threads(items: int, items_per_thread: int) -> int:
    """Choose how many of a block's 256 threads work on a row that blocks share: a power of two.

    Enough to take the row at a time, up to a warp, so that neighbours' accesses lie together; more
    if that leaves no more threads without an item.

    Args:
        items: what a row consists of.
        items_per_thread: how many of them a thread takes at a time.
    """
    fewest = min(whole_row_threads(items, items_per_thread), WARP)
    candidates = [1 << i for i in range(9) if 1 << i >= fewest]
    return min(candidates, key=lambda t: (round_up(items, t * items_per_thread), -t))


def whole_row_threads(items: int, items_per_thread: int) -> int:
    """Choose the threads of a row that one block reads to its end: enough to take it at a time.

    Args:
        items: what a row consists of.
        items_per_thread: how many of them a thread takes at a time.
    """
    needed = max(div_ceil(items, items_per_thread), min(items, 4), 1)
    return min(1 << (needed - 1).bit_length(), THREADS)


def grid_of(
    rows: int, items: int, items_per_thread: int, threads: int
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Return grid and block: rows in x, items of a row in y as far as a grid goes."""
    block = (threads, THREADS // threads, 1)
    columns = min(div_ceil(items, threads * items_per_thread), MAX_GRID_YZ)
    return (div_ceil(rows, block[1]), columns, 1), block


def output_args(m: int, columns: int, scale_layout: ScaleLayout) -> tuple[Arg, Arg]:
    """Return the pointers of the codes ``(m, columns / 2)`` and of their scales."""
    rows, cols = scales_shape(m, columns // GROUP_SIZE, scale_layout)
    return (
        pointer("out_fp4", m * (columns // 2), "out"),
        pointer("out_sf", rows * cols, "out"),
    )
