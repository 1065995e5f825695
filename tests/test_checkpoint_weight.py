from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_checkpoint_builders import assert_same_weight, random_weight

from nvfp4cupy.checkpoint import NVFP4Weight, stack_experts
from nvfp4cupy.layouts import linear_to_block_nvfp4

EXPERTS = st.none() | st.integers(0, 3)


@settings(max_examples=40)
@given(st.integers(0, 5), st.integers(0, 4), EXPERTS, st.integers(0, 99))
def test_moving_to_blocks_and_back_keeps_every_bit(
    n: int, num_blocks: int, experts: int | None, seed: int
) -> None:
    weight = random_weight(n, 64 * num_blocks, experts, seed=seed, input_scale=2.0)
    blocks = weight.to_layout("block_nvfp4")
    assert blocks.scales is None
    assert blocks.shape == weight.shape
    assert_same_weight(blocks.to_layout("linear"), weight)
    assert_same_weight(blocks, weight)


def test_blocks_are_those_of_the_layout_module() -> None:
    weight = random_weight(3, 192, 2)
    codes, scales = weight.linear()
    for i in range(2):
        np.testing.assert_array_equal(weight.blocks[i], linear_to_block_nvfp4(codes[i], scales[i]))


def test_a_weight_is_itself_in_its_own_layout() -> None:
    weight = random_weight()
    assert weight.to_layout("linear") is weight


def test_decoded_values_are_code_times_scales() -> None:
    # Codes 2 (1.0) and 0xF (-6), block scale 0x40 (2.0), decode scale 0.5: 1 and -6.
    codes = np.full((1, 32), 0xF2, np.uint8)
    weight = NVFP4Weight(codes, np.full((1, 4), 0x40, np.uint8), np.float32(0.5))
    for dtype in ("float32", "float16", "bfloat16"):
        values = weight.dequantize(dtype)
        assert values.dtype.name == dtype
        np.testing.assert_array_equal(values[0, :4].astype(np.float32), [1, -6, 1, -6])


def test_decoded_values_are_the_same_in_both_layouts_and_stacked() -> None:
    weight = random_weight(4, 128, 3)
    values = weight.dequantize("float32")
    blocks = weight.to_layout("block_nvfp4")
    np.testing.assert_array_equal(blocks.dequantize("float32"), values)
    np.testing.assert_array_equal(blocks.expert(2).dequantize("float32"), values[2])


def test_a_nan_scale_decodes_to_nan() -> None:
    weight = random_weight(2, 64)
    scales = weight.linear()[1].copy()
    scales[1, 2] = 0x7F
    values = dataclasses.replace(weight, scales=scales).dequantize("float32")
    assert np.isnan(values[1, 32:48]).all()
    assert not np.isnan(values).sum() > 16


def test_sizes() -> None:
    weight = random_weight(16, 128)
    assert weight.shape == (16, 128)
    assert weight.nbytes == 16 * 64 + 16 * 8 + 4
    assert weight.to_layout("block_nvfp4").nbytes == weight.nbytes
    assert weight.bits_per_value == 4.5 + 32 / (16 * 128)


def test_stack_undoes_expert() -> None:
    stack = random_weight(3, 64, 4, input_scale=0.25)
    assert_same_weight(stack_experts([stack.expert(i) for i in range(4)]), stack)
    assert stack.num_experts == 4
    assert stack.expert(1).num_experts is None
    assert stack.expert(3).decode_scale == stack.decode_scale[3]


def test_stack_refuses_different_shapes() -> None:
    with pytest.raises(ValueError, match="matrices of one shape"):
        stack_experts([random_weight(3, 64), random_weight(4, 64)])


def test_gate_and_up_halves() -> None:
    fused = random_weight(6, 64, name="mlp.gate_up_proj.weight")
    gate, up = fused.split_gate_up()
    assert (gate.name, up.name) == ("mlp.gate_proj.weight", "mlp.up_proj.weight")
    values = fused.dequantize("float32")
    np.testing.assert_array_equal(gate.dequantize("float32"), values[:3])
    np.testing.assert_array_equal(up.dequantize("float32"), values[3:])


@pytest.mark.parametrize("experts", [None, 2])
@pytest.mark.parametrize("layout", ["linear", "block_nvfp4"])
def test_gate_and_up_runs_that_take_turns(experts: int | None, layout: str) -> None:
    fused = random_weight(8, 64, experts).to_layout(layout)
    gate, up = fused.split_gate_up(granularity=2)
    values = fused.dequantize("float32")
    np.testing.assert_array_equal(gate.dequantize("float32"), values[..., [0, 1, 4, 5], :])
    np.testing.assert_array_equal(up.dequantize("float32"), values[..., [2, 3, 6, 7], :])


@pytest.mark.parametrize(("n", "granularity"), [(5, None), (6, 2), (6, 0), (6, -1)])
def test_rows_that_do_not_split(n: int, granularity: int | None) -> None:
    with pytest.raises(ValueError, match="does not split"):
        random_weight(n, 64).split_gate_up(granularity)


def test_float8_scales_are_taken_as_bytes() -> None:
    weight = random_weight()
    codes, scales = weight.linear()
    viewed = NVFP4Weight(codes, scales.view(ml_dtypes.float8_e4m3fn), weight.decode_scale)
    assert_same_weight(viewed, weight)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"codes": np.zeros((2, 32), np.int8)}, TypeError, "codes of w must be uint8, got int8"),
        ({"codes": [[0]]}, TypeError, "codes of w must be a NumPy array, got list"),
        ({"codes": np.zeros((2, 20), np.uint8)}, ValueError, "k a multiple of 64"),
        ({"codes": np.zeros(32, np.uint8)}, ValueError, "must be"),
        ({"scales": np.zeros((2, 5), np.uint8)}, ValueError, r"shape \(2, 4\), got \(2, 5\)"),
        ({"scales": None}, ValueError, "got None"),
        ({"layout": "tiles"}, ValueError, "layout must be one of linear, block_nvfp4, got 'tiles'"),
        ({"layout": "block_nvfp4"}, ValueError, r"\(..., n, k/64, 36\)"),
        (
            {"decode_scale": np.ones(2, np.float32)},
            ValueError,
            "decode_scale of w must be a number",
        ),
        ({"input_scale": np.ones(1, np.float32)}, ValueError, "input_scale of w"),
    ],
)
def test_bad_arguments(changes: dict, error: type[Exception], message: str) -> None:
    arguments = {
        "codes": np.zeros((2, 32), np.uint8),
        "scales": np.zeros((2, 4), np.uint8),
        "decode_scale": np.float32(1),
        "name": "w",
    }
    with pytest.raises(error, match=message):
        NVFP4Weight(**(arguments | changes))


def test_bad_layout_and_expert() -> None:
    with pytest.raises(ValueError, match="layout must be one of"):
        random_weight().to_layout("tiles")
    with pytest.raises(ValueError, match="has no expert 0"):
        random_weight().expert(0)
    with pytest.raises(ValueError, match="has no expert 3"):
        random_weight(experts=3).expert(3)


def test_a_weight_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        random_weight().name = "y"
