"""One safetensors file, open for reading."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import numpy as np

from nvfp4cupy.checkpoint.safetensors_header import read_header
from nvfp4cupy.checkpoint.tensors import TensorInfo
from nvfp4cupy.formats import U8


class SafetensorsFile:
    """A safetensors file, checked by its own header parse and by the library, and mapped.

    Args:
        path: the file.

    Raises:
        ValueError: the file is truncated or its header is not valid.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115, closed by close()
        try:
            header = read_header(self._file, path)
            _check_with_library(path, list(header.infos))
            # A file has at least the 8 bytes of its length, so there is something to map.
            self._map = np.asarray(np.memmap(self._file, np.uint8, "r"))
        except BaseException:
            self._file.close()
            raise
        self.infos = MappingProxyType(header.infos)
        self.metadata = MappingProxyType(header.metadata)

    def raw(self, info: TensorInfo) -> U8:
        """Return the bytes of a tensor, uint8 ``(nbytes,)``, mapped and read-only."""
        return self._map[info.offset : info.offset + info.nbytes]

    def read(self, info: TensorInfo, start: int, stop: int) -> U8:
        """Read the bytes from ``start`` to ``stop`` of a tensor into memory.

        Raises:
            ValueError: the file ends before them.
        """
        return read_bytes(self._file, info, start, stop)

    def close(self) -> None:
        """Close the file; arrays that were given out stay valid."""
        self._file.close()
        self._map = np.empty(0, np.uint8)


def read_bytes(file: object, info: TensorInfo, start: int, stop: int) -> U8:
    """Read bytes of a tensor from a file object: unlike a map, they leave memory when dropped.

    Raises:
        ValueError: the file ends before them.
    """
    data = np.fromfile(file, np.uint8, stop - start, offset=0)  # type: ignore[call-overload]
    return data  # pragma: no cover
