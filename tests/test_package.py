"""The package imports fast and alone, ships its kernels and data, and names what it exports."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import nvfp4cupy as nv
from nvfp4cupy import sources

ROOT = Path(__file__).resolve().parent.parent


def python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_import_loads_numpy_and_nothing_slow() -> None:
    loaded = python(
        "import sys, nvfp4cupy;"
        "print(*[m for m in ('cupy', 'ml_dtypes', 'rich', 'safetensors', 'gguf', 'matplotlib') "
        "if m in sys.modules])"
    )
    assert loaded.strip() == ""


def test_import_adds_under_a_tenth_of_a_second() -> None:
    code = (
        "import time, numpy; start = time.process_time(); import nvfp4cupy;"
        "print(time.process_time() - start)"
    )
    assert min(float(python(code)) for _ in range(5)) < 0.1


def test_every_export_exists_and_is_documented() -> None:
    assert len(set(nv.__all__)) == len(nv.__all__)
    assert set(nv.__all__) <= set(dir(nv))
    for name in nv.__all__:
        value = getattr(nv, name)
        if callable(value):
            assert value.__doc__, name
            assert value.__doc__.splitlines()[0].endswith((".", "``", "/ 2688``")), name


def test_imports_point_down() -> None:
    order = (
        *("__main__", "cli", "bench", "plot", "moe", "ffn", "checkpoint", "ops", "launchers"),
        *("compiler", "arrays", "sources", "launch", "reference", "layouts", "formats"),
    )
    for module in pkgutil.walk_packages(nv.__path__, "nvfp4cupy."):
        part = module.name.split(".")[1]
        spec = importlib.util.find_spec(module.name)
        assert spec is not None
        assert spec.origin is not None
        text = Path(spec.origin).read_text()
        above = order[: order.index(part)]
        for name in above:
            assert f"from nvfp4cupy.{name}" not in text, f"{module.name} imports {name}"
            assert f"from nvfp4cupy import {name}" not in text, f"{module.name} imports {name}"


def test_a_wheel_holds_kernels_data_and_licenses(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    code = f"from hatchling.build import build_wheel; print(build_wheel({str(tmp_path)!r}))"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    with zipfile.ZipFile(tmp_path / result.stdout.split()[-1]) as wheel:
        names = set(wheel.namelist())
    folder = sources.find("types.cuh").parent
    kernels = {f"nvfp4cupy/kernels/{p.name}" for p in folder.iterdir()}
    assert kernels <= names
    assert "nvfp4cupy/data/minilm_ffn_layer0.safetensors" in names
    assert any(n.endswith("licenses/LICENSE") for n in names)
    assert any(n.endswith("licenses/nvfp4cupy/data/NOTICE.md") for n in names)
    assert not any(n.startswith("kernels/") for n in names)


def test_kernels_hold_no_python() -> None:
    assert not list(sources.find("types.cuh").parent.glob("*.py"))


def test_inline_ptx_is_in_one_header() -> None:
    for path in sources.find("types.cuh").parent.iterdir():
        if path.name != "ptx.cuh":
            assert "asm" not in path.read_text().replace("nvdisasm", "").split(), path.name
