"""Reports as text and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvfp4cupy.bench.ceilings import Ceilings
from nvfp4cupy.bench.report import CallOverhead, CompileTime, Report, Result

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "ceilings_line",
    "print_report",
    "result_cells",
    "results_table",
    "short_rate",
    "short_seconds",
]

_NOTHING = "-"
_LEFT = ("kernel", "variant", "shape")
_RIGHT = ("µs", "±", "rate", "floor µs", "of floor", "x base")
_CAPTION = (
    "µs: median of graph replays, per call; ±: half the distance from the 10th to the 90th "
    "percentile; floor: the larger of bytes / copy rate and operations / cuBLAS rate; x base: "
    "speed-up, for products over cuBLAS bf16 on the same sizes, for amax_quantize_nvfp4 over "
    "quantize_nvfp4_from_buffer alone; *: buffers that fit into the L2."
)


def short_seconds(seconds: float) -> str:
    """Return a time in microseconds with about four digits."""
    micros = seconds * 1e6
    digits = 2 if micros < 100 else 1 if micros < 1000 else 0
    return f"{micros:,.{digits}f}"


def short_rate(result: Result) -> str:
    """Return operations per second in TFLOP/s, or bytes per second in GB/s."""
    if result.rate is None:
        return _NOTHING
    if result.flops:
        return f"{result.rate / 1e12:.1f} TFLOP/s"
    return f"{result.rate / 1e9:,.0f} GB/s"


def ceilings_line(ceilings: Ceilings) -> str:
    """Return the measured ceilings as one line."""
    size = ceilings.gemm_size
    gemm = "not measured"
    if ceilings.gemm_rate is not None:
        gemm = f"{ceilings.gemm_rate / 1e12:.0f} TFLOP/s at {size}x{size}x{size}"
    return (
        f"ceilings: copy {ceilings.copy_rate / 1e12:.3f} TB/s (array of "
        f"{ceilings.copy_bytes / 2**30:.1f} GiB, read + written), cuBLAS bf16 {gemm}, "
        f"empty kernel {short_seconds(ceilings.empty_seconds)} µs"
    )


def result_cells(result: Result) -> list[str]:
    """Return the cells of a case's row; see the table's caption for their meaning."""
    cells = [result.name, result.variant, result.shape]
    if result.timing is None:
        return [*cells, "failed", *[_NOTHING] * (len(_RIGHT) - 1)]
    return [
        *cells,
        short_seconds(result.timing.median) + ("" if result.is_cold else "*"),
        f"{result.timing.spread:.1%}",
        short_rate(result),
        short_seconds(result.floor),
        f"{result.of_floor:.0%}",
        _NOTHING if result.speedup is None else f"{result.speedup:.2f}",
    ]


def against_cell(result: Result, saved: Result | None) -> str:
    """Return how many times faster a case is than in a saved run."""
    if saved is None or saved.timing is None or result.timing is None:
        return _NOTHING
    return f"{saved.timing.median / result.timing.median:.2f}"


def results_table(report: Report, saved: Report | None = None) -> Table:
    """Return the table of all cases.

    Args:
        report: what was measured.
        saved: an earlier run, to be compared with in one more column.
    """
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0), caption=_CAPTION, caption_justify="left")
    for name in _LEFT:
        table.add_column(name, overflow="fold")
    for name in (*_RIGHT, *(["x saved"] if saved else [])):
        table.add_column(name, justify="right", no_wrap=True)
    earlier = {r.id: r for r in saved.results} if saved else {}
    for result, following in zip(report.results, [*report.results[1:], None], strict=True):
        cells = result_cells(result)
        if saved:
            cells.append(against_cell(result, earlier.get(result.id)))
        is_last = following is None or _num_rows(following) != _num_rows(result)
        table.add_row(*cells, end_section=is_last)
    return table


def _num_rows(result: Result) -> str:
    """Return m, or the rows: what the cases of a block have in common."""
    return result.shape.partition("x")[0]


def print_report(report: Report, console: Console, saved: Report | None = None) -> None:
    """Print a report.

    Args:
        report: what was measured.
        console: where to.
        saved: an earlier run, to be compared with.
    """
    lines = [report.device.header, ceilings_line(report.ceilings)]
    if saved:
        lines.append(f"x saved: speed-up over: {saved.device.header}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if report.results:
        console.print(results_table(report, saved))
    if report.overhead:
        console.print(overhead_table(report.overhead))
    if report.compile_times:
        console.print(compile_table(report.compile_times))
    failures = [f"failed: {result.id}: {result.error}" for result in report.failed]
    for line in (*report.notes, *failures):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def overhead_table(overhead: tuple[CallOverhead, ...]) -> Table:
    """Return the table of what a call costs on the host."""
    from rich.table import Table

    table = Table("call with out=", title="Host time of a call")
    for name in ("arguments", "µs", "bare RawKernel µs", "more µs"):
        table.add_column(name, justify="right")
    for item in overhead:
        numbers = map(short_seconds, (item.call, item.bare, item.call - item.bare))
        table.add_row(item.name, str(item.num_args), *numbers)
    return table


def compile_table(times: tuple[CompileTime, ...]) -> Table:
    """Return the table of compile times."""
    from rich.table import Table

    table = Table("source", title="Compiling at run time")
    for name in ("cold s", "cached ms"):
        table.add_column(name, justify="right")
    for item in times:
        table.add_row(item.source, f"{item.cold:.2f}", f"{item.cached * 1e3:.1f}")
    table.add_section()
    cold, cached = (sum(getattr(t, name) for t in times) for name in ("cold", "cached"))
    table.add_row("together", f"{cold:.2f}", f"{cached * 1e3:.1f}")
    return table
