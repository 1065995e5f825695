"""Reads what the assembler made of a kernel: resources, instruction mix, the innermost loops.

Usage: python tests/sass.py nvfp4_mmq128.cu atlas_nvfp4_mmq128_nc sm_120a -DNAME=VALUE --loops
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from nvfp4cupy import compiler

_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(.*?);")
_OPCODE = re.compile(r"^(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
_TARGET = re.compile(r"`\(([^)]+)\)")


@dataclass(frozen=True)
class Loop:
    """Instructions from a backward branch's target to the branch itself."""

    first: int
    last: int
    opcodes: tuple[str, ...]

    def count(self, prefix: str) -> int:
        return sum(opcode.startswith(prefix) for opcode in self.opcodes)


def nvdisasm() -> Path:
    """Return the disassembler of the wheel nvidia-cuda-nvdisasm."""
    for folder in map(Path, sys.path):
        for found in folder.glob("nvidia/*/bin/nvdisasm"):
            return found
    raise RuntimeError('nvdisasm is missing: pip install "nvfp4cupy[compile]"')


def disassemble(image: bytes, entry: str) -> str:
    """Return the SASS text of one entry of a cubin."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(image)
        text = subprocess.run(
            [nvdisasm(), "-c", path], check=True, capture_output=True, text=True
        ).stdout
    start = text.index(f".text.{entry}:")
    stop = text.find("//--------------------- .text.", start + 1)
    return text[start : stop if stop > 0 else None]


def instructions(text: str) -> tuple[list[str], list[Loop]]:
    """Return the opcodes of a SASS text in order, and its innermost loops."""
    opcodes: list[str] = []
    labels: dict[str, int] = {}
    branches: list[tuple[int, str]] = []
    for line in text.splitlines():
        if (label := re.match(r"^(\.L\w+):", line.strip())) is not None:
            labels[label.group(1)] = len(opcodes)
        elif (match := _INSTRUCTION.search(line)) is not None:
            opcode = _OPCODE.match(match.group(2).strip())
            if opcode is None:
                continue
            if opcode.group(1).startswith("BRA") and (goal := _TARGET.search(match.group(2))):
                branches.append((len(opcodes), goal.group(1)))
            opcodes.append(opcode.group(1))
    spans = [(labels[t], at) for at, t in branches if t in labels and labels[t] < at]
    inner = [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
    return opcodes, [Loop(a, b, tuple(opcodes[a : b + 1])) for a, b in inner]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("entry")
    parser.add_argument("arch")
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--loops", action="store_true", help="the mix of each innermost loop")
    parser.add_argument("--text", action="store_true", help="the whole SASS")
    options = parser.parse_args()
    pairs = [d.partition("=") for d in options.defines]
    built = compiler.cubin(
        options.source, options.arch, tuple(sorted((n, v or "1") for n, _, v in pairs))
    )
    text = disassemble(built.image, options.entry)
    opcodes, loops = instructions(text)
    if options.text:
        print(text)
    print(built.resources[options.entry])
    print(f"{len(opcodes)} instructions:", dict(Counter(o.split(".")[0] for o in opcodes)))
    for loop in loops if options.loops else []:
        mix = dict(Counter(o.split(".")[0] for o in loop.opcodes))
        print(f"loop {loop.first}-{loop.last}, {len(loop.opcodes)} instructions:", mix)


if __name__ == "__main__":
    main()
