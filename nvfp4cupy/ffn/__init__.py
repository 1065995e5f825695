"""The feed-forward of a transformer layer with NVFP4 weights, on NumPy or GPU arrays."""

from __future__ import annotations

from nvfp4cupy.ffn.feed_forward import FeedForward
from nvfp4cupy.ffn.graph import FeedForwardGraph
from nvfp4cupy.ffn.workspace import Workspace

__all__ = ["FeedForward", "FeedForwardGraph", "Workspace"]
