"""Products of real weights and activations are as exact as their output type allows."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np
import pytest

import nvfp4cupy as nv
from nvfp4cupy import reference
from nvfp4cupy.formats import to_float32

LAYERS = ("up_proj", "down_proj")


def on(device: str, array: np.ndarray) -> Any:
    if device == "cpu":
        return array
    import cupy

    return cupy.asarray(array)


def relative_error(got: Any, right: np.ndarray) -> float:
    y = np.asarray(got.get() if hasattr(got, "get") else got).astype(np.float64)
    return float(np.linalg.norm(y - right) / np.linalg.norm(right))


def assert_within_bounds(
    out: Any, original: np.ndarray, a: np.ndarray, blocks: np.ndarray, **scaling: Any
) -> None:
    y = np.asarray(out.get() if hasattr(out, "get") else out).astype(np.float64)
    exact = reference.gemm_float64(a, blocks, **scaling)
    assert (abs(y - exact) <= reference.gemm_error_bound(a, blocks, **scaling)).all()
    # Most of what is allowed is the one rounding to bfloat16: at most 2^-8 of each element.
    assert relative_error(out, exact) <= 2.0**-8
    # What is left is the quantization of the operands. With o the original product:
    # | |out - o| - |exact - o| | <= |out - exact| <= 2^-8 |exact|, all of it over |o|.
    allowed = 2.0**-8 * np.linalg.norm(exact) / np.linalg.norm(original)
    assert abs(relative_error(out, original) - relative_error(exact, original)) <= allowed


@pytest.fixture(params=LAYERS)
def layer(request: pytest.FixtureRequest) -> tuple[np.ndarray, np.ndarray]:
    path = files("nvfp4cupy") / "data" / "minilm_ffn_layer0.safetensors"
    with nv.Checkpoint.open(str(path)) as checkpoint:
        names = (f"{request.param}.weight", f"{request.param}.input")
        weight, x = (np.array(checkpoint.tensor(name)) for name in names)
    return weight, x


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_w4a4(layer: tuple[np.ndarray, np.ndarray], device: str) -> None:
    weight, x = layer
    scale = float(np.abs(to_float32(weight)).max() / 2688)
    packed, scales = nv.quantize_nvfp4(on(device, weight), scale, rounding="nearest_even")
    blocks = nv.nvfp4_mmq_repack(packed, scales)
    a, row_scale = nv.nvfp4_mmq_quantize_act(on(device, x), row_scale=True)
    out = nv.nvfp4_mmq_gemm(a, blocks, out_scale=scale, row_scale=row_scale)

    a, blocks, row_scale = (v.get() if device == "gpu" else v for v in (a, blocks, row_scale))
    scaling = {"out_scale": scale, "row_scale": row_scale}
    original = to_float32(x).astype(np.float64) @ to_float32(weight).astype(np.float64).T
    assert_within_bounds(out, original, a, blocks, **scaling)


@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_w4a16(layer: tuple[np.ndarray, np.ndarray], device: str) -> None:
    weight, x = layer
    scale = float(np.abs(to_float32(weight)).max() / 2688)
    packed, scales = nv.quantize_nvfp4(on(device, weight), scale, rounding="nearest_even")
    blocks = nv.nvfp4_mmq_repack(packed, scales)
    out = nv.nvfp4_w4a16_gemm(on(device, x), blocks, out_scale=scale)

    host_blocks = blocks.get() if device == "gpu" else blocks
    original = to_float32(x).astype(np.float64) @ to_float32(weight).astype(np.float64).T
    assert_within_bounds(out, original, x, host_blocks, out_scale=scale)
