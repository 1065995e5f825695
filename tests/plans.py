"""Sample launches of every launcher: each entry, and each option at least once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nvfp4cupy.formats import ROUNDINGS
from nvfp4cupy.launch import LaunchConfig
from nvfp4cupy.launchers import mmq, quantize, swiglu
from nvfp4cupy.layouts import MMQ_TILES

# Bytes of shared memory that a block may have, by compute capability: CUDA C++ Programming Guide,
# "Technical Specifications per Compute Capability".
SHARED_MEM_LIMIT = {
    **dict.fromkeys(("sm_80",), 163 * 1024),
    **dict.fromkeys(("sm_86", "sm_89", "sm_120", "sm_121"), 99 * 1024),
    **dict.fromkeys(("sm_90", "sm_100", "sm_103"), 227 * 1024),
}

# Every value of every option, and all of them together.
QUANTIZER_OPTIONS: list[dict[str, Any]] = [
    *({"rounding": r, "scale_search": s} for r in ROUNDINGS for s in (0, 2)),
    {"dtype": "float16"},
    {"dtype": "float32"},
    {"scale_layout": "128x4"},
    {
        "dtype": "float32",
        "rounding": "nearest_even",
        "scale_search": 2,
        "scale_layout": "128x4",
    },
]


def all_plans() -> list[LaunchConfig]:
    """Return the sample launches."""
    return [*_quantizers(), *_mmq_operands(), *_gemms(), *_elementwise()]


def _quantizers() -> Iterator[LaunchConfig]:
    for dtype in ("bfloat16", "float16", "float32"):
        yield quantize.AmaxGsa.plan(m=7, n=80, dtype=dtype)
        yield quantize.FindNonfinite.plan(m=7, n=80, dtype=dtype)
        for layout in ("linear", "128x4"):
            yield quantize.Dequantize.plan(
                m=7, n=80, dtype=dtype, scale_layout=layout, gsa_stride=1
            )
    for options in QUANTIZER_OPTIONS:
        yield quantize.Quantize.plan(m=7, n=80, **options)
        yield quantize.QuantizeFromBuffer.plan(m=7, n=80, **options)
        yield quantize.DeinterleaveQuantizeFromBuffer.plan(
            m=7, n=160, intermediate=64, granularity=8, **options
        )
        yield quantize.AmaxQuantize.plan(m=7, n=80, **options)
    # Rows held in registers in every way, and one that is not.
    for columns in (1024, 8192, 16384, 20000, 2**20):
        yield quantize.AmaxQuantize.plan(m=7, n=columns)
        yield quantize.AmaxQuantize.plan(m=7, n=columns, scale_search=2, dtype="float32")


def _mmq_operands() -> Iterator[LaunchConfig]:
    yield mmq.MmqRepack.plan(n=5, k=192)
    yield mmq.MmqRepack.plan(n=5, k=192, nibble_order="high_first")
    yield mmq.MmqUnpack.plan(n=5, k=192)
    yield mmq.MmqQuantizeAct.plan(m=5, k=300)
    yield mmq.MmqQuantizeAct.plan(m=5, k=300, row_scale=True)


def _gemms() -> Iterator[LaunchConfig]:
    sizes = {"m": 5, "k": 320}
    for tile in MMQ_TILES:
        for n in (128, 129):
            for scaled in (False, True):
                yield mmq.MmqGemmTiled.plan(n=n, mmq_x=tile, scaled=scaled, **sizes)
                yield mmq.W4A16Gemm.plan(n=n, mmq_x=tile, scaled=scaled, **sizes)
    for tile in (MMQ_TILES[0], MMQ_TILES[-1]):
        for dtype in ("float16", "float32"):
            yield mmq.MmqGemmTiled.plan(n=128, mmq_x=tile, dtype=dtype, **sizes)
            yield mmq.W4A16Gemm.plan(n=128, mmq_x=tile, dtype=dtype, **sizes)
        yield mmq.MmqGemmTiled.plan(n=128, mmq_x=tile, deterministic_kblocks=True, **sizes)


def _elementwise() -> Iterator[LaunchConfig]:
    for limit in (10.0, 7.0, None):
        yield swiglu.SiluMulScaled.plan(total=300, swiglu_limit=limit)
        yield swiglu.SiluMulScaled.plan_wide(total=300, swiglu_limit=limit)
        yield swiglu.SiluMulQuant.plan_wide(m=5, k=300, swiglu_limit=limit, num_multiprocessors=132)
        for rounded in (False, True):
            for rows in (False, True):
                yield swiglu.SiluMulQuant.plan(
                    m=5, k=300, swiglu_limit=limit, round_intermediate=rounded, row_scale=rows
                )
    yield swiglu.ScaleBf16.plan(total=300)
    yield swiglu.ScaleBf16.plan_wide(total=300)
