"""Scratch memory of the feed-forward on a GPU, allocated once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from nvfp4cupy import arrays, formats
from nvfp4cupy.layouts import block_fp4_mmq_shape, round_up

__all__ = ["Buffers", "Region", "ScratchSizes", "Workspace"]

_ALIGNMENT = 256  # of every region: as good as memory that was allocated for it alone
_CACHED_VIEWS = 64  # different m whose views are kept; a decode loop uses a few


class Region(NamedTuple):
    """A part of the scratch memory: first byte, shape, and dtype."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class ScratchSizes:
    """What the scratch of a feed-forward depends on, apart from m.

    Attributes:
        k: columns of the input.
        n: rows of gate and up.
        quantized: whether activations are quantized.
        row_scale: whether each row of them has a scale.
    """

    k: int
    n: int
    quantized: bool
    row_scale: bool

    def regions(self, m: int) -> dict[str, Region]:
        """Return where each intermediate of a call with m rows lies, in order, without overlap."""
        uint8, float32 = np.dtype(np.uint8), np.dtype(np.float32)
        wanted: list[tuple[str, tuple[int, ...], np.dtype[Any]]] = [
            ("gate", (m, self.n), formats.bfloat16()),
            ("up", (m, self.n), formats.bfloat16()),
        ]
        if self.quantized:
            wanted.append(("act", block_fp4_mmq_shape(m, self.k), uint8))
            wanted.append(("hidden", block_fp4_mmq_shape(m, self.n), uint8))
        if self.row_scale:
            wanted.append(("act_scale", (m,), float32))
            wanted.append(("hidden_scale", (m,), float32))
        regions, offset = {}, 0
        for name, shape, dtype in wanted:
            regions[name] = Region(offset, shape, dtype)
            offset = round_up(offset + int(np.prod(shape)) * dtype.itemsize, _ALIGNMENT)
        return regions

    def nbytes(self, m: int) -> int:
        """Return the bytes that a call with m rows needs."""
        last = list(self.regions(m).values())[-1]
        return last.offset + int(np.prod(last.shape)) * last.dtype.itemsize


@dataclass(frozen=True)
class Buffers:
    """Where the steps of one call write to; None lets a step allocate.

    Attributes:
        act: the quantized input, with row scales a pair.
        gate: the gate product.
        up: the up product.
        hidden: the quantized intermediate, with row scales a pair.
    """

    act: Any = None
    gate: Any = None
    up: Any = None
    hidden: Any = None


class Workspace:
    """Scratch memory for calls of a feed-forward with at most ``max_m`` rows.

    Layers of the same sizes can share one. Calls that do run one after the other, whatever their
    streams: each waits, on the GPU, for the one before. Calls that shall overlap need a workspace
    each. Made by ``FeedForward.new_workspace``.

    That order does not hold for calls captured into a graph of the caller's: its replays wait for
    no call outside of it, and none waits for them. Make a workspace for such a graph alone, before
    the capture, and keep it as long as the graph; or order the replays.

    Attributes:
        max_m: the most rows of a call that needs no allocation.
        sizes: what the memory is laid out for.
    """

    def __init__(self, max_m: int, sizes: ScratchSizes) -> None:
        """Allocate on the current device and stream."""
        if not isinstance(max_m, (int, np.integer)) or isinstance(max_m, bool):
            raise TypeError(f"max_m must be an integer, got {type(max_m).__name__}")
        if max_m < 0:
            raise ValueError(f"max_m must be at least 0, got {max_m}")
        if arrays.is_capturing():
            raise RuntimeError("a workspace cannot be allocated during a graph capture")
        cupy = arrays.cupy()
        self.max_m = int(max_m)
        self.sizes = sizes
        self._memory = cupy.empty((sizes.nbytes(self.max_m),), np.uint8)
        self._in_graphs: list[Any] = []  # memory that captured calls write to
        self._is_captured = False
        # Work that used this memory before may still run on this stream: the first call waits.
        self._last_call = cupy.cuda.Event(disable_timing=True)
        self._last_call.record()
        self._lock = threading.Lock()
        self._views: dict[int, Buffers] = {}

    @property
    def nbytes(self) -> int:
        """Return the bytes allocated."""
        return int(self._memory.nbytes)

    def buffers(self, m: int) -> Buffers:
        """Return the parts for a call with m rows; they keep what the last such call left.

        Raises:
            ValueError: m is above ``max_m``.
        """
        if m > self.max_m:
            raise ValueError(f"m must be at most max_m = {self.max_m}, got {m}")
        if m not in self._views:
            if len(self._views) == _CACHED_VIEWS:
                self._views.clear()
            self._views[m] = self._make_buffers(m)
        return self._views[m]

    @contextmanager
    def borrow(self, m: int) -> Iterator[Buffers]:
        """Give the parts to a call with m rows on the current stream, after the calls before.

        While the stream is captured into a graph, nothing is waited for, then or at a replay.
        More rows than ``max_m`` make the workspace grow, which waits for the calls before.

        Raises:
            RuntimeError: it would have to grow while the stream is captured into a graph.
        """
        with self._lock:
            stream = arrays.cupy().cuda.get_current_stream()
            if stream.is_capturing():
                # A graph can neither wait for an event from outside nor leave one for outside.
                if m > self.max_m:
                    raise RuntimeError(
                        f"the workspace holds {self.max_m} rows and cannot grow to {m} during a "
                        "graph capture; pass max_m or call with as many rows before"
                    )
                self._is_captured = True
                yield self.buffers(m)
                return
            if m > self.max_m:
                self._grow(m)
            stream.wait_event(self._last_call)
            try:
                yield self.buffers(m)
            finally:
                self._last_call.record(stream)

    def _grow(self, m: int) -> None:
        if self._is_captured:
            self._in_graphs.append(self._memory)
            self._is_captured = False
        self._last_call.synchronize()  # the memory may go to another stream's allocation
        self._views.clear()
        self._memory, self.max_m = None, 0
        self._memory = arrays.cupy().empty((self.sizes.nbytes(m),), np.uint8)
        self.max_m = m

    def _make_buffers(self, m: int) -> Buffers:
        cupy = arrays.cupy()
        parts = {
            name: cupy.ndarray(region.shape, region.dtype, self._memory.data + region.offset)
            for name, region in self.sizes.regions(m).items()
        }
        act, hidden = parts.get("act"), parts.get("hidden")
        if self.sizes.row_scale:
            act, hidden = (act, parts["act_scale"]), (hidden, parts["hidden_scale"])
        return Buffers(act, parts["gate"], parts["up"], hidden)
