"""Quantize the float matrices of a checkpoint file to NVFP4, and copy the rest."""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from nvfp4cupy import arrays
from nvfp4cupy.checkpoint import (
    DEFAULT_EXCLUDE,
    DEFAULT_INCLUDE,
    TARGET_FORMATS,
    Checkpoint,
    QuantizeReport,
    quantize_checkpoint,
)
from nvfp4cupy.checkpoint.save import TargetFormat
from nvfp4cupy.cli import files
from nvfp4cupy.formats import ROUNDINGS, U8, Rounding
from nvfp4cupy.reference import quantize_nvfp4

HELP = "quantize a safetensors or GGUF file"

_DEVICES = {"cpu": "on the CPU (NumPy reference)", "gpu": "on the GPU"}
_SHOWN_NAMES = 3  # of tensors that were kept for one reason


@dataclass(frozen=True)
class Weight:
    """What quantization made of one matrix."""

    tensor: str
    shape: tuple[int, ...]
    bytes_before: int
    bytes_after: int
    bits_per_value: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    files.add_paths(parser)
    parser.add_argument(
        "--format",
        choices=TARGET_FORMATS,
        help=f"{files.FORMAT_HELP} (default: gguf if OUT ends with .gguf, else modelopt)",
    )
    parser.add_argument(
        "--rounding", choices=ROUNDINGS, default="nearest_even", help="rule of the codes"
    )
    parser.add_argument(
        "--search",
        type=int,
        choices=(0, 2),
        default=0,
        help="2: keep the best of five scales for each group; slow on the CPU",
    )
    for name, does, default in (
        ("--include", "quantize", DEFAULT_INCLUDE),
        ("--exclude", "keep", DEFAULT_EXCLUDE),
    ):
        parser.add_argument(
            name,
            action="append",
            metavar="PATTERN",
            help=f"{does} the tensors whose whole name matches, as a shell would match it; "
            f"may be repeated, replaces the default: {' '.join(default)}",
        )
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "gpu"),
        default="auto",
        help="gpu: fail without one; cpu: the NumPy reference (default: the GPU if there is one); "
        "the bytes are the same",
    )


def run(options: argparse.Namespace) -> int:
    """Quantize, report."""
    by_suffix: TargetFormat = "gguf" if options.out.suffix == ".gguf" else "modelopt"
    format: TargetFormat = options.format or by_suffix
    files.check_out(options.source, options.out, format, force=options.force)
    device = _device(options.device)
    with files.progress_bar("quantizing", hidden=options.quiet) as progress:
        report = quantize_checkpoint(
            options.source,
            options.out,
            format=format,
            rounding=options.rounding,
            scale_search=options.search,
            include=DEFAULT_INCLUDE if options.include is None else options.include,
            exclude=DEFAULT_EXCLUDE if options.exclude is None else options.exclude,
            quantizer=quantize_on_gpu if device == "gpu" else quantize_nvfp4,
            progress=progress,
        )
    if options.json:
        _print_json(options, format, device, report)
    elif not options.quiet:
        _print(options, format, device, report)
    return 0


def quantize_on_gpu(
    x: NDArray[Any], gsa: float, *, rounding: Rounding, scale_search: int
) -> tuple[U8, U8]:
    """Quantize rows on the GPU, NumPy arrays in and out; see ``ops.quantize_nvfp4``."""
    from nvfp4cupy import ops

    rows = arrays.cupy().asarray(x)
    codes, scales = ops.quantize_nvfp4(rows, gsa, rounding=rounding, scale_search=scale_search)
    return codes.get(), scales.get()


def _device(wanted: str) -> str:
    """Return ``"cpu"`` or ``"gpu"``."""
    if wanted == "cpu":
        return "cpu"
    reason = arrays.missing_gpu()
    if wanted == "gpu" and reason:
        raise RuntimeError(reason)
    return "cpu" if reason else "gpu"


def _weights(source: Path, out: Path, report: QuantizeReport) -> list[Weight]:
    weights = []
    with Checkpoint.open(source) as before, Checkpoint.open(out) as after:
        for name in report.quantized:
            info, nbytes = before.info(name), files.stored_bytes(after, name, True)
            bits = 8 * nbytes / math.prod(info.shape)
            weights.append(Weight(name, info.shape, info.nbytes, nbytes, bits))
    return weights


def _print_json(
    options: argparse.Namespace, format: str, device: str, report: QuantizeReport
) -> None:
    weights = _weights(options.source, options.out, report)
    files.print_json(
        {
            "source": str(options.source),
            "out": str(options.out),
            "format": format,
            "rounding": options.rounding,
            "scale_search": options.search,
            "device": device,
            "source_bytes": report.source_bytes,
            "written_bytes": report.written_bytes,
            "quantized": [asdict(weight) for weight in weights],
            "kept": report.kept,
        }
    )


def _print(options: argparse.Namespace, format: str, device: str, report: QuantizeReport) -> None:
    console = files.stdout()
    table = files.new_table(
        "quantized", "shape", right=("bytes before", "bytes after", "bits per value")
    )
    for weight in _weights(options.source, options.out, report):
        table.add_row(
            files.printable(weight.tensor),
            str(weight.shape),
            f"{weight.bytes_before:,}",
            f"{weight.bytes_after:,}",
            f"{weight.bits_per_value:.3f}",
        )
    console.print(table)
    for reason, names in _by_reason(report.kept).items():
        shown = ", ".join(files.printable(name) for name in names[:_SHOWN_NAMES])
        more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
        console.print(f"kept, {files.printable(reason)}: {shown}{more}", soft_wrap=True)
    console.print(
        f"{files.printable(str(options.out))}: {format}, {report.written_bytes:,} bytes, "
        f"{100 * report.written_bytes / report.source_bytes:.1f} % of {report.source_bytes:,}; "
        f"{len(report.quantized)} quantized {_DEVICES[device]}, {len(report.kept)} kept",
        soft_wrap=True,
    )


def _by_reason(kept: dict[str, str]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, reason in kept.items():
        names.setdefault(reason, []).append(name)
    return names
