"""How often each scale and each code occurs."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp4cupy import arrays
from nvfp4cupy.formats import E2M1_VALUES, E4M3_MAX_BYTE, F64, U8
from nvfp4cupy.plot import canvas

__all__ = ["code_histogram", "scale_histogram"]


def scale_histogram(scales: Any, *, ax: Any = None) -> Any:
    """Draw how often each E4M3 scale byte occurs.

    Args:
        scales: uint8 E4M3 bytes (or float8_e4m3fn), any shape; the top bit is ignored. In the
            swizzled layout padding counts as byte 0.
        ax: axes to draw on.

    Returns:
        The axes: one bar for each byte in ascending order, with the values below.

    Raises:
        TypeError: scales is not of bytes.
        RuntimeError: matplotlib is missing.
    """
    counts = np.bincount(_bytes("scales", scales) & 0x7F, minlength=128)
    axes = canvas.axes(ax, (7.0, 3.2))
    axes.bar(np.arange(128), _percent(counts), width=1.0, color=canvas.BAR)
    # Eight bytes to a power of two: byte 8 is 2^-6, byte 120 is 2^8.
    powers = range(8, 121, 16)
    names = ["0", *(f"$2^{{{byte // 8 - 7}}}$" for byte in powers)]
    axes.set_xticks([0, *powers], names)
    axes.set_xlim(-1, 128)
    axes.set_xlabel("E4M3 scale of the group, in units of gsa; one bar for each byte")
    axes.set_ylabel("groups, %")
    axes.set_title(
        f"Scales of {counts.sum():,} groups: {counts[0]:,} at 0, {counts[E4M3_MAX_BYTE]:,} at 448"
    )
    return axes


def code_histogram(codes: Any, *, ax: Any = None) -> Any:
    """Draw how often each E2M1 code occurs, in ascending order of the values.

    Args:
        codes: packed codes, uint8, any shape: two to a byte.
        ax: axes to draw on.

    Returns:
        The axes: one bar for each of the 16 codes; both zeros are lighter.

    Raises:
        TypeError: codes is not of bytes.
        RuntimeError: matplotlib is missing.
    """
    pairs = np.bincount(_bytes("codes", codes), minlength=256).reshape(16, 16)  # [high, low]
    counts = pairs.sum(axis=0) + pairs.sum(axis=1)
    order = [*range(15, 7, -1), *range(8)]  # -6 .. -0, 0 .. 6
    axes = canvas.axes(ax, (7.0, 3.2))
    colors = [canvas.BAR if code & 7 else canvas.SECOND_BAR for code in order]
    axes.bar(range(16), _percent(counts)[order], width=0.85, color=colors)
    signs = ["\N{MINUS SIGN}" if code > 7 else "" for code in order]
    names = [f"{s}{E2M1_VALUES[c & 7]:g}\n{c:X}" for s, c in zip(signs, order, strict=True)]
    axes.set_xticks(range(16), names, fontsize="small")
    axes.set_xlabel("value of the E2M1 code, before its scale; below it the code in hex")
    axes.set_ylabel("elements, %")
    axes.set_title(
        f"Codes of {counts.sum():,} elements; {_percent(counts)[[0, 8]].sum():.1f} % are zero"
    )
    return axes


def _bytes(name: str, value: Any) -> U8:
    """Return bytes of any shape as a flat NumPy array."""
    array = arrays.intake(name, value)
    if array.dtype.name not in ("uint8", "float8_e4m3fn"):
        raise TypeError(f"{name} must be uint8, got {array.dtype}")
    data: U8 = canvas.to_numpy(array).view(np.uint8).ravel()
    return data


def _percent(counts: Any) -> F64:
    percent: F64 = 100 * counts / max(int(counts.sum()), 1)
    return percent
