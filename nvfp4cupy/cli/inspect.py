"""List the tensors of a checkpoint file, and say what is wrong with its NVFP4 weights."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from nvfp4cupy.checkpoint import Checkpoint, Finding, doctor
from nvfp4cupy.checkpoint.weight import GlobalScale
from nvfp4cupy.cli import files, histogram

HELP = "list the tensors of a file and examine its NVFP4 weights"

_EXIT_CODES = (
    "exit code: 0 if no finding is an error, 1 if one is or the file cannot be read, "
    "2 for wrong usage"
)
_FORMATS = {
    "modelopt": "NVFP4 weights as ModelOpt stores them",
    "compressed-tensors": "NVFP4 weights as compressed-tensors stores them",
    "gguf": "GGUF",
    "plain": "safetensors without NVFP4 weights",
}
_STYLES = {"error": "bold red", "warning": "yellow", "note": "cyan"}


@dataclass(frozen=True)
class Row:
    """One tensor, or one NVFP4 weight with all of its tensors.

    Attributes:
        tensor: its name; of a weight the same in every format.
        kind: dtype, or NVFP4 and the layout.
        shape: values per axis.
        nbytes: bytes in the file.
        bits_per_value: bytes and shape in one number; None where there are no values.
        decode_scale: of a weight, for each expert; None in place of what is not finite.
        scale_counts: of a weight, occurrences by scale byte, where that was asked for.
        is_nvfp4: whether it is a weight that can be read.
    """

    tensor: str
    kind: str
    shape: tuple[int, ...]
    nbytes: int
    bits_per_value: float | None
    decode_scale: tuple[float | None, ...] | None = None
    scale_counts: dict[int, int] | None = None
    is_nvfp4: bool = False


@dataclass(frozen=True)
class Total:
    """Sums over the tensors of one kind."""

    kind: str
    tensors: int
    values: int
    nbytes: int
    bits_per_value: float | None


@dataclass(frozen=True)
class Report:
    """What is printed; format is None for a file that cannot be read."""

    file: str
    format: str | None
    findings: list[Finding]
    tensors: list[Row] = field(default_factory=list)
    totals: list[Total] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("file", metavar="FILE", type=Path, help=files.SOURCE_HELP)
    parser.add_argument(
        "--tensor",
        action="append",
        metavar="PATTERN",
        help="only tensors whose whole name matches, as a shell would match it, and findings about "
        "them or the whole file; may be repeated",
    )
    parser.add_argument(
        "--histogram", action="store_true", help="show how often scales of each size occur"
    )
    parser.add_argument(
        "--plot",
        type=Path,
        metavar="PNG",
        help="draw the scales and codes of the NVFP4 weights (.png, .svg or .pdf)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = _EXIT_CODES


def run(options: argparse.Namespace) -> int:
    """Examine, draw, print."""
    report = _examine(options)
    if options.json:
        files.print_json(asdict(report))
    else:
        _print(report)
    return int(any(finding.severity == "error" for finding in report.findings))


def _examine(options: argparse.Namespace) -> Report:
    try:
        checkpoint = Checkpoint.open(options.file)
    except ValueError:
        # A damaged file has no tensors to list; what is wrong with it is a finding.
        return Report(str(options.file), None, doctor(options.file))
    with checkpoint:
        rows = collect(checkpoint, options.tensor, count_scales=options.histogram)
        if options.plot is not None:
            weights = [row.tensor for row in rows if row.is_nvfp4]
            histogram.save_plot(checkpoint, weights, options.plot)
        findings = doctor(checkpoint)
        if options.tensor is not None:
            shown = {None, *(row.tensor for row in rows)}
            findings = [finding for finding in findings if finding.tensor in shown]
        return Report(str(options.file), checkpoint.format, findings, rows, totals(rows))


def collect(
    checkpoint: Checkpoint, patterns: Sequence[str] | None = None, *, count_scales: bool = False
) -> list[Row]:
    """Return the tensors of a checkpoint in the order of its files.

    Args:
        checkpoint: an open checkpoint.
        patterns: only names that one of these matches; of a weight, a name of any of its tensors.
        count_scales: count the scale bytes of NVFP4 weights.

    Raises:
        ValueError: no name matches.
    """
    rows = []
    for name, is_nvfp4 in checkpoint.contents():
        names = {name, *checkpoint.parts(name).tensors} if is_nvfp4 else {name}
        if patterns is not None and not any(fnmatchcase(n, p) for n in names for p in patterns):
            continue
        if is_nvfp4:
            rows.append(_weight_row(checkpoint, name, count_scales))
        else:
            info = checkpoint.info(name)
            bits = _bits(info.nbytes, math.prod(info.shape))
            rows.append(Row(name, info.dtype, info.shape, info.nbytes, bits))
    if patterns is not None and not rows:
        raise ValueError(f"no tensor of {checkpoint.path} matches {' or '.join(patterns)}")
    return rows


def totals(rows: Sequence[Row]) -> list[Total]:
    """Return the sums over each kind of tensor, the largest first."""
    sums = []
    for kind in dict.fromkeys(row.kind for row in rows):
        alike = [row for row in rows if row.kind == kind]
        values = sum(math.prod(row.shape) for row in alike if row.bits_per_value is not None)
        nbytes = sum(row.nbytes for row in alike)
        sums.append(Total(kind, len(alike), values, nbytes, _bits(nbytes, values)))
    return sorted(sums, key=lambda total: -total.nbytes)


def _weight_row(checkpoint: Checkpoint, name: str, count_scales: bool) -> Row:
    parts, nbytes = checkpoint.parts(name), files.stored_bytes(checkpoint, name, True)
    try:
        weight = checkpoint.nvfp4(name, check=False)
    except ValueError:  # the doctor says why
        return Row(name, "NVFP4 (broken)", checkpoint.info(parts.codes).shape, nbytes, None)
    counts = histogram.scale_counts(weight) if count_scales else None
    for tensor in parts.tensors:
        checkpoint.release(tensor)
    return Row(
        tensor=name,
        kind=f"NVFP4 {weight.layout}",
        shape=weight.shape,
        nbytes=nbytes,
        bits_per_value=_bits(nbytes, math.prod(weight.shape)),
        decode_scale=_finite(weight.decode_scale),
        scale_counts=counts,
        is_nvfp4=True,
    )


def _bits(nbytes: int, num_values: int) -> float | None:
    return 8 * nbytes / num_values if num_values else None


def _finite(scale: GlobalScale) -> tuple[float | None, ...]:
    values = np.asarray(scale, np.float32).reshape(-1).tolist()
    return tuple(value if math.isfinite(value) else None for value in values)


def _print(report: Report) -> None:
    console = files.stdout()
    if report.format is not None:
        nbytes = sum(total.nbytes for total in report.totals)
        summary = f"{_FORMATS[report.format]}, {nbytes:,} bytes of tensors"
        console.print(f"{files.printable(report.file)}: {summary}", soft_wrap=True)
        table = files.new_table(
            "tensor", "kind", "shape", right=("bytes", "bits per value", "decode scale")
        )
        for row in report.tensors:
            name, scale = files.printable(row.tensor), _scale_text(row.decode_scale)
            numbers = (f"{row.nbytes:,}", _bits_text(row.bits_per_value), scale)
            table.add_row(name, row.kind, str(row.shape), *numbers)
        console.print(table)
        table = files.new_table("kind", right=("tensors", "values", "bytes", "bits per value"))
        for total in report.totals:
            numbers = (f"{total.tensors:,}", f"{total.values:,}", f"{total.nbytes:,}")
            table.add_row(total.kind, *numbers, _bits_text(total.bits_per_value))
        console.print(table)
    for row in report.tensors:
        if row.scale_counts is not None:
            console.print(f"scales of {files.printable(row.tensor)}", soft_wrap=True)
            console.print(histogram.table(row.scale_counts, console.encoding))
    _print_findings(report.findings)


def _print_findings(findings: Sequence[Finding]) -> None:
    from rich.text import Text

    console = files.stdout()
    for found in findings:
        place = [] if found.tensor is None else [files.printable(found.tensor)]
        place += [] if found.row is None else [f"row {found.row}"]
        place += [] if found.block is None else [f"block {found.block}"]
        where = f"{', '.join(place)}: " if place else ""
        label = (f"{found.severity}: ", _STYLES[found.severity])
        console.print(
            Text.assemble(label, f"{where}{files.printable(found.message)}"), soft_wrap=True
        )
        console.print(f"  {files.printable(found.advice)}", soft_wrap=True)
    if not findings:
        console.print("no findings")


def _bits_text(bits: float | None) -> str:
    return "" if bits is None else f"{bits:.3f}"


def _scale_text(scales: tuple[float | None, ...] | None) -> str:
    """Return a scale, or the smallest and the largest of those of a stack."""
    if not scales:
        return ""
    finite = [scale for scale in scales if scale is not None]
    if len(finite) < len(scales):
        return "not finite"
    low, high = min(finite), max(finite)
    return f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
