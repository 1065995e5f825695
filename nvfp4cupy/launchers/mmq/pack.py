"""Launchers that repack weights and quantize activations for the MMQ GEMM."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from nvfp4cupy.compiler import launch
from nvfp4cupy.formats import GROUP_SIZE
from nvfp4cupy.launch import (
    MAX_GRID_X,
    MAX_GRID_YZ,
    LaunchConfig,
    div_ceil,
    pointer,
    u32,
    u64,
)
from nvfp4cupy.layouts import (
    FP4_MMQ_BLOCK_BYTES,
    FP4_MMQ_BLOCK_VALUES,
    NIBBLE_ORDERS,
    QK_NVFP4,
    NibbleOrder,
    kpad,
    nvfp4_mmq_weight_bytes,
)

__all__ = ["MmqQuantizeAct", "MmqRepack", "MmqUnpack"]

_REPACK_THREADS = 256
_QUANT_THREADS = 128
_MAX_VALUES = MAX_GRID_X * _REPACK_THREADS * QK_NVFP4
_MAX_COLUMNS = MAX_GRID_YZ * _QUANT_THREADS * GROUP_SIZE


def _check_weight(n: int, k: int) -> None:
    if n < 0 or k < 0 or k % QK_NVFP4:
        raise ValueError(
            f"n must not be negative and k must be a multiple of {QK_NVFP4}, got n={n}, k={k}"
        )
    if n * k > _MAX_VALUES:
        raise ValueError(
            f"n * k must be at most {_MAX_VALUES}, since a grid has at most {MAX_GRID_X} blocks of "
            f"{_REPACK_THREADS * QK_NVFP4} values, got n={n}, k={k}"
        )


class MmqRepack:
    """Moves checkpoint weights into block_nvfp4. Kernel: ``kernels/nvfp4_repack.cu``."""

    @staticmethod
    @lru_cache(maxsize=1024)
    def plan(*, n: int, k: int, nibble_order: NibbleOrder = "low_first") -> LaunchConfig:
        """Return the launch for a weight ``(n, k)``.

        Raises:
            ValueError: k is no multiple of 64, a size is negative or too large for the grid, or
                the nibble order is unknown.
        """
        _check_weight(n, k)
        if nibble_order not in NIBBLE_ORDERS:
            raise ValueError(f"nibble_order must be one of {NIBBLE_ORDERS}, got {nibble_order!r}")
        swapped = (("NVFP4_HIGH_NIBBLE_FIRST", "1"),) if nibble_order == "high_first" else ()
        return LaunchConfig(
            source="nvfp4_repack.cu",
            entry="atlas_nvfp4_repack",
            grid=(div_ceil(n * (k // QK_NVFP4), _REPACK_THREADS), 1, 1),
            block=(_REPACK_THREADS, 1, 1),
            shared_mem=0,
            args=(
                pointer("packed", n * k // 2),
                pointer("scales", n * k // GROUP_SIZE),
                pointer("out_blocks", nvfp4_mmq_weight_bytes(n, k), "out", alignment=4),
                u32("n", n),
                u32("k", k),
            ),
            defines=swapped,
        )

    def __call__(
        self,
        packed: Any,
        scales: Any,
        out_blocks: Any,
        *,
        n: int,
        k: int,
        nibble_order: NibbleOrder = "low_first",
        stream: Any = None,
    ) -> None:
        """Launch."""
        config = self.plan(n=n, k=k, nibble_order=nibble_order)
        launch(config, packed, scales, out_blocks, stream=stream)


class MmqUnpack:
    """Moves block_nvfp4 weights back to checkpoint order. Kernel: ``kernels/nvfp4_repack.cu``."""

    @staticmethod
    @lru_cache(maxsize=1024)
    def plan(*, n: int, k: int) -> LaunchConfig:
        """Return the launch for a weight ``(n, k)``.

        Raises:
            ValueError: k is no multiple of 64, or a size is negative or too large for the grid.
        """
        _check_weight(n, k)
        return LaunchConfig(
            source="nvfp4_repack.cu",
            entry="nvfp4_unpack_kernel",
            grid=(div_ceil(n * (k // QK_NVFP4), _REPACK_THREADS), 1, 1),
            block=(_REPACK_THREADS, 1, 1),
            shared_mem=0,
            args=(
                pointer("blocks", nvfp4_mmq_weight_bytes(n, k), alignment=4),
                pointer("packed", n * k // 2, "out"),
                pointer("scales", n * k // GROUP_SIZE, "out"),
                u32("n", n),
                u32("k", k),
            ),
        )

    def __call__(
        self, blocks: Any, packed: Any, scales: Any, *, n: int, k: int, stream: Any = None
    ) -> None:
        """Launch."""
        launch(self.plan(n=n, k=k), blocks, packed, scales, stream=stream)


def _check_grid(m: int, k: int) -> None:
    if m > MAX_GRID_X:
        raise ValueError(f"m must be at most {MAX_GRID_X}, one block a row in x, got m={m}")
    if k > _MAX_COLUMNS:
        raise ValueError(
            f"k must be at most {_MAX_COLUMNS}, since a grid has at most {MAX_GRID_YZ} blocks of "
            f"{_QUANT_THREADS * GROUP_SIZE} columns in y, got k={k}"
        )


class MmqQuantizeAct:
    """Quantizes activations to block_fp4_mmq. Kernel: ``kernels/nvfp4_quantize_act.cu``."""

    @staticmethod
    @lru_cache(maxsize=1024)
    def plan(
        *, m: int, k: int, row_stride: int | None = None, row_scale: bool = False
    ) -> LaunchConfig:
        """Return the launch for x ``(m, k)``.

        Args:
            m: rows.
            k: columns, any number.
            row_stride: elements from one row to the next; k by default.
            row_scale: divide each row by its own decode scale and write that too.

        Raises:
            ValueError: a size is negative or too large for the grid, or rows overlap.
        """
        stride = k if row_stride is None else row_stride
        if m < 0 or k < 0 or (stride < k and m > 1):
            raise ValueError(
                "m and k must not be negative and row_stride must be at least k, got "
                f"m={m}, k={k}, row_stride={stride}"
            )
        _check_grid(m, k)
        padded = kpad(k)
        side = (pointer("row_scale", 4 * m, "out", alignment=4),) if row_scale else ()
        suffix = "_rowscale" if row_scale else ""
        return LaunchConfig(
            source="nvfp4_quantize_act.cu",
            entry=f"atlas_nvfp4_quantize_bf16{suffix}",
            grid=(m, div_ceil(padded, GROUP_SIZE * _QUANT_THREADS), 1),
            block=(_QUANT_THREADS, 1, 1),
            shared_mem=0,
            args=(
                pointer("x", 2 * ((m - 1) * stride + k) if m and k else 0, alignment=2),
                pointer(
                    "y",
                    padded // FP4_MMQ_BLOCK_VALUES * m * FP4_MMQ_BLOCK_BYTES,
                    "out",
                    alignment=4,
                ),
                u64("k", k),
                u64("row_stride", stride),
                u64("kpad", padded),
                u32("m", m),
                *side,
            ),
        )

    def __call__(
        self,
        x: Any,
        y: Any,
        row_scale: Any = None,
        *,
        m: int,
        k: int,
        row_stride: int | None = None,
        stream: Any = None,
    ) -> None:
        """Launch; ``row_scale`` is written when it is given."""
        has_scale = row_scale is not None
        config = self.plan(m=m, k=k, row_stride=row_stride, row_scale=has_scale)
        launch(config, x, y, *((row_scale,) if has_scale else ()), stream=stream)
