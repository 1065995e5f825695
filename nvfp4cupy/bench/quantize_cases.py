"""The quantizers and the way back, as cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nvfp4cupy import layouts, ops, reference
from nvfp4cupy.bench.cases import Case, Group, Work
from nvfp4cupy.bench.checks import at_rows, expect_bytes, spread
from nvfp4cupy.bench.samples import Samples
from nvfp4cupy.formats import ROUNDINGS

__all__ = ["expect_rows", "nvfp4_bytes", "nvfp4_outputs", "quantize_act_case", "quantize_groups"]

_BF16, _F32 = 2, 4  # bytes
_GRANULARITY = 8
# Memory is read in sectors of 32 bytes: shorter runs drag their skipped neighbours along.
_SECTOR = 32
# The rows that amax_quantize_nvfp4 is timed with: few bytes, more than a block's, very many.
_ROW_LENGTHS = (1024, 8192, 16384)
_DECODE_SCALE = 0.01


def quantize_groups(shapes: Sequence[tuple[int, int]]) -> list[Group]:
    """Return the groups of the quantizers.

    Args:
        shapes: rows and columns of what is quantized.
    """
    groups = []
    for rows, columns in shapes:
        title = f"{rows}x{columns}"
        groups.append(Group(f"quantize {title}", tuple(_quantize_cases(rows, columns))))
        cases = tuple(_amax_quantize_cases(rows * columns))
        if cases:
            groups.append(Group(f"amax and quantize {title}", cases))
    return groups


def nvfp4_bytes(count: int) -> int:
    """Return the bytes of codes and scales: half a byte and a sixteenth for each value."""
    return count // 2 + count // 16


def nvfp4_outputs(s: Samples, i: int, rows: int, columns: int) -> tuple[Any, Any]:
    """Return arrays for codes and linear scales."""
    return (
        s.empty("codes", (rows, columns // 2), np.uint8, i),
        s.empty("scales", (rows, columns // 16), np.uint8, i),
    )


def expect_rows(names: str, out: Sequence[Any], at: Any, right: Sequence[Any]) -> None:
    """Compare some rows of several outputs with the reference, bit for bit."""
    for name, array, expected in zip(names.split(), out, right, strict=True):
        expect_bytes(name, at_rows(array, at), expected)


def _quantize_cases(rows: int, columns: int) -> list[Case]:
    options: list[tuple[str, dict[str, Any]]] = [(r, {"rounding": r}) for r in ROUNDINGS]
    options += [("scale_search=2", {"scale_search": 2}), ("128x4", {"scale_layout": "128x4"})]
    return [
        _amax_case(rows, columns),
        *(_from_buffer_case(rows, columns, name, option) for name, option in options),
        _scalar_case(rows, columns),
        _deinterleave_case(rows, columns // 2),
        _dequantize_case(rows, columns),
        quantize_act_case(rows, columns),
    ]


def _amax_case(rows: int, columns: int) -> Case:
    def make(s: Samples, i: int) -> Work:
        x = s.bfloat16("x", rows, columns, i)
        out = s.empty("gsa", (rows,), np.float32, i)

        def check() -> None:
            at = spread(rows)
            expect_bytes("gsa", at_rows(out, at), reference.amax_gsa(at_rows(x, at)))

        return Work(lambda: ops.amax_gsa(x, out=out), [out], check)

    num_bytes = _BF16 * rows * columns + _F32 * rows
    return Case("amax_gsa", "bf16", f"{rows}x{columns}", num_bytes, make)


def _from_buffer_case(rows: int, columns: int, variant: str, options: dict[str, Any]) -> Case:
    layout: layouts.ScaleLayout = options.get("scale_layout", "linear")
    scales_shape = layouts.scales_shape(rows, columns // 16, layout)

    def make(s: Samples, i: int) -> Work:
        x, gsa = s.bfloat16("x", rows, columns, i), s.decode_scales(rows, i)
        codes = s.empty("codes", (rows, columns // 2), np.uint8, i)
        scales = s.empty("scales", scales_shape, np.uint8, i)

        def check() -> None:
            at = spread(rows)
            linear = {**options, "scale_layout": "linear"}
            right = reference.quantize_nvfp4_from_buffer(at_rows(x, at), at_rows(gsa, at), **linear)
            expect_bytes("codes", at_rows(codes, at), right[0])
            if layout == "linear":
                expect_bytes("scales", at_rows(scales, at), right[1])
            else:
                expect_bytes("scales", _unswizzled_rows(scales, at, columns // 16), right[1])

        def call() -> Any:
            return ops.quantize_nvfp4_from_buffer(x, gsa, out=(codes, scales), **options)

        return Work(call, [codes, scales], check)

    num_bytes = (_BF16 * columns + _F32 + columns // 2) * rows + int(np.prod(scales_shape))
    return Case("quantize_nvfp4_from_buffer", variant, f"{rows}x{columns}", num_bytes, make)


def _unswizzled_rows(scales: Any, rows: Any, columns: int) -> Any:
    """Return linear scales of some rows; a band of 128 rows is contiguous in the 128x4 layout."""
    picked = []
    for row in rows:
        first = int(row) // layouts.SWIZZLE_ROWS * layouts.SWIZZLE_ROWS
        band = at_rows(scales, np.arange(first, first + layouts.SWIZZLE_ROWS))
        picked.append(layouts.unswizzle_scales(band, layouts.SWIZZLE_ROWS, columns)[row - first])
    return np.stack(picked)


def _scalar_case(rows: int, columns: int) -> Case:
    def make(s: Samples, i: int) -> Work:
        x, out = s.bfloat16("x", rows, columns, i), nvfp4_outputs(s, i, rows, columns)

        def check() -> None:
            at = spread(rows)
            right = reference.quantize_nvfp4(at_rows(x, at), _DECODE_SCALE)
            expect_rows("codes scales", out, at, right)

        return Work(lambda: ops.quantize_nvfp4(x, _DECODE_SCALE, out=out), out, check)

    num_bytes = _BF16 * rows * columns + nvfp4_bytes(rows * columns)
    return Case("quantize_nvfp4", "half_step", f"{rows}x{columns}", num_bytes, make)


def _deinterleave_case(rows: int, intermediate: int) -> Case:
    g = _GRANULARITY

    def make(s: Samples, i: int) -> Work:
        fused, gsa = s.bfloat16("x", rows, 2 * intermediate, i), s.decode_scales(rows, i)
        out = nvfp4_outputs(s, i, rows, intermediate)

        def call() -> Any:
            return ops.deinterleave_quantize_from_buffer(fused, intermediate, g, gsa, out=out)

        def check() -> None:
            at = spread(rows)
            right = reference.deinterleave_quantize_from_buffer(
                at_rows(fused, at), intermediate, g, at_rows(gsa, at)
            )
            expect_rows("codes scales", out, at, right)

        return Work(call, out, check)

    num_read = 2 * intermediate if _BF16 * g < _SECTOR else intermediate
    num_bytes = rows * (_BF16 * num_read + _F32) + nvfp4_bytes(rows * intermediate)
    shape = f"{rows}x{2 * intermediate}"
    return Case("deinterleave_quantize_from_buffer", f"g={g}", shape, num_bytes, make)


def _dequantize_case(rows: int, columns: int) -> Case:
    def make(s: Samples, i: int) -> Work:
        codes, scales = s.codes(rows, columns, i), s.scales(rows, columns, i)
        gsa = s.decode_scales(rows, i)
        out = s.empty("y", (rows, columns), s.bfloat16("one", 1, 1).dtype, i)

        def check() -> None:
            at = spread(rows)
            right = reference.dequantize_nvfp4(*(at_rows(a, at) for a in (codes, scales, gsa)))
            expect_bytes("y", at_rows(out, at), right)

        return Work(lambda: ops.dequantize_nvfp4(codes, scales, gsa, out=out), [out], check)

    count = rows * columns
    num_bytes = nvfp4_bytes(count) + _F32 * rows + _BF16 * count
    return Case("dequantize_nvfp4", "bf16", f"{rows}x{columns}", num_bytes, make)


def quantize_act_case(m: int, k: int) -> Case:
    """Return the activation quantizer of the W4A4 GEMM."""
    shape = layouts.block_fp4_mmq_shape(m, k)

    def make(s: Samples, i: int) -> Work:
        x, out = s.bfloat16("x", m, k, i), s.empty("act", shape, np.uint8, i)

        def check() -> None:
            at = spread(m)
            right = reference.nvfp4_mmq_quantize_act(at_rows(x, at))
            expect_bytes("blocks", at_rows(out, at, axis=1), right)

        return Work(lambda: ops.nvfp4_mmq_quantize_act(x, out=out), [out], check)

    num_bytes = _BF16 * m * k + int(np.prod(shape))
    return Case("nvfp4_mmq_quantize_act", "bf16", f"{m}x{k}", num_bytes, make)


def _amax_quantize_cases(count: int) -> list[Case]:
    """Return the fused quantizer at several row lengths, each beside the second step alone."""
    cases = []
    for columns in _ROW_LENGTHS:
        if count % columns:
            continue
        rows = count // columns
        alone = _from_buffer_case(rows, columns, "alone", {})
        cases += [alone, _amax_quantize_case(rows, columns, alone.id)]
    return cases


def _amax_quantize_case(rows: int, columns: int, baseline: str) -> Case:
    def make(s: Samples, i: int) -> Work:
        x, gsa = s.bfloat16("x", rows, columns, i), s.empty("gsa", (rows,), np.float32, i)
        out = (*nvfp4_outputs(s, i, rows, columns), gsa)

        def check() -> None:
            at = spread(rows)
            right = reference.amax_quantize_nvfp4(at_rows(x, at))
            expect_rows("codes scales gsa", out, at, right)

        return Work(lambda: ops.amax_quantize_nvfp4(x, out=out), out, check)

    num_bytes = (_BF16 * columns + _F32) * rows + nvfp4_bytes(rows * columns)
    shape = f"{rows}x{columns}"
    return Case("amax_quantize_nvfp4", "half_step", shape, num_bytes, make, baseline=baseline)
