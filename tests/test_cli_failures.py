"""What the commands on files do when something goes wrong: exit codes, messages, no half file."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from test_checkpoint_builders import DATA
from test_cli_files import Files, command, error_of, out_of, quantized_files, weights

from nvfp4cupy.arrays import missing_gpu
from nvfp4cupy.cli import main
from nvfp4cupy.cli import quantize as quantize_command
from nvfp4cupy.reference import quantize_nvfp4


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return quantized_files(tmp_path_factory.mktemp("quantized"))


@pytest.mark.skipif(not missing_gpu(), reason="there is a GPU")
def test_a_missing_gpu_is_an_error_if_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error_of(capsys, "quantize", DATA, tmp_path / "a", "--device", "gpu")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_replaced_by_force_only(
    tmp_path: Path, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.gguf"
    out.write_bytes(b"mine")
    for args in (("quantize", DATA, out), ("convert", files["modelopt"], out, "--format", "gguf")):
        assert f"{out} exists; --force replaces it" in error_of(capsys, *args)
        assert out.read_bytes() == b"mine"
        out_of(capsys, *args, "--force")
        assert [w.shape for w in weights(out)] == [(384, 1536), (1536, 384)]
        out.write_bytes(b"mine")


def test_bad_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nowhere does not exist" in error_of(capsys, "quantize", "nowhere", tmp_path / "a")
    assert "does not exist" in error_of(capsys, "quantize", DATA, tmp_path / "b" / "a")
    assert "something else" in error_of(capsys, "quantize", DATA, tmp_path, "--force")
    assert "something else" in error_of(capsys, "quantize", DATA, os.devnull, "--force")
    assert "end with .gguf" in error_of(
        capsys, "quantize", DATA, tmp_path / "a.safetensors", "--format", "gguf"
    )
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(DATA.read_bytes())
    assert "another file than IN" in error_of(capsys, "quantize", copy, copy, "--force")
    assert list(tmp_path.iterdir()) == [copy]


def test_wrong_usage_is_exit_code_2() -> None:
    for args in (
        ["quantize", "a"],
        ["quantize", "a", "b", "--rounding", "up"],
        ["convert", "a", "b"],
        ["inspect"],
    ):
        with pytest.raises(SystemExit) as raised:
            main(args)
        assert raised.value.code == 2


@pytest.mark.parametrize("raised", [ValueError("no"), OSError(28, "full"), KeyboardInterrupt()])
@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_half_way_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, existing: bool
) -> None:
    calls: list[float] = []

    def failing(x: Any, gsa: float, **options: Any) -> Any:
        calls.append(gsa)
        if len(calls) == 2:
            raise raised
        return quantize_nvfp4(x, gsa, **options)

    monkeypatch.setattr(quantize_command, "quantize_nvfp4", failing)
    out = tmp_path / "a.gguf"
    if existing:
        out.write_bytes(b"mine")
    code = main(["quantize", str(DATA), str(out), "--force", "--device", "cpu"])
    assert code == (130 if isinstance(raised, KeyboardInterrupt) else 1)
    assert len(calls) == 2
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"mine"] * existing


def test_ctrl_c_ends_without_a_traceback(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\n"
        # A job in the background of a shell starts with the signal ignored.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from nvfp4cupy.cli import main, quantize\n"
        f"press = lambda *a, **o: os.kill(os.getpid(), {int(signal.SIGINT)})\n"
        "quantize.quantize_nvfp4 = press\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    args = ("quantize", DATA, tmp_path / "a.gguf", "--device", "cpu")
    result = subprocess.run(command(*args, prefix=("-c", script)), capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="pipes close otherwise here")
@pytest.mark.parametrize("option", [(), ("--json",)])
def test_a_reader_that_leaves_is_no_error(files: Files, option: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    args = command("inspect", files["gguf"], *option)
    result = subprocess.run(args, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
@pytest.mark.parametrize("option", [(), ("--json",)])
def test_output_that_cannot_be_written_is_an_error(files: Files, option: tuple[str, ...]) -> None:
    with open("/dev/full", "wb") as full:
        args = command("inspect", files["gguf"], *option)
        result = subprocess.run(args, stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("nvfp4cupy inspect: ")
    assert len(result.stderr.splitlines()) == 1
