"""Number formats: E2M1 and E4M3 codes, bfloat16, and float32 results with flush-to-zero.

The kernels are compiled with ``-ftz=true``: a subnormal float32 or bfloat16 input counts as a zero
of the same sign, and a result that is below 2^-126 when rounded to 24 bits *with unbounded
exponent* becomes a zero of its sign. The functions here repeat that on the CPU.

Source: OCP Microscaling Formats v1.0 (E2M1), OCP 8-bit Floating Point v1.0 (E4M3), PTX ISA
(``.ftz`` of ``mul``, ``div`` and ``cvt``).
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Rounding: TypeAlias = Literal["half_step", "nearest_low", "nearest_even"]
U8: TypeAlias = NDArray[np.uint8]
F32: TypeAlias = NDArray[np.float32]
F64: TypeAlias = NDArray[np.float64]

ROUNDINGS: tuple[Rounding, ...] = ("half_step", "nearest_low", "nearest_even")

GROUP_SIZE = 16  # values that share one E4M3 scale
E2M1_MAX = 6.0
E4M3_MAX = 448.0
GSA_DIVISOR = 2688.0  # E2M1_MAX * E4M3_MAX: a row's amax / 2688 uses the whole range
E4M3_MAX_BYTE = 0x7E  # 448; 0x7F is NaN
FLOAT32_MIN_NORMAL = np.float32(2.0**-126)

E2M1_VALUES: F32 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
E2M1_VALUES.flags.writeable = False

# Rounding to 24 bits lifts this value to 2^-126 (a tie, to even); results below it flush.
_FLUSH_BELOW = (1.0 - 2.0**-25) * 2.0**-126
# From here on a float32 distance |a - level| is rounded, so nearest_low compares distances.
_DISTANCES_ROUND_FROM = np.float32(2.0**25)
# Twice a value, rounded to an integer, reaches code i + 1 from _HALF_STEPS[i] on.
_HALF_STEPS = (1, 2, 3, 4, 6, 8, 11)
_MIDPOINTS = tuple(np.float32(t) for t in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0))


def bfloat16() -> np.dtype[Any]:
    """Return the bfloat16 dtype; ml_dtypes is imported at the first call."""
    import ml_dtypes

    dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return dtype


@cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """Return ``dtype.name``, which NumPy builds anew each time."""
    return str(dtype.name)


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """Tell whether ``dtype`` is bfloat16 without importing ml_dtypes."""
    return dtype.name == "bfloat16" and dtype.itemsize == 2


def e2m1_decode(codes: NDArray[np.integer[Any]]) -> F32:
    """Decode E2M1 codes: ``0, 0.5, 1, 1.5, 2, 3, 4, 6``, bit 3 is the sign (8 is -0.0).

    Args:
        codes: integers 0..15, any shape.

    Returns:
        float32 of the same shape.
    """
    return np.take(_e2m1_table(), codes)


def e2m1_encode(x: NDArray[Any], rounding: Rounding = "half_step") -> U8:
    """Encode values as E2M1 codes; magnitudes above 6 saturate.

    ``half_step`` and ``nearest_low`` set the sign bit when ``x < 0`` (-0.0 gives 0);
    ``nearest_even`` keeps the sign bit of ``x`` (-0.0 gives 8). NaN never has the sign bit set.

    Args:
        x: bfloat16, float16 or float32, any shape; subnormals count as zero.
        rounding: the rule, see ``e2m1_magnitude``.

    Returns:
        uint8 codes 0..15 of the same shape.

    Raises:
        TypeError: the dtype is none of those above.
        ValueError: ``rounding`` is not one of ``ROUNDINGS``.
    """
    values = to_float32(x)
    return e2m1_magnitude(np.abs(values), rounding) | e2m1_sign(values, rounding)


def e2m1_magnitude(a: F32, rounding: Rounding) -> U8:
    """Round magnitudes to codes 0..7.

    The points between the levels ``0 | .5 | 1 | 1.5 | 2 | 3 | 4 | 6`` are

    - ``half_step``: .25 .75 1.25 1.75 2.75 3.75 5.25. Twice the value is rounded to an integer,
      ties to even, and 5, 7, 9, 10, 12 then go down. NaN gives 7.
    - ``nearest_low``: .25 .75 1.25 1.75 2.5 3.5 5, ties down: the first level whose float32
      distance is smallest. From 2^25 on these distances are rounded and lower codes win ties;
      infinity, equally far from all, gives 0, and so does NaN.
    - ``nearest_even``: the same points, ties to the even code. NaN gives 7.

    Args:
        a: float32, no sign bit set, any shape.
        rounding: one of ``ROUNDINGS``.

    Returns:
        uint8 of the same shape.

    Raises:
        ValueError: ``rounding`` is not one of ``ROUNDINGS``.
    """
    if rounding == "half_step":
        return _magnitude_half_step(a)
    if rounding == "nearest_low":
        return _magnitude_nearest_low(a)
    if rounding == "nearest_even":
        return _magnitude_nearest_even(a)
    raise ValueError(f"rounding must be one of {', '.join(ROUNDINGS)}, got {rounding!r}")


def e2m1_sign(x: F32, rounding: Rounding) -> U8:
    """Return the sign bit of the codes, 8 or 0: ``signbit(x)`` for nearest_even, else ``x < 0``."""
    negative = np.signbit(x) & ~np.isnan(x) if rounding == "nearest_even" else x < 0
    sign: U8 = np.asarray(negative).view(np.uint8) << np.uint8(3)
    return sign


def _magnitude_half_step(a: F32) -> U8:
    doubled = np.fmin(a, np.float32(E2M1_MAX))  # fmin: NaN becomes 6
    doubled *= np.float32(2)
    steps = np.rint(doubled, out=doubled).astype(np.uint8)
    codes = np.zeros(steps.shape, np.uint8)
    for threshold in _HALF_STEPS:
        codes += (steps >= threshold).view(np.uint8)
    return codes


def _magnitude_nearest_low(a: F32) -> U8:
    codes = np.zeros(a.shape, np.uint8)
    for midpoint in _MIDPOINTS:
        codes += np.asarray(a > midpoint).view(np.uint8)
    huge = a >= _DISTANCES_ROUND_FROM
    if huge.any():
        distance = np.abs(a[huge][:, None] - E2M1_VALUES)
        codes[huge] = distance.argmin(axis=-1)  # argmin: the first of equals
    return codes


def _magnitude_nearest_even(a: F32) -> U8:
    codes = np.zeros(a.shape, np.uint8)
    for i, midpoint in enumerate(_MIDPOINTS):
        # The tie between codes i and i + 1 goes up when i + 1 is even; NaN compares false.
        below = a < midpoint if i % 2 else a <= midpoint
        codes += np.asarray(~below).view(np.uint8)
    return codes


@cache
def _e2m1_table() -> F32:
    table = np.concatenate([E2M1_VALUES, -E2M1_VALUES])
    table.flags.writeable = False
    return table


def pack_codes(codes: U8) -> U8:
    """Pack pairs of codes: byte j is ``codes[2j] | codes[2j + 1] << 4``.

    Args:
        codes: uint8 0..15, shape ``(..., k)``, k even.

    Returns:
        uint8 ``(..., k / 2)``.

    Raises:
        ValueError: k is odd.
    """
    if codes.shape[-1] % 2:
        raise ValueError(f"codes must have an even last dimension, got shape {codes.shape}")
    pairs: NDArray[np.uint16] = np.ascontiguousarray(codes).view("<u2")
    packed: U8 = np.bitwise_or(pairs, pairs >> 4).astype(np.uint8)
    return packed


def unpack_codes(packed: U8) -> U8:
    """Undo ``pack_codes``: uint8 ``(..., k / 2)`` to codes 0..15, uint8 ``(..., k)``."""
    codes = np.empty((*packed.shape[:-1], packed.shape[-1], 2), np.uint8)
    np.bitwise_and(packed, 0x0F, out=codes[..., 0])
    np.right_shift(packed, 4, out=codes[..., 1])
    return codes.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def e4m3_decode(scales: U8) -> F32:
    """Decode E4M3 scale bytes; the top bit is ignored and 0x7F gives NaN.

    ``m * 2^-9`` for exponent 0, else ``(1 + m / 8) * 2^(e - 7)``; 0x7E is 448.

    Args:
        scales: uint8, any shape.

    Returns:
        float32 of the same shape.
    """
    return np.take(_e4m3_table(), scales)


def e4m3_encode(x: F32) -> U8:
    """Encode scales as E4M3: clamp to 448, round to nearest, ties to even.

    Args:
        x: float32, any shape. Whatever is not above zero (NaN too) gives 0; infinity gives 0x7E.

    Returns:
        uint8 0..0x7E of the same shape: never NaN, never a sign bit.
    """
    positive = np.where(x > 0, np.minimum(x, np.float32(E4M3_MAX)), np.float32(0))
    bits = positive.view(np.uint32)
    # Round at bit 20 (3 mantissa bits are left), then move the exponent bias from 127 to 7.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2^-6 the codes are multiples of 2^-9; 8 * 2^-9 is the first normal code, 8.
    small = np.rint(positive * np.float32(512))
    scales: U8 = np.where(positive < np.float32(2**-6), small, normal).astype(np.uint8)
    return scales


@cache
def _e4m3_table() -> F32:
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    subnormal = mantissa * 2.0**-9
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    table = np.where(exponent == 0, subnormal, normal).astype(np.float32)
    table[(byte & 0x7F) == 0x7F] = np.nan
    table.flags.writeable = False
    return table


def to_float32(x: NDArray[Any]) -> F32:
    """Widen values to float32 as the kernels read them: subnormals become signed zeros.

    float16 subnormals are normal float32 numbers and stay.

    Args:
        x: bfloat16, float16 or float32, any shape and strides.

    Returns:
        float32, a fresh array of the same shape.

    Raises:
        TypeError: the dtype is none of those above.
    """
    x = np.asarray(x)
    if x.dtype == np.float16:
        return x.astype(np.float32)
    if x.dtype == np.float32:
        bits: NDArray[np.uint32] = _flush_bits(x.view(np.uint32), 0x7F800000)
    elif is_bfloat16(x.dtype):
        bits = _flush_bits(x.view(np.uint16), 0x7F80).astype(np.uint32)
        bits <<= np.uint32(16)
    else:
        raise TypeError(f"x must be bfloat16, float16 or float32, got {x.dtype}")
    values: F32 = bits.view(np.float32)
    return values


def _flush_bits(bits: NDArray[Any], exponent: int) -> NDArray[Any]:
    """Keep only the sign, the top bit, of numbers whose exponent bits are all zero."""
    unsigned = bits.dtype.type
    sign = unsigned(1 << (8 * bits.itemsize - 1))
    kept: NDArray[Any] = np.asarray((bits & unsigned(exponent)) != 0) * (sign - unsigned(1))
    kept |= sign
    kept &= bits
    return np.asarray(kept)


def to_bfloat16_bits(x: F32) -> NDArray[np.uint16]:
    """Round float32 to the bits of bfloat16: to nearest even, NaN to 0x7FFF, subnormals to zero."""
    bits = _flush_bits(np.asarray(x, np.float32).view(np.uint32), 0x7F800000)
    ties_to_even = 0x7FFF + ((bits >> 16) & 1)
    rounded: NDArray[np.uint16] = np.asarray((bits + ties_to_even) >> 16).astype(np.uint16)
    np.copyto(rounded, np.uint16(0x7FFF), where=(bits & 0x7FFFFFFF) > 0x7F800000)
    return rounded


def to_bfloat16(x: F32) -> NDArray[Any]:
    """Round float32 to bfloat16 as the kernels write it.

    Round to nearest, ties to even; NaN becomes 0x7FFF; a subnormal becomes a zero of its sign.

    Args:
        x: float32, any shape.

    Returns:
        bfloat16 of the same shape.
    """
    rounded: NDArray[Any] = to_bfloat16_bits(x).view(bfloat16())
    return rounded


def round_flushed(x: F64) -> F32:
    """Round a float64 result to float32 under flush-to-zero.

    Exact for one product, quotient or sum of two float32 numbers: float64 holds a product exactly,
    and rounding the other two twice is harmless at 53 >= 2 * 24 + 2 bits.

    Args:
        x: float64, any shape.

    Returns:
        float32: ``x`` rounded to 24 bits with unbounded exponent, then below 2^-126 a signed zero,
        above the largest float32 infinity.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        kept = np.where(np.abs(x) < _FLUSH_BELOW, np.copysign(0.0, x), x)
        result: F32 = kept.astype(np.float32)
    return result
