"""SwiGLU and scaling on a GPU: the references' bytes for every bfloat16, at every alignment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden import assert_bytes_equal
from test_mmq_pack_gpu import check, placed, upload

from nvfp4cupy import compiler, reference
from nvfp4cupy.formats import bfloat16
from nvfp4cupy.launchers.swiglu import ScaleBf16, SiluMulQuant, SiluMulScaled

pytestmark = pytest.mark.gpu

ALL = np.arange(65536, dtype=np.uint16).view(bfloat16())
SCALES = [(1.0, 1.0), (0.3, 2.0), (-7.0, 1e-3), (2.0**-120, 1.0), (1e30, 1e-30), (np.inf, 0.0)]
LIMITS: list[float | None] = [10.0, None, 7.1]


def normal(shape: tuple[int, ...], seed: int, factor: float = 1.0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal(shape) * factor
    return values.astype(np.float32).astype(bfloat16())


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("scale", [1.0, -0.37, 3e-39, 2.0**-126, 1e30, np.inf, np.nan])
def test_scale_of_every_bfloat16(scale: float, mirror: bool) -> None:
    expected = reference.nvfp4_scale_bf16(ALL, scale)
    memory, data = placed(ALL.nbytes, 0)
    data.set(ALL.view(np.uint8))
    ScaleBf16()(data.view(np.uint16), scale=scale, mirror=mirror)
    check(memory, data, expected)


@pytest.mark.parametrize("mirror", [False, True])
@pytest.mark.parametrize("offset", [0, 2, 14, 16])
@pytest.mark.parametrize("total", [1, 7, 8, 255, 2047, 2048, 2049, 50000])
def test_scale_at_any_address(total: int, offset: int, mirror: bool) -> None:
    x = normal((total,), total)
    memory, data = placed(x.nbytes, offset)
    data.set(x.view(np.uint8))
    ScaleBf16()(data.view(np.uint16), scale=0.37, mirror=mirror)
    check(memory, data, reference.nvfp4_scale_bf16(x, 0.37))


def silu_plans(total: int, limit: float | None) -> list[Any]:
    sizes = {"total": total, "swiglu_limit": limit}
    return [SiluMulScaled.plan(**sizes), SiluMulScaled.plan_wide(**sizes)]


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("factors", SCALES)
def test_silu_of_every_bfloat16(factors: tuple[float, float], limit: float | None) -> None:
    gate = np.concatenate([ALL, ALL])
    # Moderate values beside every gate, then any.
    up = np.concatenate([normal(ALL.shape, 1), np.random.default_rng(2).permutation(ALL)])
    expected = reference.nvfp4_silu_mul_scaled(gate, up, *factors, swiglu_limit=limit)
    for config in silu_plans(gate.size, limit):
        memory, out = placed(gate.nbytes, 0)
        compiler.launch(config, upload(gate, 0), upload(up, 0), out, *factors)
        check(memory, out, expected)


@pytest.mark.parametrize("offsets", [(0, 0, 0), (2, 2, 2), (14, 14, 14), (0, 2, 4), (2, 2, 0)])
@pytest.mark.parametrize("total", [1, 7, 9, 255, 2049, 8191, 8200, 30000])
def test_silu_at_any_address(total: int, offsets: tuple[int, int, int]) -> None:
    gate, up = normal((total,), 3, 4.0), normal((total,), 4, 4.0)
    expected = reference.nvfp4_silu_mul_scaled(gate, up, 0.7, 1.3)
    for config in silu_plans(total, 10.0):
        memory, out = placed(gate.nbytes, offsets[2])
        compiler.launch(config, upload(gate, offsets[0]), upload(up, offsets[1]), out, 0.7, 1.3)
        check(memory, out, expected)


@pytest.mark.parametrize("offset", [0, 2])
def test_silu_may_write_over_gate(offset: int) -> None:
    gate, up = normal((70001,), 5, 3.0), normal((70001,), 6, 3.0)
    expected = reference.nvfp4_silu_mul_scaled(gate, up, 1.0, 1.0)
    for config in silu_plans(gate.size, 10.0):
        memory, both = placed(gate.nbytes, offset)
        both.set(gate.view(np.uint8))
        compiler.launch(config, both, upload(up, offset), both, 1.0, 1.0)
        check(memory, both, expected)


OPTIONS = [
    *({"swiglu_limit": limit} for limit in LIMITS),
    {"round_intermediate": True},
    {"round_intermediate": True, "swiglu_limit": None},
]


def quantized(gate: np.ndarray, up: np.ndarray, factors: Any, options: dict[str, Any]) -> None:
    """Compare the mirrored kernel and that with a table with the reference."""
    m, k = gate.shape
    expected = reference.nvfp4_silu_mul_quant(gate, up, *factors, **options)
    for config in (
        SiluMulQuant.plan(m=m, k=k, **options),
        SiluMulQuant.plan_wide(m=m, k=k, num_multiprocessors=5, **options),
    ):
        memory, y = placed(expected.size, 4)
        compiler.launch(config, upload(gate, 0), upload(up, 0), y, *factors)
        check(memory, y, expected, "block_fp4_mmq")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (5, 256), (7, 2063), (300, 1000)], ids=str)
def test_silu_quant(shape: tuple[int, int], options: dict[str, Any]) -> None:
    quantized(normal(shape, 7, 4.0), normal(shape, 8, 4.0), (0.7, 1.3), options)


@pytest.mark.parametrize("factors", [*SCALES, (0.02, 0.02), (40.0, 900.0), (0.0, 1.0)])
def test_silu_quant_of_every_gate(factors: tuple[float, float]) -> None:
    gate = np.random.default_rng(9).permutation(ALL).reshape(16, 4096)
    quantized(gate, normal(gate.shape, 10), factors, {})


def test_silu_quant_of_any_bits() -> None:
    rng = np.random.default_rng(11)
    gate, up = (rng.integers(0, 65536, (40, 999), np.uint16).view(bfloat16()) for _ in range(2))
    quantized(gate, up, (1.0, 1.0), {})


@pytest.mark.parametrize("m", [3, 1024])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_silu_quant_with_row_scale(m: int, options: dict[str, Any]) -> None:
    gate, up = normal((m, 2304), 12, 2.0), normal((m, 2304), 13, 2.0)
    blocks, scale = reference.nvfp4_silu_mul_quant(gate, up, 0.9, 1.1, row_scale=True, **options)
    memory, y = placed(blocks.size, 0)
    scale_memory, scales = placed(4 * m, 0)
    factors = {"gate_scale": 0.9, "up_scale": 1.1}
    SiluMulQuant()(upload(gate, 0), upload(up, 0), y, scales, m=m, k=2304, **factors, **options)
    check(memory, y, blocks, "block_fp4_mmq")
    check(scale_memory, scales, scale)


@pytest.mark.parametrize("mirror", [False, True])
def test_silu_quant_of_a_large_product(mirror: bool) -> None:
    m, k = 4096, 5120
    gate, up = normal((m, k), 14), normal((m, k), 15)
    _, y = placed(k // 256 * m * 144, 0)
    factors = {"gate_scale": 1.0, "up_scale": 1.0}
    SiluMulQuant()(upload(gate, 0), upload(up, 0), y, m=m, k=k, **factors, mirror=mirror)
    rows = np.r_[0:4, m - 4 : m]
    expected = reference.nvfp4_silu_mul_quant(gate[rows], up[rows], 1.0, 1.0)
    assert_bytes_equal(y.get().reshape(-1, m, 144)[:, rows], expected, "block_fp4_mmq")
