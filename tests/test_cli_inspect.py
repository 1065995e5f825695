"""The command line's inspect: what it lists, finds and draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_checkpoint_builders import DATA, modelopt_tensors, random_weight, write_tensors
from test_cli_files import NAMES, Files, error_of, out_of, quantized_files, weights

from nvfp4cupy.checkpoint import TARGET_FORMATS, save_checkpoint
from nvfp4cupy.cli import main

FORMATS = pytest.mark.parametrize("format", TARGET_FORMATS)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return quantized_files(tmp_path_factory.mktemp("quantized"))


@FORMATS
def test_inspect_lists_tensors_with_their_sizes(
    files: Files, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(files[format])]) == 0
    text = capsys.readouterr().out
    layout = "block_nvfp4" if format == "gguf" else "linear"
    for part in (*NAMES, f"NVFP4 {layout}", "331,780", "4.500", "BF16", "(221, 384)", "note: no"):
        assert part in text
    report = out_of(capsys, "inspect", files[format])
    rows = {row["tensor"]: row for row in report["tensors"]}
    for name, weight in zip(NAMES, weights(files[format]), strict=True):
        row = rows[name]
        assert (tuple(row["shape"]), row["decode_scale"]) == (weight.shape, [weight.decode_scale])
        assert row["nbytes"] == weight.nbytes
    assert [finding["severity"] for finding in report["findings"]] == ["note"]
    assert sum(total["nbytes"] for total in report["totals"]) == 2 * 331_780 + 848_640


@FORMATS
@pytest.mark.parametrize("byte", [0x7F, 0x80, 0xFF])
def test_inspect_names_the_place_of_a_bad_scale(
    tmp_path: Path, format: Any, byte: int, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = random_weight(name="a.weight", decode_scale=0.001)
    weight.linear()[1][3, 6] = byte
    save_checkpoint(tmp_path / "file", [weight], format=format, check=False)
    assert main(["inspect", str(tmp_path / "file")]) == 1
    text = capsys.readouterr().out
    assert f"error: a.weight, row 3, block 6: scale byte 0x{byte:02X}" in text
    assert "the group of 16 values is lost" in text
    assert main(["inspect", str(tmp_path / "file"), "--json"]) == 1
    finding, _ = json.loads(capsys.readouterr().out)["findings"]
    assert (finding["tensor"], finding["row"], finding["block"]) == ("a.weight", 3, 6)
    assert "a.weight" in error_of(
        capsys, "convert", tmp_path / "file", tmp_path / "b", "--format", "modelopt"
    )
    assert not (tmp_path / "b").exists()


def test_inspect_of_a_weight_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = modelopt_tensors(random_weight())
    tensors["x.weight_scale_2"] = "F32", np.array(np.inf, np.float32)
    tensors |= modelopt_tensors(random_weight(name="y.weight"), "y.weight")
    del tensors["y.weight_scale"]
    path = write_tensors(tmp_path / "a.safetensors", tensors)
    assert main(["inspect", str(path), "--json", "--histogram"]) == 1
    report = json.loads(capsys.readouterr().out)
    x, y = report["tensors"]
    assert (x["kind"], x["decode_scale"]) == ("NVFP4 linear", [None])
    assert (y["kind"], y["bits_per_value"], y["scale_counts"]) == ("NVFP4 (broken)", None, None)
    assert [finding["tensor"] for finding in report["findings"][:2]] == ["x.weight", "y.weight"]
    assert main(["inspect", str(path)]) == 1
    assert "not finite" in capsys.readouterr().out


@pytest.mark.parametrize("kept_bytes", [0, 7, 100, 100_000])
def test_inspect_of_a_truncated_file(
    tmp_path: Path, kept_bytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(DATA.read_bytes()[:kept_bytes])
    assert main(["inspect", str(path)]) == 1
    assert capsys.readouterr().out.startswith("error: ")
    assert main(["inspect", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["format"] is None


def test_inspect_of_chosen_tensors(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    path = files["compressed-tensors"]
    for pattern in ("up*.weight", "up_proj.weight_packed"):
        report = out_of(capsys, "inspect", path, "--tensor", pattern)
        assert [row["tensor"] for row in report["tensors"]] == ["up_proj.weight"]
    report = out_of(capsys, "inspect", path, "--tensor", "*.input", "--tensor", "up_proj.weight")
    assert len(report["tensors"]) == 3
    assert "matches z*" in error_of(capsys, "inspect", path, "--tensor", "z*")


def test_findings_on_other_tensors_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = [random_weight(name="a.weight"), random_weight(name="b.weight")]
    stored[1].linear()[1][0, 0] = 0x7F
    save_checkpoint(tmp_path / "file", stored, format="modelopt", check=False)
    assert main(["inspect", str(tmp_path / "file"), "--tensor", "b*"]) == 1
    capsys.readouterr()
    report = out_of(capsys, "inspect", tmp_path / "file", "--tensor", "a*")
    assert [finding["tensor"] for finding in report["findings"]] == [None]


@FORMATS
def test_the_histogram_counts_every_scale(
    files: Files, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = out_of(capsys, "inspect", files[format], "--histogram", "--tensor", "*.weight")
    for row, weight in zip(report["tensors"], weights(files[format]), strict=True):
        bytes_, counts = np.unique(weight.linear()[1], return_counts=True)
        assert row["scale_counts"] == {str(b): c for b, c in zip(bytes_, counts, strict=True)}
    assert main(["inspect", str(files[format]), "--histogram", "--tensor", "up*"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (largest,) = (line.split() for line in lines if line.startswith(" 60-67"))
    counts = report["tensors"][1]["scale_counts"]
    expected = sum(counts.get(str(byte), 0) for byte in range(0x60, 0x68))
    assert largest[1:5] == ["32", "to", "60", f"{expected:,}"]
    assert set(largest[-1]) == {"█"}


def test_the_histogram_shows_scales_that_no_writer_may_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = random_weight()
    weight.linear()[1].flat[:4] = [0, 0x7F, 0x80, 0xFF]
    save_checkpoint(tmp_path / "file", [weight], format="modelopt", check=False)
    assert main(["inspect", str(tmp_path / "file"), "--histogram"]) == 1
    words = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["00", "0", "1"] in [line[:3] for line in words]
    assert ["7F", "NaN", "1"] in [line[:3] for line in words]
    assert ["80-FF", "negative", "or", "NaN", "2"] in [line[:5] for line in words]


def test_a_plot_is_saved(files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path, picture = files["gguf"], tmp_path / "a.png"
    out_of(capsys, "inspect", path, "--plot", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "1 to 16 NVFP4 weights, got 0" in error_of(
        capsys, "inspect", path, "--tensor", "*.input", "--plot", picture
    )
    error_of(capsys, "inspect", path, "--plot", tmp_path / "a.safetensors")
    assert list(tmp_path.iterdir()) == [picture]


def test_names_cannot_act_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = random_weight(name="\x1b[2J\n[red]:smile:.weight")
    weight.linear()[1][0, 0] = 0x7F
    save_checkpoint(tmp_path / "file", [weight], format="modelopt", check=False)
    assert main(["inspect", str(tmp_path / "file"), "--histogram"]) == 1
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert text.count(r"\x1b[2J\n[red]:smile:.weight") == 3


def test_a_name_is_no_formula_in_a_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    save_checkpoint(tmp_path / "file", [random_weight(name="$\\frac$.weight")], format="modelopt")
    assert main(["inspect", str(tmp_path / "file"), "--plot", str(tmp_path / "a.svg")]) == 0
    assert (tmp_path / "a.svg").stat().st_size > 0
