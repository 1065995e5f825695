"""Operands of any size, filled with quantized and plain normal numbers, on either side.

Never zeros: a product of zeros runs faster than one of data. A sample of a few million values is
made and quantized once, by the reference, and repeated; its lengths are primes, so that the rows
of a matrix differ.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy import formats, layouts, reference
from nvfp4cupy.formats import GROUP_SIZE, GSA_DIVISOR

__all__ = ["Samples"]

_QUANTIZED_SHAPE = (256, 1024)
# Each the largest prime that is not above what there is: 2^22 values are drawn, 2^18 of them
# quantized, which gives 2^17 bytes of codes, 2^14 scales, 2^12 and 2^10 blocks.
_NUM_VALUES = 4_194_301
_NUM_CODES = 131_071
_NUM_SCALES = 16_381
_NUM_WEIGHT_BLOCKS = 4093
_NUM_ACT_BLOCKS = 1021


class Samples:
    """Makes operands and keeps them until `clear`, so that calls share what they read.

    Args:
        xp: ``numpy`` or ``cupy``: where the arrays lie.
        seed: of the random numbers.
    """

    def __init__(self, xp: Any, seed: int = 0) -> None:
        """Start with nothing made."""
        self.xp = xp
        self._seed = seed
        self._kept: dict[tuple[Any, ...], Any] = {}

    def clear(self) -> None:
        """Forget the arrays, and give their memory back."""
        self._kept.clear()
        if self.xp is not np:
            self.xp.get_default_memory_pool().free_all_blocks()

    def keep(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Return what was made under ``key``, or make it."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def bfloat16(self, what: str, rows: int, columns: int, i: int = 0) -> Any:
        """Return standard normal bfloat16 ``(rows, columns)``.

        Args:
            what: tells operands of equal shape apart.
            rows: rows.
            columns: columns.
            i: which of several equal copies.
        """
        shape = (rows, columns)
        return self.keep(
            ("bfloat16", what, *shape, i),
            lambda: self._repeat(self._bits, shape).view(formats.bfloat16()),
        )

    def decode_scales(self, rows: int, i: int = 0) -> Any:
        """Return float32 ``(rows,)``: decode scales with which no sample saturates."""
        largest = np.abs(self._values.astype(np.float32)).max()
        factors = 1 + np.arange(rows) % 7 / 64
        scales = (largest / GSA_DIVISOR * factors).astype(np.float32)
        return self.keep(("decode scales", rows, i), lambda: self.xp.asarray(scales))

    def codes(self, rows: int, columns: int, i: int = 0) -> Any:
        """Return packed codes, uint8 ``(rows, columns / 2)``."""
        shape = (rows, columns // 2)
        return self.keep(("codes", *shape, i), lambda: self._repeat(self._quantized[0], shape))

    def scales(self, rows: int, columns: int, i: int = 0) -> Any:
        """Return the scales of (rows, columns) values, uint8 ``(rows, columns / 16)``."""
        shape = (rows, columns // GROUP_SIZE)
        return self.keep(("scales", *shape, i), lambda: self._repeat(self._quantized[1], shape))

    def weight_blocks(self, n: int, k: int, i: int = 0) -> Any:
        """Return block_nvfp4 weights, uint8 ``(n, k / 64, 36)``."""
        shape = layouts.block_nvfp4_shape(n, k)
        return self.keep(("weights", *shape, i), lambda: self._repeat(self._blocks[0], shape))

    def act_blocks(self, m: int, k: int, i: int = 0) -> Any:
        """Return block_fp4_mmq activations, uint8 ``(ceil(k / 256), m, 144)``."""
        shape = layouts.block_fp4_mmq_shape(m, k)
        return self.keep(("acts", *shape, i), lambda: self._repeat(self._blocks[1], shape))

    def empty(self, what: str, shape: tuple[int, ...], dtype: Any, i: int = 0) -> Any:
        """Return an uninitialised array for an output."""
        key = ("empty", what, *shape, np.dtype(dtype).name, i)
        return self.keep(key, lambda: self.xp.empty(shape, dtype))

    def _repeat(self, base: NDArray[Any], shape: tuple[int, ...]) -> Any:
        """Return a fresh contiguous array filled with ``base`` over and over."""
        size = int(np.prod(shape, dtype=np.int64))
        array = self.xp.empty(size, base.dtype)
        block = self.xp.asarray(base)
        whole = size // base.size * base.size
        array[:whole].reshape(-1, base.size)[...] = block
        array[whole:] = block[: size - whole]
        return array.reshape(shape)

    @cached_property
    def _values(self) -> NDArray[Any]:
        rng = np.random.default_rng(self._seed)
        values = rng.standard_normal(_NUM_VALUES, dtype=np.float32)
        return values.astype(formats.bfloat16())

    @cached_property
    def _bits(self) -> NDArray[np.uint16]:
        return self._values.view(np.uint16)

    @cached_property
    def _quantized(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Linear codes and scales, as vectors."""
        codes, scales = self._quantized_rows
        return codes.ravel()[:_NUM_CODES], scales.ravel()[:_NUM_SCALES]

    @cached_property
    def _quantized_rows(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        rows, columns = _QUANTIZED_SHAPE
        return reference.quantize_nvfp4(self._values[: rows * columns].reshape(rows, columns), 1.0)

    @cached_property
    def _blocks(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Blocks of 36 and of 144 bytes, as vectors."""
        weights = layouts.linear_to_block_nvfp4(*self._quantized_rows)
        acts = layouts.linear_to_block_fp4_mmq(*self._quantized_rows)
        return (
            weights.reshape(-1, layouts.NVFP4_BLOCK_BYTES)[:_NUM_WEIGHT_BLOCKS].ravel(),
            acts.reshape(-1, layouts.FP4_MMQ_BLOCK_BYTES)[:_NUM_ACT_BLOCKS].ravel(),
        )
