"""The contracts of the element-wise kernels, against numbers that can be checked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from nvfp4cupy.launch import LaunchConfig
from nvfp4cupy.launchers.swiglu import ScaleBf16, SiluMulQuant, SiluMulScaled


def params(config: LaunchConfig) -> list[tuple[Any, ...]]:
    return [(a.kind, a.name, a.extent if a.kind == "ptr" else a.value) for a in config.args]


def test_silu_mul_quant_of_a_27b_feed_forward() -> None:
    config = SiluMulQuant.plan(m=4096, k=17408)
    assert config.entry == "atlas_nvfp4_silu_mul_quant"
    assert (config.grid, config.block, config.shared_mem) == ((4096, 9, 1), (128, 1, 1), 0)
    assert config.defines == ()
    assert params(config) == [
        ("ptr", "gate", 142606336),
        ("ptr", "up", 142606336),
        ("ptr", "y", 40108032),
        ("f32", "gate_scale", None),
        ("f32", "up_scale", None),
        ("u64", "k", 17408),
        ("u64", "kpad", 17408),
        ("u32", "m", 4096),
    ]


def test_silu_mul_quant_pads_and_scales_rows() -> None:
    config = SiluMulQuant.plan(m=5, k=2049, row_scale=True)
    assert config.entry == "atlas_nvfp4_silu_mul_quant_rowscale"
    assert config.grid == (5, 2, 1)
    assert params(config)[5:] == [
        ("u64", "k", 2049),
        ("u64", "kpad", 2304),
        ("u32", "m", 5),
        ("ptr", "row_scale", 20),
    ]


@pytest.mark.parametrize(
    ("total", "blocks"), [(0, 0), (1, 1), (255, 1), (256, 1), (257, 2), (2**32 - 1, 2**24)]
)
def test_element_wise_kernels_take_a_thread_for_an_element(total: int, blocks: int) -> None:
    scale, silu = ScaleBf16.plan(total=total), SiluMulScaled.plan(total=total)
    assert (scale.entry, silu.entry) == ("atlas_nvfp4_scale_bf16", "atlas_nvfp4_silu_mul_scaled")
    for config in (scale, silu):
        assert (config.grid, config.block, config.shared_mem) == ((blocks, 1, 1), (256, 1, 1), 0)
        assert config.is_empty == (total == 0)
    assert params(scale) == [
        ("ptr", "data", 2 * total),
        ("f32", "scale", None),
        ("u32", "total", total),
    ]
    assert params(silu) == [
        ("ptr", "gate", 2 * total),
        ("ptr", "up", 2 * total),
        ("ptr", "out", 2 * total),
        ("f32", "gate_scale", None),
        ("f32", "up_scale", None),
        ("u32", "total", total),
    ]


@pytest.mark.parametrize("plan", [ScaleBf16.plan, SiluMulScaled.plan])
@pytest.mark.parametrize("total", [2**32, -1])
def test_a_total_beyond_32_bits_is_refused(plan, total: int) -> None:
    with pytest.raises(ValueError, match="total must be"):
        plan(total=total)


@pytest.mark.parametrize(
    "plan",
    [lambda **o: SiluMulQuant.plan(m=1, k=16, **o), lambda **o: SiluMulScaled.plan(total=16, **o)],
)
def test_the_limit_is_a_definition(plan) -> None:
    assert plan(swiglu_limit=10.0).defines == ()
    assert dict(plan(swiglu_limit=None).defines) == {"NVFP4_NO_SWIGLU_LIMIT": "1"}
    ((name, text),) = plan(swiglu_limit=7.0).defines
    assert name == "NVFP4_SWIGLU_LIMIT"
    assert text.endswith("f")
    literal = text.removesuffix("f")
    assert (float.fromhex(literal) if "x" in literal else float(literal)) == 7.0
    for limit in (0.0, -1.0):
        with pytest.raises(ValueError, match="swiglu_limit must be"):
            plan(swiglu_limit=limit)
