"""Launchers that read whole rows: decode scales, and the search for values that are not finite."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from nvfp4cupy.compiler import launch
from nvfp4cupy.formats import dtype_name
from nvfp4cupy.launch import Arg, LaunchConfig, div_ceil, i32, pointer, u64
from nvfp4cupy.launchers.quantize.geometry import (
    ITEM_BYTES,
    THREADS,
    InputType,
    check_sizes,
    type_define,
    whole_row_threads,
)

_LOAD_BYTES = 16
_LOADS_PER_THREAD = 8


class AmaxGsa:
    """Finds each row's decode scale. Kernel: ``kernels/amax_gsa.cu``."""

    @staticmethod
    @lru_cache(maxsize=1024)
    def plan(*, m: int, n: int, dtype: InputType = "bfloat16") -> LaunchConfig:
        """Return the launch for x ``(m, n)``, any n; with n = 0 every gsa is 1.

        Raises:
            ValueError: a size is negative or the dtype unknown.
        """
        gsa = pointer("gsa", 4 * m, "out", alignment=4)
        return _plan("amax_gsa.cu", "amax_gsa_kernel", m, n, dtype, m * n, (gsa,))

    def __call__(self, x: Any, gsa: Any, *, stream: Any = None) -> None:
        """Launch."""
        config = self.plan(m=x.shape[0], n=x.shape[1], dtype=dtype_name(x.dtype))
        launch(config, x, gsa, stream=stream)


class FindNonfinite:
    """Finds the first row with a NaN or an infinity. Kernel: ``kernels/check_finite.cu``."""

    @staticmethod
    @lru_cache(maxsize=1024)
    def plan(
        *, m: int, n: int, row_stride: int | None = None, dtype: InputType = "bfloat16"
    ) -> LaunchConfig:
        """Return the launch for x ``(m, n)``, any n; ``first`` is one int64.

        Args:
            m: rows.
            n: columns.
            row_stride: elements from one row to the next; n by default.
            dtype: of x.

        Raises:
            ValueError: a size is negative, rows overlap, or the dtype is unknown.
        """
        stride = n if row_stride is None else row_stride
        if stride < n and m > 1:
            raise ValueError(f"row_stride must be at least n={n}, got row_stride={stride}")
        elements = (m - 1) * stride + n if m and n else 0
        rest = (u64("row_stride", stride), pointer("first", 8, "inout", alignment=8))
        return _plan("check_finite.cu", "find_nonfinite_kernel", m, n, dtype, elements, rest)

    def __call__(
        self, x: Any, first: Any, *, row_stride: int | None = None, stream: Any = None
    ) -> None:
        """Launch; ``first`` must hold M or more, and becomes the row if there is one."""
        m, n = x.shape
        config = self.plan(m=m, n=n, row_stride=row_stride, dtype=dtype_name(x.dtype))
        launch(config, x, first, stream=stream)


def _plan(
    source: str,
    entry: str,
    m: int,
    n: int,
    dtype: InputType,
    elements: int,
    rest: tuple[Arg, ...],
) -> LaunchConfig:
    """Build the launch; ``elements`` lie from the first of x to its last, ``rest`` follows N."""
    check_sizes(m=m, n=n)
    defines = type_define("NVFP4_INPUT", dtype)
    item = ITEM_BYTES[dtype]
    threads = whole_row_threads(div_ceil(n * item, _LOAD_BYTES), _LOADS_PER_THREAD)
    block = (threads, THREADS // threads, 1)
    args = (pointer("x", elements * item, alignment=item), i32("M", m), i32("N", n), *rest)
    return LaunchConfig(source, entry, (div_ceil(m, block[1]), 1, 1), block, 0, args, defines)
