"""Launcher of SwiGLU with quantization."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

from nvfp4cupy.arrays import cupy, current_device
from nvfp4cupy.compiler import launch
from nvfp4cupy.formats import GROUP_SIZE
from nvfp4cupy.launch import (
    MAX_GRID_X,
    MAX_GRID_YZ,
    Arg,
    LaunchConfig,
    div_ceil,
    f32,
    pointer,
    u32,
    u64,
)
from nvfp4cupy.launchers.swiglu.limit import limit_define
from nvfp4cupy.layouts import FP4_MMQ_BLOCK_BYTES, FP4_MMQ_BLOCK_VALUES, kpad

_THREADS = 128
_MAX_COLUMNS = MAX_GRID_YZ * _THREADS * GROUP_SIZE
_TABLE_THREADS = 1024
# A table costs a block as much as about two groups per thread do.
_MIN_GROUPS_PER_TABLE_THREAD = 4


@cache
def _num_multiprocessors(device: int) -> int:
    runtime = cupy().cuda.runtime
    return int(runtime.deviceGetAttribute(runtime.cudaDevAttrMultiProcessorCount, device))


class SiluMulQuant:
    """Applies SwiGLU and quantizes.

    Kernel: ``kernels/nvfp4_silu_mul_quant.cu``, ``nvfp4_silu_mul_quant_wide.cu``.
    """

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
            ValueError: a size is negative or too large for the grid, or the limit is not above
                zero.
        """
        args = _quant_args(m, k)
        side = (pointer("row_scale", 4 * m, "out", alignment=4),) if row_scale else ()
        suffix = "_rowscale" if row_scale else ""
        return LaunchConfig(
            source="nvfp4_silu_mul_quant.cu",
            entry=f"atlas_nvfp4_silu_mul_quant{suffix}",
            grid=(m, div_ceil(kpad(k), GROUP_SIZE * _THREADS), 1),
            block=(_THREADS, 1, 1),
            shared_mem=0,
            args=(*args, *side),
            defines=_quant_defines(swiglu_limit, round_intermediate),
        )

    @staticmethod
    @lru_cache(maxsize=1024)
    def plan_wide(
        *,
        m: int,
        k: int,
        num_multiprocessors: int,
        swiglu_limit: float | None = 10.0,
        round_intermediate: bool = False,
    ) -> LaunchConfig:
        """Return the launch of the kernel with a table of the SiLU: faster for large sizes.

        Args:
            m: rows.
            k: columns.
            num_multiprocessors: the GPU's, each of which gets a block.
            swiglu_limit: as for ``plan``.
            round_intermediate: as for ``plan``.

        Raises:
            ValueError: a size is negative or too large for ``plan``, ``num_multiprocessors`` is
                out of range, or the limit is not above zero.
        """
        if not 0 < num_multiprocessors <= MAX_GRID_YZ:
            raise ValueError(
                f"num_multiprocessors must be from 1 to {MAX_GRID_YZ}, got {num_multiprocessors}"
            )
        args = _quant_args(m, k)
        num_groups = m * (kpad(k) // GROUP_SIZE)
        return LaunchConfig(
            source="nvfp4_silu_mul_quant_wide.cu",
            entry="nvfp4_silu_mul_quant_wide_kernel",
            grid=(min(num_multiprocessors, div_ceil(num_groups, _TABLE_THREADS)), 1, 1),
            block=(_TABLE_THREADS, 1, 1),
            shared_mem=0,
            args=args,
            defines=_quant_defines(swiglu_limit, round_intermediate),
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
        mirror: bool = False,
        stream: Any = None,
        **options: Any,
    ) -> None:
        """Launch what is faster, or with ``mirror`` the kernel of ``plan``.

        ``row_scale`` is written when it is given; options are those of ``plan``.
        """
        if row_scale is not None:
            config = self.plan(m=m, k=k, row_scale=True, **options)
            launch(config, gate, up, y, gate_scale, up_scale, row_scale, stream=stream)
            return
        sms = _num_multiprocessors(current_device())
        num_groups = m * (kpad(k) // GROUP_SIZE)
        if mirror or num_groups < sms * _TABLE_THREADS * _MIN_GROUPS_PER_TABLE_THREAD:
            config = self.plan(m=m, k=k, **options)
        else:
            config = self.plan_wide(m=m, k=k, num_multiprocessors=sms, **options)
        launch(config, gate, up, y, gate_scale, up_scale, stream=stream)


def _quant_args(m: int, k: int) -> tuple[Arg, ...]:
    if m < 0 or k < 0:
        raise ValueError(f"m and k must not be negative, got m={m}, k={k}")
    # The kernel by table, which counts rows and columns in 32 bits, keeps to the same limits.
    if m > MAX_GRID_X:
        raise ValueError(f"m must be at most {MAX_GRID_X}, one block a row in x, got m={m}")
    if k > _MAX_COLUMNS:
        raise ValueError(
            f"k must be at most {_MAX_COLUMNS}, since a grid has at most {MAX_GRID_YZ} blocks of "
            f"{_THREADS * GROUP_SIZE} columns in y, got k={k}"
        )
    padded = kpad(k)
    blocks_bytes = padded // FP4_MMQ_BLOCK_VALUES * m * FP4_MMQ_BLOCK_BYTES
    return (
        pointer("gate", 2 * m * k, alignment=2),
        pointer("up", 2 * m * k, alignment=2),
        pointer("y", blocks_bytes, "out", alignment=4),
        f32("gate_scale"),
        f32("up_scale"),
        u64("k", k),
        u64("kpad", padded),
        u32("m", m),
    )


def _quant_defines(
    swiglu_limit: float | None, round_intermediate: bool
) -> tuple[tuple[str, str], ...]:
    rounded = (("NVFP4_ROUND_INTERMEDIATE", "1"),) if round_intermediate else ()
    return tuple(sorted(limit_define(swiglu_limit) + rounded))
