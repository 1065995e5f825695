"""Launchers of the element-wise steps of a feed-forward."""

from __future__ import annotations

from nvfp4cupy.launchers.swiglu.elementwise import ScaleBf16, SiluMulScaled
from nvfp4cupy.launchers.swiglu.quant import SiluMulQuant

__all__ = ["ScaleBf16", "SiluMulQuant", "SiluMulScaled"]
