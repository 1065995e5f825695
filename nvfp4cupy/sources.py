"""Finds a ``.cu`` file and inlines its local headers.

CuPy's kernel cache is keyed by the source text alone, so a header behind an include path could be
served stale after an edit. Inlining puts every byte that matters into that text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

__all__ = ["expand", "find", "kernel_files"]

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"\s*$')
_PRAGMA_ONCE = re.compile(r"^\s*#\s*pragma\s+once\s*$")

_PACKAGE = Path(__file__).resolve().parent
# A wheel holds the sources inside the package, a checkout beside it.
_FOLDERS = (_PACKAGE / "kernels", _PACKAGE.parent / "kernels")


def find(name: str) -> Path:
    """Return the path of the kernel source ``name``.

    Raises:
        RuntimeError: the installation lacks the file.
    """
    # The file is looked for, not the folder: ``site-packages/kernels`` may be someone else's.
    for folder in _FOLDERS:
        if (path := folder / name).is_file():
            return path
    raise RuntimeError(
        f"kernel source {name} is in neither {_FOLDERS[0]} nor {_FOLDERS[1]}; reinstall nvfp4cupy"
    )


def kernel_files() -> list[str]:
    """Return the names of all ``.cu`` files, sorted."""
    folder = find("types.cuh").parent
    return sorted(path.name for path in folder.glob("*.cu"))


@cache
def _read(name: str) -> tuple[str, ...]:
    return tuple(find(name).read_text(encoding="utf-8").splitlines())


def expand(name: str, replacements: Mapping[str, str] | None = None) -> str:
    """Return the text of ``name`` with each ``#include "local.cuh"`` replaced by its text, once.

    ``#line`` directives keep the compiler's messages at the right file and line.

    Args:
        name: file name in ``kernels/``.
        replacements: texts to take instead of the headers of these names.
    """
    seen = {name}
    lines = [f'#line 1 "{name}"']

    def text_of(header: str) -> tuple[str, ...]:
        replaced = (replacements or {}).get(header)
        return _read(header) if replaced is None else tuple(replaced.splitlines())

    def append(current: str, text: tuple[str, ...]) -> None:
        for number, line in enumerate(text, start=1):
            if _PRAGMA_ONCE.match(line):
                lines.append("")
            elif match := _INCLUDE.match(line):
                header = match.group(1)
                if header not in seen:
                    seen.add(header)
                    lines.append(f'#line 1 "{header}"')
                    append(header, text_of(header))
                lines.append(f'#line {number + 1} "{current}"')
            else:
                lines.append(line)

    append(name, _read(name))
    return "\n".join(lines) + "\n"
