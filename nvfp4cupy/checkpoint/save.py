"""A checkpoint written from weights and tensors, in any of the three formats."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.checkpoint import compressed_tensors, gguf_layout, modelopt
from nvfp4cupy.checkpoint.arguments import check_callable, check_mapping
from nvfp4cupy.checkpoint.checks import check_weight
from nvfp4cupy.checkpoint.gguf_metadata import metadata_of_fields, without_writers_own
from nvfp4cupy.checkpoint.gguf_writer import write_gguf
from nvfp4cupy.checkpoint.reader import Checkpoint
from nvfp4cupy.checkpoint.safetensors_writer import write_safetensors
from nvfp4cupy.checkpoint.streams import MovedWeight, WeightStream
from nvfp4cupy.checkpoint.tensors import Progress, TensorSpec, dtype_word
from nvfp4cupy.checkpoint.weight import NVFP4Weight

_T = TypeVar("_T")
TargetFormat: TypeAlias = Literal["modelopt", "compressed-tensors", "gguf"]

TARGET_FORMATS: tuple[TargetFormat, ...] = ("modelopt", "compressed-tensors", "gguf")

_COPY_BYTES = 1 << 24

_WEIGHT_SPECS: dict[TargetFormat, Callable[[WeightStream], list[TensorSpec]]] = {
    "modelopt": modelopt.tensor_specs,
    "compressed-tensors": compressed_tensors.tensor_specs,
    "gguf": gguf_layout.tensor_specs,
}


def save_checkpoint(
    path: str | os.PathLike[str],
    weights: Iterable[NVFP4Weight],
    tensors: Mapping[str, NDArray[Any]] | None = None,
    *,
    format: TargetFormat,
    metadata: Mapping[str, Any] | None = None,
    check: bool = True,
    progress: Progress | None = None,
) -> None:
    """Write NVFP4 weights and other tensors to one file, atomically.

    A weight named ``x.weight`` becomes

    - ``"modelopt"``: ``x.weight``, ``x.weight_scale``, ``x.weight_scale_2`` (decode scale),
      ``x.input_scale``;
    - ``"compressed-tensors"``: ``x.weight_packed``, ``x.weight_scale``, ``x.weight_global_scale``
      (reciprocal), ``x.input_global_scale`` (reciprocal);
    - ``"gguf"``: ``x.weight`` of type NVFP4, ``x.scale``, ``x.input_scale`` (decode scales).

    Args:
        path: the file to write or replace.
        weights: the NVFP4 weights, in any layout.
        tensors: other tensors by name.
        format: one of ``TARGET_FORMATS``.
        metadata: strings for safetensors; strings, numbers, lists or ``GGUFField`` for GGUF.
        check: refuse weights with bad scale bytes or global scales.
        progress: called after each piece with the tensor's name, the bytes written, and all bytes.

    Raises:
        RuntimeError: the format is GGUF and the package gguf is missing.
        TypeError: an array or a value in metadata has a type that the format has not.
        ValueError: the format is unknown, a name stands twice, or with ``check`` a scale byte is
            0x7F or has the top bit set, or a global scale is not finite and above zero.
    """
    check_format(format)
    if progress is not None:
        check_callable("progress", progress)
    for name, value in (("tensors", tensors), ("metadata", metadata)):
        if value is not None:
            check_mapping(name, value)
    specs: list[TensorSpec] = []
    for weight in _checked_weights(weights):
        if check:
            check_weight(weight)
        specs += weight_specs(MovedWeight(partial(_same, weight)), format)
    for name, array in (tensors or {}).items():
        specs.append(_array_spec(name, array))
    write_file(path, specs, format, metadata or {}, progress)


def _checked_weights(weights: Any) -> Iterator[NVFP4Weight]:
    if not isinstance(weights, Iterable):
        raise TypeError(f"weights must be NVFP4Weight objects, got {type(weights).__name__}")
    for weight in weights:
        if not isinstance(weight, NVFP4Weight):
            raise TypeError(f"weights must be NVFP4Weight objects, got {type(weight).__name__}")
        yield weight


def _array_spec(name: str, array: Any) -> TensorSpec:
    if not isinstance(array, (np.ndarray, np.generic)):
        raise TypeError(f"tensors must be NumPy arrays, got {type(array).__name__} for {name!r}")
    try:
        word = dtype_word(array.dtype)
    except TypeError as error:
        raise TypeError(f"{name!r} of tensors cannot be written: {error}") from None
    return TensorSpec(name, word, array.shape, partial(_same, [np.asarray(array)]))


def check_format(format: str) -> None:
    """Check the name of a format to write.

    Raises:
        ValueError: it is none of ``TARGET_FORMATS``.
    """
    if format not in TARGET_FORMATS:
        raise ValueError(f"format must be one of {', '.join(TARGET_FORMATS)}, got {format!r}")


def weight_specs(stream: WeightStream, format: TargetFormat) -> list[TensorSpec]:
    """Return the tensors that hold a weight in a format."""
    return _WEIGHT_SPECS[format](stream)


def copy_spec(checkpoint: Checkpoint, name: str) -> TensorSpec:
    """Return a tensor that is copied as it is, in pieces."""
    info = checkpoint.info(name)

    def pieces() -> Iterator[NDArray[Any]]:
        # float8 and block types come as bytes, so the bytes of any type are what is copied.
        raw = np.ascontiguousarray(checkpoint.tensor(name)).reshape(-1).view(np.uint8)
        for start in range(0, raw.size, _COPY_BYTES):
            yield raw[start : start + _COPY_BYTES]
            checkpoint.release(name)

    return TensorSpec(name, info.dtype, info.shape, pieces)


def moved_specs(checkpoint: Checkpoint, name: str, format: TargetFormat) -> list[TensorSpec]:
    """Return the tensors of an NVFP4 weight of a checkpoint in another format; it is checked."""
    checkpoint.nvfp4(name)
    tensors = checkpoint.parts(name).tensors

    def release() -> None:
        for tensor in tensors:
            checkpoint.release(tensor)

    return weight_specs(MovedWeight(lambda: checkpoint.nvfp4(name, check=False), release), format)


def copied_metadata(checkpoint: Checkpoint, format: TargetFormat) -> dict[str, Any]:
    """Return the metadata of a checkpoint as the format stores it."""
    if checkpoint.format == "gguf":
        fields = checkpoint.gguf_fields
        return dict(fields) if format == "gguf" else dict(metadata_of_fields(fields))
    metadata = checkpoint.metadata
    return without_writers_own(metadata) if format == "gguf" else metadata


def check_destination(checkpoint: Checkpoint, path: str | os.PathLike[str]) -> None:
    """Check that a file to be written is none of the files that are read.

    Raises:
        ValueError: it is one of them.
    """
    target = Path(path).resolve()
    if any(file.resolve() == target for file in checkpoint.files):
        raise ValueError(f"dst must not be a file of the source checkpoint, got {path}")


def write_file(
    path: str | os.PathLike[str],
    specs: Iterable[TensorSpec],
    format: TargetFormat,
    metadata: Mapping[str, Any],
    progress: Progress | None,
) -> None:
    """Write tensors to a file of the kind that the format needs."""
    write = write_gguf if format == "gguf" else write_safetensors
    write(path, specs, metadata, progress=progress)


def _same(value: _T) -> _T:
    return value
