from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvfp4cupy import formats

BF16 = formats.bfloat16()
LEVELS = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
ALL_BF16 = np.arange(65536, dtype=np.uint16).view(BF16)

# (point, code just below, code at the point, code just above), worked out by hand from each rule:
# half_step doubles, rounds to the nearest integer (ties to even) and sends 5, 7, 9, 10, 12 down.
HALF_STEP = [
    (0.25, 0, 0, 1),
    (0.75, 1, 2, 2),
    (1.25, 2, 2, 3),
    (1.75, 3, 4, 4),
    (2.25, 4, 4, 4),
    (2.75, 4, 5, 5),
    (3.25, 5, 5, 5),
    (3.75, 5, 6, 6),
    (4.75, 6, 6, 6),
    (5.25, 6, 6, 7),
    (6.0, 7, 7, 7),
]
NEAREST_LOW = [
    (0.25, 0, 0, 1),
    (0.75, 1, 1, 2),
    (1.25, 2, 2, 3),
    (1.75, 3, 3, 4),
    (2.5, 4, 4, 5),
    (3.5, 5, 5, 6),
    (5.0, 6, 6, 7),
]
NEAREST_EVEN = [
    (0.25, 0, 0, 1),
    (0.75, 1, 2, 2),
    (1.25, 2, 2, 3),
    (1.75, 3, 4, 4),
    (2.5, 4, 4, 5),
    (3.5, 5, 6, 6),
    (5.0, 6, 6, 7),
]
POINTS = {"half_step": HALF_STEP, "nearest_low": NEAREST_LOW, "nearest_even": NEAREST_EVEN}


def test_e2m1_decodes_all_16_codes() -> None:
    expected = np.array(LEVELS + [-float(v) for v in LEVELS], np.float32)
    decoded = formats.e2m1_decode(np.arange(16, dtype=np.uint8))
    np.testing.assert_array_equal(decoded.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("rounding", formats.ROUNDINGS)
@pytest.mark.parametrize("sign", [1, -1])
def test_e2m1_encodes_every_decision_point_by_its_rule(
    rounding: formats.Rounding, sign: int
) -> None:
    for point, below, at, above in POINTS[rounding]:
        p = np.float32(point)
        x = np.array([np.nextafter(p, np.float32(0)), p, np.nextafter(p, np.float32(9))])
        codes = formats.e2m1_encode(np.float32(sign) * x, rounding)
        assert list(codes) == [c | (8 if sign < 0 else 0) for c in (below, at, above)], point


@pytest.mark.parametrize("rounding", formats.ROUNDINGS)
def test_e2m1_encode_keeps_every_level_and_saturates(rounding: formats.Rounding) -> None:
    levels = np.array([*LEVELS, 7, 448, 1e7], np.float32)
    assert list(formats.e2m1_encode(levels, rounding)) == [0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7]


def test_nearest_even_agrees_with_ml_dtypes_on_finite_values() -> None:
    x = ALL_BF16[np.isfinite(ALL_BF16.astype(np.float32))].astype(np.float32)
    # ml_dtypes sends every negative that rounds to zero, and -0.0, to code 8, as the rule does.
    expected = x.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    np.testing.assert_array_equal(formats.e2m1_encode(x, "nearest_even"), expected)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_nearest_even_agrees_with_ml_dtypes_on_float32(value: float) -> None:
    x = np.array([value], np.float32)
    expected = x.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    assert formats.e2m1_encode(x, "nearest_even") == expected


def test_nearest_low_takes_the_first_smallest_float32_distance() -> None:
    a = np.abs(ALL_BF16.astype(np.float32))
    a = np.concatenate([a[np.isfinite(a)], np.float32(2.0**25) + np.arange(0, 800, 4)])
    a = formats.to_float32(a.astype(np.float32))
    distance = np.abs(a[:, None] - formats.E2M1_VALUES)
    expected = [min(range(8), key=lambda i, row=row: (row[i], i)) for row in distance]
    np.testing.assert_array_equal(formats.e2m1_magnitude(a, "nearest_low"), expected)


@pytest.mark.parametrize(
    ("rounding", "codes"),
    # inf, -inf, nan, -nan, -0.0, a negative that rounds to zero, a negative subnormal
    [
        ("half_step", [7, 15, 7, 7, 0, 8, 0]),
        ("nearest_low", [0, 8, 0, 0, 0, 8, 0]),
        ("nearest_even", [7, 15, 7, 7, 8, 8, 8]),
    ],
)
def test_e2m1_signs_and_non_finite_values(rounding: formats.Rounding, codes: list[int]) -> None:
    nan = np.float32(np.nan)
    x = np.array([np.inf, -np.inf, nan, -nan, -0.0, -1e-30, -1e-40], np.float32)
    assert list(formats.e2m1_encode(x, rounding)) == codes


def test_unknown_rounding_is_refused_by_name() -> None:
    with pytest.raises(
        ValueError, match="rounding must be one of half_step, nearest_low, nearest_even, got"
    ):
        formats.e2m1_encode(np.zeros(2, np.float32), "up")  # type: ignore[arg-type]


def test_e4m3_decodes_all_256_bytes() -> None:
    byte = np.arange(256, dtype=np.uint8)
    expected = (byte & 0x7F).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.isnan(expected[[0x7F, 0xFF]]).all()
    np.testing.assert_array_equal(formats.e4m3_decode(byte), expected)


def test_e4m3_encodes_values_midpoints_and_neighbours() -> None:
    values = formats.e4m3_decode(np.arange(0x7F, dtype=np.uint8))
    assert list(formats.e4m3_encode(values)) == list(range(0x7F))
    middle = (values[:-1] + values[1:]) / np.float32(2)
    even = [i if i % 2 == 0 else i + 1 for i in range(0x7E)]
    assert list(formats.e4m3_encode(middle)) == even
    assert list(formats.e4m3_encode(np.nextafter(middle, np.float32(0)))) == list(range(0x7E))
    assert list(formats.e4m3_encode(np.nextafter(middle, np.float32(999)))) == list(range(1, 0x7F))


def test_e4m3_encode_agrees_with_ml_dtypes_after_the_clamp() -> None:
    x = formats.to_float32(ALL_BF16)
    x = x[(x > 0) & np.isfinite(x)]
    expected = np.minimum(x, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    np.testing.assert_array_equal(formats.e4m3_encode(x), expected)


def test_e4m3_encode_never_gives_nan_or_a_sign() -> None:
    x = np.array([449, 464, 465, 1e38, np.inf, -1, -np.inf, -0.0, np.nan], np.float32)
    assert list(formats.e4m3_encode(x)) == [0x7E] * 5 + [0] * 4


def test_pack_and_unpack_are_inverses_with_the_even_element_low() -> None:
    assert list(formats.pack_codes(np.array([1, 2, 15, 0], np.uint8))) == [0x21, 0x0F]
    every_byte = np.arange(256, dtype=np.uint8).reshape(2, 128)
    codes = formats.unpack_codes(every_byte)
    assert codes.shape == (2, 256)
    np.testing.assert_array_equal(formats.pack_codes(codes), every_byte)
    np.testing.assert_array_equal(codes[:, 0::2], every_byte & 15)
    with pytest.raises(ValueError, match=r"even last dimension, got shape \(2, 3\)"):
        formats.pack_codes(np.zeros((2, 3), np.uint8))


def test_to_float32_widens_every_bf16_and_flushes_only_subnormals() -> None:
    bits = np.arange(65536, dtype=np.uint32)
    is_subnormal = (bits & 0x7F80) == 0
    expected = np.where(is_subnormal, bits & 0x8000, bits) << 16
    np.testing.assert_array_equal(formats.to_float32(ALL_BF16).view(np.uint32), expected)


def test_to_float32_keeps_float16_subnormals_and_flushes_float32_ones() -> None:
    half = np.arange(65536, dtype=np.uint16).view(np.float16)
    np.testing.assert_array_equal(formats.to_float32(half), half.astype(np.float32))
    x = np.array([2.0**-126, -(2.0**-126), 2.0**-127, -(2.0**-127)], np.float32)
    expected = np.array([2.0**-126, -(2.0**-126), 0.0, -0.0], np.float32)
    assert formats.to_float32(x).tobytes() == expected.tobytes()


def test_to_float32_takes_any_strides_and_no_other_type() -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    np.testing.assert_array_equal(formats.to_float32(x.T[::-1, ::2]), x.T[::-1, ::2])
    assert formats.to_float32(np.float32(3)) == 3
    with pytest.raises(TypeError, match="bfloat16, float16 or float32, got float64"):
        formats.to_float32(np.zeros(2))


@given(st.integers(0, 2**32 - 1))
def test_to_bfloat16_rounds_to_nearest_even(bits: int) -> None:
    x = np.array([bits], np.uint32).view(np.float32)
    got = int(formats.to_bfloat16_bits(x)[0])
    if np.isnan(x[0]):
        assert got == 0x7FFF
    elif bits & 0x7F800000 == 0:
        assert got == (bits >> 16) & 0x8000
    else:
        with np.errstate(over="ignore"):
            assert got == int(x.astype(BF16).view(np.uint16)[0])


def test_to_bfloat16_at_ties_and_at_the_ends() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x7F7FFFFF, 0xFF800001, 0x807FFFFF, 0x80800000])
    rounded = formats.to_bfloat16(bits.astype(np.uint32).view(np.float32))
    assert rounded.dtype == BF16
    expected = [0x3F80, 0x3F82, 0x7F80, 0x7FFF, 0x8000, 0x8080]
    assert list(rounded.view(np.uint16)) == expected


def test_round_flushed_decides_after_rounding_with_unbounded_exponent() -> None:
    just_below = np.nextafter(1 - 2.0**-25, 0)
    x = np.array([1 - 2.0**-25, just_below, 1, 1 - 2.0**-26, -just_below]) * 2.0**-126
    expected = np.array([2.0**-126, 0, 2.0**-126, 2.0**-126, -0.0], np.float32)
    assert formats.round_flushed(x).tobytes() == expected.tobytes()
    assert formats.round_flushed(np.array([1e39, -1e39])).tolist() == [np.inf, -np.inf]
