"""Quantize real weights and activations to NVFP4, multiply them, and show the errors."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

import nvfp4cupy as nv
from nvfp4cupy import arrays
from nvfp4cupy.formats import GSA_DIVISOR, ROUNDINGS, Rounding, to_float32

HELP = "quantize the shipped layer, multiply, print the errors"

_LAYERS = ("up_proj", "down_proj")


@dataclass(frozen=True)
class Row:
    """What one way to quantize costs on one layer; errors are ||got - exact|| / ||exact||."""

    layer: str
    rounding: Rounding
    scale_search: int
    weight_error: float
    weight_cosine: float
    input_error: float
    input_cosine: float
    w4a4_error: float
    w4a4_cosine: float
    w4a16_error: float


@dataclass(frozen=True)
class Size:
    """Bytes of one tensor before and after."""

    tensor: str
    shape: tuple[int, ...]
    bytes_before: int
    bytes_after: int
    bits_per_value: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--device",
        choices=("auto", "gpu", "cpu"),
        default="auto",
        help="gpu: fail without one; cpu: the NumPy reference (default: the GPU if there is one)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Quantize, multiply, print."""
    reason = arrays.missing_gpu()
    if options.device == "gpu" and reason:
        raise RuntimeError(reason)
    on_gpu = options.device != "cpu" and not reason
    sizes, rows = measure(on_gpu, show_progress=not options.json)
    device = _describe(on_gpu, reason if options.device == "auto" else "")
    if options.json:
        print(json.dumps({"device": device, "sizes": _dicts(sizes), "rows": _dicts(rows)}))
    else:
        _print(device, sizes, rows)
    return 0


def measure(on_gpu: bool, *, show_progress: bool = False) -> tuple[list[Size], list[Row]]:
    """Quantize both layers in every way.

    Args:
        on_gpu: whether the kernels do it, or the reference.
        show_progress: whether to show a progress bar on stderr.
    """
    from rich.console import Console
    from rich.progress import track

    from nvfp4cupy.checkpoint import Checkpoint

    sizes, rows = [], []
    path = files("nvfp4cupy") / "data" / "minilm_ffn_layer0.safetensors"
    with Checkpoint.open(str(path)) as checkpoint:
        tensors = {name: np.array(checkpoint.tensor(name)) for name in checkpoint.names()}
    ways = [(lay, r, s) for lay in _LAYERS for r in ROUNDINGS for s in (0, 2)]
    for layer, rounding, search in track(
        ways,
        "quantizing",
        console=Console(stderr=True),
        transient=True,
        disable=not show_progress,
    ):
        weight, x = tensors[f"{layer}.weight"], tensors[f"{layer}.input"]
        rows.append(_measure_layer(layer, weight, x, rounding, search, on_gpu))
    for name, tensor in tensors.items():
        codes, scales, gsa = nv.amax_quantize_nvfp4(tensor)
        # A weight has one decode scale, activations have one per row.
        after = codes.nbytes + scales.nbytes + (4 if name.endswith("weight") else gsa.nbytes)
        sizes.append(Size(name, tensor.shape, tensor.nbytes, after, 8 * after / tensor.size))
    return sizes, rows


def _measure_layer(
    layer: str,
    weight: NDArray[Any],
    x: NDArray[Any],
    rounding: Rounding,
    search: int,
    on_gpu: bool,
) -> Row:
    way: dict[str, Any] = {"rounding": rounding, "scale_search": search}
    w, a = (arrays.cupy().asarray(t) if on_gpu else t for t in (weight, x))
    exact_w, exact_x = (to_float32(t).astype(np.float64) for t in (weight, x))
    decode_scale = float(np.abs(exact_w).max() / GSA_DIVISOR)

    codes, scales = nv.quantize_nvfp4(w, decode_scale, **way)
    w_back = nv.dequantize_nvfp4(codes, scales, decode_scale, dtype="float32")
    x_back = nv.dequantize_nvfp4(*nv.amax_quantize_nvfp4(a, **way), dtype="float32")

    blocks = nv.nvfp4_mmq_repack(codes, scales)
    act, row_scale = nv.nvfp4_mmq_quantize_act(a, row_scale=True)
    w4a4 = nv.nvfp4_mmq_gemm(
        act, blocks, out_scale=decode_scale, row_scale=row_scale, dtype="float32"
    )
    w4a16 = nv.nvfp4_w4a16_gemm(a, blocks, out_scale=decode_scale, dtype="float32")

    product = exact_x @ exact_w.T
    return Row(
        layer,
        rounding,
        search,
        *_compare(w_back, exact_w),
        *_compare(x_back, exact_x),
        *_compare(w4a4, product),
        _compare(w4a16, product)[0],
    )


def _compare(got: Any, exact: NDArray[np.float64]) -> tuple[float, float]:
    """Return the relative error and the cosine between a result and the exact values."""
    y = (got.get() if arrays.is_gpu(got) else got).astype(np.float64)
    error = np.linalg.norm(y - exact) / np.linalg.norm(exact)
    cosine = np.vdot(y, exact) / (np.linalg.norm(y) * np.linalg.norm(exact))
    return float(error), float(cosine)


def _describe(on_gpu: bool, reason: str) -> str:
    if not on_gpu:
        return f"CPU (NumPy reference){f': {reason}' if reason else ''}"
    from nvfp4cupy.cli.info import collect

    facts, _ = collect()
    return f"{facts['GPU']} ({facts['path']})"


def _dicts(values: list[Any]) -> list[dict[str, Any]]:
    return [asdict(value) for value in values]


def _print(device: str, sizes: list[Size], rows: list[Row]) -> None:
    from rich.console import Console

    console = Console()
    console.print(f"device: {device}\n", markup=False, soft_wrap=True)
    console.print(_size_table(sizes))
    errors = ("weight_error", "input_error", "w4a4_error", "w4a16_error")
    cosines = ("weight_cosine", "input_cosine", "w4a4_cosine")
    console.print(_row_table("Relative error", rows, errors))
    console.print(_row_table("Cosine", rows, cosines))
    console.print(
        "Weights: one decode scale per tensor; activations: one per row. The products take their\n"
        "weights so; W4A4 its activations from nvfp4_mmq_quantize_act with row_scale=True.",
        soft_wrap=True,
    )


_HEADINGS = {"weight": "weights", "input": "activations", "w4a4": "W4A4", "w4a16": "W4A16"}


def _size_table(sizes: list[Size]) -> Any:
    table = _table("Size", "tensor", "shape")
    for name in ("bf16 bytes", "NVFP4 bytes", "bits per value"):
        table.add_column(name, justify="right")
    for size in sizes:
        numbers = (f"{size.bytes_before:,}", f"{size.bytes_after:,}", f"{size.bits_per_value:.2f}")
        table.add_row(size.tensor, str(size.shape), *numbers)
    return table


def _row_table(title: str, rows: list[Row], fields: tuple[str, ...]) -> Any:
    table = _table(title, "layer", "rounding", "search")
    for field in fields:
        table.add_column(_HEADINGS[field.partition("_")[0]], justify="right")
    for row in rows:
        table.add_row(
            row.layer,
            row.rounding,
            f"±{row.scale_search}" if row.scale_search else "no",
            *(f"{getattr(row, field):.4f}" for field in fields),
            end_section=row.rounding == ROUNDINGS[-1] and row.scale_search > 0,
        )
    return table


def _table(title: str, *headings: str) -> Any:
    from rich import box
    from rich.table import Table

    # No vertical lines: the widest table fits a terminal of 80 columns.
    return Table(*headings, title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
