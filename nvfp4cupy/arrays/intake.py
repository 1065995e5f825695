"""Takes over arrays of other libraries without copying them."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from nvfp4cupy import formats
from nvfp4cupy.arrays.gpu import cupy, current_device, is_gpu

__all__ = ["Array", "intake"]

_DLPACK_CPU = (1, 3, 11)  # kDLCPU, kDLCUDAHost, kDLROCMHost
_DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged


class Array(Protocol):
    """What NumPy's and CuPy's arrays share, as far as this package uses it."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Bytes from one element of an axis to the next."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an element."""

    @property
    def ndim(self) -> int:
        """Number of axes."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""

    @property
    def flags(self) -> Any:
        """Contiguity and, for NumPy, whether it may be written."""

    def view(self, dtype: Any) -> Any:
        """Look at the same memory with another element type."""

    def reshape(self, *shape: Any) -> Any:
        """Return the same elements with another shape."""

    def __getitem__(self, key: Any) -> Any:
        """Return an element or a part."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write an element or a part."""


def intake(name: str, value: Any, *, dtype: str | None = None) -> Any:
    """Return ``value`` as a NumPy or CuPy array that shares its memory.

    NumPy and CuPy arrays come back as they are; anything else is taken through ``__dlpack__``,
    then ``__cuda_array_interface__``.

    Args:
        name: the argument's name, for errors.
        value: the array.
        dtype: ``"bfloat16"`` to read uint16 elements as the raw bits of bfloat16.

    Raises:
        TypeError: it is no array, or of a dtype that cannot be taken over.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must be an array without a mask; fill it first: {name}.filled(0)")
    if isinstance(value, np.ndarray) or is_gpu(value):
        array = value
    elif hasattr(value, "__dlpack__"):
        array = _from_dlpack(name, value)
    elif hasattr(value, "__cuda_array_interface__"):
        array = cupy().asarray(value)
    else:
        raise TypeError(
            f"{name} must be a NumPy or CuPy array, or have __dlpack__ or "
            f"__cuda_array_interface__, got {type(value).__name__}; np.asarray makes one of numbers"
        )
    if dtype is None:
        return array
    if dtype != "bfloat16":
        raise ValueError(f'dtype must be "bfloat16" or None, got {dtype!r}')
    # The array interface has no bfloat16: what is one arrives there as two-byte void.
    if array.dtype == np.uint16 or (array.dtype.kind == "V" and array.dtype.itemsize == 2):
        return array.view(formats.bfloat16())
    if formats.is_bfloat16(array.dtype):
        return array
    raise TypeError(f'{name} must be uint16 when dtype="bfloat16" is given, got {array.dtype}')


def _from_dlpack(name: str, value: Any) -> Any:
    kind, device = (int(number) for number in value.__dlpack_device__())
    if kind not in (*_DLPACK_CPU, *_DLPACK_CUDA):
        raise TypeError(
            f"{name} must lie on the CPU or on a CUDA GPU, got DLPack device type {kind}"
        )
    library = cupy() if kind in _DLPACK_CUDA else np
    try:
        if library is np or device == current_device():
            return library.from_dlpack(value)
        with library.cuda.Device(device):
            return library.from_dlpack(value)
    except (BufferError, KeyError, RuntimeError, TypeError) as error:
        raise TypeError(_dlpack_advice(name, value)) from error


def _dlpack_advice(name: str, value: Any) -> str:
    dtype = getattr(value, "dtype", "unknown")
    return (
        f"{name} of dtype {dtype} cannot be taken through DLPack; pass its raw bytes instead "
        "(torch: .view(torch.uint8) for float8, .view(torch.uint16) for bfloat16 on the CPU, with "
        'dtype="bfloat16")'
    )
