"""NVFP4 weights on their way into a file, some rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from nvfp4cupy.checkpoint.tensors import TensorSpec
from nvfp4cupy.checkpoint.weight import NVFP4Weight
from nvfp4cupy.formats import F32, GROUP_SIZE, U8

# 4 M values: 16 MB as float32, and few enough steps that Python's own time does not count.
CHUNK_VALUES = 1 << 22


class WeightStream(Protocol):
    """A weight whose parts are asked for when they are written, one after the other."""

    @property
    def name(self) -> str:
        """Return the name of the weight."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return ``(n, k)`` or ``(experts, n, k)``."""

    @property
    def decode_scale(self) -> F32:
        """Return the decode scale, float32 ``()`` or ``(experts,)``."""

    @property
    def input_scale(self) -> F32 | None:
        """Return the decode scale of the activations, if there is one."""

    def codes(self) -> Iterator[U8]:
        """Yield linear codes ``(rows, k/2)``."""

    def scales(self) -> Iterator[U8]:
        """Yield linear scales ``(rows, k/16)``."""

    def blocks(self) -> Iterator[U8]:
        """Yield block_nvfp4 rows ``(rows, k/64, 36)``."""


class MovedWeight:
    """A weight that exists already: its bits are moved.

    Args:
        load: gives the weight, with views into a file or arrays in memory.
        release: called after each piece; lets a mapped file drop its pages.
    """

    def __init__(
        self, load: Callable[[], NVFP4Weight], release: Callable[[], None] = lambda: None
    ) -> None:
        """Load the weight once for its shape and its global scales."""
        self._load = load
        self._release = release
        weight = load()
        release()
        self.name = weight.name
        self.shape = weight.shape
        self.decode_scale: F32 = np.asarray(weight.decode_scale, np.float32)
        self.input_scale: F32 | None = None
        if weight.input_scale is not None:
            self.input_scale = np.asarray(weight.input_scale, np.float32)

    def codes(self) -> Iterator[U8]:
        """Yield linear codes ``(rows, k/2)``."""
        for piece in self._pieces():
            yield piece.linear()[0]

    def scales(self) -> Iterator[U8]:
        """Yield linear scales ``(rows, k/16)``."""
        for piece in self._pieces():
            yield piece.linear()[1]

    def blocks(self) -> Iterator[U8]:
        """Yield block_nvfp4 rows ``(rows, k/64, 36)``."""
        for piece in self._pieces():
            yield piece.blocks

    def _pieces(self) -> Iterator[NVFP4Weight]:
        weight = self._load()
        experts = weight.num_experts
        matrices = [weight] if experts is None else (weight.expert(i) for i in range(experts))
        for matrix in matrices:
            for rows in row_chunks(*matrix.shape):
                yield matrix.rows(rows)
                self._release()


def row_chunks(n: int, k: int) -> Iterator[slice]:
    """Cut the rows of a matrix ``(n, k)`` into slices of about ``CHUNK_VALUES`` values."""
    step = max(1, CHUNK_VALUES // max(1, k))
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def code_specs(stream: WeightStream, codes: str, scales: str) -> list[TensorSpec]:
    """Return the tensors of linear codes and scales under these names."""
    *leading, k = stream.shape
    return [
        TensorSpec(codes, "U8", (*leading, k // 2), stream.codes),
        TensorSpec(scales, "F8_E4M3", (*leading, k // GROUP_SIZE), stream.scales),
    ]


def global_scale_spec(name: str, shape: tuple[int, ...], value: Callable[[], F32]) -> TensorSpec:
    """Return an F32 tensor of global scales; ``value`` is called when it is written."""
    return TensorSpec(name, "F32", shape, lambda: [np.asarray(value(), np.float32).reshape(shape)])
