"""Checks every kernel, tile and option on the GPU against the reference, bit for bit.

Products are checked on operands whose every partial sum is exact, so that any order of addition
must give the reference's bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvfp4cupy import formats, ops, reference
from nvfp4cupy.bench.checks import expect_bytes, host, poison
from nvfp4cupy.bench.exact import act_operand, plain_operand, weight_operand
from nvfp4cupy.formats import ROUNDINGS

__all__ = ["Check", "CheckOutcome", "all_checks", "run_checks"]


@dataclass(frozen=True)
class Check:
    """One call and what it must give.

    Attributes:
        name: the public function.
        case: sizes and options.
        call: gets operands on the device, returns one output or several.
        operands: on the host.
        right: gets the operands, returns what the reference gives.
    """

    name: str
    case: str
    call: Callable[..., Any]
    operands: Sequence[Any]
    right: Callable[..., Any]


@dataclass(frozen=True)
class CheckOutcome:
    """What became of the checks of one function."""

    name: str
    num_checks: int
    failures: tuple[str, ...]


def run_checks(checks: Sequence[Check], xp: Any) -> list[CheckOutcome]:
    """Run all checks; a failure does not keep the others from running.

    Args:
        checks: what to run.
        xp: ``cupy``, or ``numpy`` to check the reference against itself.
    """
    failures: dict[str, list[str]] = {check.name: [] for check in checks}
    for check in checks:
        try:
            _run(check, xp)
        except Exception as error:  # reported; the others go on
            text = " ".join(str(error).split())
            failures[check.name].append(f"{check.case}: {type(error).__name__}: {text}")
    return [
        CheckOutcome(name, sum(c.name == name for c in checks), tuple(found))
        for name, found in failures.items()
    ]


def _run(check: Check, xp: Any) -> None:
    operands = [xp.array(o) if isinstance(o, np.ndarray) else o for o in check.operands]
    got = check.call(*operands)
    right = check.right(*check.operands)
    if not isinstance(right, tuple):
        got, right = (got,), (right,)
    for i, (a, b) in enumerate(zip(got, right, strict=True)):
        expect_bytes(f"output {i}", host(a), b)


def all_checks() -> list[Check]:
    """Return the checks of every public kernel."""
    return [
        *_gemm_checks(),
        *_w4a16_checks(),
        *_quantizer_checks(),
        *_dequantize_checks(),
        *_operand_checks(),
        *_swiglu_checks(),
    ]


def _written(out: Any, call: Callable[[Any], Any]) -> Any:
    """Poison outputs, have them written, return them."""
    outputs = out if isinstance(out, tuple) else (out,)
    poison(outputs)
    return call(out)


def _gemm_checks() -> Iterator[Check]:
    for tile in (16, 32, 64, 128):
        for m in (1, tile, tile + 1):
            for n, k in ((128, 64), (136, 320), (40, 832)):
                options = {"mmq_x": tile, "allow_restream": True}
                yield _gemm_check("nvfp4_mmq_gemm_tiled", m, n, k, options)
    for kernel in ("auto", "mirror"):
        for m, n, k in ((1, 256, 512), (7, 300, 832), (40, 128, 2048), (200, 264, 576)):
            yield _gemm_check("nvfp4_mmq_gemm", m, n, k, {"kernel": kernel})
    for extra in ({"dtype": "float32"}, {"dtype": "float16"}, {"deterministic_kblocks": True}):
        for tile in (16, 32, 64, 128):
            yield _gemm_check("nvfp4_mmq_gemm_tiled", tile, 136, 320, {"mmq_x": tile, **extra})
    yield _scaled_gemm_check(33, 136, 320)


def _gemm_check(name: str, m: int, n: int, k: int, options: dict[str, Any]) -> Check:
    function = getattr(ops, name)
    dtype = options.get("dtype", "bfloat16")
    out_type = formats.bfloat16() if dtype == "bfloat16" else np.dtype(dtype)

    def call(a: Any, blocks: Any, out: Any) -> Any:
        return _written(out, lambda o: function(a, blocks, out=o, **options))

    def right(a: Any, blocks: Any, _: Any) -> Any:
        return reference.nvfp4_mmq_gemm(a, blocks, dtype=dtype)

    operands = (act_operand(m, k), weight_operand(n, k), np.zeros((m, n), out_type))
    return Check(name, f"m={m} n={n} k={k} {options}", call, operands, right)


def _scaled_gemm_check(m: int, n: int, k: int) -> Check:
    rng = np.random.default_rng(m)
    scale, rows = (np.exp2(rng.integers(-3, 4, size)).astype(np.float32) for size in (n, m))
    return Check(
        "nvfp4_mmq_gemm",
        f"m={m} n={n} k={k} with out_scale and row_scale",
        lambda a, b, s, r: ops.nvfp4_mmq_gemm(a, b, out_scale=s, row_scale=r),
        (act_operand(m, k), weight_operand(n, k), scale, rows),
        lambda a, b, s, r: reference.nvfp4_mmq_gemm(a, b, out_scale=s, row_scale=r),
    )


def _w4a16_checks() -> Iterator[Check]:
    for m in (1, 16, 17, 33, 65, 129):
        for n, k in ((128, 64), (136, 320), (40, 832)):
            yield Check(
                "nvfp4_w4a16_gemm",
                f"m={m} n={n} k={k}",
                lambda x, b: ops.nvfp4_w4a16_gemm(x, b),
                (plain_operand(m, k), weight_operand(n, k)),
                lambda x, b: reference.nvfp4_w4a16_gemm(x, b),
            )


def _hard_rows(rows: int, columns: int, dtype: Any) -> Any:
    """Return normal numbers with a row each of zeros, tiny, huge and special values."""
    x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    x[0], x[1], x[2] = 0, x[1] * 2.0**-20, x[2] * 2.0**10
    x[3, ::17], x[3, 5::31], x[3, 7::61] = np.nan, np.inf, -0.0
    return x.astype(dtype)


def _quantizer_options() -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield each option alone, with the input dtype."""
    bf16 = formats.bfloat16()
    for rounding in ROUNDINGS:
        yield bf16, {"rounding": rounding}
    yield bf16, {"scale_search": 2}
    yield bf16, {"scale_layout": "128x4"}
    yield np.float16, {}
    yield np.float32, {}


def _quantizer_checks() -> Iterator[Check]:
    rows, columns = 37, 208
    gsa = np.linspace(0.001, 1, rows, dtype=np.float32)
    for dtype, options in _quantizer_options():
        x = _hard_rows(rows, columns, dtype)
        calls: list[tuple[str, tuple[Any, ...]]] = [
            ("quantize_nvfp4", (x, 0.01)),
            ("quantize_nvfp4_from_buffer", (x, gsa)),
            ("amax_quantize_nvfp4", (x,)),
            ("deinterleave_quantize_from_buffer", (x, 96, 8, gsa)),
        ]
        if options in ({}, {"rounding": ROUNDINGS[0]}):
            calls.append(("amax_gsa", (x,)))
        for name, operands in calls:
            given = {} if name == "amax_gsa" else options
            yield _same_call(name, operands, given, f"{np.dtype(dtype).name} {given}")


def _same_call(name: str, operands: tuple[Any, ...], options: dict[str, Any], case: str) -> Check:
    """Return the check of a function that ops and reference have alike."""
    function, right = getattr(ops, name), getattr(reference, name)
    return Check(
        name, case, lambda *a: function(*a, **options), operands, lambda *a: right(*a, **options)
    )


def _dequantize_checks() -> Iterator[Check]:
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 256, (37, 104), np.uint8)
    scales = rng.integers(0, 256, (37, 13), np.uint8)
    gsa = np.linspace(2.0**-20, 2, 37, dtype=np.float32)
    for dtype in ("bfloat16", "float16", "float32"):
        yield _same_call("dequantize_nvfp4", (codes, scales, gsa), {"dtype": dtype}, dtype)


def _operand_checks() -> Iterator[Check]:
    rng = np.random.default_rng(2)
    packed, scales = rng.integers(0, 256, (41, 160), np.uint8), rng.integers(0, 256, (41, 20), "u1")
    for order in ("low_first", "high_first"):
        yield _same_call("nvfp4_mmq_repack", (packed, scales), {"nibble_order": order}, order)
    blocks = reference.nvfp4_mmq_repack(packed, scales)
    yield _same_call("nvfp4_mmq_unpack", (blocks,), {}, "n=41 k=320")
    for k in (1, 16, 250, 256, 832):
        for row_scale in (False, True):
            operands = (_hard_rows(9, k, formats.bfloat16()),)
            options = {"row_scale": row_scale}
            yield _same_call("nvfp4_mmq_quantize_act", operands, options, f"m=9 k={k} {options}")


def _swiglu_checks() -> Iterator[Check]:
    gate, up = (_hard_rows(rows, 300, formats.bfloat16())[:7] for rows in (7, 8))
    operands = (gate, up, 0.75, 1.25)
    for options in ({}, {"swiglu_limit": None}, {"round_intermediate": True}, {"row_scale": True}):
        yield _same_call("nvfp4_silu_mul_quant", operands, options, f"{options}")
    for options in ({}, {"swiglu_limit": None}):
        yield _same_call("nvfp4_silu_mul_scaled", operands, options, f"{options}")
    yield _same_call("nvfp4_scale_bf16", (gate.copy(), 0.37), {}, "7x300")
