"""The group quantizer against a second implementation: scalars, exact rationals, one rounding."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from golden import assert_bytes_equal
from hypothesis import given, settings
from hypothesis import strategies as st

from nvfp4cupy import formats
from nvfp4cupy.reference.groups import quantize_groups

LEVELS = [Fraction(v) for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
FLOAT32_MAX = Fraction(2) ** 128 - Fraction(2) ** 104


def round_float32(value: Fraction) -> Fraction | None:
    """Round once to 24 bits, ties to even, then flush; None for an overflow."""
    if value == 0:
        return value
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    if abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (exponent - 23)
    rounded = round(value / unit) * unit
    if abs(rounded) < Fraction(2) ** -126:
        return Fraction(0)
    return rounded if abs(rounded) <= FLOAT32_MAX else None


def e4m3_value(byte: int) -> Fraction:
    exponent, mantissa = byte >> 3, byte & 7
    if exponent == 0:
        return Fraction(mantissa, 512)
    return (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 7)


def nearest_e4m3(value: Fraction) -> int:
    value = min(value, Fraction(448))
    return min(range(0x7F), key=lambda c: (abs(e4m3_value(c) - value), c % 2))


def code_of(a: Fraction, rounding: str) -> int:
    if rounding == "half_step":
        step = round(min(a, Fraction(6)) * 2)  # Python rounds ties to even
        return (0, 1, 2, 3, 4, 4, 5, 5, 6, 6, 6, 7, 7)[step]
    # For magnitudes up to 2^25 the float32 distances order like the exact ones.
    tie_break = (lambda i: i) if rounding == "nearest_low" else (lambda i: i % 2)
    return min(range(8), key=lambda i: (abs(a - LEVELS[i]), tie_break(i)))


def from_amax(v: list[Fraction], rounding: str) -> tuple[list[int], int]:
    amax = max(map(abs, v))
    if amax < Fraction(6, 512):
        return [0] * 16, 0
    scale = nearest_e4m3(round_float32(amax / 6) or Fraction(0))
    quotients = [round_float32(x / e4m3_value(scale)) or Fraction(0) for x in v]
    return [code_of(abs(q), rounding) | 8 * (q < 0) for q in quotients], scale


def try_scale(a: list[Fraction], scale: int, rounding: str) -> tuple[list[int], Fraction | None]:
    s = e4m3_value(scale)
    inverse = round_float32(1 / s) if s else Fraction(0)
    codes, error = [], Fraction(0)
    for x in a:
        code = code_of(round_float32(x * inverse) or Fraction(0), rounding) if s else 0
        codes.append(code)
        difference = round_float32(x - LEVELS[code] * s) or Fraction(0)
        total = None if error is None else round_float32(difference**2 + error)
        error = total  # None stays: the error has overflowed
    return codes, error


def searched(v: list[Fraction], rounding: str) -> tuple[list[int], int]:
    a = [abs(x) for x in v]
    center = nearest_e4m3(round_float32(max(a) / 6) or Fraction(0))
    best, kept, codes = FLOAT32_MAX, 0, [0] * 16
    for offset in (0, -1, 1, -2, 2):
        if 0 <= center + offset <= 0x7E:
            candidate, error = try_scale(a, center + offset, rounding)
            if error is not None and error < best:
                best, kept, codes = error, center + offset, candidate
    return [code | 8 * (x < 0) for code, x in zip(codes, v, strict=True)], kept


def check(v: np.ndarray, rounding: formats.Rounding, scale_search: int) -> None:
    oracle = searched if scale_search else from_amax
    results = [oracle([Fraction(float(x)) for x in group], rounding) for group in v]
    codes, scales = quantize_groups(v, rounding, scale_search)
    assert_bytes_equal(scales.ravel(), np.array([scale for _, scale in results], np.uint8))
    assert_bytes_equal(codes, np.array([code for code, _ in results], np.uint8))


@pytest.mark.parametrize("rounding", formats.ROUNDINGS)
@pytest.mark.parametrize("scale_search", [0, 2])
@pytest.mark.parametrize("as_bfloat16", [True, False])
def test_random_groups_of_every_size(
    rounding: formats.Rounding, scale_search: int, as_bfloat16: bool
) -> None:
    rng = np.random.default_rng(7)
    v = rng.standard_normal((60, 16)) * np.exp2(rng.uniform(-14, 14, (60, 1)))
    v[::7, ::2] *= 1e-3
    v[::5, 3] = 0
    v = v.astype(np.float32)
    check(formats.to_float32(formats.to_bfloat16(v)) if as_bfloat16 else v, rounding, scale_search)


@pytest.mark.parametrize("rounding", formats.ROUNDINGS)
@pytest.mark.parametrize("scale_search", [0, 2])
def test_groups_whose_candidates_tie(rounding: formats.Rounding, scale_search: int) -> None:
    levels = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 5, 2.5, 1.25, 0.75, 1.75, 2.75, 5.25, 3.75])
    scales = np.exp2(np.arange(-12, 12.0))[:, None]
    signs = np.where(np.arange(16) % 3, 1, -1)
    v = levels * signs * scales + 0.0  # rationals have no -0.0
    check(v.astype(np.float32), rounding, scale_search)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-255, 255), min_size=16, max_size=16), st.integers(-18, 12))
def test_search_finds_the_same_scale_as_exact_arithmetic(values: list[int], power: int) -> None:
    v = np.array([values], np.float32) * np.float32(2.0**power)
    check(v, "nearest_low", 2)


def test_search_flushes_squares_and_keeps_the_earlier_of_equal_errors() -> None:
    v = np.zeros((3, 16), np.float32)
    v[0, :2] = 1e-20, 6  # the square of 1e-20 is subnormal
    v[1] = 1e-20
    v[2, :3] = 2.0**-63, 2.0**-63, 12  # two squares of 2^-126
    check(v, "nearest_low", 2)


def test_unknown_search_is_refused() -> None:
    with pytest.raises(ValueError, match="scale_search must be 0 or 2, got 1"):
        quantize_groups(np.zeros((1, 16), np.float32), "half_step", 1)
