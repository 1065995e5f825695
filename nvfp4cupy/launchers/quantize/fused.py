"""Launcher of the quantizer that finds its decode scales itself."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from nvfp4cupy.compiler import launch
from nvfp4cupy.formats import GROUP_SIZE, Rounding, dtype_name
from nvfp4cupy.launch import LaunchConfig, div_ceil, i32, pointer
from nvfp4cupy.launchers.quantize.geometry import (
    ITEM_BYTES,
    THREADS,
    Defines,
    InputType,
    check_columns,
    check_sizes,
    groups_per_thread,
    num_rows,
    output_args,
    quantizer_defines,
    whole_row_threads,
)
from nvfp4cupy.layouts import ScaleLayout

# Loads of 128 bytes that a thread can hold in registers; two and the temporaries of nearest_even
# need more than 128 of them on compute capability 12.0.
_MAX_HELD_LOADS = {"half_step": 2, "nearest_low": 2, "nearest_even": 1}


class AmaxQuantize:
    """Finds each row's decode scale and quantizes. Kernel: ``kernels/amax_quantize_nvfp4.cu``."""

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
        """Return the launch for x ``(m, n)``; with n = 0 every gsa is 1.

        Raises:
            ValueError: n is not a multiple of 16, or a size or an option does not fit.
        """
        check_sizes(m=m, n=n)
        check_columns("n", n)
        defines = quantizer_defines(dtype, rounding, scale_search, scale_layout)
        threads, held = _row_shape(
            n // GROUP_SIZE,
            groups_per_thread(dtype, scale_search),
            0 if scale_search else _MAX_HELD_LOADS[rounding],
        )
        block = (threads, THREADS // threads, 1)
        grid = (div_ceil(num_rows(m, scale_layout), block[1]), 1, 1)
        item = ITEM_BYTES[dtype]
        args = (
            pointer("x", m * n * item, alignment=item),
            i32("M", m),
            i32("N", n),
            pointer("gsa", 4 * m, "out", alignment=4),
            *output_args(m, n, scale_layout),
        )
        return LaunchConfig(
            "amax_quantize_nvfp4.cu",
            "amax_quantize_nvfp4_kernel",
            grid,
            block,
            0,
            args,
            tuple(sorted(defines + held)),
        )

    def __call__(
        self, x: Any, gsa: Any, out_fp4: Any, out_sf: Any, *, stream: Any = None, **options: Any
    ) -> None:
        """Launch; options are those of ``plan``."""
        config = self.plan(m=x.shape[0], n=x.shape[1], dtype=dtype_name(x.dtype), **options)
        launch(config, x, gsa, out_fp4, out_sf, stream=stream)


def _row_shape(groups: int, per_load: int, max_held_loads: int) -> tuple[int, Defines]:
    """Return the threads of a row, a power of two, and how the kernel is to hold the row."""
    threads = whole_row_threads(groups, per_load)
    held_loads = max(div_ceil(groups, per_load * THREADS), 1)
    if held_loads > max_held_loads:
        held_loads = 0  # the row is read again
    return threads, () if held_loads == 1 else (("NVFP4_HELD_LOADS", str(held_loads)),)
