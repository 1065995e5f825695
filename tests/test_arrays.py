"""Arrays are taken over without a copy, or refused with the argument's name and the cure."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from nvfp4cupy import arrays


class DLPack:
    """A foreign CPU array."""

    def __init__(self, array: np.ndarray, device: int = 1) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


def test_numpy_arrays_come_back_as_they_are() -> None:
    x = np.zeros((2, 3), np.float32)
    assert arrays.intake("x", x) is x


def test_dlpack_shares_memory() -> None:
    x = np.zeros((2, 3), np.float32)
    assert np.shares_memory(arrays.intake("x", DLPack(x)), x)


def test_raw_bits_are_bfloat16_only_when_the_dtype_says_so() -> None:
    bits = np.array([[0x3F80]], np.uint16)
    assert arrays.intake("x", bits, dtype="bfloat16")[0, 0] == 1
    assert arrays.intake("x", bits).dtype == np.uint16
    with pytest.raises(TypeError, match="x must be uint16 when"):
        arrays.intake("x", np.zeros(2, np.float32), dtype="bfloat16")
    with pytest.raises(ValueError, match="dtype must be"):
        arrays.intake("x", bits, dtype="float16")


@pytest.mark.parametrize("value", [[1.0, 2.0], 3.0, None, "text"])
def test_refuses_what_is_no_array(value: object) -> None:
    with pytest.raises(TypeError, match="x must be a NumPy or CuPy array"):
        arrays.intake("x", value)


def test_refuses_another_devices_dlpack() -> None:
    with pytest.raises(TypeError, match="got DLPack device type 10"):
        arrays.intake("x", DLPack(np.zeros(1), device=10))


def test_row_major_accepts_strided_rows_only() -> None:
    x = np.zeros((4, 64), np.float16)
    assert arrays.is_row_major(x[:, 16:])
    assert arrays.row_stride(x[:, 16:]) == 64
    assert not arrays.is_row_major(x.T)
    assert not arrays.is_row_major(x[:, ::2])
    assert not arrays.is_row_major(np.broadcast_to(x[:1], (4, 64)))
    assert not arrays.is_row_major(x[::-1])


def test_overlap_is_found_from_either_side() -> None:
    x = np.zeros(100, np.uint8)
    arrays.check_overlap("out", x[:50], x=x[50:])
    for part in (x[49:60], x[:1], x):
        with pytest.raises(ValueError, match="out must not overlap x"):
            arrays.check_overlap("out", x[:50], x=part)


def test_span_of_a_reversed_view_covers_it() -> None:
    x = np.zeros(10, np.uint8)
    start, stop = arrays.span(x[::-1])
    assert (start, stop) == (x.ctypes.data, x.ctypes.data + 10)


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (np.zeros((2, 3), np.int8), TypeError, "out must be uint8, got int8"),
        (np.zeros((3, 2), np.uint8), ValueError, r"out must have shape \(2, 3\)"),
        (np.zeros((2, 6), np.uint8)[:, ::2], ValueError, "out must be C-contiguous"),
        ([1], TypeError, "out must be a NumPy or CuPy array"),
    ],
)
def test_out_is_checked(out: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        arrays.output("out", out, (2, 3), np.dtype(np.uint8), np.zeros(1))


def test_out_may_be_float8_but_not_read_only() -> None:
    out = np.zeros((2, 3), ml_dtypes.float8_e4m3fn)
    assert arrays.output("out", out, (2, 3), np.dtype(np.uint8), out).dtype == np.uint8
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        arrays.output("out", out, (2, 3), np.dtype(np.uint8), out)


def test_numpy_arrays_have_no_stream() -> None:
    with pytest.raises(ValueError, match="stream must be None for NumPy arrays"):
        arrays.context(np.zeros(1), stream=object())
