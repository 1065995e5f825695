"""Compile the kernels ahead of time, for any architecture, on a machine with or without a GPU."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nvfp4cupy import compiler, sources

if TYPE_CHECKING:
    from rich.table import Table

HELP = "compile the kernels to cubins for an architecture, without a GPU"

_ARCH = re.compile(r"sm_(\d+)([af]?)")
# The matrix instructions of the portable path exist from here on.
_OLDEST = 80
# From which architecture on NVRTC knows the targets with a suffix.
_SUFFIXES = {"": 0, "a": 90, "f": 100}


@dataclass(frozen=True)
class Entry:
    """One kernel of a cubin and what the assembler gave it."""

    entry: str
    registers: int
    spill_bytes: int
    stack_bytes: int
    static_shared_mem: int


@dataclass(frozen=True)
class Built:
    """One cubin that was written."""

    source: str
    arch: str
    defines: tuple[tuple[str, str], ...]
    file: str
    num_bytes: int
    seconds: float
    entries: tuple[Entry, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--arch",
        nargs="+",
        required=True,
        metavar="ARCH",
        help="one or more of NVRTC's architectures, for example sm_90 sm_121a",
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to write to")
    parser.add_argument(
        "--source",
        nargs="+",
        metavar="NAME",
        help="kernel sources to compile, with or without .cu (default: all)",
    )
    parser.add_argument(
        "-D",
        dest="defines",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="choose a variant, as the defines of its LaunchConfig do; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON list")


def run(options: argparse.Namespace) -> int:
    """Compile, write, print a table."""
    names = _sources(options.source)
    defines = _defines(options.defines)
    known = known_archs()
    for arch in options.arch:
        check_arch(arch, known)
    options.out.mkdir(parents=True, exist_ok=True)
    built = [build(name, arch, options.out, defines) for arch in options.arch for name in names]
    if options.json:
        print(json.dumps([asdict(b) for b in built], indent=2))
    else:
        from rich.console import Console

        Console().print(table(built))
    return 0


def known_archs() -> tuple[int, ...]:
    """Return the architectures that the NVRTC of ``cuda-bindings`` knows, as 90 for ``sm_90``.

    Raises:
        RuntimeError: the package or its NVRTC is missing, or does not answer.
    """
    cure = 'pip install "nvfp4cupy[compile]"'
    try:
        from cuda.bindings import nvrtc

        status, count = nvrtc.nvrtcGetNumSupportedArchs()
        if int(status) == 0:
            status, archs = nvrtc.nvrtcGetSupportedArchs()
    except ImportError as error:
        raise RuntimeError(f"compiling without a GPU needs: {cure}") from error
    except RuntimeError as error:  # what the binding raises when it finds no library
        raise RuntimeError(f"NVRTC is not usable ({error}); install it with: {cure}") from error
    if int(status) != 0:
        raise RuntimeError(f"NVRTC does not say which architectures it knows: {status}")
    return tuple(sorted(int(arch) for arch in archs[:count]))


def check_arch(arch: str, known: Sequence[int]) -> None:
    """Refuse an architecture that cannot be compiled for.

    Args:
        arch: such as ``"sm_90"``, ``"sm_120a"`` or ``"sm_120f"``.
        known: what `known_archs` returned.

    Raises:
        ValueError: the message lists those that can.
    """
    match = _ARCH.fullmatch(arch)
    usable = [number for number in known if number >= _OLDEST]
    if match and int(match[1]) in usable and int(match[1]) >= _SUFFIXES[match[2]]:
        return
    names = " ".join(f"sm_{number}" for number in usable)
    raise ValueError(
        f"arch must be one of {names} (from sm_90 on also with the suffix a, from sm_100 on with "
        f"f), got {arch!r}"
    )


def build(source: str, arch: str, folder: Path, defines: tuple[tuple[str, str], ...]) -> Built:
    """Compile one source and write ``<stem>.<arch>.cubin``, whole or not at all.

    Args:
        source: file name in ``kernels/``.
        arch: the architecture.
        folder: where to write; it exists.
        defines: preprocessor definitions as sorted (name, value) pairs.

    Raises:
        RuntimeError: the source does not compile; the log is in the message.
    """
    from nvfp4cupy.checkpoint.atomic import atomic_path

    start = time.perf_counter()
    cubin = compiler.cubin(source, arch, defines)
    seconds = time.perf_counter() - start
    path = folder / f"{Path(source).stem}.{arch}.cubin"
    with atomic_path(path) as temporary:
        temporary.write_bytes(cubin.image)
    entries = tuple(
        Entry(name, r.registers, r.spill_bytes, r.stack_bytes, r.static_shared_mem)
        for name, r in sorted(cubin.resources.items())
    )
    return Built(source, arch, defines, str(path), len(cubin.image), seconds, entries)


def table(built: Sequence[Built]) -> Table:
    """Return a table: a line for each cubin, below it one for each entry."""
    from rich import box
    from rich.table import Table

    result = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), caption=_caption(built))
    result.add_column("cubin (bytes) and its entries", overflow="fold")
    for name in ("registers", "spills", "stack", "shared"):
        result.add_column(name, justify="right")
    for cubin in built:
        result.add_row(f"{Path(cubin.file).name} ({cubin.num_bytes:,})")
        for entry in cubin.entries:
            numbers = (entry.registers, entry.spill_bytes, entry.stack_bytes)
            result.add_row(f"  {entry.entry}", *map(str, numbers), str(entry.static_shared_mem))
    return result


def _caption(built: Sequence[Built]) -> str:
    num_entries = sum(len(b.entries) for b in built)
    seconds = sum(b.seconds for b in built)
    return (
        f"files: {len(built)}, entries: {num_entries}, compiled in {seconds:.1f} s; "
        "spills and stack in bytes a thread, static shared memory in bytes a block"
    )


def _sources(names: Sequence[str] | None) -> list[str]:
    """Return the files that were asked for; all by default."""
    known = sources.kernel_files()
    if names is None:
        return known
    files = [name if name.endswith(".cu") else f"{name}.cu" for name in names]
    if unknown := [file for file in files if file not in known]:
        raise ValueError(f"source must be one of {' '.join(known)}, got {' '.join(unknown)}")
    return files


def _defines(texts: Sequence[str]) -> tuple[tuple[str, str], ...]:
    pairs = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not name.isidentifier():
            raise ValueError(f"-D must be NAME or NAME=VALUE, got {text!r}")
        pairs[name] = value or "1"
    return tuple(sorted(pairs.items()))
