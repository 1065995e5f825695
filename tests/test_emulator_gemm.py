"""The GEMMs' sources in the emulator, portable and with the FP4 instruction; and the repacking."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulator import Emulator, Sparse, missing_emulator, session_folder
from emulator.checks import assert_emulates
from golden import GemmCase, assert_bytes_equal, gemm_cases

from nvfp4cupy import reference
from nvfp4cupy.formats import bfloat16
from nvfp4cupy.launch import LaunchConfig
from nvfp4cupy.launchers.mmq import MmqGemm, MmqGemmTiled, MmqRepack, MmqUnpack
from nvfp4cupy.layouts import MMQ_TILES

pytestmark = pytest.mark.skipif(bool(missing_emulator()), reason=missing_emulator())

# What the tests below launch.
ENTRIES = {
    MmqGemmTiled.plan(m=1, n=n, k=64, mmq_x=tile, scaled=scaled).entry
    for n in (128, 129)
    for tile in MMQ_TILES
    for scaled in (False, True)
}
ENTRIES |= {plan(n=1, k=64).entry for plan in (MmqRepack.plan, MmqUnpack.plan)}
BOTH = pytest.mark.parametrize("fp4_mma", [False, True], ids=["portable", "fp4"])


@pytest.fixture(scope="module")
def emulate(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(session_folder(tmp_path_factory))


def multiply(
    emulate: Emulator, config: LaunchConfig, fp4_mma: bool, dtype: Any, **values: Any
) -> np.ndarray:
    """Run a GEMM twice, with all that must not matter being different; return its output."""
    sizes = {arg.name: arg.value for arg in config.args}
    results = []
    for offset, order in ((None, 0), (0, 7)):
        out = np.zeros((sizes["m"], sizes["n"]), dtype)
        emulate(config, fp4_mma=fp4_mma, offset=offset, order=order, **values, out=out)
        results.append(out)
    assert_bytes_equal(*results)
    return results[0]


def operands(m: int, n: int, k: int) -> dict[str, np.ndarray]:
    """Return any codes and scales but NaN; the scales' top bits, which do not count, are random."""
    rng = np.random.default_rng(m + n + k)
    a = rng.integers(0, 256, (-(-k // 256), m, 144), np.uint8)
    w = rng.integers(0, 256, (n, k // 64, 36), np.uint8)
    for blocks, num_scales in ((a, 16), (w, 4)):
        scales = blocks[..., :num_scales]
        scales[scales % 128 == 127] -= 1
    return {"a": a, "w": w}


# The larger sums with one tile each, the others with all.
_LARGE = {"m130_n257_k576": 128, "m64_n384_k1536": 64}


@BOTH
@pytest.mark.parametrize(
    ("case", "tile"),
    [(c, tile) for c in gemm_cases() for tile in MMQ_TILES if _LARGE.get(c.name, tile) == tile],
    ids=str,
)
def test_exact_products(emulate: Emulator, case: GemmCase, tile: int, fp4_mma: bool) -> None:
    config = MmqGemmTiled.plan(m=case.m, n=case.n, k=case.k, mmq_x=tile, allow_restream=True)
    out = multiply(emulate, config, fp4_mma, bfloat16(), a=case.a_blocks, w=case.w_blocks)
    assert_bytes_equal(out, case.out)


# Around a tile's rows, with every output type, every scale argument and up to four steps of k.
_SCALED = [
    *((tile, -1, 129, 64, "bfloat16", "both", fp4) for tile in MMQ_TILES for fp4 in (False, True)),
    *((tile, 0, 128, 128, "float32", "row", tile == 32) for tile in MMQ_TILES),
    (32, 1, 41, 256, "float16", "column", False),
]


@pytest.mark.parametrize(("tile", "extra", "n", "k", "dtype", "scales", "fp4_mma"), _SCALED)
def test_scaled_products(
    emulate: Emulator,
    tile: int,
    extra: int,
    n: int,
    k: int,
    dtype: str,
    scales: str,
    fp4_mma: bool,
) -> None:
    m = tile + extra
    values = operands(m, n, k)
    rng = np.random.default_rng(tile)
    given = {
        "out_scale": None if scales == "row" else rng.uniform(1e-4, 1e-3, n).astype(np.float32),
        "row_scale": None if scales == "column" else rng.uniform(1e-4, 2, m).astype(np.float32),
    }
    if scales == "both":
        given["out_scale"] = given["out_scale"][:1]
    config = MmqGemmTiled.plan(
        m=m,
        n=n,
        k=k,
        mmq_x=tile,
        allow_restream=True,
        dtype=dtype,
        scaled=True,
        out_scale_stride=int(scales != "both"),
    )
    numpy_dtype = bfloat16() if dtype == "bfloat16" else np.dtype(dtype)
    out = multiply(emulate, config, fp4_mma, numpy_dtype, **values, **given)
    # The bound holds for any order of float32 sums, so for the emulated instruction's too.
    exact = reference.gemm_float64(values["a"], values["w"], **given)
    bound = reference.gemm_error_bound(values["a"], values["w"], **given, dtype=dtype)
    assert np.isfinite(exact).all()
    assert (np.abs(out.astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize(("tile", "fp4_mma"), [(16, True), (128, False)])
def test_deterministic_blocks_of_k(emulate: Emulator, tile: int, fp4_mma: bool) -> None:
    m, n, k = 17, 130, 320
    values = operands(m, n, k)
    plan = {"m": m, "n": n, "k": k, "deterministic_kblocks": True, "dtype": "float32"}
    config = MmqGemmTiled.plan(**plan, mmq_x=tile, allow_restream=True)
    out = multiply(emulate, config, fp4_mma, np.float32, **values)
    exact = reference.gemm_float64(values["a"], values["w"])
    bound = reference.gemm_error_bound(values["a"], values["w"], dtype="float32")
    assert (np.abs(out - exact) <= bound).all()


def test_nothing_is_summed(emulate: Emulator) -> None:
    for tile in MMQ_TILES:
        config = MmqGemmTiled.plan(m=3, n=5, k=0, mmq_x=tile)
        out = np.ones((3, 5), np.uint16)
        emulate(config, a=np.zeros(0, np.uint8), w=np.zeros(0, np.uint8), out=out)
        assert not out.any()


def test_outputs_beyond_32_bits(emulate: Emulator) -> None:
    m, n, k = 65600, 65664, 64  # 4.3e9 outputs; the last tile has 64 rows
    values = operands(m, n, k)
    config = MmqGemm.plan(m=m, n=n, k=k)
    rows, columns = slice(65536, m), slice(n - 128, n)
    out = np.zeros((64, 128), np.uint16)
    pieces = {2 * ((65536 + row) * n + n - 128): out[row] for row in range(64)}
    blocks = [(config.grid[0] - 1, config.grid[1] - 1, 0)]
    emulate(config, only=blocks, **values, out=Sparse(pieces))
    exact = reference.gemm_float64(values["a"][:, rows], values["w"][columns])
    bound = reference.gemm_error_bound(values["a"][:, rows], values["w"][columns])
    assert (np.abs(out.view(bfloat16()).astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize(("m", "n"), [(1048560, 128), (16, 2**20)], ids=["activations", "weights"])
def test_operands_beyond_32_bits(emulate: Emulator, m: int, n: int) -> None:
    k = 8192  # 4.8e9 bytes
    values = operands(16, 128, k)
    a, w = values["a"], values["w"]
    config = MmqGemmTiled.plan(m=m, n=n, k=k, mmq_x=16, allow_restream=True)
    out = np.zeros((16, 128), np.uint16)
    emulate(
        config,
        only=[(config.grid[0] - 1, config.grid[1] - 1, 0)],
        a=Sparse({144 * ((b + 1) * m - 16): a[b] for b in range(k // 256)}),
        w=Sparse({(n - 128) * (k // 64) * 36: w}),
        out=Sparse({2 * ((m - 16 + row) * n + n - 128): out[row] for row in range(16)}),
    )
    exact = reference.gemm_float64(a, w)
    bound = reference.gemm_error_bound(a, w)
    assert (np.abs(out.view(bfloat16()).astype(np.float64) - exact) <= bound).all()


@pytest.mark.parametrize("shape", [(1, 64), (3, 192), (257, 64), (7, 4736)], ids=str)
@pytest.mark.parametrize("order", ["low_first", "high_first"])
def test_repack_and_unpack(emulate: Emulator, shape: tuple[int, int], order: str) -> None:
    n, k = shape
    rng = np.random.default_rng(n)
    packed = rng.integers(0, 256, (n, k // 2), np.uint8)
    scales = rng.integers(0, 256, (n, k // 16), np.uint8)
    blocks = reference.nvfp4_mmq_repack(packed, scales, nibble_order=order)
    config = MmqRepack.plan(n=n, k=k, nibble_order=order)
    inputs = {"packed": packed, "scales": scales}
    kinds = {"out_blocks": "block_nvfp4"}
    assert_emulates(emulate, config, inputs, {"out_blocks": blocks}, builds=(False,), kinds=kinds)
    if order == "low_first":
        config = MmqUnpack.plan(n=n, k=k)
        assert_emulates(emulate, config, {"blocks": blocks}, inputs, builds=(False,))


def test_repack_beyond_32_bits(emulate: Emulator) -> None:
    n, k = 2**21, 4096  # 4.3e9 bytes of codes
    rng = np.random.default_rng(5)
    packed, scales = (rng.integers(0, 256, (4, k // w), np.uint8) for w in (2, 16))
    blocks = np.zeros((4, k // 64, 36), np.uint8)
    first = n - 4
    config = MmqRepack.plan(n=n, k=k)
    emulate(
        config,
        only=[(config.grid[0] - 1, 0, 0)],
        packed=Sparse({first * k // 2: packed}),
        scales=Sparse({first * k // 16: scales}),
        out_blocks=Sparse({first * (k // 64) * 36: blocks}),
    )
    np.testing.assert_array_equal(blocks, reference.nvfp4_mmq_repack(packed, scales))
