"""Launcher of the way back from codes and scales to values."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from nvfp4cupy.compiler import launch
from nvfp4cupy.formats import GROUP_SIZE, dtype_name
from nvfp4cupy.launch import LaunchConfig, i32, pointer, u32
from nvfp4cupy.launchers.quantize.geometry import (
    ITEM_BYTES,
    InputType,
    check_columns,
    check_sizes,
    grid_of,
    row_threads,
    type_define,
)
from nvfp4cupy.layouts import ScaleLayout, scales_shape

_WORD_CODES = 8
_WORDS_PER_THREAD = 4


class Dequantize:
    """Turns codes and scales into values. Kernel: ``kernels/dequantize_nvfp4.cu``."""

    @staticmethod
    @lru_cache(maxsize=1024)
    def plan(
        *,
        m: int,
        n: int,
        dtype: InputType = "bfloat16",
        scale_layout: ScaleLayout = "linear",
        gsa_stride: int = 1,
    ) -> LaunchConfig:
        """Return the launch for a result ``(m, n)``.

        Args:
            m: rows.
            n: columns.
            dtype: of the result.
            scale_layout: ``"linear"`` or ``"128x4"``.
            gsa_stride: 1 for a decode scale per row, 0 for one.

        Raises:
            ValueError: n is not a multiple of 16, or a size or an option does not fit.
        """
        check_sizes(m=m, n=n)
        check_columns("n", n)
        if gsa_stride not in (0, 1):
            raise ValueError(f"gsa_stride must be 0 or 1, got {gsa_stride}")
        defines = type_define("NVFP4_OUTPUT", dtype)
        scale_rows, scale_cols = scales_shape(m, n // GROUP_SIZE, scale_layout)
        if scale_layout == "128x4":
            defines += (("NVFP4_SCALE_LAYOUT", "1"),)
        words = n // _WORD_CODES
        threads = row_threads(words, _WORDS_PER_THREAD)
        grid, block = grid_of(m, words, _WORDS_PER_THREAD, threads)
        item = ITEM_BYTES[dtype]
        args = (
            pointer("codes", m * (n // 2)),
            pointer("scales", scale_rows * scale_cols),
            pointer("gsa", 4 * (m if gsa_stride else 1), alignment=4),
            pointer("out", m * n * item, "out", alignment=item),
            i32("M", m),
            i32("N", n),
            u32("gsa_stride", gsa_stride),
        )
        entry = "dequantize_nvfp4_kernel"
        return LaunchConfig("dequantize_nvfp4.cu", entry, grid, block, 0, args, defines)

    def __call__(
        self,
        codes: Any,
        scales: Any,
        gsa: Any,
        out: Any,
        *,
        scale_layout: ScaleLayout = "linear",
        stream: Any = None,
    ) -> None:
        """Launch; ``gsa`` has one element, or one per row."""
        config = self.plan(
            m=out.shape[0],
            n=out.shape[1],
            dtype=dtype_name(out.dtype),
            scale_layout=scale_layout,
            gsa_stride=int(gsa.size != 1),
        )
        launch(config, codes, scales, gsa, out, stream=stream)
