"""The GEMM kernels on a GPU: exact products bit for bit, all others within a derived bound."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from golden import GemmCase, assert_bytes_equal, gemm_cases

from nvfp4cupy import compiler
from nvfp4cupy.formats import bfloat16, e2m1_decode, e4m3_decode
from nvfp4cupy.launch import LaunchConfig
from nvfp4cupy.launchers.mmq import MmqGemm, MmqGemmTiled, W4A16Gemm
from nvfp4cupy.layouts import MMQ_TILES

pytestmark = pytest.mark.gpu

K = (64, 128, 192, 256, 320, 576, 832, 1088, 5504, 17408)
N = (1, 5, 127, 128, 129, 300, 5120)
M = (1, 7, 15, 16, 17, 31, 64, 127, 128, 129, 4096)
# Significant bits of the output types.
PRECISION = {"bfloat16": 8, "float16": 11, "float32": 24}


def numpy_dtype(dtype: str) -> np.dtype:
    return bfloat16() if dtype == "bfloat16" else np.dtype(dtype)


def launch_poisoned(config: LaunchConfig, *operands: Any, dtype: str = "bfloat16") -> Any:
    """Run a GEMM into an output of 0xFF bytes with a guard behind it; return the output."""
    import cupy as cp

    sizes = {arg.name: arg.value for arg in config.args}
    shape = sizes["m"], sizes["n"]
    extent = config.args[2].extent
    memory = cp.full(extent + 256, 0xFF, cp.uint8)
    out = memory[:extent].view(numpy_dtype(dtype)).reshape(shape)
    compiler.launch(config, *operands[:2], out, *operands[2:])
    assert bool((memory[extent:] == 0xFF).all()), "the kernel wrote behind its output"
    return out


def random_blocks(shape: tuple[int, ...], num_scales: int, seed: int) -> Any:
    """Return blocks of any codes, with scales from 2^-3 to 2^3."""
    import cupy as cp

    rng = cp.random.default_rng(seed)
    blocks = rng.integers(0, 256, shape, cp.uint8)
    blocks[..., :num_scales] = rng.integers(0x20, 0x51, (*shape[:-1], num_scales), cp.uint8)
    return blocks


def weights(n: int, k: int, seed: int = 1) -> Any:
    return random_blocks((n, k // 64, 36), 4, seed)


def activations(m: int, k: int, seed: int = 2) -> Any:
    """Return activations whose scales behind k are NaN."""
    a = random_blocks((-(-k // 256), m, 144), 16, seed)
    if k % 256:
        a[-1, :, k % 256 // 16 : 16] = 0x7F
    return a


@cache
def tables() -> tuple[Any, Any]:
    import cupy as cp

    codes, scales = np.arange(16, dtype=np.uint8), np.arange(256, dtype=np.uint8)
    return cp.asarray(e2m1_decode(codes)), cp.asarray(e4m3_decode(scales & 0x7F))


def decoded(blocks: Any, num_scales: int) -> Any:
    """Return the float64 values (rows, columns) of block_nvfp4 or, by rows, block_fp4_mmq."""
    import cupy as cp

    codes, scales = tables()
    rows, num_blocks, _ = blocks.shape
    groups = blocks[..., num_scales:].reshape(rows, num_blocks, num_scales, 8)
    values = codes[cp.concatenate([groups & 15, groups >> 4], -1)]
    values = values * scales[blocks[..., :num_scales]][..., None]
    return values.reshape(rows, -1).astype(cp.float64)


def decoded_operands(a: Any, w: Any) -> tuple[Any, Any]:
    k = w.shape[1] * 64
    return decoded(a.transpose(1, 0, 2), 16)[:, :k], decoded(w, 4)


def products(x: Any, y: Any) -> tuple[Any, Any]:
    """Return sum(x y) and sum|x y| over the last axis in float64."""
    return x @ y.T, abs(x) @ abs(y).T


def assert_within_bound(
    out: Any, exact: Any, magnitude: Any, k: int, dtype: str = "bfloat16", scalings: int = 0
) -> None:
    """Compare with the float64 product.

    k / 16 matrix instructions add to an output, one addition joins the two groups of warps, and
    each scale is one rounding. A step loses at most u = 2^-23 of what is summed so far, which
    sum|a w| bounds: together ((1 + u)^steps - 1) sum|a w|. Rounding to p bits loses 2^-p of the
    result; the numbers here are far from subnormal and from overflow.
    """
    import cupy as cp

    steps = k // 16 + 1 + scalings
    error = magnitude * np.expm1(steps * np.log1p(2.0**-23))
    bound = error + (abs(exact) + error) * 2.0 ** -PRECISION[dtype]
    wrong = ~(abs(out.astype(cp.float64) - exact) <= bound)
    assert not bool(wrong.any()), f"{int(wrong.sum())} of {wrong.size} outputs are out of bounds"


def plan(m: int, n: int, k: int, tile: int, **options: Any) -> LaunchConfig:
    return MmqGemmTiled.plan(m=m, n=n, k=k, mmq_x=tile, allow_restream=True, **options)


@pytest.mark.parametrize("tile", MMQ_TILES)
@pytest.mark.parametrize("case", gemm_cases(), ids=str)
def test_exact_products_bit_for_bit(case: GemmCase, tile: int) -> None:
    import cupy as cp

    config = plan(case.m, case.n, case.k, tile)
    checks = {config.entry, config.entry.replace("_nc", "_wc")}
    for entry in checks:
        out = launch_poisoned(
            replace(config, entry=entry), cp.asarray(case.w_blocks), cp.asarray(case.a_blocks)
        )
        assert_bytes_equal(out, case.out)


@pytest.mark.parametrize("n", N)
@pytest.mark.parametrize("k", K)
def test_every_shape_and_tile_within_the_bound(n: int, k: int) -> None:
    w, most = weights(n, k), activations(max(M), k)
    exact, magnitude = products(*decoded_operands(most, w))
    for m in M:
        a = most[:, :m].copy()
        outs = [launch_poisoned(plan(m, n, k, tile), w, a) for tile in MMQ_TILES]
        assert_within_bound(outs[0], exact[:m], magnitude[:m], k)
        for out in outs[1:]:
            assert_bytes_equal(out.view(np.uint16), outs[0].view(np.uint16))


@pytest.mark.parametrize(("m", "n"), [(0, 128), (5, 0), (0, 0)])
def test_nothing_is_launched_for_an_empty_output(m: int, n: int) -> None:
    import cupy as cp

    out = cp.empty((m, n), bfloat16())
    MmqGemm()(weights(n, 64), cp.empty((1, m, 144), cp.uint8), out, m=m, n=n, k=64)
    cp.cuda.runtime.deviceSynchronize()


@pytest.mark.parametrize("tile", MMQ_TILES)
def test_no_k_gives_zeros(tile: int) -> None:
    import cupy as cp

    nothing = cp.empty(0, cp.uint8)
    for out in (
        launch_poisoned(plan(tile + 1, 130, 0, tile), nothing, nothing),
        launch_poisoned(W4A16Gemm.plan(m=tile + 1, n=130, k=0, mmq_x=tile), nothing, nothing),
    ):
        assert not bool(out.view(np.uint16).any())


@pytest.mark.parametrize("tile", MMQ_TILES)
def test_a_nan_scale_reaches_its_row_alone(tile: int) -> None:
    m, n, k = tile + 3, 133, 320
    w, a = weights(n, k), activations(m, k)
    clean = launch_poisoned(plan(m, n, k, tile), w, a).get()
    w[77, 3, 1] = a[0, tile, 9] = 0x7F
    out = launch_poisoned(plan(m, n, k, tile), w, a).get().view(np.uint16)
    expected = clean.view(np.uint16)
    expected[:, 77] = expected[tile] = 0x7FFF
    assert_bytes_equal(out, expected)


@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("given", ["one out_scale", "out_scale", "row_scale", "both"])
def test_scales_are_folded_in_float32(dtype: str, given: str) -> None:
    import cupy as cp

    m, n, k = 33, 130, 576
    w, a = weights(n, k), activations(m, k)
    rng = cp.random.default_rng(3)
    columns = rng.uniform(1e-4, 1e-3, 1 if given == "one out_scale" else n).astype(cp.float32)
    rows = rng.uniform(0.5, 2, m).astype(cp.float32)
    folds = (None if given == "row_scale" else columns, rows if "row" in given else None)
    if given == "both":
        folds = (columns, rows)
    fold = cp.ones((m, n)) if folds[0] is None else cp.broadcast_to(folds[0], (m, n))
    fold = fold * (1 if folds[1] is None else folds[1].astype(cp.float64)[:, None])
    exact, magnitude = products(*decoded_operands(a, w))
    for tile in MMQ_TILES:
        stride = int(folds[0] is None or folds[0].size > 1)
        config = plan(m, n, k, tile, dtype=dtype, scaled=True, out_scale_stride=stride)
        out = launch_poisoned(config, w, a, *folds, dtype=dtype)
        assert_within_bound(out, exact * fold, magnitude * fold, k, dtype, scalings=2)


@pytest.mark.parametrize("dtype", PRECISION)
def test_output_types(dtype: str) -> None:
    m, n, k = 130, 257, 1088
    w, a = weights(n, k), activations(m, k)
    exact, magnitude = products(*decoded_operands(a, w))
    scale = 2.0**-8  # keeps float16 in range
    out_scale = _array([scale])
    for tile in MMQ_TILES:
        config = plan(m, n, k, tile, dtype=dtype, scaled=True, out_scale_stride=0)
        out = launch_poisoned(config, w, a, out_scale, None, dtype=dtype)
        assert_within_bound(out, exact * scale, magnitude * scale, k, dtype, scalings=1)


def _array(values: list[float]) -> Any:
    import cupy as cp

    return cp.asarray(values, cp.float32)


def test_float16_overflows_to_infinity_unless_the_scale_brings_it_back() -> None:
    import cupy as cp

    m, n, k = 17, 128, 256
    w, a = weights(n, k), activations(m, k)
    w[...] = a[...] = 0x77  # every value is 6 * 1.875 * 2^7, far beyond float16 when summed
    out = launch_poisoned(plan(m, n, k, 32, dtype="float16"), w, a, dtype="float16")
    assert bool(cp.isposinf(out).all())
    config = plan(m, n, k, 32, dtype="float16", scaled=True, out_scale_stride=0)
    out = launch_poisoned(config, w, a, _array([2.0**-20]), None, dtype="float16")
    assert bool((out == np.float16(256 * 1440.0**2 * 2.0**-20)).all())


@pytest.mark.parametrize("tile", MMQ_TILES)
def test_deterministic_kblocks(tile: int) -> None:
    m, n, k = tile + 1, 200, 1088
    w, a = weights(n, k), activations(m, k)
    out = launch_poisoned(
        plan(m, n, k, tile, dtype="float32", deterministic_kblocks=True), w, a, dtype="float32"
    )
    assert_within_bound(out, *products(*decoded_operands(a, w)), k, "float32")
    case = max(gemm_cases(), key=lambda c: c.m * c.n * c.k)
    config = plan(case.m, case.n, case.k, tile, deterministic_kblocks=True)
    exact = launch_poisoned(config, _device(case.w_blocks), _device(case.a_blocks))
    assert_bytes_equal(exact, case.out)


def _device(array: np.ndarray) -> Any:
    import cupy as cp

    return cp.asarray(array)


@pytest.mark.parametrize("tile", MMQ_TILES)
def test_the_loop_made_for_the_fp4_instruction(tile: int) -> None:
    """A function in the instruction's place runs its loads, fragments and scale lanes here."""
    for m, n, k in ((tile, 128, 64), (tile + 5, 257, 1088), (130, 130, 2368), (64, 128, 5504)):
        w, a = weights(n, k), activations(m, k)
        config = plan(m, n, k, tile)
        fp4 = replace(config, defines=(("NVFP4_SOFTWARE_FP4_MMA", "1"),))
        out, expected = launch_poisoned(fp4, w, a), launch_poisoned(config, w, a)
        assert_bytes_equal(out.view(np.uint16), expected.view(np.uint16))


def test_blocks_at_addresses_of_4_bytes() -> None:
    import cupy as cp

    m, n, k = 40, 200, 512
    w, a = weights(n, k), activations(m, k)
    memory = cp.empty(w.nbytes + 4, cp.uint8)
    memory[4:] = w.ravel()
    expected = launch_poisoned(plan(m, n, k, 64), w, a)
    out = launch_poisoned(plan(m, n, k, 64), memory[4:].reshape(w.shape), a)
    assert_bytes_equal(out.view(np.uint16), expected.view(np.uint16))


# Row stride less k, and elements before the first: aligned to 16 bytes only if both are multiples
# of 8.
@pytest.mark.parametrize(("gap", "offset"), [(0, 0), (8, 8), (8, 1), (1, 0), (3, 5)])
@pytest.mark.parametrize("k", [64, 320, 1088])
def test_w4a16_within_the_bound(k: int, gap: int, offset: int) -> None:
    import cupy as cp

    for m, n in ((1, 1), (17, 130), (130, 256)):
        w = weights(n, k)
        memory = cp.random.default_rng(4).standard_normal(m * (k + gap) + offset, cp.float32)
        memory = memory.astype(bfloat16())
        rows = memory[offset:].reshape(m, k + gap)[:, :k]
        exact, magnitude = products(rows.astype(cp.float64), decoded(w, 4))
        outs = [
            launch_poisoned(W4A16Gemm.plan(m=m, n=n, k=k, a_stride=k + gap, mmq_x=tile), w, rows)
            for tile in MMQ_TILES
        ]
        assert_within_bound(outs[0], exact, magnitude, k)
        for out in outs[1:]:
            assert_bytes_equal(out.view(np.uint16), outs[0].view(np.uint16))


@pytest.mark.parametrize("tile", MMQ_TILES)
def test_w4a16_decodes_every_scale_and_code_exactly(tile: int) -> None:
    import cupy as cp

    # Row s has scale byte s in every group and all 16 codes; the activations are rows of one 1.
    k, n = 64, 127
    w = weights(n, k)
    w[..., :4] = cp.arange(n, dtype=cp.uint8)[:, None, None]
    a = cp.eye(k, dtype=cp.float32).astype(bfloat16())
    config = W4A16Gemm.plan(m=k, n=n, k=k, mmq_x=tile, dtype="float32", scaled=True)
    scales = cp.ones(n, cp.float32), cp.full(k, 2.0, cp.float32)
    out = launch_poisoned(config, w, a, *scales, dtype="float32")
    np.testing.assert_array_equal(out.get(), 2 * decoded(w, 4).T.get())
