from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_checkpoint_builders import random_weight

from nvfp4cupy.checkpoint import (
    Checkpoint,
    TensorSpec,
    save_checkpoint,
    write_gguf,
    write_safetensors,
)

Writer = Callable[..., None]
WRITERS = pytest.mark.parametrize("write", [write_safetensors, write_gguf])
ONES = np.ones(4, np.float32)


class DiskFullError(Exception):
    pass


def f32(name: str, producer: Callable[[], Any], size: int = 4) -> TensorSpec:
    return TensorSpec(name, "F32", (size,), producer)


def failing() -> Iterator[np.ndarray]:
    yield ONES[:2]
    raise DiskFullError


@WRITERS
def test_pieces_follow_each_other(tmp_path: Path, write: Writer) -> None:
    values = np.arange(6, dtype=np.float32)
    calls: list[tuple[str, int, int]] = []
    specs = [
        f32("a", lambda: iter([values[:2], values[2:2], values[2:]]), 6),
        f32("b", lambda: [values[::-1]], 6),
    ]
    write(tmp_path / "file", specs, progress=lambda *call: calls.append(call))
    with Checkpoint.open(tmp_path / "file") as checkpoint:
        np.testing.assert_array_equal(checkpoint.tensor("a"), values)
        np.testing.assert_array_equal(checkpoint.tensor("b"), values[::-1])
    assert calls == [("a", 8, 48), ("a", 8, 48), ("a", 24, 48), ("b", 48, 48)]


@WRITERS
def test_a_failing_producer_leaves_nothing(tmp_path: Path, write: Writer) -> None:
    with pytest.raises(DiskFullError):
        write(tmp_path / "file", [f32("a", lambda: [ONES]), f32("b", failing)])
    assert list(tmp_path.iterdir()) == []


@WRITERS
def test_a_failing_producer_leaves_the_old_file(tmp_path: Path, write: Writer) -> None:
    path = tmp_path / "file"
    write(path, [f32("a", lambda: [ONES])])
    before = path.read_bytes()
    with pytest.raises(DiskFullError):
        write(path, [f32("b", failing)])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@WRITERS
@pytest.mark.parametrize(("size", "got"), [(3, "more"), (5, "16")])
def test_too_few_or_too_many_bytes(tmp_path: Path, write: Writer, size: int, got: str) -> None:
    message = rf"'a' of F32 \({size},\) needs {4 * size} bytes, its producer gave {got}"
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "file", [f32("a", lambda: [ONES], size)])
    assert list(tmp_path.iterdir()) == []


@WRITERS
def test_bad_targets(tmp_path: Path, write: Writer) -> None:
    specs = [f32("a", lambda: [ONES])]
    with pytest.raises(FileNotFoundError, match="folder of .* does not exist"):
        write(tmp_path / "no" / "file", specs)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        write(tmp_path, specs)
    with pytest.raises(ValueError, match="'a' would be written twice"):
        write(tmp_path / "file", specs * 2)


@WRITERS
def test_a_file_gets_the_usual_permissions(tmp_path: Path, write: Writer) -> None:
    (tmp_path / "usual").write_bytes(b"")
    write(tmp_path / "file", [f32("a", lambda: [ONES])])
    modes = {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert len(modes) == 1


@WRITERS
def test_no_tensors_at_all(tmp_path: Path, write: Writer) -> None:
    write(tmp_path / "file", [])
    with Checkpoint.open(tmp_path / "file") as checkpoint:
        assert checkpoint.names() == []


@pytest.mark.parametrize(
    ("write", "dtype", "shape", "message"),
    [
        (write_safetensors, "Q4_K", (1, 256), "'a' cannot be written: safetensors has no Q4_K"),
        (write_safetensors, "F4", (3,), "do not fill whole bytes"),
        (write_gguf, "U8", (4,), "'a' cannot be written: GGUF has no U8 tensors"),
        (write_gguf, "F8_E4M3", (4,), "GGUF has no F8_E4M3 tensors"),
        (write_gguf, "NVFP4", (2, 48), "k must be a multiple of 64 for NVFP4, got k = 48"),
        (write_gguf, "F32", (1, 1, 1, 1, 4), "GGUF has at most 4 dimensions"),
    ],
)
def test_tensors_that_a_format_has_not(
    tmp_path: Path, write: Writer, dtype: str, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        write(tmp_path / "file", [TensorSpec("a", dtype, shape, lambda: [ONES])])
    assert list(tmp_path.iterdir()) == []


def test_metadata_that_a_format_has_not(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="metadata must map strings to strings, got 'n': 3"):
        write_safetensors(tmp_path / "file", [], {"n": 3})
    with pytest.raises(TypeError, match="metadata 'n' must be a string, number or list"):
        write_gguf(tmp_path / "file", [], {"n": {}})
    with pytest.raises(ValueError, match="no tensor can have the name '__metadata__'"):
        write_safetensors(tmp_path / "file", [f32("__metadata__", lambda: [ONES])])


def test_save_checkpoint_checks_before_it_writes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(ValueError, match="format must be one of modelopt, .* got 'awq'"):
        save_checkpoint(path, [random_weight()], format="awq")
    for bad in (0.0, np.inf, np.nan, -1.0):
        with pytest.raises(ValueError, match="input_scale of x.weight must be finite and above"):
            save_checkpoint(path, [random_weight(input_scale=bad)], format="modelopt")
    with pytest.raises(TypeError, match="no file holds arrays of object"):
        save_checkpoint(path, [], {"o": np.array([None])}, format="modelopt")
    with pytest.raises(ValueError, match="would be written twice"):
        save_checkpoint(path, [random_weight()] * 2, format="modelopt")
    assert list(tmp_path.iterdir()) == []
