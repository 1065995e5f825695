from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden import GemmCase, assert_bytes_equal, gemm_cases

from nvfp4cupy import formats, layouts, reference

BF16 = formats.bfloat16()


def operands(m: int, n: int, k: int, seed: int = 0) -> tuple[Any, Any, Any]:
    """Activations as bf16 and as blocks, weights as blocks with scales of many sizes."""
    rng = np.random.default_rng(seed)
    x = formats.to_bfloat16(rng.standard_normal((m, k)).astype(np.float32))
    packed = rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
    scales = rng.integers(8, 0x60, (n, k // 16), dtype=np.uint8)
    return (
        x,
        reference.nvfp4_mmq_quantize_act(x),
        layouts.linear_to_block_nvfp4(packed, scales),
    )


def decoded(a: Any, blocks: Any) -> tuple[Any, Any]:
    """Both operands in float64 by ways of their own: the public dequantizer, block by block."""
    packed, scales = layouts.block_fp4_mmq_to_linear(a)
    w_packed, w_scales = layouts.block_nvfp4_to_linear(blocks)
    values = reference.dequantize_nvfp4(packed, scales, 1.0, dtype="float32")
    weights = reference.dequantize_nvfp4(w_packed, w_scales, 1.0, dtype="float32")
    return values[:, : weights.shape[1]].astype(np.float64), weights.astype(np.float64)


@pytest.mark.parametrize("case", gemm_cases(), ids=str)
def test_exact_cases_give_the_golden_bits(case: GemmCase) -> None:
    assert_bytes_equal(reference.nvfp4_mmq_gemm(case.a_blocks, case.w_blocks), case.out)


@pytest.mark.parametrize("case", gemm_cases(), ids=str)
def test_exact_cases_give_the_golden_bits_with_plain_activations(case: GemmCase) -> None:
    packed, scales = layouts.block_fp4_mmq_to_linear(case.a_blocks)
    x = reference.dequantize_nvfp4(packed, scales, 1.0)[:, : case.k]  # exact: 6 bits
    assert_bytes_equal(reference.nvfp4_w4a16_gemm(x, case.w_blocks), case.out)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 64), (5, 7, 192), (33, 129, 832), (2, 3, 5440)])
def test_results_are_within_the_bound(m: int, n: int, k: int, dtype: Any) -> None:
    x, a, blocks = operands(m, n, k)
    scale = np.linspace(1e-4, 2e-3, n).astype(np.float32)
    rows = np.linspace(0.1, 3, m).astype(np.float32)
    options: dict[str, Any] = {"out_scale": scale, "row_scale": rows}
    exact = decoded(a, blocks)[0] @ decoded(a, blocks)[1].T * scale * rows[:, None].astype(float)
    out = reference.nvfp4_mmq_gemm(a, blocks, dtype=dtype, **options)
    bound = reference.gemm_error_bound(a, blocks, dtype=dtype, steps=k // 64, **options)
    # float64: at most k + 2 roundings of 2^-53, far below one float32 step of the bound.
    assert (np.abs(out.astype(np.float64) - exact) <= bound).all()
    assert (bound <= np.abs(exact) * 2.0**-7 + 1e-2).all()
    out = reference.nvfp4_w4a16_gemm(x, blocks, out_scale=scale, dtype=dtype)
    bound = reference.gemm_error_bound(x, blocks, out_scale=scale, dtype=dtype, steps=k // 64)
    exact = x.astype(np.float64) @ decoded(a, blocks)[1].T * scale
    assert (np.abs(out.astype(np.float64) - exact) <= bound).all()


def test_float32_sums_add_one_rounded_block_of_64_after_another() -> None:
    _, a, blocks = operands(9, 11, 1024)
    values, weights = decoded(a, blocks)
    total = np.zeros((9, 11), np.float32)
    for left in range(0, 1024, 64):
        step = slice(left, left + 64)
        total = total + (values[:, step] @ weights[:, step].T).astype(np.float32)
    assert_bytes_equal(reference.nvfp4_mmq_gemm(a, blocks, dtype="float32"), total)


def test_scales_fold_in_float32_before_the_one_rounding() -> None:
    _, a, blocks = operands(4, 6, 128)
    total = reference.nvfp4_mmq_gemm(a, blocks, dtype="float32")
    columns = np.random.default_rng(1).random(6).astype(np.float32)
    rows = np.random.default_rng(2).random(4).astype(np.float32)
    got = reference.nvfp4_mmq_gemm(a, blocks, out_scale=columns, row_scale=rows)
    assert_bytes_equal(got, formats.to_bfloat16(total * columns * rows[:, None]))
    for one in (0.5, np.array([0.5], np.float32)):
        got = reference.nvfp4_mmq_gemm(a, blocks, out_scale=one)
        assert_bytes_equal(got, formats.to_bfloat16(total * np.float32(0.5)))


def test_float16_overflows_to_infinity_unless_the_folded_scale_brings_it_back() -> None:
    a = np.full((1, 1, 144), 0x77, np.uint8)  # codes 6
    a[..., :16] = 0x50  # scale 8
    blocks = layouts.linear_to_block_nvfp4(
        np.full((1, 128), 0x77, np.uint8), np.full((1, 16), 0x48, np.uint8)
    )
    total = 256 * (6 * 8) * (6 * 4)
    assert total > 65504
    assert reference.nvfp4_mmq_gemm(a, blocks, dtype="float16") == np.inf
    assert reference.nvfp4_mmq_gemm(a, blocks).astype(float) == 294912 == total
    folded = reference.nvfp4_mmq_gemm(a, blocks, out_scale=2.0**-4, dtype="float16")
    assert folded == total / 16


def test_the_bound_holds_for_other_orders_and_notices_one_wrong_code() -> None:
    _, a, blocks = operands(8, 24, 512)
    values, weights = decoded(a, blocks)
    total = np.zeros((8, 24), np.float32)
    for j in reversed(range(512)):  # one float32 addition per product, k descending
        total += (values[:, j, None] * weights[:, j]).astype(np.float32)
    exact = reference.gemm_float64(a, blocks)
    bound = reference.gemm_error_bound(a, blocks, dtype="float32", steps=512)
    assert (np.abs(total - exact) <= bound).all()
    wrong = blocks.copy()
    wrong[3, 2, 20] ^= 0x04  # one weight moves by at least 1.5 times its scale
    moved = reference.nvfp4_mmq_gemm(a, wrong, dtype="float32")
    bound = reference.gemm_error_bound(a, blocks, dtype="float32")
    assert (np.abs(moved - exact) > bound)[:, 3].any()


def test_the_bound_is_infinite_where_the_output_may_overflow() -> None:
    _, a, blocks = operands(2, 3, 64)
    options: dict[str, Any] = {"out_scale": 1e6}
    assert np.isinf(reference.gemm_error_bound(a, blocks, dtype="float16", **options)).any()
    assert np.isfinite(reference.gemm_error_bound(a, blocks, dtype="bfloat16", **options)).all()


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 64), (5, 0, 64), (5, 3, 0), (0, 0, 0)])
def test_empty_products(m: int, n: int, k: int) -> None:
    x, a, blocks = operands(m, n, k)
    for out in (reference.nvfp4_mmq_gemm(a, blocks), reference.nvfp4_w4a16_gemm(x, blocks)):
        assert_bytes_equal(out, np.zeros((m, n), BF16))


def test_a_nan_scale_makes_only_its_row_nan() -> None:
    _, a, blocks = operands(2, 3, 64)
    blocks[1, 0, 2] = 0x7F
    out = reference.nvfp4_mmq_gemm(a, blocks)
    assert (out.view(np.uint16)[:, 1] == 0x7FFF).all()
    assert not np.isnan(out[:, [0, 2]].astype(np.float32)).any()


def test_operands_that_do_not_fit_are_refused() -> None:
    x, a, blocks = operands(2, 3, 320)
    with pytest.raises(ValueError, match=r"a must have shape \(2, m, 144\) for k=320, got \(1, 2"):
        reference.nvfp4_mmq_gemm(a[:1], blocks)
    with pytest.raises(TypeError, match="a must be uint8 blocks of quantized activations, got"):
        reference.nvfp4_mmq_gemm(x, blocks)
    with pytest.raises(ValueError, match=r"x must have shape \(m, 320\), got \(2, 319\)"):
        reference.nvfp4_w4a16_gemm(x[:, :-1], blocks)
    with pytest.raises(ValueError, match=r"blocks must have shape \(n, k/64, 36\), got \(3, 5\)"):
        reference.nvfp4_mmq_gemm(a, blocks[..., 0])
    with pytest.raises(ValueError, match=r"out_scale must be a number or have shape \(3,\)"):
        reference.nvfp4_mmq_gemm(a, blocks, out_scale=np.ones(2, np.float32))
