"""Launchers of SwiGLU to bfloat16 and of scaling."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from nvfp4cupy.compiler import launch
from nvfp4cupy.launch import Arg, LaunchConfig, div_ceil, f32, pointer, u32, u64
from nvfp4cupy.launchers.swiglu.limit import limit_define

_MAX_TOTAL = 2**32 - 1
_THREADS = 256
# Elements of a block in the wide kernels: 16 bytes a thread, and four times that.
_SCALE_SPAN = 2048
_SILU_SPAN = 8192
# Below, the mirrored kernel's smaller shares use more of the GPU.
_MIN_WIDE_SILU = 2**20


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
        grid = div_ceil(total, _THREADS)
        return _silu_config(
            "atlas_nvfp4_silu_mul_scaled", grid, total, u32("total", total), swiglu_limit
        )

    @staticmethod
    @lru_cache(maxsize=1024)
    def plan_wide(*, total: int, swiglu_limit: float | None = 10.0) -> LaunchConfig:
        """Return the launch of the kernel with larger shares per block: faster for large sizes.

        Raises:
            ValueError: total is negative or too large for the grid, or the limit is not above
                zero.
        """
        if total < 0:
            raise ValueError(f"total must not be negative, got {total}")
        grid = div_ceil(total, _SILU_SPAN)
        return _silu_config(
            "nvfp4_silu_mul_scaled_wide_kernel", grid, total, u64("total", total), swiglu_limit
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
        mirror: bool = False,
        stream: Any = None,
    ) -> None:
        """Launch what is faster, or with ``mirror`` the kernel of ``plan``.

        ``out`` may be ``gate``. More than 2^32 - 1 elements take several mirrored launches.
        """
        if mirror or out.size < _MIN_WIDE_SILU:
            for gate_part, up_part, out_part in _slices(gate, up, out):
                config = self.plan(total=out_part.size, swiglu_limit=swiglu_limit)
                launch(config, gate_part, up_part, out_part, gate_scale, up_scale, stream=stream)
        else:
            config = self.plan_wide(total=out.size, swiglu_limit=swiglu_limit)
            launch(config, gate, up, out, gate_scale, up_scale, stream=stream)


def _silu_config(
    entry: str, grid: int, total: int, total_arg: Arg, swiglu_limit: float | None
) -> LaunchConfig:
    return LaunchConfig(
        source="nvfp4_silu_mul_scaled.cu",
        entry=entry,
        grid=(grid, 1, 1),
        block=(_THREADS, 1, 1),
        shared_mem=0,
        args=(
            pointer("gate", 2 * total, alignment=2),
            pointer("up", 2 * total, alignment=2),
            pointer("out", 2 * total, "out", alignment=2),
            f32("gate_scale"),
            f32("up_scale"),
            total_arg,
        ),
        defines=limit_define(swiglu_limit),
    )


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
        grid = div_ceil(total, _THREADS)
        return _scale_config("atlas_nvfp4_scale_bf16", grid, total, u32("total", total))

    @staticmethod
    @lru_cache(maxsize=1024)
    def plan_wide(*, total: int) -> LaunchConfig:
        """Return the launch of the kernel with eight times the share per block.

        Raises:
            ValueError: total is negative or too large for the grid.
        """
        if total < 0:
            raise ValueError(f"total must not be negative, got {total}")
        grid = div_ceil(total, _SCALE_SPAN)
        return _scale_config("nvfp4_scale_bf16_wide_kernel", grid, total, u64("total", total))

    def __call__(
        self, data: Any, *, scale: float, mirror: bool = False, stream: Any = None
    ) -> None:
        """Launch the wide kernel, or with ``mirror`` that of ``plan``.

        More than 2^32 - 1 elements take several mirrored launches.
        """
        if not mirror:
            launch(self.plan_wide(total=data.size), data, scale, stream=stream)
            return
        for (part,) in _slices(data):
            launch(self.plan(total=part.size), part, scale, stream=stream)


def _scale_config(entry: str, grid: int, total: int, total_arg: Arg) -> LaunchConfig:
    return LaunchConfig(
        source="nvfp4_scale_bf16.cu",
        entry=entry,
        grid=(grid, 1, 1),
        block=(_THREADS, 1, 1),
        shared_mem=0,
        args=(pointer("data", 2 * total, "inout", alignment=2), f32("scale"), total_arg),
    )


def _slices(*arrays: Any) -> list[tuple[Any, ...]]:
    """Cut arrays of one size into parts whose size fits 32 bits; a multiple of 16 bytes each."""
    total = arrays[0].size
    if total <= _MAX_TOTAL:
        return [arrays]
    flat, step = [a.reshape(-1) for a in arrays], 2**31
    return [tuple(a[i : i + step] for a in flat) for i in range(0, total, step)]
