"""The quantizers' kernels on a GPU: golden bytes, the reference's bytes, nothing beside them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden import SeedCase, assert_bytes_equal, seed_cases

from nvfp4cupy import reference
from nvfp4cupy.formats import ROUNDINGS, bfloat16, e4m3_decode, to_float32
from nvfp4cupy.launchers.quantize import (
    AmaxGsa,
    AmaxQuantize,
    DeinterleaveQuantizeFromBuffer,
    Dequantize,
    FindNonfinite,
    Quantize,
    QuantizeFromBuffer,
)
from nvfp4cupy.layouts import scales_shape

pytestmark = pytest.mark.gpu

BF16 = bfloat16()
DTYPES = (BF16, np.dtype(np.float16), np.dtype(np.float32))
GUARD = 64  # bytes on either side of an output
# Each option with each type that has code of its own for it.
VARIANTS: list[tuple[np.dtype, dict[str, Any]]] = [
    *((dtype, {"rounding": rounding}) for dtype in DTYPES for rounding in ROUNDINGS),
    *((dtype, {"scale_layout": "128x4"}) for dtype in DTYPES),
    (BF16, {"rounding": "nearest_low", "scale_search": 2}),
    (BF16, {"rounding": "half_step", "scale_search": 2, "scale_layout": "128x4"}),
    (DTYPES[2], {"rounding": "nearest_even", "scale_search": 2}),
]
# Around a thread's, a warp's and a block's work; rows that end inside a block; odd group counts.
SHAPES = [(1, 16), (3, 48), (130, 80), (5, 1056), (37, 5488), (2, 16384), (3, 16400), (2, 65536)]


class Guarded:
    """GPU arrays filled with 0xFF between guard bytes, ``offset`` bytes off their alignment."""

    def __init__(self, offset: int = 0) -> None:
        self._offset = offset
        self._memory: list[Any] = []

    def array(self, shape: tuple[int, ...], dtype: Any = np.uint8) -> Any:
        import cupy

        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        memory = cupy.full(2 * GUARD + size + self._offset, 0xFF, np.uint8)
        self._memory.append((memory, size))
        return cupy.ndarray(shape, dtype, memory[GUARD + self._offset :].data)

    def copy(self, x: np.ndarray) -> Any:
        result = self.array(x.shape, x.dtype)
        result.set(x)
        return result

    def check(self) -> None:
        for memory, size in self._memory:
            start = GUARD + self._offset
            assert (memory[:start] == 0xFF).all()
            assert (memory[start + size :] == 0xFF).all()


def awkward(shape: tuple[int, int], dtype: np.dtype, seed: int) -> np.ndarray:
    """Return rows of normal numbers of all scales, with zeros, tiny, huge and non-finite ones."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-20, 20, (shape[0], 1))
    quarters = rng.integers(-24, 25, shape) * 0.25
    x = np.where(rng.random((shape[0], 1)) < 0.2, quarters, x)
    wild = rng.choice([-1.0, 1.0], shape) * 2.0 ** rng.uniform(-149, 127.9, shape)
    x = np.where(rng.random((shape[0], 1)) < 0.2, wild, x)
    sign = rng.choice([-1.0, 1.0], shape)
    special = rng.random(shape) * (1 + 20 * (rng.random((shape[0], 1)) < 0.9))
    for limit, value in ((0.02, np.inf), (0.04, np.nan), (0.2, 0.0), (0.4, 2.0**-120)):
        x = np.where(special < limit, sign * value, x)
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def decode_scales(x: np.ndarray, seed: int) -> np.ndarray:
    """Return scales that suit the rows, powers of two, others, and some that make no sense."""
    rng = np.random.default_rng(seed)
    gsa = reference.amax_gsa(x)
    rows = gsa.size
    gsa = gsa * rng.choice([1, 1, 0.3, 3], rows).astype(np.float32)
    odd = np.array([1, 0.25, 0, -0.0, np.inf, np.nan, -1, 1e-39, 2.0**-126, 3e38], np.float32)
    return np.where(rng.random(rows) < 0.3, rng.choice(odd, rows), gsa).astype(np.float32)


def near_decisions(rows: int, dtype: np.dtype, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows, 64) values at and next to decision points, and decode scales."""
    rng = np.random.default_rng(seed)
    amax = rng.integers(128, 256, rows) * 2.0 ** rng.integers(-10, 3, rows)
    kinds = [amax / 2688, amax, 2.0 ** rng.uniform(-20, 3, rows)]
    gsa = np.choose(rng.integers(0, 3, rows), kinds).astype(np.float32)
    scale = e4m3_decode(rng.integers(1, 127, (rows, 4, 1)).astype(np.uint8))
    points = [0.25, 0.75, 1.25, 1.75, 2.5, 2.75, 3.5, 3.75, 5, 5.25, 6]
    t = rng.choice(points, (rows, 4, 16))
    t[:, :, 0] = 6
    with np.errstate(all="ignore"):
        x = (t * scale * gsa[:, None, None].astype(np.float64)).astype(dtype)
    bits = np.dtype(f"i{dtype.itemsize}")
    x = (x.view(bits) + rng.integers(-1, 2, x.shape).astype(bits)).view(dtype)
    x = np.where(np.isfinite(x.astype(np.float32)), x, dtype.type(1))
    return np.where(rng.random(x.shape) < 0.5, -x, x).reshape(rows, 64).astype(dtype), gsa


def assert_pair(outputs: tuple[Any, Any], expected: tuple[np.ndarray, np.ndarray]) -> None:
    for out, right, kind in zip(outputs, expected, ("codes", "scales"), strict=True):
        assert_bytes_equal(out, right, kind)


def pair(memory: Guarded, rows: int, columns: int, options: dict[str, Any]) -> tuple[Any, Any]:
    layout = options.get("scale_layout", "linear")
    scales = scales_shape(rows, columns // 16, layout)
    return memory.array((rows, columns // 2)), memory.array(scales)


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("case", seed_cases("s1_"), ids=str)
def test_golden_bytes(case: SeedCase, offset: int) -> None:
    memory = Guarded(offset)
    x, gsa = memory.copy(case.inputs["x"]), Guarded().copy(case.inputs["gsa"])
    outputs = tuple(memory.array(out.shape) for out in case.outputs)
    if "deinterleave" in case.name:
        runs = {"intermediate": 256, "granularity": int(case.name.rpartition("_g")[2])}
        DeinterleaveQuantizeFromBuffer()(x, gsa, *outputs, **runs)
    else:
        QuantizeFromBuffer()(x, gsa, *outputs)
    assert_pair(outputs, case.outputs)
    memory.check()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "options"), VARIANTS, ids=str)
def test_quantize_from_buffer(dtype: np.dtype, options: dict, shape: tuple[int, int]) -> None:
    x = awkward(shape, dtype, seed=shape[1])
    gsa = decode_scales(x, seed=shape[1])
    expected = reference.quantize_nvfp4_from_buffer(x, gsa, **options)
    for offset in (0, dtype.itemsize):
        memory = Guarded(offset)
        outputs = pair(memory, *shape, options)
        QuantizeFromBuffer()(memory.copy(x), Guarded().copy(gsa), *outputs, **options)
        assert_pair(outputs, expected)
        memory.check()


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_next_to_decision_points(dtype: np.dtype, rounding: Any) -> None:
    x, gsa = near_decisions(20000, dtype, seed=1)
    memory = Guarded()
    outputs = pair(memory, *x.shape, {})
    QuantizeFromBuffer()(memory.copy(x), memory.copy(gsa), *outputs, rounding=rounding)
    assert_pair(outputs, reference.quantize_nvfp4_from_buffer(x, gsa, rounding=rounding))


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_every_significand_of_gsa(rounding: Any) -> None:
    """Multiplied by 2^70, gsa leaves the range of the path without divisions; codes are the same.

    x holds, in turn, every combination of E4M3 significand and decision point, next to which a
    wrong last bit of a quotient would show.
    """
    import cupy

    gsa = cupy.arange(0x3F800000, 0x40000000, dtype=np.uint32).view(np.float32)
    points = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 2.75, 3.5, 3.75, 5, 5.25], np.float32)
    for start in range(0, gsa.size, 2**21):
        part = gsa[start : start + 2**21]
        groups = []
        for significand in np.arange(8, 16, dtype=np.float32):
            column = np.concatenate([[6], points, -points[:5]]) * significand
            groups.append(part[:, None] * cupy.asarray(column.astype(np.float32)))
        bits = cupy.concatenate(groups, axis=1).view(np.uint32)
        x = ((bits + 0x8000) >> 16).astype(np.uint16)
        shifted = (x + np.uint16(70 << 7)).view(BF16)
        results = []
        for values, scale in ((x.view(BF16), part), (shifted, part * np.float32(2.0**70))):
            memory = Guarded()
            results.append(pair(memory, *x.shape, {}))
            QuantizeFromBuffer()(values, scale, *results[-1], rounding=rounding)
        for fast, slow in zip(*results, strict=True):
            assert bool((fast == slow).all())


@pytest.mark.parametrize(("dtype", "options"), VARIANTS, ids=str)
def test_quantize_with_one_scale(dtype: np.dtype, options: dict[str, Any]) -> None:
    x = awkward((130, 1056), dtype, seed=3)
    for gsa in (1.0, 0.0173, 2.0**-126, 3e38):
        memory = Guarded()
        outputs = pair(memory, *x.shape, options)
        Quantize()(memory.copy(x), *outputs, gsa=gsa, **options)
        assert_pair(outputs, reference.quantize_nvfp4(x, gsa, **options))
        memory.check()


@pytest.mark.parametrize("shape", [*SHAPES, (4, 8192), (300, 1024)], ids=str)
@pytest.mark.parametrize(("dtype", "options"), VARIANTS, ids=str)
def test_amax_quantize(dtype: np.dtype, options: dict, shape: tuple[int, int]) -> None:
    x = awkward(shape, dtype, seed=shape[1] + 1)
    *expected, gsa = reference.amax_quantize_nvfp4(x, **options)
    for offset in (0, dtype.itemsize):
        memory = Guarded(offset)
        outputs = pair(memory, *shape, options)
        aligned = Guarded()
        own_gsa = aligned.array(gsa.shape, np.float32)
        AmaxQuantize()(memory.copy(x), own_gsa, *outputs, **options)
        assert_bytes_equal(own_gsa, gsa)
        assert_pair(outputs, tuple(expected))
        memory.check()
        aligned.check()


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 1000), (130, 80), (7, 8192), (2, 100003)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_amax_gsa_and_first_row_that_is_not_finite(dtype: np.dtype, shape: tuple) -> None:
    import cupy

    x = awkward(shape, dtype, seed=shape[1] + 2)
    bad = ~np.isfinite(to_float32(x)).all(axis=1)
    for offset in (0, dtype.itemsize):
        memory = Guarded(offset)
        on_gpu = memory.copy(x)
        gsa = Guarded().array((shape[0],), np.float32)
        AmaxGsa()(on_gpu, gsa)
        assert_bytes_equal(gsa, reference.amax_gsa(x))
        first = cupy.full(1, shape[0], np.int64)
        FindNonfinite()(on_gpu, first)
        assert int(first[0]) == (int(bad.argmax()) if bad.any() else shape[0])


@pytest.mark.parametrize("granularity", [1, 2, 3, 4, 8, 12, 16, 24, 48, 96, 192])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_deinterleave(dtype: np.dtype, granularity: int) -> None:
    x = awkward((37, 400), dtype, seed=granularity)
    gsa = decode_scales(x, seed=granularity)
    expected = reference.deinterleave_quantize_from_buffer(x, 192, granularity, gsa)
    for offset in (0, dtype.itemsize):
        memory = Guarded(offset)
        outputs = pair(memory, 37, 192, {})
        arrays = memory.copy(x), Guarded().copy(gsa)
        DeinterleaveQuantizeFromBuffer()(
            *arrays, *outputs, intermediate=192, granularity=granularity
        )
        assert_pair(outputs, expected)
        memory.check()


@pytest.mark.parametrize("layout", ["linear", "128x4"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stride", [0, 1])
def test_dequantize(dtype: np.dtype, layout: Any, stride: int) -> None:
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 256, (130, 528), np.uint8)
    scales = rng.integers(0, 256, scales_shape(130, 66, layout), np.uint8)
    gsa = decode_scales(awkward((130, 16), BF16, seed=6), seed=7)[: 130 if stride else 1]
    rows = np.broadcast_to(gsa, 130).copy()
    expected = reference.dequantize_nvfp4(
        codes, scales, rows, dtype=dtype.name, scale_layout=layout
    )
    for offset in (0, dtype.itemsize, 4):
        memory = Guarded(offset)
        out = memory.array((130, 1056), dtype)
        inputs = memory.copy(codes), memory.copy(scales), Guarded().copy(gsa)
        Dequantize()(*inputs, out, scale_layout=layout)
        assert_bytes_equal(out, expected)
        memory.check()


@pytest.mark.parametrize("rows", [70000, 248320])
def test_many_rows(rows: int) -> None:
    x = awkward((rows, 64), BF16, seed=rows)
    *expected, gsa = reference.amax_quantize_nvfp4(x)
    memory = Guarded()
    on_gpu, own_gsa = memory.copy(x), memory.array((rows,), np.float32)
    outputs = pair(memory, rows, 64, {})
    AmaxQuantize()(on_gpu, own_gsa, *outputs)
    assert_bytes_equal(own_gsa, gsa)
    assert_pair(outputs, tuple(expected))
    outputs = pair(memory, rows, 64, {})
    QuantizeFromBuffer()(on_gpu, own_gsa, *outputs)
    assert_pair(outputs, tuple(expected))
    memory.check()


def test_more_than_2_to_the_31_elements() -> None:
    import cupy

    rows, columns = 2**20 + 3, 2064  # the last rows lie behind 2^31 elements
    assert rows * columns > 2**31
    try:
        x = cupy.zeros((rows, columns), BF16)
        outputs = pair(Guarded(), rows, columns, {})
    except cupy.cuda.memory.OutOfMemoryError:
        pytest.skip("needs 6 GB of GPU memory")
    ends = [slice(0, 5), slice(rows - 5, rows)]
    values = [awkward((5, columns), BF16, seed=i) for i in range(2)]
    for end, value in zip(ends, values, strict=True):
        x[end] = cupy.asarray(value)
    gsa = cupy.zeros(rows, np.float32)
    AmaxQuantize()(x, gsa, *outputs)
    for end, value in zip(ends, values, strict=True):
        *expected, right = reference.amax_quantize_nvfp4(value)
        assert_bytes_equal(gsa[end], right)
        assert_pair((outputs[0][end], outputs[1][end]), tuple(expected))
    assert not outputs[0][5 : rows - 5].any()
    assert (gsa[5 : rows - 5] == 1).all()
    y = cupy.empty((rows, columns), BF16)
    Dequantize()(*outputs, gsa, y)
    for end in ends:
        rebuilt = reference.dequantize_nvfp4(*(a[end].get() for a in (*outputs, gsa)))
        assert_bytes_equal(y[end], rebuilt)
