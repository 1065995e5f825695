"""The command line's demo and info, as a person and as a script would use them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from nvfp4cupy.arrays import missing_gpu
from nvfp4cupy.cli import main


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nvfp4cupy", *args]
    env = {**os.environ, "COLUMNS": "80", **environment}
    return subprocess.run(command, capture_output=True, text=True, env=env)


def test_demo_prints_sizes_errors_and_the_device() -> None:
    result = run("demo", "--device", "cpu")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("device: CPU (NumPy reference)")
    assert max(map(len, result.stdout.splitlines())) <= 90
    assert "…" not in result.stdout
    for text in ("up_proj", "down_proj", "half_step", "nearest_low", "nearest_even", "4.50"):
        assert text in result.stdout


def test_demo_json_holds_the_errors_in_the_order_that_theory_gives() -> None:
    result = json.loads(run("demo", "--device", "cpu", "--json").stdout)
    assert {s["tensor"] for s in result["sizes"]} >= {"up_proj.weight", "down_proj.input"}
    rows = {(r["layer"], r["rounding"], r["scale_search"]): r for r in result["rows"]}
    assert len(rows) == 12
    for layer in ("up_proj", "down_proj"):
        errors = {r: rows[layer, r, 0]["weight_error"] for r in ("half_step", "nearest_even")}
        assert errors["nearest_even"] < errors["half_step"] < 0.12
        for rounding in ("half_step", "nearest_low", "nearest_even"):
            searched = rows[layer, rounding, 2]["weight_error"]
            assert searched < rows[layer, rounding, 0]["weight_error"]


@pytest.mark.skipif(not missing_gpu(), reason="there is a GPU")
def test_demo_on_a_missing_gpu_fails_with_the_cure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--device", "gpu"]) == 1
    assert capsys.readouterr().err.startswith("nvfp4cupy demo: ")


@pytest.mark.gpu
def test_demo_runs_on_the_gpu() -> None:
    result = run("demo")
    assert result.returncode == 0, result.stderr
    assert "mma" in result.stdout.splitlines()[0] or "FP4" in result.stdout.splitlines()[0]


def test_info_names_what_is_there_and_what_is_missing() -> None:
    result = run("info")
    assert result.returncode == 0, result.stderr
    for text in ("nvfp4cupy", "NumPy", "GPU", "path"):
        assert text in result.stdout
    facts = json.loads(run("info", "--json").stdout)
    assert facts["path"]
    assert isinstance(facts["missing"], list)


def test_wrong_usage_is_exit_code_2() -> None:
    assert run("unknown").returncode == 2
    assert run().returncode == 2
    assert "demo" in run("--help").stdout
