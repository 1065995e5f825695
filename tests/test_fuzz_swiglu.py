"""The element-wise steps and the feed-forward are what they are made of, for any values."""

from __future__ import annotations

from typing import Any

import numpy as np
from golden import assert_bytes_equal
from hypothesis import given
from hypothesis import strategies as st
from strategies import BF16, assert_same, byte_arrays, fuzz, limits, misaligned, values

import nvfp4cupy as nv
from nvfp4cupy.formats import to_float32

FACTORS = st.one_of(
    st.floats(-100, 100, width=32),
    st.sampled_from([0.0, -0.0, 1e-30, 1e30, 1e-45, float("inf"), float("nan")]),
)


@st.composite
def gates_and_ups(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, float, float]:
    shape = draw(st.integers(0, 3)), draw(st.integers(0, 70))
    return draw(values(shape)), draw(values(shape)), draw(FACTORS), draw(FACTORS)


@fuzz(60, 8000)
@given(operands=gates_and_ups(), limit=limits(), row_scale=st.booleans())
def test_the_fused_step_with_rounding_is_the_two_steps(
    operands: Any, limit: float | None, row_scale: bool
) -> None:
    options: dict[str, Any] = {"swiglu_limit": limit}
    h = nv.nvfp4_silu_mul_scaled(*operands, **options)
    expected = nv.nvfp4_mmq_quantize_act(h, row_scale=row_scale)
    options |= {"row_scale": row_scale, "round_intermediate": True}
    assert_same(nv.nvfp4_silu_mul_quant(*operands, **options), expected)
    options["round_intermediate"] = False
    blocks = nv.nvfp4_silu_mul_quant(*operands, **options)
    assert (blocks[0] if row_scale else blocks)[..., :16].max(initial=0) <= 0x7E


@fuzz(60, 8000)
@given(operands=gates_and_ups(), limit=limits())
def test_swiglu_is_near_its_formula(operands: Any, limit: float | None) -> None:
    """Compare with float64 from the scaled, clamped float32 operands on.

    exp is off by at most 2 units in the last place, 2^-22 of itself; a sum, a quotient and a
    product by 2^-24 each; the result, of 8 bits, by 2^-8. exp(-g) overflows from 88.73 on, where
    silu is below 89 * 2^-128; that and flushing move the quotient by at most 2^-121, the product
    by 2^-126.
    """
    gate, up, *factors = operands
    h = nv.nvfp4_silu_mul_scaled(gate, up, *factors, swiglu_limit=limit)
    assert (h[np.isnan(h)].view(np.uint16) == 0x7FFF).all()
    top = np.inf if limit is None else limit
    pairs = ((gate, factors[0]), (up, factors[1]))
    with np.errstate(all="ignore"):
        g, u = (to_float32(to_float32(x) * to_float32(np.float32(f))) for x, f in pairs)
        g, u = (x.astype(np.float64) for x in (np.minimum(g, top), np.clip(u, -top, top)))
        exact = g / (1 + np.exp(-g)) * u
        error = np.abs(exact) * (2.0**-8 + 2.0**-21) + np.abs(u) * 2.0**-120 + 2.0**-125
        near = np.abs(h.astype(np.float64) - exact) <= error
    overflows = np.abs(exact) > 3.38e38
    # Where g is -infinity, the quotient is NaN; u may be tiny or zero beside an infinite factor.
    assert (near | overflows | ~np.isfinite(exact) | ~np.isfinite(u)).all()


@fuzz(60, 8000)
@given(operands=gates_and_ups(), limit=limits())
def test_elements_do_not_look_at_each_other(operands: Any, limit: float | None) -> None:
    gate, up, *factors = operands
    h = nv.nvfp4_silu_mul_scaled(gate, up, *factors, swiglu_limit=limit)
    beside = nv.nvfp4_silu_mul_scaled(misaligned(gate), up, *factors, swiglu_limit=limit)
    assert_bytes_equal(beside, h)
    flat, bits = (x.view(np.uint16).ravel()[::-1].copy() for x in (gate, up))
    options: dict[str, Any] = {"swiglu_limit": limit, "dtype": "bfloat16"}
    backwards = nv.nvfp4_silu_mul_scaled(flat, bits, *factors, **options)
    assert_bytes_equal(backwards, h.ravel()[::-1])
    assert nv.nvfp4_silu_mul_scaled(gate, up, *factors, swiglu_limit=limit, out=gate) is gate
    assert_bytes_equal(gate, h)


@fuzz(60, 8000)
@given(data=st.data(), scale=FACTORS)
def test_scaling_is_one_rounded_product(data: st.DataObject, scale: float) -> None:
    before = data.draw(values((data.draw(st.integers(0, 70)),)))
    after = misaligned(before)
    assert nv.nvfp4_scale_bf16(after, scale) is after
    with np.errstate(all="ignore"):
        factor = to_float32(np.asarray(scale, np.float32)).astype(np.float64)
        exact = to_float32(before).astype(np.float64) * factor
        expected = exact.astype(np.float32).astype(BF16)
    assert_bytes_equal(np.isnan(after), np.isnan(exact))
    assert (after[np.isnan(after)].view(np.uint16) == 0x7FFF).all()
    known = ~np.isnan(exact) & ((np.abs(exact) >= 2.0**-125) | (exact == 0))
    assert_bytes_equal(after[known], expected[known])
    assert (np.abs(after[~known & ~np.isnan(exact)]) <= 2.0**-125).all()


@fuzz(25, 1500)
@given(data=st.data(), w4a16=st.booleans(), row_scale=st.booleans(), rounded=st.booleans())
def test_a_feed_forward_is_its_steps(
    data: st.DataObject, w4a16: bool, row_scale: bool, rounded: bool
) -> None:
    m, k, n = (data.draw(st.integers(low, 2)) for low in (0, 1, 1))
    weights = [
        (
            data.draw(byte_arrays((rows, cols // 2))),
            data.draw(byte_arrays((rows, cols // 16))),
            0.01,
        )
        for rows, cols in ((64 * n, 64 * k), (64 * n, 64 * k), (3, 64 * n))
    ]
    x, limit = data.draw(values((m, 64 * k))), data.draw(limits())
    row_scale = row_scale and not w4a16
    options = {"row_scale": row_scale, "round_intermediate": rounded, "swiglu_limit": limit}
    y = nv.FeedForward(*weights, device="cpu", w4a16=w4a16, **options)(x)
    gate, up, down = (nv.nvfp4_mmq_repack(*weight[:2]) for weight in weights)
    if w4a16:
        g, u = (nv.nvfp4_w4a16_gemm(x, w) for w in (gate, up))
        h = nv.nvfp4_silu_mul_scaled(g, u, 0.01, 0.01, swiglu_limit=limit)
        assert_bytes_equal(y, nv.nvfp4_w4a16_gemm(h, down, out_scale=0.01))
        return
    a = nv.nvfp4_mmq_quantize_act(x, row_scale=row_scale)
    a, rows = a if row_scale else (a, None)
    g, u = (nv.nvfp4_mmq_gemm(a, w, row_scale=rows) for w in (gate, up))
    h = nv.nvfp4_silu_mul_quant(g, u, 0.01, 0.01, **options)
    h, rows = h if row_scale else (h, None)
    assert_bytes_equal(y, nv.nvfp4_mmq_gemm(h, down, out_scale=0.01, row_scale=rows))
