"""Kernel sources are found; their local headers are inlined once and their lines stay traceable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nvfp4cupy import sources


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sources, "_FOLDERS", (tmp_path / "missing", tmp_path))
    sources._read.cache_clear()
    yield tmp_path
    sources._read.cache_clear()


def test_inlines_each_header_once_with_line_directives(folder: Path) -> None:
    (folder / "a.cuh").write_text('#pragma once\n#include "b.cuh"\nint a;\n')
    (folder / "b.cuh").write_text("#pragma once\nint b;\n")
    (folder / "k.cu").write_text('#include "a.cuh"\n#include "b.cuh"\nint k;\n')
    assert sources.expand("k.cu").splitlines() == [
        '#line 1 "k.cu"',
        '#line 1 "a.cuh"',
        "",
        '#line 1 "b.cuh"',
        "",
        "int b;",
        '#line 3 "a.cuh"',
        "int a;",
        '#line 2 "k.cu"',
        '#line 3 "k.cu"',
        "int k;",
    ]


def test_a_header_can_be_replaced(folder: Path) -> None:
    (folder / "a.cuh").write_text("int a;\n")
    (folder / "k.cu").write_text('#include "a.cuh"\n')
    text = sources.expand("k.cu", {"a.cuh": "int other;\n"})
    assert "int other;" in text
    assert "int a;" not in text


def test_a_missing_source_names_both_folders(folder: Path) -> None:
    with pytest.raises(RuntimeError, match=r"absent\.cu is in neither .*missing nor .*reinstall"):
        sources.find("absent.cu")


def test_the_next_process_sees_an_edited_header(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text("int before;\n")
    (tmp_path / "k.cu").write_text('#include "a.cuh"\n')
    script = (
        "import sys; from pathlib import Path; from nvfp4cupy import sources;"
        "sources._FOLDERS = (Path(sys.argv[1]),); print(sources.expand('k.cu'))"
    )

    def expanded() -> str:
        command = [sys.executable, "-c", script, str(tmp_path)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    assert "int before;" in expanded()
    (tmp_path / "a.cuh").write_text("int after;\n")
    assert "int after;" in expanded()


def test_every_source_of_the_project_expands() -> None:
    names = sources.kernel_files()
    assert names
    for name in names:
        assert "#include" not in sources.expand(name).replace("#include <stdint.h>", "")
