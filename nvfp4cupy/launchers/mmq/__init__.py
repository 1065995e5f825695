"""Launchers of the W4A4 product: its operands' preparation and the GEMMs."""

from __future__ import annotations

from nvfp4cupy.launchers.mmq.gemm import MmqGemm, MmqGemmTiled, W4A16Gemm
from nvfp4cupy.launchers.mmq.pack import MmqQuantizeAct, MmqRepack, MmqUnpack

__all__ = [
    "MmqGemm",
    "MmqGemmTiled",
    "MmqQuantizeAct",
    "MmqRepack",
    "MmqUnpack",
    "W4A16Gemm",
]
