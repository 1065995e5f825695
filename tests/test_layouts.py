from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden import assert_bytes_equal, gemm_cases
from hypothesis import given, settings
from hypothesis import strategies as st

from nvfp4cupy import formats, layouts
from nvfp4cupy.reference.dequantize import decode_linear


def random_linear(rows: int, k: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    packed = rng.integers(0, 256, (rows, k // 2), dtype=np.uint8)
    return packed, rng.integers(0, 256, (rows, k // 16), dtype=np.uint8)


@pytest.mark.parametrize(("mmq_x", "smem"), [(16, 42048), (32, 44160), (64, 48384), (128, 57856)])
def test_shared_memory_of_each_tile(mmq_x: int, smem: int) -> None:
    assert layouts.nvfp4_mmq_smem(mmq_x) == smem
    assert layouts.NVFP4_MMQ_SMEM == 57856


@pytest.mark.parametrize("mmq_x", [0, 8, 48, 256])
def test_shared_memory_of_another_tile_is_refused(mmq_x: int) -> None:
    with pytest.raises(ValueError, match=f"mmq_x must be one of 16, 32, 64, 128, got {mmq_x}"):
        layouts.nvfp4_mmq_smem(mmq_x)


def test_sizes_and_shapes_against_numbers_worked_out_by_hand() -> None:
    assert layouts.nvfp4_mmq_weight_bytes(17408, 5120) == 17408 * 80 * 36 == 50135040
    assert layouts.fp4_act_scratch_bytes(5, 257) == 5 * 2 * 144 + 1048576
    assert layouts.fp4_act_scratch_bytes(0, 0) == 1048576
    assert [layouts.kpad(k) for k in (0, 1, 256, 257)] == [0, 256, 256, 512]
    assert layouts.block_nvfp4_shape(3, 128) == (3, 2, 36)
    assert layouts.block_fp4_mmq_shape(3, 300) == (2, 3, 144)
    assert layouts.swizzled_scales_shape(129, 5) == (256, 8)
    assert layouts.scales_shape(129, 5, "linear") == (129, 5)
    assert layouts.scales_shape(0, 5, "128x4") == (0, 8)
    assert (layouts.div_ceil(7, 4), layouts.round_up(7, 4), layouts.div_ceil(2**40, 3)) == (
        2,
        8,
        366503875926,
    )


def test_sizes_refuse_a_k_that_has_no_whole_blocks() -> None:
    with pytest.raises(ValueError, match="k must be a multiple of 64, got k=96"):
        layouts.nvfp4_mmq_weight_bytes(1, 96)
    with pytest.raises(ValueError, match="scale_layout must be one of linear, 128x4, got 'x'"):
        layouts.scales_shape(1, 1, "x")  # type: ignore[arg-type]


def test_block_nvfp4_puts_each_code_and_scale_where_the_format_says() -> None:
    packed, scales = random_linear(3, 192)
    codes = formats.unpack_codes(packed)
    blocks = layouts.linear_to_block_nvfp4(packed, scales)
    for n, block, s, j in np.ndindex(3, 3, 4, 8):
        first = 64 * block + 16 * s + j
        assert blocks[n, block, 4 + 8 * s + j] == codes[n, first] | codes[n, first + 8] << 4
        assert blocks[n, block, s] == scales[n, 4 * block + s]


def test_block_fp4_mmq_puts_each_code_and_scale_where_the_format_says() -> None:
    packed, scales = random_linear(3, 512)
    codes = formats.unpack_codes(packed)
    blocks = layouts.linear_to_block_fp4_mmq(packed, scales)
    assert blocks.shape == (2, 3, 144)
    for m, block, s, j in np.ndindex(3, 2, 16, 8):
        first = 256 * block + 16 * s + j
        assert blocks[block, m, 16 + 8 * s + j] == codes[m, first] | codes[m, first + 8] << 4
        assert blocks[block, m, s] == scales[m, 16 * block + s]


@pytest.mark.parametrize("case", gemm_cases(), ids=str)
def test_block_nvfp4_matches_the_golden_blocks(case: Any) -> None:
    blocks = layouts.linear_to_block_nvfp4(case.w_packed, case.w_scales)
    assert_bytes_equal(blocks, case.w_blocks, "block_nvfp4")


def test_ggufs_decoder_reads_block_nvfp4() -> None:
    quants = pytest.importorskip("gguf.quants")
    packed, scales = random_linear(32, 256)
    scales &= 0x7F
    scales[scales == 0x7F] = 0x7E  # that decoder reads NaN as 0
    blocks = layouts.linear_to_block_nvfp4(packed, scales)
    decoded = quants.NVFP4.dequantize_blocks(blocks.reshape(-1, 36)).reshape(32, 256)
    np.testing.assert_array_equal(decoded, decode_linear(packed, scales))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 9), st.integers(0, 7), st.integers(0, 2**32 - 1))
def test_block_layouts_are_bijections(rows: int, num_blocks: int, seed: int) -> None:
    packed, scales = random_linear(rows, 64 * num_blocks, seed)
    there = layouts.linear_to_block_nvfp4(packed, scales)
    assert there.size == packed.size + scales.size
    back = layouts.block_nvfp4_to_linear(there)
    assert_bytes_equal(back[0], packed, "codes")
    assert_bytes_equal(back[1], scales, "scales")
    assert_bytes_equal(layouts.linear_to_block_nvfp4(*back), there, "block_nvfp4")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 9), st.integers(0, 4), st.integers(0, 2**32 - 1))
def test_activation_blocks_are_bijections(rows: int, num_blocks: int, seed: int) -> None:
    packed, scales = random_linear(rows, 256 * num_blocks, seed)
    there = layouts.linear_to_block_fp4_mmq(packed, scales)
    assert there.size == packed.size + scales.size
    back = layouts.block_fp4_mmq_to_linear(there)
    assert_bytes_equal(back[0], packed, "codes")
    assert_bytes_equal(back[1], scales, "scales")


def test_swapped_nibbles_are_read_right_with_the_option() -> None:
    packed, scales = random_linear(5, 128)
    swapped = packed >> 4 | packed << 4
    expected = layouts.linear_to_block_nvfp4(packed, scales)
    got = layouts.linear_to_block_nvfp4(swapped, scales, nibble_order="high_first")
    assert_bytes_equal(got, expected, "block_nvfp4")
    with pytest.raises(ValueError, match="nibble_order must be one of low_first, high_first"):
        layouts.linear_to_block_nvfp4(packed, scales, nibble_order="odd")  # type: ignore[arg-type]


def test_conversions_accept_views_of_any_strides() -> None:
    packed, scales = random_linear(8, 256)
    view = np.asfortranarray(packed)[::2], scales[::2]
    expected = layouts.linear_to_block_nvfp4(packed[::2].copy(), scales[::2].copy())
    assert_bytes_equal(layouts.linear_to_block_nvfp4(*view), expected)
    blocks = np.stack([expected, expected], axis=-1)[..., 0]
    assert_bytes_equal(layouts.block_nvfp4_to_linear(blocks)[0], packed[::2])


def test_conversions_refuse_shapes_that_do_not_fit() -> None:
    packed, scales = random_linear(2, 64)
    with pytest.raises(ValueError, match=r"scales must be \(2, 4\) for packed \(2, 32\)"):
        layouts.linear_to_block_nvfp4(packed, scales[:, :3])
    with pytest.raises(ValueError, match=r"k a multiple of 256, got shape \(2, 32\)"):
        layouts.linear_to_block_fp4_mmq(packed, scales)
    with pytest.raises(ValueError, match=r"\(n, k/64, 36\), got \(2, 32\)"):
        layouts.block_nvfp4_to_linear(packed)
    with pytest.raises(ValueError, match=r"\(kpad/256, m, 144\), got \(2, 1, 36\)"):
        layouts.block_fp4_mmq_to_linear(np.zeros((2, 1, 36), np.uint8))


@pytest.mark.parametrize("rows", [1, 31, 32, 127, 128, 129, 300])
@pytest.mark.parametrize("cols", [1, 3, 4, 5, 180])
def test_swizzle_follows_the_formula_and_zeroes_the_padding(rows: int, cols: int) -> None:
    scales = np.random.default_rng(rows).integers(1, 256, (rows, cols), dtype=np.uint8)
    r, c = np.indices((rows, cols))
    place = (r // 128 * layouts.div_ceil(cols, 4) + c // 4) * 512
    place += r % 32 * 16 + r % 128 // 32 * 4 + c % 4
    expected = np.zeros(layouts.swizzled_scales_shape(rows, cols), np.uint8)
    expected.reshape(-1)[place] = scales
    swizzled = layouts.swizzle_scales(scales)
    assert_bytes_equal(swizzled, expected, "scales")
    assert_bytes_equal(layouts.unswizzle_scales(swizzled, rows, cols), scales, "scales")


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 3), st.integers(0, 5))
def test_swizzle_permutes_whole_tiles(row_tiles: int, col_tiles: int) -> None:
    count = 512 * row_tiles * col_tiles
    for shift in (0, 8):  # two bytes together number every place
        numbers = (np.arange(count) >> shift).astype(np.uint8)
        scales = numbers.reshape(128 * row_tiles, 4 * col_tiles)
        swizzled = layouts.swizzle_scales(scales)
        assert sorted(swizzled.ravel()) == sorted(numbers)
        assert_bytes_equal(layouts.unswizzle_scales(swizzled, *scales.shape), scales)


def test_swizzle_keeps_one_byte_types_and_refuses_others() -> None:
    import ml_dtypes

    scales = np.ones((3, 3), ml_dtypes.float8_e4m3fn)
    assert layouts.swizzle_scales(scales).dtype == scales.dtype
    with pytest.raises(TypeError, match="scales must have one-byte items, got float32"):
        layouts.swizzle_scales(np.ones((3, 3), np.float32))
    with pytest.raises(ValueError, match=r"scales must be \(rows, cols\), got shape \(3,\)"):
        layouts.swizzle_scales(np.ones(3, np.uint8))
    with pytest.raises(ValueError, match=r"\(128, 4\) for 3 rows and 3 columns, got shape"):
        layouts.unswizzle_scales(np.ones((3, 3), np.uint8), 3, 3)
