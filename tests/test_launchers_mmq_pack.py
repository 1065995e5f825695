"""The contracts of repack and activation quantizer, against numbers that can be checked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from nvfp4cupy.launch import LaunchConfig
from nvfp4cupy.launchers.mmq import MmqQuantizeAct, MmqRepack, MmqUnpack


def params(config: LaunchConfig) -> list[tuple[Any, ...]]:
    return [(a.kind, a.name, a.extent if a.kind == "ptr" else a.value) for a in config.args]


def test_repack_of_a_27b_weight() -> None:
    config = MmqRepack.plan(n=17408, k=5120)
    assert config.entry == "atlas_nvfp4_repack"
    assert (config.grid, config.block, config.shared_mem) == ((5440, 1, 1), (256, 1, 1), 0)
    assert config.defines == ()
    assert params(config) == [
        ("ptr", "packed", 44564480),
        ("ptr", "scales", 5570560),
        ("ptr", "out_blocks", 50135040),
        ("u32", "n", 17408),
        ("u32", "k", 5120),
    ]


@pytest.mark.parametrize(
    ("n", "k", "blocks"),
    [(0, 64, 0), (1, 0, 0), (1, 64, 1), (256, 64, 1), (257, 64, 2), (5, 192, 1)],
)
def test_repack_takes_a_thread_for_64_values(n: int, k: int, blocks: int) -> None:
    for plan in (MmqRepack.plan, MmqUnpack.plan):
        config = plan(n=n, k=k)
        assert config.grid == (blocks, 1, 1)
        assert config.is_empty == (blocks == 0)


def test_repack_counts_blocks_beyond_32_bits() -> None:
    config = MmqRepack.plan(n=2**31, k=2**9)
    assert config.grid == (2**26, 1, 1)
    assert config.args[2].extent == 2**34 * 36


def test_unpack_turns_the_pointers_round() -> None:
    assert params(MmqUnpack.plan(n=5, k=192)) == [
        ("ptr", "blocks", 540),
        ("ptr", "packed", 480),
        ("ptr", "scales", 60),
        ("u32", "n", 5),
        ("u32", "k", 192),
    ]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n": 5, "k": 96}, "multiple of 64.*96"),
        ({"n": -1, "k": 64}, "negative"),
        ({"n": 2**32, "k": 64}, "n must be"),
        ({"n": 5, "k": 64, "nibble_order": "odd"}, "nibble_order must be one of"),
    ],
)
def test_repack_refuses(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MmqRepack.plan(**sizes)


def test_quantize_act_of_a_27b_input() -> None:
    config = MmqQuantizeAct.plan(m=4096, k=5120)
    assert config.entry == "atlas_nvfp4_quantize_bf16"
    assert (config.grid, config.block, config.shared_mem) == ((4096, 3, 1), (128, 1, 1), 0)
    assert params(config) == [
        ("ptr", "x", 41943040),
        ("ptr", "y", 11796480),
        ("u64", "k", 5120),
        ("u64", "row_stride", 5120),
        ("u64", "kpad", 5120),
        ("u32", "m", 4096),
    ]


@pytest.mark.parametrize(
    ("k", "padded", "grid_y"),
    [(1, 256, 1), (255, 256, 1), (256, 256, 1), (257, 512, 1), (2048, 2048, 1), (2049, 2304, 2)],
)
def test_quantize_act_pads_k_to_256(k: int, padded: int, grid_y: int) -> None:
    config = MmqQuantizeAct.plan(m=7, k=k)
    assert config.grid == (7, grid_y, 1)
    assert [a.value for a in config.args if a.name == "kpad"] == [padded]
    assert config.args[1].extent == padded // 256 * 7 * 144


def test_quantize_act_with_a_scale_for_each_row() -> None:
    config = MmqQuantizeAct.plan(m=7, k=300, row_stride=320, row_scale=True)
    assert config.entry == "atlas_nvfp4_quantize_bf16_rowscale"
    assert params(config)[-1] == ("ptr", "row_scale", 28)
    assert config.args[0].extent == 2 * (6 * 320 + 300)


def test_quantize_act_takes_two_billion_rows_and_refuses_overlapping_ones() -> None:
    assert MmqQuantizeAct.plan(m=2**31 - 1, k=64).grid == (2**31 - 1, 1, 1)
    with pytest.raises(ValueError, match="grid"):
        MmqQuantizeAct.plan(m=2**31, k=64)
    with pytest.raises(ValueError, match="row_stride"):
        MmqQuantizeAct.plan(m=2, k=64, row_stride=63)
    assert MmqQuantizeAct.plan(m=0, k=64).is_empty
    assert MmqQuantizeAct.plan(m=5, k=0).is_empty
