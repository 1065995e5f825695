"""The exponential of the SiLU: float32, at most 2 ulp, the same bits on CPU and GPU.

Library exponentials differ in their last bits between devices, versions and compiler options. This
one is a fixed list of float32 operations, each rounded to nearest even, none contracted; a kernel
that repeats it (``-fmad=false -ftz=true``) gives the same bits. With ``x`` not subnormal::

    x = 128 if x > 128;  x = -128 if x < -128       # comparisons, so NaN passes
    t = x * LOG2_E                                  # |t| < 185
    t = t + SHIFT                                   # rounds t to an integer, ties to even
    n = bits(t) - bits(SHIFT)                       # that integer; int32, wraps for NaN
    t = t - SHIFT                                   # the same integer as a float
    r = x - t * LN2_HIGH                            # the product is exact: 8 + 15 bits
    r = r - t * LN2_LOW                             # |r| <= 0.3467
    p = P4
    p = p * r + P3;  p = p * r + P2;  p = p * r + P1;  p = p * r + P0
    y = (r * r) * p
    y = y + r
    y = y + 1                                       # exp(r), in [0.70, 1.42]
    half = n >> 1                                   # arithmetic: rounds down
    y = y * float(bits: (half + 127) << 23)         # 2^half: exact, never out of range
    y = y * float(bits: (n - half + 127) << 23)     # 2^(n - half): see below

``2^n`` is applied in two factors since n runs from -185 to 185. The last product is exact unless
it leaves the range: above the largest float32 it is infinity (x >= 88.722839), below 2^-126 it is
flushed to +0 (x <= -87.33655). So exp(+inf) = +inf, exp(-inf) = +0, exp(+-0) = 1, and NaN gives
NaN. For NaN, n is meaningless and the factors are whatever its bits say; the sum is NaN before.

Error: the polynomial (minimax for the relative error of exp(r)) contributes 0.06 ulp, r and the
roundings of the last three sums the rest: 0.99 ulp is the largest over all float32 numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.formats import F32
from nvfp4cupy.reference.flush import multiply_flushed

LIMIT = np.float32(128)
LOG2_E = np.float32(float.fromhex("0x1.715476p+0"))
SHIFT = np.float32(12582912)  # 1.5 * 2^23: the unit of float32 sums near it is 1
LN2_HIGH = np.float32(float.fromhex("0x1.62e4p-1"))  # 15 bits
LN2_LOW = np.float32(float.fromhex("0x1.7f7d1cp-20"))  # ln 2 - LN2_HIGH
# exp(r) = 1 + r + r^2 * (P0 + P1 * r + P2 * r^2 + P3 * r^3 + P4 * r^4)
P0 = np.float32(float.fromhex("0x1.fffffcp-2"))
P1 = np.float32(float.fromhex("0x1.555492p-3"))
P2 = np.float32(float.fromhex("0x1.5558aap-5"))
P3 = np.float32(float.fromhex("0x1.12396ep-7"))
P4 = np.float32(float.fromhex("0x1.6a5248p-10"))


def exp(x: F32) -> F32:
    """Return ``e^x`` by the operations in the module's description.

    Args:
        x: float32, any shape, no subnormals.

    Returns:
        float32 of the same shape: within 2 ulp of ``e^x``; infinity from 88.722839 on, zero where
        the rounded result is below 2^-126, NaN for NaN.

    Kernel: ``kernels/exp.cuh``.
    """
    with np.errstate(all="ignore"):
        x = np.clip(x, -LIMIT, LIMIT)  # NaN stays
        shifted = np.asarray(x * LOG2_E + SHIFT)
        n: NDArray[np.int32] = shifted.view(np.int32) - SHIFT.view(np.int32)
        t = shifted - SHIFT
        r = x - t * LN2_HIGH
        r = r - t * LN2_LOW
        p = P4 * r + P3
        for coefficient in (P2, P1, P0):
            p = p * r + coefficient
        y = (r * r) * p
        y = y + r
        y = y + np.float32(1)
        half = n >> 1
        y = y * _power_of_two(half)
        return multiply_flushed(y, _power_of_two(n - half))


def _power_of_two(n: NDArray[np.int32]) -> F32:
    power: F32 = np.asarray((n + np.int32(127)) << np.int32(23)).view(np.float32)
    return power
