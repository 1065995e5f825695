"""Time every kernel on this machine's GPU, beside what the GPU itself reaches."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from nvfp4cupy.bench import BenchPlan, Report

HELP = "time the kernels against the GPU's copy and cuBLAS rates"

# Tables that go to a file or a pipe are not folded to the 80 columns of a missing terminal.
_PIPE_WIDTH = 132


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="what to time: parts of name/variant/shape, or patterns with *; 'overhead' for the "
        "cost of calls, 'ceilings' for the ceilings alone (default: everything)",
    )
    sizes = parser.add_argument_group("sizes")
    sizes.add_argument("--m", nargs="+", type=int, metavar="M", help="activation rows of products")
    sizes.add_argument("--n", nargs="+", type=int, metavar="N", help="weight rows, with --k")
    sizes.add_argument("--k", nargs="+", type=int, metavar="K", help="one for each of --n")
    sizes.add_argument(
        "--shape", nargs="+", type=_shape, metavar="RxC", help="of the other kernels' operands"
    )
    parser.add_argument("--quick", action="store_true", help="fewer sizes, fewer replays")
    parser.add_argument("--list", action="store_true", help="print what would be timed, and stop")
    parser.add_argument("--peers", action="store_true", help="time torch in the same run")
    parser.add_argument("--compile", action="store_true", help="time the compiler too")
    parser.add_argument(
        "--selftest",
        action="store_true",
        help="first check every kernel and tile against the reference, bit for bit",
    )
    parser.add_argument(
        "--json", metavar="FILE", help="save the report, also while it grows; - prints it to stdout"
    )
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="a saved report to compare with"
    )


def run(options: argparse.Namespace) -> int:
    """Check, measure, print, save."""
    from rich.console import Console

    from nvfp4cupy import bench

    plan = _plan(options)
    if options.list:
        _print_cases(plan)
        return 0
    saved = bench.load(options.against) if options.against else None
    to_stdout = options.json == "-"
    console = _console(sys.stderr if to_stdout else sys.stdout)
    messages = Console(stderr=True)
    if options.selftest and not _selftest(console):
        return 1

    def save(report: Report) -> None:
        if options.json and not to_stdout:
            bench.save(report, Path(options.json))

    def progress(text: str) -> None:
        messages.print(f"timing {text}", markup=False, highlight=False)

    report = bench.run_bench(plan, progress, save)
    bench.print_report(report, console, saved)
    save(report)
    if to_stdout:
        print(report.to_json())
    return 1 if report.failed else 0


def _console(file: object) -> Console:
    from rich.console import Console

    console = Console(file=file)  # type: ignore[arg-type]
    return console if console.is_terminal else Console(file=file, width=_PIPE_WIDTH)  # type: ignore[arg-type]


def _shape(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is not ROWSxCOLUMNS, such as 8192x8192")
    return int(match[1]), int(match[2])


def _plan(options: argparse.Namespace) -> BenchPlan:
    from nvfp4cupy.bench import BenchPlan

    more = {"shapes": tuple(options.shape)} if options.shape else {}
    return BenchPlan(
        patterns=tuple(options.names),
        ms=tuple(options.m) if options.m else None,
        weights=_weights(options.n, options.k),
        quick=options.quick,
        peers=options.peers,
        compile_times=options.compile,
        **more,
    )


def _weights(
    n: Sequence[int] | None, k: Sequence[int] | None
) -> tuple[tuple[int, int], ...] | None:
    if n is None and k is None:
        return None
    if n is None or k is None or len(n) != len(k):
        raise ValueError(f"--n and --k must be given equally often, got {n or []} and {k or []}")
    return tuple(zip(n, k, strict=True))


def _print_cases(plan: BenchPlan) -> None:
    for group in plan.groups(None):
        for case in group.cases:
            print(case.id)


def _selftest(console: Console) -> bool:
    """Check everything; return whether it is right."""
    from rich.table import Table

    from nvfp4cupy.bench import run_selftest
    from nvfp4cupy.bench.device import current_device

    device = current_device()
    for line in (device.header, f"path of the W4A4 products: {device.gemm_path}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    outcomes = run_selftest()
    table = Table("kernel", "checks", "result", title="Against the reference, bit for bit")
    for outcome in outcomes:
        wrong = len(outcome.failures)
        result = f"{wrong} wrong" if wrong else "right"
        table.add_row(outcome.name, str(outcome.num_checks), result)
    console.print(table)
    for outcome in outcomes:
        for failure in outcome.failures:
            line = f"wrong: {outcome.name}: {failure}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return not any(outcome.failures for outcome in outcomes)
