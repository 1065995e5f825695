"""The golden files as cases, and a comparison of bytes that says what differs.

``seed_kernels.npz`` holds the output of the kernels this project's contracts come from, run on an
H200; ``gemm_exact.npz`` holds products whose every partial sum is exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.formats import bfloat16, e2m1_decode, e4m3_decode

DATA = Path(__file__).parent / "data"


@dataclass(frozen=True)
class SeedCase:
    """Inputs by name (bf16 where bits were stored) and outputs in order."""

    name: str
    inputs: dict[str, NDArray[Any]]
    outputs: tuple[NDArray[Any], ...]

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class GemmCase:
    """Operands in both layouts and the exact bf16 product."""

    name: str
    m: int
    n: int
    k: int
    w_packed: NDArray[np.uint8]
    w_scales: NDArray[np.uint8]
    w_blocks: NDArray[np.uint8]
    a_blocks: NDArray[np.uint8]
    out: NDArray[Any]

    def __str__(self) -> str:
        return self.name


@cache
def _load(file: str) -> dict[str, dict[str, NDArray[Any]]]:
    cases: dict[str, dict[str, NDArray[Any]]] = {}
    with np.load(DATA / file) as archive:
        for key in archive.files:
            case, name = key.rsplit("/", 1)
            cases.setdefault(case, {})[name] = archive[key]
    return cases


def seed_cases(*prefixes: str) -> list[SeedCase]:
    """Return the cases whose names start with one of the prefixes; flushed outputs come first."""
    cases = [_seed_case(name) for name in _load("seed_kernels.npz") if name.startswith(prefixes)]
    assert cases, f"no golden case starts with {prefixes}"
    return cases


def _seed_case(name: str) -> SeedCase:
    arrays = _load("seed_kernels.npz")[name]
    inputs = {
        key: array.view(bfloat16()) if array.dtype == np.uint16 else array
        for key, array in arrays.items()
        if not key.startswith(("ieee", "ftz"))
    }
    if name.endswith("_all_bf16"):
        inputs["x"] = _all_bf16(6.0 if "with6" in name else 2688.0 if "with448" in name else 0.0)
    if name.startswith("scale_bf16"):
        inputs["x"] = np.arange(65536, dtype=np.uint16).view(bfloat16())
    if name.startswith("s1_"):
        inputs.setdefault("gsa", np.ones(64, np.float32))
    outputs = tuple(arrays.get(f"ftz{i}", arrays.get(f"ieee{i}")) for i in (0, 1))
    return SeedCase(name, inputs, tuple(output for output in outputs if output is not None))


def _all_bf16(second: float) -> NDArray[Any]:
    """Groups of 16: every bf16 pattern in turn, then ``second``, then zeros; (64, 16384)."""
    groups = np.zeros((65536, 16), bfloat16())
    groups[:, 0] = np.arange(65536, dtype=np.uint16).view(bfloat16())
    groups[:, 1] = second
    return groups.reshape(64, 16384)


def gemm_cases() -> list[GemmCase]:
    """Return the exact GEMM cases."""
    return list(_gemm_cases())


def _gemm_cases() -> Iterator[GemmCase]:
    for name, arrays in _load("gemm_exact.npz").items():
        m, n, k = (int(part[1:]) for part in name.split("_"))
        out = arrays["out_bf16"].view(bfloat16())
        operands = {key: array for key, array in arrays.items() if key != "out_bf16"}
        yield GemmCase(name, m, n, k, out=out, **operands)


def assert_bytes_equal(actual: Any, expected: Any, kind: str = "") -> None:
    """Fail with the first differing place, both items and what they mean.

    Args:
        actual: array (a CuPy array too) that was computed.
        expected: array of the same shape and item size.
        kind: what uint8 bytes are: ``"codes"``, ``"scales"``, ``"block_nvfp4"``,
            ``"block_fp4_mmq"``, or ``""`` for plain bytes. Other dtypes speak for themselves.
    """
    actual, expected = (a.get() if hasattr(a, "get") else np.asarray(a) for a in (actual, expected))
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    assert actual.dtype.itemsize == expected.dtype.itemsize, f"{actual.dtype}, {expected.dtype}"
    bits = f"u{actual.dtype.itemsize}"
    got, want = (np.ascontiguousarray(a).view(bits) for a in (actual, expected))
    wrong = got != want
    if not wrong.any():
        return
    place = tuple(int(i) for i in np.unravel_index(wrong.argmax(), wrong.shape))
    digits = 2 * actual.dtype.itemsize
    raise AssertionError(
        f"{wrong.sum()} of {wrong.size} items differ, first at {place}: "
        f"got 0x{got[place]:0{digits}x} ({_meaning(actual, place, kind)}), "
        f"expected 0x{want[place]:0{digits}x} ({_meaning(expected, place, kind)})"
    )


def _meaning(array: NDArray[Any], place: tuple[int, ...], kind: str) -> str:
    item = array[place]
    if array.dtype != np.uint8 or not kind:
        return str(item)
    num_scales = {"block_nvfp4": 4, "block_fp4_mmq": 16}.get(kind)
    if kind == "scales" or (num_scales and place[-1] < num_scales):
        return f"scale {e4m3_decode(item)}"
    low, high = e2m1_decode(item & 15), e2m1_decode(item >> 4)
    if num_scales is None:
        elements = (2 * place[-1], 2 * place[-1] + 1)
    else:
        group, j = divmod(place[-1] - num_scales, 8)
        elements = (16 * group + j, 16 * group + 8 + j)
    return f"element {elements[0]} = {low}, element {elements[1]} = {high}"
