"""The public functions on NumPy arrays: same results as the references, bad input refused whole."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from calls import (
    ACT,
    BF16,
    BLOCKS,
    CALLS,
    CODES,
    EVERY,
    GATE,
    GSA,
    UP,
    Call,
    X,
    as_tuple,
    bf16,
    poisoned,
)

import nvfp4cupy as nv
from nvfp4cupy import reference

F32 = np.float32
COLUMN_SCALE, ROW_SCALE = np.full(40, 0.5, F32), np.full(7, 2, F32)
A4_SCALES = {"out_scale": COLUMN_SCALE, "row_scale": ROW_SCALE}

# Their arrays among the keyword arguments must not lie under out either.
WITH_SCALES: dict[str, Call] = {
    **CALLS,
    "nvfp4_mmq_gemm scales": (nv.nvfp4_mmq_gemm, (ACT, BLOCKS), A4_SCALES),
    "nvfp4_mmq_gemm_tiled scales": (nv.nvfp4_mmq_gemm_tiled, (ACT, BLOCKS), A4_SCALES),
    "nvfp4_w4a16_gemm scales": (
        nv.nvfp4_w4a16_gemm,
        (bf16(7, 128, seed=2), BLOCKS),
        {"out_scale": COLUMN_SCALE},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_out_receives_every_byte_and_is_returned(name: str) -> None:
    function, args, options = CALLS[name]
    expected = as_tuple(function(*args, **options))
    outs = poisoned(expected)
    results = as_tuple(function(*args, **options, out=outs if len(outs) > 1 else outs[0]))
    for result, out, right in zip(results, outs, expected, strict=True):
        assert np.shares_memory(result, out)
        assert out.tobytes() == right.tobytes()


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_out_is_refused_and_nothing_is_written(name: str) -> None:
    function, args, options = CALLS[name]
    outs = poisoned(function(*args, **options))
    before = [o.tobytes() for o in outs]
    for i in range(len(outs)):
        for bad in (outs[i][:-1], outs[i].view(np.int8), list(range(3))):
            given = (*outs[:i], bad, *outs[i + 1 :])
            with pytest.raises((TypeError, ValueError), match=r"^out(\[\d\])? must"):
                function(*args, **options, out=given if len(given) > 1 else given[0])
    assert [o.tobytes() for o in outs] == before


@pytest.mark.parametrize("name", CALLS)
def test_a_read_only_out_is_refused(name: str) -> None:
    function, args, options = CALLS[name]
    for i in range(len(as_tuple(function(*args, **options)))):
        outs = poisoned(function(*args, **options))
        outs[i].flags.writeable = False
        with pytest.raises(ValueError, match="must be writable"):
            function(*args, **options, out=outs if len(outs) > 1 else outs[0])


def in_one_buffer(one: np.ndarray, other: np.ndarray, place: str) -> tuple[np.ndarray, np.ndarray]:
    """Copy both to a buffer, the other over the start, head or tail of the one, or beside it."""

    def aligned(offset: int) -> int:
        return offset // 4 * 4  # the largest element is a float32

    starts = {
        "start": (0, 0),
        "tail": (0, aligned(one.nbytes - 1)),
        "head": (aligned(other.nbytes - 1), 0),
        "beside": (0, aligned(one.nbytes + 3)),
    }[place]
    buffer = np.zeros(one.nbytes + other.nbytes + 4, np.uint8)
    one_view, other_view = (
        buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        for array, start in zip((one, other), starts, strict=True)
    )
    other_view[...] = other
    one_view[...] = one  # last, so that it is whole where the two lie over each other
    return one_view, other_view


def array_operands(name: str) -> list[int | str]:
    _, args, options = WITH_SCALES[name]
    operands = [*enumerate(args), *options.items()]
    return [key for key, value in operands if isinstance(value, np.ndarray)]


@pytest.mark.parametrize("place", ["start", "head", "tail", "beside"])
@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name in WITH_SCALES for key in array_operands(name)]
)
def test_an_out_that_overlaps_an_operand_is_refused(name: str, key: Any, place: str) -> None:
    function, args, options = WITH_SCALES[name]
    expected = as_tuple(function(*args, **options))
    operands = {**dict(enumerate(args)), **options}
    for i, right in enumerate(expected):
        outs = list(poisoned(expected))
        operand, outs[i] = in_one_buffer(operands[key], outs[i], place)
        called = {**operands, key: operand}
        positional = [called.pop(j) for j in range(len(args))]
        called["out"] = tuple(outs) if len(outs) > 1 else outs[0]
        may_lie_over_gate = name == "nvfp4_silu_mul_scaled" and key == 0 and place == "start"
        if place == "beside" or may_lie_over_gate:
            function(*positional, **called)
            assert outs[i].tobytes() == right.tobytes()
            continue
        with pytest.raises(ValueError, match="must not overlap"):
            function(*positional, **called)


@pytest.mark.parametrize("place", ["start", "head", "tail", "beside"])
@pytest.mark.parametrize("name", CALLS)
def test_outs_that_overlap_one_another_are_refused(name: str, place: str) -> None:
    function, args, options = CALLS[name]
    expected = as_tuple(function(*args, **options))
    for i, j in itertools.combinations(range(len(expected)), 2):
        outs = list(poisoned(expected))
        outs[i], outs[j] = in_one_buffer(outs[i], outs[j], place)
        if place == "beside":
            function(*args, **options, out=tuple(outs))
            assert [out.tobytes() for out in outs] == [right.tobytes() for right in expected]
            continue
        with pytest.raises(ValueError, match="must not overlap"):
            function(*args, **options, out=tuple(outs))


@pytest.mark.parametrize("name", EVERY)
def test_an_array_operand_of_another_type_is_a_type_error(name: str) -> None:
    function, args, options = EVERY[name]
    for i, arg in enumerate(args):
        if isinstance(arg, np.ndarray):
            for bad in (arg.astype(np.int32), arg.astype(np.float64), None, "x", [1, 2]):
                with pytest.raises(TypeError, match="must be"):
                    function(*args[:i], bad, *args[i + 1 :], **options)


@pytest.mark.parametrize("name", CALLS)
def test_an_operand_of_another_rank_is_a_value_error(name: str) -> None:
    function, args, options = CALLS[name]
    for i, arg in enumerate(args):
        if isinstance(arg, np.ndarray):
            with pytest.raises(ValueError, match="must"):
                function(*args[:i], arg[None], *args[i + 1 :], **options)


@pytest.mark.parametrize(
    "name", [n for n in CALLS if "quantize" in n or "silu" in n or n == "amax_gsa"]
)
def test_check_finite_names_the_first_bad_row(name: str) -> None:
    function, args, options = CALLS[name]
    if name == "dequantize_nvfp4":
        pytest.skip("its operands are codes")
    bad = args[0].copy()
    bad[2, 7] = np.inf
    function(bad, *args[1:], **options)
    with pytest.raises(ValueError, match=r"must be finite, got a NaN or an infinity in row 2$"):
        function(bad, *args[1:], **options, check_finite=True)


def test_check_finite_looks_at_the_rows_and_not_between_them() -> None:
    x = X.copy()
    x[:, 32:] = np.nan
    nv.nvfp4_mmq_quantize_act(x[:, :32], check_finite=True)
    x[3, 31], x[4, 0] = np.inf, np.nan
    with pytest.raises(ValueError, match=r"x must be finite, got a NaN or an infinity in row 3$"):
        nv.nvfp4_mmq_quantize_act(x[:, :32], check_finite=True)


@pytest.mark.parametrize("name", EVERY)
def test_stream_is_refused_for_numpy(name: str) -> None:
    function, args, options = EVERY[name]
    with pytest.raises(ValueError, match="stream must be None for NumPy arrays"):
        function(*args, **options, stream=0)


def test_raw_bfloat16_bits_need_the_dtype() -> None:
    bits = X.view(np.uint16)
    codes, _ = nv.quantize_nvfp4_from_buffer(bits, GSA, dtype="bfloat16")
    assert codes.tobytes() == CODES.tobytes()
    with pytest.raises(TypeError, match='x must be .* got uint16 .pass dtype="bfloat16"'):
        nv.quantize_nvfp4_from_buffer(bits, GSA)


@pytest.mark.parametrize(
    "bad", [X.T, X[:, 16:], X[::2], np.broadcast_to(X[:1], X.shape), X[:, ::-1]]
)
def test_strides_that_the_quantizers_do_not_take_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match="x must be C-contiguous, got shape .* ascontiguousarray"):
        nv.amax_gsa(bad)


def test_strided_rows_are_taken_where_the_contract_has_a_row_stride() -> None:
    right = reference.nvfp4_mmq_quantize_act(np.ascontiguousarray(X[:, 16:]))
    assert nv.nvfp4_mmq_quantize_act(X[:, 16:]).tobytes() == right.tobytes()
    with pytest.raises(ValueError, match="rows of contiguous elements that do not overlap"):
        nv.nvfp4_mmq_quantize_act(np.broadcast_to(X[:1], X.shape))


@pytest.mark.parametrize("gsa", [0.0, -1.0, np.nan, np.inf, 1e-40])
def test_a_scalar_decode_scale_must_be_usable(gsa: float) -> None:
    with pytest.raises(ValueError, match="gsa must be finite and at least 2"):
        nv.quantize_nvfp4(X, gsa)


@pytest.mark.parametrize(
    ("option", "value"), [("rounding", "up"), ("scale_search", 1), ("scale_layout", "tiled")]
)
def test_unknown_options_are_refused_with_the_known_ones(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{option} must be .*, got {value!r}"):
        nv.quantize_nvfp4(X, 1.0, **{option: value})


def test_columns_must_come_in_groups() -> None:
    with pytest.raises(ValueError, match=r"x must have a multiple of 16 columns.*\(5, 40\)"):
        nv.amax_quantize_nvfp4(bf16(5, 40))


@pytest.mark.parametrize(
    ("intermediate", "granularity", "message"),
    [
        (40, 8, "intermediate must be a multiple of 16, got 40"),
        (32, 5, "granularity must be at least 1 and divide intermediate=32, got 5"),
        (32, 0, "granularity must be at least 1"),
        (48, 8, "fused must have at least 2 [*] intermediate = 96 columns"),
    ],
)
def test_deinterleave_refuses_runs_that_do_not_fit(intermediate, granularity, message) -> None:
    with pytest.raises(ValueError, match=message):
        nv.deinterleave_quantize_from_buffer(X, intermediate, granularity, GSA)


def test_gemm_refuses_operands_of_different_k() -> None:
    a = reference.nvfp4_mmq_quantize_act(bf16(7, 512))
    with pytest.raises(ValueError, match="a must have shape .* with k = 128 for blocks"):
        nv.nvfp4_mmq_gemm(a, BLOCKS)


def test_tiled_gemm_says_why_it_refuses_a_large_m() -> None:
    a = reference.nvfp4_mmq_quantize_act(bf16(17, 128))
    with pytest.raises(ValueError, match=r"(?s)17.*16.*stream"):
        nv.nvfp4_mmq_gemm_tiled(a, BLOCKS, mmq_x=16)
    nv.nvfp4_mmq_gemm_tiled(a, BLOCKS, mmq_x=16, allow_restream=True)
    with pytest.raises(ValueError, match="mmq_x"):
        nv.nvfp4_mmq_gemm_tiled(a, BLOCKS, mmq_x=48)


def test_empty_inputs_give_empty_outputs() -> None:
    assert [r.shape for r in nv.amax_quantize_nvfp4(X[:0])] == [(0, 40), (0, 5), (0,)]
    assert [r.shape for r in nv.amax_quantize_nvfp4(X[:, :0])] == [(5, 0), (5, 0), (5,)]
    assert nv.nvfp4_mmq_quantize_act(X[:, :0]).shape == (0, 5, 144)
    assert nv.nvfp4_mmq_gemm(ACT[:, :0], BLOCKS).shape == (0, 40)
    assert nv.nvfp4_mmq_gemm(ACT, BLOCKS[:0]).shape == (7, 0)
    assert nv.nvfp4_silu_mul_scaled(GATE[:0], UP[:0], 1, 1).shape == (0, 300)


@pytest.mark.parametrize("out_scale", [None, np.nan, np.inf])
def test_a_gemm_with_k_zero_gives_zeros(out_scale: float | None) -> None:
    a, blocks = np.empty((0, 7, 144), np.uint8), np.empty((40, 0, 36), np.uint8)
    out = np.full((7, 40), np.nan, BF16)
    for function, operand in (
        (nv.nvfp4_mmq_gemm, a),
        (nv.nvfp4_mmq_gemm_tiled, a),
        (nv.nvfp4_w4a16_gemm, X[:1, :0].repeat(7, axis=0)),
    ):
        out[...] = np.nan
        function(operand, blocks, out_scale=out_scale, out=out)
        assert not out.view(np.uint16).any(), function.__name__


def test_row_scales_of_rows_without_elements_are_one() -> None:
    blocks, empty = np.empty((0, 5, 144), np.uint8), X[:, :0]
    for function, args in (
        (nv.nvfp4_mmq_quantize_act, (empty,)),
        (nv.nvfp4_silu_mul_quant, (empty, empty, 1, 1)),
    ):
        scale = np.full(5, np.nan, F32)
        function(*args, row_scale=True, out=(blocks, scale))
        assert (scale == 1).all(), function.__name__


def test_silu_mul_scaled_may_write_over_gate_only_exactly() -> None:
    expected = nv.nvfp4_silu_mul_scaled(GATE, UP, 1, 1)
    gate = GATE.copy()
    assert nv.nvfp4_silu_mul_scaled(gate, UP, 1, 1, out=gate).tobytes() == expected.tobytes()
    both = np.zeros((4, 300), BF16)
    with pytest.raises(ValueError, match="out must not overlap gate"):
        nv.nvfp4_silu_mul_scaled(both[:3], UP, 1, 1, out=both[1:])


def test_scale_works_in_place() -> None:
    data = GATE.copy()
    assert nv.nvfp4_scale_bf16(data, 2.0) is data
    assert data.tobytes() == (GATE.astype(np.float32) * 2).astype(BF16).tobytes()
    data.flags.writeable = False
    with pytest.raises(ValueError, match="data must be writable"):
        nv.nvfp4_scale_bf16(data, 2.0)
