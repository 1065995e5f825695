"""A GGUF file, written tensor by tensor."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nvfp4cupy.checkpoint.atomic import atomic_path
from nvfp4cupy.checkpoint.gguf_library import block_sizes, require_gguf
from nvfp4cupy.checkpoint.gguf_metadata import add_fields, fields_of_metadata
from nvfp4cupy.checkpoint.tensor_writer import TensorWriter, check_unique
from nvfp4cupy.checkpoint.tensors import Progress, TensorSpec

DEFAULT_ARCHITECTURE = "unknown"
MAX_DIMS = 4  # of a GGML tensor


def write_gguf(
    path: str | os.PathLike[str],
    tensors: Iterable[TensorSpec],
    metadata: Mapping[str, Any] | None = None,
    *,
    progress: Progress | None = None,
) -> None:
    """Write a GGUF file from tensors that are produced one piece at a time.

    Tensors lie in the order given. The header is written by the library gguf. The file appears at
    its path when it is complete; when a producer fails, nothing is left.

    Args:
        path: the file to write or replace.
        tensors: what to write; dtype words are names of GGML types. A tensor without dimensions
            becomes one of shape ``(1,)``, as GGUF writers do.
        metadata: key-value pairs, plain values or ``GGUFField``; ``general.architecture`` is
            ``"unknown"`` unless given.
        progress: called after each piece with the tensor's name, the bytes written, and all bytes.

    Raises:
        RuntimeError: the package gguf is missing.
        TypeError: a value in metadata has a type that GGUF has not.
        ValueError: a name stands twice, GGUF has no such tensor, or a producer gives more or
            fewer bytes than its dtype and shape need.
    """
    gguf = require_gguf()
    specs = list(tensors)
    check_unique(specs)
    sizes = [gguf_nbytes(spec) for spec in specs]
    fields = fields_of_metadata(metadata or {})
    architecture = fields.get("general.architecture")
    with atomic_path(Path(path)) as temporary:
        name = DEFAULT_ARCHITECTURE if architecture is None else architecture.value
        writer = gguf.GGUFWriter(temporary, name)
        try:
            add_fields(writer, fields)
            for spec, nbytes in zip(specs, sizes, strict=True):
                _add_info(writer, spec, nbytes)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            _write_data(writer, specs, sizes, progress)
        finally:
            writer.close()


def gguf_nbytes(spec: TensorSpec) -> int:
    """Return the bytes of a tensor in a GGUF file.

    Raises:
        ValueError: GGUF has no tensors of this dtype, number of dimensions or row length.
    """
    where = f"tensor {spec.name!r} cannot be written"
    try:
        block_values, block_bytes = block_sizes(spec.dtype)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    if len(spec.shape) > MAX_DIMS:
        raise ValueError(f"{where}: GGUF has at most {MAX_DIMS} dimensions, got {spec.shape}")
    row = spec.shape[-1] if spec.shape else 1
    if row % block_values:
        raise ValueError(
            f"{where}: k must be a multiple of {block_values} for {spec.dtype}, got k = {row}"
        )
    return math.prod(spec.shape) // block_values * block_bytes


def _add_info(writer: Any, spec: TensorSpec, nbytes: int) -> None:
    kind = require_gguf().GGMLQuantizationType[spec.dtype]
    # Any type but uint8 makes the library take the shape as values, not as bytes.
    writer.add_tensor_info(spec.name, spec.shape or (1,), np.dtype(np.void), nbytes, kind)


def _write_data(
    writer: Any, specs: list[TensorSpec], sizes: list[int], progress: Progress | None
) -> None:
    """Write the data as the library's own write_tensor_data does, but in pieces."""
    (file,) = writer.fout
    writer.write_padding(file, file.tell())
    pieces = TensorWriter(file, sum(sizes), progress)
    for spec, nbytes in zip(specs, sizes, strict=True):
        pieces.write(spec, nbytes)
        writer.write_padding(file, nbytes)
    file.flush()
