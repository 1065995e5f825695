from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_checkpoint_builders import (
    DATA,
    compressed_tensors,
    modelopt_tensors,
    random_weight,
    write_tensors,
)

from nvfp4cupy.checkpoint import (
    TARGET_FORMATS,
    Checkpoint,
    Finding,
    NVFP4Weight,
    doctor,
    quantize_checkpoint,
    save_checkpoint,
)

NO_INPUT = "no weight has an input scale"


def findings(path: Path) -> list[Finding]:
    """What is found besides the note on input scales."""
    return [finding for finding in doctor(path) if finding.message != NO_INPUT]


def one(path: Path) -> Finding:
    (finding,) = findings(path)
    assert finding.advice
    return finding


@pytest.mark.parametrize("format", TARGET_FORMATS)
def test_a_sound_checkpoint_gives_one_note(tmp_path: Path, format: Any) -> None:
    quantize_checkpoint(DATA, tmp_path / "file", format=format)
    (finding,) = doctor(tmp_path / "file")
    assert (finding.severity, finding.tensor, finding.message) == ("note", None, NO_INPUT)


def test_a_checkpoint_without_nvfp4_gives_nothing() -> None:
    assert doctor(DATA) == []
    with Checkpoint.open(DATA) as checkpoint:
        assert doctor(checkpoint) == []


@pytest.mark.parametrize("format", TARGET_FORMATS)
@pytest.mark.parametrize(("byte", "what"), [(0x7F, "NaN"), (0xB8, "negative")])
def test_bad_scale_bytes(tmp_path: Path, format: Any, byte: int, what: str) -> None:
    weight = random_weight(decode_scale=0.25)
    weight.linear()[1][2:4, 5] = byte
    save_checkpoint(tmp_path / "file", [weight], format=format, check=False)
    finding = one(tmp_path / "file")
    assert (finding.severity, finding.tensor) == ("error", "x.weight")
    assert (finding.row, finding.block) == (2, 5)
    assert finding.message == f"scale byte 0x{byte:02X} ({what}) at row 2, block 5, and 1 more"


@pytest.mark.parametrize("stored", [np.inf, 0.0, np.nan, -1.0])
@pytest.mark.parametrize("build", [compressed_tensors, None])
def test_unusable_global_scales(tmp_path: Path, stored: float, build: Any) -> None:
    if build is None:
        tensors = modelopt_tensors(random_weight())
        tensors["x.weight_scale_2"] = "F32", np.array(stored, np.float32)
    else:
        tensors = build(random_weight(), stored)
    finding = one(write_tensors(tmp_path / "a.safetensors", tensors))
    assert finding.severity == "error"
    assert f"must be finite and above zero, got {stored:g}" in finding.message


def full_range(decode_scale: float, name: str = "x.weight", **options: Any) -> NVFP4Weight:
    """As a quantizer leaves it: the largest scale is 448, so that amax is 2688 decode scales."""
    weight = random_weight(decode_scale=decode_scale, name=name, **options)
    weight.linear()[1][0, 0] = 0x7E
    return weight


def test_a_decode_scale_where_the_reciprocal_belongs(tmp_path: Path) -> None:
    # amax 1.5: decode scale 1.5 / 2688, reciprocal 1792; read the wrong way amax is 2688 * 1792.
    weight = full_range(1.5 / 2688)
    right = write_tensors(tmp_path / "a.safetensors", compressed_tensors(weight, 2688 / 1.5))
    wrong = write_tensors(tmp_path / "b.safetensors", compressed_tensors(weight, 1.5 / 2688))
    assert findings(right) == []
    finding = one(wrong)
    assert finding.severity == "error"
    assert "its reciprocal would mean 1.5, so it points the wrong way" in finding.message


def test_a_reciprocal_where_the_decode_scale_belongs(tmp_path: Path) -> None:
    wrong = write_tensors(tmp_path / "a.safetensors", modelopt_tensors(full_range(2688 / 0.2)))
    finding = one(wrong)
    assert (finding.severity, finding.tensor) == ("error", "x.weight")
    assert "weights up to 3.61e+07" in finding.message
    assert "amax / 2688" in finding.advice


@pytest.mark.parametrize("decode_scale", [1.5, 1e-12])
def test_an_implausible_decode_scale_is_in_doubt(tmp_path: Path, decode_scale: float) -> None:
    save_checkpoint(tmp_path / "file", [full_range(decode_scale)], format="gguf")
    assert one(tmp_path / "file").severity == "warning"


def test_a_tensor_of_zeros_is_plausible(tmp_path: Path) -> None:
    weight = random_weight(decode_scale=1.0)
    weight.linear()[1][...] = 0
    save_checkpoint(tmp_path / "file", [weight], format="modelopt")
    assert findings(tmp_path / "file") == []


@pytest.mark.parametrize(
    ("gate", "up"),
    [
        ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        ("blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"),
        ("blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"),
        ("experts.3.w1.weight", "experts.3.w3.weight"),
    ],
)
def test_gate_and_up_with_different_scales(tmp_path: Path, gate: str, up: str) -> None:
    weights = [full_range(0.001, gate), full_range(0.002, up)]
    save_checkpoint(tmp_path / "a", weights, format="modelopt")
    finding = one(tmp_path / "a")
    assert (finding.severity, finding.tensor) == ("note", gate)
    assert finding.message == f"decode scale 0.001, {up} has 0.002"
    save_checkpoint(tmp_path / "b", [weights[0], full_range(0.001, up)], format="modelopt")
    assert findings(tmp_path / "b") == []


def test_input_scales_missing_and_implausible(tmp_path: Path) -> None:
    weights = [
        full_range(0.001, "a.weight", input_scale=0.1),
        full_range(0.001, "b.weight"),
        full_range(0.001, "c.weight", input_scale=500.0),
    ]
    save_checkpoint(tmp_path / "file", weights, format="modelopt")
    found = {finding.tensor: finding for finding in doctor(tmp_path / "file")}
    assert set(found) == {"b.weight", "c.weight"}
    assert "has no input scale, though other weights have one" in found["b.weight"].message
    assert "is it the reciprocal?" in found["c.weight"].message


def test_an_unusable_input_scale(tmp_path: Path) -> None:
    tensors = modelopt_tensors(random_weight(decode_scale=0.001))
    tensors["x.input_scale"] = "F32", np.array(np.inf, np.float32)
    finding = one(write_tensors(tmp_path / "a.safetensors", tensors))
    assert (finding.severity, finding.message) == (
        "warning",
        "x.input_scale gives the input scale inf",
    )


def test_widths_and_missing_parts(tmp_path: Path) -> None:
    tensors = {
        "a.weight": ("U8", np.zeros((2, 24), np.uint8)),
        "a.weight_scale": ("F8_E4M3", np.zeros((2, 3), np.uint8)),
        "a.weight_scale_2": ("F32", np.ones((), np.float32)),
        "b.weight_packed": ("U8", np.zeros((2, 32), np.uint8)),
        "b.weight_scale": ("F8_E4M3", np.zeros((2, 4), np.uint8)),
    }
    found = {f.tensor: f for f in doctor(write_tensors(tmp_path / "a.safetensors", tensors))}
    assert "k a multiple of 64, got k = 48" in found["a.weight"].message
    assert "needs b.weight_global_scale" in found["b.weight"].message
    assert {finding.severity for finding in found.values()} == {"error"}


@pytest.mark.parametrize("format", TARGET_FORMATS)
def test_a_truncated_file(tmp_path: Path, format: Any) -> None:
    path = tmp_path / "file"
    save_checkpoint(path, [random_weight(64, 128)], format=format)
    path.write_bytes(path.read_bytes()[:-100])
    (finding,) = doctor(path)
    assert (finding.severity, finding.tensor) == ("error", None)
    assert "truncated" in finding.message


def test_errors_come_first(tmp_path: Path) -> None:
    weights = [full_range(1.5, "a.weight"), full_range(0.001, "b.weight")]
    weights[1].linear()[1][0, 1] = 0x7F
    save_checkpoint(tmp_path / "file", weights, format="modelopt", check=False)
    severities = [finding.severity for finding in doctor(tmp_path / "file")]
    assert severities == ["error", "warning", "note"]
