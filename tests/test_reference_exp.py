from __future__ import annotations

import numpy as np
import pytest

from nvfp4cupy.formats import F32
from nvfp4cupy.reference.exp import LN2_HIGH, LN2_LOW, LOG2_E, P0, P1, P2, P3, P4, SHIFT, exp


def bits_of(x: float) -> int:
    return int(np.float32(x).view(np.uint32))


def ulps(x: F32) -> F32:
    """Error of exp in units of the float32 spacing at the true value."""
    true = np.exp(x.astype(np.float64))
    unit = np.spacing(true.astype(np.float32)).astype(np.float64)
    return np.abs(exp(x) - true) / unit


@pytest.mark.parametrize("sign", [1, -1])
def test_within_one_ulp_where_the_result_is_a_normal_number(sign: int) -> None:
    # Every 331st float32 from 2^-26 to the ends; 331 is prime, so all low bits take part. The
    # whole range was measured at 0.99 ulp; float64's own exp is off by some 2^-29 ulp.
    stop = bits_of(88.72283 if sign > 0 else 87.33654)
    bits = np.arange(bits_of(2.0**-26), stop + 1, 331, dtype=np.uint32)
    assert ulps(sign * bits.view(np.float32)).max() <= 1


def test_small_arguments_give_one_or_its_neighbours() -> None:
    x = np.array([0.0, -0.0, 1e-30, -1e-30, 2.0**-26, -(2.0**-26)], np.float32)
    assert list(exp(x)) == [1] * 6
    x = np.array([2.0**-23, -(2.0**-24)], np.float32)
    assert list(exp(x)) == [1 + 2.0**-23, 1 - 2.0**-24]


def test_the_ends_of_the_range() -> None:
    largest, smallest = np.float32(88.72283), np.float32(-87.33654)
    up, down = np.nextafter(largest, np.float32(99)), np.nextafter(smallest, np.float32(-99))
    x = np.array([up, 89, 128, 129, 1e38, np.inf], np.float32)
    assert (exp(x) == np.inf).all()
    x = np.array([down, -88, -104, -128, -129, -1e38, -np.inf], np.float32)
    assert exp(x).tobytes() == np.zeros(7, np.float32).tobytes()
    assert np.isfinite(exp(np.array([largest])))
    assert exp(np.array([smallest])) >= 2.0**-126


def test_nan_gives_nan_whatever_its_bits() -> None:
    bits = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32)
    assert np.isnan(exp(bits.view(np.float32))).all()


def test_order_never_reverses_between_neighbours_a_kernel_would_compare() -> None:
    # A step of 2^-12 of x changes the result by at least 2^-13 of it, far above 2 ulp.
    x = np.sort(np.concatenate([np.arange(-87, 88, 2.0**-5), [1e-3, -1e-3]])).astype(np.float32)
    assert (np.diff(exp(x)) > 0).all()


def by_the_list(x: np.float32) -> np.float32:
    """The operations of the module's description, one float32 scalar at a time."""
    x = np.float32(128) if x > 128 else np.float32(-128) if x < -128 else x
    t = x * LOG2_E
    t = t + SHIFT
    n = int(t.view(np.int32)) - int(SHIFT.view(np.int32))
    t = t - SHIFT
    r = x - t * LN2_HIGH
    r = r - t * LN2_LOW
    p = P4
    for coefficient in (P3, P2, P1, P0):
        p = p * r + coefficient
    y = (r * r) * p
    y = y + r
    y = y + np.float32(1)
    half = n >> 1
    y = y * np.uint32((half + 127) << 23).view(np.float32)
    return np.float32(y * np.uint32((n - half + 127) << 23).view(np.float32))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.filterwarnings("ignore:underflow")
def test_the_description_lists_the_operations_in_order() -> None:
    x = np.random.default_rng(0).uniform(-87, 92, 3000).astype(np.float32)
    x[:4] = 200, -0.0, 88.72283, -87.33654
    expected = np.array([by_the_list(value) for value in x])
    assert exp(x).tobytes() == expected.tobytes()
