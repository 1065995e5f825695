"""The three rounding rules side by side: where they decide, and what they cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp4cupy import arrays, ops
from nvfp4cupy.formats import E2M1_VALUES, ROUNDINGS, Rounding, e2m1_encode, to_float32
from nvfp4cupy.plot import canvas

__all__ = ["rounding_errors", "rounding_rules"]

_END = 6.5  # a little beyond the largest level
_STEP = 1 / 16  # every decision point is a multiple of 1/4


def rounding_rules(*, ax: Any = None) -> Any:
    """Draw which value each magnitude becomes, a band for each rounding rule.

    Args:
        ax: axes to draw on.

    Returns:
        The axes. Bands are cut at the decision points; the dot beside a cut is on the side that
        the point itself goes to.

    Raises:
        RuntimeError: matplotlib is missing.
    """
    axes = canvas.axes(ax, (9.0, 2.8))
    colors = canvas.matplotlib().colormaps["viridis"](np.linspace(0.1, 0.95, 8))
    for row, rule in enumerate(ROUNDINGS):
        points = _decision_points(rule)
        edges = [0.0, *(point for point, _ in points), _END]
        lefts, widths = np.array(edges[:-1]), np.diff(edges)
        bars = axes.barh(row, widths, 0.72, lefts, color=colors, edgecolor="white", linewidth=2)
        for code, bar in enumerate(bars):
            axes.text(
                *bar.get_center(),
                f"{E2M1_VALUES[code]:g}",
                color="black" if code > 4 else "white",
                ha="center",
                va="center",
            )
        for point, goes_up in points:
            x = point + (0.045 if goes_up else -0.045)
            axes.plot(x, row + 0.24, ".", color="white", markeredgecolor="black", markersize=6)
    axes.set_yticks(range(len(ROUNDINGS)), ROUNDINGS)
    axes.invert_yaxis()
    axes.set_xlim(0, _END)
    axes.set_xticks(np.arange(0, _END, 0.5))
    axes.set_xlabel("|x| / scale; the number in a band is the value that it becomes")
    axes.set_title("Rounding to E2M1; a dot is on the side that the tie goes to")
    return axes


def rounding_errors(x: Any, *, dtype: str | None = None, ax: Any = None) -> Any:
    """Draw what each rounding rule costs on a matrix, with and without the scale search.

    The matrix is quantized six times by ``amax_quantize_nvfp4``; the relative error is
    ``||x - dequantized|| / ||x||``.

    Args:
        x: bfloat16, float16 or float32 ``(M, N)``, C-contiguous, ``N % 16 == 0``.
        dtype: ``"bfloat16"`` to read uint16 elements as bfloat16 bits.
        ax: axes to draw on.

    Returns:
        The axes: bars with their relative errors.

    Raises:
        TypeError: the dtype is none of those above.
        ValueError: the shape does not fit.
        RuntimeError: matplotlib is missing.
    """
    x = arrays.intake("x", x, dtype=dtype)
    axes = canvas.axes(ax, (7.0, 3.0))
    height = 0.38
    for search, color in ((0, canvas.SECOND_BAR), (2, canvas.BAR)):
        errors = [_relative_error(x, rule, search) for rule in ROUNDINGS]
        rows = np.arange(len(ROUNDINGS)) + (height / 2 if search else -height / 2)
        bars = axes.barh(rows, errors, height, color=color, label=f"scale_search={search}")
        axes.bar_label(bars, fmt=" {:.4f}")
    axes.set_yticks(range(len(ROUNDINGS)), ROUNDINGS)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("relative error, ‖x \N{MINUS SIGN} dequantized‖ / ‖x‖")
    axes.set_title(f"{x.shape[0]:,} × {x.shape[1]:,} values", loc="left")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
    return axes


def _decision_points(rule: Rounding) -> list[tuple[float, bool]]:
    """Return for each code but 0 the point where it starts, and whether the point itself has it."""
    magnitudes = np.arange(0, _END, _STEP, dtype=np.float32)
    codes = e2m1_encode(magnitudes, rule)
    firsts = magnitudes[np.searchsorted(codes, range(1, 8))]
    points = np.floor(firsts * 4) / 4
    return [(float(p), bool(p == first)) for p, first in zip(points, firsts, strict=True)]


def _relative_error(x: Any, rule: Rounding, search: int) -> float:
    parts = ops.amax_quantize_nvfp4(x, rounding=rule, scale_search=search)
    decoded = canvas.to_numpy(ops.dequantize_nvfp4(*parts, dtype="float32"))
    values = to_float32(canvas.to_numpy(x)).astype(np.float64)
    norm = float(np.linalg.norm(values))
    return float(np.linalg.norm(values - decoded)) / norm if norm else 0.0
