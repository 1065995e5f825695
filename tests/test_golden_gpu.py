"""The kernels give the golden bytes, and the reference's on every option, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden import GemmCase, SeedCase, assert_bytes_equal, gemm_cases, seed_cases
from plans import QUANTIZER_OPTIONS

import nvfp4cupy as nv
from nvfp4cupy import formats, reference
from nvfp4cupy.layouts import MMQ_TILES

pytestmark = pytest.mark.gpu

BF16 = formats.bfloat16()
DTYPES = {"bfloat16": BF16, "float16": np.float16, "float32": np.float32}
DEINTERLEAVE = "s1_deinterleave_g"


def gpu(value: Any) -> Any:
    import cupy

    return cupy.asarray(value) if isinstance(value, np.ndarray) else value


def hostile(dtype: Any, rows: int = 257, columns: int = 1040) -> np.ndarray:
    """Return values of every magnitude, with zeros, near-ties and what is not finite."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((rows, columns)) * 2.0 ** rng.integers(-140, 100, (rows, 1))
    x[::3] = rng.choice([0.25, 0.75, 1.25, 1.75, 2.5, 2.75, 3.5, 3.75, 5, 5.25, 6], x[::3].shape)
    x[1::5, ::7] *= -1
    x[2::9, ::16] = 0
    x[5, 3], x[6, columns // 2], x[7, -16:], x[8, ::16] = np.nan, np.inf, -np.inf, -np.nan
    x[9], x[10, 5] = 0, -0.0
    with np.errstate(over="ignore", invalid="ignore"):
        return formats.to_bfloat16(x.astype(np.float32)) if dtype is BF16 else x.astype(dtype)


@pytest.mark.parametrize("case", seed_cases("s1_"), ids=str)
def test_quantizers(case: SeedCase) -> None:
    x, gsa = gpu(case.inputs["x"]), gpu(case.inputs["gsa"])
    if case.name.startswith(DEINTERLEAVE):
        granularity = int(case.name.removeprefix(DEINTERLEAVE))
        got = nv.deinterleave_quantize_from_buffer(x, 256, granularity, gsa)
    else:
        got = nv.quantize_nvfp4_from_buffer(x, gsa)
    assert_bytes_equal(got[0], case.outputs[0], "codes")
    assert_bytes_equal(got[1], case.outputs[1], "scales")


@pytest.mark.parametrize("case", seed_cases("act_"), ids=str)
def test_quantize_act(case: SeedCase) -> None:
    blocks = nv.nvfp4_mmq_quantize_act(gpu(case.inputs["x"]))
    assert_bytes_equal(blocks.reshape(-1, 144), case.outputs[0], "block_fp4_mmq")


@pytest.mark.parametrize("case", seed_cases("silu_"), ids=str)
def test_silu(case: SeedCase) -> None:
    gate, up = gpu(case.inputs["gate"]), gpu(case.inputs["up"])
    factors = float(case.inputs["gate_scale"]), float(case.inputs["up_scale"])
    limit = 10.0 if case.name.endswith("clamp10") else None
    if case.name.startswith("silu_mul_scaled"):
        h = nv.nvfp4_silu_mul_scaled(gate, up, *factors, swiglu_limit=limit)
        assert_bytes_equal(h.get().view(np.uint16), case.outputs[0])
    else:
        blocks = nv.nvfp4_silu_mul_quant(gate, up, *factors, swiglu_limit=limit)
        assert_bytes_equal(blocks.reshape(-1, 144), case.outputs[0], "block_fp4_mmq")


@pytest.mark.parametrize("case", seed_cases("scale_bf16_"), ids=str)
def test_scale(case: SeedCase) -> None:
    data = nv.nvfp4_scale_bf16(gpu(case.inputs["x"]), float(case.inputs["scale"]))
    assert_bytes_equal(data.get().view(np.uint16), case.outputs[0])


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("tile", MMQ_TILES)
@pytest.mark.parametrize("case", gemm_cases(), ids=str)
def test_exact_products(case: GemmCase, tile: int, deterministic: bool) -> None:
    a, blocks = gpu(case.a_blocks), gpu(case.w_blocks)
    out = gpu(np.full((case.m, case.n), np.nan, BF16))
    options = {"allow_restream": True, "deterministic_kblocks": deterministic}
    nv.nvfp4_mmq_gemm_tiled(a, blocks, mmq_x=tile, out=out, **options)
    assert_bytes_equal(out.get().view(np.uint16), case.out.view(np.uint16))
    assert_bytes_equal(nv.nvfp4_mmq_repack(gpu(case.w_packed), gpu(case.w_scales)), case.w_blocks)


@pytest.mark.parametrize("options", QUANTIZER_OPTIONS, ids=str)
def test_every_option_of_the_quantizers(options: dict[str, Any]) -> None:
    options = dict(options)
    x = hostile(DTYPES[options.pop("dtype", "bfloat16")])
    codes, scales, gsa = nv.amax_quantize_nvfp4(gpu(x), **options)
    right = reference.amax_quantize_nvfp4(x, **options)
    assert_bytes_equal(gsa.get().view(np.uint8), right[2].view(np.uint8))
    assert_bytes_equal(codes, right[0])
    assert_bytes_equal(scales, right[1])
    decode = np.geomspace(2.0**-126, 2.0**60, x.shape[0]).astype(np.float32)
    got = nv.quantize_nvfp4_from_buffer(gpu(x), gpu(decode), **options)
    for g, r in zip(got, reference.quantize_nvfp4_from_buffer(x, decode, **options), strict=True):
        assert_bytes_equal(g, r)
    got = nv.quantize_nvfp4(gpu(x), 0.37, **options)
    for g, r in zip(got, reference.quantize_nvfp4(x, 0.37, **options), strict=True):
        assert_bytes_equal(g, r)
    got = nv.deinterleave_quantize_from_buffer(gpu(x), 512, 4, gpu(decode), **options)
    right = reference.deinterleave_quantize_from_buffer(x, 512, 4, decode, **options)
    for g, r in zip(got, right, strict=True):
        assert_bytes_equal(g, r)


@pytest.mark.parametrize("columns", [16, 48, 80, 1024, 2880, 5488, 16384, 70000 // 16 * 16])
def test_rows_of_every_length(columns: int) -> None:
    x = hostile(np.float32, 130, columns)
    got = nv.amax_quantize_nvfp4(gpu(x), scale_layout="128x4")
    for g, r in zip(got, reference.amax_quantize_nvfp4(x, scale_layout="128x4"), strict=True):
        assert_bytes_equal(g.get().view(np.uint8), r.view(np.uint8))
    y = nv.dequantize_nvfp4(*got, dtype="float32", scale_layout="128x4")
    host = [g.get() for g in got]
    right = reference.dequantize_nvfp4(*host, dtype="float32", scale_layout="128x4")
    assert_bytes_equal(y.get().view(np.uint8), right.view(np.uint8))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_dequantize_every_pair_of_bytes(dtype: str) -> None:
    codes = np.tile(np.arange(256, dtype=np.uint8), (256, 1)).reshape(256, 256)
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 32, axis=1)
    gsa = np.geomspace(2.0**-126, 2.0**100, 256).astype(np.float32)
    got = nv.dequantize_nvfp4(gpu(codes), gpu(scales), gpu(gsa), dtype=dtype)
    right = reference.dequantize_nvfp4(codes, scales, gsa, dtype=dtype)
    assert_bytes_equal(got.get().view(np.uint8), right.view(np.uint8))


@pytest.mark.parametrize("row_scale", [False, True])
@pytest.mark.parametrize("k", [1, 15, 16, 255, 256, 257, 640, 2049, 5120])
def test_activations_of_every_length(k: int, row_scale: bool) -> None:
    x = hostile(BF16, 67, k + 97)[:, :k]
    got = nv.nvfp4_mmq_quantize_act(gpu(np.ascontiguousarray(x)), row_scale=row_scale)
    right = reference.nvfp4_mmq_quantize_act(x, row_scale=row_scale)
    pairs = zip(got, right, strict=True) if row_scale else [(got, right)]
    for g, r in pairs:
        assert_bytes_equal(g.get().view(np.uint8), r.view(np.uint8))
    gate, up = gpu(np.ascontiguousarray(x)), gpu(hostile(BF16, 67, k + 97)[::-1, :k].copy())
    for rounded in (False, True):
        options = {"round_intermediate": rounded, "row_scale": row_scale, "swiglu_limit": 7.0}
        got = nv.nvfp4_silu_mul_quant(gate, up, 0.5, -2.0, **options)
        right = reference.nvfp4_silu_mul_quant(gate.get(), up.get(), 0.5, -2.0, **options)
        pairs = zip(got, right, strict=True) if row_scale else [(got, right)]
        for g, r in pairs:
            assert_bytes_equal(g.get().view(np.uint8), r.view(np.uint8))
    h = nv.nvfp4_silu_mul_scaled(gate, up, 0.5, -2.0, swiglu_limit=None)
    right = reference.nvfp4_silu_mul_scaled(gate.get(), up.get(), 0.5, -2.0, swiglu_limit=None)
    assert_bytes_equal(h.get().view(np.uint16), right.view(np.uint16))
