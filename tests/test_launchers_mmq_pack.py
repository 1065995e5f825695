"""Launch contracts of repacking and activation quantization, against numbers computed by hand."""

from __future__ import annotations

from typing import Any

import pytest

from nvfp4cupy import sources
from nvfp4cupy.launch import LaunchConfig
from nvfp4cupy.launchers.mmq import MmqQuantizeAct, MmqRepack, MmqUnpack


def shape(config: LaunchConfig) -> tuple[Any, ...]:
    return config.grid, config.block, config.shared_mem


def bound(config: LaunchConfig) -> dict[str, Any]:
    """Return the bytes of each pointer and the value of each number."""
    return {a.name: a.extent if a.kind == "ptr" else a.value for a in config.args}


def params(config: LaunchConfig) -> list[tuple[str, str]]:
    return [(a.kind, a.name) for a in config.args]


# n, k, blocks of 64 values in the grid's 256s, bytes: n k / 2, n k / 16, n (k / 64) 36
REPACK = [
    (1, 64, 1, 32, 4, 36),
    (255, 64, 1, 8160, 1020, 9180),
    (256, 64, 1, 8192, 1024, 9216),
    (257, 64, 2, 8224, 1028, 9252),
    (3, 192, 1, 288, 36, 324),
    (17408, 5120, 5440, 44564480, 5570560, 50135040),
    (0, 64, 0, 0, 0, 0),
    (5, 0, 0, 0, 0, 0),
]


@pytest.mark.parametrize(("n", "k", "blocks", "packed", "scales", "out"), REPACK)
def test_repack(n: int, k: int, blocks: int, packed: int, scales: int, out: int) -> None:
    config = MmqRepack.plan(n=n, k=k)
    assert config.entry == "atlas_nvfp4_repack"
    assert shape(config) == ((blocks, 1, 1), (256, 1, 1), 0)
    assert params(config) == [
        ("ptr", "packed"),
        ("ptr", "scales"),
        ("ptr", "out_blocks"),
        ("u32", "n"),
        ("u32", "k"),
    ]
    expected = {"packed": packed, "scales": scales, "out_blocks": out, "n": n, "k": k}
    assert bound(config) == expected
    assert config.is_empty == (out == 0)


@pytest.mark.parametrize(("n", "k", "blocks", "packed", "scales", "out"), REPACK)
def test_unpack(n: int, k: int, blocks: int, packed: int, scales: int, out: int) -> None:
    config = MmqUnpack.plan(n=n, k=k)
    assert config.entry == "nvfp4_unpack_kernel"
    assert shape(config) == ((blocks, 1, 1), (256, 1, 1), 0)
    assert bound(config) == {"blocks": out, "packed": packed, "scales": scales, "n": n, "k": k}
    assert [a.access for a in config.args[:3]] == ["in", "out", "out"]


def test_repack_takes_any_alignment_of_its_inputs() -> None:
    assert [a.alignment for a in MmqRepack.plan(n=1, k=64).args[:3]] == [1, 1, 4]
    assert [a.alignment for a in MmqUnpack.plan(n=1, k=64).args[:3]] == [4, 1, 1]


def test_nibble_order_is_a_define() -> None:
    assert MmqRepack.plan(n=1, k=64).defines == ()
    swapped = MmqRepack.plan(n=1, k=64, nibble_order="high_first")
    assert swapped.defines == (("NVFP4_HIGH_NIBBLE_FIRST", "1"),)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n": 3, "k": 96}, "k must be a multiple of 64, got n=3, k=96"),
        ({"n": -1, "k": 64}, "n must not be negative.*got n=-1, k=64"),
        ({"n": 2**32, "k": 64}, "n must be from 0 to 4294967295"),
        ({"n": 1, "k": 2**32}, "k must be from 0 to 4294967295"),
        # 2^39 blocks of 64 values are 2^31 of 256, one more than a grid has room for.
        (
            {"n": 2**31, "k": 64 * 2**8},
            r"n \* k must be at most 35184372072448, .*got n=2147483648, k=16384",
        ),
    ],
)
@pytest.mark.parametrize("launcher", [MmqRepack, MmqUnpack])
def test_repack_refuses(launcher: Any, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        launcher.plan(**sizes)


def test_repack_refuses_an_unknown_nibble_order() -> None:
    with pytest.raises(ValueError, match="nibble_order must be one of"):
        MmqRepack.plan(n=1, k=64, nibble_order="even_first")  # type: ignore[arg-type]


# m, k -> kpad, grid y, bytes of y = kpad / 256 * m * 144
ACT = [
    (1, 1, 256, 1, 144),
    (7, 255, 256, 1, 1008),
    (7, 256, 256, 1, 1008),
    (7, 257, 512, 1, 2016),
    (1, 2048, 2048, 1, 1152),
    (1, 2049, 2304, 2, 1296),
    (4096, 5120, 5120, 3, 11796480),
    (0, 5120, 5120, 3, 0),
    (7, 0, 0, 0, 0),
]


@pytest.mark.parametrize(("m", "k", "padded", "grid_y", "y"), ACT)
def test_quantize_act(m: int, k: int, padded: int, grid_y: int, y: int) -> None:
    config = MmqQuantizeAct.plan(m=m, k=k)
    assert config.entry == "atlas_nvfp4_quantize_bf16"
    assert shape(config) == ((m, grid_y, 1), (128, 1, 1), 0)
    names = ["x", "y", "k", "row_stride", "kpad", "m"]
    assert params(config) == list(
        zip(["ptr", "ptr", "u64", "u64", "u64", "u32"], names, strict=True)
    )
    expected = {"x": 2 * m * k, "y": y, "k": k, "row_stride": k, "kpad": padded, "m": m}
    assert bound(config) == expected
    assert [a.alignment for a in config.args[:2]] == [2, 4]
    assert config.is_empty == (m * k == 0)


def test_quantize_act_with_a_row_stride_reads_no_further_than_the_last_element() -> None:
    config = MmqQuantizeAct.plan(m=3, k=100, row_stride=128)
    assert bound(config)["x"] == 2 * (2 * 128 + 100)
    assert bound(config)["row_stride"] == 128


def test_quantize_act_with_row_scale_is_an_entry_of_its_own() -> None:
    config = MmqQuantizeAct.plan(m=5, k=300, row_scale=True)
    assert config.entry == "atlas_nvfp4_quantize_bf16_rowscale"
    assert shape(config) == ((5, 1, 1), (128, 1, 1), 0)
    assert params(config)[-1] == ("ptr", "row_scale")
    assert (config.args[-1].extent, config.args[-1].access) == (20, "out")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"m": -1, "k": 4}, "must not be negative.*got m=-1, k=4"),
        ({"m": 2, "k": 8, "row_stride": 7}, "row_stride must be at least k.*row_stride=7"),
        ({"m": 2**31, "k": 1}, "m must be at most 2147483647, .*got m=2147483648"),
        # 65535 * 2048 columns are the most that the grid's y has room for.
        ({"m": 1, "k": 65535 * 2048 + 1}, "k must be at most 134215680, .*got k=134215681"),
    ],
)
def test_quantize_act_refuses(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MmqQuantizeAct.plan(**sizes)


def test_quantize_act_takes_the_most_rows_and_columns_a_grid_has_room_for() -> None:
    assert MmqQuantizeAct.plan(m=2**31 - 1, k=1).grid == (2**31 - 1, 1, 1)
    assert MmqQuantizeAct.plan(m=1, k=65535 * 2048).grid == (1, 65535, 1)


@pytest.mark.parametrize(
    "statement",
    [
        "kWeightBlockBytes == 36",
        "kActBlockBytes == 144",
        "kWeightBlockValues = 64",
        "kActBlockValues = 256",
        "kWeightTileWords = 76",
    ],
)
def test_kernels_state_the_layout_constants(statement: str) -> None:
    assert statement in sources.find("layouts.cuh").read_text()
