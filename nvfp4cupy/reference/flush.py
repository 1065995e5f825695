"""float32 arithmetic under flush-to-zero, as every kernel does it.

Operands hold no subnormals (``formats.to_float32``); additions need nothing of their own, because
a float32 sum that is subnormal is exact.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.formats import F32, F64, round_flushed, to_float32


def float32_scalar(value: float) -> F32:
    """Return a number as a float32 array of no dimensions: rounded, subnormals flushed."""
    with np.errstate(over="ignore", under="ignore"):
        return to_float32(np.asarray(value, np.float32))


def multiply_flushed(a: F32, b: F32) -> F32:
    """Return the float32 product ``a * b`` under flush-to-zero; operands hold no subnormals."""
    with np.errstate(all="ignore"):
        product = np.asarray(a * b)
        tiny = _perhaps_flushed(product)
        if tiny.any():
            a, b = np.broadcast_arrays(a, b)
            product[tiny] = round_flushed(a[tiny].astype(np.float64) * b[tiny])
    return product


def divide_flushed(a: F32, b: F32) -> F32:
    """Return the float32 quotient ``a / b`` under flush-to-zero; operands hold no subnormals."""
    with np.errstate(all="ignore"):
        quotient = np.asarray(a / b)
        tiny = _perhaps_flushed(quotient)
        if tiny.any():
            a, b = np.broadcast_arrays(a, b)
            quotient[tiny] = round_flushed(a[tiny].astype(np.float64) / b[tiny])
    return quotient


def fma_flushed(exact_product: F64, addend: F32) -> F32:
    """Return ``fma(a, b, addend)`` under flush-to-zero, for ``exact_product = a * b`` in float64.

    The float64 sum is rounded once more to float32. That differs from one rounding only when the
    sum lands on the midpoint of two float32 numbers and was not exact: then it is moved by one
    float64 unit to the side where the true sum lies.
    """
    total = np.asarray(exact_product + addend)
    at_midpoint = (total.view(np.uint64) & np.uint64(0x1FFFFFFF)) == np.uint64(0x10000000)
    if at_midpoint.any():
        a, b, t = addend[at_midpoint], exact_product[at_midpoint], total[at_midpoint]
        # Knuth's TwoSum: t + residual is the true sum.
        b_part = t - a
        residual = (a - (t - b_part)) + (b - b_part)
        towards = np.where(residual == 0, t, np.copysign(np.inf, residual))
        total[at_midpoint] = np.nextafter(t, towards)
    return round_flushed(total)


def _perhaps_flushed(x: F32) -> NDArray[np.bool_]:
    # NumPy rounds (1 - 2^-24) * 2^-126 up to 2^-126, so that value is suspect as well.
    magnitude: NDArray[np.uint32] = np.left_shift(x.view(np.uint32), 1)
    magnitude -= np.uint32(1)  # zero wraps around to the largest number
    suspect: NDArray[np.bool_] = magnitude < np.uint32(2 * 0x00800000)
    return suspect
