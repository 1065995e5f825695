"""Tensors as files name them: a dtype word, a shape, and where the bytes lie or come from.

Dtype words are those of safetensors (``"BF16"``, ``"F8_E4M3"``, ``"U8"``, ...); GGUF's own block
types (``"NVFP4"``, ``"Q4_K"``, ...) are used as they are, with the shape counted in values.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.formats import U8, bfloat16

Progress: TypeAlias = Callable[[str, int, int], None]
Producer: TypeAlias = Callable[[], Iterable[NDArray[Any]]]

# Bits per value, and how NumPy sees the values. Float8 is seen as bytes: NumPy has no such type.
# Values of less than a byte are seen as the bytes they are packed in.
SAFETENSORS_DTYPES: dict[str, tuple[int, str]] = {
    "BOOL": (8, "?"),
    "F4": (4, "u1"),
    "F6_E2M3": (6, "u1"),
    "F6_E3M2": (6, "u1"),
    "U8": (8, "u1"),
    "I8": (8, "i1"),
    "F8_E5M2": (8, "u1"),
    "F8_E4M3": (8, "u1"),
    "F8_E8M0": (8, "u1"),
    "F8_E4M3FNUZ": (8, "u1"),
    "F8_E5M2FNUZ": (8, "u1"),
    "I16": (16, "<i2"),
    "U16": (16, "<u2"),
    "F16": (16, "<f2"),
    "BF16": (16, "bfloat16"),
    "I32": (32, "<i4"),
    "U32": (32, "<u4"),
    "F32": (32, "<f4"),
    "C64": (64, "<c8"),
    "F64": (64, "<f8"),
    "I64": (64, "<i8"),
    "U64": (64, "<u8"),
}
FLOAT_DTYPES = ("BF16", "F16", "F32")  # what the quantizers take


@dataclass(frozen=True)
class TensorInfo:
    """A tensor in a file: its name, dtype word, shape in values, and where its bytes lie.

    Attributes:
        name: name in the file.
        dtype: dtype word.
        shape: values per axis, the last one contiguous.
        nbytes: bytes in the file.
        path: the file.
        offset: first byte, from the start of the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    path: Path
    offset: int

    @property
    def where(self) -> str:
        """Return the words that errors use: the name and the file."""
        return f"tensor {self.name!r} of {self.path.name}"


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be written.

    Attributes:
        name: name in the file.
        dtype: dtype word.
        shape: values per axis.
        producer: called once when its turn comes; the bytes of the arrays that it gives, one
            after the other, are the tensor. At most one of them has to be in memory.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    producer: Producer


class TensorFile(Protocol):
    """An open file of tensors, of either kind."""

    path: Path

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        """Return the tensors by name, in the order of the file."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Return the key-value pairs of the file."""

    def raw(self, info: TensorInfo) -> U8:
        """Return the bytes of a tensor, uint8 ``(nbytes,)``, mapped and read-only."""

    def release(self, info: TensorInfo) -> None:
        """Let the system drop the pages of a tensor from memory."""

    def close(self) -> None:
        """Let go of the file."""


def numpy_dtype(word: str) -> np.dtype[Any]:
    """Return the NumPy type of a safetensors dtype word; uint8 for those NumPy lacks."""
    _, numpy_name = SAFETENSORS_DTYPES[word]
    return bfloat16() if numpy_name == "bfloat16" else np.dtype(numpy_name)


def dtype_word(dtype: np.dtype[Any]) -> str:
    """Return the dtype word of a NumPy type.

    Raises:
        TypeError: no dtype word means this type.
    """
    by_name = {"bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"}
    if dtype.name in by_name:
        return by_name[dtype.name]
    for word, (bits, numpy_name) in SAFETENSORS_DTYPES.items():
        stands_for_itself = word == "U8" or numpy_name not in ("u1", "bfloat16")
        if stands_for_itself and bits == 8 * dtype.itemsize and np.dtype(numpy_name) == dtype:
            return word
    raise TypeError(f"no file holds arrays of {dtype}")


def safetensors_nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor in a safetensors file.

    Raises:
        ValueError: the dtype word is unknown, or the values do not fill whole bytes.
    """
    if dtype not in SAFETENSORS_DTYPES:
        raise ValueError(f"safetensors has no {dtype} tensors")
    bits = SAFETENSORS_DTYPES[dtype][0] * math.prod(shape)
    if bits % 8:
        raise ValueError(f"{dtype} values of shape {shape} do not fill whole bytes")
    return bits // 8


def view_values(raw: U8, info: TensorInfo) -> NDArray[Any]:
    """See the bytes of a safetensors tensor as values; F4 as ``(..., k/2)`` bytes, F6 as bytes."""
    bits, _ = SAFETENSORS_DTYPES[info.dtype]
    if bits < 8:
        packs_rows = bits == 4 and bool(info.shape) and info.shape[-1] % 2 == 0
        return shaped(raw, (*info.shape[:-1], info.shape[-1] // 2), info) if packs_rows else raw
    values = shaped(raw.view(numpy_dtype(info.dtype)), info.shape, info)
    return values if values.flags.aligned else values.copy()


def shaped(values: NDArray[Any], shape: tuple[int, ...], info: TensorInfo) -> NDArray[Any]:
    """Give values a shape.

    Raises:
        ValueError: NumPy cannot; a damaged header may claim 0 rows of 2^60 columns.
    """
    try:
        return values.reshape(shape)
    except (ValueError, OverflowError):
        raise ValueError(f"{info.where} has a shape that no array has: {info.shape}") from None


def unknown_name(name: str, names: Iterable[str], where: str) -> ValueError:
    """Return the error for a name that is not there; it lists the nearest names."""
    near = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    hint = f"; near it: {', '.join(near)}" if near else ""
    return ValueError(f"unknown name: {where} has no tensor {name!r}{hint}")
