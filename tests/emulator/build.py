"""Turns a kernel's text into a program: the text, our headers and runtime, a C++ compiler."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from nvfp4cupy import sources
from nvfp4cupy.launch import MAX_SHARED_MEM, LaunchConfig

_HERE = Path(__file__).resolve().parent
_FRAGMENTS = _HERE.parent / "data" / "mma_m16n8k64_fragments.json"
_COMPILER = os.environ.get("CXX", "g++")
# -O1 is the quickest to compile and run together. No contraction: __fmaf_rn alone is an fma.
_FLAGS = ("-std=c++20", "-O1", "-g1", "-ffp-contract=off", "-fno-exceptions", "-I.", f"-I{_HERE}")
# The thread sanitizer's instrumentation calls our runtime, so its library is not linked.
# Locals that nobody set hold a pattern instead of a lucky zero.
_CHECKS = (
    "-fsanitize=thread,signed-integer-overflow,shift,integer-divide-by-zero,bounds,alignment,"
    "object-size,float-cast-overflow,unreachable,bool",
    "-fno-sanitize-recover=all",
    "-ftrivial-auto-var-init=pattern",
    "-fno-extern-tls-init",
    "-Wno-unknown-pragmas",
    "-include",
    "cuda_cpu.h",
)
_EXTERN_SHARED = re.compile(
    r"extern\s+__shared__\s+((?:__align__|alignas)\s*\(\w+\))?\s*([\w ]+?)\s+(\w+)\s*\[\s*\]"
)
_NAMESPACE = re.compile(r"^(?:namespace (\w+) \{|\}  // namespace (\w+))", re.M)
_ENTRY = re.compile(r'extern "C" __global__ void (\w+)\(')


def missing_emulator() -> str:
    """Return why kernels cannot be emulated here, or an empty string."""
    if platform.machine() != "x86_64":
        return f"the emulator flushes subnormals as x86-64 does, this is {platform.machine()}"
    return "" if shutil.which(_COMPILER) else f"no C++ compiler: {_COMPILER} is not found"


def _expand(name: str, text: str) -> str:
    """Return a source in ``kernels/``, or ``text``, with its headers inlined, PTX's being ours."""
    header = (_HERE / "ptx_cpu.cuh").read_text()
    if not text:
        return sources.expand(name, replacements={"ptx.cuh": header})
    types = sources.find("types.cuh").read_text()
    header = header.replace('#include "types.cuh"', types)
    return text.replace('#include "ptx.cuh"', header.replace("#pragma once", ""))


def _fragments_header() -> str:
    """Return the fragment tables of the FP4 instruction as C++ arrays."""
    tables = json.loads(_FRAGMENTS.read_text())["fragments"]
    names = {"A": "A", "B": "B", "C": "C", "scale_A": "ScaleA", "scale_B": "ScaleB"}
    lines = []
    for key, name in names.items():
        text = json.dumps(tables[key]).replace("[", "{").replace("]", "}")
        count = len(tables[key][0])
        lines.append(f"inline constexpr unsigned char kFragment{name}[32][{count}][2] = {text};")
    return "\n".join(lines) + "\n"


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
    size = f"{MAX_SHARED_MEM} / sizeof({match[2]})"
    definition = f"thread_local {match[1] or ''} {match[2]} {name}[{size}];"
    for space in reversed(spaces):
        definition = f"namespace {space} {{ {definition} }}"
    return definition, "::".join(["", *spaces, name])


def _program(entries: Sequence[str], text: str) -> str:
    """Return the kernels' text with what the runtime needs behind it."""
    kernels = [f'{{"{e}", Entry<::{e}>::kSignature, Entry<::{e}>::call}},' for e in entries]
    definition, name = _dynamic_shared(text)
    size, address = (f"sizeof {name}", f"reinterpret_cast<char*>({name})") if name else ("0", "{}")
    lines = [text, '#line 1 "emulator"', definition]
    lines += ["namespace emu {", "const Kernel kernels[] = {", *kernels, "{}};"]
    lines.append("char* dynamic_shared(size_t* capacity) {")
    lines += [f"*capacity = {size};", f"return {address};", "}", "}", ""]
    return "\n".join(lines)


class Builder:
    """Compiles into ``folder``, each text once; workers of one session may share it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def executable(self, config: LaunchConfig, *, fp4_mma: bool, text: str) -> Path:
        """Return the program of one entry, or of all those in ``text`` if it is given."""
        entries = _ENTRY.findall(text) or [config.entry]
        stem = Path(config.source).stem if text else config.entry
        defines = [f"-D{name}={value}" for name, value in config.defines]
        defines.append(f"-DNVFP4_HAS_FP4_MMA={int(fp4_mma)}")
        defines.append(f"-D__CUDA_ARCH__={1200 if fp4_mma else 800}")
        self._write("fragments.h", _fragments_header())
        runtime = self._object("runtime", (_HERE / "runtime.cpp").read_text(), ["-O2"])
        whole = _program(entries, _expand(config.source, text))
        kernel = self._object(stem, whole, [*_CHECKS, *defines])
        program = kernel.with_suffix("")
        if not program.exists():
            self._compile([kernel, runtime, "-fsanitize=undefined"], program)
        return program

    def _write(self, name: str, text: str) -> Path:
        path = self._folder / name
        if not path.exists():
            scratch = path.with_name(f"{name}.{os.getpid()}")
            scratch.write_text(text)
            scratch.replace(path)
        return path

    def _object(self, stem: str, text: str, flags: Sequence[str]) -> Path:
        ours = [path.read_text() for path in sorted(_HERE.glob("*.[hc]*"))]
        key = hashlib.sha256("\0".join([text, *ours, *_FLAGS, *flags]).encode()).hexdigest()[:16]
        source = self._write(f"{stem}_{key}.cpp", text)
        target = source.with_suffix(".o")
        with open(source.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be at it
            if not target.exists():
                self._compile([*_FLAGS, *flags, "-c", source], target)
        return target

    def _compile(self, arguments: Sequence[str | Path], target: Path) -> None:
        scratch = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        command = [_COMPILER, *map(str, arguments), "-o", str(scratch)]
        result = subprocess.run(command, cwd=self._folder, capture_output=True, text=True)
        if result.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{result.stderr}")
        scratch.replace(target)
