"""float32 arithmetic under flush-to-zero against exact rationals."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_reference_groups import round_float32

from nvfp4cupy.formats import F32
from nvfp4cupy.reference.chunks import CHUNK_VALUES, chunks
from nvfp4cupy.reference.flush import (
    divide_flushed,
    float32_scalar,
    fma_flushed,
    multiply_flushed,
)

MANTISSA = st.integers(2**23, 2**24 - 1)


def float32(mantissa: int, exponent: int) -> F32:
    return np.array([np.ldexp(float(mantissa), exponent)], np.float32)


def agrees(got: F32, exact: Fraction) -> bool:
    expected = round_float32(exact)
    return bool(np.isinf(got[0])) if expected is None else Fraction(float(got[0])) == expected


@given(MANTISSA, MANTISSA, st.integers(-3, 3), st.sampled_from([1, -1]))
@example(2**24 - 1, 2**23, 0, 1)  # (1 - 2^-24) * 2^-126: NumPy rounds it up to 2^-126
@example(2**24 - 1, 2**23 + 1, 0, 1)  # (1 + 2^-23 - 2^-24 - 2^-47) * 2^-126 rounds, then stays
@example(12582912, 11184811, 0, -1)
def test_products_near_the_smallest_normal(a: int, b: int, shift: int, sign: int) -> None:
    x, y = float32(sign * a, -87 + shift), float32(b, -86)
    assert agrees(multiply_flushed(x, y), Fraction(float(x[0])) * Fraction(float(y[0])))


@given(MANTISSA, MANTISSA, st.integers(-3, 3), st.sampled_from([1, -1]))
@example(2**24 - 1, 2**23, -1, 1)
def test_quotients_near_the_smallest_normal(a: int, b: int, shift: int, sign: int) -> None:
    x, y = float32(sign * a, -100 + shift), float32(b, 26)
    assert agrees(divide_flushed(x, y), Fraction(float(x[0])) / Fraction(float(y[0])))


@pytest.mark.parametrize("operation", [multiply_flushed, divide_flushed])
def test_what_flushes_keeps_its_sign(operation: Callable[[F32, F32], F32]) -> None:
    y = np.array([2.0**-100 if operation is multiply_flushed else 2.0**100], np.float32)
    result = operation(np.array([2.0**-50, -(2.0**-50)], np.float32), y)
    assert result.tobytes() == np.array([0.0, -0.0], np.float32).tobytes()


def test_ieee_results_outside_the_flushed_range_are_untouched() -> None:
    x = np.array([0, -0.0, 1, np.inf, np.nan, 3e38], np.float32)
    assert np.array_equal(multiply_flushed(x, x), [0, 0, 1, np.inf, np.nan, np.inf], equal_nan=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        np.testing.assert_array_equal(divide_flushed(x, x[::-1]), x / x[::-1])


@given(MANTISSA, MANTISSA, MANTISSA, st.integers(-40, 40), st.sampled_from([1, -1]))
@example(2**23 + 1, 2**23 + 1, 2**23, 23, 1)
@example(2**24 - 1, 2**24 - 1, 2**23 + 1, 50, -1)  # a residual below a float64 midpoint
def test_fma_rounds_once(a: int, b: int, c: int, shift: int, sign: int) -> None:
    addend = float32(sign * c, shift)
    product = np.array([float(a)]) * float(b)
    exact = Fraction(a) * Fraction(b) + Fraction(float(addend[0]))
    assert agrees(fma_flushed(product, addend), exact)


def test_fma_sees_the_residual_beside_a_midpoint() -> None:
    # 2^48 + 2^24 is halfway between two float32 numbers; 2^-30 is below float64's unit there.
    addend = np.array([2.0**-30, 0, -(2.0**-30)], np.float32)
    product = np.full(3, 2.0**48 + 2.0**24)
    assert list(fma_flushed(product, addend)) == [2.0**48 + 2.0**25, 2.0**48, 2.0**48]


def test_fma_flushes_by_the_exact_sum() -> None:
    threshold = (1 - 2.0**-25) * 2.0**-126
    tiny = np.array([0, np.nextafter(0, 1), -np.nextafter(0, 1)])
    got = fma_flushed(np.full(2, threshold), np.zeros(2, np.float32))
    assert list(got) == [2.0**-126, 2.0**-126]
    assert fma_flushed(np.array([np.nextafter(threshold, 0)]), np.zeros(1, np.float32)) == 0
    assert list(fma_flushed(tiny, np.zeros(3, np.float32))) == [0, 0, 0]


def test_scalars_are_rounded_and_flushed() -> None:
    assert float32_scalar(0.1) == np.float32(0.1)
    assert float32_scalar(1e-40) == 0
    assert np.isinf(float32_scalar(1e300))


@pytest.mark.parametrize(
    ("rows", "cols"), [(0, 16), (5, 0), (1, 16), (7, 48), (3000, 64), (3, 80000), (2, 65536)]
)
def test_chunks_tile_the_matrix(rows: int, cols: int) -> None:
    count = np.zeros((rows, cols), int)
    for row, col in chunks(rows, cols):
        assert col.start % 16 == 0
        assert 0 < (row.stop - row.start) * (col.stop - col.start) <= CHUNK_VALUES
        count[row, col] += 1
    assert (count == 1).all()
