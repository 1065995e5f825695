"""Every argument of every public function, wrong in every way: an error that names it, no write."""

from __future__ import annotations

import re
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from calls import (
    ACT,
    BLOCKS,
    CALLS,
    CODES,
    EVERY,
    GATE,
    GSA,
    PACKED,
    SCALES,
    UP,
    W_SCALES,
    X,
    as_tuple,
    poisoned,
)
from wrong_arguments import PLACES, VECTORS, Case, kinds_of

import nvfp4cupy as nv
from nvfp4cupy import arrays


@cache
def right_shapes(call: str) -> tuple[np.ndarray, ...]:
    function, args, options = CALLS[call]
    return poisoned(function(*args, **options))


def one_or_all(outs: Any) -> Any:
    return tuple(outs) if len(outs) > 1 else outs[0]


def complaint(case: Case, xp: Any, *, with_out: bool) -> str:
    """Make the call; return what is wrong with how it is refused, or an empty string."""
    function, args, options = EVERY[case.call]
    operands = [xp.array(arg) if isinstance(arg, np.ndarray) else arg for arg in args]
    outs = tuple(map(xp.array, right_shapes(case.call) if case.call in CALLS else ()))
    keywords = dict(options)
    if outs and with_out:
        keywords["out"] = one_or_all(outs)
    watched = [array for array in (*operands, *outs) if hasattr(array, "tobytes")]
    before = [array.tobytes() for array in watched]
    place = dict(zip(kinds_of(case.call), range(len(args)), strict=True)).get(case.argument)
    vector = VECTORS.get(case.argument)
    usual = outs if case.argument == "out" else None if vector is None else xp.array(vector)
    wrong = case.make(xp, usual if place is None else operands[place])
    if place is None:
        keywords[case.argument] = wrong
    else:
        operands[place] = wrong
    try:
        function(*operands, **keywords)
    except Exception as error:
        message = str(error)
        if not isinstance(error, case.error):
            return f"{type(error).__name__}: {message}"
        if not any(re.search(rf"\b{name}\b", message) for name in case.named):
            return f"unnamed: {message}"
        if message.endswith("."):
            return f"a full stop: {message}"
    else:
        return "accepted"
    return "" if [array.tobytes() for array in watched] == before else "something was written"


TAKEN = "memory was taken before all arguments were looked at"


def assert_no_complaints(found: dict[Case, str]) -> None:
    lines = [f"{case}: {text}" for case, text in found.items() if text]
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize(("call", "argument"), PLACES)
def test_a_wrong_argument_is_named_and_nothing_is_written(call: str, argument: str) -> None:
    assert_no_complaints({c: complaint(c, np, with_out=True) for c in PLACES[call, argument]})


@pytest.mark.parametrize(("call", "argument"), [place for place in PLACES if "out" not in place])
def test_a_wrong_argument_is_refused_before_memory_is_taken(
    call: str, argument: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty(*args: Any) -> Any:
        raise AssertionError(TAKEN)

    right_shapes("amax_gsa")
    if call in CALLS:
        right_shapes(call)
    monkeypatch.setattr(arrays, "empty", empty)
    monkeypatch.setattr(arrays.checks, "empty", empty)
    found = {c: complaint(c, np, with_out=False) for c in PLACES[call, argument]}
    assert_no_complaints({c: text for c, text in found.items() if TAKEN in text})


def on_gpu(case: Case) -> str:
    """Complain as ``complaint`` does, but about arrays that CuPy has."""
    import cupy

    if case.label in ("V2", "S2", "O", ">f4", ">f2", "read-only") or case.argument == "stream":
        return ""
    return complaint(case, cupy, with_out=True)


@pytest.mark.gpu
@pytest.mark.parametrize(("call", "argument"), PLACES)
def test_a_wrong_argument_is_refused_on_a_gpu(call: str, argument: str) -> None:
    assert_no_complaints({case: on_gpu(case) for case in PLACES[call, argument]})


def one_over_the_other(first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the memory, and both arrays in it: the second starts in the first's last 4 bytes."""
    start = first.nbytes - 4
    memory = np.zeros(start + second.nbytes, np.uint8)
    one = memory[: first.nbytes].view(first.dtype).reshape(first.shape)
    two = memory[start:].view(second.dtype).reshape(second.shape)
    one[...] = first
    two.view(np.uint8)[...] = 0xFF
    return memory, one, two


def refused_over(memory: np.ndarray, names: str, call: str, operands: Any, outs: Any) -> None:
    before = memory.tobytes()
    function, _, options = CALLS[call]
    with pytest.raises(ValueError, match=names):
        function(*operands, **options, out=one_or_all(outs))
    assert memory.tobytes() == before


@pytest.mark.parametrize("call", CALLS)
def test_outputs_over_operands_and_one_another_are_refused(call: str) -> None:
    _, args, _ = CALLS[call]
    count = len(right_shapes(call))
    for i, out in enumerate(right_shapes(call)):
        out_name = f"out[{i}]" if count > 1 else "out"
        for j, name in enumerate(kinds_of(call)):
            if isinstance(args[j], np.ndarray):
                operands, outs = list(args), list(right_shapes(call))
                memory, operands[j], outs[i] = one_over_the_other(args[j], out)
                message = f"^{re.escape(out_name)} must not overlap {name}$"
                refused_over(memory, message, call, operands, outs)
        for other in range(i):
            outs = list(right_shapes(call))
            memory, outs[other], outs[i] = one_over_the_other(outs[other], out)
            message = rf"^out\[({i}|{other})\] must not overlap out\[({i}|{other})\]$"
            refused_over(memory, message, call, args, outs)


@pytest.mark.parametrize("scale", VECTORS)
@pytest.mark.parametrize("call", ["nvfp4_mmq_gemm", "nvfp4_mmq_gemm_tiled", "nvfp4_w4a16_gemm"])
def test_a_product_over_its_scales_is_refused(call: str, scale: str) -> None:
    function, args, options = CALLS[call]
    if (call, scale) == ("nvfp4_w4a16_gemm", "row_scale"):
        pytest.skip("it has none")
    memory, vector, out = one_over_the_other(VECTORS[scale], *right_shapes(call))
    before = memory.tobytes()
    with pytest.raises(ValueError, match=f"^out must not overlap {scale}$"):
        function(*args, **(options | {scale: vector}), out=out)
    assert memory.tobytes() == before


FINITE = [call for call, argument in PLACES if argument == "check_finite"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("call", FINITE)
def test_check_finite_finds_any_element_of_any_operand(call: str, value: float) -> None:
    function, args, options = CALLS[call]
    for i, (name, kind) in enumerate(kinds_of(call).items()):
        if kind not in ("floats", "groups", "rows", "bfloat16"):
            continue
        for row, column in ((0, 0), (len(args[i]) - 1, args[i].shape[1] - 1)):
            bad = args[i].copy()
            bad[row, column] = value
            operands, outs = (*args[:i], bad, *args[i + 1 :]), right_shapes(call)
            before = [out.tobytes() for out in outs]
            with pytest.raises(ValueError, match=f"^{name} must be finite, .* in row {row}$"):
                function(*operands, **options, check_finite=True, out=one_or_all(outs))
            assert [out.tobytes() for out in outs] == before


class FakeGpuArray:
    """A NumPy array that says it is CuPy's, to be refused before anything touches it."""

    __module__ = "cupy"

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.data = SimpleNamespace(ptr=array.ctypes.data, device_id=0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)


def to_gpu(array: np.ndarray) -> Any:
    import cupy

    return cupy.array(array)


@pytest.mark.parametrize("move", [FakeGpuArray, pytest.param(to_gpu, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("call", CALLS)
def test_one_array_on_the_other_side_is_refused(call: str, move: Any) -> None:
    function, args, options = CALLS[call]
    outs = right_shapes(call)
    before = [out.tobytes() for out in outs]
    places = [i for i, arg in enumerate(args) if isinstance(arg, np.ndarray)]
    for i in [*places, *range(len(args), len(args) + len(outs))]:
        if places == [i]:
            continue  # nothing else says which side is meant
        every = [move(array) if j == i else array for j, array in enumerate((*args, *outs))]
        out = one_or_all(every[len(args) :])
        with pytest.raises(ValueError, match=r"^\S+ must be a (NumPy|CuPy) array like .*, got a "):
            function(*every[: len(args)], **options, out=out)
    assert [out.tobytes() for out in outs] == before


@pytest.mark.gpu
@pytest.mark.parametrize("call", CALLS)
def test_odd_addresses_on_a_gpu_are_served_or_refused(call: str) -> None:
    import cupy

    function, args, options = CALLS[call]
    right = as_tuple(function(*map(to_gpu_or_same, args), **options))
    for i, moved in enumerate((*args, *right_shapes(call))):
        if not isinstance(moved, np.ndarray):
            continue
        every = [to_gpu_or_same(array) for array in (*args, *right_shapes(call))]
        memory = cupy.full(moved.nbytes + 1, 0xFF, np.uint8)
        every[i] = memory[1:].view(moved.dtype).reshape(moved.shape)
        every[i][...] = to_gpu(moved)
        outs = tuple(every[len(args) :])
        before = [out.tobytes() for out in outs]
        try:
            function(*every[: len(args)], **options, out=one_or_all(outs))
        except ValueError as error:
            assert "must be aligned" in str(error)  # noqa: PT017
            assert [out.tobytes() for out in outs] == before
        else:
            assert [out.tobytes() for out in outs] == [out.tobytes() for out in right]


def to_gpu_or_same(value: Any) -> Any:
    return to_gpu(value) if isinstance(value, np.ndarray) else value


# Arguments with an axis of length 0, and the shapes that come of them.
EMPTY: list[tuple[Any, tuple[Any, ...], list[tuple[int, ...]]]] = [
    (nv.amax_gsa, (X[:0],), [(0,)]),
    (nv.amax_gsa, (X[:, :0],), [(5,)]),
    (nv.quantize_nvfp4, (X[:0], 1.0), [(0, 40), (0, 5)]),
    (nv.quantize_nvfp4, (X[:, :0], 1.0), [(5, 0), (5, 0)]),
    (nv.quantize_nvfp4_from_buffer, (X[:0], GSA[:0]), [(0, 40), (0, 5)]),
    (nv.quantize_nvfp4_from_buffer, (X[:, :0], GSA), [(5, 0), (5, 0)]),
    (nv.amax_quantize_nvfp4, (X[:0],), [(0, 40), (0, 5), (0,)]),
    (nv.amax_quantize_nvfp4, (X[:, :0],), [(5, 0), (5, 0), (5,)]),
    (nv.deinterleave_quantize_from_buffer, (X[:0], 32, 8, GSA[:0]), [(0, 16), (0, 2)]),
    (nv.deinterleave_quantize_from_buffer, (X, 0, 8, GSA), [(5, 0), (5, 0)]),
    (nv.dequantize_nvfp4, (CODES[:0], SCALES[:0], GSA[:0]), [(0, 80)]),
    (nv.dequantize_nvfp4, (CODES[:, :0], SCALES[:, :0], GSA), [(5, 0)]),
    (nv.nvfp4_mmq_repack, (PACKED[:0], W_SCALES[:0]), [(0, 2, 36)]),
    (nv.nvfp4_mmq_repack, (PACKED[:, :0], W_SCALES[:, :0]), [(40, 0, 36)]),
    (nv.nvfp4_mmq_unpack, (BLOCKS[:0],), [(0, 64), (0, 8)]),
    (nv.nvfp4_mmq_unpack, (BLOCKS[:, :0],), [(40, 0), (40, 0)]),
    (nv.nvfp4_mmq_quantize_act, (X[:0],), [(1, 0, 144)]),
    (nv.nvfp4_mmq_quantize_act, (X[:, :0],), [(0, 5, 144)]),
    (nv.nvfp4_silu_mul_quant, (GATE[:0], UP[:0], 1, 1), [(2, 0, 144)]),
    (nv.nvfp4_silu_mul_quant, (GATE[:, :0], UP[:, :0], 1, 1), [(0, 3, 144)]),
    (nv.nvfp4_silu_mul_scaled, (GATE[:, :0], UP[:, :0], 1, 1), [(3, 0)]),
    (nv.nvfp4_scale_bf16, (GATE[:0], 1), [(0, 300)]),
    *(
        (gemm, (a, blocks), [shape])
        for gemm, act in ((nv.nvfp4_mmq_gemm, ACT), (nv.nvfp4_mmq_gemm_tiled, ACT))
        for a, blocks, shape in (
            (act[:, :0], BLOCKS, (0, 40)),
            (act, BLOCKS[:0], (7, 0)),
            (act[:0], BLOCKS[:, :0], (7, 40)),
        )
    ),
    (nv.nvfp4_w4a16_gemm, (X[:0, :64], BLOCKS[:, :1]), [(0, 40)]),
    (nv.nvfp4_w4a16_gemm, (X[:, :64], BLOCKS[:0, :1]), [(5, 0)]),
    (nv.nvfp4_w4a16_gemm, (X[:, :0], BLOCKS[:, :0]), [(5, 40)]),
]


@pytest.mark.parametrize("move", [np.array, pytest.param(to_gpu, marks=pytest.mark.gpu)])
@pytest.mark.parametrize("case", EMPTY, ids=lambda case: f"{case[0].__name__} {case[2]}")
def test_empty_operands_give_empty_results_zeros_or_ones(case: Any, move: Any) -> None:
    function, args, shapes = case
    args = [move(a) if isinstance(a, np.ndarray) else a for a in args]
    results = as_tuple(function(*args))
    assert [result.shape for result in results] == shapes
    for result in results:
        value = 1 if result.dtype == np.float32 else 0
        assert (np.asarray(result.tolist()) == value).all()
