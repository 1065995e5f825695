"""Damaged safetensors, GGUF and index files: a ValueError that names the file, or a checkpoint."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import BF16, byte_arrays, fuzz
from test_checkpoint_builders import (
    assert_same_weight,
    compressed_tensors,
    modelopt_tensors,
    random_weight,
    safetensors_bytes,
    with_header,
)

from nvfp4cupy.checkpoint import (
    TARGET_FORMATS,
    Checkpoint,
    NVFP4Weight,
    convert_checkpoint,
    doctor,
    save_checkpoint,
)

pytest.importorskip("gguf")

_NUMBERS = (0, 1, 3, 7, 31, 63, 255, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
_WORDS = ("", "x.weight", "U8", "F4", "F8_E4M3", "BF16", "F32", "shape", "dtype", "data_offsets")
JSON = st.recursive(
    st.one_of(
        st.sampled_from([*_NUMBERS, *_WORDS, None, True, -1, 0.5, 1e400, [], {}]),
        st.integers(-2, 300),
        st.text(max_size=3),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(_WORDS), inner, max_size=3)
    ),
    max_leaves=4,
)


def valid_files(folder: Path) -> dict[str, bytes]:
    """Return valid files of about a kilobyte, one of each kind."""
    weight, stack = random_weight(2, 64, input_scale=0.5), random_weight(1, 64, 2, name="y.weight")
    tensors = {**modelopt_tensors(weight), **modelopt_tensors(stack, "y.weight")}
    tensors |= {"z": ("BF16", np.arange(4).astype(BF16)), "e": ("I64", np.zeros((0, 3), np.int64))}
    half = {"dtype": "F4", "shape": [2, 6], "data_offsets": [0, 6]}
    flag = {"dtype": "BOOL", "shape": [], "data_offsets": [6, 7]}
    header = json.dumps({"half": half, "flag": flag, "__metadata__": {"key": "value"}})
    metadata: dict[str, Any] = {"general.architecture": "a", "words": ["x", "yy"], "number": 3}
    path = folder / "valid.gguf"
    plain = {"z": np.arange(8, dtype=np.float32)}
    save_checkpoint(path, [weight, stack], plain, format="gguf", metadata=metadata)
    return {
        "modelopt.safetensors": safetensors_bytes(tensors, {"key": "value"}),
        "compressed.safetensors": safetensors_bytes(compressed_tensors(weight, 81.0)),
        "plain.safetensors": with_header(header.encode(), bytes([0x7F] * 7)),
        "blocks.gguf": path.read_bytes(),
    }


@st.composite
def edits(draw: st.DrawFn, content: bytes) -> bytes:
    """Change, insert, remove or move a few bytes of a file, most of them in its first half."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) // draw(st.sampled_from([1, 2, 8])) - 1)))
        length = draw(st.integers(1, 16))
        kind = draw(st.sampled_from(["byte", "bit", "number", "insert", "remove", "move", "cut"]))
        if kind == "byte":
            data[at : at + 1] = bytes([draw(st.integers(0, 255))])
        elif kind == "bit":
            data[at : at + 1] = bytes([data[at] ^ 1 << draw(st.integers(0, 7))] if data else [])
        elif kind == "number":
            data[at : at + 8] = struct.pack("<Q", draw(st.sampled_from(_NUMBERS)))
        elif kind == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=16))
        elif kind == "cut":
            del data[at:]
        else:
            piece = data[at : at + length]
            del data[at : at + length]
            if kind == "move":
                to = draw(st.integers(0, len(data)))
                data[to:to] = piece
    return bytes(data)


def places(node: Any) -> list[tuple[Any, Any]]:
    """Return (container, key) of everything inside a JSON document."""
    keys = list(node) if isinstance(node, dict) else range(len(node)) if type(node) is list else ()
    return [place for key in keys for place in [(node, key), *places(node[key])]]


@st.composite
def documents(draw: st.DrawFn, text: bytes) -> bytes:
    """Replace, rename or remove one to three nodes of a JSON document."""
    document = json.loads(text)
    for _ in range(draw(st.integers(1, 3))):
        if not (found := places(document)):
            break
        container, key = found[draw(st.integers(0, len(found) - 1))]
        value = container.pop(key)
        kind = draw(st.sampled_from(["replace", "remove", "rename"]))
        if kind == "replace":
            value = draw(JSON)
        if isinstance(container, dict) and kind != "remove":
            name = key if kind == "replace" else draw(st.sampled_from(_WORDS))
            container[name] = value
        elif kind == "replace":
            container.insert(key, value)
    return json.dumps(document).encode()


def error_of(action: Callable[[], Any], allowed: Any = ValueError) -> str:
    """Return the message of an error that is allowed, or an empty string."""
    try:
        action()
    except allowed as error:
        return str(error)
    return ""


def read_all(path: Path) -> None:
    with Checkpoint.open(path) as checkpoint:
        for name in checkpoint.names():
            checkpoint.tensor(name)
        for name in checkpoint.nvfp4_names():
            checkpoint.nvfp4(name, check=False).dequantize()
            checkpoint.nvfp4(name)


def check_all_readers(path: Path, target: Path, format: Any) -> None:
    """Read, convert and examine a file: what fails names the file and leaves nothing behind."""
    message = error_of(lambda: read_all(path))
    assert not message or path.name in message
    message = error_of(lambda: convert_checkpoint(path, target, format))
    assert not message or path.name in message or "cannot be written: GGUF has" in message
    assert target.exists() == (not message)
    target.unlink(missing_ok=True)
    for finding in doctor(path):
        assert finding.severity in ("error", "warning", "note")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return valid_files(tmp_path_factory.mktemp("valid"))


KINDS = ("modelopt.safetensors", "compressed.safetensors", "plain.safetensors", "blocks.gguf")


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_valid_before_they_are_damaged(
    files: dict[str, bytes], tmp_path: Path, kind: str
) -> None:
    (tmp_path / kind).write_bytes(files[kind])
    read_all(tmp_path / kind)


@pytest.mark.parametrize("kind", KINDS)
@fuzz(20, 1000)
@given(data=st.data())
def test_changed_bytes(
    files: dict[str, bytes], tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    path = tmp_path / kind
    path.write_bytes(data.draw(edits(files[kind])))
    check_all_readers(path, tmp_path / "converted", data.draw(st.sampled_from(TARGET_FORMATS)))


@pytest.mark.parametrize("kind", KINDS[:3])
@fuzz(20, 1000)
@given(data=st.data())
def test_changed_headers(
    files: dict[str, bytes], tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    length = 8 + struct.unpack_from("<Q", files[kind])[0]
    header = data.draw(documents(files[kind][8:length]))
    path = tmp_path / kind
    path.write_bytes(with_header(header, files[kind][length:]))
    check_all_readers(path, tmp_path / "converted", data.draw(st.sampled_from(TARGET_FORMATS)))


@fuzz(20, 1000)
@given(data=st.data())
def test_changed_indices(files: dict[str, bytes], tmp_path: Path, data: st.DataObject) -> None:
    names = {"x.weight": KINDS[0], "half": KINDS[2]}
    index = json.dumps({"metadata": {"total_size": 1}, "weight_map": names}).encode()
    for kind in KINDS[:3]:
        (tmp_path / kind).write_bytes(files[kind])
    path = tmp_path / "model.safetensors.index.json"
    path.write_bytes(data.draw(st.one_of(edits(index), documents(index))))
    message = error_of(lambda: read_all(path), (ValueError, FileNotFoundError))
    assert not message or any(file.name in message for file in tmp_path.iterdir())


@fuzz(20, 400)
@given(
    data=st.data(),
    shape=st.sampled_from([(1, 64), (3, 128), (2, 1, 64), (0, 64), (2, 0)]),
    format=st.sampled_from(TARGET_FORMATS),
)
def test_any_weight_comes_back(
    tmp_path: Path, data: st.DataObject, shape: tuple[int, ...], format: Any
) -> None:
    *leading, k = shape
    codes = data.draw(byte_arrays((*leading, k // 2)))
    scales = data.draw(byte_arrays((*leading, k // 16))) % 0x7F
    count = shape[0] if len(shape) == 3 else 1
    powers = data.draw(st.lists(st.integers(-60, 60), min_size=count, max_size=count))
    scale = np.ldexp(np.ones(count, np.float32), powers).astype(np.float32)
    weight = NVFP4Weight(codes, scales, scale if len(shape) == 3 else scale[0], name="x.weight")
    path = tmp_path / "any"
    save_checkpoint(path, [weight], format=format)
    with Checkpoint.open(path) as checkpoint:
        assert_same_weight(checkpoint.nvfp4("x.weight"), weight)
