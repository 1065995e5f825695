"""The header of a safetensors file: 8 bytes of length, then JSON, then the data.

Source: the safetensors format (``{"name": {"dtype", "shape", "data_offsets"}, "__metadata__"}``).
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from nvfp4cupy.checkpoint.tensors import SAFETENSORS_DTYPES, TensorInfo, safetensors_nbytes

METADATA_KEY = "__metadata__"
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library


@dataclass(frozen=True)
class Header:
    """The parsed header: metadata, and the tensors in the order of their bytes."""

    metadata: dict[str, str]
    infos: dict[str, TensorInfo]


class _DuplicateNameError(ValueError):
    """A name stands twice in one JSON object."""


def read_header(file: BinaryIO, path: Path) -> Header:
    """Read and check the header of an open safetensors file.

    No more than the length of the file is ever allocated.

    Raises:
        ValueError: the header is cut off, too long, no valid JSON, or a tensor in it has an
            unknown dtype, a wrong size, or bytes that overlap others or leave the file.
    """
    file.seek(0, 2)
    file_bytes = file.tell()
    file.seek(0)
    prefix = file.read(LENGTH_BYTES)
    if len(prefix) < LENGTH_BYTES:
        raise ValueError(f"{path} is truncated: {file_bytes} bytes hold no safetensors header")
    (header_bytes,) = struct.unpack("<Q", prefix)
    if header_bytes > MAX_HEADER_BYTES or header_bytes > file_bytes - LENGTH_BYTES:
        raise ValueError(
            f"{path} is truncated or no safetensors file: its header claims {header_bytes} bytes, "
            f"the file has {file_bytes}"
        )
    document = _parse_json(file.read(header_bytes), path)
    metadata = _check_metadata(document.pop(METADATA_KEY, {}), path)
    start = LENGTH_BYTES + header_bytes
    infos = [_tensor_info(name, entry, path, start) for name, entry in document.items()]
    infos.sort(key=lambda info: (info.offset, info.nbytes))
    _check_offsets(infos, path, start, file_bytes)
    return Header(metadata, {info.name: info for info in infos})


def _parse_json(text: bytes, path: Path) -> dict[str, Any]:
    try:
        document = json.loads(text.decode("utf-8"), object_pairs_hook=_unique_pairs)
    except _DuplicateNameError as error:
        raise ValueError(f"{path} has the name {error} twice in its header") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} has a header that is no valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise ValueError(f"{path} must have a JSON object as header, got {type(document).__name__}")
    return document


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique: dict[str, Any] = {}
    for name, value in pairs:
        if name in unique:
            raise _DuplicateNameError(repr(name))
        unique[name] = value
    return unique


def _check_metadata(metadata: Any, path: Path) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError(f"{path} must have strings only as {METADATA_KEY}")
    return metadata


def _tensor_info(name: str, entry: Any, path: Path, data_start: int) -> TensorInfo:
    fields = entry if isinstance(entry, dict) else {}
    dtype, shape = fields.get("dtype"), _sizes(fields.get("shape"))
    offsets = _sizes(fields.get("data_offsets"))
    where = f"tensor {name!r} of {path}"
    if not isinstance(dtype, str) or dtype not in SAFETENSORS_DTYPES:
        raise ValueError(f"{where} has the unknown dtype {dtype!r}")
    if shape is None:
        raise ValueError(f"{where} must have a list of sizes as shape")
    if offsets is None or len(offsets) != 2:
        raise ValueError(f"{where} must have two sizes as data_offsets")
    start, stop = offsets
    try:
        nbytes = safetensors_nbytes(dtype, shape)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if stop - start != nbytes:
        raise ValueError(
            f"{where} must have {nbytes} bytes for {dtype} {shape}, "
            f"its data_offsets are [{start}, {stop}]"
        )
    return TensorInfo(name, dtype, shape, nbytes, path, data_start + start)


def _sizes(value: Any) -> tuple[int, ...] | None:
    """Return a list of sizes as a tuple, None when it is something else."""
    # type() and not isinstance: true and false are integers to Python.
    if isinstance(value, list) and all(type(v) is int and v >= 0 for v in value):
        return tuple(value)
    return None


def _check_offsets(infos: list[TensorInfo], path: Path, start: int, file_bytes: int) -> None:
    """Check that the tensors tile the data part of the file."""
    expected, previous = start, "the header"
    for info in infos:
        where = f"tensor {info.name!r} of {path}"
        if info.offset < expected:
            raise ValueError(f"{where} overlaps {previous}")
        if info.offset > expected:
            raise ValueError(f"{where} leaves {info.offset - expected} bytes after {previous}")
        expected, previous = info.offset + info.nbytes, repr(info.name)
        if expected > file_bytes:
            raise ValueError(
                f"{where} ends at byte {expected}, but the file is truncated at {file_bytes}"
            )
    if expected < file_bytes:
        raise ValueError(f"{path} has {file_bytes - expected} bytes that belong to no tensor")
