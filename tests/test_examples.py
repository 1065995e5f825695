"""Every example runs from any folder, asserts its own result, and is quick without a GPU."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def cells(notebook: Path, kind: str) -> list[dict]:
    return [c for c in json.loads(notebook.read_text())["cells"] if c["cell_type"] == kind]


def source(example: Path) -> str:
    """Return what is run: the script, or a notebook's code cells in order."""
    if example.suffix == ".py":
        return example.read_text()
    return "\n\n".join("".join(cell["source"]) for cell in cells(example, "code"))


def run(example: Path, folder: Path, *arguments: str, gpu: bool = False) -> str:
    environment = os.environ | {"MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    if not gpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    if example.suffix == ".py":
        command = [sys.executable, str(example), *arguments]
    else:
        command = [sys.executable, "-c", source(example)]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def name(example: Path) -> str:
    return example.name


def test_all_examples_are_found() -> None:
    assert len(EXAMPLES) >= 5
    assert NOTEBOOKS


@pytest.mark.parametrize("example", EXAMPLES + NOTEBOOKS, ids=name)
def test_an_example_runs_without_a_gpu(example: Path, tmp_path: Path) -> None:
    if example in NOTEBOOKS:
        pytest.importorskip("matplotlib")
    assert run(example, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
@pytest.mark.parametrize("example", EXAMPLES + NOTEBOOKS, ids=name)
def test_an_example_runs_on_a_gpu(example: Path, tmp_path: Path) -> None:
    if example in NOTEBOOKS:
        pytest.importorskip("matplotlib")
    output = run(example, tmp_path, gpu=True)
    assert "no CUDA GPU" not in output


@pytest.mark.parametrize("example", EXAMPLES + NOTEBOOKS, ids=name)
def test_an_example_asserts_its_result(example: Path) -> None:
    assert any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(source(example))))


@pytest.mark.parametrize("example", EXAMPLES, ids=name)
def test_a_script_says_what_it_is_for_and_can_be_imported(example: Path) -> None:
    tree = ast.parse(source(example))
    assert ast.get_docstring(tree)
    guard = tree.body[-1]
    assert isinstance(guard, ast.If)
    assert ast.unparse(guard.test) == "__name__ == '__main__'"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=name)
def test_a_notebook_is_valid_and_holds_no_outputs(notebook: Path) -> None:
    document = json.loads(notebook.read_text())
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in document["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in cells(notebook, "code"):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        assert all(len(line.rstrip("\n")) <= 100 for line in cell["source"])
    assert len(cells(notebook, "markdown")) + len(cells(notebook, "code")) == len(ids)


def test_the_quantize_example_draws_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run(ROOT / "examples" / "quantize_a_matrix.py", tmp_path, "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_torch_interop_is_no_failure_without_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    example = ROOT / "examples" / "torch_interop.py"
    code = f"import runpy; runpy.run_path({str(example)!r}, run_name='__main__')"
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "torch is not installed" in result.stdout
