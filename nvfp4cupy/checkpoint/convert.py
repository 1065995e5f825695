"""A checkpoint moved to another format, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Iterable

from nvfp4cupy.checkpoint.arguments import check_callable
from nvfp4cupy.checkpoint.reader import Checkpoint
from nvfp4cupy.checkpoint.save import (
    TargetFormat,
    check_destination,
    check_format,
    copied_metadata,
    copy_spec,
    moved_specs,
    write_file,
)
from nvfp4cupy.checkpoint.tensors import Progress, TensorSpec
from nvfp4cupy.layouts import NibbleOrder


def convert_checkpoint(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    format: TargetFormat,
    *,
    nibble_order: NibbleOrder = "low_first",
    progress: Progress | None = None,
) -> None:
    """Rewrite a checkpoint in another format; codes and scales keep every bit.

    NVFP4 weights get the names and layout of the format, other tensors are copied. The decode
    scale keeps its bits too, but for compressed-tensors, which stores the reciprocal: one float32
    in six has none that leads back to it, and then moves by one unit in the last place. (Weights
    that ``quantize_checkpoint`` wrote never do.) The file is written in pieces and appears when it
    is complete.

    Args:
        src: what ``Checkpoint.open`` takes.
        dst: the file to write or replace, not one of the source.
        format: ``"modelopt"``, ``"compressed-tensors"`` or ``"gguf"``.
        nibble_order: as ``Checkpoint.open``; what is written is always low_first.
        progress: called after each piece with the tensor's name, the bytes written, and all bytes.

    Raises:
        FileNotFoundError: the source or the folder of ``dst`` is not there.
        RuntimeError: a format is GGUF and the package gguf is missing.
        ValueError: the format is unknown, the source is damaged, a weight in it is not valid (see
            ``Checkpoint.nvfp4``), or the format has no tensors of a type in it.
    """
    check_format(format)
    if progress is not None:
        check_callable("progress", progress)
    with Checkpoint.open(src, nibble_order=nibble_order) as checkpoint:
        check_destination(checkpoint, dst)
        specs = list(_specs(checkpoint, format))
        write_file(dst, specs, format, copied_metadata(checkpoint, format), progress)


def _specs(checkpoint: Checkpoint, format: TargetFormat) -> Iterable[TensorSpec]:
    for name, is_nvfp4 in checkpoint.contents():
        if is_nvfp4:
            yield from moved_specs(checkpoint, name, format)
        else:
            yield copy_spec(checkpoint, name)
