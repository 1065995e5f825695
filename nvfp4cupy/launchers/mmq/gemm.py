"""Launchers of the GEMMs with NVFP4 weights."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from nvfp4cupy import layouts
from nvfp4cupy.compiler import launch
from nvfp4cupy.launch import MAX_GRID_YZ, Arg, LaunchConfig, div_ceil, pointer, u32
from nvfp4cupy.layouts import MMQ_TILES, MMQ_WEIGHT_ROWS

OutputType: TypeAlias = Literal["bfloat16", "float16", "float32"]

_BLOCK = (32, 8, 1)
_MAX_U32 = 2**32 - 1
# Bytes of an element; the place in this table is what NVFP4_OUTPUT says.
_OUTPUT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


class MmqGemm:
    """Multiplies FP4 activations by FP4 weights, 128 tokens a block.

    Kernel: ``kernels/nvfp4_mmq128.cu``.
    """

    @staticmethod
    @lru_cache(maxsize=1024)
    def plan(
        *,
        m: int,
        n: int,
        k: int,
        dtype: OutputType = "bfloat16",
        deterministic_kblocks: bool = False,
        scaled: bool = False,
        out_scale_stride: int = 1,
    ) -> LaunchConfig:
        """Return the launch of ``nvfp4_mmq_gemm``.

        Args:
            m: rows of the activations.
            n: rows of the weights.
            k: what both are summed over; a multiple of 64.
            dtype: type of the output.
            deterministic_kblocks: start each 64-wide step from zero and add it in float32.
            scaled: take ``out_scale`` and ``row_scale``, either of which may be null.
            out_scale_stride: 1 for an ``out_scale`` of n numbers, 0 for one number.

        Raises:
            ValueError: a size or an option does not fit.
        """
        return MmqGemmTiled.plan(
            m=m,
            n=n,
            k=k,
            mmq_x=128,
            allow_restream=True,
            dtype=dtype,
            deterministic_kblocks=deterministic_kblocks,
            scaled=scaled,
            out_scale_stride=out_scale_stride,
        )

    def __call__(
        self,
        w: Any,
        a: Any,
        out: Any,
        out_scale: Any = None,
        row_scale: Any = None,
        *,
        m: int,
        n: int,
        k: int,
        stream: Any = None,
        **options: Any,
    ) -> None:
        """Launch; options are those of ``plan``."""
        tile = {"mmq_x": 128, "allow_restream": True}
        MmqGemmTiled()(
            w, a, out, out_scale, row_scale, m=m, n=n, k=k, stream=stream, **tile, **options
        )


class MmqGemmTiled:
    """Multiplies FP4 activations by FP4 weights, ``mmq_x`` tokens a block.

    Kernel: ``kernels/nvfp4_mmq16.cu``, ``nvfp4_mmq32.cu``, ``nvfp4_mmq64.cu``, ``nvfp4_mmq128.cu``.
    """

    @staticmethod
    @lru_cache(maxsize=1024, typed=True)  # 16.0 must not find what 16 left
    def plan(
        *,
        m: int,
        n: int,
        k: int,
        mmq_x: int | None = None,
        allow_restream: bool = False,
        dtype: OutputType = "bfloat16",
        deterministic_kblocks: bool = False,
        scaled: bool = False,
        out_scale_stride: int = 1,
    ) -> LaunchConfig:
        """Return the launch of ``nvfp4_mmq_gemm_tiled``.

        Args:
            m: rows of the activations.
            n: rows of the weights.
            k: what both are summed over; a multiple of 64.
            mmq_x: tokens a block; None takes the smallest tile that holds m, else 128.
            allow_restream: accept m > mmq_x.
            dtype: type of the output.
            deterministic_kblocks: start each 64-wide step from zero and add it in float32.
            scaled: take ``out_scale`` and ``row_scale``, either of which may be null.
            out_scale_stride: 1 for an ``out_scale`` of n numbers, 0 for one number.

        Raises:
            TypeError: mmq_x is no integer.
            ValueError: a size or an option does not fit, or m > mmq_x.
        """
        tile = _tile(m, mmq_x, allow_restream)
        _check_sizes(m, n, k, tile)
        activations = pointer("a", div_ceil(k, 256) * m * layouts.FP4_MMQ_BLOCK_BYTES, alignment=16)
        defines = (("NVFP4_DETERMINISTIC_KBLOCKS", "1"),) if deterministic_kblocks else ()
        return _plan(
            "nvfp4_mmq",
            "atlas_nvfp4_mmq",
            (m, n, k),
            tile,
            layouts.nvfp4_mmq_smem(tile),
            activations,
            a_stride=m,
            dtype=dtype,
            scaled=scaled,
            out_scale_stride=out_scale_stride,
            defines=defines,
        )

    def __call__(
        self,
        w: Any,
        a: Any,
        out: Any,
        out_scale: Any = None,
        row_scale: Any = None,
        *,
        m: int,
        n: int,
        k: int,
        stream: Any = None,
        **options: Any,
    ) -> None:
        """Launch; options are those of ``plan``."""
        if out_scale is None and row_scale is None:
            launch(self.plan(m=m, n=n, k=k, **options), w, a, out, stream=stream)
            return
        config = self.plan(
            m=m, n=n, k=k, scaled=True, out_scale_stride=_scale_stride(out_scale), **options
        )
        launch(config, w, a, out, out_scale, row_scale, stream=stream)


class W4A16Gemm:
    """Multiplies bfloat16 activations by FP4 weights.

    Kernel: ``kernels/nvfp4_w4a16_mmq16.cu`` to ``nvfp4_w4a16_mmq128.cu``.
    """

    @staticmethod
    @lru_cache(maxsize=1024, typed=True)  # 16.0 must not find what 16 left
    def plan(
        *,
        m: int,
        n: int,
        k: int,
        a_stride: int | None = None,
        mmq_x: int | None = None,
        dtype: OutputType = "bfloat16",
        scaled: bool = False,
        out_scale_stride: int = 1,
    ) -> LaunchConfig:
        """Return the launch of ``nvfp4_w4a16_gemm``.

        Args:
            m: rows of the activations.
            n: rows of the weights.
            k: what both are summed over; a multiple of 64.
            a_stride: elements from one row of the activations to the next; k by default.
            mmq_x: tokens a block; None takes the smallest tile that holds m, else 128.
            dtype: type of the output.
            scaled: take ``out_scale`` and ``row_scale``, either of which may be null.
            out_scale_stride: 1 for an ``out_scale`` of n numbers, 0 for one number.

        Raises:
            TypeError: mmq_x is no integer.
            ValueError: a size or an option does not fit.
        """
        tile = _tile(m, mmq_x, allow_restream=True)
        _check_sizes(m, n, k, tile)
        stride = k if a_stride is None else a_stride
        if not 0 <= stride <= _MAX_U32:
            raise ValueError(f"a_stride must be from 0 to {_MAX_U32}, got a_stride={stride}")
        extent = 2 * ((m - 1) * stride + k) if m and k else 0
        return _plan(
            "nvfp4_w4a16_mmq",
            "nvfp4_w4a16_mmq",
            (m, n, k),
            tile,
            w4a16_smem(tile),
            pointer("a", extent, alignment=2),
            a_stride=stride,
            dtype=dtype,
            scaled=scaled,
            out_scale_stride=out_scale_stride,
        )

    def __call__(
        self,
        w: Any,
        a: Any,
        out: Any,
        out_scale: Any = None,
        row_scale: Any = None,
        *,
        m: int,
        n: int,
        k: int,
        stream: Any = None,
        **options: Any,
    ) -> None:
        """Launch; options are those of ``plan``."""
        if out_scale is None and row_scale is None:
            launch(self.plan(m=m, n=n, k=k, **options), w, a, out, stream=stream)
            return
        config = self.plan(
            m=m, n=n, k=k, scaled=True, out_scale_stride=_scale_stride(out_scale), **options
        )
        launch(config, w, a, out, out_scale, row_scale, stream=stream)


def w4a16_smem(mmq_x: int) -> int:
    """Return the dynamic shared memory of the W4A16 GEMM in bytes: stages of 128 k.

    Args:
        mmq_x: tokens a block.
    """
    weight_codes = MMQ_WEIGHT_ROWS * 64
    weight_scales = MMQ_WEIGHT_ROWS * 8
    activations = mmq_x * 128 * 2
    num_stages = {16: 4, 32: 4, 64: 3, 128: 2}[mmq_x]
    return num_stages * (weight_codes + weight_scales + activations)


def _tile(m: int, mmq_x: int | None, allow_restream: bool) -> int:
    """Return the tokens a block for m tokens."""
    if mmq_x is None:
        return next((tile for tile in MMQ_TILES if m <= tile), MMQ_TILES[-1])
    if not isinstance(mmq_x, (int, np.integer)) or isinstance(mmq_x, bool):
        raise TypeError(f"mmq_x must be an integer, got {type(mmq_x).__name__}")
    layouts.nvfp4_mmq_smem(mmq_x)  # refuses what is no tile
    if m > mmq_x and not allow_restream:
        raise ValueError(
            f"m must be at most mmq_x, since each further tile of m streams the weights again, "
            f"got m={m} and mmq_x={mmq_x}; allow_restream=True accepts that, mmq_x=None chooses"
        )
    return mmq_x


def _plan(
    source: str,
    entry: str,
    shape: tuple[int, int, int],
    tile: int,
    shared_mem: int,
    activations: Arg,
    *,
    a_stride: int,
    dtype: str,
    scaled: bool,
    out_scale_stride: int,
    defines: tuple[tuple[str, str], ...] = (),
) -> LaunchConfig:
    m, n, k = shape
    if dtype not in _OUTPUT_BYTES:
        raise ValueError(f"dtype must be one of {', '.join(_OUTPUT_BYTES)}, got {dtype!r}")
    if number := list(_OUTPUT_BYTES).index(dtype):
        defines = (*defines, ("NVFP4_OUTPUT", str(number)))
    args: tuple[Arg, ...] = (
        pointer("w", layouts.nvfp4_mmq_weight_bytes(n, k), alignment=4),
        activations,
        pointer("out", m * n * _OUTPUT_BYTES[dtype], "out", alignment=_OUTPUT_BYTES[dtype]),
        *(u32("n", n), u32("m", m), u32("k", k)),
        *(u32("w_stride", k // layouts.QK_NVFP4), u32("a_stride", a_stride), u32("out_stride", n)),
    )
    if scaled:
        args = (*args, *_scale_args(m, n, out_scale_stride))
    check = "nc" if n % MMQ_WEIGHT_ROWS == 0 else "wc"
    return LaunchConfig(
        source=f"{source}{tile}.cu",
        entry=f"{entry}{tile}_{check}" + ("_scaled" if scaled else ""),
        grid=(div_ceil(n, MMQ_WEIGHT_ROWS), div_ceil(m, tile), 1),
        block=_BLOCK,
        shared_mem=shared_mem,
        args=args,
        defines=defines,
    )


def _check_sizes(m: int, n: int, k: int, tile: int) -> None:
    for name, size in (("m", m), ("n", n), ("k", k)):
        if not 0 <= size <= _MAX_U32:
            raise ValueError(f"{name} must be from 0 to {_MAX_U32}, got {name}={size}")
    if div_ceil(m, tile) > MAX_GRID_YZ:
        raise ValueError(
            f"m must be at most {MAX_GRID_YZ * tile}, since a grid has at most {MAX_GRID_YZ} "
            f"blocks of {tile} tokens in y, got m={m}"
        )


def _scale_args(m: int, n: int, out_scale_stride: int) -> tuple[Arg, ...]:
    if out_scale_stride not in (0, 1):
        raise ValueError(f"out_scale_stride must be 0 or 1, got {out_scale_stride}")
    return (
        pointer("out_scale", 4 * (n if out_scale_stride else 1), alignment=4, nullable=True),
        u32("out_scale_stride", out_scale_stride),
        pointer("row_scale", 4 * m, alignment=4, nullable=True),
    )


def _scale_stride(out_scale: Any) -> int:
    """Return 0 for one number for all outputs, 1 for a number for each."""
    return 0 if out_scale is None or out_scale.size == 1 else 1
