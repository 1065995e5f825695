"""Layouts are bijections and the GEMM's operands and products what they promise, for any bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from golden import assert_bytes_equal
from hypothesis import given
from hypothesis import strategies as st
from strategies import BF16, DTYPES, assert_same, byte_arrays, fuzz, matrices, misaligned, values

import nvfp4cupy as nv
from nvfp4cupy import reference
from nvfp4cupy.formats import unpack_codes
from nvfp4cupy.layouts import MMQ_TILES, linear_to_block_fp4_mmq

BF16_ROWS = matrices(multiple=1, columns=70, dtypes=(BF16,))


@st.composite
def linear_weights(draw: st.DrawFn, rows: int = 4, steps: int = 5) -> tuple[np.ndarray, np.ndarray]:
    n, k = draw(st.integers(0, rows)), 64 * draw(st.integers(0, steps))
    return draw(byte_arrays((n, k // 2))), draw(byte_arrays((n, k // 16)))


@fuzz(40, 6000)
@given(weight=linear_weights(), order=st.sampled_from(["low_first", "high_first"]))
def test_repacking_is_a_bijection_to_split_halves(weight: Any, order: Any) -> None:
    packed, scales = weight
    blocks = nv.nvfp4_mmq_repack(misaligned(packed), misaligned(scales), nibble_order=order)
    source = packed if order == "low_first" else packed << 4 | packed >> 4
    codes = unpack_codes(source).reshape(len(packed), -(-packed.shape[1] // 32), 4, 16)
    assert_bytes_equal(blocks[..., :4].reshape(scales.shape), scales)
    halves = blocks[..., 4:].reshape(*codes.shape[:3], 8)
    assert_bytes_equal(halves, codes[..., :8] | codes[..., 8:] << 4)
    assert_same(nv.nvfp4_mmq_unpack(misaligned(blocks)), (source, scales))


@fuzz(40, 6000)
@given(data=st.data(), n=st.integers(0, 4), steps=st.integers(0, 5))
def test_unpacking_is_a_bijection(data: st.DataObject, n: int, steps: int) -> None:
    blocks = data.draw(byte_arrays((n, steps, 36)))
    assert_bytes_equal(nv.nvfp4_mmq_repack(*nv.nvfp4_mmq_unpack(blocks)), blocks)


@fuzz(40, 6000)
@given(data=st.data(), rows=st.integers(0, 300), cols=st.integers(0, 9))
def test_swizzling_is_a_bijection_into_zeros(data: st.DataObject, rows: int, cols: int) -> None:
    scales = data.draw(byte_arrays((rows, cols)))
    swizzled = nv.swizzle_scales(scales)
    r, c = np.indices(scales.shape)
    place = (r // 128 * -(-cols // 4) + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
    expected = np.zeros(swizzled.size, np.uint8)
    expected[place] = scales
    assert_bytes_equal(swizzled.ravel(), expected)
    assert_bytes_equal(nv.unswizzle_scales(swizzled, rows, cols), scales)


def quantized(x: np.ndarray, gsa: np.ndarray) -> np.ndarray:
    """Return block_fp4_mmq by the quantizer to linear codes."""
    padded = np.zeros((len(x), -(-x.shape[1] // 256) * 256), x.dtype)
    padded[:, : x.shape[1]] = x
    options: dict[str, Any] = {"rounding": "nearest_low", "scale_search": 2}
    return linear_to_block_fp4_mmq(*nv.quantize_nvfp4_from_buffer(padded, gsa, **options))


@fuzz(40, 6000)
@given(x=BF16_ROWS, extra=st.integers(0, 5))
def test_activations_are_quantized_as_by_the_other_quantizer(x: np.ndarray, extra: int) -> None:
    blocks = nv.nvfp4_mmq_quantize_act(x)
    assert (blocks[..., :16] <= 0x7E).all()
    assert_bytes_equal(blocks, quantized(x, np.ones(len(x), np.float32)))
    stored = np.full((x.shape[0], x.shape[1] + extra), np.nan, BF16)
    stored[:, : x.shape[1]] = x
    assert_bytes_equal(nv.nvfp4_mmq_quantize_act(stored[:, : x.shape[1]]), blocks)
    assert_bytes_equal(nv.nvfp4_mmq_quantize_act(misaligned(x)), blocks)


@fuzz(30, 4000)
@given(x=BF16_ROWS)
def test_rows_of_activations_with_a_scale_are_divided_by_it(x: np.ndarray) -> None:
    blocks, scale = nv.nvfp4_mmq_quantize_act(x, row_scale=True)
    assert (blocks[..., :16] <= 0x7E).all()
    assert_bytes_equal(scale, nv.amax_gsa(x))
    assert_bytes_equal(blocks, quantized(x, scale))
    outs = np.full_like(blocks, 0xFF), np.full_like(scale, np.nan)
    assert nv.nvfp4_mmq_quantize_act(x, row_scale=True, out=outs)[0] is outs[0]
    assert_same(outs, (blocks, scale))


@st.composite
def gemm_operands(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
    """Draw quantized activations, weights, and scales and type of the output."""
    m, n, steps = draw(st.integers(0, 4)), draw(st.integers(0, 4)), draw(st.integers(0, 5))
    a, blocks = draw(byte_arrays((-(-steps // 4), m, 144))), draw(byte_arrays((n, steps, 36)))
    if draw(st.booleans()):  # without NaN
        a[..., :16] &= 0x77
        blocks[..., :4] &= 0x77
    number = st.floats(2.0**-20, 4, width=32)
    vector = st.lists(number, min_size=n, max_size=n).map(lambda v: np.array(v, np.float32))
    rows = st.lists(number, min_size=m, max_size=m).map(lambda v: np.array(v, np.float32))
    options = {
        "out_scale": draw(st.one_of(st.none(), number, vector)),
        "row_scale": draw(st.one_of(st.none(), rows)),
        "dtype": draw(st.sampled_from(DTYPES)).name,
    }
    return a, blocks, options


def has_nan(scales: np.ndarray) -> np.ndarray:
    return ((scales & 0x7F) == 0x7F).any(axis=(1, 2))


@fuzz(40, 4000)
@given(operands=gemm_operands())
def test_products_are_within_their_bound(operands: Any) -> None:
    a, blocks, options = operands
    out = nv.nvfp4_mmq_gemm(a, blocks, **options).astype(np.float64)
    # Scales of the activations beyond k are not looked at.
    used = a[..., :16].transpose(1, 0, 2).reshape(a.shape[1], 1, 16 * len(a))
    nan = has_nan(used[..., : 4 * blocks.shape[1]])[:, None] | has_nan(blocks[..., :4])
    assert_bytes_equal(np.isnan(out), nan)
    folds = {key: options[key] for key in ("out_scale", "row_scale")}
    with np.errstate(invalid="ignore"):
        exact = reference.gemm_float64(a, blocks, **folds)
        bound = reference.gemm_error_bound(a, blocks, **options)
        assert ((np.abs(out - exact) <= bound) | np.isinf(bound))[~nan].all()


@fuzz(40, 4000)
@given(data=st.data(), operands=gemm_operands(), tile=st.sampled_from([*MMQ_TILES, None]))
def test_outputs_do_not_look_at_each_other(data: st.DataObject, operands: Any, tile: Any) -> None:
    a, blocks, options = operands
    out = nv.nvfp4_mmq_gemm(a, blocks, **options)
    assert_bytes_equal(nv.nvfp4_mmq_gemm_tiled(a, blocks, mmq_x=tile, **options), out)
    target = np.full_like(out, np.nan)
    mirror = nv.nvfp4_mmq_gemm(misaligned(a), blocks, kernel="mirror", **options, out=target)
    assert mirror is target
    assert_bytes_equal(target, out)
    rows = np.array(data.draw(st.lists(st.integers(0, a.shape[1] - 1))) if a.shape[1] else [], int)
    columns = np.array(data.draw(st.permutations(range(len(blocks)))), int)
    for key, chosen in (("row_scale", rows), ("out_scale", columns)):
        if isinstance(options[key], np.ndarray):
            options[key] = options[key][chosen]
    part = nv.nvfp4_mmq_gemm(np.ascontiguousarray(a[:, rows]), blocks[columns], **options)
    assert_bytes_equal(part, out[rows][:, columns])


@fuzz(40, 4000)
@given(data=st.data(), operands=gemm_operands())
def test_products_of_plain_activations_are_within_their_bound(
    data: st.DataObject, operands: Any
) -> None:
    a, blocks, options = operands
    del options["row_scale"]
    x = data.draw(values((a.shape[1], 64 * blocks.shape[1])))
    out = nv.nvfp4_w4a16_gemm(x, blocks, **options).astype(np.float64)
    assert np.isnan(out)[:, has_nan(blocks[..., :4])].all()
    with np.errstate(all="ignore"):
        exact = reference.gemm_float64(x, blocks, out_scale=options["out_scale"])
        bound = reference.gemm_error_bound(x, blocks, **options)
        assert ((np.abs(out - exact) <= bound) | ~np.isfinite(bound) | ~np.isfinite(exact)).all()
    stored = np.full((x.shape[0], x.shape[1] + 3), np.nan, BF16)
    stored[:, : x.shape[1]] = x
    again = nv.nvfp4_w4a16_gemm(stored[:, : x.shape[1]], misaligned(blocks), **options)
    assert_bytes_equal(again.astype(np.float64), out)
