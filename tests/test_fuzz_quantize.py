"""The quantizers to linear codes keep what they promise for any values, shapes and options."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from calls import poisoned
from golden import assert_bytes_equal
from hypothesis import assume, given
from hypothesis import strategies as st
from strategies import (
    BF16,
    DTYPES,
    assert_same,
    byte_arrays,
    decode_scales,
    factors,
    fuzz,
    matrices,
    misaligned,
    quantizer_options,
    values,
)

import nvfp4cupy as nv
from nvfp4cupy.formats import (
    E2M1_VALUES,
    e2m1_decode,
    e4m3_decode,
    e4m3_encode,
    to_float32,
    unpack_codes,
)

_SMALLEST_AMAX = 6 * 2.0**-9


@fuzz(40, 6000)
@given(x=matrices(multiple=7))
def test_decode_scale_is_the_largest_number_over_2688(x: np.ndarray) -> None:
    with np.errstate(invalid="ignore"):
        flushed = np.abs(to_float32(x).astype(np.float64))
    amax = np.where(np.isnan(flushed), 0, flushed).max(axis=1, initial=0)
    with np.errstate(over="ignore"):
        # Rounded twice, which is harmless: 53 bits are more than 2 * 24 + 2.
        expected = np.maximum(amax / 2688, 2.0**-126).astype(np.float32)
    expected[amax == 0] = 1
    assert_bytes_equal(nv.amax_gsa(x), expected)


@fuzz(60, 8000)
@given(x=matrices(), options=quantizer_options())
def test_one_launch_is_the_two_steps(x: np.ndarray, options: dict[str, Any]) -> None:
    codes, scales, gsa = nv.amax_quantize_nvfp4(x, **options)
    assert_bytes_equal(gsa, nv.amax_gsa(x))
    assert_same((codes, scales), nv.quantize_nvfp4_from_buffer(x, gsa, **options))
    outs = poisoned((codes, scales, gsa))
    results = nv.amax_quantize_nvfp4(x, **options, out=outs)
    assert all(result is out for result, out in zip(results, outs, strict=True))
    assert_same(outs, (codes, scales, gsa))


@fuzz(40, 6000)
@given(x=matrices(), gsa=factors(), options=quantizer_options())
def test_one_scale_for_all_rows_is_a_scale_for_each(
    x: np.ndarray, gsa: float, options: dict[str, Any]
) -> None:
    one = nv.quantize_nvfp4(x, gsa, **options)
    each = np.full(x.shape[0], gsa, np.float32)
    assert_same(one, nv.quantize_nvfp4_from_buffer(x, each, **options))


@fuzz(60, 8000)
@given(data=st.data(), x=matrices(), options=quantizer_options())
def test_scale_bytes_are_never_nan_or_negative(
    data: st.DataObject, x: np.ndarray, options: dict[str, Any]
) -> None:
    gsa = data.draw(decode_scales(x.shape[0]))
    _, scales = nv.quantize_nvfp4_from_buffer(x, gsa, **options)
    assert (scales <= 0x7E).all()
    if options["scale_layout"] == "128x4":  # all padding is zero
        linear = nv.unswizzle_scales(scales, x.shape[0], x.shape[1] // 16)
        assert_bytes_equal(nv.swizzle_scales(linear), scales)
        options["scale_layout"] = "linear"
        assert_bytes_equal(nv.quantize_nvfp4_from_buffer(x, gsa, **options)[1], linear)


@fuzz(60, 8000)
@given(data=st.data(), x=matrices(rows=5), options=quantizer_options())
def test_rows_do_not_look_at_each_other(
    data: st.DataObject, x: np.ndarray, options: dict[str, Any]
) -> None:
    gsa = data.draw(decode_scales(x.shape[0]))
    options["scale_layout"] = "linear"
    order = np.array(data.draw(st.permutations(range(x.shape[0]))), np.intp)
    before = nv.quantize_nvfp4_from_buffer(x, gsa, **options)
    after = nv.quantize_nvfp4_from_buffer(x[order], gsa[order], **options)
    assert_same([part[order] for part in before], after)
    assume(x.shape[0])
    row = data.draw(st.integers(0, x.shape[0] - 1))
    x[row] = data.draw(values(x.shape[1:], x.dtype))
    changed = nv.quantize_nvfp4_from_buffer(x, gsa, **options)
    assert_same([np.delete(p, row, 0) for p in changed], [np.delete(p, row, 0) for p in before])


@fuzz(40, 6000)
@given(data=st.data(), x=matrices(dtypes=(BF16, np.dtype(np.float16))), options=quantizer_options())
def test_dtype_and_address_of_the_input_do_not_matter(
    data: st.DataObject, x: np.ndarray, options: dict[str, Any]
) -> None:
    gsa = data.draw(decode_scales(x.shape[0]))
    expected = nv.quantize_nvfp4_from_buffer(x, gsa, **options)
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float32)
    assert_same(nv.quantize_nvfp4_from_buffer(wide, gsa, **options), expected)
    beside = nv.quantize_nvfp4_from_buffer(misaligned(x), misaligned(gsa), **options)
    assert_same(beside, expected)
    if x.dtype == BF16:
        bits = nv.quantize_nvfp4_from_buffer(x.view(np.uint16), gsa, **options, dtype="bfloat16")
        assert_same(bits, expected)


@fuzz(60, 8000)
@given(data=st.data(), options=quantizer_options())
def test_deinterleaving_is_gathering(data: st.DataObject, options: dict[str, Any]) -> None:
    granularity = data.draw(st.sampled_from([1, 2, 3, 8, 16, 24, 48]))
    step = int(np.lcm(granularity, 16))
    intermediate = step * data.draw(st.integers(0, 3 if step < 40 else 1))
    width = 2 * intermediate + data.draw(st.integers(0, 20))
    shape = data.draw(st.integers(0, 3)), width
    fused = data.draw(values(shape, data.draw(st.sampled_from(DTYPES))))
    gsa = data.draw(decode_scales(shape[0]))
    got = nv.deinterleave_quantize_from_buffer(fused, intermediate, granularity, gsa, **options)
    runs = fused[:, : 2 * intermediate].reshape(
        shape[0], intermediate // granularity, 2, granularity
    )
    second = np.ascontiguousarray(runs[:, :, 1]).reshape(shape[0], intermediate)
    assert_same(got, nv.quantize_nvfp4_from_buffer(second, gsa, **options))


def divided(x: np.ndarray, gsa: np.ndarray) -> np.ndarray:
    """Return v in groups of 16 as float64, and refuse rows that are not finite or overflow."""
    wide = to_float32(x)
    assume(np.isfinite(wide).all())
    with np.errstate(all="ignore"):
        v = (wide / gsa[:, None]).astype(np.float64)
    assume((np.abs(v) < 2.0**60).all())
    return v.reshape(-1, 16)


def decoded(codes: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return e2m1 values in groups of 16, and their scales as a column, in float64."""
    levels = e2m1_decode(unpack_codes(codes)).astype(np.float64).reshape(-1, 16)
    return levels, e4m3_decode(scales).astype(np.float64).reshape(-1, 1)


@fuzz(60, 8000)
@given(data=st.data(), x=matrices(), options=quantizer_options())
def test_scales_and_codes_are_the_nearest(
    data: st.DataObject, x: np.ndarray, options: dict[str, Any]
) -> None:
    """Bound the round trip.

    A scale is the nearest E4M3 number to amax / 6: off by 1/16 of it at most, or by 2^-10 below
    2^-6, but at most 448. With t = |v| / scale, a code is off by at most half the widest step
    within 0..6, that is 1, and 1.25 by half_step (4 is taken up to 5.25); above 6 it is 6. v, v /
    scale and amax / 6 are float32: each is off by 2^-24 of itself.
    """
    gsa = data.draw(decode_scales(len(x), usable=True))
    v = divided(x, gsa)
    options |= {"scale_search": 0, "scale_layout": "linear"}
    levels, s = decoded(*nv.quantize_nvfp4_from_buffer(x, gsa, **options))
    amax = np.abs(v).max(axis=1, initial=0, keepdims=True)
    zero = amax[:, 0] < _SMALLEST_AMAX
    assert not s[zero].any()
    assert not levels[zero].any()
    sixth = np.minimum(amax / 6, 448)
    assert (np.abs(s - sixth) <= np.maximum(2.0**-10, sixth / 16) + sixth * 2.0**-22)[~zero].all()
    step = 1.25 if options["rounding"] == "half_step" else 1.0
    bound = np.maximum(step * s, np.abs(v) - 6 * s) + np.abs(v) * 2.0**-22
    assert (np.abs(v - levels * s) <= bound)[~zero].all()
    assert ((v * levels) >= 0).all()


@fuzz(60, 8000)
@given(
    data=st.data(), x=matrices(columns=3), rounding=st.sampled_from(["nearest_low", "nearest_even"])
)
def test_no_scale_of_the_search_is_better(
    data: st.DataObject, x: np.ndarray, rounding: Any
) -> None:
    """Compare the squared error with the least one that each of the five scales allows.

    A magnitude is rounded by |v| * (1 / s), off by 2^-23 of itself, so that beside a tie a level
    may be taken that is farther by twice that. The sum of 16 squares, each of a difference that is
    rounded once, loses at most 2^-19 of itself, on either side.
    """
    gsa = data.draw(decode_scales(len(x), usable=True))
    v = divided(x, gsa)
    options: dict[str, Any] = {"rounding": rounding, "scale_search": 2}
    levels, s = decoded(*nv.quantize_nvfp4_from_buffer(x, gsa, **options))
    error = np.square(v - levels * s).sum(axis=1)
    amax = np.abs(v).max(axis=1, initial=0).astype(np.float32)
    center = e4m3_encode(amax / np.float32(6)).astype(int)
    for offset in range(-2, 3):
        byte = np.clip(center + offset, 0, 0x7E).astype(np.uint8)
        exists = byte == center + offset
        scale = e4m3_decode(byte).astype(np.float64)[:, None]
        distances = np.abs(np.abs(v)[..., None] - E2M1_VALUES * scale[..., None]).min(axis=-1)
        least = np.square(distances + np.abs(v) * 2.0**-22).sum(axis=1) * (1 + 2.0**-17)
        # Squares below 2^-126 are flushed: a group so small may take any of the scales.
        assert (error <= least + 16 * 2.0**-126)[exists].all()


@fuzz(60, 8000)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), layout=st.sampled_from(["linear", "128x4"]))
def test_decoding_is_the_product(data: st.DataObject, dtype: np.dtype, layout: Any) -> None:
    rows, groups = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 5))
    codes = data.draw(byte_arrays((rows, 8 * groups)))
    scales = data.draw(byte_arrays((rows, groups)))
    gsa = data.draw(decode_scales(rows))
    stored = nv.swizzle_scales(scales) if layout == "128x4" else scales
    y = nv.dequantize_nvfp4(codes, stored, gsa, dtype=dtype.name, scale_layout=layout)
    nibbles = np.stack([codes & 15, codes >> 4], axis=-1).reshape(rows, 16 * groups)
    levels = nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float64).reshape(rows, groups, 16)
    s = (scales & 0x7F).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    flushed = np.where(np.abs(gsa) < 2.0**-126, np.copysign(0, gsa), gsa)
    with np.errstate(all="ignore"):
        exact = (levels * s[..., None] * flushed[:, None, None]).reshape(rows, 16 * groups)
        expected = exact.astype(np.float32).astype(dtype)
    tiny = (np.abs(exact) < 2.0**-125) & (exact != 0)  # perhaps flushed
    assert (np.abs(y[tiny].astype(np.float64)) <= 2.0**-125).all()
    assert_bytes_equal(np.isnan(y), np.isnan(exact))
    known = ~tiny & ~np.isnan(exact)
    assert_bytes_equal(y[known], expected[known])
    unsigned = np.dtype(f"u{dtype.itemsize}")
    assert (y[np.isnan(y)].view(unsigned) == np.iinfo(unsigned).max >> 1).all()
