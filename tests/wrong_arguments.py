"""The product of the functions in ``calls.py`` with all that can be wrong with their arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from calls import BF16, CALLS, EVERY, as_tuple

__all__ = ["HUGE", "PLACES", "VECTORS", "Case", "kinds_of"]

# Kinds of arguments by name; x is rows for those that take a row stride, groups for quantizers.
KINDS = {
    **dict.fromkeys(("codes", "scales", "packed", "blocks", "a"), "bytes"),
    **dict.fromkeys(("gate_scale", "up_scale", "scale"), "factor"),
    **dict.fromkeys(("gate", "up", "data"), "bfloat16"),
    **dict.fromkeys(("intermediate", "granularity"), "size"),
    **dict.fromkeys(("gsa", "row_scale", "out_scale"), "vector"),
    "fused": "floats",
}
KINDS_OF_X = {"amax_gsa": "floats", "nvfp4_w4a16_gemm": "rows", "nvfp4_mmq_quantize_act": "rows"}
ACCEPTED = {
    **dict.fromkeys(("rows", "bfloat16"), ("bfloat16",)),
    **dict.fromkeys(("groups", "floats"), ("bfloat16", "float16", "float32")),
    "bytes": ("uint8",),
    "vector": ("float32",),
}
DTYPES = (
    *(
        BF16,
        "bool",
        "int8",
        "uint8",
        "uint16",
        "int32",
        "float16",
        "float32",
        "float64",
        "complex64",
    ),
    *(">f4", ">f2", "V2", "S2", "O"),
)
HUGE = 10**400  # no float holds it
NO_ARRAYS = {"None": None, "text": "x", "a number": 3, "a list": [1.0, 2.0], "bytes": b"x"}
NO_NUMBERS = {
    **{"None": None, "text": "1", "true": True, "complex": 1j, "a list": [1.0]},
    **{"an array": np.ones(1, np.float32), "a text array": np.array("1")},
}
NO_SWITCHES = {"text": "no", "an array": np.ones(5, np.float32), "a list": [], "a number": 3}
NO_SIZES = {"text": "16", "None": None, "true": True, "a float": 16.0, "a list": [16]}
# Values of keyword options that are wrong, those of a wrong type first.
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rounding": ({}, {"unknown": "up", "None": None, "a number": 3, "a list": []}),
    "scale_search": ({}, {"one": 1, "true": True, "text": "2", "an array": np.array([0, 2])}),
    "scale_layout": ({}, {"unknown": "tiled", "None": None, "a number": 3}),
    "nibble_order": ({}, {"unknown": "low", "None": None, "a number": 3}),
    "kernel": ({}, {"unknown": "fast", "None": None, "a number": 128}),
    "mmq_x": ({k: v for k, v in NO_SIZES.items() if k != "None"}, {"48": 48, "0": 0, "-16": -16}),
    "swiglu_limit": (
        {k: v for k, v in NO_NUMBERS.items() if k != "None"},
        {"zero": 0.0, "negative": -1.0, "nan": np.nan, "infinite": np.inf, "huge": HUGE},
    ),
    "stream": ({}, {"a pointer": 0, "text": "x"}),
    **dict.fromkeys(("check_finite", "round_intermediate", "allow_restream"), (NO_SWITCHES, {})),
    "deterministic_kblocks": (NO_SWITCHES, {}),
}


# Of the product, what is right.
RIGHT = {
    *(("dequantize_nvfp4", "gsa", label) for label in ("a number", "no axis")),
    *((call, "out_scale", label) for call in CALLS for label in ("None", "a number", "no axis")),
    *((call, "row_scale", "None") for call in CALLS),
    *((call, "blocks", "too few rows") for call in CALLS),  # fewer outputs
    ("nvfp4_w4a16_gemm", "x", "too few rows"),
    ("deinterleave", "fused", "too short"),
}


@dataclass(frozen=True)
class Case:
    """A call with one wrong argument; ``make(xp, usual)`` gives what stands in its place."""

    call: str
    argument: str
    label: str
    make: Callable[[Any, Any], Any]
    error: Any
    named: tuple[str, ...]  # one of these stands in the message

    def __str__(self) -> str:
        return f"{self.call}-{self.argument}-{self.label}"


Wrong = tuple[str, Callable[[Any, Any], Any], Any]


def constant(values: dict[str, Any], error: Any) -> Iterator[Wrong]:
    for label, value in values.items():
        yield label, lambda xp, usual, value=value: value, error


def wrong_arrays(kind: str, is_alone: bool) -> Iterator[Wrong]:
    """Yield an array's wrong types, ranks, strides and sizes."""
    yield from constant(NO_ARRAYS, TypeError)
    for dtype in DTYPES:
        if np.dtype(dtype).name not in ACCEPTED[kind] or str(dtype)[0] == ">":
            yield str(dtype), lambda xp, u, dtype=dtype: xp.zeros(u.shape, dtype), TypeError
    if kind != "bfloat16" or not is_alone:
        yield "no axis", lambda xp, u: u.ravel()[:1].reshape(()), (TypeError, ValueError)
        yield "one axis more", lambda xp, u: u[None], ValueError
    yield "columns backwards", lambda xp, u: u[..., ::-1], ValueError
    yield "every other column", lambda xp, u: xp.repeat(u, 2, axis=-1)[..., ::2], ValueError
    if kind != "vector":
        yield "columns first", lambda xp, u: xp.asfortranarray(u), ValueError
        yield "rows backwards", lambda xp, u: u[..., ::-1, :], ValueError
        yield "one row", lambda xp, u: xp.broadcast_to(u[..., :1, :], u.shape), ValueError
    if kind not in ("rows", "vector"):
        yield "rows apart", lambda xp, u: xp.repeat(u, 2, axis=-2)[..., ::2, :], ValueError
    if not is_alone:
        yield "too short", lambda xp, u: u[..., : u.shape[-1] - 1].copy(), ValueError
        yield "too few rows", lambda xp, u: u[: len(u) - 1].copy(), ValueError
    if kind == "groups":
        yield "half a group", lambda xp, u: u[:, :40].copy(), ValueError


def wrong_values(kind: str, is_alone: bool) -> Iterator[Wrong]:
    if kind in ("factor", "decode scale"):
        yield from constant(NO_NUMBERS, TypeError)
        yield from constant({"huge": HUGE}, ValueError)
        if kind == "decode scale":
            unusable = {"0": 0.0, "-1": -1.0, "nan": np.nan, "inf": np.inf, "1e-40": 1e-40}
            yield from constant(unusable, ValueError)
    elif kind == "size":
        yield from constant(NO_SIZES, TypeError)
        yield from constant({"negative": -16, "not a divisor": 40, "huge": HUGE}, ValueError)
    else:
        yield from wrong_arrays(kind, is_alone)


def kinds_of(call: str) -> dict[str, str]:
    """Return the kinds of the positional arguments of a call by name."""
    function, args, _ = EVERY[call]
    names = list(inspect.signature(function).parameters)[: len(args)]
    kinds = {name: KINDS.get(name, "groups") for name in names}
    if "x" in kinds:
        kinds["x"] = KINDS_OF_X.get(call.split()[0], "groups")
    return kinds | ({"gsa": "decode scale"} if call == "quantize_nvfp4" else {})


def cases() -> Iterator[Case]:
    for call, (function, args, _) in EVERY.items():
        kinds, options = kinds_of(call), list(inspect.signature(function).parameters)[len(args) :]
        is_alone = sum(kind in ACCEPTED for kind in kinds.values()) == 1
        for name, kind in kinds.items():
            for label, make, error in wrong_values(kind, is_alone):
                # Sizes that do not fit one another may be blamed on either argument.
                named = (name,) if error is TypeError else tuple(kinds)
                yield Case(call, name, label, make, error, named)
        for name in options:
            for label, make, error in wrong_option(call, name):
                yield Case(call, name, label, make, error, (name,))


def wrong_option(call: str, name: str) -> Iterator[Wrong]:
    of_type, of_value = OPTIONS.get(name, ({}, {}))
    if name in ("row_scale", "out_scale"):
        wrong_vector = wrong_arrays("vector", is_alone=False)
        yield from wrong_vector if "gemm" in call else constant(NO_SWITCHES, TypeError)
    elif name == "dtype" and ("gemm" in call or call == "dequantize_nvfp4"):
        others = {"unknown": "int8", "None": None, "a number": 3, "wide": np.float64}
        yield from constant(others, TypeError)
    elif name == "dtype":
        yield from constant({"unknown": "float16", "a number": 3}, (TypeError, ValueError))
    elif name == "out":
        yield from wrong_outputs(call)
    yield from constant(of_type, TypeError)
    yield from constant(of_value, (TypeError, ValueError))


def wrong_outputs(call: str) -> Iterator[Wrong]:
    """Yield each output wrong; ``usual`` is the tuple of right ones."""
    function, args, options = CALLS[call]
    count = len(as_tuple(function(*args, **options)))
    wrong: list[Wrong] = [w for w in constant(NO_ARRAYS, TypeError) if w[0] != "None"]
    wrong += [
        ("int8", lambda xp, u: u.view(np.int8), TypeError),
        (
            "one column more",
            lambda xp, u: xp.repeat(u, 2, axis=-1)[..., : u.shape[-1] + 1],
            ValueError,
        ),
        ("one axis more", lambda xp, u: u[None], ValueError),
        ("backwards", lambda xp, u: u[..., ::-1], ValueError),
        ("apart", lambda xp, u: xp.repeat(u, 2, axis=-1)[..., ::2], ValueError),
        (
            "read-only",
            lambda xp, u: xp.lib.stride_tricks.as_strided(u, writeable=False),
            ValueError,
        ),
    ]
    for i in range(count):
        for label, make, error in wrong:

            def change(xp: Any, outs: Any, i: int = i, make: Any = make) -> Any:
                changed = (*outs[:i], make(xp, outs[i]), *outs[i + 1 :])
                return changed if count > 1 else changed[0]

            yield f"{i} {label}", change, error
    if count > 1:
        yield "one array", lambda xp, outs: outs[0], TypeError
        yield "too few", lambda xp, outs: outs[1:], TypeError
        yield "too many", lambda xp, outs: (*outs, outs[0]), TypeError


_CASES = [case for case in cases() if (case.call, case.argument, case.label) not in RIGHT]
VECTORS = {"out_scale": np.ones(40, np.float32), "row_scale": np.ones(7, np.float32)}
# The cases of each argument of each call.
PLACES = {
    place: list(group)
    for place, group in groupby(_CASES, key=lambda case: (case.call, case.argument))
}
