"""The element-wise steps of a feed-forward: SwiGLU, with and without quantization, and scaling."""

from __future__ import annotations

import math
from typing import Any

from nvfp4cupy import arrays, formats, reference
from nvfp4cupy.launchers import swiglu as launchers
from nvfp4cupy.ops import checks
from nvfp4cupy.ops.mmq import act_outputs, allocate_act

__all__ = ["nvfp4_scale_bf16", "nvfp4_silu_mul_quant", "nvfp4_silu_mul_scaled"]


@arrays.runs_on_stream
def nvfp4_silu_mul_quant(
    gate: Any,
    up: Any,
    gate_scale: float,
    up_scale: float,
    *,
    swiglu_limit: float | None = 10.0,
    round_intermediate: bool = False,
    row_scale: bool = False,
    dtype: str | None = None,
    check_finite: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Apply SwiGLU to the raw gate and up products and quantize the result for the down GEMM.

    ``h = g / (1 + exp(-g)) * u`` with ``g = min(gate * gate_scale, L)`` and
    ``u = min(max(up * up_scale, -L), L)``, all in float32; h is quantized as
    ``nvfp4_mmq_quantize_act`` does, without being rounded to bfloat16 first.

    Args:
        gate: bfloat16 ``(m, k)``, C-contiguous: the gate GEMM's output.
        up: bfloat16 ``(m, k)``, C-contiguous: the up GEMM's output.
        gate_scale: the gate weight's decode scale, a factor.
        up_scale: the up weight's decode scale, a factor.
        swiglu_limit: L, above zero; None for models that do not clamp.
        round_intermediate: round h to bfloat16 before quantizing, which gives exactly what
            ``nvfp4_silu_mul_scaled`` followed by ``nvfp4_mmq_quantize_act`` gives.
        row_scale: quantize ``h / amax_gsa(h)`` row by row and return that scale too.
        dtype: ``"bfloat16"`` to read uint16 elements as bfloat16 bits.
        check_finite: refuse NaN and infinity in gate and up; waits for the GPU.
        out: uint8 ``(kpad // 256, m, 144)`` to write to, with ``row_scale`` a pair of it and
            float32 ``(m,)``; allocated otherwise.
        stream: CuPy stream to run on; the current one otherwise.

    Returns:
        uint8 ``(kpad // 256, m, 144)`` as ``nvfp4_mmq_quantize_act``; with ``row_scale`` a pair.

    Raises:
        TypeError: a dtype is not bfloat16, or a scale is no number.
        ValueError: a shape, stride, device or limit does not fit, or a row is not finite; nothing
            is written.

    Kernel: ``kernels/nvfp4_silu_mul_quant.cu``.
    """
    checks.check_flags(
        round_intermediate=round_intermediate, row_scale=row_scale, check_finite=check_finite
    )
    gate = checks.float_matrix("gate", gate, dtypes=("bfloat16",), dtype=dtype)
    up = checks.float_matrix("up", up, dtypes=("bfloat16",), dtype=dtype)
    _check_pair(gate, up)
    factors = _factors(gate_scale, up_scale)
    limit = _limit(swiglu_limit)
    m, k = gate.shape
    with arrays.context(gate, stream):
        given = act_outputs(out, m, k, row_scale, gate=gate, up=up)
        if check_finite:
            checks.finite_rows("gate", gate)
            checks.finite_rows("up", up)
        blocks, scale = allocate_act(given, m, k, row_scale, gate)
        options: dict[str, Any] = {"swiglu_limit": limit, "round_intermediate": round_intermediate}
        if arrays.is_gpu(gate):
            sizes = {"m": m, "k": k, **factors}
            launchers.SiluMulQuant()(gate, up, blocks, scale, **sizes, **options)
        else:
            result = reference.nvfp4_silu_mul_quant(
                gate, up, **factors, **options, row_scale=row_scale
            )
            if row_scale:
                blocks[...], scale[...] = result
            else:
                blocks[...] = result
    return (blocks, scale) if row_scale else blocks


@arrays.runs_on_stream
def nvfp4_silu_mul_scaled(
    gate: Any,
    up: Any,
    gate_scale: float,
    up_scale: float,
    *,
    swiglu_limit: float | None = 10.0,
    dtype: str | None = None,
    check_finite: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Apply SwiGLU to the raw gate and up products: ``bf16(g / (1 + exp(-g)) * u)``.

    ``g = min(gate * gate_scale, L)``, ``u = min(max(up * up_scale, -L), L)``, all in float32. NaN
    passes the clamp.

    Args:
        gate: bfloat16, any shape, C-contiguous.
        up: bfloat16, the shape of gate, C-contiguous.
        gate_scale: the gate weight's decode scale, a factor.
        up_scale: the up weight's decode scale, a factor.
        swiglu_limit: L, above zero; None for models that do not clamp.
        dtype: ``"bfloat16"`` to read uint16 elements as bfloat16 bits.
        check_finite: refuse NaN and infinity in gate and up; waits for the GPU.
        out: bfloat16 of gate's shape to write to, may be gate itself; allocated otherwise.
        stream: CuPy stream to run on; the current one otherwise.

    Returns:
        bfloat16 of gate's shape; a NaN is 0x7FFF.

    Raises:
        TypeError: a dtype is not bfloat16, or a scale is no number.
        ValueError: a shape, stride, device or limit does not fit, or an operand is not finite;
            nothing is written.

    Kernel: ``kernels/nvfp4_silu_mul_scaled.cu``.
    """
    checks.check_flags(check_finite=check_finite)
    gate = checks.bfloat16_array("gate", gate, dtype=dtype)
    up = checks.bfloat16_array("up", up, dtype=dtype)
    _check_pair(gate, up)
    factors = _factors(gate_scale, up_scale)
    limit = _limit(swiglu_limit)
    with arrays.context(gate, stream):
        given = out if out is None else arrays.intake("out", out, dtype=dtype)
        h = arrays.check_output("out", given, gate.shape, formats.bfloat16(), gate)
        if h is not None:
            arrays.check_overlap("out", h, up=up)
            if arrays.span(h) != arrays.span(gate):  # exactly over gate is what the kernel allows
                arrays.check_overlap("out", h, gate=gate)
        if check_finite:
            columns = gate.shape[-1] if gate.ndim else 1
            checks.finite_rows("gate", gate.reshape(-1, columns or 1))
            checks.finite_rows("up", up.reshape(-1, columns or 1))
        if h is None:
            h = arrays.empty(gate.shape, formats.bfloat16(), gate)
        if arrays.is_gpu(gate):
            launchers.SiluMulScaled()(gate, up, h, **factors, swiglu_limit=limit)
        else:
            h[...] = reference.nvfp4_silu_mul_scaled(gate, up, **factors, swiglu_limit=limit)
    return h


@arrays.runs_on_stream
def nvfp4_scale_bf16(
    data: Any, scale: float, *, dtype: str | None = None, stream: Any = None
) -> Any:
    """Multiply bfloat16 values in place: ``data = bf16(float32(data) * scale)``.

    Args:
        data: bfloat16, any shape, C-contiguous; overwritten.
        scale: the factor, usually a weight's decode scale.
        dtype: ``"bfloat16"`` to read uint16 elements as bfloat16 bits.
        stream: CuPy stream to run on; the current one otherwise.

    Returns:
        ``data``; a NaN is 0x7FFF.

    Raises:
        TypeError: the dtype is not bfloat16, or scale is no number.
        ValueError: data is not contiguous, or read-only.

    Kernel: ``kernels/nvfp4_scale_bf16.cu``.
    """
    array = checks.bfloat16_array("data", data, dtype=dtype)
    factor = checks.scalar_float32("scale", scale)
    with arrays.context(array, stream):
        array = arrays.output("data", array, array.shape, formats.bfloat16(), array)
        if arrays.is_gpu(array):
            launchers.ScaleBf16()(array, scale=factor)
        else:
            array[...] = reference.nvfp4_scale_bf16(array, factor)
    return data


def _check_pair(gate: Any, up: Any) -> None:
    if gate.shape != up.shape:
        raise ValueError(f"up must have the shape of gate, {gate.shape}, got {up.shape}")
    arrays.check_same_side(gate=gate, up=up)


def _factors(gate_scale: Any, up_scale: Any) -> dict[str, Any]:
    return {
        "gate_scale": checks.scalar_float32("gate_scale", gate_scale),
        "up_scale": checks.scalar_float32("up_scale", up_scale),
    }


def _limit(value: Any) -> float | None:
    if value is None:
        return None
    limit = checks.scalar_float32("swiglu_limit", value)
    if not (math.isfinite(limit) and limit > 0):
        raise ValueError(f"swiglu_limit must be finite and above zero, or None, got {value}")
    return limit
