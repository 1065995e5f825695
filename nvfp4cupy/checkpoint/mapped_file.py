"""A file that is both mapped and read."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nvfp4cupy.checkpoint.tensors import TensorInfo
from nvfp4cupy.formats import U8


class MappedFile:
    """An open file: ``raw`` gives views of the map, ``read`` gives copies.

    A view costs nothing until it is used, but its pages then count as memory of the process;
    whoever streams a file in pieces reads, and stays small.

    Args:
        path: a file that is not empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = open(path, "rb", buffering=0)  # noqa: SIM115, closed by close()
        try:
            self._map: U8 = np.asarray(np.memmap(self.file, np.uint8, "r"))
        except BaseException:
            self.file.close()
            raise

    @property
    def nbytes(self) -> int:
        """Return the length of the file when it was opened."""
        return self._map.size

    def raw(self, info: TensorInfo) -> U8:
        """Return the bytes of a tensor, uint8 ``(nbytes,)``, mapped and read-only.

        Raises:
            ValueError: the file is closed.
        """
        if self.file.closed:
            raise ValueError(f"{self.path} is closed")
        return self._map[info.offset : info.offset + info.nbytes]

    def read(self, info: TensorInfo, start: int, stop: int) -> U8:
        """Read the bytes from ``start`` to ``stop`` of a tensor into memory.

        Raises:
            ValueError: the file is closed, or ends before them.
        """
        if self.file.closed:
            raise ValueError(f"{self.path} is closed")
        data = np.empty(stop - start, np.uint8)
        self.file.seek(info.offset + start)
        done = 0
        while done < data.size:  # the system may give less than was asked for
            got = self.file.readinto(memoryview(data)[done:])
            if not got:
                raise ValueError(f"{info.where} is truncated at byte {start + done}")
            done += got
        return data

    def close(self) -> None:
        """Close the file; arrays that were given out keep the map, and stay valid."""
        self.file.close()
        self._map = np.empty(0, np.uint8)
