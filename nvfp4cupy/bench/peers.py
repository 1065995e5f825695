"""What a user of torch gets for the same work, where torch is installed: cuBLAS, torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from nvfp4cupy import formats
from nvfp4cupy.arrays import cupy
from nvfp4cupy.bench.cases import Case, Group, Work
from nvfp4cupy.bench.checks import WrongResultError, at_rows, spread
from nvfp4cupy.bench.gemm_cases import bf16_gemm_bytes, bf16_work
from nvfp4cupy.bench.samples import Samples

__all__ = ["has_torch", "torch_gemm_case", "torch_groups"]

# bf16 arithmetic, reciprocals and the order of operations are the peer's own: only nonsense is
# to be caught. The relative error of NVFP4 on normal numbers is 0.1.
_LARGEST_ERROR = 0.2
_COMPILED = "torch.compile"


def has_torch() -> bool:
    """Return whether torch is installed; it is not imported."""
    return find_spec("torch") is not None


def _tensor(array: Any) -> Any:
    """Return a torch tensor over the memory of a bfloat16 CuPy array."""
    import torch

    # As integers: not every pair of versions exchanges bfloat16.
    return torch.from_dlpack(array.view(np.int16)).view(torch.bfloat16)


def _torch_graph(calls: Sequence[Callable[[], Any]]) -> Callable[[], None]:
    """Capture with torch, whose allocator must know of it; replay on CuPy's current stream."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()

    def replay() -> None:
        stream = torch.cuda.ExternalStream(cupy().cuda.get_current_stream().ptr)
        with torch.cuda.stream(stream):
            graph.replay()

    return replay


def torch_gemm_case(m: int, n: int, k: int) -> Case:
    """Return torch's bf16 product, which is cuBLAS too, called by others."""

    def make(s: Samples, i: int) -> Work:
        tensors: list[Any] = []

        def gemm(*arrays: Any) -> None:
            import torch

            if not tensors:  # taken over at the first call: in a capture that cannot be done
                tensors.extend(map(_tensor, arrays))
            torch.mm(tensors[0], tensors[1].t(), out=tensors[2])

        return bf16_work(s, i, (m, n, k), gemm)

    flops, shape = 2 * m * n * k, f"{m}x{n}x{k}"
    baseline = f"cublas_gemm/bf16/{shape}"
    num_bytes = bf16_gemm_bytes(m, n, k)
    return Case("torch.mm", "bf16", shape, num_bytes, make, flops, baseline, _torch_graph)


def torch_groups(shapes: Sequence[tuple[int, int]]) -> list[Group]:
    """Return the memory-bound work as compiled torch code.

    Args:
        shapes: rows and columns.
    """
    return [
        Group(f"torch.compile {rows}x{columns}", tuple(_compiled_cases(rows, columns)))
        for rows, columns in shapes
    ]


def _compiled_cases(rows: int, columns: int) -> list[Case]:
    shape, count = f"{rows}x{columns}", rows * columns

    def case(
        name: str, function: Callable[..., Any], right: Any, operands: int, num_bytes: int
    ) -> Case:
        def make(s: Samples, i: int) -> Work:
            names = ("x", "up")[:operands]
            arrays = [s.bfloat16(name, rows, columns, i) for name in names]
            return _compiled_work(function, arrays, right)

        return Case(f"torch {name}", _COMPILED, shape, num_bytes, make, capture=_torch_graph)

    return [
        case("row amax", _row_amax, _right_amax, 1, 2 * count + 4 * rows),
        case("quantize", _quantize, _right_quantize, 1, 2 * count + count // 2 + count // 16),
        case("silu mul", _silu_mul, _right_silu_mul, 2, 6 * count),
        case("scale", _scale, _right_scale, 1, 4 * count),
    ]


def _compiled_work(function: Callable[..., Any], arrays: Sequence[Any], right: Any) -> Work:
    import torch

    tensors = [_tensor(array) for array in arrays]
    compiled = torch.compile(function)
    results: list[Any] = []

    def call() -> None:
        results[:] = [compiled(*tensors)]

    def check() -> None:
        torch.cuda.synchronize()
        rows = spread(arrays[0].shape[0])
        got = results[0] if isinstance(results[0], tuple) else (results[0],)
        exact = [formats.to_float32(at_rows(array, rows)) for array in arrays]
        _expect_close([t[torch.as_tensor(rows, device=t.device)].cpu() for t in got], exact, right)

    return Work(call, [], check)


def _expect_close(got: Sequence[Any], exact: Sequence[Any], right: Any) -> None:
    values, expected = right(*(t.float().numpy() for t in got), *exact)
    error = float(np.linalg.norm(values - expected) / np.linalg.norm(expected))
    if not error < _LARGEST_ERROR:
        raise WrongResultError(f"the relative error is {error:.3g}")


def _row_amax(x: Any) -> Any:
    return x.abs().amax(dim=1).float() / formats.GSA_DIVISOR


def _right_amax(gsa: Any, x: Any) -> tuple[Any, Any]:
    return gsa, np.abs(x).max(axis=1) / formats.GSA_DIVISOR


def _quantize(x: Any) -> tuple[Any, Any]:
    """Quantize to NVFP4 with decode scale 1: packed codes, scales as bytes."""
    import torch

    groups = x.float().view(x.shape[0], -1, formats.GROUP_SIZE)
    scales = (groups.abs().amax(dim=2) / formats.E2M1_MAX).to(torch.float8_e4m3fn)
    v = groups / scales.float().clamp_min(2.0**-9).unsqueeze(2)
    magnitude = v.abs()
    codes = (v < 0).to(torch.uint8) * 8
    for midpoint in (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0):
        codes = codes + (magnitude > midpoint).to(torch.uint8)
    pairs = codes.view(x.shape[0], -1, 2)
    return pairs[..., 0] | (pairs[..., 1] << 4), scales.view(torch.uint8)


def _right_quantize(codes: Any, scales: Any, x: Any) -> tuple[Any, Any]:
    packed = codes.astype(np.uint8)
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(x.shape)
    decoded = np.repeat(formats.e4m3_decode(scales.astype(np.uint8)), formats.GROUP_SIZE, axis=1)
    return formats.e2m1_decode(nibbles) * decoded, x


def _silu_mul(gate: Any, up: Any) -> Any:
    import torch

    g, u = gate.float().clamp_max(10.0), up.float().clamp(-10.0, 10.0)
    return (g * torch.sigmoid(g) * u).to(gate.dtype)


def _right_silu_mul(h: Any, gate: Any, up: Any) -> tuple[Any, Any]:
    return h, gate / (1 + np.exp(-gate)) * up


def _scale(x: Any) -> Any:
    return (x.float() * 0.75).to(x.dtype)


def _right_scale(y: Any, x: Any) -> tuple[Any, Any]:
    return y, x * np.float32(0.75)
