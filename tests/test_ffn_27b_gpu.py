"""The feed-forward at the sizes of a 27B model: every step is right, nothing leaks or allocates."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from calls import BF16
from golden import assert_bytes_equal

import nvfp4cupy as nv
from nvfp4cupy import reference
from nvfp4cupy.formats import e2m1_decode, e4m3_decode

pytestmark = pytest.mark.gpu

HIDDEN, INTERMEDIATE = 5120, 17408
ROWS = (1, 16, 33, 64, 128, 777, 4096)


def normal(shape: tuple[int, int], seed: int, scale: float = 1.0) -> Any:
    import cupy

    values = cupy.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return (values * np.float32(scale)).astype(BF16)


@cache
def weights() -> tuple[tuple[Any, Any, float], ...]:
    """Return codes, scales and decode scale of gate, up and down."""
    shapes = ((INTERMEDIATE, HIDDEN), (INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE))
    made = []
    for seed, shape in enumerate(shapes):
        w = normal(shape, seed, shape[1] ** -0.5)
        decode_scale = float(nv.amax_gsa(w).max())
        made.append((*nv.quantize_nvfp4(w, decode_scale, rounding="nearest_even"), decode_scale))
    return tuple(made)


@cache
def layer() -> Any:
    return nv.FeedForward(*weights(), device="gpu", max_m=max(ROWS), swiglu_limit=None)


def decoded_act(blocks: Any, k: int) -> Any:
    """Return what block_fp4_mmq means, as float64 (m, k) on the GPU."""
    import cupy

    scales = cupy.asarray(e4m3_decode(np.arange(256, dtype=np.uint8)))[blocks[:, :, :16]]
    pairs = blocks[:, :, 16:].reshape(*blocks.shape[:2], 16, 8)
    codes = cupy.concatenate([pairs & 15, pairs >> 4], axis=3)
    values = cupy.asarray(e2m1_decode(np.arange(16, dtype=np.uint8)))[codes]
    rows = (values * scales[..., None]).transpose(1, 0, 2, 3).reshape(blocks.shape[1], -1)
    return rows[:, :k].astype(np.float64)


def assert_product(out: Any, a: Any, weight: tuple[Any, Any, float], scale: float) -> None:
    """Compare with float64 within: k / 16 float32 additions, then one rounding to bfloat16.

    ``(k / 16) * 2^-23 * sum|a w|`` for the sum. bfloat16 has 8 significant bits, so rounding to it
    moves a result by at most 2^-8 of it, or by half the spacing of its subnormals.
    """
    codes, scales, _ = weight
    w = nv.dequantize_nvfp4(codes, scales, 1.0, dtype="float32").astype(np.float64)
    exact = a @ w.T * scale
    sums = abs(a) @ abs(w).T * abs(scale)
    error = a.shape[1] / 16 * 2.0**-23 * sums
    bound = error + 2.0**-8 * (abs(exact) + error) + 2.0**-134
    assert bool((abs(out.astype(np.float64) - exact) <= bound).all())


@pytest.mark.parametrize("m", ROWS)
def test_every_step_is_right(m: int) -> None:
    ffn, (gate, up, down) = layer(), weights()
    x = normal((m, HIDDEN), 10 + m)
    workspace = ffn.new_workspace(m)
    y = ffn(x, workspace=workspace)
    parts = workspace.buffers(m)
    some = sorted({0, m // 2, m - 1})
    act = nv.nvfp4_mmq_quantize_act(x)
    assert_bytes_equal(act[:, some].get(), reference.nvfp4_mmq_quantize_act(x[some].get()))
    a = decoded_act(act, HIDDEN)
    assert_product(parts.gate, a, gate, 1.0)
    assert_product(parts.up, a, up, 1.0)
    hidden = reference.nvfp4_silu_mul_quant(
        parts.gate[some].get(), parts.up[some].get(), gate[2], up[2], swiglu_limit=None
    )
    assert_bytes_equal(parts.hidden[:, some].get(), hidden)
    assert_product(y, decoded_act(parts.hidden, INTERMEDIATE), down, down[2])


@pytest.mark.parametrize("m", [1, 16, 33, 128])
def test_a_replayed_graph_gives_the_eager_bytes(m: int) -> None:
    ffn = layer()
    graph = ffn.capture(m)
    for seed in range(2):
        x = normal((m, HIDDEN), seed)
        assert_bytes_equal(graph(x).get().view(np.uint8), ffn(x).get().view(np.uint8))


def test_a_thousand_calls_leave_the_memory_as_it_was() -> None:
    import cupy

    ffn, x = layer(), normal((16, HIDDEN), 3)
    out = cupy.empty((16, HIDDEN), BF16)
    ffn(x, out=out)
    cupy.cuda.Device().synchronize()
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes(), pool.total_bytes(), cupy.cuda.runtime.memGetInfo()[0]
    for _ in range(1000):
        ffn(x, out=out)
    cupy.cuda.Device().synchronize()
    assert (pool.used_bytes(), pool.total_bytes(), cupy.cuda.runtime.memGetInfo()[0]) == before
