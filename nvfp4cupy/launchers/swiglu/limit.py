"""The clamp of the SwiGLU as a preprocessor definition."""

from __future__ import annotations

import numpy as np


def limit_define(swiglu_limit: float | None) -> tuple[tuple[str, str], ...]:
    """Return the definition for a clamp L, or for None, that there is no clamp.

    Raises:
        ValueError: the limit is not above zero.
    """
    if swiglu_limit is None:
        return (("NVFP4_NO_SWIGLU_LIMIT", "1"),)
    if not swiglu_limit > 0:
        raise ValueError(f"swiglu_limit must be above zero or None, got {swiglu_limit}")
    if swiglu_limit == 10.0:
        return ()
    # A hexadecimal literal is the float32 itself, not a decimal neighbour of it.
    return (("NVFP4_SWIGLU_LIMIT", f"{float(np.float32(swiglu_limit)).hex()}f"),)
