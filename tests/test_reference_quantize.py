from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden import SeedCase, assert_bytes_equal, seed_cases
from hypothesis import given, settings
from hypothesis import strategies as st

from nvfp4cupy import formats, layouts, reference
from nvfp4cupy.reference.chunks import CHUNK_VALUES

BF16 = formats.bfloat16()
DEINTERLEAVE = "s1_deinterleave_g"


def random(rows: int, cols: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)


@pytest.mark.parametrize("case", seed_cases("s1_"), ids=str)
def test_quantizers_give_the_golden_bytes(case: SeedCase) -> None:
    x, gsa = case.inputs["x"], case.inputs["gsa"]
    if case.name.startswith(DEINTERLEAVE):
        granularity = int(case.name.removeprefix(DEINTERLEAVE))
        got = reference.deinterleave_quantize_from_buffer(x, 256, granularity, gsa)
    else:
        got = reference.quantize_nvfp4_from_buffer(x, gsa)
    assert_bytes_equal(got[0], case.outputs[0], "codes")
    assert_bytes_equal(got[1], case.outputs[1], "scales")


def test_amax_gsa_of_each_kind_of_row() -> None:
    x = np.zeros((8, 32), np.float32)
    x[0, 31], x[1, 0], x[2, 5], x[3, :2] = -2688, 1, np.inf, (np.nan, 5376)
    x[4] = np.nan
    x[6, 1], x[7, 1] = 2.0**-120, 2.0**-130
    one = np.float32(1)
    expected = [1, one / np.float32(2688), np.inf, 2, 1, 1, 2.0**-126, 1]
    assert_bytes_equal(reference.amax_gsa(x), np.array(expected, np.float32))


def test_signaling_nan_is_ignored_like_any_other() -> None:
    bits = np.full((2, 512), 0x3F80, np.uint16)  # ones
    bits[0, 300], bits[0, 17] = 0x7F81, 0x4000  # a signaling NaN, and 2
    bits[1] = 0xFFA5
    x = bits.view(BF16)
    assert_bytes_equal(reference.amax_gsa(x), np.array([2 / np.float32(2688), 1], np.float32))
    for search in (0, 2):
        _, scales = reference.quantize_nvfp4(x, 1.0, scale_search=search)
        others = np.delete(scales[0], 300 // 16)
        assert (others == others[0]).sum() == others.size - 1  # but the group of the 2


@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
def test_float_types_quantize_like_their_float32_values(dtype: Any) -> None:
    x = (random(9, 96) * 100).astype(dtype)
    wide = formats.to_float32(x)
    gsa = reference.amax_gsa(x)
    assert_bytes_equal(gsa, reference.amax_gsa(wide))
    for got, expected in zip(
        reference.quantize_nvfp4_from_buffer(x, gsa),
        reference.quantize_nvfp4_from_buffer(wide, gsa),
        strict=True,
    ):
        assert_bytes_equal(got, expected)


@pytest.mark.parametrize("scale_search", [0, 2])
@pytest.mark.parametrize("rounding", formats.ROUNDINGS)
@pytest.mark.parametrize("scale_layout", layouts.SCALE_LAYOUTS)
def test_the_four_quantizers_agree(
    scale_search: int, rounding: formats.Rounding, scale_layout: layouts.ScaleLayout
) -> None:
    options: dict[str, Any] = locals()
    x = random(5, 80)
    codes, scales, gsa = reference.amax_quantize_nvfp4(x, **options)
    assert_bytes_equal(gsa, reference.amax_gsa(x))
    from_buffer = reference.quantize_nvfp4_from_buffer(x, gsa, **options)
    fused = np.stack([random(5, 80, 1).reshape(5, 10, 8), x.reshape(5, 10, 8)], axis=2)
    fused = fused.reshape(5, 160)
    deinterleaved = reference.deinterleave_quantize_from_buffer(fused, 80, 8, gsa, **options)
    one_scale = reference.quantize_nvfp4(x[2:3], float(gsa[2]), **options)
    assert_bytes_equal(one_scale[0][0], codes[2], "codes")
    for pair in (from_buffer, deinterleaved):
        assert_bytes_equal(pair[0], codes, "codes")
        assert_bytes_equal(pair[1], scales, "scales")


def test_results_do_not_depend_on_how_the_matrix_is_cut() -> None:
    x = random(3, CHUNK_VALUES + 32)  # one row is longer than a chunk
    gsa = reference.amax_gsa(x)
    assert_bytes_equal(gsa, np.abs(x).max(axis=1) / np.float32(2688))
    codes, scales = reference.quantize_nvfp4_from_buffer(x, gsa)
    for col in (slice(0, 48), slice(CHUNK_VALUES - 16, CHUNK_VALUES + 32)):
        part = reference.quantize_nvfp4_from_buffer(x[:, col], gsa)
        assert_bytes_equal(part[0], codes[:, col.start // 2 : col.stop // 2], "codes")
        assert_bytes_equal(part[1], scales[:, col.start // 16 : col.stop // 16], "scales")


@pytest.mark.parametrize("scale_search", [0, 2])
def test_swizzled_scales_are_the_linear_ones_in_another_order(scale_search: int) -> None:
    x = random(130, 80)
    gsa = reference.amax_gsa(x)
    _, linear = reference.quantize_nvfp4_from_buffer(x, gsa, scale_search=scale_search)
    _, swizzled = reference.quantize_nvfp4_from_buffer(
        x, gsa, scale_search=scale_search, scale_layout="128x4"
    )
    assert_bytes_equal(swizzled, layouts.swizzle_scales(linear), "scales")


@pytest.mark.parametrize("rounding", ["nearest_low", "nearest_even"])
def test_the_search_never_raises_the_error_of_a_group(rounding: formats.Rounding) -> None:
    v = random(64, 256) ** 3
    errors = []
    for scale_search in (0, 2):
        pair = reference.quantize_nvfp4(v, 1.0, rounding=rounding, scale_search=scale_search)
        y = reference.dequantize_nvfp4(*pair, 1.0, dtype="float32")  # exact
        errors.append(np.square(y.astype(np.float64) - v).reshape(64, -1, 16).sum(axis=-1))
    # The amax scale is one of the candidates. Errors are compared in float32: 16 fma and the
    # differences, each rounded by 2^-24, stay below 2^-18 of the sum. Where v / s and v * (1 / s)
    # round to different codes, both are equally near but for 2^-22 of v, at most 6.4 s, and at
    # least 0.25 s away: their squares differ by less than 2 * 26 * 2^-22 < 2^-16 of themselves.
    # Below 6 * 2^-9 the amax scale is 0 by a rule of its own.
    searched = np.abs(v).reshape(64, -1, 16).max(axis=-1) >= 6 / 512
    assert (errors[1] <= errors[0] * (1 + 2.0**-15))[searched].all()
    assert errors[1].sum() < errors[0].sum()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 65535), min_size=16, max_size=16), st.integers(-130, 120))
def test_no_scale_byte_is_nan_or_negative(bits: list[int], power: int) -> None:
    x = np.array([bits], np.uint16).view(BF16)
    gsa = np.array([2.0**power], np.float32)
    for scale_search in (0, 2):
        for rounding in formats.ROUNDINGS:
            _, scales = reference.quantize_nvfp4_from_buffer(
                x, gsa, rounding=rounding, scale_search=scale_search
            )
            assert scales.max() <= 0x7E


def test_views_of_any_strides_quantize_like_copies() -> None:
    base = random(40, 96)
    for x in (
        base[1:],
        base[:, 16:],
        base[:, ::3],
        base.T[:, :32],
        np.broadcast_to(base[0], (5, 96)),
    ):
        got = reference.amax_quantize_nvfp4(x)
        for a, b in zip(got, reference.amax_quantize_nvfp4(x.copy()), strict=True):
            assert_bytes_equal(a, b)


def test_options_and_shapes_that_do_not_fit_are_refused() -> None:
    x, gsa = random(4, 32), np.ones(4, np.float32)
    with pytest.raises(ValueError, match=r"x must have a multiple of 16 columns, got \(4, 24\)"):
        reference.quantize_nvfp4_from_buffer(x[:, :24], gsa)
    with pytest.raises(ValueError, match=r"gsa must have shape \(4,\), got \(1,\)"):
        reference.quantize_nvfp4_from_buffer(x, gsa[:1])
    with pytest.raises(ValueError, match="scale_layout must be one of linear, 128x4, got 'up'"):
        reference.quantize_nvfp4_from_buffer(x, gsa, scale_layout="up")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bfloat16, float16 or float32, got float64"):
        reference.quantize_nvfp4_from_buffer(x.astype(np.float64), gsa)


@pytest.mark.parametrize("gsa", [0.0, -1.0, np.inf, np.nan, 1e300, 1e-40])
def test_a_scalar_gsa_must_be_a_positive_float32(gsa: float) -> None:
    with pytest.raises(ValueError, match="gsa must be finite and at least 2"):
        reference.quantize_nvfp4(random(2, 16), gsa)


@pytest.mark.parametrize(
    ("intermediate", "granularity", "message"),
    [
        (24, 8, "intermediate must have a multiple of 16 columns, got 24"),
        (32, 12, "granularity must be at least 1 and divide intermediate=32, got 12"),
        (32, 0, "granularity must be at least 1 and divide intermediate=32, got 0"),
        (48, 8, r"fused must have at least 2 \* intermediate = 96 columns, got 64"),
    ],
)
def test_deinterleave_refuses_sizes_that_do_not_fit(
    intermediate: int, granularity: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        reference.deinterleave_quantize_from_buffer(
            random(2, 64), intermediate, granularity, np.ones(2, np.float32)
        )


def test_deinterleave_ignores_columns_beyond_the_pairs() -> None:
    fused, gsa = random(3, 80), np.ones(3, np.float32)
    got = reference.deinterleave_quantize_from_buffer(fused, 32, 4, gsa)
    expected = reference.deinterleave_quantize_from_buffer(fused[:, :64].copy(), 32, 4, gsa)
    assert_bytes_equal(got[0], expected[0], "codes")
    assert_bytes_equal(got[1], expected[1], "scales")


@pytest.mark.parametrize(("rows", "cols"), [(0, 32), (3, 0), (0, 0)])
def test_empty_matrices_give_empty_results(rows: int, cols: int) -> None:
    codes, scales, gsa = reference.amax_quantize_nvfp4(random(rows, cols))
    assert (codes.shape, scales.shape) == ((rows, cols // 2), (rows, cols // 16))
    assert_bytes_equal(gsa, np.ones(rows, np.float32))
    assert reference.dequantize_nvfp4(codes, scales, gsa).shape == (rows, cols)
