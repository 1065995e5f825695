"""Launchers of the quantizers whose decode scales are known before."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from nvfp4cupy.compiler import launch
from nvfp4cupy.formats import GROUP_SIZE, Rounding, dtype_name
from nvfp4cupy.launch import Arg, LaunchConfig, f32, i32, pointer
from nvfp4cupy.launchers.quantize.geometry import (
    ITEM_BYTES,
    InputType,
    check_columns,
    check_sizes,
    grid_of,
    groups_per_thread,
    num_rows,
    output_args,
    quantizer_defines,
    row_threads,
)
from nvfp4cupy.layouts import ScaleLayout


class QuantizeFromBuffer:
    """Quantizes rows with a decode scale each. Kernel: ``kernels/quantize_nvfp4.cu``."""

    @staticmethod
    @lru_cache(maxsize=1024)
    def plan(
        *,
        m: int,
        n: int,
        dtype: InputType = "bfloat16",
        rounding: Rounding = "half_step",
        scale_search: int = 0,
        scale_layout: ScaleLayout = "linear",
    ) -> LaunchConfig:
        """Return the launch for x ``(m, n)``.

        Raises:
            ValueError: n is not a multiple of 16, or a size or an option does not fit.
        """
        gsa = pointer("gsa", 4 * m, alignment=4)
        entry = "quantize_nvfp4_from_buffer_kernel"
        return _plan(entry, m, n, gsa, dtype, rounding, scale_search, scale_layout)

    def __call__(
        self, x: Any, gsa: Any, out_fp4: Any, out_sf: Any, *, stream: Any = None, **options: Any
    ) -> None:
        """Launch; options are those of ``plan``."""
        config = self.plan(m=x.shape[0], n=x.shape[1], dtype=dtype_name(x.dtype), **options)
        launch(config, x, gsa, out_fp4, out_sf, stream=stream)


class Quantize:
    """Quantizes rows with one decode scale for all. Kernel: ``kernels/quantize_nvfp4.cu``."""

    @staticmethod
    @lru_cache(maxsize=1024)
    def plan(
        *,
        m: int,
        n: int,
        dtype: InputType = "bfloat16",
        rounding: Rounding = "half_step",
        scale_search: int = 0,
        scale_layout: ScaleLayout = "linear",
    ) -> LaunchConfig:
        """Return the launch for x ``(m, n)``; ``gsa`` stays unbound.

        Raises:
            ValueError: n is not a multiple of 16, or a size or an option does not fit.
        """
        entry = "quantize_nvfp4_kernel"
        return _plan(entry, m, n, f32("gsa"), dtype, rounding, scale_search, scale_layout)

    def __call__(
        self,
        x: Any,
        out_fp4: Any,
        out_sf: Any,
        *,
        gsa: float,
        stream: Any = None,
        **options: Any,
    ) -> None:
        """Launch; options are those of ``plan``."""
        config = self.plan(m=x.shape[0], n=x.shape[1], dtype=dtype_name(x.dtype), **options)
        launch(config, x, gsa, out_fp4, out_sf, stream=stream)


class DeinterleaveQuantizeFromBuffer:
    """Quantizes every second run of columns. Kernel: ``kernels/deinterleave_quantize.cu``."""

    @staticmethod
    @lru_cache(maxsize=1024)
    def plan(
        *,
        m: int,
        n: int,
        intermediate: int,
        granularity: int,
        dtype: InputType = "bfloat16",
        rounding: Rounding = "half_step",
        scale_search: int = 0,
        scale_layout: ScaleLayout = "linear",
    ) -> LaunchConfig:
        """Return the launch for fused ``(m, n)`` and a result of ``intermediate`` columns.

        Raises:
            ValueError: intermediate is not a multiple of 16 and of granularity, granularity is
                below 1, n is below ``2 * intermediate``, or a size or an option does not fit.
        """
        check_sizes(m=m, n=n, intermediate=intermediate)
        check_columns("intermediate", intermediate)
        if granularity < 1 or intermediate % granularity:
            raise ValueError(
                f"granularity must be at least 1 and divide intermediate={intermediate}, "
                f"got {granularity}"
            )
        if n < 2 * intermediate:
            raise ValueError(f"n must be at least 2 * intermediate = {2 * intermediate}, got n={n}")
        defines = quantizer_defines(dtype, rounding, scale_search, scale_layout)
        per_thread = max(groups_per_thread(dtype, scale_search) // 2, 1)
        grid, block = _geometry(m, intermediate, scale_layout, per_thread)
        item = ITEM_BYTES[dtype]
        args = (
            pointer("fused", m * n * item, alignment=item),
            i32("M", m),
            i32("N", n),
            i32("intermediate", intermediate),
            i32("granularity", granularity),
            pointer("gsa", 4 * m, alignment=4),
            *output_args(m, intermediate, scale_layout),
        )
        entry = "deinterleave_quantize_from_buffer_kernel"
        return LaunchConfig("deinterleave_quantize.cu", entry, grid, block, 0, args, defines)

    def __call__(
        self, fused: Any, gsa: Any, out_fp4: Any, out_sf: Any, *, stream: Any = None, **options: Any
    ) -> None:
        """Launch; options are those of ``plan``."""
        config = self.plan(
            m=fused.shape[0], n=fused.shape[1], dtype=dtype_name(fused.dtype), **options
        )
        launch(config, fused, gsa, out_fp4, out_sf, stream=stream)


def _plan(
    entry: str,
    m: int,
    n: int,
    gsa: Arg,
    dtype: InputType,
    rounding: Rounding,
    scale_search: int,
    scale_layout: ScaleLayout,
) -> LaunchConfig:
    check_sizes(m=m, n=n)
    check_columns("n", n)
    defines = quantizer_defines(dtype, rounding, scale_search, scale_layout)
    per_thread = groups_per_thread(dtype, scale_search)
    grid, block = _geometry(m, n, scale_layout, per_thread)
    item = ITEM_BYTES[dtype]
    args = (
        pointer("x", m * n * item, alignment=item),
        i32("M", m),
        i32("N", n),
        gsa,
        *output_args(m, n, scale_layout),
    )
    return LaunchConfig("quantize_nvfp4.cu", entry, grid, block, 0, args, defines)


def _geometry(
    m: int, columns: int, scale_layout: ScaleLayout, per_thread: int
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    groups = columns // GROUP_SIZE
    threads = row_threads(groups, per_thread)
    return grid_of(num_rows(m, scale_layout), groups, per_thread, threads)
