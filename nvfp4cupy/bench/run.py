"""A whole run on the current device: ceilings first, then correctness, then time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from nvfp4cupy.arrays import cupy
from nvfp4cupy.bench.ceilings import measure_ceilings
from nvfp4cupy.bench.compile_times import measure_compile_times
from nvfp4cupy.bench.cublas import Cublas
from nvfp4cupy.bench.device import current_device
from nvfp4cupy.bench.engine import run_groups
from nvfp4cupy.bench.overhead import measure_overhead
from nvfp4cupy.bench.peers import has_torch
from nvfp4cupy.bench.plan import BenchPlan
from nvfp4cupy.bench.report import Report, Result
from nvfp4cupy.bench.samples import Samples
from nvfp4cupy.bench.selftest import CheckOutcome, all_checks, run_checks
from nvfp4cupy.bench.timing import GraphTimer

__all__ = ["run_bench", "run_selftest"]

Progress = Callable[[str], None]


def run_selftest() -> list[CheckOutcome]:
    """Check every kernel and tile on the current device.

    Raises:
        RuntimeError: there is no usable GPU or compiler.
    """
    current_device()  # raises with the cure
    return run_checks(all_checks(), cupy())


def run_bench(
    plan: BenchPlan,
    progress: Progress = lambda _: None,
    partial: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Measure what the plan asks for on the current device.

    Args:
        plan: what to measure.
        progress: is told what is being done.
        partial: gets what there is after each group of cases, for runs that are cut short.

    Raises:
        RuntimeError: there is no usable GPU or compiler; the message says what to do.
        ValueError: a pattern of the plan names nothing.
    """
    device = current_device()
    if plan.peers and not has_torch():
        raise RuntimeError("peers need torch; install it with: pip install torch")
    blas, notes = _cublas()
    groups = plan.groups(blas)  # before anything is measured: a pattern may name nothing
    samples = Samples(cupy())
    timer = GraphTimer(device.l2_bytes, plan.num_replays)
    progress("ceilings")
    ceilings = measure_ceilings(timer, samples, blas)
    samples.clear()

    def report(results: Sequence[Result]) -> Report:
        return Report(device, ceilings, tuple(results), notes=notes)

    found = report(
        run_groups(groups, samples, timer, ceilings, progress, lambda r: partial(report(r)))
    )
    if plan.measures_overhead:
        progress("overhead of calls")
        found = _with(found, "overhead", lambda: measure_overhead(samples))
    if plan.compile_times:
        progress("compile times")
        found = _with(found, "compile_times", measure_compile_times)
    return found


def _with(report: Report, part: str, measure: Callable[[], Any]) -> Report:
    """Add a part to a report, or a note that says why it is missing: the rest is not lost."""
    try:
        return replace(report, **{part: measure()})
    except Exception as error:
        return replace(report, notes=(*report.notes, f"no {part}: {type(error).__name__}: {error}"))


def _cublas() -> tuple[Cublas | None, tuple[str, ...]]:
    """Return cuBLAS, or None and a note that says why it is missing."""
    try:
        return Cublas(), ()
    except RuntimeError as error:
        return None, (f"no comparison with cuBLAS: {error}",)
