"""Faults that users of similar libraries met, as small cases for the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden import assert_bytes_equal
from hypothesis import given, settings
from hypothesis import strategies as st

from nvfp4cupy import formats, layouts, reference

BF16 = formats.bfloat16()


def random(rows: int, cols: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((rows, cols)).astype(np.float32)


def round_trip(x: Any, **options: Any) -> Any:
    codes, scales, gsa = reference.amax_quantize_nvfp4(x, **options)
    return reference.dequantize_nvfp4(codes, scales, gsa, dtype="float32")


def relative_error(y: Any, x: Any) -> Any:
    return np.linalg.norm(y - x, axis=-1) / np.linalg.norm(x, axis=-1)


@pytest.mark.parametrize("m", [1, 5, 127, 128, 129])
@pytest.mark.parametrize("k", [16, 48, 80, 2880])
def test_case_1_every_padding_byte_of_swizzled_scales_is_zero(m: int, k: int) -> None:
    x = np.full((m, k), 6, np.float32)  # no scale byte of the data is zero
    _, swizzled, _ = reference.amax_quantize_nvfp4(x, scale_layout="128x4")
    inside = layouts.swizzle_scales(np.ones((m, k // 16), np.uint8)) == 1
    assert swizzled.shape == inside.shape == layouts.swizzled_scales_shape(m, k // 16)
    assert (swizzled[inside] != 0).all()
    assert (swizzled[~inside] == 0).all()


@pytest.mark.parametrize("k", [16, 48, 5488])
def test_case_2_odd_multiples_of_16_leave_no_group_behind(k: int) -> None:
    x = random(3, k)
    codes, scales, gsa = reference.amax_quantize_nvfp4(x)
    y = reference.dequantize_nvfp4(codes, scales, gsa, dtype="float32")
    for left in range(0, k, 16):
        group = slice(left, left + 16)
        part = reference.quantize_nvfp4_from_buffer(x[:, group].copy(), gsa)
        assert_bytes_equal(codes[:, left // 2 : left // 2 + 8], part[0], "codes")
        assert_bytes_equal(scales[:, left // 16, None], part[1], "scales")
        alone = reference.dequantize_nvfp4(*part, gsa, dtype="float32")
        assert_bytes_equal(y[:, group], alone)


@pytest.mark.parametrize("m", range(1, 4097, 585))
def test_case_3_every_element_is_near_and_the_whole_points_the_same_way(m: int) -> None:
    x = random(m, 2048, m)
    codes, scales, gsa = reference.amax_quantize_nvfp4(x)
    y = reference.dequantize_nvfp4(codes, scales, gsa, dtype="float32")
    step = np.repeat(formats.e4m3_decode(scales), 16, axis=1) * gsa[:, None]
    # Below 2 steps a code is within 0.25 step, below 4 within 0.75, above within 1.25 (half_step
    # sends 2.75 to 2 and 5.25 to 4; 6 covers up to 6.4, E4M3 rounding amax / 6 down by 1/16).
    # Two roundings of float32 each way are covered by 2^-20 of the largest quotient.
    quotient = np.abs(x) / step
    reach = np.where(quotient <= 2, 0.25, np.where(quotient <= 4, 0.75, 1.25)) + 7 * 2.0**-20
    assert (np.abs(y - x) <= reach * step).all()
    cosine = (x * y).sum() / np.sqrt(np.square(x).sum() * np.square(y).sum())
    assert cosine > 0.97


def test_case_4_zero_tensors_rows_and_groups_stay_zero_and_finite() -> None:
    x = random(4, 64)
    x[1] = 0
    x[2, 16:32] = 0
    for zeros in (x, np.zeros((4, 64), np.float32)):
        codes, scales, gsa = reference.amax_quantize_nvfp4(zeros)
        assert (np.isfinite(gsa) & (gsa > 0)).all()
        empty = (zeros.reshape(4, 4, 16) == 0).all(axis=-1)
        assert not scales[empty].any()
        assert not codes.reshape(4, 4, 8)[empty].any()
        assert np.isfinite(reference.dequantize_nvfp4(codes, scales, gsa).astype(np.float32)).all()
        blocks, row_scale = reference.nvfp4_mmq_quantize_act(zeros, row_scale=True)
        weights = reference.nvfp4_mmq_repack(codes, scales)
        out = reference.nvfp4_mmq_gemm(blocks, weights, row_scale=row_scale)
        assert np.isfinite(out.astype(np.float32)).all()


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=32, max_size=32),
    st.sampled_from(formats.ROUNDINGS),
)
def test_case_5_no_finite_input_gives_a_nan_or_negative_scale(
    values: list[float], rounding: formats.Rounding
) -> None:
    x = np.array([values], np.float32)
    for scale_search in (0, 2):
        options: dict[str, Any] = {"rounding": rounding, "scale_search": scale_search}
        _, scales, gsa = reference.amax_quantize_nvfp4(x, **options)
        assert np.isfinite(gsa).all()
        assert scales.max() <= 0x7E
        _, scales = reference.quantize_nvfp4(x, 1.0, **options)
        assert scales.max() <= 0x7E
    assert layouts.block_fp4_mmq_to_linear(reference.nvfp4_mmq_quantize_act(x))[1].max() <= 0x7E


@pytest.mark.parametrize("scale_search", [0, 2])
@pytest.mark.parametrize("rounding", formats.ROUNDINGS)
@pytest.mark.parametrize("factor", [1e4, 1e-4])
def test_case_6_scaled_rows_keep_their_relative_error(
    rounding: formats.Rounding, scale_search: int, factor: float
) -> None:
    x = random(16, 1024)
    options: dict[str, Any] = {"rounding": rounding, "scale_search": scale_search}
    plain = relative_error(round_trip(x, **options), x)
    scaled = x * np.float32(factor)
    np.testing.assert_allclose(
        relative_error(round_trip(scaled, **options), scaled), plain, rtol=0.01
    )


@pytest.mark.parametrize("m", [70000, 248320])
def test_case_7_many_rows(m: int) -> None:
    x = np.resize(random(1009, 64), (m, 64)).astype(BF16)
    codes, scales, gsa = reference.amax_quantize_nvfp4(x)
    for rows in (slice(0, 7), slice(65530, 65540), slice(m - 7, m)):
        part = reference.amax_quantize_nvfp4(x[rows])
        assert_bytes_equal(codes[rows], part[0], "codes")
        assert_bytes_equal(scales[rows], part[1], "scales")
        assert_bytes_equal(gsa[rows], part[2])
