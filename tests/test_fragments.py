"""The GEMM's index functions agree with the matrix instruction's fragment tables."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvfp4cupy import sources
from nvfp4cupy.layouts import block_nvfp4_to_linear

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler: g++")

FACTS = json.loads((Path(__file__).parent / "data/mma_m16n8k64_fragments.json").read_text())
FRAGMENTS = FACTS["fragments"]
LANES = range(32)

# mmq_fragments.cuh needs of PTX only that its header compiles.
STUB = (
    '#include "types.cuh"\nnamespace ptx { uint32_t byte_permute(uint32_t, uint32_t, uint32_t); }'
)
# Every function on all that it is called with: name, its C++ call of i and j, and their ranges.
CALLS = {
    "code_element": ("code_element(i, j)", 8, 8),
    "code_offset": ("code_offset(i, j)", 128, 2),
    "code_word_offset": ("code_word_offset(i, j)", 128, 8),
    "a_load": ("j == 0 ? a_load_row(i) : a_load_half(i)", 32, 2),
    "b_load": ("j == 0 ? b_load_token(i) : b_load_half(i)", 32, 2),
    "c_row": ("c_row(i, j)", 32, 4),
    "c_token": ("c_token(i, j)", 32, 4),
    "a_scale_row": ("a_scale_row(i, 2 - j)", 32, 2),
    "b_scale_token": ("b_scale_token(i, 4 - j)", 32, 3),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Return each function's values, computed by the header itself."""
    folder = tmp_path_factory.mktemp("fragments")
    loops = "".join(
        f'puts("\\n{name}"); for (uint32_t i = 0; i < {rows}; i++) for (uint32_t j = 0; j < {cols};'
        f' j++) printf("%u ", static_cast<uint32_t>({call}));'
        for name, (call, rows, cols) in CALLS.items()
    )
    header = sources.expand("mmq_fragments.cuh", replacements={"ptx.cuh": STUB})
    (folder / "table.cpp").write_text(
        f"#define __device__\n#define __forceinline__ inline\n{header}\n#include <cstdio>\n"
        f"using namespace mmq;\nint main() {{ {loops} }}\n"
    )
    command = ["g++", "-std=c++20", "-w", "-o", folder / "table", folder / "table.cpp"]
    subprocess.run(command, check=True)
    words = subprocess.run([folder / "table"], check=True, capture_output=True, text=True).stdout
    lines = words.strip().split("\n")
    return {
        name: np.array(values.split(), int).reshape(CALLS[name][1:])
        for name, values in zip(lines[::2], lines[1::2], strict=True)
    }


def loaded(table: dict[str, np.ndarray], load: str, lane: int, r: int) -> tuple[int, int]:
    """Return row and word that register r of a lane gets from a load of four matrices.

    Lane 8 r + i gives the address of row i of matrix r; lane 4 g + t gets word t of row g.
    """
    row, half = table[load][8 * r + lane // 4]
    return int(row), int(4 * half + lane % 4)


def our_fragment(table: dict[str, np.ndarray], load: str, registers: int) -> list[Any]:
    """Return (row, element of k) of each lane's nibbles, as the facts have them."""
    fragment = []
    for lane in LANES:
        places = [loaded(table, load, lane, r) for r in range(registers)]
        nibbles = [(row, int(k)) for row, word in places for k in table["code_element"][word]]
        fragment.append(nibbles)
    return fragment


def permutation(ours: list[Any], facts: list[Any]) -> dict[int, int]:
    """Return which element of ours stands in the place of each element of the facts."""
    mapping: dict[int, int] = {}
    for lane in LANES:
        for (row, k), (fact_row, fact_k) in zip(ours[lane], facts[lane], strict=True):
            assert row == fact_row, f"lane {lane}: row {row}, expected {fact_row}"
            assert mapping.setdefault(fact_k, k) == k, f"lane {lane}: element {k} for {fact_k}"
    return mapping


def test_both_operands_have_one_permutation_within_each_group(table: Any) -> None:
    a = permutation(our_fragment(table, "a_load", 4), FRAGMENTS["A"])
    assert sorted(a) == sorted(a.values()) == list(range(64))
    assert all(fact // 16 == k // 16 for fact, k in a.items())
    both_tiles = our_fragment(table, "b_load", 4)
    first = [nibbles[:16] for nibbles in both_tiles]
    assert permutation(first, FRAGMENTS["B"]) == a
    second = [[(token - 8, k) for token, k in nibbles[16:]] for nibbles in both_tiles]
    assert permutation(second, FRAGMENTS["B"]) == a


def test_accumulators(table: Any) -> None:
    ours = np.stack([table["c_row"], table["c_token"]], -1)
    np.testing.assert_array_equal(ours, FRAGMENTS["C"])


def test_scales_lie_in_the_lanes_that_the_selectors_name(table: Any) -> None:
    for lane in LANES:
        fact_row, fact_token = FRAGMENTS["scale_A"][lane][0][0], FRAGMENTS["scale_B"][lane][0][0]
        t = lane % 4
        two_tiles, one_tile = table["a_scale_row"][lane]
        assert two_tiles == 16 * (t // 2) + fact_row  # selector t // 2
        assert t // 2 == 1 or one_tile == fact_row
        for num_tiles, token in zip((4, 3, 2), table["b_scale_token"][lane], strict=True):
            assert t >= num_tiles or token == 8 * t + fact_token  # selector t
            assert token < 8 * num_tiles


def test_scale_bytes_are_in_order_of_k() -> None:
    for lane in LANES:
        for operand in ("scale_A", "scale_B"):
            assert [k for _, k in FRAGMENTS[operand][lane]] == [0, 16, 32, 48]


def test_code_elements_are_those_of_the_block_layout(table: Any) -> None:
    # Code i of a block is i % 16, in group i // 16: so each nibble says what it holds.
    blocks = np.zeros((1, 1, 36), np.uint8)
    for word in range(8):
        for nibble in range(8):
            code = table["code_element"][word][nibble] % 16
            blocks[0, 0, 4 + 4 * word + nibble // 2] |= code << 4 * (nibble % 2)
    packed, _ = block_nvfp4_to_linear(blocks)
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(4, 16)
    np.testing.assert_array_equal(codes, np.broadcast_to(np.arange(16), (4, 16)))
    np.testing.assert_array_equal(table["code_element"] // 16, np.arange(64).reshape(8, 8) // 16)


def test_codes_in_shared_memory_are_a_bijection(table: Any) -> None:
    words = table["code_word_offset"]
    assert sorted(words.ravel()) == list(range(0, 128 * 32, 4))
    chunks = np.repeat(table["code_offset"], 4, axis=1) + np.tile(np.arange(0, 16, 4), 2)
    np.testing.assert_array_equal(words, chunks)


def test_shared_memory_is_read_and_written_without_bank_conflicts(table: Any) -> None:
    for matrix in range(4):  # of a load: 8 rows of 16 bytes
        rows, halves = table["a_load"][8 * matrix : 8 * matrix + 8].T
        banks = table["code_offset"][rows, halves] // 16 % 8
        assert sorted(banks) == list(range(8))
    for first in range(0, 128, 4):  # of a copy: 32 lanes take the 8 words of 4 rows
        banks = table["code_word_offset"][first : first + 4].ravel() // 4 % 32
        assert sorted(banks) == list(range(32))
