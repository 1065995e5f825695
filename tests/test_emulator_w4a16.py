"""The sources of the GEMM with bfloat16 activations in the emulator."""

from __future__ import annotations

import numpy as np
import pytest
from emulator import Emulator, Sparse, missing_emulator, session_folder
from emulator.checks import assert_emulates
from golden import assert_bytes_equal

from nvfp4cupy import reference
from nvfp4cupy.formats import bfloat16
from nvfp4cupy.launchers.mmq import W4A16Gemm
from nvfp4cupy.layouts import MMQ_TILES

pytestmark = pytest.mark.skipif(bool(missing_emulator()), reason=missing_emulator())

# What the tests below launch.
ENTRIES = {
    W4A16Gemm.plan(m=1, n=n, k=64, mmq_x=tile, scaled=scaled).entry
    for n in (128, 129)
    for tile in MMQ_TILES
    for scaled in (False, True)
}


@pytest.fixture(scope="module")
def emulate(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(session_folder(tmp_path_factory))


def exact_operands(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return operands whose products are multiples of 1/4 and whose sums stay below 2^20."""
    rng = np.random.default_rng(m + n + k)
    x = rng.integers(-4, 5, (m, k)).astype(bfloat16())
    blocks = rng.integers(0, 256, (n, k // 64, 36), np.uint8)
    blocks[..., :4] = rng.choice(np.array([0x30, 0x38, 0x40], np.uint8), (n, k // 64, 4))
    return x, blocks


# Around a tile's rows; an odd number of steps of k, one, and more than the stages hold.
@pytest.mark.parametrize("tile", MMQ_TILES)
@pytest.mark.parametrize(
    ("extra", "n", "k", "padding"), [(-1, 130, 192, 0), (0, 128, 64, 8), (1, 128, 704, 3)]
)
def test_exact_products(
    emulate: Emulator, tile: int, extra: int, n: int, k: int, padding: int
) -> None:
    m = tile + extra
    x, blocks = exact_operands(m, n, k)
    stored = np.full((m, k + padding), np.nan, bfloat16())
    stored[:, :k] = x
    config = W4A16Gemm.plan(m=m, n=n, k=k, a_stride=k + padding, mmq_x=tile)
    out = reference.gemm_float64(x, blocks).astype(bfloat16())
    assert_emulates(emulate, config, {"w": blocks, "a": stored}, {"out": out}, builds=(False,))


@pytest.mark.parametrize(
    ("tile", "n", "dtype", "scales"),
    [
        *((tile, 129, "bfloat16", "row") for tile in MMQ_TILES),
        *((tile, 128, "float32", "column") for tile in MMQ_TILES),
        (64, 129, "float16", "both"),
    ],
)
def test_scaled_products(emulate: Emulator, tile: int, n: int, dtype: str, scales: str) -> None:
    m, k = tile - 3, 320
    rng = np.random.default_rng(tile)
    x = rng.standard_normal((m, k)).astype(bfloat16())
    x[::7, ::5] = np.float32(1e-39)  # subnormal
    blocks = rng.integers(0, 256, (n, k // 64, 36), np.uint8)
    signs = rng.choice(np.array([0, 0x80], np.uint8), (n, k // 64, 4))  # which do not count
    blocks[..., :4] = rng.integers(0, 0x7F, (n, k // 64, 4), np.uint8) | signs
    given = {
        "out_scale": None if scales == "row" else rng.uniform(1e-3, 1e-2, n).astype(np.float32),
        "row_scale": None if scales == "column" else rng.uniform(1e-3, 2, m).astype(np.float32),
    }
    config = W4A16Gemm.plan(m=m, n=n, k=k, mmq_x=tile, dtype=dtype, scaled=True)
    numpy_dtype = bfloat16() if dtype == "bfloat16" else np.dtype(dtype)
    exact = reference.gemm_float64(x, blocks, **given)
    bound = reference.gemm_error_bound(x, blocks, **given, dtype=dtype)
    outs = [np.zeros((m, n), numpy_dtype) for _ in range(2)]
    for out, (offset, order) in zip(outs, [(None, 0), (0, 7)], strict=True):
        emulate(config, offset=offset, order=order, w=blocks, a=x, out=out, **given)
    assert_bytes_equal(*outs)
    assert np.isfinite(bound).all()
    assert (np.abs(outs[0].astype(np.float64) - exact) <= bound).all()


def test_nothing_is_summed(emulate: Emulator) -> None:
    for tile in MMQ_TILES:
        config = W4A16Gemm.plan(m=3, n=5, k=0, mmq_x=tile)
        out = np.ones((3, 5), np.uint16)
        emulate(config, a=np.zeros(0, np.uint8), w=np.zeros(0, np.uint8), out=out)
        assert not out.any()


def test_activations_beyond_32_bits(emulate: Emulator) -> None:
    m, n, k = 1048560, 128, 4096  # 4.3e9 activations
    x, blocks = exact_operands(16, n, k)
    config = W4A16Gemm.plan(m=m, n=n, k=k, mmq_x=16)
    out = np.zeros((16, n), np.uint16)
    emulate(
        config,
        only=[(0, config.grid[1] - 1, 0)],
        a=Sparse({2 * (m - 16) * k: x.view(np.uint16)}),
        w=blocks,
        out=Sparse({2 * (m - 16) * n: out}),
    )
    expected = reference.gemm_float64(x, blocks).astype(bfloat16())
    assert_bytes_equal(out, expected.view(np.uint16))
