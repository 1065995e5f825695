"""The element-wise kernels' and activation quantizers' sources in the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulator import Emulator, Sparse, missing_emulator, session_folder
from emulator.checks import assert_emulates, awkward_values
from golden import SeedCase, seed_cases

from nvfp4cupy import reference
from nvfp4cupy.formats import bfloat16
from nvfp4cupy.launchers.mmq import MmqQuantizeAct
from nvfp4cupy.launchers.swiglu import ScaleBf16, SiluMulQuant, SiluMulScaled

pytestmark = pytest.mark.skipif(bool(missing_emulator()), reason=missing_emulator())

# What the tests below launch.
ENTRIES = {
    *(MmqQuantizeAct.plan(m=1, k=1, row_scale=row_scale).entry for row_scale in (False, True)),
    *(SiluMulQuant.plan(m=1, k=1, row_scale=row_scale).entry for row_scale in (False, True)),
    SiluMulQuant.plan_wide(m=1, k=1, num_multiprocessors=1).entry,
    *(plan(total=1).entry for plan in (SiluMulScaled.plan, SiluMulScaled.plan_wide)),
    *(plan(total=1).entry for plan in (ScaleBf16.plan, ScaleBf16.plan_wide)),
}
BLOCKS = {"y": "block_fp4_mmq"}
# One value, the tail of a group, of a block of 256, of what a block of threads works on.
SHAPES = [(1, 1), (3, 17), (2, 256), (5, 273), (1, 4112)]
LIMITS: list[float | None] = [10.0, None, 7.1]


@pytest.fixture(scope="module")
def emulate(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(session_folder(tmp_path_factory))


def gate_and_up(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    return awkward_values(shape, bfloat16(), 1), awkward_values(shape, bfloat16(), 2)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("row_scale", [False, True])
def test_quantize_act(emulate: Emulator, shape: tuple[int, int], row_scale: bool) -> None:
    m, k = shape
    stored = awkward_values((m, k + 3), bfloat16())  # rows three elements longer than k
    result = reference.nvfp4_mmq_quantize_act(stored[:, :k], row_scale=row_scale)
    outputs = dict(zip(("y", "row_scale"), result, strict=True)) if row_scale else {"y": result}
    config = MmqQuantizeAct.plan(m=m, k=k, row_stride=k + 3, row_scale=row_scale)
    assert_emulates(emulate, config, {"x": stored}, outputs, kinds=BLOCKS)


@pytest.mark.parametrize("row_scale", [False, True])
def test_quantize_act_of_many_rows(emulate: Emulator, row_scale: bool) -> None:
    x = awkward_values((1025, 2064), bfloat16())
    rows = [0, 700, 1024]
    result = reference.nvfp4_mmq_quantize_act(x[rows], row_scale=row_scale)
    config = MmqQuantizeAct.plan(m=1025, k=2064, row_scale=row_scale)
    y, scale = np.zeros((9, 1025, 144), np.uint8), np.zeros(1025, np.float32)
    blocks = [(row, column, 0) for row in rows for column in range(config.grid[1])]
    emulate(config, x=x, y=y, only=blocks, **({"row_scale": scale} if row_scale else {}))
    np.testing.assert_array_equal(y[:, rows], result[0] if row_scale else result)
    np.testing.assert_array_equal(scale[rows], result[1] if row_scale else 0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    "options",
    [
        *({"swiglu_limit": limit} for limit in LIMITS),
        {"round_intermediate": True, "row_scale": True},
        {"row_scale": True, "swiglu_limit": None},
    ],
    ids=str,
)
def test_silu_mul_quant(emulate: Emulator, shape: tuple[int, int], options: dict[str, Any]) -> None:
    gate, up = gate_and_up(shape)
    result = reference.nvfp4_silu_mul_quant(gate, up, 0.7, 1.3, **options)
    named = zip(("y", "row_scale"), result, strict=True) if "row_scale" in options else ()
    outputs = dict(named) or {"y": result}
    config = SiluMulQuant.plan(m=shape[0], k=shape[1], **options)
    inputs = {"gate": gate, "up": up, "gate_scale": 0.7, "up_scale": 1.3}
    # The options make no difference to what the builds do differently.
    builds = (False, True) if options == {"swiglu_limit": 10.0} else (False,)
    assert_emulates(emulate, config, inputs, outputs, builds=builds, kinds=BLOCKS)


# Scales that put the table's gates below, at and above the range of bfloat16, and unusual ones.
@pytest.mark.parametrize("gate_scale", [0.7, -3e-38, 1e30, 0.0, np.inf])
@pytest.mark.parametrize("limit", LIMITS[:2])
def test_silu_mul_quant_by_table(emulate: Emulator, gate_scale: float, limit: float | None) -> None:
    m, k = 19, 300  # 608 groups of 16 with the padding
    gate, up = gate_and_up((m, k))
    result = reference.nvfp4_silu_mul_quant(gate, up, gate_scale, 1.3, swiglu_limit=limit)
    config = SiluMulQuant.plan_wide(m=m, k=k, num_multiprocessors=3, swiglu_limit=limit)
    inputs = {"gate": gate, "up": up, "gate_scale": gate_scale, "up_scale": 1.3}
    assert_emulates(emulate, config, inputs, {"y": result}, builds=(False,), kinds=BLOCKS)


@pytest.mark.parametrize("total", [1, 9, 255, 2049, 9000])
@pytest.mark.parametrize("limit", LIMITS)
def test_silu_mul_scaled(emulate: Emulator, total: int, limit: float | None) -> None:
    gate, up = gate_and_up((total,))
    out = reference.nvfp4_silu_mul_scaled(gate, up, 0.7, 1.3, swiglu_limit=limit)
    inputs = {"gate": gate, "up": up, "gate_scale": 0.7, "up_scale": 1.3}
    for plan in (SiluMulScaled.plan, SiluMulScaled.plan_wide):
        config = plan(total=total, swiglu_limit=limit)
        assert_emulates(emulate, config, inputs, {"out": out}, builds=(False,))
        over = gate.copy()
        emulate(config, **{**inputs, "gate": over, "out": over}, offset=4)
        np.testing.assert_array_equal(over.view(np.uint16), out.view(np.uint16))


@pytest.mark.parametrize("total", [1, 9, 255, 2049, 5000])
def test_scale_bf16(emulate: Emulator, total: int) -> None:
    data = awkward_values((total,), bfloat16())
    out = reference.nvfp4_scale_bf16(data, 0.3)
    inputs = {"data": data, "scale": 0.3}
    for plan in (ScaleBf16.plan, ScaleBf16.plan_wide):
        assert_emulates(emulate, plan(total=total), inputs, {"data": out}, builds=(False,))


@pytest.mark.parametrize("case", seed_cases("act_", "silu_", "scale_"), ids=str)
def test_golden_bytes(emulate: Emulator, case: SeedCase) -> None:
    inputs = dict(case.inputs)
    (expected,) = case.outputs
    limit = 10.0 if "_clamp10" in case.name else None
    if case.name.startswith("scale_"):
        name, config = "data", ScaleBf16.plan(total=65536)
        inputs["data"] = inputs.pop("x")
    elif "quant" in case.name or case.name.startswith("act_"):
        m, k = inputs["gate" if "gate" in inputs else "x"].shape
        silu = SiluMulQuant.plan(m=m, k=k, swiglu_limit=limit)
        name, config = "y", silu if "gate" in inputs else MmqQuantizeAct.plan(m=m, k=k)
    else:
        name, config = "out", SiluMulScaled.plan(total=expected.size, swiglu_limit=limit)
    builds = (False,) if "_scaled" in case.name or name == "data" else (False, True)
    # 65536 groups take a while.
    num_ways = 1 if case.name.endswith("all_bf16") else 3
    outputs = {name: expected}
    assert_emulates(emulate, config, inputs, outputs, builds=builds, num_ways=num_ways)


def test_offsets_beyond_32_bits(emulate: Emulator) -> None:
    m, k = 2**20 + 5, 4096  # 2^32 elements and more
    x = np.random.default_rng(3).standard_normal((1, k)).astype(bfloat16())
    expected = reference.nvfp4_mmq_quantize_act(x)
    y = {144 * (b * m + m - 1): np.zeros(144, np.uint8) for b in range(k // 256)}
    config = MmqQuantizeAct.plan(m=m, k=k)
    emulate(
        config,
        only=[(m - 1, column, 0) for column in range(config.grid[1])],
        x=Sparse({2 * (m - 1) * k: x.view(np.uint16)}),
        y=Sparse(y),
    )
    np.testing.assert_array_equal(list(y.values()), expected[:, 0])


def test_element_numbers_near_32_bits(emulate: Emulator) -> None:
    total = 2**32 - 1
    config = ScaleBf16.plan(total=total)
    data = np.random.default_rng(4).standard_normal(2047).astype(bfloat16())
    expected = reference.nvfp4_scale_bf16(data, 0.3).view(np.uint16)
    last = config.grid[0] - 1
    piece = data.view(np.uint16).copy()
    blocks = [(block, 0, 0) for block in range(last - 15, last + 1)]
    emulate(config, only=blocks, data=Sparse({2 * (total - 2047): piece}), scale=0.3, offset=0)
    np.testing.assert_array_equal(piece, expected)
