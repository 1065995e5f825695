from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_checkpoint_builders import assert_same_weight, random_weight

from nvfp4cupy.checkpoint import (
    Checkpoint,
    GGUFField,
    TensorSpec,
    convert_checkpoint,
    save_checkpoint,
    write_gguf,
)
from nvfp4cupy.checkpoint.tensors import numpy_dtype
from nvfp4cupy.formats import bfloat16

gguf = pytest.importorskip("gguf")


def tensors_of(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("experts", [None, 3])
def test_the_library_decodes_the_same_values(tmp_path: Path, experts: int | None) -> None:
    weight = random_weight(4, 192, experts)
    save_checkpoint(tmp_path / "a.gguf", [weight], format="gguf")
    tensors = tensors_of(tmp_path / "a.gguf")
    stored = tensors["x.weight"]
    assert stored.tensor_type == gguf.GGMLQuantizationType.NVFP4
    assert tuple(reversed(stored.shape.tolist())) == weight.shape
    # code * scale is exact in float32, so both round once, in the product with the decode scale.
    decoded = gguf.quants.dequantize(stored.data, stored.tensor_type).reshape(weight.shape)
    scale = tensors["x.scale"].data.reshape(-1, *[1] * (decoded.ndim - 1))
    np.testing.assert_array_equal(decoded * scale, weight.dequantize("float32"))


def test_a_file_of_the_library_reads_back(tmp_path: Path) -> None:
    weight = random_weight(3, 128)
    values = np.random.default_rng(0).standard_normal((2, 5)).astype(bfloat16())
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_uint32("llama.block_count", 2)
    nvfp4 = gguf.GGMLQuantizationType.NVFP4
    writer.add_tensor("x.weight", weight.blocks.reshape(3, 72), raw_dtype=nvfp4)
    writer.add_tensor("norm", np.arange(6, dtype=np.float16).reshape(2, 3))
    bf16 = gguf.GGMLQuantizationType.BF16
    writer.add_tensor("b", values.view(np.uint8), raw_dtype=bf16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with Checkpoint.open(tmp_path / "a.gguf") as checkpoint:
        assert checkpoint.metadata == {"general.architecture": "llama", "llama.block_count": 2}
        read = checkpoint.nvfp4("x.weight")
        # Writers leave out a scale of 1.
        assert (read.decode_scale, read.input_scale) == (1, None)
        np.testing.assert_array_equal(read.blocks, weight.blocks)
        assert checkpoint.tensor("norm").shape == (2, 3)
        np.testing.assert_array_equal(checkpoint.tensor("b"), values)
        assert checkpoint.tensor("x.weight").shape == (3, 72)


FIELDS = {
    "general.architecture": GGUFField("llama", "STRING"),
    "llama.block_count": GGUFField(7, "UINT32"),
    "llama.eps": GGUFField(0.5, "FLOAT32"),
    "llama.flag": GGUFField(True, "BOOL"),
    "llama.big": GGUFField(-(1 << 40), "INT64"),
    "tokens": GGUFField(["a", "é", ""], "ARRAY", "STRING"),
    "types": GGUFField([1, 2, 3], "ARRAY", "INT32"),
}


def test_key_value_pairs_keep_their_types_through_safetensors(tmp_path: Path) -> None:
    a, b, c = tmp_path / "a.gguf", tmp_path / "b.safetensors", tmp_path / "c.gguf"
    weight = random_weight(decode_scale=0.25)
    save_checkpoint(a, [weight], format="gguf", metadata=FIELDS)
    convert_checkpoint(a, b, "modelopt")
    convert_checkpoint(b, c, "gguf")
    with Checkpoint.open(a) as first, Checkpoint.open(c) as last:
        assert first.gguf_fields == last.gguf_fields == FIELDS
        assert last.metadata["tokens"] == ["a", "é", ""]
        assert_same_weight(last.nvfp4("x.weight"), weight)


def test_plain_metadata_gets_types(tmp_path: Path) -> None:
    metadata = {"s": "t", "i": 3, "n": -3, "f": 0.5, "b": False, "l": ["x"], "gguf": "no JSON"}
    write_gguf(tmp_path / "a.gguf", [], metadata)
    with Checkpoint.open(tmp_path / "a.gguf") as checkpoint:
        assert checkpoint.metadata == {"general.architecture": "unknown", **metadata}
        kinds = {name: field.type for name, field in checkpoint.gguf_fields.items()}
    assert (kinds["i"], kinds["n"], kinds["f"]) == ("UINT32", "INT64", "FLOAT32")
    assert (kinds["b"], kinds["l"], kinds["gguf"]) == ("BOOL", "ARRAY", "STRING")


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"])
def test_plain_types_and_the_order_of_shapes(tmp_path: Path, dtype: str) -> None:
    values = np.arange(24).reshape(2, 3, 4).astype(numpy_dtype(dtype))
    write_gguf(tmp_path / "a.gguf", [TensorSpec("x", dtype, (2, 3, 4), lambda: [values])])
    assert tensors_of(tmp_path / "a.gguf")["x"].shape.tolist() == [4, 3, 2]
    with Checkpoint.open(tmp_path / "a.gguf") as checkpoint:
        np.testing.assert_array_equal(checkpoint.tensor("x"), values)
        assert checkpoint.tensor("x").dtype == values.dtype


def test_other_block_types_are_copied_as_bytes(tmp_path: Path) -> None:
    blocks = np.arange(2 * 144, dtype=np.uint16).astype(np.uint8).reshape(2, 144)
    write_gguf(tmp_path / "a.gguf", [TensorSpec("q", "Q4_K", (2, 256), lambda: [blocks])])
    convert_checkpoint(tmp_path / "a.gguf", tmp_path / "b.gguf", "gguf")
    with Checkpoint.open(tmp_path / "b.gguf") as checkpoint:
        assert checkpoint.info("q").shape == (2, 256)
        np.testing.assert_array_equal(checkpoint.tensor("q"), blocks)
    with pytest.raises(ValueError, match="'q' cannot be written: safetensors has no Q4_K tensors"):
        convert_checkpoint(tmp_path / "a.gguf", tmp_path / "c.safetensors", "modelopt")


def test_shards_open_by_any_of_them_and_by_folder(tmp_path: Path) -> None:
    for i in (1, 2):
        weight = random_weight(name=f"{i}.weight", seed=i)
        save_checkpoint(tmp_path / f"m-0000{i}-of-00002.gguf", [weight], format="gguf")
    for source in (tmp_path, tmp_path / "m-00002-of-00002.gguf"):
        with Checkpoint.open(source) as checkpoint:
            assert checkpoint.nvfp4_names() == ["1.weight", "2.weight"]
            assert_same_weight(checkpoint.nvfp4("2.weight"), random_weight(seed=2))
    (tmp_path / "m-00001-of-00002.gguf").unlink()
    with pytest.raises(FileNotFoundError, match="m-00001-of-00002.gguf does not exist"):
        Checkpoint.open(tmp_path / "m-00002-of-00002.gguf")


def test_a_missing_library_names_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / "a.gguf", [random_weight()], format="gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    cure = r"GGUF files need the package gguf: pip install 'nvfp4cupy\[gguf\]'"
    with pytest.raises(RuntimeError, match=cure):
        Checkpoint.open(tmp_path / "a.gguf")
    with pytest.raises(RuntimeError, match=cure):
        save_checkpoint(tmp_path / "b.gguf", [random_weight()], format="gguf")
    assert not (tmp_path / "b.gguf").exists()


def test_a_width_that_is_no_multiple_of_64_is_named(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a.gguf", [random_weight(2, 64)], format="gguf")
    content = (tmp_path / "a.gguf").read_bytes()
    place = content.index(b"x.weight") + len("x.weight") + 4  # name, number of dimensions
    assert content[place] == 64
    (tmp_path / "a.gguf").write_bytes(content[:place] + bytes([48]) + content[place + 1 :])
    message = "'x.weight' of .*a.gguf must have k a multiple of 64 for NVFP4, got k = 48"
    with pytest.raises(ValueError, match=message):
        Checkpoint.open(tmp_path / "a.gguf")


def test_other_versions_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF" + bytes([0, 0, 0, 3]) + bytes(16))
    with pytest.raises(ValueError, match=r"must be GGUF version 2 or 3, got .* \(big-endian\?\)"):
        Checkpoint.open(path)
