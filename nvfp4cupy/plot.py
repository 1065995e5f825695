"""Pictures of a quantization: where its errors lie, and which scales and codes it uses.

Every function draws on ``ax`` if it is given, else on a figure of its own, and returns the
matplotlib axes (``overview``: the figure). Nothing is shown or saved. Arrays may be NumPy or GPU
arrays. matplotlib comes with the extra ``plot``.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy import arrays, formats, ops
from nvfp4cupy.formats import E2M1_VALUES, E4M3_MAX_BYTE, F32, F64, GROUP_SIZE, ROUNDINGS
from nvfp4cupy.layouts import ScaleLayout

__all__ = [
    "code_histogram",
    "error_map",
    "group_errors",
    "overview",
    "rounding_errors",
    "rounding_rules",
    "scale_histogram",
]

Per = Literal["element", "group"]

_BAR = "#33638d"  # from viridis: goes with the maps, and stays dark in grey
_SECOND_BAR = "#9ec3e0"
_CLIP_PERCENTILE = 99.9  # where the map's colours end: one outlier must not darken all the rest
_RULES_END = 6.5  # a little beyond the largest level, 6
_RULES_STEP = 1 / 64  # every decision point of every rule is a multiple


def error_map(
    x: Any,
    codes: Any,
    scales: Any,
    gsa: Any,
    *,
    per: Per = "element",
    scale_layout: ScaleLayout = "linear",
    dtype: str | None = None,
    ax: Any = None,
) -> Any:
    """Draw ``|x - dequantized|`` as an image: one pixel for each element or each group of 16.

    Args:
        x: bfloat16, float16 or float32 ``(M, N)``: what was quantized.
        codes: uint8 ``(M, N // 2)``.
        scales: uint8 E4M3 bytes ``(M, N // 16)``, or swizzled.
        gsa: decode scale: float32 ``(M,)``, or one number.
        per: ``"element"``, or ``"group"`` for the mean of a group's errors.
        scale_layout: ``"linear"`` or ``"128x4"``.
        dtype: ``"bfloat16"`` to read uint16 elements of x as bfloat16 bits.
        ax: axes to draw on.

    Returns:
        The axes. The colours end at the 99.9th percentile; what lies above has the last one.

    Raises:
        TypeError: a dtype is none of those above.
        ValueError: a shape or an option does not fit.
        RuntimeError: matplotlib is missing.
    """
    if per not in get_args(Per):
        raise ValueError(f'per must be "element" or "group", got {per!r}')
    values, decoded = _before_and_after(x, codes, scales, gsa, scale_layout, dtype)
    error = np.abs(values - decoded)
    if per == "group":
        error = _groups(error).mean(axis=-1)
    axes = _axes(ax, (7.0, 4.2))
    limit = float(np.nanpercentile(error, _CLIP_PERCENTILE)) if error.size else 0.0
    clipped = bool(error.size and np.nanmax(error) > limit)
    image = axes.imshow(error, cmap="magma", vmin=0, vmax=limit or 1, aspect="auto")
    axes.figure.colorbar(
        image,
        ax=axes,
        label="|error|, in units of x" if per == "element" else "mean |error|, in units of x",
        extend="max" if clipped else "neither",
    )
    axes.set_xlabel("column" if per == "element" else f"group of {GROUP_SIZE} columns")
    axes.set_ylabel("row")
    axes.set_title(f"Error of each {per}; relative error {_relative(values, decoded):.4f}")
    return axes


def group_errors(
    x: Any,
    codes: Any,
    scales: Any,
    gsa: Any,
    *,
    scale_layout: ScaleLayout = "linear",
    dtype: str | None = None,
    ax: Any = None,
) -> Any:
    """Draw the relative error of each group of 16 against its largest magnitude.

    The relative error of a group is ``||x - dequantized|| / ||x||``. Groups that the format
    cannot resolve stand out on the left, near 1; groups of zeros have none and are left out.

    Args:
        x: as ``error_map``.
        codes: as ``error_map``.
        scales: as ``error_map``.
        gsa: as ``error_map``.
        scale_layout: as ``error_map``.
        dtype: as ``error_map``.
        ax: axes to draw on.

    Returns:
        The axes.

    Raises:
        TypeError: as ``error_map``.
        ValueError: as ``error_map``.
        RuntimeError: matplotlib is missing.
    """
    values, decoded = _before_and_after(x, codes, scales, gsa, scale_layout, dtype)
    amax = _groups(np.abs(values)).max(axis=-1).ravel()
    error = np.linalg.norm(_groups(values - decoded), axis=-1).ravel()
    norm = np.linalg.norm(_groups(values), axis=-1).ravel()
    shown = np.isfinite(amax) & (amax > 0) & np.isfinite(error)
    axes = _axes(ax, (7.0, 4.2))
    if shown.any():
        cells = axes.hexbin(
            amax[shown],
            error[shown] / norm[shown],
            xscale="log",
            gridsize=(60, 30),
            bins="log",
            mincnt=1,
            linewidths=0.1,
            cmap="viridis_r",
        )
        axes.figure.colorbar(cells, ax=axes, label="groups")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("largest |x| of the group, in units of x")
    axes.set_ylabel("relative error of the group")
    axes.set_title(f"Error of {shown.sum():,} groups of {GROUP_SIZE}")
    return axes


def scale_histogram(scales: Any, *, ax: Any = None) -> Any:
    """Draw how often each E4M3 scale byte occurs.

    Args:
        scales: uint8 E4M3 bytes (or float8_e4m3fn), any shape; the top bit is ignored. In the
            swizzled layout padding counts as byte 0.
        ax: axes to draw on.

    Returns:
        The axes: bytes from left to right, their values below them.

    Raises:
        TypeError: scales is not of bytes.
        RuntimeError: matplotlib is missing.
    """
    data = _bytes("scales", scales) & 0x7F
    counts = np.bincount(data.ravel(), minlength=128)
    axes = _axes(ax, (7.0, 3.4))
    axes.bar(np.arange(128), _percent(counts), width=1.0, color=_BAR)
    # Eight bytes to a power of two: 8 is 2^-6, 120 is 2^8; below 8 they are multiples of 2^-9.
    axes.set_xticks(
        [0, *range(8, 121, 16), E4M3_MAX_BYTE],
        ["0", *(f"$2^{{{byte // 8 - 7}}}$" for byte in range(8, 121, 16)), "448"],
    )
    axes.set_xlim(-1, 128)
    axes.set_xlabel("scale of a group, E4M3 (one bar for each byte)")
    axes.set_ylabel("groups, %")
    zero, largest = counts[0], counts[E4M3_MAX_BYTE]
    axes.set_title(f"Scales of {data.size:,} groups; {zero:,} are 0, {largest:,} are 448")
    return axes


def code_histogram(codes: Any, *, ax: Any = None) -> Any:
    """Draw how often each E2M1 code occurs, in the order of the values.

    Args:
        codes: packed codes, uint8, any shape: two to a byte.
        ax: axes to draw on.

    Returns:
        The axes.

    Raises:
        TypeError: codes is not of bytes.
        RuntimeError: matplotlib is missing.
    """
    data = _bytes("codes", codes)
    pairs = np.bincount(data.ravel(), minlength=256).reshape(16, 16)  # [high nibble, low nibble]
    counts = pairs.sum(axis=0) + pairs.sum(axis=1)
    order = [*range(15, 7, -1), *range(8)]  # -6 ... -0, 0 ... 6
    axes = _axes(ax, (7.0, 3.4))
    colors = [_SECOND_BAR if code & 7 == 0 else _BAR for code in order]
    axes.bar(range(16), _percent(counts)[order], width=0.85, color=colors)
    names = [f"{'-' if code > 7 else ''}{E2M1_VALUES[code & 7]:g}\n0x{code:X}" for code in order]
    axes.set_xticks(range(16), [name.replace("-", "\u2212") for name in names])
    axes.set_xlabel("value of the E2M1 code, before its scale")
    axes.set_ylabel("elements, %")
    zeros = 100 * (counts[0] + counts[8]) / max(counts.sum(), 1)
    axes.set_title(f"Codes of {counts.sum():,} elements; {zeros:.1f} % are zero")
    return axes


def rounding_rules(*, ax: Any = None) -> Any:
    """Draw which code each magnitude becomes, for the three rounding rules.

    Args:
        ax: axes to draw on.

    Returns:
        The axes: a band for each rule, cut at its decision points; a point belongs to the side
        that the dot stands on.

    Raises:
        RuntimeError: matplotlib is missing.
    """
    axes = _axes(ax, (9.0, 3.0))
    palette = _matplotlib().colormaps["viridis"]
    magnitudes = np.arange(0, _RULES_END + _RULES_STEP, _RULES_STEP, dtype=np.float32)
    for row, rule in enumerate(ROUNDINGS):
        codes = formats.e2m1_encode(magnitudes, rule)
        starts = np.flatnonzero(np.diff(codes, prepend=codes[0] - 1))
        points, going_up = _decision_points(magnitudes, codes, starts, rule)
        edges = [0.0, *points, _RULES_END]
        for code, (left, right) in enumerate(zip(edges, edges[1:], strict=False)):
            axes.barh(row, right - left, 0.7, left, color=palette(code / 7), edgecolor="white")
            axes.text(
                (left + right) / 2,
                row,
                f"{E2M1_VALUES[code]:g}",
                color="white" if code < 5 else "black",
                ha="center",
                va="center",
            )
        _mark_points(axes, row, points, going_up)
    axes.set_yticks(range(len(ROUNDINGS)), ROUNDINGS)
    axes.invert_yaxis()
    axes.set_xlim(0, _RULES_END)
    axes.set_xlabel("|x / scale|; the number is the E2M1 value it becomes")
    axes.set_title("Rounding rules; the dot is on the side that a tie goes to")
    return axes
