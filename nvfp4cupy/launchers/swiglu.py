"""Launchers of the element-wise steps of a feed-forward."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from nvfp4cupy.compiler import launch
from nvfp4cupy.formats import GROUP_SIZE
from nvfp4cupy.launch import LaunchConfig, div_ceil, f32, pointer, u32, u64
from nvfp4cupy.layouts import FP4_MMQ_BLOCK_BYTES, FP4_MMQ_BLOCK_VALUES, kpad

__all__ = ["ScaleBf16", "SiluMulQuant", "SiluMulScaled"]

_QUANT_THREADS = 128
_ELEMENT_THREADS = 256
_MAX_TOTAL = 2**32 - 1


def _limit_define(swiglu_limit: float | None) -> tuple[tuple[str, str], ...]:
    if swiglu_limit is None:
        return (("NVFP4_NO_SWIGLU_LIMIT", "1"),)
    if swiglu_limit == 10.0:
        return ()
    # A hexadecimal literal is the float32 itself, not a decimal neighbour of it.
    return (("NVFP4_SWIGLU_LIMIT", f"{float(np.float32(swiglu_limit)).hex()}f"),)


class SiluMulQuant:
    """Applies SwiGLU and quantizes. Kernel: ``kernels/nvfp4_silu_mul_quant.cu``."""

    @staticmethod
    @lru_cache(maxsize=1024)
    def plan(
        *,
        m: int,
        k: int,
        swiglu_limit: float | None = 10.0,
        round_intermediate: bool = False,
        row_scale: bool = False,
    ) -> LaunchConfig:
        """Return the launch for gate and up ``(m, k)``; the two factors stay open.

        Raises:
            ValueError: a size is negative, or the limit is not above zero.
        """
        if m < 0 or k < 0:
            raise ValueError(f"m and k must not be negative, got m={m}, k={k}")
        if swiglu_limit is not None and not swiglu_limit > 0:
            raise ValueError(f"swiglu_limit must be above zero or None, got {swiglu_limit}")
        padded = kpad(k)
        rounded = (("NVFP4_ROUND_INTERMEDIATE", "1"),) if round_intermediate else ()
        side = (pointer("row_scale", 4 * m, "out", alignment=4),) if row_scale else ()
        suffix = "_rowscale" if row_scale else ""
        blocks_bytes = padded // FP4_MMQ_BLOCK_VALUES * m * FP4_MMQ_BLOCK_BYTES
        return LaunchConfig(
            source="nvfp4_silu_mul_quant.cu",
            entry=f"atlas_nvfp4_silu_mul_quant{suffix}",
            grid=(m, div_ceil(padded, GROUP_SIZE * _QUANT_THREADS), 1),
            block=(_QUANT_THREADS, 1, 1),
            shared_mem=0,
            args=(
                pointer("gate", 2 * m * k, alignment=2),
                pointer("up", 2 * m * k, alignment=2),
                pointer("y", blocks_bytes, "out", alignment=16),
                f32("gate_scale"),
                f32("up_scale"),
                u64("k", k),
                u64("kpad", padded),
                u32("m", m),
                *side,
            ),
            defines=tuple(sorted(_limit_define(swiglu_limit) + rounded)),
        )

    def __call__(
        self,
        gate: Any,
        up: Any,
        y: Any,
        row_scale: Any = None,
        *,
        gate_scale: float,
        up_scale: float,
        m: int,
        k: int,
        swiglu_limit: float | None = 10.0,
        round_intermediate: bool = False,
        stream: Any = None,
    ) -> None:
        """Launch; ``row_scale`` is written when it is given."""
        has_scale = row_scale is not None
        config = self.plan(
            m=m,
            k=k,
            swiglu_limit=swiglu_limit,
            round_intermediate=round_intermediate,
            row_scale=has_scale,
        )
        side = (row_scale,) if has_scale else ()
        launch(config, gate, up, y, gate_scale, up_scale, *side, stream=stream)


def _check_total(total: int) -> None:
    if not 0 <= total <= _MAX_TOTAL:
        raise ValueError(f"total must be from 0 to {_MAX_TOTAL} for one launch, got {total}")


class SiluMulScaled:
    """Applies SwiGLU to bfloat16. Kernel: ``kernels/nvfp4_silu_mul_scaled.cu``."""

    @staticmethod
    @lru_cache(maxsize=1024)
    def plan(*, total: int, swiglu_limit: float | None = 10.0) -> LaunchConfig:
        """Return the launch for ``total`` elements; the two factors stay open.

        Raises:
            ValueError: total does not fit 32 bits, or the limit is not above zero.
        """
        _check_total(total)
        if swiglu_limit is not None and not swiglu_limit > 0:
            raise ValueError(f"swiglu_limit must be above zero or None, got {swiglu_limit}")
        return LaunchConfig(
            source="nvfp4_silu_mul_scaled.cu",
            entry="atlas_nvfp4_silu_mul_scaled",
            grid=(div_ceil(total, _ELEMENT_THREADS), 1, 1),
            block=(_ELEMENT_THREADS, 1, 1),
            shared_mem=0,
            args=(
                pointer("gate", 2 * total, alignment=2),
                pointer("up", 2 * total, alignment=2),
                pointer("out", 2 * total, "out", alignment=2),
                f32("gate_scale"),
                f32("up_scale"),
                u32("total", total),
            ),
            defines=_limit_define(swiglu_limit),
        )

    def __call__(
        self,
        gate: Any,
        up: Any,
        out: Any,
        *,
        gate_scale: float,
        up_scale: float,
        swiglu_limit: float | None = 10.0,
        stream: Any = None,
    ) -> None:
        """Launch; ``out`` may be ``gate``. More than 2^32 - 1 elements take several launches."""
        for gate_part, up_part, out_part in _slices(gate, up, out):
            config = self.plan(total=out_part.size, swiglu_limit=swiglu_limit)
            launch(config, gate_part, up_part, out_part, gate_scale, up_scale, stream=stream)


class ScaleBf16:
    """Multiplies bfloat16 in place. Kernel: ``kernels/nvfp4_scale_bf16.cu``."""

    @staticmethod
    @lru_cache(maxsize=1024)
    def plan(*, total: int) -> LaunchConfig:
        """Return the launch for ``total`` elements; the factor stays open.

        Raises:
            ValueError: total does not fit 32 bits.
        """
        _check_total(total)
        return LaunchConfig(
            source="nvfp4_scale_bf16.cu",
            entry="atlas_nvfp4_scale_bf16",
            grid=(div_ceil(total, _ELEMENT_THREADS), 1, 1),
            block=(_ELEMENT_THREADS, 1, 1),
            shared_mem=0,
            args=(
                pointer("data", 2 * total, "inout", alignment=2),
                f32("scale"),
                u32("total", total),
            ),
        )

    def __call__(self, data: Any, *, scale: float, stream: Any = None) -> None:
        """Launch. More than 2^32 - 1 elements take several launches."""
        for (part,) in _slices(data):
            launch(self.plan(total=part.size), part, scale, stream=stream)


def _slices(*arrays: Any) -> list[tuple[Any, ...]]:
    """Cut arrays of one size into parts whose size fits 32 bits; a multiple of 16 bytes each."""
    total = arrays[0].size
    if total <= _MAX_TOTAL:
        return [arrays]
    flat, step = [a.reshape(-1) for a in arrays], 2**31
    return [tuple(a[i : i + step] for a in flat) for i in range(0, total, step)]
