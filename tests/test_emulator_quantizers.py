"""The quantizers' sources in the emulator give the references' bytes, and the golden ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulator import Emulator, Sparse, missing_emulator, session_folder
from emulator.checks import assert_emulates, awkward_values
from golden import SeedCase, seed_cases

from nvfp4cupy import reference
from nvfp4cupy.formats import bfloat16
from nvfp4cupy.launchers.quantize import (
    AmaxGsa,
    AmaxQuantize,
    DeinterleaveQuantizeFromBuffer,
    Dequantize,
    FindNonfinite,
    Quantize,
    QuantizeFromBuffer,
)

pytestmark = pytest.mark.skipif(bool(missing_emulator()), reason=missing_emulator())

_PLANS = (AmaxGsa, AmaxQuantize, Dequantize, FindNonfinite, Quantize, QuantizeFromBuffer)
# What the tests below launch.
ENTRIES = {launcher.plan(m=1, n=16).entry for launcher in _PLANS}
ENTRIES.add(DeinterleaveQuantizeFromBuffer.plan(m=1, n=32, intermediate=16, granularity=1).entry)
DTYPES = ("bfloat16", "float16", "float32")
# Each value of each option at least once, not all combinations.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"dtype": "float16", "rounding": "nearest_low"},
    {"dtype": "float32", "rounding": "nearest_even", "scale_layout": "128x4"},
    {"rounding": "nearest_low", "scale_search": 2},
    {"dtype": "float32", "rounding": "half_step", "scale_search": 2, "scale_layout": "128x4"},
]
# Rows around a block's, columns around what a thread, a warp and a block take at a time.
SHAPES = [(1, 16), (3, 48), (17, 528), (129, 80), (2, 8208)]
KINDS = {"out_fp4": "codes", "out_sf": "scales"}


@pytest.fixture(scope="module")
def emulate(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(session_folder(tmp_path_factory))


def numpy_dtype(options: dict[str, Any]) -> np.dtype:
    name = options.get("dtype", "bfloat16")
    return bfloat16() if name == "bfloat16" else np.dtype(name)


def rows(shape: tuple[int, int], options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and decode scales, of which some are unusual."""
    x = awkward_values(shape, numpy_dtype(options))
    gsa = reference.amax_gsa(x)
    gsa[::5] = np.resize(np.array([1, 3e-38, 1e-3, np.inf, 2e38, 0], np.float32), gsa[::5].size)
    return x, gsa


def without_dtype(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key != "dtype"}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_quantize_from_buffer(emulate: Emulator, shape: tuple[int, int], options: dict) -> None:
    x, gsa = rows(shape, options)
    codes, scales = reference.quantize_nvfp4_from_buffer(x, gsa, **without_dtype(options))
    config = QuantizeFromBuffer.plan(m=shape[0], n=shape[1], **options)
    outputs = {"out_fp4": codes, "out_sf": scales}
    assert_emulates(emulate, config, {"x": x, "gsa": gsa}, outputs, kinds=KINDS)


@pytest.mark.parametrize("options", OPTIONS[:3], ids=str)
def test_quantize_with_one_scale(emulate: Emulator, options: dict) -> None:
    x, _ = rows((17, 528), options)
    codes, scales = reference.quantize_nvfp4(x, 0.01, **without_dtype(options))
    config = Quantize.plan(m=17, n=528, **options)
    outputs = {"out_fp4": codes, "out_sf": scales}
    inputs = {"x": x, "gsa": 0.01}
    assert_emulates(emulate, config, inputs, outputs, builds=(False,), kinds=KINDS)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        *((shape, options) for shape in SHAPES[:-1] for options in OPTIONS[::2]),
        # Rows that need more registers than short ones, most of them, and too many.
        *((shape, {}) for shape in [(2, 8208), (1, 32784), (2, 40000)]),
    ],
    ids=str,
)
def test_amax_quantize(emulate: Emulator, shape: tuple[int, int], options: dict) -> None:
    x, _ = rows(shape, options)
    codes, scales, gsa = reference.amax_quantize_nvfp4(x, **without_dtype(options))
    config = AmaxQuantize.plan(m=shape[0], n=shape[1], **options)
    outputs = {"gsa": gsa, "out_fp4": codes, "out_sf": scales}
    assert_emulates(emulate, config, {"x": x}, outputs, builds=(False,), kinds=KINDS)


@pytest.mark.parametrize("granularity", [1, 3, 8, 16, 48])
@pytest.mark.parametrize("options", OPTIONS[::4], ids=str)
def test_deinterleave_quantize(emulate: Emulator, granularity: int, options: dict) -> None:
    m, n, intermediate = 9, 200, 96
    x, gsa = rows((m, n), options)
    codes, scales = reference.deinterleave_quantize_from_buffer(
        x, intermediate, granularity, gsa, **without_dtype(options)
    )
    config = DeinterleaveQuantizeFromBuffer.plan(
        m=m, n=n, intermediate=intermediate, granularity=granularity, **options
    )
    outputs = {"out_fp4": codes, "out_sf": scales}
    inputs = {"fused": x, "gsa": gsa}
    assert_emulates(emulate, config, inputs, outputs, builds=(False,), kinds=KINDS)


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (9, 264), (2, 9000)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_row_searches(emulate: Emulator, shape: tuple[int, int], dtype: str) -> None:
    x, _ = rows(shape, {"dtype": dtype})
    config = AmaxGsa.plan(m=shape[0], n=shape[1], dtype=dtype)
    assert_emulates(emulate, config, {"x": x}, {"gsa": reference.amax_gsa(x)}, builds=(False,))
    wrong = np.flatnonzero(~np.isfinite(x.astype(np.float32)).all(axis=1))
    before = np.array([shape[0]], np.int64)
    first = np.array([wrong[0] if wrong.size else shape[0]], np.int64)
    config = FindNonfinite.plan(m=shape[0], n=shape[1], dtype=dtype)
    assert_emulates(emulate, config, {"x": x, "first": before}, {"first": first}, builds=(False,))


@pytest.mark.parametrize("shape", [(1, 16), (3, 48), (129, 80), (2, 8208)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dequantize(emulate: Emulator, shape: tuple[int, int], dtype: str) -> None:
    rng = np.random.default_rng(8)
    codes = rng.integers(0, 256, (shape[0], shape[1] // 2), np.uint8)
    layout = "128x4" if dtype == "float16" else "linear"
    stride = int(dtype != "float32")
    _, gsa = rows(shape, {})
    gsa = gsa if stride else gsa[:1]
    columns = shape[1] // 16
    stored = (-(-shape[0] // 128) * 128, -(-columns // 4) * 4) if layout == "128x4" else None
    scales = rng.integers(0, 256, stored or (shape[0], columns), np.uint8)
    config = Dequantize.plan(
        m=shape[0], n=shape[1], dtype=dtype, scale_layout=layout, gsa_stride=stride
    )
    scale = gsa if stride else float(gsa[0])
    out = reference.dequantize_nvfp4(codes, scales, scale, dtype=dtype, scale_layout=layout)
    inputs = {"codes": codes, "scales": scales, "gsa": gsa}
    assert_emulates(emulate, config, inputs, {"out": out}, builds=(False,))


@pytest.mark.parametrize("case", seed_cases("s1_"), ids=str)
def test_golden_bytes(emulate: Emulator, case: SeedCase) -> None:
    x, gsa = case.inputs["x"], case.inputs["gsa"]
    m, n = x.shape
    if "deinterleave" in case.name:
        granularity = int(case.name.rpartition("_g")[2])
        config = DeinterleaveQuantizeFromBuffer.plan(
            m=m, n=n, intermediate=256, granularity=granularity
        )
        n = 256
        inputs = {"fused": x, "gsa": gsa}
    else:
        config = QuantizeFromBuffer.plan(m=m, n=n)
        inputs = {"x": x, "gsa": gsa}
    codes, scales = (a.view(np.uint8).reshape(m, -1) for a in case.outputs)
    assert (codes.shape, scales.shape) == ((m, n // 2), (m, n // 16))
    outputs = {"out_fp4": codes, "out_sf": scales}
    num_ways = 1 if case.name.endswith("all_bf16") else 3  # 65536 groups take a while
    assert_emulates(emulate, config, inputs, outputs, num_ways=num_ways, kinds=KINDS)


def test_offsets_beyond_32_bits(emulate: Emulator) -> None:
    m, n = 248320, 17408  # 4.3e9 elements
    config = QuantizeFromBuffer.plan(m=m, n=n)
    tail = m - (config.grid[0] - 1) * config.block[1]  # rows of the last blocks
    x = np.random.default_rng(9).standard_normal((tail, n)).astype(bfloat16())
    gsa = reference.amax_gsa(x)
    codes, scales = reference.quantize_nvfp4_from_buffer(x, gsa)
    out_fp4, out_sf = np.zeros_like(codes), np.zeros_like(scales)
    first = m - tail
    emulate(
        config,
        only=[(config.grid[0] - 1, y, 0) for y in range(config.grid[1])],
        x=Sparse({2 * first * n: x.view(np.uint16)}),
        gsa=Sparse({4 * first: gsa}),
        out_fp4=Sparse({first * n // 2: out_fp4}),
        out_sf=Sparse({first * n // 16: out_sf}),
    )
    np.testing.assert_array_equal(out_fp4, codes)
    np.testing.assert_array_equal(out_sf, scales)
