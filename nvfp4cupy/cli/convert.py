"""Move a checkpoint to another format; codes and scales keep every bit."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nvfp4cupy.checkpoint import TARGET_FORMATS, Checkpoint, NVFP4Weight, convert_checkpoint
from nvfp4cupy.cli import files
from nvfp4cupy.layouts import NIBBLE_ORDERS

HELP = "convert between ModelOpt, compressed-tensors and GGUF"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    files.add_paths(parser)
    parser.add_argument("--format", choices=TARGET_FORMATS, required=True, help=files.FORMAT_HELP)
    parser.add_argument(
        "--nibble-order",
        choices=NIBBLE_ORDERS,
        default="low_first",
        help="high_first: the bytes of IN, a safetensors file, hold element 2j in the high nibble; "
        "OUT always has it in the low one",
    )


def run(options: argparse.Namespace) -> int:
    """Convert, report."""
    files.check_out(options.source, options.out, options.format, force=options.force)
    with files.progress_bar("converting", hidden=options.quiet) as progress:
        convert_checkpoint(
            options.source,
            options.out,
            options.format,
            nibble_order=options.nibble_order,
            progress=progress,
        )
    if options.json:
        files.print_json(facts(options.source, options.out))
    elif not options.quiet:
        _print(facts(options.source, options.out))
    return 0


def facts(source: Path, out: Path) -> dict[str, Any]:
    """Return what a conversion did.

    ``moved_scales`` names the weights with a global scale that the format cannot hold to the bit:
    compressed-tensors stores the reciprocal, and one float32 in six has none that leads back.
    """
    with Checkpoint.open(source) as before, Checkpoint.open(out) as after:
        names = after.nvfp4_names()
        return {
            "source": str(source),
            "source_format": before.format,
            "source_bytes": files.file_bytes(before),
            "out": str(out),
            "format": after.format,
            "written_bytes": files.file_bytes(after),
            "nvfp4": names,
            "copied": after.plain_names(),
            "moved_scales": [
                name
                for name in names
                if list(_global_scales(before.nvfp4(name, check=False)))
                != list(_global_scales(after.nvfp4(name, check=False)))
            ],
        }


def _global_scales(weight: NVFP4Weight) -> Iterator[float]:
    for scale in (weight.decode_scale, weight.input_scale):
        if scale is not None:
            yield from np.atleast_1d(scale).tolist()


def _print(done: dict[str, Any]) -> None:
    console = files.stdout()
    for name in done["moved_scales"]:
        console.print(
            f"{files.printable(name)}: a global scale moved by one unit in the last place, "
            "its reciprocal is not exact",
            soft_wrap=True,
        )
    console.print(
        f"{files.printable(done['out'])}: {done['format']} from {done['source_format']}, "
        f"{len(done['nvfp4'])} NVFP4 weights, {len(done['copied'])} other tensors; "
        f"{done['written_bytes']:,} bytes from {done['source_bytes']:,}",
        soft_wrap=True,
    )
