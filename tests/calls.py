"""Small calls of the public functions, for tests that hold for all of them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

import nvfp4cupy as nv
from nvfp4cupy import reference

BF16 = ml_dtypes.bfloat16


def bf16(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(BF16)


X = bf16(5, 80)
GSA = reference.amax_gsa(X)
CODES, SCALES = reference.quantize_nvfp4_from_buffer(X, GSA)
W = bf16(40, 128, seed=1)
PACKED, W_SCALES = reference.quantize_nvfp4(W, 0.01)
BLOCKS = reference.nvfp4_mmq_repack(PACKED, W_SCALES)
ACT = reference.nvfp4_mmq_quantize_act(bf16(7, 128, seed=2))
GATE, UP = bf16(3, 300, seed=3), bf16(3, 300, seed=4)

# function, positional arguments, keyword arguments
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]

# Every one that takes out=.
CALLS: dict[str, Call] = {
    "amax_gsa": (nv.amax_gsa, (X,), {}),
    "quantize_nvfp4": (nv.quantize_nvfp4, (X, 0.25), {}),
    "quantize_nvfp4_from_buffer": (nv.quantize_nvfp4_from_buffer, (X, GSA), {}),
    "amax_quantize_nvfp4": (nv.amax_quantize_nvfp4, (X,), {"scale_layout": "128x4"}),
    "deinterleave": (nv.deinterleave_quantize_from_buffer, (X, 32, 8, GSA), {}),
    "dequantize_nvfp4": (nv.dequantize_nvfp4, (CODES, SCALES, GSA), {"dtype": "float16"}),
    "nvfp4_mmq_repack": (nv.nvfp4_mmq_repack, (PACKED, W_SCALES), {}),
    "nvfp4_mmq_unpack": (nv.nvfp4_mmq_unpack, (BLOCKS,), {}),
    "nvfp4_mmq_quantize_act": (nv.nvfp4_mmq_quantize_act, (X,), {}),
    "nvfp4_mmq_quantize_act rows": (nv.nvfp4_mmq_quantize_act, (X,), {"row_scale": True}),
    "nvfp4_mmq_gemm": (nv.nvfp4_mmq_gemm, (ACT, BLOCKS), {"out_scale": 0.5}),
    "nvfp4_mmq_gemm_tiled": (nv.nvfp4_mmq_gemm_tiled, (ACT, BLOCKS), {"mmq_x": 16}),
    "nvfp4_w4a16_gemm": (nv.nvfp4_w4a16_gemm, (bf16(7, 128, seed=2), BLOCKS), {}),
    "nvfp4_silu_mul_quant": (nv.nvfp4_silu_mul_quant, (GATE, UP, 0.5, 2.0), {}),
    "nvfp4_silu_mul_quant rows": (
        nv.nvfp4_silu_mul_quant,
        (GATE, UP, 0.5, 2.0),
        {"row_scale": True},
    ),
    "nvfp4_silu_mul_scaled": (nv.nvfp4_silu_mul_scaled, (GATE, UP, 0.5, 2.0), {}),
}

# Those that overwrite their first argument: a test that lets them run copies it.
IN_PLACE: dict[str, Call] = {"nvfp4_scale_bf16": (nv.nvfp4_scale_bf16, (GATE, 2.0), {})}

EVERY = {**CALLS, **IN_PLACE}


def as_tuple(value: Any) -> tuple[np.ndarray, ...]:
    return value if isinstance(value, tuple) else (value,)


def poisoned(result: Any) -> tuple[np.ndarray, ...]:
    return tuple(
        np.full(r.shape, 0xFF, np.uint8) if r.dtype == np.uint8 else np.full_like(r, np.nan)
        for r in as_tuple(result)
    )
