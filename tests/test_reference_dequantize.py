from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden import assert_bytes_equal

from nvfp4cupy import formats, layouts, reference


def every_pair() -> tuple[Any, Any]:
    """All 16 codes under each of the 256 scale bytes: codes (256, 8), scales (256, 1)."""
    codes = formats.pack_codes(np.tile(np.arange(16, dtype=np.uint8), (256, 1)))
    return codes, np.arange(256, dtype=np.uint8)[:, None]


def products() -> Any:
    codes = np.arange(16, dtype=np.uint8)
    scales = np.arange(256, dtype=np.uint8)[:, None]
    return formats.e2m1_decode(codes) * formats.e4m3_decode(scales)


def test_every_code_and_scale_decodes_to_its_exact_product() -> None:
    y = reference.dequantize_nvfp4(*every_pair(), 1.0, dtype="float32")
    finite = ~np.isnan(products())
    assert (finite.sum(), y.dtype) == (254 * 16, np.float32)
    np.testing.assert_array_equal(y[finite], products()[finite])
    assert (y.view(np.uint32)[~finite] == 0x7FFFFFFF).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("gsa", [1.0, 1e-5, 3e4, 1e-38, -2.0])
def test_results_are_rounded_once_more_to_the_output_type(dtype: Any, gsa: float) -> None:
    y = reference.dequantize_nvfp4(*every_pair(), gsa, dtype=dtype)
    wide = reference.dequantize_nvfp4(*every_pair(), gsa, dtype="float32")
    expected = np.full(wide.shape, 0x7FFF, np.uint16)
    ok = ~np.isnan(wide)
    with np.errstate(over="ignore"):
        narrow = wide.astype(formats.bfloat16() if dtype == "bfloat16" else np.float16)
    expected[ok] = narrow.view(np.uint16)[ok]
    assert_bytes_equal(y.view(np.uint16), expected)


def test_the_product_with_gsa_is_one_float32_product_flushed() -> None:
    gsa = np.exp2(np.random.default_rng(0).uniform(-140, 120, 256)).astype(np.float32)
    y = reference.dequantize_nvfp4(*every_pair(), gsa, dtype="float32")
    kept = np.where(gsa < 2.0**-126, 0, gsa).astype(np.float64)
    expected = formats.round_flushed(products().astype(np.float64) * kept[:, None])
    ok = ~np.isnan(expected)
    assert_bytes_equal(y[ok], expected[ok])


def test_an_infinite_gsa_gives_nan_for_zero_and_infinity_for_the_rest() -> None:
    codes = np.array([[0x10] + [0x22] * 7], np.uint8)
    y = reference.dequantize_nvfp4(codes, np.array([[0x38]], np.uint8), np.inf)
    assert list(y.view(np.uint16)[0, :3]) == [0x7FFF, 0x7F80, 0x7F80]


def test_both_scale_layouts_and_a_scalar_or_a_vector_give_the_same() -> None:
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 256, (130, 40), dtype=np.uint8)
    scales = rng.integers(0, 0x7F, (130, 5), dtype=np.uint8)
    expected = reference.dequantize_nvfp4(codes, scales, 0.3)
    vector = np.full(130, 0.3, np.float32)
    assert_bytes_equal(reference.dequantize_nvfp4(codes, scales, vector), expected)
    swizzled = layouts.swizzle_scales(scales)
    got = reference.dequantize_nvfp4(codes, swizzled, np.float32(0.3), scale_layout="128x4")
    assert_bytes_equal(got, expected)


def test_shapes_and_types_that_do_not_fit_are_refused() -> None:
    codes, scales = np.zeros((2, 8), np.uint8), np.zeros((2, 1), np.uint8)
    with pytest.raises(ValueError, match=r"scales must have shape \(128, 4\), got \(2, 1\)"):
        reference.dequantize_nvfp4(codes, scales, 1.0, scale_layout="128x4")
    with pytest.raises(ValueError, match=r"multiple of 8 columns, got shape \(2, 4\)"):
        reference.dequantize_nvfp4(codes[:, :4], scales, 1.0)
    with pytest.raises(ValueError, match=r"gsa must be a number or have shape \(2,\), got \(3,\)"):
        reference.dequantize_nvfp4(codes, scales, np.ones(3, np.float32))
    with pytest.raises(ValueError, match="dtype must be one of bfloat16, float16, float32"):
        reference.dequantize_nvfp4(codes, scales, 1.0, dtype="float64")  # type: ignore[arg-type]
