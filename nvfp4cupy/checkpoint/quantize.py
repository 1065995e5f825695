"""A checkpoint whose float matrices are quantized to NVFP4."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.checkpoint.arguments import check_callable, check_strings
from nvfp4cupy.checkpoint.gguf_metadata import GGUFField
from nvfp4cupy.checkpoint.global_scale import decode_scale_from_amax
from nvfp4cupy.checkpoint.reader import Checkpoint
from nvfp4cupy.checkpoint.save import (
    TargetFormat,
    check_destination,
    check_format,
    copied_metadata,
    copy_spec,
    moved_specs,
    weight_specs,
    write_file,
)
from nvfp4cupy.checkpoint.streams import row_chunks
from nvfp4cupy.checkpoint.tensors import FLOAT_DTYPES, Progress, TensorInfo, TensorSpec
from nvfp4cupy.formats import F32, ROUNDINGS, U8, Rounding, to_float32
from nvfp4cupy.layouts import QK_NVFP4, linear_to_block_nvfp4
from nvfp4cupy.reference.quantize import quantize_nvfp4

MOSTLY_NVFP4 = GGUFField(39, "UINT32")  # llama.cpp's name for the type of such a file
DEFAULT_INCLUDE: tuple[str, ...] = ("*.weight",)
# Embeddings, norms, heads and routers: small, or known to lose most by 4 bits.
DEFAULT_EXCLUDE: tuple[str, ...] = (
    "*embed*",
    "*embd*",
    "*wte*",
    "*wpe*",
    "*norm*",
    "*lm_head*",
    "output.weight",
    "*router*",
    "*.gate.weight",
    "*ffn_gate_inp*",
)


class Quantizer(Protocol):
    """A function with the arguments of ``quantize_nvfp4``, NumPy arrays in and out."""

    def __call__(
        self, x: NDArray[Any], gsa: float, *, rounding: Rounding, scale_search: int
    ) -> tuple[U8, U8]:
        """Return codes ``(M, N/2)`` and linear scales ``(M, N/16)``."""


@dataclass(frozen=True)
class QuantizeReport:
    """What ``quantize_checkpoint`` did.

    Attributes:
        quantized: names of the weights that are now NVFP4.
        kept: names of the tensors that are as they were, and why.
        source_bytes: bytes of the source's files.
        written_bytes: bytes of the file written.
    """

    quantized: tuple[str, ...]
    kept: dict[str, str]
    source_bytes: int
    written_bytes: int


def quantize_checkpoint(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    format: TargetFormat = "modelopt",
    rounding: Rounding = "nearest_even",
    scale_search: int = 0,
    include: Sequence[str] = DEFAULT_INCLUDE,
    exclude: Sequence[str] = DEFAULT_EXCLUDE,
    quantizer: Quantizer = quantize_nvfp4,
    progress: Progress | None = None,
) -> QuantizeReport:
    """Quantize the float matrices of a checkpoint to NVFP4 and copy the rest.

    ``w[n, k] ~= e2m1(codes[n, k]) * e4m3(scales[n, k // 16]) * decode_scale`` with one decode
    scale per tensor, ``amax / 2688`` (or the float32 above it, where only that one has an exact
    reciprocal; 1 for a tensor of zeros). A matrix is quantized when it is bfloat16, float16 or
    float32, a pattern of ``include`` matches its name, none of ``exclude`` does, and k is a
    multiple of 64. Tensors that are NVFP4 already are moved to the format. Memory holds one piece
    of a matrix and its scales at a time; the file appears when it is complete.

    Args:
        src: what ``Checkpoint.open`` takes.
        dst: the file to write or replace, not one of the source.
        format: ``"modelopt"``, ``"compressed-tensors"`` or ``"gguf"``.
        rounding: rule of the codes, see ``formats.e2m1_magnitude``.
        scale_search: 0, or 2 for the search among five scales per group, which is slow on the CPU.
        include: patterns of ``fnmatch``, case-sensitive, for the whole name.
        exclude: patterns as well; the default leaves out embeddings, norms, heads and routers.
        quantizer: called with the rows of a piece; the NumPy reference by default.
        progress: called after each piece with the tensor's name, the bytes written, and all bytes.

    Returns:
        Names of what was quantized, and of what was kept with the reason.

    Raises:
        FileNotFoundError: the source or the folder of ``dst`` is not there.
        RuntimeError: a format is GGUF and the package gguf is missing.
        TypeError: ``include`` or ``exclude`` is one string or holds something else than strings.
        ValueError: an option is unknown, no tensor is to be quantized, the source is damaged, or a
            weight in it is infinite or NaN (its row is named).
    """
    check_format(format)
    check_strings("include", include)
    check_strings("exclude", exclude)
    check_callable("quantizer", quantizer)
    if progress is not None:
        check_callable("progress", progress)
    if rounding not in ROUNDINGS:
        raise ValueError(f"rounding must be one of {', '.join(ROUNDINGS)}, got {rounding!r}")
    if scale_search not in (0, 2):
        raise ValueError(f"scale_search must be 0 or 2, got {scale_search!r}")
    with Checkpoint.open(src) as checkpoint:
        check_destination(checkpoint, dst)
        quantized, kept = _sort_tensors(checkpoint, include, exclude)
        if not quantized:
            raise ValueError(f"no tensor of {src} is to be quantized: {_summary(kept)}")
        specs: list[TensorSpec] = []
        for name, is_nvfp4 in checkpoint.contents():
            if name in quantized:
                weight = _QuantizedWeight(checkpoint, name, quantizer, rounding, scale_search)
                specs += weight_specs(weight, format)
            else:
                specs += _kept_specs(checkpoint, name, is_nvfp4, format)
        metadata = copied_metadata(checkpoint, format)
        if format == "gguf":
            metadata["general.file_type"] = MOSTLY_NVFP4
        write_file(dst, specs, format, metadata, progress)
        source_bytes = sum(file.stat().st_size for file in checkpoint.files)
    return QuantizeReport(tuple(quantized), kept, source_bytes, Path(dst).stat().st_size)


def _sort_tensors(
    checkpoint: Checkpoint, include: Sequence[str], exclude: Sequence[str]
) -> tuple[dict[str, None], dict[str, str]]:
    """Return the names to quantize, in order, and those to keep with the reason."""
    quantized: dict[str, None] = {}
    kept: dict[str, str] = {}
    for name, is_nvfp4 in checkpoint.contents():
        if is_nvfp4:
            kept[name] = "NVFP4 already"
        elif reason := _reason_to_keep(checkpoint.info(name), include, exclude):
            kept[name] = reason
        else:
            quantized[name] = None
    return quantized, kept


def _kept_specs(
    checkpoint: Checkpoint, name: str, is_nvfp4: bool, format: TargetFormat
) -> list[TensorSpec]:
    if is_nvfp4:
        return moved_specs(checkpoint, name, format)
    return [copy_spec(checkpoint, name)]


def _reason_to_keep(info: TensorInfo, include: Sequence[str], exclude: Sequence[str]) -> str | None:
    """Return why a tensor is not quantized, None when it is."""
    if info.dtype not in FLOAT_DTYPES:
        return f"of type {info.dtype}"
    if len(info.shape) != 2 or 0 in info.shape:
        return f"no matrix, shape {info.shape}"
    if not any(fnmatchcase(info.name, pattern) for pattern in include):
        return "matched by no include pattern"
    for pattern in exclude:
        if fnmatchcase(info.name, pattern):
            return f"excluded by {pattern}"
    if info.shape[1] % QK_NVFP4:
        return f"k = {info.shape[1]} is not a multiple of {QK_NVFP4}"
    return None


def _summary(kept: dict[str, str]) -> str:
    counts: dict[str, int] = {}
    for reason in kept.values():
        counts[reason] = counts.get(reason, 0) + 1
    return ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "it is empty"


class _QuantizedWeight:
    """A float matrix of a checkpoint that is quantized while it is written."""

    input_scale: F32 | None = None

    def __init__(
        self,
        checkpoint: Checkpoint,
        name: str,
        quantizer: Quantizer,
        rounding: Rounding,
        scale_search: int,
    ) -> None:
        self.name = name
        self.shape = checkpoint.info(name).shape
        self._checkpoint = checkpoint
        self._quantizer = quantizer
        self._rounding: Rounding = rounding
        self._scale_search = scale_search
        self._scales_of_codes: list[U8] | None = None

    @cached_property
    def decode_scale(self) -> F32:
        """Return the decode scale, float32 ``()``; walks through the matrix once."""
        amax = max(self._amax(first_row, piece) for first_row, piece in self._pieces())
        return np.asarray(decode_scale_from_amax(amax), np.float32)

    def codes(self) -> Iterator[U8]:
        """Yield linear codes ``(rows, k/2)``; the scales are put by."""
        put_by = []
        for codes, scales in self._quantized():
            put_by.append(scales)
            yield codes
        self._scales_of_codes = put_by

    def scales(self) -> Iterator[U8]:
        """Yield linear scales ``(rows, k/16)``, those of the codes if they were asked for."""
        put_by, self._scales_of_codes = self._scales_of_codes, None
        if put_by is not None:
            yield from put_by
            return
        for _, scales in self._quantized():
            yield scales

    def blocks(self) -> Iterator[U8]:
        """Yield block_nvfp4 rows ``(rows, k/64, 36)``."""
        for codes, scales in self._quantized():
            yield linear_to_block_nvfp4(codes, scales)

    def _quantized(self) -> Iterator[tuple[U8, U8]]:
        gsa = float(self.decode_scale)
        for _, piece in self._pieces():
            yield self._quantizer(
                piece, gsa, rounding=self._rounding, scale_search=self._scale_search
            )

    def _pieces(self) -> Iterator[tuple[int, NDArray[Any]]]:
        values = self._checkpoint.tensor(self.name)
        for rows in row_chunks(*self.shape):
            yield rows.start, values[rows]
            self._checkpoint.release(self.name)

    def _amax(self, first_row: int, values: NDArray[Any]) -> float:
        """Return the largest magnitude of finite values."""
        # Without the sign bit, floating-point numbers are ordered as their bits are.
        unsigned = np.uint32 if values.itemsize == 4 else np.uint16
        bits = values.view(unsigned) & unsigned((1 << (8 * values.itemsize - 1)) - 1)
        infinity = np.array([np.inf], values.dtype).view(unsigned)[0]
        if bits.max() >= infinity:
            row = first_row + int(np.argmax((bits >= infinity).any(axis=1)))
            raise ValueError(
                f"{self._checkpoint.info(self.name).where} must be finite to be quantized, "
                f"row {row} is not"
            )
        return float(to_float32(bits.max(keepdims=True).view(values.dtype))[0, 0])
