"""The products with NVFP4 weights, beside cuBLAS in bf16, as cases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy import layouts, ops, reference
from nvfp4cupy.bench.cases import Case, Group, Work
from nvfp4cupy.bench.checks import at_rows, expect_within, spread
from nvfp4cupy.bench.quantize_cases import quantize_act_case
from nvfp4cupy.bench.samples import Samples
from nvfp4cupy.formats import to_float32

if TYPE_CHECKING:
    from nvfp4cupy.bench.cublas import Cublas

__all__ = ["CaseOfSizes", "bf16_gemm_bytes", "bf16_work", "gemm_groups"]

CaseOfSizes = Callable[[int, int, int], Case]

_BF16 = 2  # bytes
_NUM_COLUMNS = 24  # checked of each product, in 6 rows
# A kernel that splits k adds at most this many parts to an output, besides its own steps.
_MAX_PARTS = 256


def gemm_groups(
    ms: Sequence[int],
    weights: Sequence[tuple[int, int]],
    blas: Cublas | None,
    peers: Sequence[CaseOfSizes] = (),
) -> list[Group]:
    """Return a group for each weight.

    Args:
        ms: numbers of activation rows.
        weights: n and k of each weight.
        blas: what the kernels are compared with, or None.
        peers: make further cases from m, n and k.
    """
    return [
        Group(f"gemm {n}x{k}", tuple(case for m in ms for case in _cases(m, n, k, blas, peers)))
        for n, k in weights
    ]


def _cases(m: int, n: int, k: int, blas: Cublas | None, peers: Sequence[CaseOfSizes]) -> list[Case]:
    cases = [] if blas is None else [_cublas_case(m, n, k, blas)]
    baseline = cases[0].id if cases else ""
    variants: list[tuple[str, str, dict[str, Any]]] = [
        ("nvfp4_mmq_gemm", kernel, {"kernel": kernel}) for kernel in ("auto", "mirror")
    ]
    variants += [
        ("nvfp4_mmq_gemm_tiled", f"mmq_x={tile}", {"mmq_x": tile})
        for tile in layouts.MMQ_TILES[:-1]  # the largest is the mirrored kernel
        if m <= tile
    ]
    cases += [_w4a4_case(m, n, k, *variant, baseline) for variant in variants]
    cases.append(_w4a16_case(m, n, k, baseline))
    cases += [peer(m, n, k) for peer in peers]
    return [*cases, quantize_act_case(m, k)]


def _flops(m: int, n: int, k: int) -> int:
    return 2 * m * n * k


def bf16_gemm_bytes(m: int, n: int, k: int) -> int:
    """Return the bytes of a bf16 product: both operands read, the result written."""
    return _BF16 * (n * k + m * k + m * n)


def _cublas_case(m: int, n: int, k: int, blas: Cublas) -> Case:
    def make(s: Samples, i: int) -> Work:
        return bf16_work(s, i, (m, n, k), blas.gemm)

    num_bytes, flops = bf16_gemm_bytes(m, n, k), _flops(m, n, k)
    return Case("cublas_gemm", "bf16", f"{m}x{n}x{k}", num_bytes, make, flops)


def bf16_work(
    s: Samples, i: int, sizes: tuple[int, int, int], gemm: Callable[[Any, Any, Any], Any]
) -> Work:
    """Make the buffers of a bf16 product.

    Args:
        s: where operands come from.
        i: which set of buffers.
        sizes: m, n and k.
        gemm: writes the product of x ``(m, k)`` and w ``(n, k)`` to out ``(m, n)``.
    """
    m, n, k = sizes
    x, w = s.bfloat16("x", m, k, i), s.bfloat16("w", n, k, i)
    out = s.empty("product", (m, n), x.dtype, i)

    def check() -> None:
        rows, columns = spread(m), spread(n, _NUM_COLUMNS)
        a, b = (to_float32(at_rows(t, at)).astype(float) for t, at in ((x, rows), (w, columns)))
        # Each of k additions may lose 2^-23 of what it has; the result is rounded to 8 bits.
        error = np.abs(a) @ np.abs(b).T * k * 2.0**-23 * (1 + 2.0**-8)
        right = a @ b.T
        got = at_rows(out, rows)[:, columns]
        expect_within("out", got, right, error + 2.0**-8 * np.abs(right))

    return Work(lambda: gemm(x, w, out), [out], check)


def _w4a4_case(
    m: int, n: int, k: int, name: str, variant: str, options: dict[str, Any], baseline: str
) -> Case:
    function = getattr(ops, name)

    def make(s: Samples, i: int) -> Work:
        a, blocks = s.act_blocks(m, k, i), s.weight_blocks(n, k, i)
        out = s.empty("product", (m, n), s.bfloat16("one", 1, 1).dtype, i)
        return Work(
            lambda: function(a, blocks, out=out, **options),
            [out],
            lambda: _check(s, "w4a4", a, 1, blocks, out),
        )

    num_bytes = layouts.nvfp4_mmq_weight_bytes(n, k) + _BF16 * m * n
    num_bytes += int(np.prod(layouts.block_fp4_mmq_shape(m, k)))
    return Case(name, variant, f"{m}x{n}x{k}", num_bytes, make, _flops(m, n, k), baseline)


def _w4a16_case(m: int, n: int, k: int, baseline: str) -> Case:
    def make(s: Samples, i: int) -> Work:
        x, blocks = s.bfloat16("x", m, k, i), s.weight_blocks(n, k, i)
        out = s.empty("product", (m, n), x.dtype, i)
        return Work(
            lambda: ops.nvfp4_w4a16_gemm(x, blocks, out=out),
            [out],
            lambda: _check(s, "w4a16", x, 0, blocks, out),
        )

    num_bytes = layouts.nvfp4_mmq_weight_bytes(n, k) + _BF16 * m * (n + k)
    flops = _flops(m, n, k)
    return Case("nvfp4_w4a16_gemm", "bf16", f"{m}x{n}x{k}", num_bytes, make, flops, baseline)


def _check(s: Samples, kind: str, a: Any, axis: int, blocks: Any, out: Any) -> None:
    """Compare some rows and columns of a product; ``axis`` is that of the rows of ``a``."""
    (m, n), k = out.shape, blocks.shape[1] * layouts.QK_NVFP4
    rows, columns = spread(m), spread(n, _NUM_COLUMNS)

    def reference_product() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        left, right = at_rows(a, rows, axis), at_rows(blocks, columns)
        bound = reference.gemm_error_bound(left, right, steps=k // 16 + _MAX_PARTS)
        return reference.gemm_float64(left, right), bound

    # The variants of one product share their operands, and so what is right.
    exact, bound = s.keep(("right", kind, m, n, k), reference_product)
    expect_within("out", at_rows(out, rows)[:, columns], exact, bound)
