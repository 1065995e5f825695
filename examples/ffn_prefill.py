"""Run a W4A4 feed-forward on many tokens, and see what 4-bit activations cost.

On a GPU the weights are random, of the shape of a 27B model's layer, and the call is timed;
without one, the NumPy reference runs on the small layer that comes with the package.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np

import nvfp4cupy as nv
from nvfp4cupy.arrays import missing_gpu
from nvfp4cupy.checkpoint import Checkpoint
from nvfp4cupy.ffn import FeedForward

DATA = files("nvfp4cupy") / "data" / "minilm_ffn_layer0.safetensors"


def quantized(weight: Any) -> tuple[Any, Any, float]:
    """Return codes, scales and decode scale, as a checkpoint holds them."""
    decode_scale = float(abs(weight.astype(np.float32)).max()) / 2688
    return *nv.quantize_nvfp4(weight, decode_scale, rounding="nearest_even"), decode_scale


def small_layer() -> tuple[Any, list[Any]]:
    with Checkpoint.open(str(DATA)) as checkpoint:
        x = checkpoint.tensor("up_proj.input")
        up, down = (checkpoint.tensor(f"{name}_proj.weight") for name in ("up", "down"))
    gate = np.roll(up, 1, axis=0)  # this model has no gate, so its up weight stands in for one
    return x, [quantized(weight) for weight in (gate, up, down)]


def large_layer(m: int = 4096, n: int = 17408, k: int = 5120) -> tuple[Any, list[Any]]:
    import cupy
    import ml_dtypes

    def random(rows: int, columns: int, size: float) -> Any:
        values = cupy.random.standard_normal((rows, columns), dtype=cupy.float32)
        return (values * size).astype(ml_dtypes.bfloat16)

    shapes = ((n, k), (n, k), (k, n))
    return random(m, k, 1.0), [quantized(random(*shape, shape[1] ** -0.5)) for shape in shapes]


def milliseconds(ffn: FeedForward, x: Any, out: Any, calls: int = 20) -> float:
    import cupy

    start, stop = (cupy.cuda.Event() for _ in range(2))
    start.record()
    for _ in range(calls):
        ffn(x, out=out)
    stop.record()
    stop.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, stop)) / calls


def main() -> None:
    reason = missing_gpu()
    print(reason or "running the kernels")
    x, weights = small_layer() if reason else large_layer()
    m = x.shape[0]
    ffn = FeedForward(*weights, max_m=m)
    y = ffn(x)
    print(f"{m} rows: {ffn.in_features} -> {ffn.intermediate} -> {ffn.out_features}")
    print(f"{ffn.weight_bytes / 1e6:.1f} MB of weights")

    # The same weights with activations in bfloat16: what is left is what quantizing x and h costs.
    exact = FeedForward(*weights, max_m=m, w4a16=True)(x).astype(np.float32)
    error = float(((y.astype(np.float32) - exact) ** 2).sum() / (exact**2).sum()) ** 0.5
    print(f"4-bit activations instead of bfloat16 change the result by {error:.3f} of its norm")
    # x enters both products and h the third one: three errors of about 0.1, independent of one
    # another, make 0.17. A wrong scale anywhere makes 0.5 or more.
    assert error < 0.3

    if not reason:
        out = y.copy()
        time = milliseconds(ffn, x, out)
        operations = 2 * m * 3 * ffn.in_features * ffn.intermediate
        print(f"{time:.3f} ms a call, {operations / time / 1e9:.0f} TFLOP/s")
        assert out.tobytes() == y.tobytes()  # every call gives the same bytes


if __name__ == "__main__":
    main()
