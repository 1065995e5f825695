"""Operands of products whose every partial sum is exact in float32.

E2M1 values are multiples of 0.5 up to 6; with scales of 0.5, 1 and 2 an operand is a multiple of
0.25 up to 12, a product one of 1/16 up to 144, that is 2304 sixteenths. A sum of k of them stays
below 2^24 sixteenths, and so exact in any order, up to k = 7281.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy import formats, layouts

__all__ = ["MAX_EXACT_K", "act_operand", "plain_operand", "weight_operand"]

MAX_EXACT_K = 2**24 // 2304
_SCALE_BYTES = np.array([0x30, 0x38, 0x40], np.uint8)  # E4M3 0.5, 1, 2


def weight_operand(n: int, k: int) -> NDArray[np.uint8]:
    """Return block_nvfp4 ``(n, k / 64, 36)`` with all sixteen codes."""
    return layouts.linear_to_block_nvfp4(*_linear(n, k, seed=1))


def act_operand(m: int, k: int) -> NDArray[np.uint8]:
    """Return block_fp4_mmq ``(ceil(k / 256), m, 144)``; zero from k on."""
    codes, scales = _linear(m, layouts.kpad(k), seed=2)
    codes[:, k // 2 :] = 0
    return layouts.linear_to_block_fp4_mmq(codes, scales)


def plain_operand(m: int, k: int) -> NDArray[Any]:
    """Return bfloat16 ``(m, k)``: multiples of 0.25 up to 12."""
    values = np.random.default_rng(3).integers(-48, 49, (m, k)) / 4
    return values.astype(formats.bfloat16())


def _linear(rows: int, k: int, seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    if k > MAX_EXACT_K:
        raise ValueError(f"k must be at most {MAX_EXACT_K} for exact sums, got {k}")
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 256, (rows, k // 2), np.uint8)
    return codes, rng.choice(_SCALE_BYTES, (rows, k // formats.GROUP_SIZE))
