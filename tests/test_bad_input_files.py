"""Wrong arguments of checkpoint functions and of FeedForward: named, and nothing is left."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from calls import BF16
from test_checkpoint_builders import random_weight
from wrong_arguments import HUGE

from nvfp4cupy.checkpoint import (
    Checkpoint,
    NVFP4Weight,
    convert_checkpoint,
    doctor,
    quantize_checkpoint,
    save_checkpoint,
    stack_experts,
)
from nvfp4cupy.ffn import FeedForward

pytest.importorskip("gguf")

W = random_weight(2, 64, name="x.weight")
CODES, SCALES = W.linear()
# What parameters do not take.
PATHS = [None, 3, ["a"], 1.5]
NAMES = [None, 3, ["a"], b"a"]
UNKNOWN = ["unknown", None, 3, []]
NUMBERS = ["1", "x", True, 1j, [1.0], np.ones(2, np.float32), np.array("1")]
SWITCHES = ["no", np.ones(2), []]
PATTERNS = ["*.weight", None, 3, [3]]
CALLABLES = [3, "x"]

# function -> parameter -> (wrong values, their error)
TABLE: dict[str, dict[str, tuple[list[Any], Any]]] = {
    "open": {"path": (PATHS, TypeError), "nibble_order": (UNKNOWN, ValueError)},
    "tensor": {"name": (NAMES, TypeError)},
    "info": {"name": (NAMES, TypeError)},
    "nvfp4": {"name": (NAMES, TypeError)},
    "parts": {"name": (NAMES, TypeError)},
    "release": {"name": (["nothing"], ValueError)},
    "save": {
        "path": (PATHS, TypeError),
        "weights": ([None, 3, "x", W, [3], [None]], TypeError),
        "tensors": ([3, "x", ["a"], {"a": 3}, {"a": [1]}, {"a": np.array("x")}], TypeError),
        "format": (UNKNOWN, ValueError),
        "metadata": ([3, "x", ["a"], {"a": 1}, {"a": None}, {3: "a"}], TypeError),
        "progress": (CALLABLES, TypeError),
    },
    "save gguf": {
        "metadata": (
            [3, {3: "a"}, {"a": 1j}, {"a": {}}, {"a": [1, "x"]}, {"general.architecture": 3}],
            TypeError,
        ),
    },
    "save gguf values": {
        "metadata": (
            [{"a": 2**70}, {"a": [2**70]}, {"general.alignment": 3}, {"GGUF.version": 4}],
            ValueError,
        ),
    },
    "convert": {
        "src": (PATHS, TypeError),
        "dst": (PATHS, TypeError),
        "format": (UNKNOWN, ValueError),
        "nibble_order": (UNKNOWN, ValueError),
        "progress": (CALLABLES, TypeError),
    },
    "quantize": {
        "src": (PATHS, TypeError),
        "dst": (PATHS, TypeError),
        "format": (UNKNOWN, ValueError),
        "rounding": (UNKNOWN, ValueError),
        "scale_search": ([1, None, "2", True, []], ValueError),
        "include": (PATTERNS, TypeError),
        "exclude": (PATTERNS, TypeError),
        "quantizer": ([None, *CALLABLES], TypeError),
        "progress": (CALLABLES, TypeError),
    },
    "doctor": {"checkpoint": ([*PATHS, W], TypeError)},
    "weight": {
        "codes": ([None, 3, [1], CODES.astype(np.int8), CODES.astype(np.float32)], TypeError),
        "scales": ([3, [1], SCALES.astype(np.int8)], TypeError),
        "decode_scale": ([None, *NUMBERS], (TypeError, ValueError)),
        "input_scale": (NUMBERS, (TypeError, ValueError)),
        "layout": (UNKNOWN, ValueError),
        "name": ([None, 3, b"a"], TypeError),
    },
    "weight values": {
        "codes": ([CODES[0], CODES[:, :31], CODES[None, None]], ValueError),
        "scales": ([None, SCALES[:1], SCALES[0], SCALES[:, :3]], ValueError),
        "decode_scale": ([HUGE], ValueError),
    },
    "to_layout": {"layout": (UNKNOWN, ValueError)},
    "dequantize": {"dtype": ([*UNKNOWN, "int8"], (TypeError, ValueError))},
    "split_gate_up": {"granularity": (["x", 1.0, True, [1]], TypeError)},
    "stack_experts": {"weights": ([None, 3, [3], [None], W], TypeError)},
    "FeedForward": {
        **dict.fromkeys(("gate", "up", "down"), ([None, 3, "x", (CODES, SCALES)], TypeError)),
        "device": (UNKNOWN, ValueError),
        "max_m": (["x", 1.5, None], TypeError),
        "workspace": ([3, "x"], TypeError),
        **dict.fromkeys(("w4a16", "row_scale", "round_intermediate"), (SWITCHES, TypeError)),
        "swiglu_limit": (NUMBERS, TypeError),
    },
    "FeedForward values": {
        "max_m": ([-1], ValueError),
        "swiglu_limit": ([0, -1, HUGE], ValueError),
    },
    "from_checkpoint": {
        "path": (PATHS, TypeError),
        "layer": ([None, 1.5, [0]], TypeError),
        "names": ([3, "x", [1, 2, 3]], TypeError),
        "granularity": (["x", 1.5], TypeError),
        "nibble_order": (UNKNOWN, ValueError),
    },
    "call": {
        "x": ([None, 3, [1.0], np.zeros((2, 64), np.float32)], TypeError),
        "dtype": ([*UNKNOWN[:1], 3], (TypeError, ValueError)),
        "out": ([3, [1], np.zeros((2, 3), np.float32)], TypeError),
        "workspace": ([3, "x"], TypeError),
        "stream": ([0, "x"], ValueError),
    },
    "call values": {
        "x": (
            [np.zeros(s, BF16) for s in ((64,), (1, 2, 64), (2, 32))] + [np.zeros((64, 2), BF16).T],
            ValueError,
        ),
        "out": ([np.zeros((2, 4), BF16), np.zeros((3, 2), BF16).T], ValueError),
    },
}
PLACES = [(function, name) for function, parameters in TABLE.items() for name in parameters]


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Give a checkpoint with a feed-forward and a plain matrix, and a feed-forward."""
    path = tmp_path_factory.mktemp("right") / "a.safetensors"
    parts = {"gate_proj": 64, "up_proj": 64, "down_proj": 3}
    weights = [
        random_weight(n, 64, name=f"layers.0.mlp.{part}.weight") for part, n in parts.items()
    ]
    save_checkpoint(
        path, [W, *weights], {"f.weight": np.zeros((2, 64), np.float32)}, format="modelopt"
    )
    return SimpleNamespace(
        path=path,
        weights=weights,
        checkpoint=Checkpoint.open(path),
        ffn=FeedForward(*weights, device="cpu"),
    )


def arguments(right: Any, target: Path) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return each function with arguments that are right."""
    gate, up, down = right.weights
    name = {"name": "x.weight"}
    save = {"path": target, "weights": [W], "format": "modelopt"}
    move = {"src": right.path, "dst": target, "format": "modelopt"}
    weight = {"codes": CODES, "scales": SCALES, "decode_scale": 1.0, "name": "w"}
    return {
        "open": (Checkpoint.open, {"path": right.path}),
        **{m: (getattr(right.checkpoint, m), name) for m in ("tensor", "info", "nvfp4", "parts")},
        "release": (right.checkpoint.release, name),
        "save": (save_checkpoint, save),
        "save gguf": (save_checkpoint, save | {"format": "gguf"}),
        "convert": (convert_checkpoint, move),
        "quantize": (quantize_checkpoint, move),
        "doctor": (doctor, {"checkpoint": right.path}),
        "weight": (NVFP4Weight, weight),
        "to_layout": (W.to_layout, {"layout": "linear"}),
        "dequantize": (W.dequantize, {"dtype": "float32"}),
        "split_gate_up": (W.split_gate_up, {"granularity": 1}),
        "stack_experts": (stack_experts, {"weights": [W, W]}),
        "FeedForward": (FeedForward, {"gate": gate, "up": up, "down": down, "device": "cpu"}),
        "from_checkpoint": (
            FeedForward.from_checkpoint,
            {"path": right.path, "layer": 0, "device": "cpu"},
        ),
        "call": (right.ffn, {"x": np.zeros((2, 64), BF16)}),
    }


@pytest.mark.parametrize("function", [name for name in TABLE if " values" not in name])
def test_the_right_arguments_are_right(function: str, right: Any, tmp_path: Path) -> None:
    call, given = arguments(right, tmp_path / "b")[function]
    call(**given)


def complaint(call: Any, given: dict[str, Any], error: Any, name: str) -> str:
    """Make a call with a wrong argument; return what is wrong with how it is refused, or ""."""
    try:
        call(**given)
    except Exception as raised:
        message = str(raised)
        if not isinstance(raised, error):
            return f"{type(raised).__name__}: {message}"
        if not re.search(rf"\b{name}\b|os.PathLike", message):
            return f"unnamed: {message}"
        return f"a full stop: {message}" if message.endswith(".") else ""
    return "accepted"


@pytest.mark.parametrize(("function", "parameter"), PLACES)
def test_a_wrong_argument_is_named_and_nothing_is_left(
    function: str, parameter: str, right: Any, tmp_path: Path
) -> None:
    values, error = TABLE[function][parameter]
    call, given = arguments(right, tmp_path / "b")[function.removesuffix(" values")]
    lines = []
    for value in values:
        if text := complaint(call, given | {parameter: value}, error, parameter):
            lines.append(f"{value!r:.60}: {text}")
        for left in tmp_path.iterdir():
            lines.append(f"{value!r:.60}: left {left.name}")
            left.unlink()
    assert not lines, "\n".join(lines)


@pytest.mark.parametrize("alignment", [1, 8, 16, 64, 256])
def test_metadata_does_not_move_the_data_of_a_gguf_file(alignment: int, tmp_path: Path) -> None:
    plain = {"z": np.arange(8, dtype=np.float32)}
    metadata = {"general.alignment": alignment, "split.count": 7}
    save_checkpoint(tmp_path / "a", [W], plain, format="gguf", metadata=metadata)
    with Checkpoint.open(tmp_path / "a") as checkpoint:
        np.testing.assert_array_equal(checkpoint.nvfp4("x.weight").linear()[0], CODES)
        np.testing.assert_array_equal(checkpoint.tensor("z"), plain["z"])


@pytest.mark.parametrize("key", ["general.alignment", "GGUF.version", "split.count"])
def test_metadata_that_is_the_writers_own_is_not_taken_from_safetensors(
    key: str, tmp_path: Path
) -> None:
    save_checkpoint(tmp_path / "a", [W], format="modelopt", metadata={key: "64"})
    convert_checkpoint(tmp_path / "a", tmp_path / "b", "gguf")
    with Checkpoint.open(tmp_path / "b") as checkpoint:
        np.testing.assert_array_equal(checkpoint.nvfp4("x.weight").linear()[0], CODES)


def test_a_part_of_a_weight_is_named_with_its_weight() -> None:
    gate = random_weight(64, 64)
    for part in (0, 1):
        wrong = [*gate.linear(), 1.0]
        wrong[part] = None
        with pytest.raises(TypeError, match=f"{('codes', 'scales')[part]} of down must be"):
            FeedForward(gate, gate, tuple(wrong), device="cpu")
