from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_checkpoint_builders import DATA, assert_same_weight, modelopt_tensors, random_weight
from test_checkpoint_builders import write_tensors as write

from nvfp4cupy.checkpoint import (
    TARGET_FORMATS,
    Checkpoint,
    convert_checkpoint,
    quantize_checkpoint,
    save_checkpoint,
    streams,
)

FORMATS = pytest.mark.parametrize("target", TARGET_FORMATS)
WEIGHTS = [
    random_weight(5, 128, name="x.weight", decode_scale=0.25, input_scale=2.0),
    random_weight(3, 64, 2, name="experts.gate_up_proj", seed=1, decode_scale=0.5),
]
OTHERS = {"norm.weight": np.arange(7, dtype=np.float16), "step": np.array([3], np.int64)}


@FORMATS
@pytest.mark.parametrize("source", TARGET_FORMATS)
def test_every_bit_is_kept(
    tmp_path: Path, source: Any, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CHUNK_VALUES", 256)
    save_checkpoint(tmp_path / "a", WEIGHTS, OTHERS, format=source, metadata={"k": "v"})
    convert_checkpoint(tmp_path / "a", tmp_path / "b", target)
    with Checkpoint.open(tmp_path / "b") as checkpoint:
        assert checkpoint.format == target
        assert sorted(checkpoint.nvfp4_names()) == ["experts.gate_up_proj", "x.weight"]
        for weight in WEIGHTS:
            assert_same_weight(checkpoint.nvfp4(weight.name), weight)
        assert sorted(checkpoint.plain_names()) == ["norm.weight", "step"]
        for name, array in OTHERS.items():
            np.testing.assert_array_equal(checkpoint.tensor(name), array)


@pytest.mark.parametrize("by", TARGET_FORMATS)
def test_safetensors_come_back_byte_for_byte(tmp_path: Path, by: Any) -> None:
    quantize_checkpoint(DATA, tmp_path / "a", format="modelopt")
    convert_checkpoint(tmp_path / "a", tmp_path / "b", by)
    convert_checkpoint(tmp_path / "b", tmp_path / "c", "modelopt")
    with Checkpoint.open(tmp_path / "a") as a, Checkpoint.open(tmp_path / "c") as c:
        assert a.names() == c.names()
        for name in a.names():
            assert a.tensor(name).tobytes() == c.tensor(name).tobytes()


@FORMATS
def test_swapped_nibbles_are_put_right(tmp_path: Path, target: Any) -> None:
    weight = random_weight(decode_scale=0.25)
    tensors = modelopt_tensors(weight)
    dtype, codes = tensors["x.weight"]
    tensors["x.weight"] = dtype, (codes << 4) | (codes >> 4)
    source = write(tmp_path / "a.safetensors", tensors)
    convert_checkpoint(source, tmp_path / "b", target, nibble_order="high_first")
    with Checkpoint.open(tmp_path / "b") as checkpoint:
        assert_same_weight(checkpoint.nvfp4("x.weight"), weight)


def test_a_plain_checkpoint_is_copied(tmp_path: Path) -> None:
    convert_checkpoint(DATA, tmp_path / "b.gguf", "gguf")
    with Checkpoint.open(DATA) as a, Checkpoint.open(tmp_path / "b.gguf") as b:
        assert sorted(b.names()) == sorted(a.names())
        for name in a.names():
            np.testing.assert_array_equal(b.tensor(name), a.tensor(name))


def test_a_decode_scale_without_a_reciprocal_moves_by_one_step(tmp_path: Path) -> None:
    # Just below 2 no float32 number has this reciprocal: half a step of 1/x is a whole one of x.
    scale = np.nextafter(np.float32(2), np.float32(1))
    save_checkpoint(tmp_path / "a", [random_weight(decode_scale=float(scale))], format="gguf")
    convert_checkpoint(tmp_path / "a", tmp_path / "b", "compressed-tensors")
    with Checkpoint.open(tmp_path / "b") as checkpoint:
        moved = checkpoint.nvfp4("x.weight").decode_scale
    assert moved in (np.float32(2), np.nextafter(scale, np.float32(1)))


@FORMATS
def test_a_bad_weight_is_refused_before_anything_is_written(tmp_path: Path, target: Any) -> None:
    tensors = modelopt_tensors(random_weight())
    tensors["x.weight_scale"][1][1, 1] = 0x7F
    source = write(tmp_path / "a.safetensors", tensors)
    with pytest.raises(ValueError, match="row 1, block 1"):
        convert_checkpoint(source, tmp_path / "b", target)
    assert list(tmp_path.iterdir()) == [source]


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="format must be one of .* got 'plain'"):
        convert_checkpoint(DATA, tmp_path / "b", "plain")
    with pytest.raises(FileNotFoundError, match="nothing does not exist"):
        convert_checkpoint(tmp_path / "nothing", tmp_path / "b", "gguf")
    source = write(tmp_path / "a.safetensors", modelopt_tensors(random_weight()))
    with pytest.raises(ValueError, match="dst must not be a file of the source"):
        convert_checkpoint(source, source, "modelopt")
