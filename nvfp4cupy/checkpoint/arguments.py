"""Types of arguments, checked before anything is read or written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from nvfp4cupy.formats import F32, dtype_name


def check_string(name: str, value: Any) -> None:
    """Refuse what is no string.

    Raises:
        TypeError: the message names the argument, as those of all functions here do.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, got {type(value).__name__}")


def check_strings(name: str, value: Any) -> None:
    """Refuse what is no list or tuple of strings; one string is none."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"{name} must be a list or tuple of strings, got {value!r:.80}")


def check_callable(name: str, value: Any) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, got {type(value).__name__}")


def check_mapping(name: str, value: Any) -> None:
    """Refuse what is no mapping of strings to anything."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping, got {type(value).__name__}")
    for key in value:
        check_string(f"every key of {name}", key)


def as_float32(value: Any, what: str) -> F32:
    """Return a number or an array of numbers as float32.

    Raises:
        TypeError: it is neither.
        ValueError: it is an integer beyond every float.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)  # NumPy takes large integers as objects
        except OverflowError:
            raise ValueError(f"{what} must fit float32, got a larger integer") from None
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" and dtype_name(array.dtype) != "bfloat16":
        raise TypeError(f"{what} must be a number, got {type(value).__name__} {value!r:.40}")
    with np.errstate(over="ignore"):
        return np.asarray(array, np.float32)
