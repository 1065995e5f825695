"""All about one quantized matrix in one figure."""

from __future__ import annotations

from typing import Any

from nvfp4cupy import arrays
from nvfp4cupy.formats import GROUP_SIZE
from nvfp4cupy.layouts import ScaleLayout, unswizzle_scales
from nvfp4cupy.plot import canvas
from nvfp4cupy.plot.errors import error_map, group_errors
from nvfp4cupy.plot.histograms import code_histogram, scale_histogram

__all__ = ["overview"]


def overview(
    x: Any,
    codes: Any,
    scales: Any,
    gsa: Any,
    *,
    scale_layout: ScaleLayout = "linear",
    dtype: str | None = None,
) -> Any:
    """Draw the error map, the groups' errors and both histograms of a quantized matrix.

    Args:
        x: as ``error_map``.
        codes: as ``error_map``.
        scales: as ``error_map``.
        gsa: as ``error_map``.
        scale_layout: as ``error_map``.
        dtype: as ``error_map``.

    Returns:
        The figure.

    Raises:
        TypeError: as ``error_map``.
        ValueError: as ``error_map``.
        RuntimeError: matplotlib is missing.
    """
    figure = canvas.new_figure((13.0, 7.6))
    (top_left, top_right), (bottom_left, bottom_right) = figure.subplots(2, 2, height_ratios=(4, 3))
    operands = (x, codes, scales, gsa)
    error_map(*operands, scale_layout=scale_layout, dtype=dtype, ax=top_left)
    group_errors(*operands, scale_layout=scale_layout, dtype=dtype, ax=top_right)
    if scale_layout == "128x4":
        swizzled = canvas.to_numpy(arrays.intake("scales", scales))
        scales = unswizzle_scales(swizzled, x.shape[0], x.shape[1] // GROUP_SIZE)
    scale_histogram(scales, ax=bottom_left)
    code_histogram(codes, ax=bottom_right)
    return figure
