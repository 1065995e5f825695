from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden import GemmCase, SeedCase, assert_bytes_equal, gemm_cases, seed_cases

from nvfp4cupy import formats, layouts, reference
from nvfp4cupy.reference.chunks import CHUNK_VALUES

BF16 = formats.bfloat16()


def random(m: int, k: int) -> Any:
    return np.random.default_rng(k).standard_normal((m, k)).astype(np.float32).astype(BF16)


@pytest.mark.parametrize("case", seed_cases("act_"), ids=str)
def test_activations_give_the_golden_bytes(case: SeedCase) -> None:
    blocks = reference.nvfp4_mmq_quantize_act(case.inputs["x"])
    assert_bytes_equal(blocks.reshape(-1, 144), case.outputs[0], "block_fp4_mmq")


@pytest.mark.parametrize("case", gemm_cases(), ids=str)
def test_repack_and_unpack_are_inverses_on_the_golden_weights(case: GemmCase) -> None:
    blocks = reference.nvfp4_mmq_repack(case.w_packed, case.w_scales)
    assert_bytes_equal(blocks, case.w_blocks, "block_nvfp4")
    packed, scales = reference.nvfp4_mmq_unpack(blocks)
    assert_bytes_equal(packed, case.w_packed, "codes")
    assert_bytes_equal(scales, case.w_scales, "scales")
    swapped = case.w_packed << 4 | case.w_packed >> 4
    got = reference.nvfp4_mmq_repack(swapped, case.w_scales, nibble_order="high_first")
    assert_bytes_equal(got, case.w_blocks, "block_nvfp4")


@pytest.mark.parametrize("k", [1, 15, 16, 17, 48, 255, 256, 257, 5488, CHUNK_VALUES + 40])
def test_a_tail_counts_as_zeros(k: int) -> None:
    x = random(3, k)
    padded = np.zeros((3, layouts.kpad(k)), BF16)
    padded[:, :k] = x
    blocks = reference.nvfp4_mmq_quantize_act(x)
    assert blocks.shape == (layouts.kpad(k) // 256, 3, 144)
    assert_bytes_equal(blocks, reference.nvfp4_mmq_quantize_act(padded), "block_fp4_mmq")
    packed, scales = layouts.block_fp4_mmq_to_linear(blocks)
    assert not formats.unpack_codes(packed)[:, k:].any()
    assert not scales[:, layouts.div_ceil(k, 16) :].any()


@pytest.mark.parametrize("k", [48, 256, 5488, CHUNK_VALUES + 272])
def test_blocks_hold_what_the_linear_quantizer_with_search_gives(k: int) -> None:
    x = random(5, k)
    codes, scales = reference.quantize_nvfp4(x, 1.0, rounding="nearest_low", scale_search=2)
    packed, block_scales = layouts.block_fp4_mmq_to_linear(reference.nvfp4_mmq_quantize_act(x))
    assert_bytes_equal(packed[:, : k // 2], codes, "codes")
    assert_bytes_equal(block_scales[:, : k // 16], scales, "scales")


@pytest.mark.parametrize("k", [40, 256, CHUNK_VALUES + 300])
def test_row_scale_quantizes_rows_divided_by_their_own_scale(k: int) -> None:
    x = random(4, k) * np.array([[1e6], [1], [1e-6], [0]], BF16)
    blocks, row_scale = reference.nvfp4_mmq_quantize_act(x, row_scale=True)
    assert_bytes_equal(row_scale, reference.amax_gsa(x))
    divided = formats.to_float32(x) / row_scale[:, None]
    assert_bytes_equal(blocks, reference.nvfp4_mmq_quantize_act(divided), "block_fp4_mmq")


def test_a_group_with_a_non_finite_value_keeps_only_its_signs() -> None:
    x = np.ones((1, 256), np.float32)
    x[0, :16] = [np.inf, -np.inf, np.nan, -1] + [-2] * 12
    packed, scales = layouts.block_fp4_mmq_to_linear(reference.nvfp4_mmq_quantize_act(x))
    assert list(scales[0, :2]) == [0, formats.e4m3_encode(np.array(1 / 6, np.float32))]
    assert list(formats.unpack_codes(packed)[0, :16]) == [0, 8, 0, 8] + [8] * 12


@pytest.mark.parametrize(("m", "k"), [(0, 256), (3, 0), (0, 0), (0, 5)])
def test_empty_activations(m: int, k: int) -> None:
    blocks, row_scale = reference.nvfp4_mmq_quantize_act(np.zeros((m, k), BF16), row_scale=True)
    assert blocks.shape == layouts.block_fp4_mmq_shape(m, k)
    assert_bytes_equal(row_scale, np.ones(m, np.float32))
