"""Hypothesis strategies: small arrays full of awkward values, and how many examples a test takes.

``NVFP4CUPY_FUZZ=long`` takes many new examples; without it, few and always the same ones.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
from golden import assert_bytes_equal
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from nvfp4cupy.formats import FLOAT32_MIN_NORMAL, ROUNDINGS, bfloat16

__all__ = [
    "BF16",
    "DTYPES",
    "assert_same",
    "byte_arrays",
    "decode_scales",
    "factors",
    "fuzz",
    "limits",
    "matrices",
    "misaligned",
    "quantizer_options",
    "values",
]

BF16 = bfloat16()
DTYPES = (BF16, np.dtype(np.float16), np.dtype(np.float32))
IS_LONG = {"short": False, "long": True}[os.environ.get("NVFP4CUPY_FUZZ", "short")]


def fuzz(short: int, long: int) -> settings:
    """Return the settings of a test: how many examples it takes in a short and in a long run."""
    return settings(
        max_examples=long if IS_LONG else short,
        derandomize=not IS_LONG,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
        ],
    )


# Where a rule decides: between E2M1 codes, E4M3 scales, at the zero rule, where they saturate.
_DECISIONS = (0.25, 0.75, 1.25, 1.75, 2.5, 2.75, 3.5, 3.75, 5, 5.25, 6, 6.5, 7.5, 9)
_FACTORS = (1.0, 2.0**-9, 2.0**-6, 448.0, 2.0**-11, 2.0**25)
_EXTREMES = (
    0.0,
    2.0**-149,
    2.0**-133,
    2.0**-127,
    2.0**-126,
    2.0**-24,
    2.0**-14,
    1e-30,
    2688,
    65504,
)


@cache
def _table(dtype: np.dtype[Any]) -> np.ndarray:
    """Return 256 values: all kinds that a byte can choose from."""
    with np.errstate(all="ignore"):
        decisions = np.outer(_FACTORS, _DECISIONS).ravel().astype(dtype)
        extremes = np.array([*_EXTREMES, 1e4, 1e30, 3.3e38, np.inf, np.nan]).astype(dtype)
        below = _neighbours(np.concatenate([decisions, extremes[1:-2]]))
    positive = np.concatenate([extremes, decisions, below])[:128]
    signed = np.concatenate([positive, -positive])
    return np.resize(signed, 256)


def _neighbours(x: np.ndarray) -> np.ndarray:
    """Return the next numbers towards zero: their bits less one."""
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    return (x.view(unsigned) - unsigned.type(1)).view(x.dtype)


@st.composite
def values(draw: st.DrawFn, shape: tuple[int, ...], dtype: np.dtype[Any] = BF16) -> np.ndarray:
    """Draw floats: any bits, awkward values, small multiples of a step, or random numbers."""
    count = int(np.prod(shape))
    kind = draw(st.sampled_from(["multiples", "awkward", "bits", "random"]))
    if kind == "random":
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        flat = rng.standard_normal(count) * 10.0 ** draw(st.integers(-8, 8))
    elif kind == "bits":
        size = count * dtype.itemsize
        flat = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype)
    else:
        chosen = np.frombuffer(draw(st.binary(min_size=count, max_size=count)), np.int8)
        if kind == "awkward":
            flat = _table(dtype)[chosen.view(np.uint8)]
        else:  # quarters of a power of two meet the ties of every rule
            flat = chosen * 2.0 ** draw(st.integers(-14, 8))
    with np.errstate(all="ignore"):
        return flat.reshape(shape).astype(dtype)  # a copy, whatever it was


@st.composite
def matrices(
    draw: st.DrawFn,
    *,
    rows: int = 4,
    columns: int = 5,
    multiple: int = 16,
    dtypes: tuple[np.dtype[Any], ...] = DTYPES,
) -> np.ndarray:
    """Draw a matrix of up to ``rows`` rows and ``columns * multiple`` columns."""
    shape = draw(st.integers(0, rows)), draw(st.integers(0, columns)) * multiple
    return draw(values(shape, draw(st.sampled_from(dtypes))))


@cache
def _scale_table() -> np.ndarray:
    """Return 256 decode scales: powers of two and what lies between, and all that is unusual."""
    awkward = [0.0, -0.0, -1.0, np.nan, np.inf, 1e-40, 2.0**-126, 3e38, 1 / 3]
    exponents = np.resize(np.arange(-64, 65), 256 - len(awkward))
    mantissas = np.random.default_rng(0).integers(0, 2**23, exponents.size)
    mantissas[::4], mantissas[1::8] = 0, 2**23 - 1
    usual = (1 + mantissas * 2.0**-23) * 2.0**exponents
    return np.concatenate([usual, awkward]).astype(np.float32)


def decode_scales(count: int, *, usable: bool = False) -> st.SearchStrategy[np.ndarray]:
    """Draw float32 scales of which most are usable, and none is forbidden."""
    table = _scale_table()
    if usable:
        table = np.resize(table[np.isfinite(table) & (table >= FLOAT32_MIN_NORMAL)], 256)
    chosen = st.binary(min_size=count, max_size=count)
    return chosen.map(lambda drawn: table[np.frombuffer(drawn, np.uint8)])


def factors() -> st.SearchStrategy[float]:
    """Draw a usable decode scale: finite and at least 2^-126."""
    return st.floats(float(FLOAT32_MIN_NORMAL), 2.0**127, width=32)


def limits() -> st.SearchStrategy[float | None]:
    """Draw a limit of the SwiGLU."""
    return st.one_of(st.sampled_from([10.0, None, 7.0]), st.floats(2.0**-100, 2.0**100, width=32))


_OPTIONS: list[dict[str, Any]] = [
    {"rounding": rounding, "scale_search": search, "scale_layout": layout}
    for rounding in ROUNDINGS
    for search in (0, 2)
    for layout in ("linear", "128x4")
]


def quantizer_options() -> st.SearchStrategy[dict[str, Any]]:
    """Draw the options that all quantizers to linear codes share."""
    return st.sampled_from(_OPTIONS).map(dict)


@st.composite
def byte_arrays(draw: st.DrawFn, shape: tuple[int, ...]) -> np.ndarray:
    """Draw uint8: any codes and any scales, 0x7F and those with the top bit among them."""
    count = int(np.prod(shape))
    if draw(st.booleans()):
        seed = draw(st.integers(0, 2**32 - 1))
        return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    drawn = draw(st.binary(min_size=min(count, 64), max_size=min(count, 64)))
    return np.resize(np.frombuffer(drawn, np.uint8), shape) if count else np.empty(shape, np.uint8)


def misaligned(x: np.ndarray) -> np.ndarray:
    """Return a copy that lies one byte beside the addresses of its items."""
    memory = np.zeros(x.nbytes + 1, np.uint8)
    copy = memory[1:].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def assert_same(got: Any, expected: Any) -> None:
    """Compare the bytes of an array, or of each array of a sequence."""
    if isinstance(got, np.ndarray):
        got, expected = [got], [expected]
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == other.dtype
        assert_bytes_equal(one, other)
