"""Runs the kernels' own sources on the CPU, with every memory access checked.

``Emulator(folder)(config, **values)`` compiles ``config.source`` with a C++ compiler, launches it
in a child process as ``config`` says, and copies the results back into the arrays.
"""

from __future__ import annotations

import mmap
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from emulator.build import Builder, missing_emulator
from nvfp4cupy.launch import Arg, LaunchConfig

__all__ = [
    "LEFT_OUT",
    "Emulator",
    "EmulatorError",
    "Sparse",
    "missing_emulator",
    "session_folder",
]

# Kernel sources that are not emulated, each with its reason.
LEFT_OUT: dict[str, str] = {}

_LETTERS = {"ptr": "p", "u32": "u", "i32": "i", "u64": "U", "i64": "I", "f32": "f"}
_PLACE = re.compile(r"@(0x[0-9a-f]+)")


class EmulatorError(RuntimeError):
    """What a kernel did wrong, in the words of the check that saw it."""


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
        self._builder = Builder(folder)
        self._timeout_s = timeout_s

    def __call__(
        self,
        config: LaunchConfig,
        *,
        fp4_mma: bool = False,
        text: str = "",
        offset: int | None = None,
        order: int = 0,
        only: Sequence[tuple[int, int, int]] = (),
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
            only: blocks to run instead of all; what they leave unwritten is not reported.
            poison: let the kernel read shared memory that nobody wrote: bytes of this value.
            **values: an array, a number or None for each open parameter; the same array twice is
                one place in memory.

        Raises:
            EmulatorError: a check failed.
        """
        config = config.bind(**values)
        if config.is_empty:
            return
        program = self._builder.executable(config, fp4_mma=fp4_mma, text=text)
        fd = os.memfd_create(config.entry)
        try:
            lines, places = _place_arrays(fd, config.args, offset)
            head = (config.entry, fd, order, -1 if poison is None else poison)
            sizes = (*config.grid, *config.block, config.shared_mem, len(lines), len(only))
            lines.insert(0, " ".join(map(str, (*head, *sizes))))
            lines += [" ".join(map(str, block)) for block in only]
            _launch(program, "\n".join(lines), fd, self._timeout_s)
            _read_back(fd, config.args, places)
        finally:
            os.close(fd)


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
    places: list[int] = []
    end = 0
    for i, arg in enumerate(args):
        line = f"{_LETTERS[arg.kind]} {arg.name} "
        places.append(end)
        first = next(j for j, other in enumerate(args) if other.value is arg.value)
        if arg.kind != "ptr":
            lines.append(line + arg.scalar().tobytes()[::-1].hex())
        elif arg.value is None:
            lines.append(line + "0")
        elif first < i:  # the same array again; what the first one may do holds for both
            places[i] = places[first]
            lines.append(f"{line}2 {first}")
            lines[first] = re.sub(r"\w+$", "inout", lines[first])
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


def _launch(program: Path, job: str, fd: int, timeout_s: float) -> None:
    try:
        result = subprocess.run(
            [program],
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
        raise EmulatorError(_PLACE.sub(lambda m: _source_line(program, m[1]), message))


def _source_line(program: Path, address: str) -> str:
    if not (tool := shutil.which("addr2line")):
        return f"at {address}"
    command = [tool, "-fsCp", "-e", program, address]
    return "in " + subprocess.run(command, capture_output=True, text=True).stdout.strip()
