"""Give torch tensors to nvfp4cupy and take its results back, without copies.

Neither package imports the other: GPU tensors pass through DLPack. NumPy has no bfloat16 that
DLPack knows, so tensors on the CPU pass as raw bits.
"""

from __future__ import annotations

import sys

import numpy as np

import nvfp4cupy as nv
from nvfp4cupy.arrays import missing_gpu


def main() -> None:
    try:
        import torch
    except ImportError:
        print("torch is not installed: nothing to show (pip install torch)")
        sys.exit(0)

    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    bits = x.view(torch.int16).numpy().view(np.uint16)
    codes, scales, gsa = nv.amax_quantize_nvfp4(bits, dtype="bfloat16")
    y = torch.from_numpy(nv.dequantize_nvfp4(codes, scales, gsa, dtype="float32"))
    error = float((y - x.float()).norm() / x.float().norm())
    print(f"CPU tensor as raw bits: relative error {error:.3f}")
    assert error < 0.12

    if (reason := missing_gpu()) or not torch.cuda.is_available():
        print(f"GPU tensors were not tried: {reason or 'torch sees no GPU'}")
        return
    tensor = x.cuda()
    # The current stream of torch and that of CuPy are two: work is ordered by giving torch's.
    results = nv.amax_quantize_nvfp4(tensor, stream=torch.cuda.current_stream())
    tensors = [torch.from_dlpack(result) for result in results]
    for name, got, right in zip(
        ("codes", "scales", "gsa"), tensors, (codes, scales, gsa), strict=True
    ):
        assert torch.equal(got.cpu(), torch.from_numpy(right)), name
    out = torch.empty(64, 256, dtype=torch.bfloat16, device="cuda")
    nv.dequantize_nvfp4(*tensors, out=out, stream=torch.cuda.current_stream())
    assert torch.equal(out.cpu().float(), y.to(torch.bfloat16).float())
    print("GPU tensors in and out: the same bytes")


if __name__ == "__main__":
    main()
