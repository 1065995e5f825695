"""What the assembler makes of the FP4 GEMMs: the matrix instruction, and a lean loop around it.

Run as a script, it prints a table.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest
import sass

from nvfp4cupy import compiler
from nvfp4cupy.layouts import MMQ_TILES

ARCHS = ("sm_120a", "sm_121a")
PORTABLE = "sm_90"


class Entry(NamedTuple):
    name: str
    opcodes: tuple[str, ...]
    loops: tuple[sass.Loop, ...]
    registers: int
    spill_bytes: int

    def count(self, prefix: str) -> int:
        return sum(opcode.startswith(prefix) for opcode in self.opcodes)

    @property
    def hot_loop(self) -> sass.Loop:
        return max(self.loops, key=lambda loop: loop.count("OMMA"))

    @property
    def per_mma(self) -> float:
        """Instructions of the hot loop, idle ones included, for each matrix instruction in it."""
        return len(self.hot_loop.opcodes) / self.hot_loop.count("OMMA")


@cache
def entries(tile: int, arch: str) -> tuple[Entry, ...]:
    built = compiler.cubin(f"nvfp4_mmq{tile}.cu", arch)
    found = []
    for name, resources in built.resources.items():
        opcodes, loops = sass.instructions(sass.disassemble(built.image, name))
        registers, spilled = resources.registers, resources.spill_bytes
        found.append(Entry(name, tuple(opcodes), tuple(loops), registers, spilled))
    return tuple(found)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("tile", MMQ_TILES)
def test_the_fp4_instruction_does_all_products(tile: int, arch: str) -> None:
    assert len(entries(tile, arch)) == 4
    for entry in entries(tile, arch):
        assert entry.count("OMMA") > 0, entry.name
        assert entry.count("HMMA") == 0, entry.name
        assert entry.spill_bytes == 0, entry.name


@pytest.mark.parametrize("arch", ARCHS)
def test_the_large_tile_spends_three_instructions_a_product_at_most(arch: str) -> None:
    for entry in entries(128, arch):
        assert entry.hot_loop.count("OMMA") == 192, entry.name  # 6 steps of 4 by 8 tiles
        assert entry.hot_loop.count("LDGSTS") == 6 * 12, entry.name
        assert entry.per_mma <= 3.0, f"{entry.name}: {entry.per_mma:.2f}"


def test_other_targets_take_the_portable_path() -> None:
    for entry in entries(16, PORTABLE):
        assert (entry.count("OMMA"), entry.count("HMMA") > 0) == (0, True)


def main() -> None:
    for arch in ARCHS:
        for tile in MMQ_TILES:
            for entry in entries(tile, arch):
                loop = entry.hot_loop
                print(
                    f"{arch:8} {entry.name:32} {entry.registers:4} registers, loop of "
                    f"{len(loop.opcodes):4} instructions, {loop.count('OMMA'):4} OMMA: "
                    f"{entry.per_mma:.2f} each"
                )


if __name__ == "__main__":
    main()
