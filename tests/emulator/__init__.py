"""Runs the kernels' own sources on the CPU, with every memory access checked.

``Emulator(folder)(config, **values)`` compiles ``config.source`` with a C++ compiler, launches it
in a child process as ``config`` says, and copies the results back into the arrays.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nvfp4cupy import sources
from nvfp4cupy.launch import Arg, LaunchConfig

__all__ = ["LEFT_OUT", "Emulator", "EmulatorError", "Sparse", "missing_emulator", "session_folder"]

# Kernel sources that are not emulated, each with its reason.
LEFT_OUT: dict[str, str] = {}

_HERE = Path(__file__).resolve().parent
_FRAGMENTS = _HERE.parent / "data" / "mma_m16n8k64_fragments.json"
_COMPILER = os.environ.get("CXX", "g++")
# -O1 is the quickest to compile and run together. No contraction: __fmaf_rn alone is an fma.
_FLAGS = ("-std=c++20", "-O1", "-g1", "-ffp-contract=off", "-fno-exceptions", "-fno-extern-tls-init", "-I.", f"-I{_HERE}")
# The thread sanitizer's instrumentation calls our runtime, so its library is not linked.
# Locals that nobody set hold a pattern instead of a lucky zero.
_CHECKS = (
    "-fsanitize=thread,signed-integer-overflow,shift,integer-divide-by-zero,bounds,alignment,"
    "object-size,float-cast-overflow,unreachable,bool",
    "-fno-sanitize-recover=all",
    "-ftrivial-auto-var-init=pattern",
    "-Wno-unknown-pragmas",
)
_LETTERS = {"ptr": "p", "u32": "u", "i32": "i", "u64": "U", "i64": "I", "f32": "f"}
_EXTERN_SHARED = re.compile(
    r"extern\s+__shared__\s+((?:__align__|alignas)\s*\(\w+\))?\s*([\w ]+?)\s+(\w+)\s*\[\s*\]"
)
_NAMESPACE = re.compile(r"^(?:namespace (\w+) \{|\}  // namespace (\w+))", re.M)
_ENTRY = re.compile(r'extern "C" __global__ void (\w+)\(')
_MAX_SHARED_BYTES = 227 * 1024
_PLACE = re.compile(r"@(0x[0-9a-f]+)")


class EmulatorError(RuntimeError):
    """What a kernel did wrong, in the words of the check that saw it."""


def missing_emulator() -> str:
    """Return why kernels cannot be emulated here, or an empty string."""
    if platform.machine() != "x86_64":
        return f"the emulator flushes subnormals as x86-64 does, this is {platform.machine()}"
    return "" if shutil.which(_COMPILER) else f"no C++ compiler: {_COMPILER} is not found"


def fragments_header() -> str:
    """Return the fragment tables of the FP4 instruction as C++ arrays."""
    tables = json.loads(_FRAGMENTS.read_text())["fragments"]
    names = {"A": "A", "B": "B", "C": "C", "scale_A": "ScaleA", "scale_B": "ScaleB"}
    lines = []
    for key, name in names.items():
        text = json.dumps(tables[key]).replace("[", "{").replace("]", "}")
        count = len(tables[key][0])
        lines.append(f"inline constexpr unsigned char kFragment{name}[32][{count}][2] = {text};")
    return "\n".join(lines) + "\n"


def expand(name: str, text: str = "") -> str:
    """Return a source in ``kernels/``, or ``text``, with its headers inlined, PTX's being ours."""
    header = (_HERE / "ptx_cpu.cuh").read_text()
    if not text:
        return sources.expand(name, replacements={"ptx.cuh": header})
    types = sources.find("types.cuh").read_text()
    header = header.replace('#include "types.cuh"', types)
    return text.replace('#include "ptx.cuh"', header.replace("#pragma once", ""))


def _dynamic_shared(text: str) -> tuple[str, str]:
    """Return the definition of a text's dynamic shared memory and its qualified name."""
    found = {match[3]: match for match in _EXTERN_SHARED.finditer(text)}
    if not found:
        return "", ""
    if len(found) > 1:
        raise ValueError(f"dynamic shared memory must have one name, got {', '.join(found)}")
    ((name, match),) = found.items()
    # A declaration in a function belongs to the namespace around it.
    spaces: list[str] = []
    for opened, _closed in _NAMESPACE.findall(text[: match.start()]):
        spaces = [*spaces, opened] if opened else spaces[:-1]
    size = f"{_MAX_SHARED_BYTES} / sizeof({match[2]})"
    definition = f"thread_local {match[1] or ''} {match[2]} {name}[{size}];"
    for space in reversed(spaces):
        definition = f"namespace {space} {{ {definition} }}"
    return definition, "::".join(["", *spaces, name])


def program(entries: Sequence[str], text: str) -> str:
    """Return the kernels' text with what the runtime needs behind it."""
    kernels = [f'{{"{e}", Entry<::{e}>::kSignature, Entry<::{e}>::call}},' for e in entries]
    definition, name = _dynamic_shared(text)
    size, address = (f"sizeof {name}", f"reinterpret_cast<char*>({name})") if name else ("0", "{}")
    lines = [text, '#line 1 "emulator"', definition]
    lines += ["namespace emu {", "const Kernel kernels[] = {", *kernels, "{}};"]
    lines.append("char* dynamic_shared(size_t* capacity) {")
    lines += [f"*capacity = {size};", f"return {address};", "}", "}", ""]
    return "\n".join(lines)


@dataclass(frozen=True)
class Sparse:
    """An array too large to be held, of which only the pieces at some byte offsets matter."""

    pieces: dict[int, np.ndarray]


def session_folder(factory: Any) -> Path:
    """Return the folder that all workers of a pytest session share for compiled kernels."""
    base: Path = factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "emulator"


class Emulator:
    """Compiles kernels into ``folder``, each once, and runs them."""

    def __init__(self, folder: Path, *, timeout_s: float = 120) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._timeout_s = timeout_s

    def prebuild(self, configs: Iterable[LaunchConfig], *, fp4_mma: bool = False) -> None:
        """Compile on all cores what later calls will need."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda config: self.build(config, fp4_mma=fp4_mma), configs))

    def build(self, config: LaunchConfig, *, fp4_mma: bool = False, text: str = "") -> Path:
        """Return the executable of one entry, or of all those in ``text`` if it is given."""
        entries = _ENTRY.findall(text) or [config.entry]
        stem = Path(config.source).stem if text else config.entry
        text = expand(config.source, text)
        defines = [f"-D{name}={value}" for name, value in config.defines]
        defines.append(f"-DNVFP4_HAS_FP4_MMA={int(fp4_mma)}")
        defines.append(f"-D__CUDA_ARCH__={1200 if fp4_mma else 800}")
        self._write("fragments.h", fragments_header())
        runtime = self._compile("runtime", (_HERE / "runtime.cpp").read_text(), ["-O2"])
        flags = [*_CHECKS, "-include", "cuda_cpu.h", *defines]
        kernel = self._compile(stem, program(entries, text), flags)
        executable = kernel.with_suffix("")
        if not executable.exists():
            self._run_compiler([kernel, runtime, "-fsanitize=undefined"], executable)
        return executable

    def __call__(
        self,
        config: LaunchConfig,
        *,
        fp4_mma: bool = False,
        text: str = "",
        offset: int | None = None,
        order: int = 0,
        blocks: Sequence[tuple[int, int, int]] = (),
        poison: int | None = None,
        **values: Any,
    ) -> None:
        """Launch ``config`` on NumPy arrays, which receive the results.

        Args:
            config: the launch; its pointers' extents are all that the kernel may touch.
            fp4_mma: build the path of the FP4 matrix instruction.
            text: a kernel source instead of ``config.source``.
            offset: address of every array modulo 256; by default the odd multiple of the
                parameter's alignment, that is the least aligned address it allows.
            order: 0 runs threads and blocks ascending, 1 descending, others are seeds of a shuffle.
            blocks: run these blocks only; what they leave unwritten is not reported.
            poison: let the kernel read shared memory that nobody wrote: bytes of this value.
            **values: an array, a number or None for each open parameter.

        Raises:
            EmulatorError: a check failed.
        """
        config = config.bind(**values)
        if config.is_empty:
            return
        executable = self.build(config, fp4_mma=fp4_mma, text=text)
        fd = os.memfd_create(config.entry)
        try:
            lines, places = _place_arrays(fd, config.args, offset)
            head = (config.entry, fd, order, -1 if poison is None else poison)
            sizes = (*config.grid, *config.block, config.shared_mem, len(lines), len(blocks))
            lines.insert(0, " ".join(map(str, (*head, *sizes))))
            lines += [" ".join(map(str, block)) for block in blocks]
            _launch(executable, "\n".join(lines), fd, self._timeout_s)
            _read_back(fd, config.args, places)
        finally:
            os.close(fd)

    def _write(self, name: str, text: str) -> Path:
        path = self._folder / name
        if not path.exists():
            scratch = path.with_name(f"{name}.{os.getpid()}")
            scratch.write_text(text)
            scratch.replace(path)
        return path

    def _compile(self, stem: str, text: str, flags: Sequence[str]) -> Path:
        ours = [path.read_text() for path in sorted(_HERE.glob("*.[hc]*"))]
        key = hashlib.sha256("\0".join([text, *ours, *_FLAGS, *flags]).encode()).hexdigest()[:16]
        source = self._write(f"{stem}_{key}.cpp", text)
        target = source.with_suffix(".o")
        with open(source.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be at it
            if not target.exists():
                self._run_compiler([*_FLAGS, *flags, "-c", source], target)
        return target

    def _run_compiler(self, arguments: Sequence[str | Path], target: Path) -> None:
        scratch = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        command = [_COMPILER, *map(str, arguments), "-o", str(scratch)]
        result = subprocess.run(command, cwd=self._folder, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{result.stderr}")
        scratch.replace(target)


def _place_arrays(fd: int, args: Sequence[Arg], offset: int | None) -> list[str]:
    """Write the arrays into a file, a page or more each, and return a line per argument."""
    lines = []
    end = 0
    for arg in args:
        line = f"{_LETTERS[arg.kind]} {arg.name} "
        if arg.kind == "ptr" and arg.value is not None:
            delta = arg.alignment if offset is None else offset
            lines.append(f"{line}1 {end} {delta} {arg.extent} {arg.access}")
            os.ftruncate(fd, end + delta + arg.extent)
            os.pwrite(fd, _bytes(arg), end + delta)
            end += -(-(delta + arg.extent) // _PAGE) * _PAGE
        elif arg.kind == "ptr":
            lines.append(line + "0")
        else:
            lines.append(line + arg.scalar().tobytes()[::-1].hex())
    return lines


def _pieces(arg: Arg) -> dict[int, memoryview]:
    """Return the bytes of an array by their offset."""
    if isinstance(arg.value, Sparse):
        return {at: memoryview(piece).cast("B") for at, piece in arg.value.pieces.items()}
    array: np.ndarray = arg.value
    if not array.flags.c_contiguous or array.nbytes < arg.extent:
        raise ValueError(f"{arg.name} must hold {arg.extent} contiguous bytes, got {array.nbytes}")
    return {0: memoryview(array.reshape(-1).view(np.uint8))[: arg.extent]}


def _place_arrays(fd: int, args: Sequence[Arg], offset: int | None) -> tuple[list[str], list[int]]:
    """Write the arrays into a file; return a line per argument and each array's place."""
    lines = []
    places = []
    end = 0
    for arg in args:
        line = f"{_LETTERS[arg.kind]} {arg.name} "
        places.append(end)
        if arg.kind != "ptr":
            lines.append(line + arg.scalar().tobytes()[::-1].hex())
        elif arg.value is None:
            lines.append(line + "0")
        else:
            delta = arg.alignment if offset is None else offset
            lines.append(f"{line}1 {end} {delta} {arg.extent} {arg.access}")
            places[-1] += delta
            end += -(-(delta + arg.extent) // mmap.PAGESIZE) * mmap.PAGESIZE
            os.ftruncate(fd, end)
            for at, piece in _pieces(arg).items():
                os.pwrite(fd, piece, places[-1] + at)
    return lines, places


def _read_back(fd: int, args: Sequence[Arg], places: Sequence[int]) -> None:
    for arg, place in zip(args, places, strict=True):
        if arg.kind == "ptr" and arg.access != "in" and arg.value is not None:
            for at, piece in _pieces(arg).items():
                piece[:] = os.pread(fd, len(piece), place + at)


def _launch(executable: Path, job: str, fd: int, timeout_s: float) -> None:
    try:
        result = subprocess.run(
            [executable],
            input=job,
            capture_output=True,
            text=True,
            pass_fds=[fd],
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise EmulatorError(f"not done after {timeout_s} s") from error
    if result.returncode:
        message = result.stderr.strip() or f"ended with code {result.returncode}"
        raise EmulatorError(_PLACE.sub(lambda m: _source_line(executable, m[1]), message))


def _source_line(executable: Path, address: str) -> str:
    if not (tool := shutil.which("addr2line")):
        return f"at {address}"
    command = [tool, "-fsCp", "-e", executable, address]
    return "in " + subprocess.run(command, capture_output=True, text=True).stdout.strip()
