"""SwiGLU, scaling and the repacking of weights, as cases."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nvfp4cupy import layouts, ops, reference
from nvfp4cupy.bench.cases import Case, Group, Work
from nvfp4cupy.bench.checks import at_rows, expect_bytes, spread
from nvfp4cupy.bench.quantize_cases import expect_rows, nvfp4_bytes, nvfp4_outputs
from nvfp4cupy.bench.samples import Samples

__all__ = ["repack_groups", "swiglu_groups"]

_BF16 = 2  # bytes
# Multiplied in place at every replay, so a factor that leaves magnitudes as they are.
_IN_PLACE_SCALE = -1.0
_SCALES = (0.75, 1.25)  # of gate and up


def swiglu_groups(shapes: Sequence[tuple[int, int]]) -> list[Group]:
    """Return the groups of the element-wise steps between two products.

    Args:
        shapes: rows and columns of gate and up.
    """
    return [
        Group(
            f"swiglu {m}x{k}", (_silu_quant_case(m, k), _silu_scaled_case(m, k), _scale_case(m, k))
        )
        for m, k in shapes
    ]


def repack_groups(weights: Sequence[tuple[int, int]]) -> list[Group]:
    """Return the groups that move weights into and out of the GEMM's blocks.

    Args:
        weights: n and k of each weight.
    """
    return [Group(f"repack {n}x{k}", tuple(_repack_cases(n, k))) for n, k in weights]


def _silu_quant_case(m: int, k: int) -> Case:
    shape = layouts.block_fp4_mmq_shape(m, k)

    def make(s: Samples, i: int) -> Work:
        gate, up = s.bfloat16("x", m, k, i), s.bfloat16("up", m, k, i)
        out = s.empty("act", shape, np.uint8, i)

        def check() -> None:
            at = spread(m)
            right = reference.nvfp4_silu_mul_quant(at_rows(gate, at), at_rows(up, at), *_SCALES)
            expect_bytes("blocks", at_rows(out, at, axis=1), right)

        return Work(lambda: ops.nvfp4_silu_mul_quant(gate, up, *_SCALES, out=out), [out], check)

    num_bytes = 2 * _BF16 * m * k + int(np.prod(shape))
    return Case("nvfp4_silu_mul_quant", "limit 10", f"{m}x{k}", num_bytes, make)


def _silu_scaled_case(rows: int, columns: int) -> Case:
    def make(s: Samples, i: int) -> Work:
        gate, up = s.bfloat16("x", rows, columns, i), s.bfloat16("up", rows, columns, i)
        out = s.empty("y", gate.shape, gate.dtype, i)

        def check() -> None:
            at = spread(rows)
            right = reference.nvfp4_silu_mul_scaled(at_rows(gate, at), at_rows(up, at), *_SCALES)
            expect_bytes("h", at_rows(out, at), right)

        return Work(lambda: ops.nvfp4_silu_mul_scaled(gate, up, *_SCALES, out=out), [out], check)

    num_bytes = 3 * _BF16 * rows * columns
    return Case("nvfp4_silu_mul_scaled", "limit 10", f"{rows}x{columns}", num_bytes, make)


def _scale_case(rows: int, columns: int) -> Case:
    def make(s: Samples, i: int) -> Work:
        data, at = s.bfloat16("in place", rows, columns, i), spread(rows)
        before = at_rows(data, at)

        def check() -> None:  # the call before it has changed the data once
            right = reference.nvfp4_scale_bf16(before, _IN_PLACE_SCALE)
            expect_bytes("data", at_rows(data, at), right)

        return Work(lambda: ops.nvfp4_scale_bf16(data, _IN_PLACE_SCALE), [], check)

    num_bytes = 2 * _BF16 * rows * columns
    return Case("nvfp4_scale_bf16", "in place", f"{rows}x{columns}", num_bytes, make)


def _repack_cases(n: int, k: int) -> list[Case]:
    num_bytes = nvfp4_bytes(n * k) + layouts.nvfp4_mmq_weight_bytes(n, k)

    def repack(s: Samples, i: int) -> Work:
        packed, scales = s.codes(n, k, i), s.scales(n, k, i)
        out = s.empty("blocks", layouts.block_nvfp4_shape(n, k), np.uint8, i)

        def check() -> None:
            at = spread(n)
            right = reference.nvfp4_mmq_repack(at_rows(packed, at), at_rows(scales, at))
            expect_bytes("blocks", at_rows(out, at), right)

        return Work(lambda: ops.nvfp4_mmq_repack(packed, scales, out=out), [out], check)

    def unpack(s: Samples, i: int) -> Work:
        blocks, out = s.weight_blocks(n, k, i), nvfp4_outputs(s, i, n, k)

        def check() -> None:
            at = spread(n)
            expect_rows("packed scales", out, at, reference.nvfp4_mmq_unpack(at_rows(blocks, at)))

        return Work(lambda: ops.nvfp4_mmq_unpack(blocks, out=out), out, check)

    shape = f"{n}x{k}"
    return [
        Case("nvfp4_mmq_repack", "low_first", shape, num_bytes, repack),
        Case("nvfp4_mmq_unpack", "low_first", shape, num_bytes, unpack),
    ]
