"""Quantize a real activation matrix to NVFP4, look at size and error, and compare both sides.

    python quantize_a_matrix.py [picture.png]

With a file name the errors, scales and codes are drawn too (needs matplotlib).
"""

from __future__ import annotations

import sys
from importlib.resources import files

import numpy as np

import nvfp4cupy as nv
from nvfp4cupy.arrays import missing_gpu
from nvfp4cupy.checkpoint import Checkpoint
from nvfp4cupy.formats import ROUNDINGS, e4m3_decode

DATA = files("nvfp4cupy") / "data" / "minilm_ffn_layer0.safetensors"


def compare_rounding_rules(x: np.ndarray) -> None:
    exact = x.astype(np.float64)
    errors = {}
    for rounding in ROUNDINGS:
        for search in (0, 2):
            codes, scales, gsa = nv.amax_quantize_nvfp4(x, rounding=rounding, scale_search=search)
            y = nv.dequantize_nvfp4(codes, scales, gsa, dtype="float32")
            error = np.linalg.norm(y - exact) / np.linalg.norm(exact)
            print(f"{rounding:13} scale_search={search}  relative error {error:.4f}")
            errors[rounding, search] = error
    assert errors["nearest_even", 0] < errors["half_step", 0]  # half_step is biased downwards
    assert all(errors[rounding, 2] < errors[rounding, 0] for rounding in ROUNDINGS)


def main() -> None:
    with Checkpoint.open(str(DATA)) as checkpoint:
        x = checkpoint.tensor("down_proj.input")  # bfloat16, 221 tokens
    compare_rounding_rules(x)

    codes, scales, gsa = nv.amax_quantize_nvfp4(x)
    bits = 8 * (codes.nbytes + scales.nbytes + gsa.nbytes) / x.size
    print(f"{x.nbytes:,} bytes become {x.size * bits / 8:,.0f}: {bits:.2f} bits per value")
    assert bits < 4.6

    # half_step turns 5.25 into 4, its largest error in units of the scale; the codes above 6 lie
    # within 6/16, because the E4M3 scale is at most 1/16 off. float32 adds a little.
    y = nv.dequantize_nvfp4(codes, scales, gsa, dtype="float32")
    step = np.repeat(e4m3_decode(scales).astype(np.float64), 16, axis=1) * gsa[:, None]
    assert (np.abs(y - x.astype(np.float64)) <= 1.25 * step * (1 + 2.0**-20)).all()

    if reason := missing_gpu():
        print(f"the kernels were not run: {reason}")
    else:
        import cupy

        on_gpu = nv.amax_quantize_nvfp4(cupy.asarray(x))
        for got, expected in zip(on_gpu, (codes, scales, gsa), strict=True):
            assert got.get().tobytes() == expected.tobytes()
        print("the kernel gives the same bytes")

    if len(sys.argv) > 1:
        from nvfp4cupy import plot

        plot.overview(x, codes, scales, gsa).savefig(sys.argv[1], dpi=120)
        print(f"{sys.argv[1]} shows where the errors are")


if __name__ == "__main__":
    main()
