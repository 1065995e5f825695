"""The header of a GGUF file, walked once so that a damaged file is refused by name.

The library's reader trusts lengths and counts; this walk checks each against the file first.

Source: the GGUF format, version 3: magic, version, counts, key-value pairs, tensor infos, data.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

from nvfp4cupy.checkpoint.gguf_library import block_sizes, require_gguf
from nvfp4cupy.formats import U8
from nvfp4cupy.layouts import round_up

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"

# Bytes of the simple value types by number; 8 is a string, 9 an array.
_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _STRING, _ARRAY = 4, 8, 9
_MAX_DEPTH = 4  # arrays of arrays
_MAX_DIMS = 8


@dataclass
class _Walk:
    """A position in the file that never passes its end."""

    data: U8
    path: Path
    position: int = 0

    def take(self, nbytes: int) -> bytes:
        stop = self.position + nbytes
        if stop > self.data.size:
            raise ValueError(
                f"{self.path} is truncated: its header needs byte {stop}, "
                f"the file has {self.data.size}"
            )
        taken = self.data[self.position : stop].tobytes()
        self.position = stop
        return taken

    def skip(self, nbytes: int) -> None:
        stop = self.position + nbytes
        if stop > self.data.size:
            self.take(nbytes)
        self.position = stop

    def u32(self) -> int:
        return int(struct.unpack("<I", self.take(4))[0])

    def u64(self) -> int:
        return int(struct.unpack("<Q", self.take(8))[0])

    def string(self) -> str:
        raw = self.take(self.u64())
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{self.path} has a name that is not UTF-8") from None


def check_header(data: U8, path: Path) -> None:
    """Check that every length of a GGUF header fits the file, and every tensor its data.

    Args:
        data: the bytes of the file.
        path: named by errors.

    Raises:
        ValueError: the file is truncated, no little-endian GGUF file of version 2 or 3, or a
            tensor in it has an unknown type, a wrong shape or bytes that leave the file or overlap.
    """
    walk = _Walk(data, path)
    if walk.take(4) != MAGIC:
        raise ValueError(f"{path} is no GGUF file: it does not start with GGUF")
    version = walk.u32()
    if version not in VERSIONS:
        endian = " (big-endian?)" if version & 0xFFFF == 0 else ""
        raise ValueError(f"{path} must be GGUF version 2 or 3, got {version}{endian}")
    num_tensors, num_pairs = walk.u64(), walk.u64()
    alignment = DEFAULT_ALIGNMENT
    for _ in range(num_pairs):
        key, kind = walk.string(), walk.u32()
        if key == ALIGNMENT_KEY and kind == _UINT32:
            alignment = walk.u32()
        else:
            _skip_value(walk, kind)
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"{path} must have a power of two as {ALIGNMENT_KEY}, got {alignment}")
    tensors = [_tensor(walk) for _ in range(num_tensors)]
    _check_data(tensors, path, round_up(walk.position, alignment), data.size)


def _skip_value(walk: _Walk, kind: int, depth: int = 0) -> None:
    if kind in _VALUE_BYTES:
        walk.skip(_VALUE_BYTES[kind])
    elif kind == _STRING:
        walk.skip(walk.u64())
    elif kind == _ARRAY and depth < _MAX_DEPTH:
        item_kind, count = walk.u32(), walk.u64()
        if item_kind in _VALUE_BYTES:
            walk.skip(count * _VALUE_BYTES[item_kind])
            return
        for _ in range(count):  # every item takes bytes, so the end of the file ends this
            _skip_value(walk, item_kind, depth + 1)
    else:
        raise ValueError(f"{walk.path} has a key-value pair of unknown type {kind}")


def _tensor(walk: _Walk) -> tuple[int, int, str]:
    """Walk over one tensor info; return (offset in the data, bytes, name)."""
    gguf = require_gguf()
    name, num_dims = walk.string(), walk.u32()
    where = f"tensor {name!r} of {walk.path}"
    if num_dims > _MAX_DIMS:
        raise ValueError(f"{where} must have at most {_MAX_DIMS} dimensions, got {num_dims}")
    dims = [walk.u64() for _ in range(num_dims)]
    number, offset = walk.u32(), walk.u64()
    try:
        type_name = gguf.GGMLQuantizationType(number).name
    except ValueError:
        raise ValueError(f"{where} has the unknown type {number}") from None
    block_values, block_bytes = block_sizes(type_name)
    row = dims[0] if dims else 1  # the contiguous dimension comes first
    if row % block_values:
        raise ValueError(
            f"{where} must have k a multiple of {block_values} for {type_name}, got k = {row}"
        )
    return offset, math.prod(dims) // block_values * block_bytes, name


def _check_data(
    tensors: list[tuple[int, int, str]], path: Path, data_start: int, file_bytes: int
) -> None:
    expected = data_start
    for offset, nbytes, name in sorted(tensors):
        start = data_start + offset
        where = f"tensor {name!r} of {path}"
        if start < expected and nbytes:
            raise ValueError(f"{where} overlaps another tensor")
        expected = max(expected, start + nbytes)
        if start + nbytes > file_bytes:
            raise ValueError(
                f"{where} ends at byte {start + nbytes}, but the file is truncated at {file_bytes}"
            )
