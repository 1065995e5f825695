"""The quantizers' launchers: contracts against numbers that can be checked by hand, refusals."""

from __future__ import annotations

import re
from typing import Any

import pytest

from nvfp4cupy import sources
from nvfp4cupy.launch import LaunchConfig
from nvfp4cupy.launchers.quantize import (
    AmaxGsa,
    AmaxQuantize,
    DeinterleaveQuantizeFromBuffer,
    Dequantize,
    FindNonfinite,
    Quantize,
    QuantizeFromBuffer,
)
from nvfp4cupy.launchers.quantize.geometry import LOAD_BYTES

QUANTIZERS = (Quantize, QuantizeFromBuffer, AmaxQuantize)


def geometry(config: LaunchConfig) -> tuple[Any, ...]:
    assert config.shared_mem == 0
    return config.grid, config.block


def arguments(config: LaunchConfig) -> list[tuple[Any, ...]]:
    """Return name and type of each argument, with its value, or its extent, access, alignment."""
    return [
        (a.name, a.kind, a.extent, a.access, a.alignment)
        if a.kind == "ptr"
        else (a.name, a.kind, a.value)
        for a in config.args
    ]


def test_quantize_from_buffer_of_a_large_square() -> None:
    config = QuantizeFromBuffer.plan(m=8192, n=8192)
    assert config.source == "quantize_nvfp4.cu"
    assert config.entry == "quantize_nvfp4_from_buffer_kernel"
    assert config.defines == ()
    # 512 groups of 16 per row, 4 per thread: 128 threads on a row, two rows in a block.
    assert geometry(config) == ((4096, 1, 1), (128, 2, 1))
    assert arguments(config) == [
        ("x", "ptr", 134217728, "in", 2),
        ("M", "i32", 8192),
        ("N", "i32", 8192),
        ("gsa", "ptr", 32768, "in", 4),
        ("out_fp4", "ptr", 33554432, "out", 1),
        ("out_sf", "ptr", 4194304, "out", 1),
    ]


def test_quantize_takes_gsa_as_a_number() -> None:
    config = Quantize.plan(m=3, n=48, dtype="float32", scale_layout="128x4")
    assert (config.source, config.entry) == ("quantize_nvfp4.cu", "quantize_nvfp4_kernel")
    assert config.defines == (("NVFP4_INPUT", "2"), ("NVFP4_SCALE_LAYOUT", "1"))
    # 3 groups per row on 4 threads, 64 rows in a block; the padding to 128 rows is covered.
    assert geometry(config) == ((2, 1, 1), (4, 64, 1))
    assert arguments(config) == [
        ("x", "ptr", 576, "in", 4),
        ("M", "i32", 3),
        ("N", "i32", 48),
        ("gsa", "f32", None),
        ("out_fp4", "ptr", 72, "out", 1),
        ("out_sf", "ptr", 512, "out", 1),
    ]


def test_amax_quantize_writes_gsa() -> None:
    config = AmaxQuantize.plan(m=5, n=1024, dtype="float16")
    assert config.source == "amax_quantize_nvfp4.cu"
    assert config.entry == "amax_quantize_nvfp4_kernel"
    assert config.defines == (("NVFP4_INPUT", "1"),)
    assert geometry(config) == ((1, 1, 1), (16, 16, 1))
    assert arguments(config) == [
        ("x", "ptr", 10240, "in", 2),
        ("M", "i32", 5),
        ("N", "i32", 1024),
        ("gsa", "ptr", 20, "out", 4),
        ("out_fp4", "ptr", 2560, "out", 1),
        ("out_sf", "ptr", 320, "out", 1),
    ]


def test_deinterleave_ignores_columns_behind_the_runs() -> None:
    config = DeinterleaveQuantizeFromBuffer.plan(m=7, n=600, intermediate=288, granularity=8)
    assert config.source == "deinterleave_quantize.cu"
    assert config.entry == "deinterleave_quantize_from_buffer_kernel"
    # 18 groups per row, 2 per thread: 16 threads take 32.
    assert geometry(config) == ((1, 1, 1), (16, 16, 1))
    assert arguments(config) == [
        ("fused", "ptr", 8400, "in", 2),
        ("M", "i32", 7),
        ("N", "i32", 600),
        ("intermediate", "i32", 288),
        ("granularity", "i32", 8),
        ("gsa", "ptr", 28, "in", 4),
        ("out_fp4", "ptr", 1008, "out", 1),
        ("out_sf", "ptr", 126, "out", 1),
    ]


def test_dequantize_with_one_decode_scale() -> None:
    config = Dequantize.plan(m=2, n=80, dtype="float32", scale_layout="128x4", gsa_stride=0)
    assert (config.source, config.entry) == ("dequantize_nvfp4.cu", "dequantize_nvfp4_kernel")
    assert config.defines == (("NVFP4_OUTPUT", "2"), ("NVFP4_SCALE_LAYOUT", "1"))
    assert geometry(config) == ((1, 1, 1), (4, 64, 1))
    assert arguments(config) == [
        ("codes", "ptr", 80, "in", 1),
        ("scales", "ptr", 1024, "in", 1),
        ("gsa", "ptr", 4, "in", 4),
        ("out", "ptr", 640, "out", 4),
        ("M", "i32", 2),
        ("N", "i32", 80),
        ("gsa_stride", "u32", 0),
    ]


def test_whole_row_kernels_take_any_number_of_columns() -> None:
    config = AmaxGsa.plan(m=8192, n=8192)
    assert (config.source, config.entry) == ("amax_gsa.cu", "amax_gsa_kernel")
    # 1024 loads of 16 bytes per row, 8 per thread.
    assert geometry(config) == ((4096, 1, 1), (128, 2, 1))
    assert arguments(config)[-1] == ("gsa", "ptr", 32768, "out", 4)
    assert AmaxGsa.plan(m=1, n=10**6 + 1).block == (256, 1, 1)
    config = FindNonfinite.plan(m=3, n=7, dtype="float32")
    assert (config.source, config.entry) == ("check_finite.cu", "find_nonfinite_kernel")
    assert geometry(config) == ((1, 1, 1), (2, 128, 1))
    assert arguments(config) == [
        ("x", "ptr", 84, "in", 4),
        ("M", "i32", 3),
        ("N", "i32", 7),
        ("row_stride", "u64", 7),
        ("first", "ptr", 8, "inout", 8),
    ]
    assert FindNonfinite.plan(m=3, n=7, row_stride=10).args[0].extent == 2 * 27
    with pytest.raises(ValueError, match="row_stride must be at least n=7"):
        FindNonfinite.plan(m=3, n=7, row_stride=6)


@pytest.mark.parametrize(
    ("n", "threads", "blocks"),
    [(16, 1, 1), (32, 2, 1), (48, 4, 1), (64, 4, 1), (1024, 16, 1), (5488, 32, 3), (16384, 256, 1)],
)
def test_threads_of_a_row(n: int, threads: int, blocks: int) -> None:
    config = QuantizeFromBuffer.plan(m=1000, n=n)
    rows = 256 // threads
    assert geometry(config) == ((-(-1000 // rows), blocks, 1), (threads, rows, 1))
    assert threads * blocks * 4 >= n // 16  # 4 groups per thread


@pytest.mark.parametrize(
    ("n", "threads", "defines"),
    [
        (8192, 128, ()),
        (16384, 256, ()),
        (16400, 256, (("NVFP4_HELD_LOADS", "2"),)),
        (32768, 256, (("NVFP4_HELD_LOADS", "2"),)),
        (32784, 256, (("NVFP4_HELD_LOADS", "0"),)),
    ],
)
def test_amax_quantize_holds_rows_that_fit(n: int, threads: int, defines: Any) -> None:
    config = AmaxQuantize.plan(m=4, n=n)
    held = {(): 4, (("NVFP4_HELD_LOADS", "2"),): 8}.get(defines)
    assert (config.block[0], config.defines) == (threads, defines)
    assert held is None or threads * held * 16 >= n


def test_options_are_defines_of_the_same_entry() -> None:
    config = QuantizeFromBuffer.plan(m=1, n=16, rounding="nearest_low", scale_search=2)
    assert config.defines == (("NVFP4_ROUNDING", "1"), ("NVFP4_SCALE_SEARCH", "1"))
    config = AmaxQuantize.plan(m=1, n=16, rounding="nearest_even", scale_search=2)
    assert config.defines == (
        ("NVFP4_HELD_LOADS", "0"),
        ("NVFP4_ROUNDING", "2"),
        ("NVFP4_SCALE_SEARCH", "1"),
    )


def test_loads_are_as_large_as_the_kernel_says() -> None:
    text = sources.find("quantize_rows.cuh").read_text()
    (found,) = re.findall(r"kScaleSearch \? 1 : (\d+) / \(kGroupSize", text)
    assert int(found) == LOAD_BYTES == 128


def test_no_limit_at_65535_rows_or_2_to_the_31_elements() -> None:
    config = QuantizeFromBuffer.plan(m=248320, n=64)
    assert geometry(config) == ((3880, 1, 1), (4, 64, 1))
    config = AmaxQuantize.plan(m=2**20, n=4096)
    assert [a.extent for a in config.args if a.kind == "ptr"] == [2**33, 2**22, 2**31, 2**28]
    # More groups than a grid's y covers at once: blocks go on in steps.
    config = QuantizeFromBuffer.plan(m=1, n=2**31 - 16)
    assert config.grid[1] == 65535


@pytest.mark.parametrize("launcher", QUANTIZERS)
def test_no_rows_launch_nothing(launcher: Any) -> None:
    for layout in ("linear", "128x4"):
        assert launcher.plan(m=0, n=64, scale_layout=layout).is_empty
    assert AmaxGsa.plan(m=0, n=64).is_empty
    assert FindNonfinite.plan(m=0, n=64).is_empty
    assert Dequantize.plan(m=0, n=64).is_empty
    runs = {"n": 64, "intermediate": 32, "granularity": 8}
    assert DeinterleaveQuantizeFromBuffer.plan(m=0, **runs).is_empty


def test_no_columns_launch_nothing_but_what_writes_gsa() -> None:
    assert Quantize.plan(m=5, n=0).is_empty
    assert QuantizeFromBuffer.plan(m=5, n=0, scale_layout="128x4").is_empty
    assert Dequantize.plan(m=5, n=0).is_empty
    runs = {"n": 64, "intermediate": 0, "granularity": 8}
    assert DeinterleaveQuantizeFromBuffer.plan(m=5, **runs).is_empty
    assert AmaxGsa.plan(m=5, n=0).grid == (1, 1, 1)
    assert AmaxQuantize.plan(m=5, n=0).grid == (1, 1, 1)


@pytest.mark.parametrize("launcher", QUANTIZERS)
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"m": 4, "n": 40}, "n must be a multiple of 16, got n=40"),
        ({"m": -1, "n": 16}, "m must not be negative, got m=-1"),
        ({"m": 2**31, "n": 16}, "M must be from -2147483648 to 2147483647"),
        ({"dtype": "float64"}, "dtype must be one of bfloat16, float16, float32, got 'float64'"),
        ({"rounding": "up"}, "rounding must be one of half_step, nearest_low, nearest_even"),
        ({"scale_search": 1}, "scale_search must be 0 or 2, got 1"),
        ({"scale_layout": "4x128"}, "scale_layout must be one of linear, 128x4, got '4x128'"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_refusals_name_the_value(launcher: Any, sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        launcher.plan(**{"m": 4, "n": 16, **sizes})


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"intermediate": 24}, "intermediate must be a multiple of 16, got intermediate=24"),
        ({"granularity": 0}, "granularity must be at least 1 and divide intermediate=32, got 0"),
        ({"granularity": 12}, "granularity must be at least 1 and divide intermediate=32, got 12"),
        ({"n": 63}, "n must be at least 2 * intermediate = 64, got n=63"),
    ],
    ids=str,
)
def test_deinterleave_refusals(sizes: dict[str, int], message: str) -> None:
    fitting = {"m": 4, "n": 64, "intermediate": 32, "granularity": 8}
    with pytest.raises(ValueError, match=re.escape(message)):
        DeinterleaveQuantizeFromBuffer.plan(**{**fitting, **sizes})


def test_dequantize_refusals() -> None:
    with pytest.raises(ValueError, match="gsa_stride must be 0 or 1, got 2"):
        Dequantize.plan(m=1, n=16, gsa_stride=2)
    with pytest.raises(ValueError, match="n must be a multiple of 16, got n=8"):
        Dequantize.plan(m=1, n=8)
