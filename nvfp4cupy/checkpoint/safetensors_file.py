"""One safetensors file, open for reading."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nvfp4cupy.checkpoint.mapped_file import MappedFile
from nvfp4cupy.checkpoint.safetensors_header import read_header
from nvfp4cupy.checkpoint.tensors import TensorInfo
from nvfp4cupy.formats import U8


class SafetensorsFile:
    """A safetensors file, checked by our own header parse and by the library.

    The bytes come from our own parse: the library gives NumPy neither F8_E4M3 nor BF16.

    Args:
        path: the file.

    Raises:
        ValueError: the file is truncated or its header is not valid.
    """

    def __init__(self, path: Path) -> None:
        """Open and check the file."""
        with open(path, "rb") as file:
            header = read_header(file, path)
        _check_with_library(path, header.infos)
        self.path = path
        self._mapped = MappedFile(path)
        self.infos = MappingProxyType(header.infos)
        self.metadata: MappingProxyType[str, Any] = MappingProxyType(dict(header.metadata))

    def raw(self, info: TensorInfo) -> U8:
        """Return the bytes of a tensor, uint8 ``(nbytes,)``, mapped and read-only."""
        return self._mapped.raw(info)

    def release(self, info: TensorInfo) -> None:
        """Let the system drop the pages of a tensor from memory."""
        self._mapped.release(info)

    def close(self) -> None:
        """Close the file; arrays that were given out stay valid."""
        self._mapped.close()


def _check_with_library(path: Path, names: Iterable[str]) -> None:
    """Let the safetensors library open the file, and compare the names it sees."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as opened:
            seen = set(opened.keys())
    except SafetensorError as error:
        raise ValueError(f"{path} is refused by the safetensors library: {error}") from None
    if seen != set(names):
        raise ValueError(f"{path} has names that the safetensors library reads differently")
