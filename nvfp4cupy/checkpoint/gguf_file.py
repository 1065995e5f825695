"""One GGUF file, open for reading."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nvfp4cupy.checkpoint.gguf_header import check_header
from nvfp4cupy.checkpoint.gguf_library import require_gguf
from nvfp4cupy.checkpoint.gguf_metadata import GGUFField, fields_of_reader
from nvfp4cupy.checkpoint.mapped_file import MappedFile
from nvfp4cupy.checkpoint.tensors import TensorInfo
from nvfp4cupy.formats import U8


class GGUFFile:
    """A GGUF file: the library gguf reads the header, after a check of every length in it.

    Shapes are given as rows and columns, the reverse of the order in the file.

    Args:
        path: the file.

    Raises:
        RuntimeError: the package gguf is missing.
        ValueError: the file is truncated or its header is not valid.
    """

    def __init__(self, path: Path) -> None:
        """Open and check the file."""
        gguf = require_gguf()
        if path.stat().st_size == 0:
            raise ValueError(f"{path} is truncated: it is empty")
        self.path = path
        self._mapped = MappedFile(path)
        check_header(self._mapped.bytes, path)
        try:
            reader = gguf.GGUFReader(path)
            self._fields = fields_of_reader(reader)
        except (KeyError, ValueError, IndexError) as error:
            raise ValueError(f"{path} is refused by the gguf library: {error}") from None
        infos = [_tensor_info(tensor, path) for tensor in reader.tensors]
        self.infos = MappingProxyType({info.name: info for info in infos})

    @property
    def fields(self) -> Mapping[str, GGUFField]:
        """Return the key-value pairs with their types."""
        return self._fields

    @cached_property
    def metadata(self) -> Mapping[str, Any]:
        """Return the key-value pairs as plain values."""
        return MappingProxyType({name: field.value for name, field in self._fields.items()})

    def raw(self, info: TensorInfo) -> U8:
        """Return the bytes of a tensor, uint8 ``(nbytes,)``, mapped and read-only."""
        return self._mapped.raw(info)

    def release(self, info: TensorInfo) -> None:
        """Let the system drop the pages of a tensor from memory."""
        self._mapped.release(info)

    def close(self) -> None:
        """Close the file; arrays that were given out stay valid."""
        self._mapped.close()


def _tensor_info(tensor: Any, path: Path) -> TensorInfo:
    shape = tuple(int(size) for size in reversed(tensor.shape.tolist()))
    return TensorInfo(
        name=tensor.name,
        dtype=tensor.tensor_type.name,
        shape=shape,
        nbytes=int(tensor.n_bytes),
        path=path,
        offset=int(tensor.data_offset),
    )
