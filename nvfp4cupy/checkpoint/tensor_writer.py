"""Tensors, written to an open file one piece at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.checkpoint.tensors import Progress, TensorSpec


class TensorWriter:
    """Writes the pieces of tensors and counts their bytes.

    Args:
        file: where to write, at its current position.
        total_bytes: bytes of all tensors, for ``progress``.
        progress: called after each piece with the tensor's name, the bytes written, and all bytes.
    """

    def __init__(self, file: BinaryIO, total_bytes: int, progress: Progress | None) -> None:
        """Start with nothing written."""
        self._file = file
        self._total_bytes = total_bytes
        self._progress = progress
        self._done_bytes = 0

    def write(self, spec: TensorSpec, nbytes: int) -> None:
        """Write one tensor.

        Raises:
            ValueError: the producer gives more or fewer bytes than ``nbytes``.
        """
        written = 0
        for piece in spec.producer():
            written += piece.nbytes
            if written > nbytes:
                break
            self._file.write(_buffer(piece))
            self._done_bytes += piece.nbytes
            if self._progress is not None:
                self._progress(spec.name, self._done_bytes, self._total_bytes)
        if written != nbytes:
            got = "more" if written > nbytes else str(written)
            raise ValueError(
                f"tensor {spec.name!r} of {spec.dtype} {spec.shape} needs {nbytes} bytes, "
                f"its producer gave {got}"
            )


def check_unique(specs: Iterable[TensorSpec]) -> None:
    """Check that no name stands twice.

    Raises:
        ValueError: one does.
    """
    seen: set[str] = set()
    for spec in specs:
        if spec.name in seen:
            raise ValueError(f"tensor {spec.name!r} would be written twice")
        seen.add(spec.name)


def _buffer(piece: NDArray[Any]) -> Any:
    """See an array of any type as bytes; ml_dtypes' types have no buffer of their own."""
    return np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
