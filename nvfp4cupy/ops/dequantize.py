"""From linear NVFP4 back to floats."""

from __future__ import annotations

from typing import Any

from nvfp4cupy import arrays, reference
from nvfp4cupy.launchers import quantize as launchers
from nvfp4cupy.layouts import ScaleLayout
from nvfp4cupy.ops import checks

__all__ = ["dequantize_nvfp4"]


@arrays.runs_on_stream
def dequantize_nvfp4(
    codes: Any,
    scales: Any,
    gsa: Any,
    *,
    dtype: Any = "bfloat16",
    scale_layout: ScaleLayout = "linear",
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Turn NVFP4 codes and scales back into floats.

    ``y[m, n] = e2m1(codes[m, n]) * e4m3(scales[m, n // 16]) * gsa[m]``: the first product is
    exact, the second is rounded to float32, then to the output type. A scale byte 0x7F gives
    NaN; the top bit of a scale byte is ignored.

    Args:
        codes: uint8 ``(M, N // 2)``, element ``2j`` in the low nibble of byte ``j``.
        scales: uint8 E4M3 bytes (or float8_e4m3fn) ``(M, N // 16)``, or swizzled.
        gsa: decode scale: float32 ``(M,)`` or ``(1,)``, or one number.
        dtype: of the result: ``"bfloat16"``, ``"float16"`` or ``"float32"``.
        scale_layout: ``"linear"`` or ``"128x4"``.
        out: ``(M, N)`` of that dtype to write to; allocated otherwise.
        stream: CuPy stream to run on; the current one otherwise.

    Returns:
        ``(M, N)`` of ``dtype``.

    Raises:
        TypeError: a dtype is none of those above.
        ValueError: a scalar gsa is not finite and at least 2^-126, or a shape, option, stride or
            device does not fit; nothing is written.

    Kernel: ``kernels/dequantize_nvfp4.cu``.
    """
    checks.check_options(scale_layout=scale_layout)
    codes, scales = checks.codes_and_scales(codes, scales, scale_layout=scale_layout)
    kind = checks.output_dtype(dtype)
    rows, columns = codes.shape[0], codes.shape[1] * 2
    if arrays.is_gpu(gsa) and gsa.ndim == 0:
        gsa = gsa.reshape(1)  # reading it would wait for the GPU
    is_array = getattr(gsa, "ndim", 0) != 0
    if is_array:
        gsa = checks.vector("gsa", gsa, 1 if gsa.shape == (1,) else rows, codes=codes)
    else:
        gsa = checks.positive_float32("gsa", gsa)
    with arrays.context(codes, stream):
        y = arrays.output("out", out, (rows, columns), kind, codes)
        if out is not None:
            held = {"gsa": gsa} if is_array else {}
            arrays.check_overlap("out", y, codes=codes, scales=scales, **held)
        if arrays.is_gpu(codes):
            if not is_array:
                gsa = arrays.uploaded("gsa", gsa, codes)
            launchers.Dequantize()(codes, scales, gsa, y, scale_layout=scale_layout)
        else:
            y[...] = reference.dequantize_nvfp4(
                codes, scales, _for_reference(gsa), dtype=kind.name, scale_layout=scale_layout
            )
    return y


def _for_reference(gsa: Any) -> Any:
    return float(gsa[0]) if getattr(gsa, "shape", None) == (1,) else gsa
