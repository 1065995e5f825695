"""Checks and times groups of cases: correct first, then in turn with one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from nvfp4cupy.bench.cases import Case, Group
from nvfp4cupy.bench.ceilings import Ceilings
from nvfp4cupy.bench.checks import poison
from nvfp4cupy.bench.report import Result
from nvfp4cupy.bench.samples import Samples
from nvfp4cupy.bench.timing import Program, Replay, Timer, num_buffer_sets, num_launches

__all__ = ["run_groups"]

Progress = Callable[[str], None]


def run_groups(
    groups: Sequence[Group],
    samples: Samples,
    timer: Timer,
    ceilings: Ceilings,
    progress: Progress = lambda _: None,
    partial: Callable[[Sequence[Result]], None] = lambda _: None,
) -> list[Result]:
    """Check and time all cases.

    A case whose result is wrong, or that cannot run, is reported as such and not timed.

    Args:
        groups: the cases.
        samples: where operands come from; emptied after each group.
        timer: what measures.
        ceilings: what floors are counted with.
        progress: is told what is being done.
        partial: gets all results so far after each group.
    """
    results: list[Result] = []
    for group in groups:
        progress(group.title)
        results += _run_group(group, samples, timer, ceilings)
        with suppress(Exception):  # after a fault on the device nothing works, not even this
            samples.clear()
        partial(results)
    return results


def _run_group(group: Group, samples: Samples, timer: Timer, ceilings: Ceilings) -> list[Result]:
    replays: dict[str, Replay] = {}
    results: dict[str, Result] = {}
    for case in group.cases:
        num_sets = num_buffer_sets(case.num_bytes, timer.l2_bytes)
        results[case.id] = _blank_result(case, num_sets, timer, ceilings)
        try:
            replays[case.id] = timer.capture(_checked_program(case, samples, num_sets))
        except Exception as error:  # reported in the table; the other cases go on
            results[case.id] = replace(results[case.id], error=_one_line(error))
    try:
        timings = timer.time(replays)
    except Exception as error:  # a fault that shows only now; no telling which case it was
        return [replace(r, error=r.error or _one_line(error)) for r in results.values()]
    for case_id, timing in timings.items():
        results[case_id] = replace(results[case_id], timing=timing)
    return [_compared(result, results) for result in results.values()]


def _blank_result(case: Case, num_sets: int, timer: Timer, ceilings: Ceilings) -> Result:
    return Result(
        name=case.name,
        variant=case.variant,
        shape=case.shape,
        num_bytes=case.num_bytes,
        flops=case.flops,
        floor=ceilings.floor(case.num_bytes, case.flops),
        timing=None,
        # The bound on the sets may have kept them smaller together than was asked for.
        is_cold=num_buffer_sets(num_sets * case.num_bytes, timer.l2_bytes) == 1,
        baseline=case.baseline,
    )


def _checked_program(case: Case, samples: Samples, num_sets: int) -> Program:
    """Make the buffers, compare one call with the reference, return what is to be timed."""
    works = [case.make(samples, i) for i in range(num_sets)]
    poison(works[0].outputs)
    works[0].call()
    works[0].check()
    return Program([work.call for work in works], num_launches(num_sets), case.capture)


def _compared(result: Result, results: dict[str, Result]) -> Result:
    baseline = results.get(result.baseline)
    if baseline is None or baseline.timing is None or result.timing is None:
        return result
    return replace(result, speedup=baseline.timing.median / result.timing.median)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text}"
