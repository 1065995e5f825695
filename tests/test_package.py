"""The package imports fast and alone, ships its kernels and data, and names what it exports."""

from __future__ import annotations

import ast
import importlib.util
import re
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


# The package itself hands out the names of ffn, checkpoint, ops and layouts.
ORDER = (
    *("__main__", "cli", "bench", "plot", "moe", "nvfp4cupy", "ffn", "checkpoint", "ops"),
    *("launchers", "compiler", "arrays", "sources", "launch", "reference", "layouts", "formats"),
)


def imported_modules(tree: ast.AST, package: str) -> set[str]:
    """Return the full names of what a module imports anywhere, names of its members included."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            relative = "." * node.level + (node.module or "")
            source = importlib.util.resolve_name(relative, package)
            found |= {f"{source}.{alias.name}" for alias in node.names}
    return found


def part_of(module: str) -> str:
    """Return the part of the package a full name belongs to: what is no module is its own."""
    _, _, rest = module.partition(".")
    part = rest.partition(".")[0]
    return part if part in ORDER else "nvfp4cupy"


def test_the_parts_that_a_module_imports_are_found() -> None:
    code = (
        "from nvfp4cupy import ops, plot as p\nimport nvfp4cupy.cli.demo\nimport nvfp4cupy as nv\n"
        "def f():\n    from nvfp4cupy.ffn import FeedForward\n    from .. import layouts\n"
        "    from ..reference.gemm import sizes\n    from . import atomic\n    import numpy\n"
    )
    names = imported_modules(ast.parse(code), "nvfp4cupy.checkpoint")
    parts = {part_of(n) for n in names if n.split(".")[0] == "nvfp4cupy"}
    assert parts == {
        *("ops", "plot", "cli", "nvfp4cupy", "ffn", "layouts", "reference", "checkpoint")
    }


def test_imports_point_down() -> None:
    root = Path(nv.__file__).parent
    paths = [path for path in root.rglob("*.py") if path != root / "__init__.py"]
    assert {path.relative_to(root).parts[0].removesuffix(".py") for path in paths} <= set(ORDER)
    for path in paths:
        package = ".".join(("nvfp4cupy", *path.relative_to(root).parent.parts))
        own = path.relative_to(root).parts[0].removesuffix(".py")
        for name in imported_modules(ast.parse(path.read_text("utf-8")), package):
            if name.split(".")[0] == "nvfp4cupy":
                assert ORDER.index(part_of(name)) >= ORDER.index(own), f"{path} imports {name}"


def test_a_wheel_holds_kernels_data_and_licenses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hatchling.build import build_wheel

    monkeypatch.chdir(ROOT)
    with zipfile.ZipFile(tmp_path / build_wheel(str(tmp_path))) as wheel:
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


def has_inline_ptx(text: str) -> bool:
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    return re.search(r"\b(__)?asm(__)?\b", code) is not None


def test_inline_ptx_is_found_in_code_and_not_in_comments() -> None:
    for code in ("asm(", "asm volatile(", "  __asm__ (", "{asm(", "/* a */ asm (", "__asm("):
        assert has_inline_ptx(code), code
    for code in ("// asm(", "/* asm\n asm( */", "nvdisasm(", "int plasma;"):
        assert not has_inline_ptx(code), code


def test_inline_ptx_is_in_one_header() -> None:
    paths = list(sources.find("types.cuh").parent.iterdir())
    assert [path.name for path in paths if has_inline_ptx(path.read_text("utf-8"))] == ["ptx.cuh"]
