"""The largest magnitude, as the kernels find it."""

from __future__ import annotations

import numpy as np

from nvfp4cupy.formats import F32


def largest_magnitude(x: F32, axis: int) -> F32:
    """Return the largest ``|x|`` along an axis; NaN does not count, nothing gives 0.

    ``np.fmax`` would not do: it ignores quiet NaNs but lets signaling ones through, which are
    among bfloat16's bit patterns.
    """
    magnitude = np.abs(x)
    is_nan = np.isnan(magnitude)
    if is_nan.any():
        magnitude[is_nan] = 0
    result: F32 = magnitude.max(axis=axis, initial=np.float32(0))
    return result
