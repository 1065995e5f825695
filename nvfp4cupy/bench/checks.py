"""Compares samples of a kernel's output with the reference, before anything is timed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy import formats

__all__ = [
    "WrongResultError",
    "at_rows",
    "expect_bytes",
    "expect_within",
    "host",
    "poison",
    "spread",
]


class WrongResultError(RuntimeError):
    """A kernel did not give what the reference gives."""


def host(array: Any) -> NDArray[Any]:
    """Return an array of either side as a NumPy array."""
    return np.asarray(array.get() if hasattr(array, "get") else array)


def spread(size: int, count: int = 6) -> NDArray[np.int64]:
    """Return at most ``count`` different indices below ``size``: first, last, evenly between."""
    return np.unique(np.linspace(0, size - 1, count).round().astype(np.int64))


def at_rows(array: Any, rows: NDArray[np.int64], axis: int = 0) -> NDArray[Any]:
    """Return some rows of an array of either side as a NumPy array.

    Args:
        array: any dtype of 1, 2 or 4 bytes.
        rows: which.
        axis: the axis they are counted along.
    """
    bits = array.view(f"u{array.dtype.itemsize}")  # CuPy does not copy every dtype
    before = [slice(None)] * axis
    return np.stack([host(bits[tuple([*before, int(row)])]) for row in rows], axis).view(
        array.dtype
    )


def poison(arrays: Sequence[Any]) -> None:
    """Fill outputs with bytes that no right result consists of."""
    for array in arrays:
        array.view(np.uint8)[...] = 0xFF


def expect_bytes(name: str, got: NDArray[Any], right: NDArray[Any]) -> None:
    """Compare bit for bit.

    Args:
        name: of the output.
        got: what the kernel wrote.
        right: what the reference gives, of the same shape and item size.

    Raises:
        WrongResultError: they differ; the message has the first place.
    """
    a, b = (np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}") for x in (got, right))
    if a.shape != b.shape:
        raise WrongResultError(f"{name} has shape {a.shape}, the reference {b.shape}")
    wrong = a != b
    if wrong.any():
        place = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
        raise WrongResultError(
            f"{name}: {int(wrong.sum())} of {wrong.size} sampled items differ from the reference, "
            f"first at {place}: {a[place]:#x}, not {b[place]:#x}"
        )


def expect_within(
    name: str, got: NDArray[Any], right: NDArray[np.float64], bound: NDArray[np.float64]
) -> None:
    """Compare within a bound on the error of each item.

    Raises:
        WrongResultError: an item is further off, or not a number.
    """
    error = np.abs(formats.to_float32(got).astype(np.float64) - right)
    wrong = ~(error <= bound)
    if wrong.any():
        place = tuple(int(i) for i in np.unravel_index(int(wrong.argmax()), wrong.shape))
        raise WrongResultError(
            f"{name}: {int(wrong.sum())} of {wrong.size} sampled items are further from the exact "
            f"product than {bound[place]:.3g}, first at {place}: {got[place]}, not {right[place]}"
        )
