"""Launch contracts of SwiGLU and scaling, against numbers computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from nvfp4cupy.launch import LaunchConfig
from nvfp4cupy.launchers.swiglu import ScaleBf16, SiluMulQuant, SiluMulScaled
from nvfp4cupy.launchers.swiglu.elementwise import _slices

QUANT_PARAMS = [
    ("ptr", "gate"),
    ("ptr", "up"),
    ("ptr", "y"),
    ("f32", "gate_scale"),
    ("f32", "up_scale"),
    ("u64", "k"),
    ("u64", "kpad"),
    ("u32", "m"),
]
SILU_PARAMS = [*QUANT_PARAMS[:2], ("ptr", "out"), *QUANT_PARAMS[3:5]]


def params(config: LaunchConfig) -> list[tuple[str, str]]:
    return [(a.kind, a.name) for a in config.args]


def extents(config: LaunchConfig) -> list[int]:
    return [a.extent for a in config.args if a.kind == "ptr"]


def shape(config: LaunchConfig) -> tuple[Any, ...]:
    return config.grid, config.block, config.shared_mem


# m, k -> kpad, grid y, bytes of y
QUANT = [
    (1, 1, 256, 1, 144),
    (3, 2048, 2048, 1, 3456),
    (3, 2049, 2304, 2, 3888),
    (4096, 17408, 17408, 9, 40108032),
    (0, 300, 512, 1, 0),
    (4, 0, 0, 0, 0),
]


@pytest.mark.parametrize(("m", "k", "padded", "grid_y", "y"), QUANT)
def test_silu_mul_quant(m: int, k: int, padded: int, grid_y: int, y: int) -> None:
    config = SiluMulQuant.plan(m=m, k=k)
    assert config.entry == "atlas_nvfp4_silu_mul_quant"
    assert shape(config) == ((m, grid_y, 1), (128, 1, 1), 0)
    assert params(config) == QUANT_PARAMS
    assert extents(config) == [2 * m * k, 2 * m * k, y]
    assert [a.value for a in config.args[3:]] == [None, None, k, padded, m]
    assert [a.alignment for a in config.args[:3]] == [2, 2, 4]
    assert config.is_empty == (m * k == 0)


def test_silu_mul_quant_with_row_scale_is_an_entry_of_its_own() -> None:
    config = SiluMulQuant.plan(m=5, k=300, row_scale=True)
    assert config.entry == "atlas_nvfp4_silu_mul_quant_rowscale"
    assert shape(config) == ((5, 1, 1), (128, 1, 1), 0)
    assert params(config) == [*QUANT_PARAMS, ("ptr", "row_scale")]
    assert (config.args[-1].extent, config.args[-1].access) == (20, "out")


@pytest.mark.parametrize(
    ("m", "k", "num_multiprocessors", "grid_x"),
    [(4096, 5120, 132, 132), (1, 1, 132, 1), (64, 256, 132, 1), (65, 256, 132, 2), (0, 9, 132, 0)],
)
def test_silu_mul_quant_by_table(m: int, k: int, num_multiprocessors: int, grid_x: int) -> None:
    config = SiluMulQuant.plan_wide(m=m, k=k, num_multiprocessors=num_multiprocessors)
    assert config.entry == "nvfp4_silu_mul_quant_wide_kernel"
    assert shape(config) == ((grid_x, 1, 1), (1024, 1, 1), 0)
    assert params(config) == QUANT_PARAMS
    assert extents(config) == extents(SiluMulQuant.plan(m=m, k=k))


# Bytes and blocks of 256 elements, and of the wide kernels' 8192 and 2048.
TOTALS = [
    (0, 0, 0, 0),
    (1, 1, 1, 1),
    (255, 1, 1, 1),
    (256, 1, 1, 1),
    (257, 2, 1, 1),
    (2049, 9, 1, 2),
    (8193, 33, 2, 5),
    (20971520, 81920, 2560, 10240),
    (2**32 - 1, 16777216, 524288, 2097152),
]


@pytest.mark.parametrize(("total", "mirrored", "wide", "scale_wide"), TOTALS)
def test_elementwise(total: int, mirrored: int, wide: int, scale_wide: int) -> None:
    for config, entry, blocks, kind in (
        (SiluMulScaled.plan(total=total), "atlas_nvfp4_silu_mul_scaled", mirrored, "u32"),
        (SiluMulScaled.plan_wide(total=total), "nvfp4_silu_mul_scaled_wide_kernel", wide, "u64"),
    ):
        assert (config.entry, *shape(config)) == (entry, (blocks, 1, 1), (256, 1, 1), 0)
        assert params(config) == [*SILU_PARAMS, (kind, "total")]
        assert extents(config) == [2 * total] * 3
    for config, entry, blocks, kind in (
        (ScaleBf16.plan(total=total), "atlas_nvfp4_scale_bf16", mirrored, "u32"),
        (ScaleBf16.plan_wide(total=total), "nvfp4_scale_bf16_wide_kernel", scale_wide, "u64"),
    ):
        assert (config.entry, *shape(config)) == (entry, (blocks, 1, 1), (256, 1, 1), 0)
        assert params(config) == [("ptr", "data"), ("f32", "scale"), (kind, "total")]
        assert extents(config) == [2 * total]
        assert config.args[0].access == "inout"


@pytest.mark.parametrize(
    ("limit", "define"),
    [
        (10.0, ()),
        (7.0, (("NVFP4_SWIGLU_LIMIT", "0x1.c000000000000p+2f"),)),
        # 0.1 as float32 is 0x1.99999ap-4.
        (0.1, (("NVFP4_SWIGLU_LIMIT", "0x1.99999a0000000p-4f"),)),
        (None, (("NVFP4_NO_SWIGLU_LIMIT", "1"),)),
    ],
)
def test_the_limit_is_a_define(limit: float | None, define: tuple[Any, ...]) -> None:
    assert SiluMulScaled.plan(total=5, swiglu_limit=limit).defines == define
    assert SiluMulScaled.plan_wide(total=5, swiglu_limit=limit).defines == define
    assert SiluMulQuant.plan(m=1, k=5, swiglu_limit=limit).defines == define
    rounded = SiluMulQuant.plan(m=1, k=5, swiglu_limit=limit, round_intermediate=True)
    assert rounded.defines == tuple(sorted((*define, ("NVFP4_ROUND_INTERMEDIATE", "1"))))


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan")])
def test_a_limit_must_be_above_zero(limit: float) -> None:
    with pytest.raises(ValueError, match="swiglu_limit must be above zero or None"):
        SiluMulScaled.plan(total=5, swiglu_limit=limit)
    with pytest.raises(ValueError, match="swiglu_limit must be above zero or None"):
        SiluMulQuant.plan(m=1, k=5, swiglu_limit=limit)


@pytest.mark.parametrize("launcher", [SiluMulScaled, ScaleBf16])
def test_totals_are_refused_beyond_the_arguments_type(launcher: Any) -> None:
    for total in (-1, 2**32):
        with pytest.raises(ValueError, match=f"total must be from 0 to 4294967295.*got {total}"):
            launcher.plan(total=total)
    with pytest.raises(ValueError, match="total must not be negative, got -1"):
        launcher.plan_wide(total=-1)
    assert launcher.plan_wide(total=2**32).args[-1].value == 2**32


# 65535 * 2048 columns are the most that a grid's y has room for.
TOO_LARGE = [
    ({"m": 2**31, "k": 1}, "m must be at most 2147483647, .*got m=2147483648"),
    ({"m": 1, "k": 134215681}, "k must be at most 134215680, .*got k=134215681"),
    ({"m": 1, "k": 2**33}, "k must be at most 134215680, .*got k=8589934592"),
]


def test_the_kernel_by_table_has_the_limits_of_the_mirrored_one() -> None:
    for sizes, message in TOO_LARGE:
        with pytest.raises(ValueError, match=message):
            SiluMulQuant.plan_wide(**sizes, num_multiprocessors=132)
    for m, k in ((2**31 - 1, 1), (1, 134215680)):
        config = SiluMulQuant.plan_wide(m=m, k=k, num_multiprocessors=132)
        assert extents(config) == extents(SiluMulQuant.plan(m=m, k=k))


def test_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="must not be negative, got m=-1, k=4"):
        SiluMulQuant.plan(m=-1, k=4)
    for options in ({}, {"row_scale": True}):
        for sizes, message in TOO_LARGE:
            with pytest.raises(ValueError, match=message):
                SiluMulQuant.plan(**sizes, **options)
    for count in (0, 65536):
        with pytest.raises(ValueError, match=f"num_multiprocessors must be.*got {count}"):
            SiluMulQuant.plan_wide(m=1, k=1, num_multiprocessors=count)


class _Flat:
    """A one-dimensional array of a size and nothing else."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.size = start, stop - start

    def reshape(self, size: int) -> _Flat:
        assert size == -1
        return self

    def __getitem__(self, part: slice) -> _Flat:
        return _Flat(part.start, min(part.stop, self.size))


@pytest.mark.parametrize("total", [1, 2**32 - 1, 2**32, 2**33 + 7])
def test_mirrored_launches_share_out_large_arrays(total: int) -> None:
    parts = [part for (part,) in _slices(_Flat(0, total))]
    assert [p.start for p in parts] == list(range(0, total, 2**31))[: len(parts)]
    assert sum(p.size for p in parts) == total
    assert max(p.size for p in parts) <= 2**32 - 1
