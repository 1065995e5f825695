from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_checkpoint_builders import modelopt_tensors, random_weight, safetensors_bytes, with_header

from nvfp4cupy.checkpoint import Checkpoint, save_checkpoint

GOOD = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
ONE_PATH = settings(
    max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


def entry(**changes: object) -> bytes:
    return with_header(json.dumps({"x": GOOD | changes}).encode(), bytes(4))


def two(first: list[int], second: list[int], data: int) -> bytes:
    header = {
        "a": {"dtype": "U8", "shape": [first[1] - first[0]], "data_offsets": first},
        "b": {"dtype": "U8", "shape": [second[1] - second[0]], "data_offsets": second},
    }
    return with_header(json.dumps(header).encode(), bytes(data))


DUPLICATE = f'{{"x": {json.dumps(GOOD)}, "x": {json.dumps(GOOD)}}}'.encode()
MALFORMED = {
    "empty": (b"", "truncated"),
    "seven bytes": (bytes(7), "truncated"),
    "length beyond the file": (struct.pack("<Q", 1 << 20) + b"{}", "header claims 1048576 bytes"),
    "length of 2^64 - 1": (bytes([0xFF] * 8) + b"{}", "header claims"),
    "no JSON": (with_header(b"{x"), "no valid JSON"),
    "no UTF-8": (with_header(b"\xff\xfe"), "no valid JSON"),
    "deep JSON": (with_header(b"[" * 100_000), "no valid JSON"),
    "a list": (with_header(b"[]"), "JSON object as header, got list"),
    "an empty header": (with_header(b""), "no valid JSON"),
    "twice": (with_header(DUPLICATE, bytes(4)), "'x' twice"),
    "entry is a number": (with_header(b'{"x": 3}'), "unknown dtype None"),
    "unknown dtype": (entry(dtype="F7"), "unknown dtype 'F7'"),
    "dtype is a list": (entry(dtype=["U8"]), "unknown dtype"),
    "negative size": (entry(shape=[-4]), "sizes as shape"),
    "size is true": (entry(shape=[True, 4]), "sizes as shape"),
    "size is a float": (entry(shape=[4.0]), "sizes as shape"),
    "shape is a number": (entry(shape=4), "sizes as shape"),
    "huge shape": (entry(shape=[1 << 62, 1 << 62]), "must have"),
    "one offset": (entry(data_offsets=[0]), "two sizes as data_offsets"),
    "negative offset": (entry(data_offsets=[-4, 0]), "two sizes as data_offsets"),
    "offsets reversed": (entry(data_offsets=[4, 0]), "must have 4 bytes"),
    "offsets too short": (entry(data_offsets=[0, 3]), "must have 4 bytes"),
    "beyond the end": (entry(shape=[9], data_offsets=[0, 9]), "truncated at"),
    "a gap in front": (entry(data_offsets=[1, 5]), "leaves 1 bytes after the header"),
    "half a byte": (entry(dtype="F4", shape=[3], data_offsets=[0, 1]), "do not fill whole bytes"),
    "bytes left over": (with_header(json.dumps({"x": GOOD}).encode(), bytes(6)), "2 bytes that"),
    "overlap": (two([0, 4], [2, 6], 6), "'b' of .* overlaps 'a'"),
    "gap": (two([0, 4], [5, 6], 6), "leaves 1 bytes after 'a'"),
    "metadata is a list": (with_header(b'{"__metadata__": []}'), "strings only"),
    "metadata of numbers": (with_header(b'{"__metadata__": {"a": 1}}'), "strings only"),
}


@pytest.mark.parametrize(("content", "message"), MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_safetensors(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as raised:
        Checkpoint.open(path)
    assert "bad.safetensors" in str(raised.value)


def test_a_huge_header_length_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(struct.pack("<Q", 90_000_000) + b"{}")
    tracemalloc.start()
    with pytest.raises(ValueError, match="header claims"):
        Checkpoint.open(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def file_of(folder: Path, suffix: str) -> bytes:
    """A valid file of about a kilobyte, and for GGUF without the padding at its end."""
    path = folder / f"good.{suffix}"
    weight = random_weight(2, 64)
    if suffix == "safetensors":
        return safetensors_bytes(modelopt_tensors(weight), {"key": "value"})
    metadata = {"general.architecture": "a", "words": ["x", "yy"], "number": 3, "list": [1.0, 2.0]}
    last = {"z": np.arange(8, dtype=np.float32)}
    save_checkpoint(path, [weight], last, format="gguf", metadata=metadata)
    return path.read_bytes()


@pytest.mark.parametrize("suffix", ["safetensors", "gguf"])
def test_every_truncation_is_an_error_that_names_the_file(tmp_path: Path, suffix: str) -> None:
    content, path = file_of(tmp_path, suffix), tmp_path / f"cut.{suffix}"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=f"cut.{suffix}"):
            Checkpoint.open(path)


def error_of(path: Path) -> str | None:
    """Read all weights; only a ValueError may come of it."""
    try:
        with Checkpoint.open(path) as checkpoint:
            for name in checkpoint.nvfp4_names():
                checkpoint.nvfp4(name)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("suffix", ["safetensors", "gguf"])
@ONE_PATH
@given(data=st.data())
def test_changed_bytes_give_a_value_error_or_a_checkpoint(
    tmp_path: Path, suffix: str, data: st.DataObject
) -> None:
    content, path = bytearray(file_of(tmp_path, suffix)), tmp_path / f"changed.{suffix}"
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    message = error_of(path)
    assert message is None or f"changed.{suffix}" in message
