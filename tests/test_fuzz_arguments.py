"""Any argument at all: a right result, or a TypeError, ValueError or RuntimeError and no write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from calls import CALLS, GATE, SCALES, as_tuple, poisoned
from golden import assert_bytes_equal
from hypothesis import given
from hypothesis import strategies as st
from strategies import BF16, fuzz, misaligned

import nvfp4cupy as nv

FUNCTIONS = {
    **CALLS,
    "nvfp4_scale_bf16": (nv.nvfp4_scale_bf16, (GATE, 2.0), {}),
    "swizzle_scales": (nv.swizzle_scales, (SCALES,), {}),
    "unswizzle_scales": (nv.unswizzle_scales, (nv.swizzle_scales(SCALES), *SCALES.shape), {}),
}
REFUSALS = (TypeError, ValueError, RuntimeError)
OPTIONS = (
    *(
        "rounding",
        "scale_search",
        "scale_layout",
        "dtype",
        "check_finite",
        "stream",
        "nibble_order",
    ),
    *("kernel", "mmq_x", "allow_restream", "out_scale", "row_scale", "swiglu_limit"),
    *("round_intermediate", "deterministic_kblocks", "no_such_option"),
)
DTYPES = (
    *(BF16, np.float16, np.float32, np.float64, np.uint8, np.int8, np.uint16, np.int64, np.bool_),
    *(np.complex64, np.dtype("V2"), np.dtype("S3"), np.dtype("O"), np.dtype(">f4")),
)
SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 16, 48, 2**31, 2**63, 2**64, -(2**70), 10**400),
    *(
        0.0,
        -0.0,
        0.5,
        1e-40,
        1e39,
        float("nan"),
        float("inf"),
        1j,
        "",
        "linear",
        "128x4",
        "bfloat16",
    ),
    *(
        "half_step",
        "mirror",
        b"float16",
        (),
        [],
        {},
        [1.0, 2.0],
        (1, 2, 3),
        object(),
        np.float32(2),
    ),
    *(np.int64(2), np.array(2.0), np.array(None), np.array("x"), np.float16, "float32", range(3)),
    *(np.dtype("float16"), memoryview(b"abcdefgh"), lambda: 1, {"a": 1}, Ellipsis, slice(3)),
)


@st.composite
def reshaped(draw: st.DrawFn, array: np.ndarray) -> np.ndarray:
    """Draw a relative of an array: cut, turned, spread, of another type, rank or address."""
    kind = draw(st.integers(0, 8))
    if kind == 0:
        return array[tuple(slice(draw(st.integers(0, 2)), None) for _ in array.shape)]
    if kind == 1:
        return array[..., :: draw(st.sampled_from([-1, 2, 3]))]
    if kind == 2:
        return array[:: draw(st.sampled_from([-1, 2, 3]))]
    if kind == 3:
        return array.T if draw(st.booleans()) else np.asfortranarray(array)
    if kind == 4:
        return np.broadcast_to(array[:1], (draw(st.integers(0, 5)), *array.shape[1:]))
    if kind == 5:
        return draw(st.sampled_from([array[None], array.ravel(), array[..., None], array[:0]]))
    if kind == 6:
        return misaligned(array)
    shape = tuple(draw(st.integers(0, 3)) * draw(st.sampled_from([1, 16, 36])) for _ in array.shape)
    other = np.zeros(shape, draw(st.sampled_from(DTYPES)))
    return other if kind == 7 else np.ma.masked_array(other)


@st.composite
def anything(draw: st.DrawFn, usual: Any) -> Any:
    """Draw an argument in place of a usual one."""
    if isinstance(usual, np.ndarray) and usual.ndim and draw(st.integers(0, 3)):
        return draw(reshaped(usual))
    return draw(st.sampled_from(SCALARS))


def frozen_bytes(values: Any) -> list[bytes]:
    return [value.tobytes() for value in values if isinstance(value, np.ndarray)]


@pytest.mark.parametrize("name", FUNCTIONS)
@fuzz(40, 1500)
@given(data=st.data())
def test_any_arguments(name: str, data: st.DataObject) -> None:
    function, usual, options = FUNCTIONS[name]
    usual = tuple(value.copy() if isinstance(value, np.ndarray) else value for value in usual)
    before = frozen_bytes(usual)
    outs = poisoned(function(*usual, **options)) if name in CALLS else ()
    args, keywords = list(usual), dict(options)
    if outs:
        keywords["out"] = outs if len(outs) > 1 else outs[0]
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from([*range(len(args)), "out", *OPTIONS]))
        if isinstance(place, int):
            args[place] = data.draw(anything(args[place]))
        else:
            keywords[place] = data.draw(anything(keywords.get(place)))
    untouched = frozen_bytes(outs)
    try:
        function(*args, **keywords)
    except REFUSALS:
        assert frozen_bytes(outs) == untouched
        assert frozen_bytes(usual) == before
        return
    if name != "nvfp4_scale_bf16":
        assert frozen_bytes(usual) == before


@pytest.mark.parametrize("name", CALLS)
@fuzz(15, 300)
@given(data=st.data())
def test_arrays_at_any_address_give_the_same_bytes(name: str, data: st.DataObject) -> None:
    function, usual, options = CALLS[name]
    expected = as_tuple(function(*usual, **options))
    shift = [data.draw(st.booleans()) for _ in (*usual, *expected)]
    args = [
        misaligned(value) if isinstance(value, np.ndarray) and moved else value
        for value, moved in zip(usual, shift, strict=False)
    ]
    targets = poisoned(expected)
    outs = tuple(
        misaligned(out) if moved else out
        for out, moved in zip(targets, shift[len(usual) :], strict=True)
    )
    function(*args, **options, out=outs if len(outs) > 1 else outs[0])
    for out, right in zip(outs, expected, strict=True):
        assert_bytes_equal(out, right)
