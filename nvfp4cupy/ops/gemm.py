"""The GEMMs with NVFP4 weights: W4A4 and W4A16."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from nvfp4cupy import arrays, formats, layouts, reference
from nvfp4cupy.launchers import mmq as launchers
from nvfp4cupy.ops import checks

__all__ = ["nvfp4_mmq_gemm", "nvfp4_mmq_gemm_tiled", "nvfp4_w4a16_gemm"]

Kernel = Literal["auto", "mirror"]


@arrays.runs_on_stream
def nvfp4_mmq_gemm(
    a: Any,
    blocks: Any,
    *,
    kernel: Kernel = "auto",
    deterministic_kblocks: bool = False,
    out_scale: Any = None,
    row_scale: Any = None,
    dtype: Any = "bfloat16",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Multiply quantized activations by quantized weights: ``out[m, n] = sum_k A[m, k] W[n, k]``.

    ``A = e2m1 * e4m3`` and ``W = e2m1 * e4m3`` group by group; products are exact, sums are
    float32, in an order of the kernel's choice (see ``deterministic_kblocks``). With ``out_scale``
    and ``row_scale`` the sum is multiplied, in float32, by ``out_scale[n]``, then by
    ``row_scale[m]``, and then rounded once.

    Args:
        a: uint8 ``(kpad // 256, m, 144)`` from ``nvfp4_mmq_quantize_act``.
        blocks: uint8 ``(n, k // 64, 36)`` from ``nvfp4_mmq_repack``.
        kernel: ``"auto"`` takes the tile that suits m; ``"mirror"`` always the 128-wide one.
        deterministic_kblocks: start each 64-wide k-block from zero and add it in float32, also on
            GPUs whose FP4 instruction would chain them.
        out_scale: a number, or float32 ``(n,)``: the weight's decode scale. On a GPU an array of
            one element avoids a small upload.
        row_scale: float32 ``(m,)``: the decode scale of each activation row.
        dtype: of the result: ``"bfloat16"``, ``"float16"`` or ``"float32"``.
        out: ``(m, n)`` of that dtype to write to; allocated otherwise.
        stream: CuPy stream to run on; the current one otherwise.

    Returns:
        ``(m, n)`` of ``dtype``. Each element is within (number of accumulation steps) * 2^-23 *
        sum|a w| of the exact sum, before its one rounding.

    Raises:
        TypeError: a dtype does not fit.
        ValueError: a shape, stride, device or option does not fit; nothing is written.

    Kernel: ``kernels/nvfp4_mmq128.cu`` and its smaller tiles.
    """
    if kernel not in ("auto", "mirror"):
        raise ValueError(f'kernel must be "auto" or "mirror", got {kernel!r}')
    checks.check_flags(deterministic_kblocks=deterministic_kblocks)
    tile = {"mmq_x": 128 if kernel == "mirror" else None, "allow_restream": True}
    return _w4a4(
        a,
        blocks,
        {**tile, "deterministic_kblocks": deterministic_kblocks},
        out_scale=out_scale,
        row_scale=row_scale,
        dtype=dtype,
        out=out,
        stream=stream,
    )


@arrays.runs_on_stream
def nvfp4_mmq_gemm_tiled(
    a: Any,
    blocks: Any,
    *,
    mmq_x: int | None = None,
    allow_restream: bool = False,
    deterministic_kblocks: bool = False,
    out_scale: Any = None,
    row_scale: Any = None,
    dtype: Any = "bfloat16",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Do what ``nvfp4_mmq_gemm`` does with a tile of ``mmq_x`` activation rows.

    A tile issues matrix instructions for all of its rows, so a small m wants a small tile; but
    every further tile in m streams the whole weight again.

    Args:
        a: as ``nvfp4_mmq_gemm``.
        blocks: as ``nvfp4_mmq_gemm``.
        mmq_x: 16, 32, 64 or 128; None for the smallest that holds m, else 128.
        allow_restream: accept m > mmq_x.
        deterministic_kblocks: as ``nvfp4_mmq_gemm``.
        out_scale: as ``nvfp4_mmq_gemm``.
        row_scale: as ``nvfp4_mmq_gemm``.
        dtype: as ``nvfp4_mmq_gemm``.
        out: as ``nvfp4_mmq_gemm``.
        stream: as ``nvfp4_mmq_gemm``.

    Returns:
        ``(m, n)`` of ``dtype``; every tile gives the same bits.

    Raises:
        TypeError: a dtype does not fit, or mmq_x is no integer.
        ValueError: mmq_x is not a tile, m > mmq_x without ``allow_restream``, or a shape, stride
            or device does not fit; nothing is written.

    Kernel: ``kernels/nvfp4_mmq16.cu``, ``nvfp4_mmq32.cu``, ``nvfp4_mmq64.cu``, ``nvfp4_mmq128.cu``.
    """
    checks.check_flags(allow_restream=allow_restream, deterministic_kblocks=deterministic_kblocks)
    if mmq_x is not None and (not isinstance(mmq_x, (int, np.integer)) or isinstance(mmq_x, bool)):
        raise TypeError(f"mmq_x must be an integer or None, got {type(mmq_x).__name__}")
    tile = {"mmq_x": mmq_x, "allow_restream": allow_restream}
    return _w4a4(
        a,
        blocks,
        {**tile, "deterministic_kblocks": deterministic_kblocks},
        out_scale=out_scale,
        row_scale=row_scale,
        dtype=dtype,
        out=out,
        stream=stream,
    )


@arrays.runs_on_stream
def nvfp4_w4a16_gemm(
    x: Any,
    blocks: Any,
    *,
    out_scale: Any = None,
    dtype: Any = "bfloat16",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Multiply bfloat16 activations by quantized weights, for checkpoints calibrated so.

    ``out[m, n] = sum_k x[m, k] W[n, k]``, weights decoded exactly, float32 sums.

    Args:
        x: bfloat16 ``(m, k)``; rows of contiguous elements, at any row stride.
        blocks: uint8 ``(n, k // 64, 36)`` from ``nvfp4_mmq_repack``.
        out_scale: as ``nvfp4_mmq_gemm``.
        dtype: as ``nvfp4_mmq_gemm``.
        out: as ``nvfp4_mmq_gemm``.
        stream: as ``nvfp4_mmq_gemm``.

    Returns:
        ``(m, n)`` of ``dtype``.

    Raises:
        TypeError: a dtype does not fit.
        ValueError: a shape, stride or device does not fit; nothing is written.

    Kernel: ``kernels/nvfp4_w4a16_mmq128.cu`` and its smaller tiles.
    """
    x = checks.float_matrix("x", x, dtypes=("bfloat16",), strided_rows=True)
    blocks, n, k = checks.weight_blocks(blocks)
    m = x.shape[0]
    if x.shape[1] != k:
        raise ValueError(
            f"x must have k = {k} columns for blocks of shape {blocks.shape}, got shape {x.shape}"
        )
    sizes = {"m": m, "n": n, "k": k, "a_stride": arrays.row_stride(x)}
    return _multiply(
        launchers.W4A16Gemm,
        reference.nvfp4_w4a16_gemm,
        {"x": x},
        blocks,
        sizes,
        out_scale=out_scale,
        dtype=dtype,
        out=out,
        stream=stream,
    )


def _w4a4(a: Any, blocks: Any, tile: dict[str, Any], **options: Any) -> Any:
    a = checks.bytes_array("a", a, 3)
    blocks, n, k = checks.weight_blocks(blocks)
    m = a.shape[1]
    if a.shape != layouts.block_fp4_mmq_shape(m, k):
        raise ValueError(
            f"a must have shape (ceil(k / 256), m, 144) with k = {k} for blocks of shape "
            f"{blocks.shape}, got {a.shape}"
        )
    sizes = {"m": m, "n": n, "k": k, **tile}
    return _multiply(
        launchers.MmqGemmTiled, reference.nvfp4_mmq_gemm, {"a": a}, blocks, sizes, **options
    )


def _multiply(
    launcher: Any,
    in_numpy: Callable[..., Any],
    operand: dict[str, Any],
    blocks: Any,
    sizes: dict[str, Any],
    *,
    out_scale: Any,
    dtype: Any,
    out: Any,
    stream: Any,
    row_scale: Any = None,
) -> Any:
    """Check what both products share, then run the launcher or the reference."""
    m, n = sizes["m"], sizes["n"]
    (activations,) = operand.values()
    arrays.check_same_side(blocks=blocks, **operand)
    kind = checks.output_dtype(dtype)
    scales = {"out_scale": _out_scale(out_scale, n, blocks)}
    if row_scale is not None:
        scales["row_scale"] = checks.vector("row_scale", row_scale, m, blocks=blocks)
    launcher.plan(dtype=_output_type(kind), **sizes)  # refuses an unfit size or tile on both sides
    with arrays.context(activations, stream):
        result = arrays.check_output("out", out, (m, n), kind, activations)
        if result is not None:
            held = {key: s for key, s in scales.items() if not isinstance(s, float)}
            arrays.check_overlap("out", result, blocks=blocks, **operand, **held)
        on_gpu = arrays.is_gpu(activations)
        if on_gpu and isinstance(scales["out_scale"], float):
            scales["out_scale"] = arrays.uploaded("out_scale", scales["out_scale"], blocks)
        if result is None:
            result = arrays.empty((m, n), kind, activations)
        if not on_gpu:
            result[...] = in_numpy(activations, blocks, dtype=_output_type(kind), **scales)
        elif sizes["k"] == 0:
            result.fill(0)
        else:
            launcher()(blocks, activations, result, **scales, dtype=_output_type(kind), **sizes)
    return result


def _output_type(dtype: Any) -> Any:
    return formats.dtype_name(dtype)


def _out_scale(value: Any, n: int, like: Any) -> Any:
    """Return None, a float, or a float32 array (n,) or (1,) on the side of ``like``."""
    if value is None:
        return None
    if getattr(value, "ndim", 0) == 0 and not arrays.is_gpu(value):
        return checks.scalar_float32("out_scale", value)
    array = arrays.intake("out_scale", value)
    if array.ndim == 0:
        array = array.reshape(1)
    return checks.vector("out_scale", array, 1 if array.size == 1 else n, blocks=like)
