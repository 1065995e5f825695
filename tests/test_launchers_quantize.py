"""The quantizers' launch contracts, against numbers that can be checked by hand."""

from __future__ import annotations

import pytest

from nvfp4cupy.launch import LaunchConfig
from nvfp4cupy.launchers.quantize import (
    AmaxGsa,
    AmaxQuantize,
    DeinterleaveQuantizeFromBuffer,
    Dequantize,
    Quantize,
    QuantizeFromBuffer,
)

MANY = 248_320


def params(config: LaunchConfig) -> list[tuple[str, str]]:
    return [(arg.kind, arg.name) for arg in config.args]


def extents(config: LaunchConfig) -> dict[str, int]:
    return {arg.name: arg.extent for arg in config.args if arg.kind == "ptr"}


def test_the_documents_kernels_keep_their_parameters() -> None:
    assert params(QuantizeFromBuffer.plan(m=3, n=32)) == [
        *(("ptr", "x"), ("i32", "M"), ("i32", "N")),
        *(("ptr", "gsa"), ("ptr", "out_fp4"), ("ptr", "out_sf")),
    ]
    config = DeinterleaveQuantizeFromBuffer.plan(m=3, n=96, intermediate=32, granularity=8)
    assert params(config) == [
        *(("ptr", "fused"), ("i32", "M"), ("i32", "N")),
        *(("i32", "intermediate"), ("i32", "granularity")),
        *(("ptr", "gsa"), ("ptr", "out_fp4"), ("ptr", "out_sf")),
    ]
    assert [arg.value for arg in config.args[1:5]] == [3, 96, 32, 8]


def test_the_kernels_beside_them_have_the_parameters_of_the_contract() -> None:
    head = [("ptr", "x"), ("i32", "M"), ("i32", "N")]
    tail = [("ptr", "out_fp4"), ("ptr", "out_sf")]
    assert params(AmaxGsa.plan(m=3, n=32)) == [*head, ("ptr", "gsa")]
    assert params(Quantize.plan(m=3, n=32)) == [*head, ("f32", "gsa"), *tail]
    assert params(AmaxQuantize.plan(m=3, n=32)) == [*head, ("ptr", "gsa"), *tail]
    assert params(Dequantize.plan(m=3, n=32, gsa_stride=1)) == [
        *(("ptr", "codes"), ("ptr", "scales"), ("ptr", "gsa"), ("ptr", "out")),
        *(("i32", "M"), ("i32", "N"), ("u32", "gsa_stride")),
    ]


@pytest.mark.parametrize("plan", [QuantizeFromBuffer.plan, AmaxQuantize.plan])
def test_pointers_reach_exactly_over_the_arrays(plan) -> None:
    assert extents(plan(m=5, n=48)) == {"x": 480, "gsa": 20, "out_fp4": 120, "out_sf": 15}
    assert extents(plan(m=5, n=48, dtype="float32"))["x"] == 960
    swizzled = extents(plan(m=129, n=80, scale_layout="128x4"))
    assert (swizzled["out_fp4"], swizzled["out_sf"]) == (5160, 256 * 8)


@pytest.mark.parametrize("plan", [AmaxGsa.plan, QuantizeFromBuffer.plan, AmaxQuantize.plan])
def test_rows_lie_in_the_grids_x(plan) -> None:
    config = plan(m=MANY, n=64)
    assert config.grid[0] * config.block[1] >= MANY
    assert config.grid[1] <= 65535


def test_extents_pass_32_bits() -> None:
    config = QuantizeFromBuffer.plan(m=2**20, n=2**14)
    assert extents(config) == {"x": 2**35, "gsa": 2**22, "out_fp4": 2**33, "out_sf": 2**30}


def test_options_are_sorted_definitions_and_defaults_have_none() -> None:
    assert QuantizeFromBuffer.plan(m=3, n=32).defines == ()
    config = QuantizeFromBuffer.plan(
        m=3,
        n=32,
        dtype="float32",
        rounding="nearest_even",
        scale_search=2,
        scale_layout="128x4",
    )
    assert config.defines == (
        ("NVFP4_INPUT", "2"),
        ("NVFP4_ROUNDING", "2"),
        ("NVFP4_SCALE_LAYOUT", "1"),
        ("NVFP4_SCALE_SEARCH", "1"),
    )


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"m": 3, "n": 40}, "multiple of 16, got n=40"),
        ({"m": -1, "n": 32}, "negative, got m=-1"),
        ({"m": 3, "n": 32, "rounding": "up"}, "rounding must be one of"),
        ({"m": 3, "n": 32, "scale_search": 1}, "scale_search must be 0 or 2"),
        ({"m": 3, "n": 32, "dtype": "float64"}, "dtype must be one of"),
        ({"m": 2**31, "n": 32}, "M must be from"),
    ],
)
def test_refuses(sizes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        QuantizeFromBuffer.plan(**sizes)


@pytest.mark.parametrize(
    ("n", "intermediate", "granularity"), [(96, 40, 8), (96, 32, 5), (96, 32, 0), (63, 32, 8)]
)
def test_refuses_runs_that_do_not_fit(n: int, intermediate: int, granularity: int) -> None:
    with pytest.raises(ValueError, match="intermediate|granularity"):
        DeinterleaveQuantizeFromBuffer.plan(
            m=3, n=n, intermediate=intermediate, granularity=granularity
        )


@pytest.mark.parametrize("plan", [AmaxGsa.plan, QuantizeFromBuffer.plan, AmaxQuantize.plan])
def test_no_rows_are_an_empty_grid(plan) -> None:
    assert plan(m=0, n=32).is_empty
