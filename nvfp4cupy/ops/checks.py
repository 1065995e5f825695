"""The checks that several public functions share: operands, options, scalars, finiteness."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nvfp4cupy import arrays, formats, layouts
from nvfp4cupy.formats import FLOAT32_MIN_NORMAL, GROUP_SIZE

__all__ = [
    "bfloat16_array",
    "bytes_array",
    "check_flags",
    "check_options",
    "codes_and_scales",
    "finite_rows",
    "float_matrix",
    "out_tuple",
    "output_dtype",
    "positive_float32",
    "scalar_float32",
    "scale_pair_shapes",
    "vector",
    "weight_blocks",
]

FLOAT_NAMES = ("bfloat16", "float16", "float32")


def output_dtype(dtype: Any, name: str = "dtype") -> np.dtype[Any]:
    """Return the dtype that a name, type or dtype stands for: bfloat16, float16 or float32.

    Raises:
        TypeError: it is another one.
    """
    text = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    text = text or getattr(dtype, "__name__", None)
    if text == "bfloat16":
        return formats.bfloat16()
    if text in FLOAT_NAMES:
        return np.dtype(text)
    raise TypeError(f"{name} must be bfloat16, float16 or float32, got {dtype!r}")


def float_matrix(
    name: str,
    value: Any,
    *,
    dtypes: tuple[str, ...] = FLOAT_NAMES,
    dtype: str | None = None,
    strided_rows: bool = False,
) -> Any:
    """Take over a matrix of floats.

    Args:
        name: the argument's name.
        value: the array.
        dtypes: names of the accepted dtypes.
        dtype: ``"bfloat16"`` to read uint16 as bfloat16 bits.
        strided_rows: accept rows that do not follow one another directly.

    Raises:
        TypeError: it is no array of these dtypes.
        ValueError: it is no matrix, or its strides do not fit.
    """
    array = arrays.intake(name, value, dtype=dtype)
    if formats.dtype_name(array.dtype) not in dtypes or not array.dtype.isnative:
        raise TypeError(
            f"{name} must be {' or '.join(dtypes)}, got {array.dtype}{_dtype_hint(array, dtypes)}"
        )
    if array.ndim != 2:
        raise ValueError(
            f"{name} must be a matrix, got shape {array.shape}; reshape(-1, k) makes one of rows"
        )
    fits = arrays.is_row_major(array) if strided_rows else array.flags.c_contiguous
    if not fits:
        what = "rows of contiguous elements that do not overlap" if strided_rows else "C-contiguous"
        raise ValueError(
            f"{name} must be {what}, got shape {array.shape} with strides {array.strides}; "
            "ascontiguousarray makes a copy that is"
        )
    return array


def _dtype_hint(array: Any, dtypes: tuple[str, ...]) -> str:
    if array.dtype == np.uint16:
        return ' (pass dtype="bfloat16" for raw bits)'
    if array.dtype.kind != "f" or not array.dtype.isnative:
        return ""
    better = "np.float32" if "float32" in dtypes else "ml_dtypes.bfloat16"
    return f"; astype({better}) converts it"


def vector(name: str, value: Any, length: int, **like: Any) -> Any:
    """Take over a contiguous float32 vector that lies where the operand ``like`` lies.

    Raises:
        TypeError: it is no array of that dtype.
        ValueError: its length, strides or side do not fit.
    """
    array = arrays.intake(name, value)
    if array.dtype != np.float32:
        raise TypeError(f"{name} must be float32, got {array.dtype}")
    if array.shape != (length,):
        raise ValueError(f"{name} must have shape ({length},), got {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous, got strides {array.strides}")
    arrays.check_same_side(**like, **{name: array})
    return array


def bytes_array(name: str, value: Any, ndim: int) -> Any:
    """Take over contiguous uint8 data; float8_e4m3fn is looked at as uint8.

    Raises:
        TypeError: it is no array of bytes.
        ValueError: rank or strides do not fit.
    """
    array = arrays.intake(name, value)
    if formats.dtype_name(array.dtype) == "float8_e4m3fn":
        array = array.view(np.uint8)
    if array.dtype != np.uint8:
        raise TypeError(f"{name} must be uint8, got {array.dtype}")
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} axes, got shape {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{name} must be C-contiguous, got shape {array.shape} with strides {array.strides}"
        )
    return array


def bfloat16_array(name: str, value: Any, *, dtype: str | None = None) -> Any:
    """Take over contiguous bfloat16 values of any shape.

    Raises:
        TypeError: it is no array of bfloat16.
        ValueError: it is not C-contiguous.
    """
    array = arrays.intake(name, value, dtype=dtype)
    if not formats.is_bfloat16(array.dtype):
        hint = ' (pass dtype="bfloat16" for raw bits)' if array.dtype == np.uint16 else ""
        raise TypeError(f"{name} must be bfloat16, got {array.dtype}{hint}")
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{name} must be C-contiguous, got shape {array.shape} with strides {array.strides}"
        )
    return array


def weight_blocks(blocks: Any) -> tuple[Any, int, int]:
    """Take over block_nvfp4 rows; return them with n and k.

    Raises:
        TypeError: the dtype is not uint8.
        ValueError: the shape is not (n, k / 64, 36), or it is not contiguous.
    """
    array = bytes_array("blocks", blocks, 3)
    if array.shape[2] != layouts.NVFP4_BLOCK_BYTES:
        raise ValueError(
            f"blocks must have shape (n, k / 64, {layouts.NVFP4_BLOCK_BYTES}), got {array.shape}"
        )
    return array, array.shape[0], array.shape[1] * layouts.QK_NVFP4


def out_tuple(out: Any, length: int) -> tuple[Any, ...]:
    """Return the parts of ``out``, all None when it is not given.

    Raises:
        TypeError: it is no tuple or list of that length.
    """
    if out is None:
        return (None,) * length
    if not isinstance(out, (tuple, list)) or len(out) != length:
        raise TypeError(f"out must be a tuple of {length} arrays, got {type(out).__name__}")
    return tuple(out)


def scale_pair_shapes(
    rows: int, columns: int, scale_layout: layouts.ScaleLayout
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the shapes of the codes and the scales of a (rows, columns) matrix."""
    return (rows, columns // 2), layouts.scales_shape(rows, columns // GROUP_SIZE, scale_layout)


def codes_and_scales(
    codes: Any,
    scales: Any,
    *,
    scale_layout: layouts.ScaleLayout = "linear",
    multiple: int = GROUP_SIZE,
    codes_name: str = "codes",
) -> tuple[Any, Any]:
    """Take over packed codes (rows, columns / 2) and the scales that belong to them.

    Raises:
        TypeError: a dtype is not uint8 (or float8_e4m3fn).
        ValueError: a shape, layout or side does not fit.
    """
    codes, scales = bytes_array(codes_name, codes, 2), bytes_array("scales", scales, 2)
    rows, columns = codes.shape[0], codes.shape[1] * 2
    if columns % multiple:
        raise ValueError(
            f"{codes_name} must hold a multiple of {multiple} columns, got {columns} "
            f"(shape {codes.shape})"
        )
    _, expected = scale_pair_shapes(rows, columns, scale_layout)
    if scales.shape != expected:
        raise ValueError(
            f"scales must have shape {expected} for {codes_name} of shape {codes.shape} "
            f"and scale_layout={scale_layout!r}, got {scales.shape}"
        )
    arrays.check_same_side(**{codes_name: codes, "scales": scales})
    return codes, scales


def check_options(
    rounding: str = "half_step", scale_search: int = 0, scale_layout: str = "linear"
) -> None:
    """Refuse an unknown value of an option that the quantizers share.

    Raises:
        TypeError: scale_search is no integer.
        ValueError: the value; the message lists the known ones.
    """
    if rounding not in formats.ROUNDINGS:
        raise ValueError(f"rounding must be one of {formats.ROUNDINGS}, got {rounding!r}")
    if not isinstance(scale_search, (int, np.integer)) or isinstance(scale_search, bool):
        raise TypeError(f"scale_search must be 0 or 2, got {type(scale_search).__name__}")
    if scale_search not in (0, 2):
        raise ValueError(f"scale_search must be 0 or 2, got {scale_search!r}")
    if scale_layout not in layouts.SCALE_LAYOUTS:
        raise ValueError(
            f"scale_layout must be one of {layouts.SCALE_LAYOUTS}, got {scale_layout!r}"
        )


def scalar_float32(name: str, value: Any) -> float:
    """Return a number as the float32 that the kernels will see.

    Raises:
        TypeError: it is no real number.
        ValueError: it is an integer beyond every float.
    """
    if arrays.is_gpu(value):
        raise TypeError(
            f"{name} must be a number, got an array on the GPU; float({name}) reads it, and waits "
            "for the GPU to do so"
        )
    if isinstance(value, (bool, np.bool_, str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, np.dtype) and not (
        dtype.kind in "fiu" or formats.dtype_name(dtype) == "bfloat16"
    ):
        raise TypeError(f"{name} must be a number, got an array of {dtype}")
    if getattr(value, "ndim", 0) != 0:
        raise TypeError(f"{name} must be a number, got an array of shape {value.shape}")
    try:
        number = float(value)
    except OverflowError as error:
        raise ValueError(f"{name} must fit a float, got a larger integer") from error
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def check_flags(**flags: Any) -> None:
    """Refuse what is neither True nor False.

    Raises:
        TypeError: the message names the argument.
    """
    for name, value in flags.items():
        if value is not True and value is not False and not isinstance(value, np.bool_):
            raise TypeError(f"{name} must be True or False, got {type(value).__name__}")


def positive_float32(name: str, value: Any) -> float:
    """Return a decode scale as float32.

    Raises:
        TypeError: it is no real number.
        ValueError: it is not finite, or below 2^-126, where the kernels see zero.
    """
    number = scalar_float32(name, value)
    if not (math.isfinite(number) and number >= FLOAT32_MIN_NORMAL):
        raise ValueError(f"{name} must be finite and at least 2^-126, got {value}")
    return number


def finite_rows(name: str, x: Any) -> None:
    """Refuse a matrix that holds a NaN or an infinity. On a GPU this waits for the device.

    Raises:
        ValueError: the message names the first bad row.
        RuntimeError: the stream is being captured into a graph.
    """
    if arrays.is_gpu(x):
        row = _first_bad_row_gpu(x)
    else:
        bad = ~np.isfinite(formats.to_float32(x)).all(axis=1)
        row = int(bad.argmax()) if bad.any() else -1
    if row >= 0:
        raise ValueError(f"{name} must be finite, got a NaN or an infinity in row {row}")


def _first_bad_row_gpu(x: Any) -> int:
    from nvfp4cupy.launchers.quantize import FindNonfinite

    if arrays.is_capturing():
        raise RuntimeError(
            "check_finite=True waits for the GPU, which a CUDA graph capture cannot do; "
            "check before the capture"
        )
    first = arrays.cupy().full((1,), np.iinfo(np.int64).max, np.int64)
    FindNonfinite()(x, first, row_stride=arrays.row_stride(x))
    row = int(first.get()[0])
    return row if row < x.shape[0] else -1
