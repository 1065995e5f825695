from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from test_checkpoint_builders import DATA, safetensors_bytes, write_tensors

from nvfp4cupy.checkpoint import Checkpoint, TensorSpec, write_safetensors
from nvfp4cupy.checkpoint.tensors import SAFETENSORS_DTYPES

WHOLE_BYTE_DTYPES = sorted(word for word, (bits, _) in SAFETENSORS_DTYPES.items() if bits >= 8)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name != "__metadata__"
)
SHAPES = st.lists(st.integers(0, 4), max_size=3)
FILES = st.dictionaries(NAMES, st.tuples(st.sampled_from(WHOLE_BYTE_DTYPES), SHAPES), max_size=5)


def spec(name: str, dtype: str, array: np.ndarray, shape: tuple[int, ...] | None = None) -> Any:
    return TensorSpec(name, dtype, array.shape if shape is None else shape, lambda: [array])


def library_view(path: Path) -> dict[str, dict[str, Any]]:
    return dict(safetensors.deserialize(path.read_bytes()))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=FILES, metadata=st.dictionaries(NAMES, st.text(max_size=5), max_size=3))
def test_what_is_written_is_what_the_library_and_we_read(
    tmp_path: Path, files: dict[str, tuple[str, list[int]]], metadata: dict[str, str]
) -> None:
    path, data, specs = tmp_path / "a.safetensors", {}, []
    for i, (name, (dtype, shape)) in enumerate(files.items()):
        nbytes = SAFETENSORS_DTYPES[dtype][0] // 8 * math.prod(shape)
        data[name] = np.arange(i, i + nbytes).astype(np.uint8)
        specs.append(spec(name, dtype, data[name], tuple(shape)))
    write_safetensors(path, specs, metadata)
    seen = library_view(path)
    assert set(seen) == set(files)
    with Checkpoint.open(path) as checkpoint, safetensors.safe_open(str(path), "np") as opened:
        assert checkpoint.metadata == metadata
        assert (opened.metadata() or {}) == metadata
        for name, (dtype, shape) in files.items():
            assert (seen[name]["dtype"], seen[name]["shape"]) == (dtype, shape)
            assert bytes(seen[name]["data"]) == data[name].tobytes()
            assert checkpoint.tensor(name).tobytes() == data[name].tobytes()
            assert checkpoint.tensor(name).shape == tuple(shape)


def test_a_file_of_the_library_reads_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "f32": rng.standard_normal((3, 5)).astype(np.float32),
        "f16": rng.standard_normal(7).astype(np.float16),
        "i64": rng.integers(-9, 9, (2, 2)),
        "u8": rng.integers(0, 255, (4, 3), np.uint8),
        "bool": np.array([True, False]),
        "scalar": np.array(3.5, np.float64),
    }
    save_file(arrays, tmp_path / "a.safetensors", {"made": "by the library"})
    with Checkpoint.open(tmp_path / "a.safetensors") as checkpoint:
        assert checkpoint.metadata == {"made": "by the library"}
        assert checkpoint.format == "plain"
        for name, array in arrays.items():
            np.testing.assert_array_equal(checkpoint.tensor(name), array)
            assert checkpoint.tensor(name).dtype == array.dtype


def test_bfloat16_and_float8_of_real_data() -> None:
    with Checkpoint.open(DATA) as checkpoint:
        up = checkpoint.tensor("up_proj.weight")
        assert up.dtype == ml_dtypes.bfloat16
        assert up.shape == (1536, 384)
        assert up.tobytes() == bytes(library_view(DATA)["up_proj.weight"]["data"])
        assert not up.flags.writeable
        assert checkpoint.info("up_proj.weight").dtype == "BF16"
        assert np.abs(up.astype(np.float32)).max() < 10


def test_float8_is_its_bytes_and_float4_its_packed_bytes(tmp_path: Path) -> None:
    data = np.arange(16, dtype=np.uint8)
    path = tmp_path / "a.safetensors"
    write_safetensors(
        path,
        [
            spec("f8", "F8_E4M3", data, (2, 8)),
            spec("f4", "F4", data, (4, 8)),
            spec("f6", "F6_E2M3", data[:3], (4,)),
        ],
    )
    with Checkpoint.open(path) as checkpoint:
        np.testing.assert_array_equal(checkpoint.tensor("f8"), data.reshape(2, 8))
        np.testing.assert_array_equal(checkpoint.tensor("f4"), data.reshape(4, 4))
        np.testing.assert_array_equal(checkpoint.tensor("f6"), data[:3])


def test_every_tensor_is_aligned_to_its_items(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    arrays = [np.zeros(3, np.uint8), np.zeros(1, np.float64), np.zeros(5, np.float16)]
    words = ["U8", "F64", "F16"]
    write_safetensors(path, [spec(w, w, a) for w, a in zip(words, arrays, strict=True)])
    with Checkpoint.open(path) as checkpoint:
        assert checkpoint.names() == ["F64", "F16", "U8"]
        for name, itemsize in (("F64", 8), ("F16", 2)):
            assert checkpoint.info(name).offset % itemsize == 0


def test_tensors_that_are_not_aligned_are_read_all_the_same(tmp_path: Path) -> None:
    floats = np.array([1.5, -2.0], np.float32)
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"pad": ("U8", np.zeros(1, np.uint8)), "f": ("F32", floats)})
    with Checkpoint.open(path) as checkpoint:
        np.testing.assert_array_equal(checkpoint.tensor("f"), floats)
        assert checkpoint.tensor("f").flags.aligned


def test_a_missing_name_lists_the_near_ones() -> None:
    with Checkpoint.open(DATA) as checkpoint:
        with pytest.raises(
            ValueError, match=r"no tensor 'up_proj.wieght'; near it: up_proj.weight"
        ):
            checkpoint.tensor("up_proj.wieght")
        with pytest.raises(ValueError, match="up_proj.weight' of .* is BF16, not NVFP4"):
            checkpoint.nvfp4("up_proj.weight")


def test_arrays_outlive_the_checkpoint() -> None:
    with Checkpoint.open(DATA) as checkpoint:
        array = checkpoint.tensor("up_proj.weight")
        before = array.tobytes()
        checkpoint.release("up_proj.weight")
        assert array.tobytes() == before
    assert array.tobytes() == before
    with pytest.raises(ValueError, match="is closed"):
        checkpoint.tensor("up_proj.weight")


def shards(folder: Path) -> dict[str, str]:
    one, two = np.array([1], np.uint8), np.array([2], np.uint8)
    write_tensors(folder / "m-1.safetensors", {"a": ("U8", one)})
    write_tensors(folder / "m-2.safetensors", {"b": ("U8", two)})
    return {"a": "m-1.safetensors", "b": "m-2.safetensors"}


def write_index(folder: Path, weight_map: Any) -> Path:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index


def test_shards_by_index_and_by_folder(tmp_path: Path) -> None:
    weight_map = shards(tmp_path)
    sources = [tmp_path]
    sources += [write_index(tmp_path, weight_map), tmp_path]
    for source in sources:
        with Checkpoint.open(source) as checkpoint:
            assert sorted(checkpoint.names()) == ["a", "b"]
            assert checkpoint.tensor("b")[0] == 2
            assert [file.name for file in checkpoint.files] == [
                "m-1.safetensors",
                "m-2.safetensors",
            ]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"c": "m-3.safetensors"}, FileNotFoundError, "m-3.safetensors does not exist"),
        ({"c": "m-1.safetensors"}, ValueError, "promises tensor 'c' in m-1.safetensors"),
        ({"c": "../m-1.safetensors"}, ValueError, "must name files beside it"),
        ({"c": 3}, ValueError, "must name files beside it"),
    ],
)
def test_an_index_that_does_not_fit(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    index = write_index(tmp_path, shards(tmp_path) | changes)
    with pytest.raises(error, match=message):
        Checkpoint.open(index)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', "[" * 99999])
def test_an_index_that_is_no_index(tmp_path: Path, text: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(ValueError, match=r"index.json must have a weight_map"):
        Checkpoint.open(index)


def test_folders_without_one_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must hold one checkpoint"):
        Checkpoint.open(tmp_path)
    with pytest.raises(FileNotFoundError, match="nothing"):
        Checkpoint.open(tmp_path / "nothing.safetensors")


def test_one_name_in_two_shards(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).write_bytes(safetensors_bytes({"x": ("U8", np.zeros(1, np.uint8))}))
    with pytest.raises(ValueError, match=r"'x' of b.safetensors stands in a.safetensors too"):
        Checkpoint.open(tmp_path)
