"""The emulator's stand-ins for CUDA and PTX give what NumPy and the fragment tables say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from emulator import Emulator, missing_emulator, session_folder
from emulator.checks import run_words, word_kernels

from nvfp4cupy import sources
from nvfp4cupy.formats import bfloat16, e4m3_decode, e4m3_encode, round_flushed

pytestmark = pytest.mark.skipif(bool(missing_emulator()), reason=missing_emulator())

HERE = Path(__file__).parent
# Functions of kernels/ptx.cuh that the CPU header does without.
WITHOUT_BODY = {"shared_address": "only other functions of the header take an address of 32 bits"}

KERNELS = {
    "f16_decode": "((float*)y)[i] = ptx::f16_to_float(x[i]);",
    "f16_encode": "y[i] = ptx::float_to_f16(__uint_as_float(x[i]));",
    "bf16_encode": "y[i] = ptx::float_to_bf16(__uint_as_float(x[i]));",
    "bf16x2_encode": "y[i] = ptx::floats_to_bf16x2(__uint_as_float(x[i]), 1.0f);",
    "f16_product": "y[i] = ptx::mul_f16x2(x[i], x[i] >> 16 | x[i] << 16);",
    "f16_scaled": "y[i] = ptx::mul_f16x2_by_magnitude<1>(x[i] & 0xFFFF, x[i]) & 0xFFFF;",
    "bf16_product": "y[i] = ptx::mul_bf16x2(x[i], x[i] >> 16 | x[i] << 16);",
    "bf16_scaled": "y[i] = ptx::mul_bf16x2_by_half<1>(x[i], x[i]);",
    "f16_fma": "y[i] = ptx::fma_f16x2_by_half<1>(x[i], x[i ^ 1], x[i ^ 2]);",
    "f16_minimum": "y[i] = ptx::min_magnitude_f16x2(x[i], x[i ^ 1]);",
    "f16_pair": "float a, b; ptx::f16x2_to_floats(x[i], a, b); y[i] = ptx::floats_to_f16x2(b, a);",
    "f16_truncated": "y[i] = ptx::floats_to_f16x2_toward_zero(__uint_as_float(x[i]), 1.0f);",
    "add_min": "y[i] = ptx::add_min_u16x2(x[i], x[i ^ 1], x[i ^ 2]);",
    "add_max": "y[i] = ptx::add_max_s16x2(x[i], x[i ^ 1], x[i ^ 2]);",
    "e4m3_decode": "y[i] = ptx::e4m3x2_to_f16x2(x[i]);",
    "permute": "y[i] = ptx::byte_permute(0x83828100, 0x07868504, x[i]);",
    "selected": "y[i] = ptx::bit_select(x[i], 0x01234567, 0x89ABCDEF);",
    "product": "((float*)y)[i] = __fmul_rn(__uint_as_float(x[i]), 0.5f);",
    "fused": "const float f = __uint_as_float(x[i]); ((float*)y)[i] = __fmaf_rn(f, f, -1.0f);",
    "quotient": "((float*)y)[i] = __fdiv_rn(1.0f, __uint_as_float(x[i]));",
    "reciprocal": "((float*)y)[i] = ptx::reciprocal_approximate(__uint_as_float(x[i]));",
    "maximum": "((float*)y)[i] = fmaxf(__uint_as_float(x[i]), 0.0f);",
    "minimum": "((float*)y)[i] = fminf(__uint_as_float(x[i]), -0.0f);",
    "max_bf16": "y[i] = ptx::max_nan_bf16x2(x[i], x[i ^ 1]);",
    "min_bf16": "y[i] = ptx::min_nan_bf16x2(x[i], x[i ^ 1]);",
    "max_f16": "y[i] = ptx::max_nan_f16x2(x[i], x[i ^ 1]);",
    "min_f16": "y[i] = ptx::min_nan_f16x2(x[i], x[i ^ 1]);",
    "min_s16": "y[i] = ptx::min_s16x2(x[i], x[i ^ 1]);",
    "max_nan": "((float*)y)[i] = ptx::max_nan(__uint_as_float(x[i]), -1.0f);",
    "e4m3_encode": "const float f = __uint_as_float(x[i]); y[i] = ptx::join_halves(ptx::"
    "floats_to_e4m3x2(f, 1.0f), ptx::floats_to_e4m3x2(-f, 2.0f));",
    "streaming": "if (i < N / 4) ((uint4*)y)[i] = ptx::load_streaming((const uint4*)x + i);",
}
TEXT = word_kernels(KERNELS)


@pytest.fixture(scope="module")
def emulate(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(session_folder(tmp_path_factory))


def run(emulate: Emulator, name: str, x: np.ndarray) -> np.ndarray:
    return run_words(emulate, TEXT, name, x)


def some_floats() -> np.ndarray:
    """Every sign and exponent with mantissas at and around the ties of shorter formats."""
    mantissas = [0, 1, 0xFFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0x18000, 0x7FFFFF]
    bits = np.arange(512, dtype=np.uint32)[:, None] << 23 | np.array(mantissas, np.uint32)
    return bits.ravel().view(np.float32)


def test_every_ptx_function_has_a_body() -> None:
    declared = re.compile(r"^(?:__device__ __forceinline__|inline) [\w ]+?[ &*]+(\w+)\(", re.M)
    wanted = set(declared.findall(sources.find("ptx.cuh").read_text()))
    ours = set(declared.findall((HERE / "emulator" / "ptx_cpu.cuh").read_text()))
    assert len(wanted) > 15
    assert wanted - ours == set(WITHOUT_BODY)


def test_float16_is_numpys(emulate: Emulator) -> None:
    bits = np.arange(65536, dtype=np.uint32)
    halves = bits.astype(np.uint16).view(np.float16)
    np.testing.assert_array_equal(run(emulate, "f16_decode", bits).view(np.float32), halves)
    floats = some_floats()
    with np.errstate(over="ignore"):
        expected = np.where(np.isnan(floats), 0x7FFF, floats.astype(np.float16).view(np.uint16))
    np.testing.assert_array_equal(run(emulate, "f16_encode", floats), expected)


def test_bfloat16_is_ml_dtypes(emulate: Emulator) -> None:
    floats = some_floats()
    with np.errstate(invalid="ignore"):
        bits = floats.astype(bfloat16()).view(np.uint16)
    expected = np.where(np.isnan(floats), 0x7FFF, bits).astype(np.uint32)
    np.testing.assert_array_equal(run(emulate, "bf16_encode", floats), expected)
    np.testing.assert_array_equal(run(emulate, "bf16x2_encode", floats), expected | 0x3F800000)


def test_float16_products_are_numpys(emulate: Emulator) -> None:
    words = np.random.default_rng(1).integers(0, 2**32, 4096, dtype=np.uint32)
    pairs = words.view(np.uint16).view(np.float16).reshape(-1, 2)
    with np.errstate(all="ignore"):
        expected = pairs * pairs[:, ::-1]
        scaled = pairs[:, 0] * np.abs(pairs[:, 1])
    result = run(emulate, "f16_product", words).view(np.float16).reshape(-1, 2)
    np.testing.assert_array_equal(result, expected)
    result = run(emulate, "f16_scaled", words).astype(np.uint16).view(np.float16)
    np.testing.assert_array_equal(result, scaled)


def test_float16_pairs_are_numpys(emulate: Emulator) -> None:
    words = np.random.default_rng(9).integers(0, 2**32, 8192, dtype=np.uint32)
    a, b, c = (words[np.arange(8192) ^ i].view(np.float16).reshape(-1, 2) for i in range(3))
    with np.errstate(all="ignore"):
        fused = a.astype(np.float64) * b[:, 1:] + c  # exact where float16 holds the result
        expected = np.where(np.isnan(fused), 0x7FFF, fused.astype(np.float16).view(np.uint16))
    result = run(emulate, "f16_fma", words).view(np.uint16).reshape(-1, 2)
    np.testing.assert_array_equal(result, expected)
    result = run(emulate, "f16_minimum", words).view(np.float16).reshape(-1, 2)
    np.testing.assert_array_equal(result, np.fmin(np.abs(a), b))
    result = run(emulate, "f16_pair", words).view(np.float16).reshape(-1, 2)
    np.testing.assert_array_equal(result, a[:, ::-1])
    floats = some_floats()
    truncated = run(emulate, "f16_truncated", floats).view(np.float16)[::2]
    with np.errstate(all="ignore"):
        nearest = floats.astype(np.float16)
        too_far = np.abs(nearest) > np.abs(floats)
        expected = np.where(too_far, np.nextafter(nearest, np.float16(0)), nearest)
    np.testing.assert_array_equal(truncated, expected)


def test_bfloat16_products_are_exact_once_rounded(emulate: Emulator) -> None:
    words = np.random.default_rng(8).integers(0, 2**32, 8192, dtype=np.uint32)
    words[:4096] = words[:4096] & 0x83FF83FF | 0x3C000000  # about 1 times what may be subnormal
    with np.errstate(invalid="ignore"):
        pairs = words.view(np.uint16).view(bfloat16()).reshape(-1, 2).astype(np.float64)
    for name, factors in (
        ("bf16_product", pairs[:, ::-1]),
        ("bf16_scaled", pairs[:, 1:]),
    ):
        with np.errstate(all="ignore"):
            products = pairs * factors
            subnormal = np.rint(products * 2.0**133) * 2.0**-133
            products = np.where(np.abs(products) < 2.0**-126, subnormal, products)
            rounded = products.astype(np.float32).astype(bfloat16()).view(np.uint16)
        expected = np.where(np.isnan(products), 0x7FFF, rounded)
        result = run(emulate, name, words).view(np.uint16).reshape(-1, 2)
        np.testing.assert_array_equal(result, expected)


def test_bits_are_moved_as_ptx_says(emulate: Emulator) -> None:
    codes = np.arange(256, dtype=np.uint32) * 0x101
    pairs = run(emulate, "e4m3_decode", codes).view(np.float16).reshape(-1, 2)
    expected = e4m3_decode(np.arange(128, dtype=np.uint8))
    expected = np.concatenate([expected, -expected])
    np.testing.assert_array_equal(pairs, np.stack([expected, expected], 1))
    words = np.random.default_rng(2).integers(0, 2**32, 256, dtype=np.uint32)
    source = bytes.fromhex("0081828304858607")
    nibbles = words[:, None] >> np.arange(0, 32, 4)[None, :4] & 15
    picked = np.frombuffer(source, np.uint8)[nibbles & 7]
    picked = np.where(nibbles & 8, np.where(picked & 0x80, 0xFF, 0), picked).astype(np.uint8)
    np.testing.assert_array_equal(run(emulate, "permute", words), picked.view(np.uint32)[:, 0])
    selected = (words & 0x01234567) | (~words & 0x89ABCDEF)
    np.testing.assert_array_equal(run(emulate, "selected", words), selected)
    np.testing.assert_array_equal(run(emulate, "streaming", words), words)


def test_arithmetic_is_ieee_single_with_flushed_subnormals(emulate: Emulator) -> None:
    x = some_floats()
    tiny = np.finfo(np.float32).tiny
    with np.errstate(all="ignore"):
        flushed = np.where(np.abs(x) < tiny, np.copysign(0, x), x).astype(np.float64)
        exact = {
            "product": flushed * 0.5,
            "fused": flushed * flushed - 1,
            "quotient": 1 / flushed,
            "max_nan": np.maximum(flushed, -1),
            "maximum": np.where(flushed > 0, flushed, 0.0),
            "minimum": np.where(flushed < 0, flushed, -0.0),
        }
        for name, value in exact.items():
            expected = round_flushed(value)
            result = run(emulate, name, x).view(np.float32)
            np.testing.assert_array_equal(result, expected, err_msg=name)
            zero = expected == 0
            np.testing.assert_array_equal(np.signbit(result[zero]), np.signbit(expected[zero]))


def test_approximate_reciprocal_is_one_unit_off(emulate: Emulator) -> None:
    x = np.random.default_rng(5).uniform(0.5, 3, 1024).astype(np.float32)
    result = run(emulate, "reciprocal", x).astype(np.int64)
    off = result - (np.float32(1) / x).view(np.uint32)
    assert set(off) == {-1, 0, 1}


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_pairs_are_compared_as_numpy_does(emulate: Emulator, name: str) -> None:
    words = np.random.default_rng(6).integers(0, 2**32, 4096, dtype=np.uint32)
    words[:64:2], words[1:64:2] = 0x80000000, 0x00008000  # zeros of both signs
    dtype = bfloat16() if name == "bf16" else np.dtype(np.float16)
    pairs = words.view(np.uint16)
    x, y = (p.view(dtype).astype(np.float32) for p in (pairs, _swapped(words).view(np.uint16)))
    for kind, both in (("max", np.maximum(x, y)), ("min", np.minimum(x, y))):
        with np.errstate(invalid="ignore"):
            bits = both.astype(dtype).view(np.uint16)
        expected = np.where(np.isnan(both), 0x7FFF, bits)
        zero = (x == 0) & (y == 0)
        signs = np.signbit(x) & np.signbit(y) if kind == "max" else np.signbit(x) | np.signbit(y)
        expected = np.where(zero, signs * 0x8000, expected)
        result = run(emulate, f"{kind}_{name}", words).view(np.uint16)
        np.testing.assert_array_equal(result, expected)


def _swapped(words: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(words.reshape(-1, 2)[:, ::-1]).ravel()


def test_integer_pairs_and_e4m3_are_numpys(emulate: Emulator) -> None:
    words = np.random.default_rng(7).integers(0, 2**32, 4096, dtype=np.uint32)
    for name, dtype, pick in (
        ("add_min", np.uint16, np.minimum),
        ("add_max", np.int16, np.maximum),
    ):
        a, b, c = (words[np.arange(4096) ^ i].view(dtype) for i in range(3))
        np.testing.assert_array_equal(run(emulate, name, words).view(dtype), pick(a + b, c))
    expected = np.minimum(words.view(np.int16), _swapped(words).view(np.int16))
    np.testing.assert_array_equal(run(emulate, "min_s16", words).view(np.int16), expected)
    floats = some_floats()
    magnitude = np.where(np.isnan(floats), 0x7F, e4m3_encode(np.abs(floats)))
    low = magnitude | np.where(np.signbit(floats) & ~np.isnan(floats), 0x80, 0)
    high = magnitude | np.where(np.signbit(floats) | np.isnan(floats), 0, 0x80)
    result = run(emulate, "e4m3_encode", floats).view(np.uint8).reshape(-1, 4)
    one, two = e4m3_encode(np.array([1, 2], np.float32))
    np.testing.assert_array_equal(result[:, [1, 3]], np.tile([one, two], (floats.size, 1)))
    np.testing.assert_array_equal(result[:, [0, 2]], np.stack([low, high], 1))
