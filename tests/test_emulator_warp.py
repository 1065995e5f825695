"""The emulator's warp and matrix operations, compared with NumPy and the fragment tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from emulator import Emulator, missing_emulator, session_folder
from emulator.checks import run_words, word_kernels

from nvfp4cupy.formats import bfloat16, e2m1_decode, e4m3_decode

pytestmark = pytest.mark.skipif(bool(missing_emulator()), reason=missing_emulator())

HERE = Path(__file__).parent
KERNELS = {
    "warp": (
        "uint32_t* z = y + 8 * i; const uint32_t v = x[i]; z[0] = __shfl_sync(~0u, v, i + 5, 8);"
        "z[1] = __shfl_xor_sync(~0u, v, 9); z[2] = __shfl_up_sync(~0u, v, 3, 16);"
        "z[3] = __shfl_down_sync(~0u, v, 3, 16); z[4] = __ballot_sync(~0u, v & 1);"
        "z[5] = __any_sync(~0u, v == 7) + 2 * __all_sync(~0u, v < 32);"
        "z[6] = __syncthreads_count(v % 3 == 0); z[7] = __syncthreads_or(v == 7) +"
        "2 * __syncthreads_and(v < 31);"
    ),
    "atomics": (
        "y[i] = i == 1 ? ~0u : 0; __syncthreads(); atomicAdd(y, x[i]); atomicMin(y + 1, x[i] + 3);"
    ),
    "largest": "y[i] = ptx::warp_max(x[i]);",
    "ldmatrix": (
        "__shared__ alignas(16) uint32_t s[128]; for (int j = 0; j < 4; j++) s[4 * i + j] = x[4 * i"
        " + j]; __syncthreads(); uint32_t a[4], b[2]; ptx::ldmatrix_x4(a, s + 4 * i);"
        "ptx::ldmatrix_x2(b, i < 16 ? s + 4 * i : nullptr);"
        "for (int j = 0; j < 6; j++) y[6 * i + j] = j < 4 ? a[j] : b[j - 4];"
    ),
    # 12 words of each lane: accumulators, A, B, scales.
    **{
        name: "float d[4]; uint32_t a[4], b[2]; const uint32_t* w = x + 12 * i;"
        "for (int j = 0; j < 4; j++) { d[j] = __uint_as_float(w[j]); a[j] = w[4 + j]; }"
        f"b[0] = w[8]; b[1] = w[9]; ptx::{call};"
        "for (int j = 0; j < 4; j++) ((float*)y)[4 * i + j] = d[j];"
        for name, call in {
            "mma_f16": "mma_m16n8k16_f16(d, a, b)",
            "mma_bf16": "mma_m16n8k16_bf16(d, a, b)",
        }.items()
    },
}
TEXT = word_kernels(KERNELS)
FP4 = {
    f"mma_e2m1_{a}{b}": KERNELS["mma_f16"].replace(
        "mma_m16n8k16_f16(d, a, b)", f"mma_m16n8k64_e2m1<{a}, {b}>(d, a, b, w[10], w[11])"
    )
    for a in range(2)
    for b in range(4)
}
FP4_TEXT = word_kernels(FP4)


@pytest.fixture(scope="module")
def emulate(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(session_folder(tmp_path_factory))


def run(emulate: Emulator, name: str, x: np.ndarray, y_words: int) -> np.ndarray:
    fp4_mma = name in FP4
    text = FP4_TEXT if fp4_mma else TEXT
    return run_words(emulate, text, name, x, y_words=y_words, fp4_mma=fp4_mma)


def test_warp_operations_are_those_of_the_cuda_guide(emulate: Emulator) -> None:
    i = np.arange(32)
    place = i % 16
    result = run(emulate, "warp", i.astype(np.uint32), 256).reshape(32, 8)
    np.testing.assert_array_equal(result[:, 0], i // 8 * 8 + (i + 5) % 8)
    np.testing.assert_array_equal(result[:, 1], i ^ 9)
    np.testing.assert_array_equal(result[:, 2], np.where(place >= 3, i - 3, i))
    np.testing.assert_array_equal(result[:, 3], np.where(place < 13, i + 3, i))
    assert set(result[:, 4]) == {0xAAAAAAAA}
    np.testing.assert_array_equal(result[:, 5:], np.tile([3, 11, 1], (32, 1)))


def test_atomics_and_reductions(emulate: Emulator) -> None:
    result = run(emulate, "atomics", np.arange(32, dtype=np.uint32), 32)
    assert result[:2].tolist() == [496, 3]
    words = np.random.default_rng(1).integers(0, 2**32, 32, np.uint32)
    assert set(run(emulate, "largest", words, 32)) == {words.max()}


def test_ldmatrix_hands_out_rows(emulate: Emulator) -> None:
    words = np.arange(128, dtype=np.uint32)
    tiles = words.reshape(4, 32)  # word 4 row + column of a tile goes to lane of that number
    expected = np.concatenate([tiles, tiles[:2]]).T
    result = run(emulate, "ldmatrix", words, 192).reshape(32, 6)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), bfloat16()], ids=["f16", "bf16"])
def test_matrix_instruction_is_a_product(emulate: Emulator, dtype: np.dtype) -> None:
    rng = np.random.default_rng(3)
    a, b, c = (rng.integers(-8, 9, s).astype(np.float32) for s in [(16, 16), (16, 8), (16, 8)])
    g, t = np.divmod(np.arange(32), 4)
    words = np.zeros((32, 12), np.uint32)
    fragment = np.empty((32, 2), dtype)
    for r in range(6):
        for half in range(2):
            k = 2 * t + half + (r // 2 * 8 if r < 4 else r % 2 * 8)
            fragment[:, half] = a[g + r % 2 * 8, k] if r < 4 else b[k, g]
        words[:, 4 + r] = fragment.view(np.uint32)[:, 0]
    index = [(g + v // 2 * 8, 2 * t + v % 2) for v in range(4)]
    words[:, :4] = np.stack([c[i] for i in index], 1).view(np.uint32)
    name = "mma_f16" if dtype == np.float16 else "mma_bf16"
    result = run(emulate, name, words, 128).view(np.float32).reshape(32, 4)
    np.testing.assert_array_equal(result, np.stack([(a @ b + c)[i] for i in index], 1))


@pytest.mark.parametrize("selectors", [(a, b) for a in range(2) for b in range(4)])
def test_fp4_instruction_follows_the_fragment_tables(
    emulate: Emulator, selectors: tuple[int, int]
) -> None:
    tables = json.loads((HERE / "data" / "mma_m16n8k64_fragments.json").read_text())["fragments"]
    place = {name: tuple(np.moveaxis(np.array(table), 2, 0)) for name, table in tables.items()}
    rng = np.random.default_rng(4)
    codes = {"A": rng.integers(0, 16, (16, 64)), "B": rng.integers(0, 16, (8, 64))}
    # Scales 0.5 to 3.5 keep every sum exact; lanes outside the selector hold NaN.
    scales = {"A": rng.integers(0x30, 0x47, (16, 4)), "B": rng.integers(0x30, 0x47, (8, 4))}
    words = np.zeros((32, 12), np.uint32)
    lane = np.arange(32)
    chosen = {"A": lane % 4 // 2 == selectors[0], "B": lane % 4 == selectors[1]}
    for name, first, count in (("A", 4, 4), ("B", 8, 2)):
        nibbles = codes[name][place[name]].reshape(32, count, 8).astype(np.uint32)
        words[:, first : first + count] = (nibbles << np.arange(0, 32, 4, np.uint32)).sum(2)
        row, k = place[f"scale_{name}"]
        held = np.where(chosen[name][:, None], scales[name][row, k // 16], 0x7F).astype(np.uint8)
        words[:, 10 if name == "A" else 11] = held.view(np.uint32)[:, 0]
    a, b = (
        e2m1_decode(codes[n].astype(np.uint8))
        * e4m3_decode(scales[n].astype(np.uint8)).repeat(16, axis=1)
        for n in "AB"
    )
    result = run(emulate, f"mma_e2m1_{selectors[0]}{selectors[1]}", words, 128)
    np.testing.assert_array_equal(result.view(np.float32).reshape(32, 4), (a @ b.T)[place["C"]])
