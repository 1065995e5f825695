"""Where the errors of a quantized matrix lie."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np

from nvfp4cupy import arrays, ops
from nvfp4cupy.formats import F32, F64, GROUP_SIZE, to_float32
from nvfp4cupy.layouts import ScaleLayout
from nvfp4cupy.plot import canvas

__all__ = ["error_map", "group_errors"]

Per = Literal["element", "group"]

_CLIP_PERCENTILE = 99  # where the map's colours end: a few outliers must not darken the rest


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
        The axes. The colours end at the 99th percentile; what lies above has the last one.

    Raises:
        TypeError: a dtype is none of those above.
        ValueError: a shape or an option does not fit.
        RuntimeError: matplotlib is missing.
    """
    if per not in get_args(Per):
        raise ValueError(f'per must be "element" or "group", got {per!r}')
    values, error = _values_and_errors(x, codes, scales, gsa, scale_layout, dtype)
    shown = np.abs(error)
    if per == "group":
        shown = _groups(shown).mean(axis=-1)
    axes = canvas.axes(ax, (7.0, 4.0))
    if shown.size:
        finite = shown[np.isfinite(shown)]
        limit = float(np.percentile(finite, _CLIP_PERCENTILE)) if finite.size else 0.0
        # Where pixels of the screen are fewer, each shows a mean, so that no element is left out.
        image = axes.imshow(
            shown, cmap="magma", vmin=0, vmax=limit or 1, aspect="auto", interpolation="antialiased"
        )
        axes.figure.colorbar(
            image,
            ax=axes,
            label=f"{'|error|' if per == 'element' else 'mean |error|'}, in units of x",
            extend="max" if finite.size and finite.max() > limit else "neither",
        )
    axes.set_xlabel("column" if per == "element" else f"group of {GROUP_SIZE} columns")
    axes.set_ylabel("row")
    axes.set_title(f"Error of each {per}; relative error {_relative(error, values):.4f}")
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

    The relative error of a group is ``||x - dequantized|| / ||x||``: 0 where nothing is lost, 1
    where all is. Groups of zeros have none and are left out.

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
    values, error = _values_and_errors(x, codes, scales, gsa, scale_layout, dtype)
    amax = _groups(np.abs(values)).max(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        lost = np.linalg.norm(_groups(error), axis=-1) / np.linalg.norm(_groups(values), axis=-1)
    shown = np.isfinite(lost) & (amax > 0)
    axes = canvas.axes(ax, (7.0, 4.0))
    if shown.any():
        cells = axes.hexbin(
            amax[shown],
            lost[shown],
            xscale="log",
            gridsize=(56, 28),
            bins="log",
            mincnt=1,
            linewidths=0.1,
            cmap="viridis",
        )
        axes.figure.colorbar(cells, ax=axes, label="groups in the cell")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("largest |x| of the group, in units of x")
    axes.set_ylabel("relative error of the group")
    axes.set_title(f"Relative error of {shown.sum():,} groups of {GROUP_SIZE}")
    return axes


def _values_and_errors(
    x: Any, codes: Any, scales: Any, gsa: Any, scale_layout: ScaleLayout, dtype: str | None
) -> tuple[F32, F64]:
    """Return x as float32 and ``x - dequantized`` in float64, both on the CPU."""
    x = arrays.intake("x", x, dtype=dtype)
    decoded = ops.dequantize_nvfp4(codes, scales, gsa, dtype="float32", scale_layout=scale_layout)
    if x.shape != decoded.shape:
        raise ValueError(
            f"x must have the shape {decoded.shape} that codes decode to, got {x.shape}"
        )
    values = to_float32(canvas.to_numpy(x))
    with np.errstate(invalid="ignore"):  # infinity - infinity
        return values, values.astype(np.float64) - canvas.to_numpy(decoded)


def _groups(values: Any) -> Any:
    return values.reshape(values.shape[0], values.shape[1] // GROUP_SIZE, GROUP_SIZE)


def _relative(error: F64, values: F32) -> float:
    norm = float(np.linalg.norm(values.astype(np.float64)))
    return float(np.linalg.norm(error)) / norm if norm else 0.0
