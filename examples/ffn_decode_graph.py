"""Generate token by token: a feed-forward as a CUDA graph, replayed on changing inputs.

Without a GPU the reference is called directly, as there are no graphs then.
"""

from __future__ import annotations

import time
from importlib.resources import files

import numpy as np

import nvfp4cupy as nv
from nvfp4cupy.checkpoint import Checkpoint, NVFP4Weight
from nvfp4cupy.ffn import FeedForward

DATA = files("nvfp4cupy") / "data" / "minilm_ffn_layer0.safetensors"
STEPS = 20


def quantized(weight: np.ndarray) -> NVFP4Weight:
    decode_scale = np.abs(weight.astype(np.float32)).max() / np.float32(2688)
    codes, scales = nv.quantize_nvfp4(weight, decode_scale, rounding="nearest_even")
    return NVFP4Weight(codes, scales, decode_scale)


def main() -> None:
    with Checkpoint.open(str(DATA)) as checkpoint:
        tokens = checkpoint.tensor("up_proj.input")
        up, down = (checkpoint.tensor(f"{name}_proj.weight") for name in ("up", "down"))
    gate = np.roll(up, 1, axis=0)  # this model has no gate, so its up weight stands in for one
    weights = [quantized(weight) for weight in (gate, up, down)]
    ffn = FeedForward(*weights, row_scale=True)
    reference = FeedForward(*weights, row_scale=True, device="cpu")
    expected = [reference(tokens[i : i + 1]).astype(np.float32) for i in range(STEPS)]

    if not ffn.on_gpu:
        print("no GPU, so no CUDA graph: the reference is called step by step")
        results = [ffn(tokens[i : i + 1]).astype(np.float32) for i in range(STEPS)]
    else:
        import cupy

        on_gpu = cupy.asarray(tokens)
        graph = ffn.capture(1)  # for one row; graph.x and graph.out stay where they are
        results, eager = [], ffn(on_gpu[:1])
        for i in range(STEPS):
            graph.x[...] = on_gpu[i : i + 1]
            results.append(graph.replay().get().astype(np.float32))
        assert graph(on_gpu[:1]).tobytes() == eager.tobytes()  # a call copies, then replays
        for name, call in (
            ("eager call", lambda: ffn(on_gpu[:1], out=eager)),
            ("replay", graph.replay),
        ):
            cupy.cuda.Device().synchronize()
            start = time.perf_counter()
            for _ in range(200):
                call()
            print(f"{name}: {(time.perf_counter() - start) / 200 * 1e6:.0f} µs of Python a step")
            cupy.cuda.Device().synchronize()

    # Sums in another order may differ in the last bits, and now and then one of 1536 codes of h
    # is then its neighbour: far less than the 0.1 that a wrong step would cost.
    for i, (got, right) in enumerate(zip(results, expected, strict=True)):
        error = np.linalg.norm(got - right) / np.linalg.norm(right)
        assert error < 0.02, f"step {i}: {error}"
    print(f"{STEPS} steps agree with the reference")


if __name__ == "__main__":
    main()
