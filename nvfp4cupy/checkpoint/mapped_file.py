"""A file mapped into memory."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from nvfp4cupy.checkpoint.tensors import TensorInfo
from nvfp4cupy.formats import U8


class MappedFile:
    """The bytes of a file, read when they are looked at.

    Args:
        path: a file that is not empty.
    """

    def __init__(self, path: Path) -> None:
        """Map the file."""
        self.path = path
        with open(path, "rb") as file:
            self._map: mmap.mmap | None = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._bytes: U8 = np.frombuffer(self._map, np.uint8)

    @property
    def bytes(self) -> U8:
        """Return all bytes, read-only."""
        return self._bytes

    def raw(self, info: TensorInfo) -> U8:
        """Return the bytes of a tensor, uint8 ``(nbytes,)``, read-only.

        Raises:
            ValueError: the file is closed.
        """
        if self._map is None:
            raise ValueError(f"{self.path} is closed")
        return self._bytes[info.offset : info.offset + info.nbytes]

    def release(self, info: TensorInfo) -> None:
        """Let the system drop the pages of a tensor; arrays stay valid and read them anew.

        Without this whoever walks through a large file seems to need as much memory.
        """
        if self._map is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        start = info.offset // mmap.PAGESIZE * mmap.PAGESIZE
        stop = min(info.offset + info.nbytes, len(self._map))
        if stop > start:
            self._map.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def close(self) -> None:
        """Let go of the file; arrays that were given out keep the map, and stay valid."""
        self._map = None
        self._bytes = np.empty(0, np.uint8)
