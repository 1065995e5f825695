"""The GEMM launchers' contracts, against numbers that can be checked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nvfp4cupy.launch import LaunchConfig
from nvfp4cupy.launchers.mmq import MmqGemm, MmqGemmTiled, W4A16Gemm
from nvfp4cupy.layouts import MMQ_TILES, nvfp4_mmq_smem

GEMM_ARGS = ["w", "a", "out", "n", "m", "k", "w_stride", "a_stride", "out_stride"]
GEMM_KINDS = ["ptr", "ptr", "ptr", "u32", "u32", "u32", "u32", "u32", "u32"]


def numbers(config: LaunchConfig) -> tuple[Any, ...]:
    return tuple(arg.value for arg in config.args if arg.kind == "u32")


def pointers(config: LaunchConfig) -> dict[str, tuple[int, str, int]]:
    """Return extent, access and alignment of each pointer."""
    return {a.name: (a.extent, a.access, a.alignment) for a in config.args if a.kind == "ptr"}


def test_mmq_gemm_of_a_27b_feed_forward() -> None:
    config = MmqGemm.plan(m=4096, n=17408, k=5120)
    assert config.entry == "atlas_nvfp4_mmq128_nc"
    assert config.source == "nvfp4_mmq128.cu"
    assert config.defines == ()
    assert (config.grid, config.block, config.shared_mem) == ((136, 32, 1), (32, 8, 1), 57856)
    assert [arg.name for arg in config.args] == GEMM_ARGS
    assert [arg.kind for arg in config.args] == GEMM_KINDS
    assert numbers(config) == (17408, 4096, 5120, 80, 4096, 17408)
    assert pointers(config) == {
        "w": (50135040, "in", 4),
        "a": (11796480, "in", 16),
        "out": (142606336, "out", 2),
    }


@pytest.mark.parametrize(
    ("m", "n", "grid", "check"),
    [
        (1, 1, (1, 1, 1), "wc"),
        (127, 127, (1, 1, 1), "wc"),
        (128, 128, (1, 1, 1), "nc"),
        (129, 129, (2, 2, 1), "wc"),
        (256, 256, (2, 2, 1), "nc"),
        (0, 128, (1, 0, 1), "nc"),
        (5, 0, (0, 1, 1), "nc"),
    ],
)
def test_mmq_gemm_at_the_edges_of_its_tile(m: int, n: int, grid: Any, check: str) -> None:
    config = MmqGemm.plan(m=m, n=n, k=64)
    assert (config.entry, config.grid) == (f"atlas_nvfp4_mmq128_{check}", grid)
    assert config.is_empty == (m == 0 or n == 0)


@pytest.mark.parametrize(
    ("tile", "shared_mem"), [(16, 42048), (32, 44160), (64, 48384), (128, 57856)]
)
def test_tiled_gemm_around_its_tile(tile: int, shared_mem: int) -> None:
    for m, n, grid in ((1, 300, (3, 1, 1)), (tile, 128, (1, 1, 1)), (tile + 1, 129, (2, 2, 1))):
        config = MmqGemmTiled.plan(m=m, n=n, k=832, mmq_x=tile, allow_restream=True)
        check = "nc" if n == 128 else "wc"
        assert (config.source, config.entry) == (
            f"nvfp4_mmq{tile}.cu",
            f"atlas_nvfp4_mmq{tile}_{check}",
        )
        assert (config.grid, config.block, config.shared_mem) == (grid, (32, 8, 1), shared_mem)
        assert numbers(config) == (n, m, 832, 13, m, n)
        assert pointers(config)["w"] == (n * 13 * 36, "in", 4)
        assert pointers(config)["a"] == (4 * m * 144, "in", 16)
    assert nvfp4_mmq_smem(tile) == shared_mem


@pytest.mark.parametrize(
    ("m", "tile"),
    [(0, 16), (1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (64, 64), (65, 128), (4096, 128)],
)
def test_the_smallest_tile_that_holds_m_is_chosen(m: int, tile: int) -> None:
    assert MmqGemmTiled.plan(m=m, n=128, k=64).entry == f"atlas_nvfp4_mmq{tile}_nc"
    assert W4A16Gemm.plan(m=m, n=128, k=64).entry == f"nvfp4_w4a16_mmq{tile}_nc"


def test_more_tokens_than_a_tile_holds_are_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"streams the weights again, got m=17 and mmq_x=16"):
        MmqGemmTiled.plan(m=17, n=128, k=64, mmq_x=16)
    assert MmqGemmTiled.plan(m=17, n=128, k=64, mmq_x=16, allow_restream=True).grid == (1, 2, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mmq_x": 48}, "mmq_x must be one of 16, 32, 64, 128, got 48"),
        ({"k": 96}, "k must be a multiple of 64, got k=96"),
        ({"k": -64}, "k must be from 0 to 4294967295, got k=-64"),
        ({"m": -1}, "m must be from 0 to 4294967295, got m=-1"),
        ({"n": 2**32}, "n must be from 0 to 4294967295, got n=4294967296"),
        ({"dtype": "int8"}, "dtype must be one of bfloat16, float16, float32, got 'int8'"),
        ({"scaled": True, "out_scale_stride": 2}, "out_scale_stride must be 0 or 1, got 2"),
    ],
)
@pytest.mark.parametrize("plan", [MmqGemmTiled.plan, W4A16Gemm.plan])
def test_what_does_not_fit_is_refused(plan: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        plan(**({"m": 4, "n": 128, "k": 64} | options))


@pytest.mark.parametrize("tile", [16.0, "16", True])
@pytest.mark.parametrize("plan", [MmqGemmTiled.plan, W4A16Gemm.plan])
def test_a_tile_must_be_an_integer(plan: Any, tile: Any) -> None:
    sizes = {"m": 4, "n": 128, "k": 64}
    source = plan(**sizes, mmq_x=16).source  # equal to 16.0, so that a cache could mistake it
    with pytest.raises(TypeError, match=f"mmq_x must be an integer, got {type(tile).__name__}"):
        plan(**sizes, mmq_x=tile)
    assert plan(**sizes, mmq_x=np.int64(16)).source == source


def test_a_stride_that_no_argument_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="a_stride must be from 0 to 4294967295, got a_stride=-1"):
        W4A16Gemm.plan(m=4, n=128, k=64, a_stride=-1)


@pytest.mark.parametrize("tile", MMQ_TILES)
def test_tokens_are_limited_by_the_grid(tile: int) -> None:
    most = {"m": 65535 * tile, "n": 1, "k": 64, "mmq_x": tile}
    assert MmqGemmTiled.plan(**most, allow_restream=True).grid == (1, 65535, 1)
    with pytest.raises(ValueError, match=f"m must be at most {65535 * tile}, since a grid"):
        MmqGemmTiled.plan(**(most | {"m": 65535 * tile + 1}), allow_restream=True)
    with pytest.raises(ValueError, match="m must be at most 8388480, since a grid"):
        MmqGemm.plan(m=8388481, n=1, k=64)


def test_extents_pass_2_to_the_32() -> None:
    config = MmqGemm.plan(m=300000, n=100096, k=65536)
    assert pointers(config)["w"][0] == 100096 * 1024 * 36
    assert pointers(config)["a"][0] == 256 * 300000 * 144
    assert pointers(config)["out"][0] == 300000 * 100096 * 2


def test_no_k_still_writes_the_output() -> None:
    config = MmqGemm.plan(m=3, n=5, k=0)
    assert (config.grid, numbers(config)) == ((1, 1, 1), (5, 3, 0, 0, 3, 5))
    assert pointers(config) == {"w": (0, "in", 4), "a": (0, "in", 16), "out": (30, "out", 2)}


@pytest.mark.parametrize("plan", [MmqGemm.plan, MmqGemmTiled.plan, W4A16Gemm.plan])
def test_scales_are_arguments_of_an_entry_of_their_own(plan: Any) -> None:
    config = plan(m=7, n=300, k=64, scaled=True)
    assert config.entry.endswith("_wc_scaled")
    extra = config.args[9:]
    assert [(a.kind, a.name) for a in extra] == [
        ("ptr", "out_scale"),
        ("u32", "out_scale_stride"),
        ("ptr", "row_scale"),
    ]
    assert [extra[0].extent, extra[1].value, extra[2].extent] == [1200, 1, 28]
    assert extra[0].nullable
    assert extra[2].nullable
    one = plan(m=7, n=300, k=64, scaled=True, out_scale_stride=0)
    assert [one.args[9].extent, one.args[10].value] == [4, 0]


def test_options_that_leave_the_arguments_alone_are_definitions() -> None:
    config = MmqGemm.plan(m=4, n=128, k=64, dtype="float32", deterministic_kblocks=True)
    assert config.defines == (("NVFP4_DETERMINISTIC_KBLOCKS", "1"), ("NVFP4_OUTPUT", "2"))
    assert config.entry == "atlas_nvfp4_mmq128_nc"
    assert pointers(config)["out"] == (4 * 128 * 4, "out", 4)
    half = W4A16Gemm.plan(m=4, n=128, k=64, dtype="float16")
    assert (half.defines, pointers(half)["out"]) == (
        (("NVFP4_OUTPUT", "1"),),
        (1024, "out", 2),
    )


@pytest.mark.parametrize(
    ("tile", "shared_mem"), [(16, 53248), (32, 69632), (64, 76800), (128, 83968)]
)
def test_w4a16(tile: int, shared_mem: int) -> None:
    config = W4A16Gemm.plan(m=tile, n=5120, k=17408, mmq_x=tile, a_stride=20000)
    assert (config.source, config.entry) == (
        f"nvfp4_w4a16_mmq{tile}.cu",
        f"nvfp4_w4a16_mmq{tile}_nc",
    )
    assert (config.grid, config.block, config.shared_mem) == ((40, 1, 1), (32, 8, 1), shared_mem)
    assert [arg.name for arg in config.args] == GEMM_ARGS
    assert numbers(config) == (5120, tile, 17408, 272, 20000, 5120)
    assert pointers(config)["a"] == (2 * ((tile - 1) * 20000 + 17408), "in", 2)
    assert shared_mem <= 99 * 1024
