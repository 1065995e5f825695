"""A feed-forward call as a CUDA graph: one launch, and no work for Python."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from nvfp4cupy import arrays, formats
from nvfp4cupy.ops import checks

if TYPE_CHECKING:
    from nvfp4cupy.ffn.feed_forward import FeedForward

__all__ = ["FeedForwardGraph"]


class FeedForwardGraph:
    """A captured call with m rows; made by ``FeedForward.capture``.

    Write the input into ``x``, call ``replay``, read ``out``; or call the object, which copies
    the input first. The memory that the graph works in is its own. Replays run one after the
    other, also on different streams, and the object copies only after the replay before.

    What else touches the two arrays knows nothing of that: on another stream than that of the
    last replay, write to ``x`` after waiting for it, and replay again after ``out`` was read.

    Attributes:
        x: bfloat16 ``(m, in_features)``: the input of the next replay.
        out: bfloat16 ``(m, out_features)``: the output of the last one.
    """

    def __init__(self, feed_forward: FeedForward, m: int) -> None:
        """Run the call once, which compiles what it needs, then capture it."""
        if not isinstance(m, (int, np.integer)) or isinstance(m, bool):
            raise TypeError(f"m must be an integer, got {type(m).__name__}")
        if m < 1:
            raise ValueError(f"m must be at least 1, got {m}")
        cupy = arrays.cupy()
        self._feed_forward = feed_forward  # keeps the weights
        self._workspace = feed_forward.new_workspace(m)
        self._last_replay = cupy.cuda.Event(disable_timing=True)
        self._lock = threading.Lock()
        self.x = cupy.zeros((m, feed_forward.in_features), formats.bfloat16())
        self.out = cupy.empty((m, feed_forward.out_features), formats.bfloat16())
        self._call()
        cupy.cuda.get_current_stream().synchronize()
        stream = cupy.cuda.Stream(non_blocking=True)  # the default stream cannot be captured
        with stream:
            stream.begin_capture()
            try:
                self._call()
            finally:
                self._graph = stream.end_capture()

    def replay(self, *, stream: Any = None) -> Any:
        """Launch the graph without waiting for it.

        Args:
            stream: CuPy stream to run on; the current one otherwise.

        Returns:
            ``out``.

        Raises:
            RuntimeError: the stream is being captured into a graph.
        """
        with arrays.context(self.x, stream), self._replayed():
            self._graph.launch()
        return self.out

    def __call__(self, x: Any, *, dtype: str | None = None, stream: Any = None) -> Any:
        """Copy an input into ``x``, after the replay before has read it, and replay.

        Args:
            x: bfloat16 of the shape of ``x``, on the same GPU.
            dtype: ``"bfloat16"`` to read uint16 elements as bfloat16 bits.
            stream: CuPy stream to run on; the current one otherwise.

        Returns:
            ``out``: the next replay overwrites it.

        Raises:
            TypeError: the dtype is not bfloat16.
            ValueError: shape or device do not fit.
            RuntimeError: the stream is being captured into a graph.
        """
        x = checks.float_matrix("x", x, dtypes=("bfloat16",), dtype=dtype, strided_rows=True)
        if x.shape != self.x.shape:
            raise ValueError(f"x must have the captured shape {self.x.shape}, got {x.shape}")
        arrays.check_same_side(weights=self.x, x=x)
        with arrays.context(self.x, stream), self._replayed() as current:
            # CUDA keeps replays of one graph apart, but not this copy and a replay elsewhere.
            current.wait_event(self._last_replay)
            self.x[...] = x
            self._graph.launch()
        return self.out

    @contextmanager
    def _replayed(self) -> Iterator[Any]:
        """Give the current stream, and mark there what the next copy has to wait for."""
        with self._lock:
            stream = arrays.cupy().cuda.get_current_stream()
            if stream.is_capturing():
                raise RuntimeError(
                    "a FeedForwardGraph cannot be replayed during a graph capture; "
                    "call the FeedForward instead"
                )
            try:
                yield stream
            finally:
                self._last_replay.record(stream)

    def _call(self) -> None:
        self._feed_forward(self.x, out=self.out, workspace=self._workspace)
