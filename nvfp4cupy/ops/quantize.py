"""Quantizers to linear NVFP4: argument checks, then the reference or the kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp4cupy import arrays, reference
from nvfp4cupy.formats import GROUP_SIZE, Rounding
from nvfp4cupy.launchers import quantize as launchers
from nvfp4cupy.layouts import ScaleLayout
from nvfp4cupy.ops import checks

__all__ = [
    "amax_gsa",
    "amax_quantize_nvfp4",
    "deinterleave_quantize_from_buffer",
    "quantize_nvfp4",
    "quantize_nvfp4_from_buffer",
]

_UINT8 = np.dtype(np.uint8)
_FLOAT32 = np.dtype(np.float32)


@arrays.runs_on_stream
def amax_gsa(
    x: Any,
    *,
    dtype: str | None = None,
    check_finite: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Find the decode scale of each row: ``gsa[m] = max|x[m, :]| / 2688``.

    A row scaled so uses the whole range of the format: its largest value becomes 6 * 448. NaN is
    ignored and infinity gives infinity; a row of zeros gets 1; nothing is below 2^-126.

    Args:
        x: bfloat16, float16 or float32 ``(M, N)``, C-contiguous.
        dtype: ``"bfloat16"`` to read uint16 elements as bfloat16 bits.
        check_finite: refuse NaN and infinity; waits for the GPU.
        out: float32 ``(M,)`` to write to; allocated otherwise.
        stream: CuPy stream to run on; the current one otherwise.

    Returns:
        float32 ``(M,)``: decode scales, to multiply by.

    Raises:
        TypeError: a dtype is none of those above.
        ValueError: a shape, stride or device does not fit, or a row is not finite; nothing is
            written.

    Kernel: ``kernels/amax_gsa.cu``.
    """
    checks.check_flags(check_finite=check_finite)
    x = checks.float_matrix("x", x, dtype=dtype)
    launchers.AmaxGsa.plan(m=x.shape[0], n=x.shape[1])  # refuses what no grid holds
    with arrays.context(x, stream):
        given = arrays.check_output("out", out, (x.shape[0],), _FLOAT32, x)
        if given is not None:
            arrays.check_overlap("out", given, x=x)
        if check_finite:
            checks.finite_rows("x", x)
        gsa = arrays.empty((x.shape[0],), _FLOAT32, x) if given is None else given
        if arrays.is_gpu(x):
            launchers.AmaxGsa()(x, gsa)
        else:
            gsa[...] = reference.amax_gsa(x)
    return gsa


@arrays.runs_on_stream
def quantize_nvfp4_from_buffer(
    x: Any,
    gsa: Any,
    *,
    rounding: Rounding = "half_step",
    scale_search: int = 0,
    scale_layout: ScaleLayout = "linear",
    dtype: str | None = None,
    check_finite: bool = False,
    out: Any = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    """Quantize rows to NVFP4 with per-row decode scales that lie where x lies.

    ``x[m, n] ~= e2m1(codes[m, n]) * e4m3(scales[m, n // 16]) * gsa[m]``

    With ``v = x / gsa[m]`` and ``amax`` the largest ``|v|`` of a group of 16, the scale is
    ``e4m3(amax / 6)`` and the codes are ``v / scale`` rounded by ``rounding``; a group with
    ``amax < 6 * 2^-9`` is all zero. ``scale_search=2`` tries that scale and its two neighbours on
    either side and keeps the one with the least squared error.

    NaN does not count in amax; ``half_step`` and ``nearest_even`` encode it as 6,
    ``nearest_low`` as 0. An infinity saturates its group's scale. A row whose gsa is infinite is
    all zero.

    Args:
        x: bfloat16, float16 or float32 ``(M, N)``, C-contiguous, ``N % 16 == 0``.
        gsa: float32 ``(M,)``: decode scale of each row, see ``amax_gsa``.
        rounding: ``"half_step"``, ``"nearest_low"`` or ``"nearest_even"``.
        scale_search: 0, or 2 to search.
        scale_layout: ``"linear"``, or ``"128x4"`` as cuBLASLt and CUTLASS read scales.
        dtype: ``"bfloat16"`` to read uint16 elements as bfloat16 bits.
        check_finite: refuse NaN and infinity in x; waits for the GPU.
        out: pair (codes, scales) to write to; allocated otherwise.
        stream: CuPy stream to run on; the current one otherwise.

    Returns:
        codes: uint8 ``(M, N // 2)``, element ``2j`` in the low nibble of byte ``j``.
        scales: uint8 E4M3 bytes ``(M, N // 16)`` row-major; for ``"128x4"``
            ``(roundup(M, 128), roundup(N // 16, 4))`` bytes in swizzled order, padding zero.

    Raises:
        TypeError: a dtype is none of those above.
        ValueError: a shape, option, stride or device does not fit, or a row is not finite;
            nothing is written.

    Kernel: ``kernels/quantize_nvfp4.cu``.
    """
    checks.check_flags(check_finite=check_finite)
    x = checks.float_matrix("x", x, dtype=dtype)
    gsa = checks.vector("gsa", gsa, x.shape[0], x=x)
    options = _options(rounding, scale_search, scale_layout)
    with arrays.context(x, stream):
        codes, scales = _outputs(out, x, x.shape[1], scale_layout, check_finite, gsa=gsa)
        if arrays.is_gpu(x):
            launchers.QuantizeFromBuffer()(x, gsa, codes, scales, **options)
        else:
            _store((codes, scales), reference.quantize_nvfp4_from_buffer(x, gsa, **options))
    return codes, scales


@arrays.runs_on_stream
def quantize_nvfp4(
    x: Any,
    gsa: float,
    *,
    rounding: Rounding = "half_step",
    scale_search: int = 0,
    scale_layout: ScaleLayout = "linear",
    dtype: str | None = None,
    check_finite: bool = False,
    out: Any = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    """Quantize a matrix to NVFP4 with one decode scale for all rows.

    ``x[m, n] ~= e2m1(codes[m, n]) * e4m3(scales[m, n // 16]) * gsa``

    Otherwise the same as ``quantize_nvfp4_from_buffer``.

    Args:
        x: bfloat16, float16 or float32 ``(M, N)``, C-contiguous, ``N % 16 == 0``.
        gsa: decode scale, usually ``max|x| / 2688``.
        rounding: as ``quantize_nvfp4_from_buffer``.
        scale_search: as ``quantize_nvfp4_from_buffer``.
        scale_layout: as ``quantize_nvfp4_from_buffer``.
        dtype: ``"bfloat16"`` to read uint16 elements as bfloat16 bits.
        check_finite: refuse NaN and infinity in x; waits for the GPU.
        out: pair (codes, scales) to write to; allocated otherwise.
        stream: CuPy stream to run on; the current one otherwise.

    Returns:
        codes, scales: as ``quantize_nvfp4_from_buffer``.

    Raises:
        TypeError: a dtype is none of those above, or gsa is no number.
        ValueError: gsa is not finite or below 2^-126, a shape, option, stride or device does not
            fit, or a row is not finite; nothing is written.

    Kernel: ``kernels/quantize_nvfp4.cu``.
    """
    checks.check_flags(check_finite=check_finite)
    x = checks.float_matrix("x", x, dtype=dtype)
    gsa = checks.positive_float32("gsa", gsa)
    options = _options(rounding, scale_search, scale_layout)
    with arrays.context(x, stream):
        codes, scales = _outputs(out, x, x.shape[1], scale_layout, check_finite)
        if arrays.is_gpu(x):
            launchers.Quantize()(x, codes, scales, gsa=gsa, **options)
        else:
            _store((codes, scales), reference.quantize_nvfp4(x, gsa, **options))
    return codes, scales


@arrays.runs_on_stream
def amax_quantize_nvfp4(
    x: Any,
    *,
    rounding: Rounding = "half_step",
    scale_search: int = 0,
    scale_layout: ScaleLayout = "linear",
    dtype: str | None = None,
    check_finite: bool = False,
    out: Any = None,
    stream: Any = None,
) -> tuple[Any, Any, Any]:
    """Find each row's decode scale and quantize with it, in one launch.

    Bit-identical to ``amax_gsa`` followed by ``quantize_nvfp4_from_buffer``; a row is read from
    memory once where it fits on the chip.

    Args:
        x: bfloat16, float16 or float32 ``(M, N)``, C-contiguous, ``N % 16 == 0``.
        rounding: as ``quantize_nvfp4_from_buffer``.
        scale_search: as ``quantize_nvfp4_from_buffer``.
        scale_layout: as ``quantize_nvfp4_from_buffer``.
        dtype: ``"bfloat16"`` to read uint16 elements as bfloat16 bits.
        check_finite: refuse NaN and infinity in x; waits for the GPU.
        out: triple (codes, scales, gsa) to write to; allocated otherwise.
        stream: CuPy stream to run on; the current one otherwise.

    Returns:
        codes, scales: as ``quantize_nvfp4_from_buffer``.
        gsa: float32 ``(M,)``, as ``amax_gsa``.

    Raises:
        TypeError: a dtype is none of those above.
        ValueError: a shape, option, stride or device does not fit, or a row is not finite;
            nothing is written.

    Kernel: ``kernels/amax_quantize_nvfp4.cu``.
    """
    checks.check_flags(check_finite=check_finite)
    x = checks.float_matrix("x", x, dtype=dtype)
    options = _options(rounding, scale_search, scale_layout)
    given = checks.out_tuple(out, 3)
    with arrays.context(x, stream):
        gsa = arrays.check_output("out[2]", given[2], (x.shape[0],), _FLOAT32, x)
        if gsa is not None:
            arrays.check_overlap("out[2]", gsa, x=x)
        pair = None if out is None else given[:2]
        codes, scales = _outputs(pair, x, x.shape[1], scale_layout, check_finite, **{"out[2]": gsa})
        gsa = arrays.empty((x.shape[0],), _FLOAT32, x) if gsa is None else gsa
        if arrays.is_gpu(x):
            launchers.AmaxQuantize()(x, gsa, codes, scales, **options)
        else:
            _store((codes, scales, gsa), reference.amax_quantize_nvfp4(x, **options))
    return codes, scales, gsa


@arrays.runs_on_stream
def deinterleave_quantize_from_buffer(
    fused: Any,
    intermediate: int,
    granularity: int,
    gsa: Any,
    *,
    rounding: Rounding = "half_step",
    scale_search: int = 0,
    scale_layout: ScaleLayout = "linear",
    dtype: str | None = None,
    check_finite: bool = False,
    out: Any = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    """Quantize every second run of ``granularity`` columns of a fused gate/up result.

    Column ``j`` of the result is column ``(2 * (j // g) + 1) * g + j % g`` of ``fused``, with g
    the granularity: the runs 1, 3, 5, ... of each row. Columns from ``2 * intermediate`` on are
    ignored. The columns are quantized as ``quantize_nvfp4_from_buffer`` does.

    Args:
        fused: bfloat16, float16 or float32 ``(M, N)``, C-contiguous, ``N >= 2 * intermediate``.
        intermediate: columns of the result; a multiple of 16 and of granularity.
        granularity: length of a run, at least 1.
        gsa: float32 ``(M,)``: decode scale of each row.
        rounding: as ``quantize_nvfp4_from_buffer``.
        scale_search: as ``quantize_nvfp4_from_buffer``.
        scale_layout: as ``quantize_nvfp4_from_buffer``.
        dtype: ``"bfloat16"`` to read uint16 elements as bfloat16 bits.
        check_finite: refuse NaN and infinity anywhere in fused; waits for the GPU.
        out: pair (codes, scales) to write to; allocated otherwise.
        stream: CuPy stream to run on; the current one otherwise.

    Returns:
        codes: uint8 ``(M, intermediate // 2)``, element ``2j`` in the low nibble of byte ``j``.
        scales: uint8 E4M3 bytes ``(M, intermediate // 16)``, or swizzled.

    Raises:
        TypeError: a dtype is none of those above.
        ValueError: a size, shape, option, stride or device does not fit, or a row is not finite;
            nothing is written.

    Kernel: ``kernels/deinterleave_quantize.cu``.
    """
    checks.check_flags(check_finite=check_finite)
    fused = checks.float_matrix("fused", fused, dtype=dtype)
    gsa = checks.vector("gsa", gsa, fused.shape[0], fused=fused)
    _check_runs(fused.shape, intermediate, granularity)
    options = _options(rounding, scale_search, scale_layout)
    with arrays.context(fused, stream):
        codes, scales = _outputs(
            out, fused, intermediate, scale_layout, check_finite, name="fused", gsa=gsa
        )
        if arrays.is_gpu(fused):
            launchers.DeinterleaveQuantizeFromBuffer()(
                fused,
                gsa,
                codes,
                scales,
                intermediate=intermediate,
                granularity=granularity,
                **options,
            )
        else:
            result = reference.deinterleave_quantize_from_buffer(
                fused, intermediate, granularity, gsa, **options
            )
            _store((codes, scales), result)
    return codes, scales


def _options(rounding: str, scale_search: int, scale_layout: str) -> dict[str, Any]:
    checks.check_options(rounding, scale_search, scale_layout)
    return {"rounding": rounding, "scale_search": scale_search, "scale_layout": scale_layout}


def _check_runs(shape: tuple[int, int], intermediate: int, granularity: int) -> None:
    for name, value in (("intermediate", intermediate), ("granularity", granularity)):
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
            raise TypeError(f"{name} must be an integer, got {type(value).__name__}")
    if intermediate < 0 or intermediate % GROUP_SIZE:
        raise ValueError(f"intermediate must be a multiple of {GROUP_SIZE}, got {intermediate}")
    if granularity < 1 or intermediate % granularity:
        raise ValueError(
            f"granularity must be at least 1 and divide intermediate={intermediate}, "
            f"got {granularity}"
        )
    if shape[1] < 2 * intermediate:
        raise ValueError(
            f"fused must have at least 2 * intermediate = {2 * intermediate} columns, "
            f"got shape {shape}"
        )


def _outputs(
    out: Any,
    x: Any,
    columns: int,
    scale_layout: ScaleLayout,
    check_finite: bool,
    *,
    name: str = "x",
    **operands: Any,
) -> tuple[Any, Any]:
    """Return the codes and scales to write to, after the last checks."""
    if columns % GROUP_SIZE:
        raise ValueError(
            f"{name} must have a multiple of {GROUP_SIZE} columns, got shape {x.shape}"
        )
    given = checks.out_tuple(out, 2)
    shapes = checks.scale_pair_shapes(x.shape[0], columns, scale_layout)
    launchers.QuantizeFromBuffer.plan(m=x.shape[0], n=columns, scale_layout=scale_layout)
    codes = arrays.check_output("out[0]", given[0], shapes[0], _UINT8, x)
    scales = arrays.check_output("out[1]", given[1], shapes[1], _UINT8, x)
    if codes is not None:
        arrays.check_overlap("out[0]", codes, **{name: x, "out[1]": scales}, **operands)
    if scales is not None:
        arrays.check_overlap("out[1]", scales, **{name: x}, **operands)
    if check_finite:
        checks.finite_rows(name, x)
    # Memory is taken last, when nothing can be refused any more.
    return (
        arrays.empty(shapes[0], _UINT8, x) if codes is None else codes,
        arrays.empty(shapes[1], _UINT8, x) if scales is None else scales,
    )


def _store(targets: tuple[Any, ...], results: tuple[Any, ...]) -> None:
    for target, result in zip(targets, results, strict=True):
        target[...] = result
