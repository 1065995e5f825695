"""Compare another quantizer with this one byte by byte, and see the first difference.

The other quantizer here is a few lines of NumPy, right at first, then with a fault that is easy to
make. A kernel of yours takes its place: give its codes and scales as NumPy arrays (``.get()``).
"""

from __future__ import annotations

from importlib.resources import files

import ml_dtypes
import numpy as np

import nvfp4cupy as nv
from nvfp4cupy.checkpoint import Checkpoint
from nvfp4cupy.formats import e2m1_decode, e4m3_decode, unpack_codes

DATA = files("nvfp4cupy") / "data" / "minilm_ffn_layer0.safetensors"


def your_quantizer(x: np.ndarray, gsa: np.ndarray, *, reciprocal: bool) -> tuple[np.ndarray, ...]:
    """Quantize with round-to-nearest-even, as the conversion instruction does.

    ``reciprocal`` multiplies by 1 / scale where a division belongs: faster, and now and then one
    code off.
    """
    v = (x.astype(np.float32) / gsa[:, None]).reshape(len(x), -1, 16)
    scales = np.minimum(np.abs(v).max(axis=-1) / np.float32(6), 448).astype(ml_dtypes.float8_e4m3fn)
    scale = scales.astype(np.float32)[..., None]
    scaled = v * (np.float32(1) / scale) if reciprocal else v / scale
    codes = scaled.reshape(x.shape).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4, scales.view(np.uint8)


def first_difference(
    x: np.ndarray, gsa: np.ndarray, got: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]
) -> str:
    """Describe the first element that differs, or return an empty string."""
    for name, ours, yours in (("scale", expected[1], got[1]), ("code", expected[0], got[0])):
        if name == "code":
            ours, yours = unpack_codes(ours), unpack_codes(yours)
        differ = ours != yours
        if not differ.any():
            continue
        row, column = (int(i) for i in np.unravel_index(differ.argmax(), differ.shape))
        decode = e4m3_decode if name == "scale" else e2m1_decode
        a, b = (
            f"0x{array[row, column]:02X} ({decode(array[row, column])})" for array in (yours, ours)
        )
        group = column if name == "scale" else column // 16
        values = x[row, 16 * group : 16 * group + 16].astype(np.float32) / gsa[row]
        scale = e4m3_decode(expected[1][row, group])
        return (
            f"{differ.sum()} of {differ.size} {name}s differ, first at row {row}, column {column}: "
            f"got {a}, expected {b}\n  the group divided by gsa: {values}\n  its scale: {scale}"
            + (f"; value / scale: {values[column % 16] / scale}" if name == "code" else "")
        )
    return ""


def main() -> None:
    with Checkpoint.open(str(DATA)) as checkpoint:
        x = checkpoint.tensor("down_proj.input")
    gsa = nv.amax_gsa(x)
    expected = nv.quantize_nvfp4_from_buffer(x, gsa, rounding="nearest_even")

    report = first_difference(x, gsa, your_quantizer(x, gsa, reciprocal=False), expected)
    assert report == "", report
    print(f"the right one: all {x.size} codes are equal")

    report = first_difference(x, gsa, your_quantizer(x, gsa, reciprocal=True), expected)
    print(f"the faulty one: {report}")
    assert "codes differ, first at row" in report


if __name__ == "__main__":
    main()
