"""The GEMMs with NVFP4 weights: W4A4 and W4A16."""

from __future__ import annotations

from typing import Any, Literal

from nvfp4cupy import arrays, formats, layouts, reference
from nvfp4cupy.launchers import mmq as launchers
from nvfp4cupy.ops import checks

__all__ = ["nvfp4_mmq_gemm", "nvfp4_mmq_gemm_tiled", "nvfp4_w4a16_gemm"]

Kernel = Literal["auto", "mirror"]


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
    float32 in ascending k. With ``out_scale`` and ``row_scale`` the sum is multiplied, in float32,
    by ``out_scale[n]``, then by ``row_scale[m]``, and then rounded once.

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
    return _w4a4(
        a,
        blocks,
        128 if kernel == "mirror" else None,
        deterministic_kblocks=deterministic_kblocks,
        out_scale=out_scale,
        row_scale=row_scale,
        dtype=dtype,
        out=out,
        stream=stream,
        allow_restream=True,
    )


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
        TypeError: a dtype does not fit.
        ValueError: mmq_x is not a tile, m > mmq_x without ``allow_restream``, or a shape, stride
            or device does not fit; nothing is written.

    Kernel: ``kernels/nvfp4_mmq16.cu``, ``nvfp4_mmq32.cu``, ``nvfp4_mmq64.cu``, ``nvfp4_mmq128.cu``.
    """
    return _w4a4(
        a,
        blocks,
        mmq_x,
        deterministic_kblocks=deterministic_kblocks,
        out_scale=out_scale,
        row_scale=row_scale,
        dtype=dtype,
        out=out,
        stream=stream,
        allow_restream=allow_restream,
    )


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

    ``out[m, n] = sum_k x[m, k] W[n, k]``, weights decoded exactly, float32 sums in ascending k.

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
    arrays.check_same_side(blocks=blocks, x=x)
    scale = _out_scale(out_scale, n, blocks)
    kind = checks.output_dtype(dtype)
    with arrays.context(x, stream):
        result = arrays.output("out", out, (m, n), kind, x)
        if out is not None:
            arrays.check_overlap("out", result, x=x, blocks=blocks)
        if not arrays.is_gpu(x):
            result[...] = reference.nvfp4_w4a16_gemm(
                x, blocks, out_scale=scale, dtype=_output_type(kind)
            )
        elif k == 0:
            result.fill(0)
        else:
            launchers.W4A16Gemm()(
                blocks,
                x,
                result,
                _uploaded(scale, x),
                m=m,
                n=n,
                k=k,
                a_stride=arrays.row_stride(x),
                dtype=_output_type(kind),
            )
    return result


def _w4a4(
    a: Any,
    blocks: Any,
    mmq_x: int | None,
    *,
    allow_restream: bool,
    deterministic_kblocks: bool,
    out_scale: Any,
    row_scale: Any,
    dtype: Any,
    out: Any,
    stream: Any,
) -> Any:
    a = checks.bytes_array("a", a, 3)
    blocks, n, k = checks.weight_blocks(blocks)
    m = a.shape[1]
    if a.shape != layouts.block_fp4_mmq_shape(m, k):
        raise ValueError(
            f"a must have shape (ceil(k / 256), m, 144) with k = {k} for blocks of shape "
            f"{blocks.shape}, got {a.shape}"
        )
    arrays.check_same_side(blocks=blocks, a=a)
    scale = _out_scale(out_scale, n, blocks)
    rows = None if row_scale is None else checks.vector("row_scale", row_scale, m, blocks)
    kind = checks.output_dtype(dtype)
    tile = {"mmq_x": mmq_x, "allow_restream": allow_restream}
    launchers.MmqGemmTiled.plan(m=m, n=n, k=k, **tile)  # refuses an unfit tile on both sides
    with arrays.context(a, stream):
        result = arrays.output("out", out, (m, n), kind, a)
        if out is not None:
            arrays.check_overlap(
                "out", result, a=a, blocks=blocks, row_scale=rows, out_scale=_array_or_none(scale)
            )
        if not arrays.is_gpu(a):
            result[...] = reference.nvfp4_mmq_gemm(
                a, blocks, out_scale=scale, row_scale=rows, dtype=_output_type(kind)
            )
        elif k == 0:
            result.fill(0)
        else:
            launchers.MmqGemmTiled()(
                blocks,
                a,
                result,
                _uploaded(scale, a),
                rows,
                m=m,
                n=n,
                k=k,
                dtype=_output_type(kind),
                deterministic_kblocks=deterministic_kblocks,
                **tile,
            )
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
    return checks.vector("out_scale", array, 1 if array.size == 1 else n, like)


def _uploaded(scale: Any, like: Any) -> Any:
    return arrays.uploaded("out_scale", scale, like) if isinstance(scale, float) else scale


def _array_or_none(scale: Any) -> Any:
    return None if isinstance(scale, float) else scale
