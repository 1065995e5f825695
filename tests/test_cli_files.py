"""The command line's quantize and convert: the files they write, and what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_checkpoint_builders import (
    DATA,
    assert_same_weight,
    modelopt_tensors,
    random_weight,
    write_tensors,
)

from nvfp4cupy.checkpoint import (
    TARGET_FORMATS,
    Checkpoint,
    NVFP4Weight,
    quantize_checkpoint,
    save_checkpoint,
)
from nvfp4cupy.cli import main
from nvfp4cupy.reference import quantize_nvfp4

SUFFIXES = {"modelopt": ".safetensors", "compressed-tensors": ".safetensors", "gguf": ".gguf"}
NAMES = ("down_proj.weight", "up_proj.weight")
Files = dict[str, Path]


def quantized_files(folder: Path) -> Files:
    """The shipped layer, quantized to each format by the command."""
    paths = {format: folder / f"{format}{SUFFIXES[format]}" for format in TARGET_FORMATS}
    for format, path in paths.items():
        options = ["--format", format, "--device", "cpu", "--quiet"]
        assert main(["quantize", str(DATA), str(path), *options]) == 0
    return paths


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return quantized_files(tmp_path_factory.mktemp("quantized"))


def weights(path: Path) -> list[NVFP4Weight]:
    with Checkpoint.open(path) as checkpoint:
        return [checkpoint.nvfp4(name) for name in NAMES]


def command(*args: object, prefix: tuple[str, ...] = ("-m", "nvfp4cupy")) -> list[str]:
    return [sys.executable, *prefix, *map(str, args)]


def out_of(capsys: pytest.CaptureFixture[str], *args: object) -> Any:
    """What the command prints with --json; it must succeed and say nothing else."""
    assert main([*map(str, args), "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return json.loads(printed.out)


def error_of(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """The one line on stderr of a command that fails."""
    assert main([*map(str, args)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith(f"nvfp4cupy {args[0]}: ")
    return line


def test_codes_and_scales_are_the_same_in_every_format(files: Files) -> None:
    with Checkpoint.open(DATA) as source:
        for name, *written in zip(NAMES, *map(weights, files.values()), strict=True):
            scale = float(written[0].decode_scale)
            expected = quantize_nvfp4(source.tensor(name), scale, rounding="nearest_even")
            for got, wanted in zip(written[0].linear(), expected, strict=True):
                np.testing.assert_array_equal(got, wanted)
            for other in written[1:]:
                assert_same_weight(written[0], other)


def test_gguf_output_is_read_by_the_gguf_library(files: Files) -> None:
    gguf = pytest.importorskip("gguf")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(files["gguf"]).tensors}
    others = {"down_proj.scale", "up_proj.scale", "down_proj.input", "up_proj.input"}
    assert set(tensors) == {*NAMES, *others}
    for name, weight in zip(NAMES, weights(files["modelopt"]), strict=True):
        tensor, scale = tensors[name], tensors[name.replace(".weight", ".scale")]
        assert tensor.tensor_type.name == "NVFP4"
        assert tuple(reversed(tensor.shape.tolist())) == weight.shape
        assert (scale.tensor_type.name, scale.data.tolist()) == ("F32", [weight.decode_scale])
        decoded = gguf.dequantize(tensor.data, tensor.tensor_type) * scale.data[0]
        np.testing.assert_array_equal(decoded, weight.dequantize("float32"))


@pytest.mark.parametrize(
    ("format", "codes", "global_scale"),
    [
        ("modelopt", "weight", "weight_scale_2"),
        ("compressed-tensors", "weight_packed", "weight_global_scale"),
    ],
)
def test_safetensors_output_is_read_by_the_safetensors_library(
    files: Files, format: str, codes: str, global_scale: str
) -> None:
    from safetensors import safe_open

    with safe_open(str(files[format]), framework="np") as file:
        modules = ("down_proj", "up_proj")
        parts = [f"{m}.{p}" for m in modules for p in (codes, "weight_scale", global_scale)]
        assert set(file.keys()) == {*parts, "down_proj.input", "up_proj.input"}
        for module, weight in zip(modules, weights(files["gguf"]), strict=True):
            packed, scales = weight.linear()
            np.testing.assert_array_equal(file.get_tensor(f"{module}.{codes}"), packed)
            stored = file.get_slice(f"{module}.weight_scale")
            assert (stored.get_dtype(), tuple(stored.get_shape())) == ("F8_E4M3", scales.shape)
            number = file.get_tensor(f"{module}.{global_scale}")
            decode = 1 / number if format == "compressed-tensors" else number
            assert decode.dtype == np.float32
            assert decode == weight.decode_scale


def data_of(path: Path) -> bytes:
    """The bytes behind the header of a safetensors file; GGUF leaves its marks on the metadata."""
    content = path.read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


def test_a_conversion_through_every_format_comes_back_byte_by_byte(
    files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = files["modelopt"]
    for i, format in enumerate(("compressed-tensors", "gguf", "compressed-tensors", "modelopt")):
        out = tmp_path / f"{i}{SUFFIXES[format]}"
        done = out_of(capsys, "convert", path, out, "--format", format)
        assert (done["format"], done["moved_scales"]) == (format, [])
        assert set(done["nvfp4"]) == set(NAMES)
        assert done["written_bytes"] == out.stat().st_size
        path = out
    with Checkpoint.open(path) as got, Checkpoint.open(files["modelopt"]) as wanted:
        assert got.names() == wanted.names()
    assert data_of(path) == data_of(files["modelopt"])


def test_swapped_nibbles_are_put_right_by_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = random_weight()
    tensors = modelopt_tensors(weight)
    codes = weight.linear()[0]
    tensors["x.weight"] = "U8", (codes << 4) | (codes >> 4)
    source = write_tensors(tmp_path / "a.safetensors", tensors)
    options = ("--format", "gguf", "--nibble-order", "high_first")
    out_of(capsys, "convert", source, tmp_path / "b.gguf", *options)
    with Checkpoint.open(tmp_path / "b.gguf") as checkpoint:
        assert_same_weight(checkpoint.nvfp4("x.weight"), weight)


def test_a_scale_without_an_exact_reciprocal_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    candidates = np.nextafter(np.float32(0.0019), np.float32(1)) * np.linspace(1, 1.03, 64)
    scale = next(s for s in candidates.astype(np.float32) if _has_no_partner(s))
    weights = [random_weight(decode_scale=scale), random_weight(decode_scale=0.5, name="y.weight")]
    save_checkpoint(tmp_path / "a", weights, format="modelopt")
    done = out_of(
        capsys, "convert", tmp_path / "a", tmp_path / "b", "--format", "compressed-tensors"
    )
    assert done["moved_scales"] == ["x.weight"]
    assert main(["convert", str(tmp_path / "a"), str(tmp_path / "c"), "--format", "gguf"]) == 0
    assert "moved" not in capsys.readouterr().out


def _has_no_partner(scale: np.float32) -> bool:
    one, nearest = np.float32(1), np.float32(1) / scale
    partners = (nearest, np.nextafter(nearest, one), np.nextafter(nearest, np.float32(np.inf)))
    return all(one / partner != scale for partner in partners)


def test_options_of_quantize_reach_the_quantizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--rounding", "half_step", "--search", "2", "--device", "cpu")
    patterns = ("--include", "up*", "--include", "down_proj.input", "--exclude", "*.weight")
    done = out_of(capsys, "quantize", DATA, tmp_path / "a.gguf", *options, *patterns)
    assert [entry["tensor"] for entry in done["quantized"]] == ["down_proj.input", "up_proj.input"]
    assert done["kept"]["up_proj.weight"] == "excluded by *.weight"
    assert (done["format"], done["device"]) == ("gguf", "cpu")
    quantize_checkpoint(
        DATA,
        tmp_path / "b.gguf",
        format="gguf",
        rounding="half_step",
        scale_search=2,
        include=["*.input"],
        exclude=[],
    )
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_quantize_reports_what_was_quantized_and_kept_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.safetensors"
    assert main(["quantize", str(DATA), str(out), "--device", "cpu"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""  # no terminal: no bar
    for text in (*NAMES, "1,179,648", "331,780", "4.500", f"{out.stat().st_size:,} bytes"):
        assert text in printed.out
    assert "kept, matched by no include pattern: down_proj.input, up_proj.input\n" in printed.out


def test_quiet_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = str(tmp_path / "a"), str(tmp_path / "b")
    assert main(["quantize", str(DATA), first, "--device", "cpu", "--quiet"]) == 0
    assert main(["convert", first, second, "--format", "modelopt", "-q"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="there are no pseudo-terminals here")
def test_a_progress_bar_is_shown_on_a_terminal(tmp_path: Path) -> None:
    main_end, end = os.openpty()
    args = command("quantize", DATA, tmp_path / "a.gguf", "--device", "cpu")
    with subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=end) as process:
        os.close(end)
        shown = b""
        with suppress(OSError):  # how Linux tells that the other end is closed
            while chunk := os.read(main_end, 4096):
                shown += chunk
    os.close(main_end)
    assert process.returncode == 0
    assert b"quantizing" in shown


@pytest.mark.gpu
@pytest.mark.parametrize("rounding", ["half_step", "nearest_low", "nearest_even"])
@pytest.mark.parametrize("search", ["0", "2"])
def test_the_gpu_writes_the_same_bytes(tmp_path: Path, rounding: str, search: str) -> None:
    for device in ("cpu", "gpu"):
        options = ["--rounding", rounding, "--search", search, "--device", device, "--quiet"]
        assert main(["quantize", str(DATA), str(tmp_path / device), *options]) == 0
    assert (tmp_path / "cpu").read_bytes() == (tmp_path / "gpu").read_bytes()
