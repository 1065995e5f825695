"""Where arrays lie, how their rows follow, whether they overlap, and what ``out=`` must be."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvfp4cupy.arrays.gpu import cupy, is_capturing, is_gpu
from nvfp4cupy.arrays.intake import intake

__all__ = [
    "check_output",
    "check_overlap",
    "check_same_side",
    "empty",
    "is_row_major",
    "output",
    "row_stride",
    "span",
    "uploaded",
]


def check_same_side(**operands: Any) -> None:
    """Refuse operands of which some lie on a GPU and some do not, or on different GPUs.

    Raises:
        ValueError: they do not lie together; the message names both.
    """
    names = iter(operands.items())
    first, one = next(names)
    on_gpu = is_gpu(one)
    for name, other in names:
        if is_gpu(other) != on_gpu:
            where = ("a CuPy", "a NumPy") if on_gpu else ("a NumPy", "a CuPy")
            raise ValueError(f"{name} must be {where[0]} array like {first}, got {where[1]} array")
        if on_gpu and other.data.device_id != one.data.device_id:
            raise ValueError(
                f"{name} must lie on GPU {one.data.device_id} like {first}, "
                f"got GPU {other.data.device_id}"
            )


def is_row_major(array: Any) -> bool:
    """Return whether the elements of every row lie side by side and rows do not overlap."""
    if array.flags.c_contiguous or array.size == 0:
        return True
    rows, columns = array.shape
    return bool(
        (columns == 1 or array.strides[1] == array.itemsize)
        and (rows == 1 or array.strides[0] >= columns * array.itemsize)
        and array.strides[0] % array.itemsize == 0
    )


def row_stride(array: Any) -> int:
    """Return the elements from one row of a matrix to the next."""
    if array.shape[0] <= 1 or array.size == 0:
        return int(array.shape[1])
    return int(array.strides[0] // array.itemsize)


def span(array: Any) -> tuple[int, int]:
    """Return the addresses of an array's first byte and of the one behind its last."""
    start: int = array.data.ptr if is_gpu(array) else array.ctypes.data
    if array.flags.c_contiguous:
        return start, start + array.nbytes
    if array.size == 0:
        return start, start
    steps = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    low, high = sum(s for s in steps if s < 0), sum(s for s in steps if s > 0)
    return start + low, start + high + int(array.itemsize)


def check_overlap(name: str, target: Any, **operands: Any) -> None:
    """Refuse an output that shares memory with an operand.

    Raises:
        ValueError: it overlaps the named operand.
    """
    start, stop = span(target)
    on_gpu = is_gpu(target)
    for other_name, other in operands.items():
        if other is None or is_gpu(other) != on_gpu:
            continue
        other_start, other_stop = span(other)
        if start < other_stop and other_start < stop:
            raise ValueError(f"{name} must not overlap {other_name}")


def empty(shape: tuple[int, ...], dtype: Any, like: Any) -> Any:
    """Return an uninitialised array on the side of ``like``.

    Raises:
        RuntimeError: the stream is being captured; memory from CuPy's pool could be handed to
            someone else before the graph is replayed.
    """
    if not is_gpu(like):
        return np.empty(shape, dtype)
    if is_capturing():
        raise RuntimeError("out= must be given while the stream is being captured into a graph")
    return cupy().empty(shape, dtype)


def uploaded(name: str, value: float, like: Any) -> Any:
    """Return a number as a float32 array (1,) on the side of ``like``.

    Raises:
        RuntimeError: the stream is being captured.
    """
    if not is_gpu(like):
        return np.full(1, value, np.float32)
    if is_capturing():
        raise RuntimeError(
            f"{name} must be an array on the GPU while the stream is being captured into a graph"
        )
    return cupy().full((1,), value, np.float32)


def output(name: str, given: Any, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any) -> Any:
    """Check a caller's ``out``, or allocate one.

    Args:
        name: what to call it in errors.
        given: the caller's array, or None.
        shape: what it must be.
        dtype: what it must be; for uint8, float8_e4m3fn is accepted and looked at as uint8.
        like: an operand, whose side it must be on.

    Raises:
        TypeError: it is no array of that dtype.
        ValueError: shape, side or contiguity do not fit, or it is read-only.
    """
    checked = check_output(name, given, shape, dtype, like)
    return empty(shape, dtype, like) if checked is None else checked


def check_output(
    name: str, given: Any, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any
) -> Any:
    """Check a caller's ``out`` as ``output`` does; return None where none was given.

    Raises:
        TypeError: it is no array of that dtype.
        ValueError: shape, side or contiguity do not fit, or it is read-only.
    """
    if given is None:
        return None
    array = intake(name, given)
    if array.dtype != dtype:
        if not (dtype == np.uint8 and array.dtype.name == "float8_e4m3fn"):
            raise TypeError(f"{name} must be {dtype.name}, got {array.dtype}")
        array = array.view(np.uint8)
    if array.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous, got strides {array.strides}")
    check_same_side(**{"the operands": like, name: array})
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise ValueError(f"{name} must be writable, got a read-only array")
    return array
