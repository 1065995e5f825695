"""The float32 scale of a whole tensor, and which way it points.

Inside this package it is the decode scale, what codes are multiplied by: ``amax / 2688``. ModelOpt
(``weight_scale_2``) and GGUF (``.scale``) store it so; compressed-tensors stores the reciprocal,
``2688 / amax``.
"""

from __future__ import annotations

import numpy as np

from nvfp4cupy.formats import F32, FLOAT32_MIN_NORMAL, GSA_DIVISOR

ONE: np.float32 = np.float32(1)


def reciprocal(scale: F32) -> F32:
    """Return ``1 / scale`` rounded to float32; infinity for 0, 0 for infinity, NaN for NaN."""
    with np.errstate(all="ignore"):
        return np.asarray(ONE / np.asarray(scale, np.float32))


def stored_reciprocal(decode_scale: F32) -> F32:
    """Return the number whose reciprocal is ``decode_scale``, or comes nearest to it.

    For float32 numbers with a mantissa above the square root of 2, steps of the reciprocal are
    longer than steps of the number, and one in six has no exact partner; its nearest is one unit
    in the last place off. ``decode_scale_from_amax`` never gives such a number.

    Args:
        decode_scale: float32, finite and above zero.

    Returns:
        float32 of the same shape.
    """
    wanted = np.asarray(decode_scale, np.float32)
    nearest = reciprocal(wanted)
    best = nearest
    for direction in (np.float32(0), np.float32(np.inf)):
        neighbour = np.nextafter(nearest, direction)
        exact = (reciprocal(neighbour) == wanted) & (reciprocal(best) != wanted)
        best = np.where(exact, neighbour, best)
    return np.asarray(best, np.float32)


def decode_scale_from_amax(amax: float) -> np.float32:
    """Return the decode scale of a tensor: ``amax / 2688``, and 1 for a tensor of zeros.

    Where no float32 number has this one as its reciprocal, the next above is taken, so that all
    file formats hold the same decode scale. Nothing is below 2^-126.

    Args:
        amax: largest magnitude, finite.

    Returns:
        float32, finite and above zero.
    """
    if amax == 0:
        return ONE
    scale = np.asarray(max(np.float32(amax / GSA_DIVISOR), FLOAT32_MIN_NORMAL))
    # Of two neighbours at least one has a partner: see stored_reciprocal for the steps.
    if reciprocal(stored_reciprocal(scale)) != scale:
        scale = np.nextafter(scale, np.float32(np.inf))
    result: np.float32 = np.float32(float(scale))
    return result


def is_usable(scale: np.float32 | F32) -> bool:
    """Tell whether every number is finite, above zero and not subnormal."""
    values = np.asarray(scale)
    return bool(np.all(np.isfinite(values) & (values >= FLOAT32_MIN_NORMAL)))
