"""Pictures of a quantization: where its errors lie, and which scales and codes it uses.

Every function draws on ``ax`` if it is given, else on a figure of its own, and returns the
matplotlib axes (``overview``: the figure). Nothing is shown or saved. Arrays may be NumPy or GPU
arrays. matplotlib comes with the extra ``plot``.
"""

from __future__ import annotations

from nvfp4cupy.plot.errors import error_map, group_errors
from nvfp4cupy.plot.histograms import code_histogram, scale_histogram
from nvfp4cupy.plot.overview import overview
from nvfp4cupy.plot.rounding import rounding_errors, rounding_rules

__all__ = [
    "code_histogram",
    "error_map",
    "group_errors",
    "overview",
    "rounding_errors",
    "rounding_rules",
    "scale_histogram",
]
