"""The bench's selftest covers every kernel, and its products are exact in any order."""

from __future__ import annotations

import numpy as np
import pytest
from bench_fakes import WITH_KERNEL

from nvfp4cupy import layouts, ops, reference
from nvfp4cupy.bench import selftest
from nvfp4cupy.bench.exact import MAX_EXACT_K, act_operand, plain_operand, weight_operand


def test_exact_operands_sum_exactly_in_any_order() -> None:
    k = 7168
    assert k <= MAX_EXACT_K == 7281
    a = reference.dequantize_nvfp4(*_linear(act_operand(2, k)), 1.0, dtype="float32")
    w = reference.dequantize_nvfp4(*_linear(weight_operand(3, k)), 1.0, dtype="float32")
    x = plain_operand(2, k).astype(np.float32)
    for left in (a, x):
        products = left[:, None, :] * w[None]
        assert set(np.unique(products * 16 % 1)) == {0.0}
        sums = [np.cumsum(p, axis=-1, dtype=np.float32) for p in (products, products[..., ::-1])]
        assert np.array_equal(sums[0][..., -1], sums[1][..., -1])
        assert np.abs(products).sum(axis=-1).max() < 2**20


def _linear(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if blocks.shape[2] == layouts.NVFP4_BLOCK_BYTES:
        return layouts.block_nvfp4_to_linear(blocks)
    return layouts.block_fp4_mmq_to_linear(blocks)


def test_the_selftest_covers_every_public_kernel_and_passes_on_the_reference() -> None:
    checks = selftest.all_checks()
    assert {check.name for check in checks} == WITH_KERNEL
    tiles = {t for t in (16, 32, 64, 128) if any(f"'mmq_x': {t}" in c.case for c in checks)}
    assert tiles == {16, 32, 64, 128}
    outcomes = selftest.run_checks(checks, np)
    assert not [o for o in outcomes if o.failures]
    assert sum(o.num_checks for o in outcomes) == len(checks)


def test_the_selftest_reports_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "nvfp4_mmq_gemm_tiled", lambda a, b, out, **_: out)
    checks = [c for c in selftest.all_checks() if c.name.startswith("nvfp4_mmq_gemm")]
    outcomes = {o.name: o for o in selftest.run_checks(checks[:5] + checks[-1:], np)}
    assert len(outcomes["nvfp4_mmq_gemm_tiled"].failures) == 5
    assert "first at (0, 0): 0xffff, not" in outcomes["nvfp4_mmq_gemm_tiled"].failures[0]
    assert not outcomes["nvfp4_mmq_gemm"].failures
