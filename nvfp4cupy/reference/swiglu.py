"""The element-wise steps of the feed-forward: SiLU times up, and scaling."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.formats import F32, U8, bfloat16, to_bfloat16, to_float32
from nvfp4cupy.layouts import block_fp4_mmq_shape
from nvfp4cupy.reference.chunks import chunks
from nvfp4cupy.reference.exp import exp
from nvfp4cupy.reference.flush import divide_flushed, float32_scalar, multiply_flushed
from nvfp4cupy.reference.mmq import act_chunks, store_act_blocks
from nvfp4cupy.reference.quantize import gsa_from_amax, raise_amax


def nvfp4_silu_mul_scaled(
    gate: NDArray[Any],
    up: NDArray[Any],
    gate_scale: float,
    up_scale: float,
    *,
    swiglu_limit: float | None = 10.0,
) -> NDArray[Any]:
    """Apply SwiGLU to scaled GEMM outputs: ``g / (1 + exp(-g)) * u``.

    ``g = min(gate * gate_scale, L)``, ``u = min(max(up * up_scale, -L), L)``, each operation in
    float32, ``exp`` that of ``reference/exp.py``. NaN passes the clamps; a gate of -infinity gives
    NaN.

    Args:
        gate: bfloat16 (or float16, float32), any shape.
        up: the same dtypes, the shape of gate.
        gate_scale: factor of gate, in float32: the weight's decode scale.
        up_scale: factor of up.
        swiglu_limit: L, above zero; None for no clamp.

    Returns:
        bfloat16 of the same shape; NaN is 0x7FFF.

    Raises:
        TypeError: a dtype is none of those above.
        ValueError: the shapes differ or the limit is not above zero.

    Kernel: ``kernels/nvfp4_silu_mul_scaled.cu``.
    """
    _check(gate, up, swiglu_limit)
    result = np.empty(gate.shape, bfloat16())
    flat, flat_gate, flat_up = (a.reshape(1, -1) for a in (result, gate, up))
    for _, col in chunks(*flat.shape):
        h = silu_mul(flat_gate[:, col], flat_up[:, col], gate_scale, up_scale, swiglu_limit)
        flat[:, col] = to_bfloat16(h)
    return result


@overload
def nvfp4_silu_mul_quant(
    gate: NDArray[Any],
    up: NDArray[Any],
    gate_scale: float,
    up_scale: float,
    *,
    swiglu_limit: float | None = ...,
    round_intermediate: bool = ...,
    row_scale: Literal[False] = ...,
) -> U8: ...
@overload
def nvfp4_silu_mul_quant(
    gate: NDArray[Any],
    up: NDArray[Any],
    gate_scale: float,
    up_scale: float,
    *,
    swiglu_limit: float | None = ...,
    round_intermediate: bool = ...,
    row_scale: Literal[True],
) -> tuple[U8, F32]: ...
@overload
def nvfp4_silu_mul_quant(
    gate: NDArray[Any],
    up: NDArray[Any],
    gate_scale: float,
    up_scale: float,
    *,
    swiglu_limit: float | None = ...,
    round_intermediate: bool = ...,
    row_scale: bool,
) -> U8 | tuple[U8, F32]: ...


def nvfp4_silu_mul_quant(
    gate: NDArray[Any],
    up: NDArray[Any],
    gate_scale: float,
    up_scale: float,
    *,
    swiglu_limit: float | None = 10.0,
    round_intermediate: bool = False,
    row_scale: bool = False,
) -> U8 | tuple[U8, F32]:
    """Apply SwiGLU and quantize the float32 result for the down projection.

    ``nvfp4_silu_mul_scaled`` without its rounding to bfloat16, then ``nvfp4_mmq_quantize_act``.

    Args:
        gate: bfloat16 (or float16, float32) ``(m, k)``.
        up: the same dtypes, ``(m, k)``.
        gate_scale: factor of gate.
        up_scale: factor of up.
        swiglu_limit: clamp, above zero; None for no clamp.
        round_intermediate: round to bfloat16 before quantizing, as the two separate calls do.
        row_scale: quantize with a float32 scale per row on top and return it too.

    Returns:
        uint8 ``(kpad / 256, m, 144)``; with ``row_scale`` a pair: the blocks and float32 ``(m,)``.

    Raises:
        TypeError: a dtype is none of those above.
        ValueError: the shapes differ or the limit is not above zero.

    Kernel: ``kernels/nvfp4_silu_mul_quant.cu``.
    """
    _check(gate, up, swiglu_limit)
    blocks = np.empty(block_fp4_mmq_shape(*gate.shape), np.uint8)

    def hidden(row: slice, col: slice) -> F32:
        h = silu_mul(gate[row, col], up[row, col], gate_scale, up_scale, swiglu_limit)
        return to_float32(to_bfloat16(h)) if round_intermediate else h

    if not row_scale:
        for row, col in act_chunks(*gate.shape):
            store_act_blocks(blocks, hidden(row, col), row, col)
        return blocks
    amax = np.zeros(gate.shape[0], np.float32)
    for row, col in act_chunks(*gate.shape):
        raise_amax(amax[row], hidden(row, col))
    scale = gsa_from_amax(amax)
    for row, col in act_chunks(*gate.shape):
        store_act_blocks(blocks, divide_flushed(hidden(row, col), scale[row, None]), row, col)
    return blocks, scale


def nvfp4_scale_bf16(data: NDArray[Any], scale: float) -> NDArray[Any]:
    """Multiply by a scalar: ``bf16(float32(data) * scale)``.

    Args:
        data: bfloat16, any shape.
        scale: factor, in float32.

    Returns:
        bfloat16, a fresh array of the same shape; NaN is 0x7FFF.

    Kernel: ``kernels/nvfp4_scale_bf16.cu``.
    """
    result = np.empty(data.shape, bfloat16())
    flat, source = result.reshape(1, -1), data.reshape(1, -1)
    factor = float32_scalar(scale)
    for _, col in chunks(*flat.shape):
        flat[:, col] = to_bfloat16(multiply_flushed(to_float32(source[:, col]), factor))
    return result


def silu_mul(
    gate: NDArray[Any],
    up: NDArray[Any],
    gate_scale: float,
    up_scale: float,
    swiglu_limit: float | None,
) -> F32:
    """Return the float32 value of ``nvfp4_silu_mul_scaled`` before its rounding to bfloat16."""
    g = multiply_flushed(to_float32(gate), float32_scalar(gate_scale))
    u = multiply_flushed(to_float32(up), float32_scalar(up_scale))
    if swiglu_limit is not None:
        limit = np.float32(swiglu_limit)
        g = np.minimum(g, limit)  # NaN passes np.minimum and np.maximum
        u = np.minimum(np.maximum(u, -limit), limit)
    with np.errstate(over="ignore"):
        silu = divide_flushed(g, np.float32(1) + exp(-g))
    return multiply_flushed(silu, u)


def _check(gate: NDArray[Any], up: NDArray[Any], swiglu_limit: float | None) -> None:
    if gate.shape != up.shape:
        raise ValueError(f"up must have the shape of gate, {gate.shape}, got {up.shape}")
    if swiglu_limit is not None and not swiglu_limit > 0:
        raise ValueError(f"swiglu_limit must be above zero or None, got {swiglu_limit}")
