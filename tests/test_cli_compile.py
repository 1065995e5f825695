"""``nvfp4cupy compile`` writes what NVRTC made, for architectures that it knows, whole."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nvfp4cupy import compiler
from nvfp4cupy.cli import compile as command
from nvfp4cupy.cli import main

pytest.importorskip("cuda.bindings.nvrtc")

KNOWN = (75, 80, 86, 90, 100, 120, 121)
MMQ16 = [f"atlas_nvfp4_mmq16_{rows}{end}" for rows in ("nc", "wc") for end in ("", "_scaled")]


def built(tmp_path: Path, capsys: pytest.CaptureFixture[str], *args: str) -> list[dict]:
    assert main(["compile", "--out", str(tmp_path), "--json", *args]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_cubin_is_written_with_its_entries(tmp_path, capsys) -> None:
    (cubin,) = built(tmp_path, capsys, "--arch", "sm_121a", "--source", "nvfp4_mmq16")
    path = tmp_path / "nvfp4_mmq16.sm_121a.cubin"
    assert Path(cubin["file"]) == path
    assert cubin["num_bytes"] == path.stat().st_size
    assert path.read_bytes()[:4] == b"\x7fELF"
    assert [entry["entry"] for entry in cubin["entries"]] == MMQ16
    for entry in cubin["entries"]:
        assert 0 < entry["registers"] <= 255
        assert entry["spill_bytes"] == 0
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_several_architectures_and_a_variant(tmp_path, capsys) -> None:
    args = ("--arch", "sm_80", "sm_90", "--source", "nvfp4_mmq16.cu", "-D", "NVFP4_OUTPUT=2")
    cubins = built(tmp_path, capsys, *args)
    assert [c["arch"] for c in cubins] == ["sm_80", "sm_90"]
    assert all(c["defines"] == [["NVFP4_OUTPUT", "2"]] for c in cubins)
    image = (tmp_path / "nvfp4_mmq16.sm_80.cubin").read_bytes()
    assert image != compiler.cubin("nvfp4_mmq16.cu", "sm_80").image


def test_the_table_names_files_and_entries(tmp_path, capsys) -> None:
    args = ["--arch", "sm_120a", "--source", "nvfp4_mmq16"]
    assert main(["compile", "--out", str(tmp_path), *args]) == 0
    text = capsys.readouterr().out
    for part in ("nvfp4_mmq16.sm_120a.cubin (", *MMQ16, "registers", "spills", "files: 1"):
        assert part in text


@pytest.mark.parametrize("arch", ["sm_75", "sm_80a", "sm_90f", "sm_12", "sm_120b", "compute_90"])
def test_an_unknown_architecture_is_refused_with_those_that_are_known(arch: str) -> None:
    with pytest.raises(ValueError, match=r"one of sm_80 sm_86 sm_90 sm_100 sm_120 sm_121 \(from"):
        command.check_arch(arch, KNOWN)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120f", "sm_121a"])
def test_a_known_architecture_is_taken(arch: str) -> None:
    command.check_arch(arch, KNOWN)


def test_nvrtc_tells_what_it_knows() -> None:
    known = command.known_archs()
    assert {80, 90, 120} <= set(known)
    assert known == tuple(sorted(known))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--arch", "sm_1"), "arch must be one of sm_80"),
        (("--arch", "sm_90", "--source", "none"), "source must be one of .*, got none.cu"),
        (("--arch", "sm_90", "-D", "1=2"), "-D must be NAME or NAME=VALUE, got '1=2'"),
    ],
)
def test_wrong_arguments_are_named_and_nothing_is_written(tmp_path, capsys, args, message) -> None:
    folder = tmp_path / "out"
    assert main(["compile", "--out", str(folder), *args]) == 1
    error = capsys.readouterr().err
    assert error.startswith("nvfp4cupy compile: ")
    assert re.search(message, error)
    assert not folder.exists()


def test_a_failed_compile_leaves_the_old_file(tmp_path, monkeypatch, capsys) -> None:
    path = tmp_path / "nvfp4_mmq16.sm_90.cubin"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise RuntimeError("nvfp4_mmq16.cu does not compile for sm_90:\nlog")

    monkeypatch.setattr(compiler, "cubin", fail)
    args = ["--arch", "sm_90", "--source", "nvfp4_mmq16"]
    assert main(["compile", "--out", str(tmp_path), *args]) == 1
    assert "does not compile for sm_90:\nlog" in capsys.readouterr().err
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]
