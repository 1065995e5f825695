"""NVFP4 weights in the three formats; cases 12 and 13 of the fault list."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_checkpoint_builders import (
    assert_same_weight,
    compressed_tensors,
    modelopt_tensors,
    random_weight,
    write_tensors,
)

from nvfp4cupy.checkpoint import (
    TARGET_FORMATS,
    Checkpoint,
    NVFP4Weight,
    TensorSpec,
    save_checkpoint,
    write_safetensors,
)
from nvfp4cupy.checkpoint.global_scale import decode_scale_from_amax

FORMATS = pytest.mark.parametrize("format", TARGET_FORMATS)


def read(path: Path, name: str = "x.weight", **options: Any) -> NVFP4Weight:
    with Checkpoint.open(path, **options) as checkpoint:
        return checkpoint.nvfp4(name)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(1, 5),
    num_blocks=st.integers(1, 4),
    experts=st.none() | st.integers(1, 3),
    has_input=st.booleans(),
    name=st.sampled_from(["x.weight", "experts.down_proj", "weight"]),
)
def test_a_weight_is_the_same_in_every_format(
    tmp_path: Path, n: int, num_blocks: int, experts: int | None, has_input: bool, name: str
) -> None:
    # 0.25 and its small multiples 0.5, 0.75 come back from their reciprocals: see the next test.
    scales = {"decode_scale": 0.25, "input_scale": 0.5 if has_input else None}
    weight = random_weight(n, 64 * num_blocks, experts, name=name, **scales)
    other = np.arange(5, dtype=np.float32)
    for format in TARGET_FORMATS:
        path = tmp_path / format
        save_checkpoint(path, [weight], {"other": other}, format=format)
        with Checkpoint.open(path) as checkpoint:
            assert checkpoint.format == format
            assert checkpoint.nvfp4_names() == [name]
            assert checkpoint.plain_names() == ["other"]
            assert_same_weight(checkpoint.nvfp4(name), weight)
            np.testing.assert_array_equal(checkpoint.tensor("other"), other)


def test_the_same_weight_in_modelopt_and_compressed_tensors(tmp_path: Path) -> None:
    # A writer that computes 2688 / amax, another that computes amax / 2688: amax 6.72, 0.0025.
    weight = random_weight(decode_scale=0.0025)
    a = write_tensors(tmp_path / "a.safetensors", modelopt_tensors(weight))
    b = write_tensors(tmp_path / "b.safetensors", compressed_tensors(weight, 400.0))
    assert_same_weight(read(a), read(b))
    assert read(b).decode_scale == np.float32(0.0025)


@FORMATS
def test_decode_scales_of_the_quantizer_are_the_same_in_every_format(
    tmp_path: Path, format: Any
) -> None:
    amax = np.random.default_rng(1).uniform(1e-3, 10, 20)
    weights = [
        random_weight(1, 64, name=f"{i}.weight", decode_scale=float(decode_scale_from_amax(a)))
        for i, a in enumerate(amax)
    ]
    save_checkpoint(tmp_path / "file", weights, format=format)
    for weight in weights:
        assert_same_weight(read(tmp_path / "file", weight.name), weight)


def test_names_and_directions_in_the_files(tmp_path: Path) -> None:
    weight = random_weight(decode_scale=0.25, input_scale=0.5)
    stored = {}
    for format in TARGET_FORMATS:
        save_checkpoint(tmp_path / format, [weight], format=format)
        with Checkpoint.open(tmp_path / format) as checkpoint:
            stored[format] = {
                name: (checkpoint.info(name).dtype, checkpoint.tensor(name).reshape(-1)[0])
                for name in checkpoint.names()
                if checkpoint.info(name).dtype == "F32"
            }
    assert stored["modelopt"] == {"x.weight_scale_2": ("F32", 0.25), "x.input_scale": ("F32", 0.5)}
    assert stored["compressed-tensors"] == {
        "x.weight_global_scale": ("F32", 4.0),
        "x.input_global_scale": ("F32", 2.0),
    }
    assert stored["gguf"] == {"x.scale": ("F32", 0.25), "x.input_scale": ("F32", 0.5)}


def test_names_by_which_a_weight_is_found(tmp_path: Path) -> None:
    weight = random_weight(name="mlp.up_proj.weight", decode_scale=0.25)
    save_checkpoint(tmp_path / "file", [weight], format="compressed-tensors")
    for name in ("mlp.up_proj.weight", "mlp.up_proj", "mlp.up_proj.weight_packed"):
        assert_same_weight(read(tmp_path / "file", name), weight)
    with pytest.raises(ValueError, match="near it: mlp.up_proj.weight"):
        read(tmp_path / "file", "mlp.up_prog.weight")


def test_linear_weights_look_into_the_file(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "a.safetensors", modelopt_tensors(random_weight()))
    with Checkpoint.open(path) as checkpoint:
        codes, scales = checkpoint.nvfp4("x.weight").linear()
        assert np.shares_memory(codes, checkpoint.tensor("x.weight"))
        assert np.shares_memory(scales, checkpoint.tensor("x.weight_scale"))


def test_swapped_nibbles_are_right_with_the_option(tmp_path: Path) -> None:
    weight = random_weight()
    tensors = modelopt_tensors(weight)
    dtype, codes = tensors["x.weight"]
    tensors["x.weight"] = dtype, (codes << 4) | (codes >> 4)
    path = write_tensors(tmp_path / "a.safetensors", tensors)
    assert_same_weight(read(path, nibble_order="high_first"), weight)
    assert not np.array_equal(read(path).linear()[0], codes)
    with pytest.raises(ValueError, match="nibble_order must be one of low_first, high_first"):
        read(path, nibble_order="big")


def test_nibble_order_is_refused_for_gguf(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a.gguf", [random_weight()], format="gguf")
    with pytest.raises(ValueError, match="nibble_order is for safetensors"):
        read(tmp_path / "a.gguf", nibble_order="high_first")


@FORMATS
@pytest.mark.parametrize("byte", [0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("experts", [None, 2])
def test_a_bad_scale_byte_is_named(
    tmp_path: Path, format: Any, byte: int, experts: int | None
) -> None:
    weight = random_weight(5, 128, experts, decode_scale=0.25)
    weight.linear()[1][..., 3, 6] = byte
    with pytest.raises(ValueError, match="x.weight has scale byte"):
        save_checkpoint(tmp_path / "file", [weight], format=format)
    save_checkpoint(tmp_path / "file", [weight], format=format, check=False)
    expert = " of expert 0" if experts else ""
    message = f"tensor 'x.weight.*' of file has scale byte 0x{byte:02X} .* row 3, block 6{expert}$"
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "file")
    with Checkpoint.open(tmp_path / "file") as checkpoint:
        assert_same_weight(checkpoint.nvfp4("x.weight", check=False), weight)


@pytest.mark.parametrize("stored", [np.inf, -np.inf, np.nan, 0.0, -4.0, 1e-40, 3e38])
def test_a_bad_reciprocal_is_refused(tmp_path: Path, stored: float) -> None:
    # The reciprocal of 3e38 is subnormal, and counts as zero.
    tensors = compressed_tensors(random_weight(), stored)
    path = write_tensors(tmp_path / "a.safetensors", tensors)
    message = "'x.weight_global_scale' of a.safetensors must be finite and above zero, got"
    with pytest.raises(ValueError, match=message):
        read(path)


@pytest.mark.parametrize("stored", [np.inf, np.nan, 0.0, -4.0, 1e-40])
def test_a_bad_decode_scale_is_refused(tmp_path: Path, stored: float) -> None:
    tensors = modelopt_tensors(random_weight(experts=3))
    tensors["x.weight_scale_2"] = "F32", np.array([1, stored, 1], np.float32)
    path = write_tensors(tmp_path / "a.safetensors", tensors)
    with pytest.raises(ValueError, match="must be finite and above zero, got .* for expert 1"):
        read(path)


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    tensors = modelopt_tensors(random_weight()) | changes
    return {name: entry for name, entry in tensors.items() if entry is not None}


ODD = {
    "k = 48": (
        {
            "x.weight": ("U8", np.zeros((2, 24), np.uint8)),
            "x.weight_scale": ("F8_E4M3", np.zeros((2, 3), np.uint8)),
        },
        "'x.weight' of a.safetensors must have k a multiple of 64, got k = 48",
    ),
    "scale shape": (
        {"x.weight_scale": ("F8_E4M3", np.zeros((5, 4), np.uint8))},
        r"'x.weight_scale' of .* must have shape \(5, 8\) for codes \(5, 64\), got \(5, 4\)",
    ),
    "no second scale": ({"x.weight_scale_2": None}, "'x.weight' of .* needs x.weight_scale_2"),
    "no scales": ({"x.weight_scale": None}, "'x.weight' of .* needs x.weight_scale, which"),
    "two decode scales": (
        {"x.weight_scale_2": ("F32", np.ones(2, np.float32))},
        r"'x.weight_scale_2' of .* must hold 1 float, got F32 \(2,\)",
    ),
    "integer decode scale": (
        {"x.weight_scale_2": ("I32", np.ones((), np.int32))},
        "must hold 1 float, got I32",
    ),
    "float scales": (
        {"x.weight_scale": ("F32", np.ones((5, 8), np.float32))},
        "'x.weight_scale' of .* must be F8_E4M3, got F32",
    ),
}


@pytest.mark.parametrize(("changes", "message"), ODD.values(), ids=ODD.keys())
def test_parts_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write_tensors(tmp_path / "a.safetensors", changed(changes))
    with pytest.raises(ValueError, match=message):
        read(path)


def test_weights_of_other_kinds_are_plain_tensors(tmp_path: Path) -> None:
    zeros = np.zeros((2, 64), np.uint8)
    tensors = {
        "fp8.weight": ("F8_E4M3", zeros),
        "fp8.weight_scale": ("F32", np.ones((), np.float32)),
        "mxfp4.weight_packed": ("U8", zeros),
        "mxfp4.weight_scale": ("U8", zeros[:, :4]),
        "int4.weight_packed": ("I32", zeros.view(np.int32)),
        "int4.weight_scale": ("BF16", zeros.view(np.uint16)),
        "mask.weight": ("U8", zeros),
    }
    with Checkpoint.open(write_tensors(tmp_path / "a.safetensors", tensors)) as checkpoint:
        assert checkpoint.nvfp4_names() == []
        assert checkpoint.format == "plain"
        assert sorted(checkpoint.plain_names()) == sorted(tensors)


def test_stacked_experts_that_are_stored_transposed(tmp_path: Path) -> None:
    # (experts, k/2, n) with scales (experts, k/16, n) and one decode scale for all.
    stack = random_weight(6, 128, 3)
    codes, scales = stack.linear()
    tensors = {
        "experts.down_proj": ("U8", codes.swapaxes(1, 2)),
        "experts.down_proj_weight_scale": ("F8_E4M3", scales.swapaxes(1, 2)),
        "experts.down_proj_weight_scale_2": ("F32", np.array(0.5, np.float32)),
        "experts.down_proj_input_scale": ("F32", np.array([2.0], np.float32)),
    }
    weight = read(write_tensors(tmp_path / "a.safetensors", tensors), "experts.down_proj")
    assert weight.shape == (3, 6, 128)
    np.testing.assert_array_equal(weight.linear()[0], codes)
    np.testing.assert_array_equal(weight.linear()[1], scales)
    np.testing.assert_array_equal(weight.decode_scale, [0.5] * 3)
    np.testing.assert_array_equal(weight.input_scale, [2.0] * 3)


def test_importing_the_package_imports_numpy_only() -> None:
    heavy = "{'ml_dtypes', 'safetensors', 'gguf', 'cupy'}"
    code = f"import sys, nvfp4cupy.checkpoint; sys.exit(bool({heavy} & set(sys.modules)))"
    root = Path(__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_codes_of_type_f4(tmp_path: Path) -> None:
    weight = random_weight(decode_scale=0.25)
    specs = [
        TensorSpec(name, dtype, array.shape, lambda array=array: [array])
        for name, (dtype, array) in modelopt_tensors(weight).items()
        if name != "x.weight"
    ]
    specs.append(TensorSpec("x.weight", "F4", weight.shape, lambda: [weight.codes]))
    write_safetensors(tmp_path / "a.safetensors", specs)
    assert_same_weight(read(tmp_path / "a.safetensors"), weight)
