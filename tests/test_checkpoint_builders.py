"""Files and weights that the checkpoint tests build without the code under test."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.checkpoint import NVFP4Weight

Entry = tuple[str, NDArray[Any]]  # dtype word, array whose bytes are the tensor
DATA = Path(__file__).parents[1] / "nvfp4cupy" / "data" / "minilm_ffn_layer0.safetensors"


def safetensors_bytes(tensors: dict[str, Entry], metadata: dict[str, str] | None = None) -> bytes:
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, (dtype, array) in tensors.items():
        start, data = len(data), data + array.tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [start, len(data)],
        }
    return with_header(json.dumps(header).encode(), data)


def with_header(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def write_tensors(path: Path, tensors: dict[str, Entry]) -> Path:
    path.write_bytes(safetensors_bytes(tensors))
    return path


def random_weight(
    n: int = 5,
    k: int = 128,
    experts: int | None = None,
    *,
    seed: int = 0,
    name: str = "x.weight",
    decode_scale: float = 0.0123,
    input_scale: float | None = None,
) -> NVFP4Weight:
    """Any codes, any scales that may be written; decode scales differ between experts."""
    rng = np.random.default_rng(seed)
    leading = (n,) if experts is None else (experts, n)

    def global_scale(value: float) -> Any:
        if experts is None:
            return np.float32(value)
        return np.float32(value) * np.arange(1, experts + 1, dtype=np.float32)

    return NVFP4Weight(
        codes=rng.integers(0, 256, (*leading, k // 2), np.uint8),
        scales=rng.integers(0, 0x7F, (*leading, k // 16), np.uint8),
        decode_scale=global_scale(decode_scale),
        input_scale=None if input_scale is None else global_scale(input_scale),
        name=name,
    )


def modelopt_tensors(weight: NVFP4Weight, stem: str = "x.weight") -> dict[str, Entry]:
    codes, scales = weight.linear()
    return {
        stem: ("U8", codes),
        f"{stem}_scale": ("F8_E4M3", scales),
        f"{stem}_scale_2": ("F32", np.asarray(weight.decode_scale)),
    }


def compressed_tensors(weight: NVFP4Weight, stored: Any) -> dict[str, Entry]:
    codes, scales = weight.linear()
    return {
        "x.weight_packed": ("U8", codes),
        "x.weight_scale": ("F8_E4M3", scales),
        "x.weight_global_scale": ("F32", np.array([stored], np.float32)),
    }


def assert_same_weight(a: NVFP4Weight, b: NVFP4Weight) -> None:
    assert a.shape == b.shape
    for x, y in zip(a.linear(), b.linear(), strict=True):
        np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(np.asarray(a.decode_scale), np.asarray(b.decode_scale))
    assert (a.input_scale is None) == (b.input_scale is None)
    if a.input_scale is not None:
        np.testing.assert_array_equal(np.asarray(a.input_scale), np.asarray(b.input_scale))


def test_a_built_file_opens_in_the_library(tmp_path: Path) -> None:
    from safetensors import safe_open

    path = write_tensors(tmp_path / "a.safetensors", modelopt_tensors(random_weight()))
    with safe_open(str(path), framework="np") as file:
        assert set(file.keys()) == {"x.weight", "x.weight_scale", "x.weight_scale_2"}
