"""A safetensors file, written tensor by tensor."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nvfp4cupy.checkpoint.atomic import atomic_path
from nvfp4cupy.checkpoint.safetensors_header import MAX_HEADER_BYTES, METADATA_KEY
from nvfp4cupy.checkpoint.tensor_writer import TensorWriter, check_unique
from nvfp4cupy.checkpoint.tensors import (
    SAFETENSORS_DTYPES,
    Progress,
    TensorSpec,
    safetensors_nbytes,
)

DATA_ALIGNMENT = 8  # the header is padded with spaces up to this, so that 8-byte items align


def write_safetensors(
    path: str | os.PathLike[str],
    tensors: Iterable[TensorSpec],
    metadata: Mapping[str, str] | None = None,
    *,
    progress: Progress | None = None,
) -> None:
    """Write a safetensors file from tensors that are produced one piece at a time.

    Tensors lie in the order of falling item size, then of name, so that each is aligned to its
    items; producers are called in that order. The file appears at its path when it is complete;
    when a producer fails, nothing is left.

    Args:
        path: the file to write or replace.
        tensors: what to write.
        metadata: strings to store in the header.
        progress: called after each piece with the tensor's name, the bytes written, and all bytes.

    Raises:
        TypeError: metadata has something else than strings.
        ValueError: a name stands twice, a dtype is none of safetensors', or a producer gives more
            or fewer bytes than its dtype and shape need.
    """
    specs = sorted(tensors, key=_data_order)
    check_unique(specs)
    sizes = [_nbytes(spec) for spec in specs]
    header = _encode_header(specs, sizes, metadata or {})
    with atomic_path(Path(path)) as temporary, open(temporary, "xb") as file:
        file.write(header)
        writer = TensorWriter(file, sum(sizes), progress)
        for spec, nbytes in zip(specs, sizes, strict=True):
            writer.write(spec, nbytes)


def _data_order(spec: TensorSpec) -> tuple[int, str]:
    bits, _ = SAFETENSORS_DTYPES.get(spec.dtype, (0, ""))
    return -bits, spec.name


def _nbytes(spec: TensorSpec) -> int:
    try:
        return safetensors_nbytes(spec.dtype, spec.shape)
    except ValueError as error:
        raise ValueError(f"tensor {spec.name!r} cannot be written: {error}") from None


def _encode_header(
    specs: Sequence[TensorSpec], sizes: Sequence[int], metadata: Mapping[str, str]
) -> bytes:
    document: dict[str, Any] = {}
    if metadata:
        for key, value in metadata.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise TypeError(f"metadata must map strings to strings, got {key!r}: {value!r:.80}")
        document[METADATA_KEY] = dict(metadata)
    start = 0
    for spec, nbytes in zip(specs, sizes, strict=True):
        if spec.name == METADATA_KEY:
            raise ValueError(f"no tensor can have the name {METADATA_KEY!r}")
        document[spec.name] = {
            "dtype": spec.dtype,
            "shape": [int(size) for size in spec.shape],
            "data_offsets": [start, start + nbytes],
        }
        start += nbytes
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % DATA_ALIGNMENT)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"the header would take {len(text)} bytes, readers stop at 100 MB")
    return struct.pack("<Q", len(text)) + text
