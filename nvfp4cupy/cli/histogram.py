"""How often each scale of an NVFP4 weight occurs, as bars of text or as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nvfp4cupy.checkpoint import Checkpoint, NVFP4Weight
from nvfp4cupy.cli import files
from nvfp4cupy.formats import E4M3_MAX_BYTE, GROUP_SIZE, e4m3_decode
from nvfp4cupy.layouts import QK_NVFP4

if TYPE_CHECKING:
    from rich.table import Table

MAX_PLOTTED = 16  # weights in one picture

_BAR_CHARS = 40
_CHUNK_BYTES = 1 << 22  # counted in one go: counting takes eight times the memory
# Zero, the subnormals, each power of two, and what no writer may write.
_RANGES = (
    (0x00, 0x00),
    (0x01, 0x07),
    *((first, min(first + 7, E4M3_MAX_BYTE)) for first in range(0x08, 0x80, 8)),
    (0x7F, 0x7F),
    (0x80, 0xFF),
)
_NAMES = {0x00: "0", 0x7F: "NaN", 0x80: "negative or NaN"}


def scale_counts(weight: NVFP4Weight) -> dict[int, int]:
    """Return how often each scale byte occurs; bytes that do not are left out."""
    scales = weight.scales
    if scales is None:
        scales = weight.codes[..., : QK_NVFP4 // GROUP_SIZE]
    flat = scales.reshape(-1)
    counts = np.zeros(256, np.int64)
    for start in range(0, flat.size, _CHUNK_BYTES):
        counts += np.bincount(flat[start : start + _CHUNK_BYTES], minlength=256)
    return {byte: int(count) for byte, count in enumerate(counts) if count}


def table(counts: dict[int, int], encoding: str = "utf-8") -> Table:
    """Return bars: one for each power of two from the smallest scale that occurs to the largest.

    Args:
        counts: occurrences by scale byte.
        encoding: of the output; bars are of ``#`` where it is not UTF-8.
    """
    result = files.new_table("byte", "scale", right=("groups", "%"))
    result.add_column("")
    sums = [sum(counts.get(byte, 0) for byte in range(a, b + 1)) for a, b in _RANGES]
    used = [i for i, total in enumerate(sums) if total and _RANGES[i][0] < 0x7F]
    total, largest = max(1, sum(sums)), max(1, *sums)
    for i, ((first, last), count) in enumerate(zip(_RANGES, sums, strict=True)):
        if not count and not (used and used[0] < i < used[-1]):
            continue
        bar = "█" if encoding.startswith("utf") else "#"
        length = max(round(_BAR_CHARS * count / largest), 1) if count else 0
        result.add_row(
            f"{first:02X}" if first == last else f"{first:02X}-{last:02X}",
            _NAMES.get(first) or _interval(first, last),
            f"{count:,}",
            f"{100 * count / total:.1f}",
            bar * length,
        )
    return result


def save_plot(checkpoint: Checkpoint, names: Sequence[str], path: Path) -> None:
    """Draw the scales and codes of NVFP4 weights, a row for each, and save the picture.

    Args:
        checkpoint: an open checkpoint.
        names: weights that can be read, at most ``MAX_PLOTTED``.
        path: the file to write or replace; its suffix says which kind of picture.

    Raises:
        RuntimeError: matplotlib is missing.
        ValueError: there are no weights or too many, or matplotlib cannot write such a file.
    """
    if not 1 <= len(names) <= MAX_PLOTTED:
        raise ValueError(
            f"--plot draws 1 to {MAX_PLOTTED} NVFP4 weights, got {len(names)}; "
            "--tensor chooses among them"
        )
    from nvfp4cupy import plot
    from nvfp4cupy.checkpoint.atomic import atomic_path
    from nvfp4cupy.plot.canvas import matplotlib

    matplotlib()
    # Of no backend of pyplot, which may want a screen.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 3.4 * len(names)), layout="constrained")
    subfigures = figure.subfigures(len(names), 1, squeeze=False)[:, 0]
    for name, subfigure in zip(names, subfigures, strict=True):
        weight = checkpoint.nvfp4(name, check=False)
        left, right = subfigure.subplots(1, 2)
        codes, scales = weight.linear()
        plot.scale_histogram(scales, ax=left)
        plot.code_histogram(codes, ax=right)
        subfigure.suptitle(files.printable(name), parse_math=False)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:] or "png")


def _interval(first: int, last: int) -> str:
    low, high = e4m3_decode(np.array([first, last], np.uint8)).tolist()
    return f"{low:.4g} to {high:.4g}"
