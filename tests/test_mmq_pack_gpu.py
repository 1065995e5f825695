"""Repacking and activation quantization on a GPU: the references' bytes at every alignment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden import assert_bytes_equal

from nvfp4cupy import layouts, reference
from nvfp4cupy.formats import bfloat16
from nvfp4cupy.launchers.mmq import MmqQuantizeAct, MmqRepack, MmqUnpack

pytestmark = pytest.mark.gpu

GUARD = 512  # bytes before and after an array that nothing may touch
POISON = 0xFF
SCATTER = 0x9E3779B97F4A7C15  # an odd number whose multiples have mixed bits


def placed(size: int, offset: int) -> tuple[Any, Any]:
    """Return poisoned memory and the ``size`` bytes in it that lie ``offset`` past a boundary."""
    import cupy

    memory = cupy.full(2 * GUARD + size + 256, POISON, cupy.uint8)
    start = GUARD + offset
    return memory, memory[start : start + size]


def upload(array: np.ndarray, offset: int) -> Any:
    _, view = placed(array.nbytes, offset)
    view.set(np.ascontiguousarray(array).view(np.uint8).ravel())
    return view


def check(memory: Any, view: Any, expected: np.ndarray, kind: str = "") -> None:
    """Compare an output and what lies around it."""
    result = view.get().view(expected.dtype).reshape(expected.shape)
    assert_bytes_equal(result, expected, kind)
    start = view.data.ptr - memory.data.ptr
    around = memory.get()
    assert (around[:start] == POISON).all()
    assert (around[start + view.size :] == POISON).all()


def weight(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n + k)
    packed, scales = (rng.integers(0, 256, (n, k // d), np.uint8) for d in (2, 16))
    return packed, scales


@pytest.mark.parametrize("offsets", [(0, 0, 0), (16, 4, 4), (1, 0, 16), (0, 1, 0), (4, 3, 12)])
@pytest.mark.parametrize(("n", "k"), [(1, 64), (255, 64), (257, 64), (3, 192), (130, 1024)])
def test_repack_and_unpack(n: int, k: int, offsets: tuple[int, ...]) -> None:
    packed, scales = weight(n, k)
    for order in layouts.NIBBLE_ORDERS:
        expected = layouts.linear_to_block_nvfp4(packed, scales, nibble_order=order)
        memory, out = placed(expected.size, offsets[2])
        operands = upload(packed, offsets[0]), upload(scales, offsets[1])
        MmqRepack()(*operands, out, n=n, k=k, nibble_order=order)
        check(memory, out, expected, "block_nvfp4")
    blocks = layouts.linear_to_block_nvfp4(packed, scales)
    outs = [placed(a.size, o) for a, o in zip((packed, scales), offsets, strict=False)]
    MmqUnpack()(upload(blocks, offsets[2]), outs[0][1], outs[1][1], n=n, k=k)
    check(*outs[0], packed)
    check(*outs[1], scales)


def test_repack_beyond_32_bits() -> None:
    import cupy

    n, k = 2**16 + 5, 2**16  # more than 2^32 values
    packed = cupy.arange(n * k // 2 // 8, dtype=cupy.uint64) * cupy.uint64(SCATTER)
    packed = packed.view(cupy.uint8).reshape(n, k // 2)
    scales = packed[:, : k // 16].copy()
    blocks = cupy.full((n, k // 64, 36), POISON, cupy.uint8)
    MmqRepack()(packed, scales, blocks, n=n, k=k)
    for rows in (slice(0, 2), slice(n - 2, n)):
        expected = layouts.linear_to_block_nvfp4(packed[rows].get(), scales[rows].get())
        assert_bytes_equal(blocks[rows].get(), expected, "block_nvfp4")
    again = [cupy.full_like(a, POISON) for a in (packed, scales)]
    MmqUnpack()(blocks, *again, n=n, k=k)
    assert bool((again[0] == packed).all())
    assert bool((again[1] == scales).all())


def activations(name: str, m: int, k: int) -> np.ndarray:
    """Return bfloat16 rows of one kind; see KINDS."""
    rng = np.random.default_rng(m + k)
    x = rng.standard_normal((m, k)) * KINDS[name]
    if name == "few values":
        x = np.round(rng.standard_normal((m, k)) * 4) / 4
    if name == "sparse":
        x *= rng.random((m, k)) < 0.1
    if name == "wide":
        x *= np.exp(8 * rng.standard_normal((m, k)))
    if name == "any bits":
        return rng.integers(0, 65536, (m, k), np.uint16).view(bfloat16())
    return x.astype(np.float32).astype(bfloat16())


# Factors: each kind takes another way through the search of a scale. Few different values make
# candidates with equal or nearly equal errors.
KINDS = {
    "ordinary": 1.0,
    "few values": 1.0,
    "sparse": 1.0,
    "wide": 1.0,
    "any bits": 1.0,
    "near the smallest scale": 2.0**-9,
    "below the smallest scale": 2.0**-13,
    "near the largest scale": 900.0,
    "beyond the largest scale": 3e4,
    "beyond 2^33": 1e11,
    "subnormal": 1e-39,
}


@pytest.mark.parametrize("row_scale", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_quantize_act(name: str, row_scale: bool) -> None:
    m, k = 96, 5000
    x = activations(name, m, k)
    result = reference.nvfp4_mmq_quantize_act(x, row_scale=row_scale)
    blocks, scale = result if row_scale else (result, None)
    memory, y = placed(blocks.size, 0)
    scale_memory, scales = placed(4 * m, 4)
    MmqQuantizeAct()(upload(x, 0), y, scales if row_scale else None, m=m, k=k)
    check(memory, y, blocks, "block_fp4_mmq")
    if row_scale:
        check(scale_memory, scales, scale)


@pytest.mark.parametrize(("x_offset", "y_offset"), [(0, 0), (2, 4), (16, 8), (6, 12)])
@pytest.mark.parametrize(("m", "k", "gap"), [(1, 1, 0), (3, 17, 5), (5, 256, 8), (2, 2063, 1)])
def test_quantize_act_at_any_address(
    m: int, k: int, gap: int, x_offset: int, y_offset: int
) -> None:
    stored = activations("ordinary", m, k + gap)
    expected = reference.nvfp4_mmq_quantize_act(np.ascontiguousarray(stored[:, :k]))
    memory, y = placed(expected.size, y_offset)
    MmqQuantizeAct()(upload(stored, x_offset), y, m=m, k=k, row_stride=k + gap)
    check(memory, y, expected, "block_fp4_mmq")


@pytest.mark.parametrize("m", [1023, 1024, 1500])
def test_quantize_act_of_many_rows_with_row_scale(m: int) -> None:
    x = activations("ordinary", m, 2304)
    blocks, scale = reference.nvfp4_mmq_quantize_act(x, row_scale=True)
    memory, y = placed(blocks.size, 0)
    scale_memory, scales = placed(4 * m, 0)
    MmqQuantizeAct()(upload(x, 0), y, scales, m=m, k=2304)
    check(memory, y, blocks, "block_fp4_mmq")
    check(scale_memory, scales, scale)


def test_quantize_act_beyond_32_bits() -> None:
    import cupy

    m, k = 2**17 + 3, 2**14 + 16  # more than 2^31 elements
    x = (cupy.arange(m * k // 4, dtype=cupy.uint64) * cupy.uint64(SCATTER)).view(cupy.uint16)
    x = (x & 0x807F | 0x3F00).reshape(m, k)  # from 0.5 to 1, either sign
    y = cupy.full(layouts.block_fp4_mmq_shape(m, k), POISON, cupy.uint8)
    MmqQuantizeAct()(x, y, m=m, k=k)
    for rows in (slice(0, 2), slice(m - 2, m)):
        expected = reference.nvfp4_mmq_quantize_act(x[rows].get().view(bfloat16()))
        assert_bytes_equal(y[:, rows].get(), expected, "block_fp4_mmq")
