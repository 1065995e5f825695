from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden import SeedCase, assert_bytes_equal, seed_cases

from nvfp4cupy import formats, reference
from nvfp4cupy.reference.chunks import CHUNK_VALUES
from nvfp4cupy.reference.exp import exp

BF16 = formats.bfloat16()


def silu_inputs(case: SeedCase) -> tuple[Any, ...]:
    names = ("gate", "up", "gate_scale", "up_scale")
    return tuple(case.inputs[name] for name in names)


def limit(case: SeedCase) -> float | None:
    return 10.0 if case.name.endswith("clamp10") else None


def random(m: int, k: int, seed: int) -> Any:
    x = np.random.default_rng(seed).standard_normal((m, k)) * 8
    return formats.to_bfloat16(x.astype(np.float32))


@pytest.mark.parametrize("case", seed_cases("silu_mul_scaled"), ids=str)
def test_silu_mul_scaled_gives_the_golden_bytes(case: SeedCase) -> None:
    h = reference.nvfp4_silu_mul_scaled(*silu_inputs(case), swiglu_limit=limit(case))
    assert_bytes_equal(h.view(np.uint16), case.outputs[0])


@pytest.mark.parametrize("case", seed_cases("silu_mul_quant"), ids=str)
def test_silu_mul_quant_gives_the_golden_bytes(case: SeedCase) -> None:
    blocks = reference.nvfp4_silu_mul_quant(*silu_inputs(case), swiglu_limit=limit(case))
    assert_bytes_equal(blocks.reshape(-1, 144), case.outputs[0], "block_fp4_mmq")


@pytest.mark.parametrize("case", seed_cases("scale_bf16"), ids=str)
def test_scale_bf16_gives_the_golden_bytes(case: SeedCase) -> None:
    got = reference.nvfp4_scale_bf16(case.inputs["x"], float(case.inputs["scale"]))
    assert_bytes_equal(got.view(np.uint16), case.outputs[0])


@pytest.mark.parametrize("swiglu_limit", [10.0, 7.0, None])
def test_silu_mul_scaled_is_near_the_float64_value(swiglu_limit: float | None) -> None:
    gate, up = random(5, 300, 0), random(5, 300, 1)
    got = reference.nvfp4_silu_mul_scaled(gate, up, 0.75, -1.5, swiglu_limit=swiglu_limit)
    top = np.inf if swiglu_limit is None else swiglu_limit
    g = np.minimum(gate.astype(np.float64) * 0.75, top)
    u = np.clip(up.astype(np.float64) * -1.5, -top, top)
    expected = g / (1 + np.exp(-g)) * u
    # bf16 rounds by 2^-8 of the value; the float32 steps before (exp within 2 ulp, four more
    # roundings) add less than 2^-20 of it; g and u are exact products of 8-bit numbers.
    assert (
        np.abs(got.astype(np.float64) - expected) <= np.abs(expected) * (2.0**-8 + 2.0**-20)
    ).all()


def test_clamps_let_nan_through_and_extremes_are_defined() -> None:
    gate = np.array([np.nan, 1, np.inf, -np.inf, -100, 100, 1, -0.0], np.float32).astype(BF16)
    up = np.array([1, np.nan, 1, 1, 1, 100, -np.inf, 1], np.float32).astype(BF16)
    with np.errstate(over="ignore"):
        got = reference.nvfp4_silu_mul_scaled(gate, up, 1.0, 1.0)
    silu = [float(10 / (1 + np.exp(-10.0))), float(1 / (1 + np.exp(-1.0)))]
    expected = np.array([0, 0, silu[0], 0, -0.0, 10 * silu[0], -10 * silu[1], -0.0])
    bits = formats.to_bfloat16_bits(expected.astype(np.float32))
    bits[[0, 1, 3]] = 0x7FFF  # a gate of -infinity is -inf / inf
    assert_bytes_equal(got.view(np.uint16), bits)


@pytest.mark.parametrize("k", [40, 256, CHUNK_VALUES + 40])
@pytest.mark.parametrize("row_scale", [False, True])
def test_round_intermediate_is_the_two_separate_calls(k: int, row_scale: bool) -> None:
    gate, up = random(3, k, 0), random(3, k, 1)
    h = reference.nvfp4_silu_mul_scaled(gate, up, 0.5, 2.0)
    expected = reference.nvfp4_mmq_quantize_act(h, row_scale=row_scale)
    got = reference.nvfp4_silu_mul_quant(
        gate, up, 0.5, 2.0, round_intermediate=True, row_scale=row_scale
    )
    pairs = zip(got, expected, strict=True) if row_scale else [(got, expected)]
    for a, b in pairs:
        assert_bytes_equal(a, b)


def test_without_it_the_float32_value_is_quantized() -> None:
    gate, up = random(4, 256, 0), random(4, 256, 1)
    g = formats.to_float32(gate) * np.float32(0.3)
    u = np.clip(formats.to_float32(up) * np.float32(0.7), -10, 10)
    g = np.minimum(g, 10)
    h = (g / (1 + exp(-g)) * u).astype(np.float32)
    got, scale = reference.nvfp4_silu_mul_quant(gate, up, 0.3, 0.7, row_scale=True)
    expected = reference.nvfp4_mmq_quantize_act(h, row_scale=True)
    assert_bytes_equal(scale, expected[1])
    assert_bytes_equal(got, expected[0], "block_fp4_mmq")


def test_arguments_that_do_not_fit_are_refused() -> None:
    gate, up = random(2, 16, 0), random(2, 32, 1)
    with pytest.raises(ValueError, match=r"up must have the shape of gate, \(2, 16\), got \(2, 32"):
        reference.nvfp4_silu_mul_scaled(gate, up, 1.0, 1.0)
    with pytest.raises(ValueError, match="swiglu_limit must be above zero or None, got 0"):
        reference.nvfp4_silu_mul_quant(gate, gate, 1.0, 1.0, swiglu_limit=0)


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0,)])
def test_empty_inputs(shape: tuple[int, ...]) -> None:
    empty = np.zeros(shape, BF16)
    assert reference.nvfp4_silu_mul_scaled(empty, empty, 1.0, 1.0).shape == shape
    assert reference.nvfp4_scale_bf16(empty, 1.0).shape == shape
