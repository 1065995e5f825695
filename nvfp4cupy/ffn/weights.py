"""One weight of the feed-forward: taken over, checked, and brought to the GEMM's layout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from nvfp4cupy import arrays, ops
from nvfp4cupy.checkpoint import NVFP4Weight
from nvfp4cupy.layouts import QK_NVFP4
from nvfp4cupy.ops import checks

__all__ = ["Projection", "Source", "WeightLike"]

WeightLike: TypeAlias = NVFP4Weight | tuple[Any, Any, Any]


@dataclass(frozen=True)
class Projection:
    """A weight in the layout that the GEMM reads.

    Attributes:
        blocks: uint8 ``(n, k / 64, 36)``.
        decode_scale: what to multiply the product by.
        out_scale: the same as the GEMM takes it: a number, or float32 ``(1,)`` on the GPU.
    """

    blocks: Any
    decode_scale: float
    out_scale: Any


@dataclass(frozen=True)
class Source:
    """A checked weight before it is moved: linear codes and scales, or blocks without scales."""

    name: str
    codes: Any
    scales: Any
    decode_scale: float
    shape: tuple[int, int]

    @classmethod
    def of(cls, name: str, value: WeightLike) -> Source:
        """Take over an NVFP4Weight or (codes, scales, decode_scale).

        Raises:
            TypeError: it is neither, or a dtype does not fit.
            ValueError: a shape, stride, side or the decode scale does not fit.
        """
        if isinstance(value, NVFP4Weight):
            if value.num_experts is not None:
                raise ValueError(f"{name} must be one matrix, got a stack of shape {value.shape}")
            codes, scales = value.codes, value.scales
            n, k = value.shape
        elif isinstance(value, tuple) and len(value) == 3:
            codes = checks.bytes_array(f"codes of {name}", value[0], 2)
            scales = checks.bytes_array(f"scales of {name}", value[1], 2)
            codes, scales = checks.codes_and_scales(
                codes, scales, multiple=QK_NVFP4, codes_name=f"codes of {name}"
            )
            n, k = codes.shape[0], 2 * codes.shape[1]
        else:
            raise TypeError(
                f"{name} must be an NVFP4Weight or a tuple (codes, scales, decode_scale), "
                f"got {type(value).__name__}"
            )
        scale = value.decode_scale if isinstance(value, NVFP4Weight) else value[2]
        if arrays.is_gpu(scale) and scale.ndim == 0:
            scale = float(scale)  # waits for the GPU, once, when the weights are loaded
        decode_scale = checks.positive_float32(f"decode_scale of {name}", scale)
        return cls(name, codes, scales, decode_scale, (n, k))

    def load(self, on_gpu: bool) -> Projection:
        """Move the weight to its side, on a GPU the current one, and repack it.

        What was moved and is not needed any more is released.
        """
        codes, scales = (self._moved(part, on_gpu) for part in (self.codes, self.scales))
        blocks = codes if scales is None else ops.nvfp4_mmq_repack(codes, scales)
        out_scale: Any = self.decode_scale
        if on_gpu:
            out_scale = arrays.cupy().full((1,), self.decode_scale, np.float32)
        return Projection(blocks, self.decode_scale, out_scale)

    def _moved(self, part: Any, on_gpu: bool) -> Any:
        if part is None or arrays.is_gpu(part) == on_gpu:
            return part
        return arrays.cupy().asarray(part)
