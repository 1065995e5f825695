"""Reports of the bench go to JSON and back, and print what was measured."""

from __future__ import annotations

import io
import json

import pytest
from bench_fakes import report_of, result_of
from rich.console import Console

from nvfp4cupy.bench import Report, load, print_report, save
from nvfp4cupy.bench.report import CallOverhead, CompileTime
from nvfp4cupy.bench.table import result_cells, short_seconds


def printed(report: Report, saved: Report | None = None) -> str:
    console = Console(file=io.StringIO(), width=140)
    print_report(report, console, saved)
    return console.file.getvalue()


def test_a_report_survives_json(tmp_path) -> None:
    report = report_of(
        result_of(40e-6, speedup=1.5, baseline="x"),
        result_of(None, error="WrongResultError: gsa"),
        overhead=(CallOverhead("amax_gsa", 4, 12e-6, 7e-6),),
        compile_times=(CompileTime("amax_gsa.cu", 0.5, 0.01),),
        notes=("no comparison",),
    )
    assert Report.from_json(report.to_json()) == report
    save(report, tmp_path / "report.json")
    assert load(tmp_path / "report.json") == report
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]
    data = json.loads(report.to_json())
    assert data["results"][0]["timing"]["median"] == 40e-6


@pytest.mark.parametrize("text", ["", "{}", '{"format": 2}', '{"format": 1, "device": {}}'])
def test_another_file_is_refused_by_name(tmp_path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"other\.json: not a report of nvfp4cupy bench"):
        load(path)


def test_cells_of_a_row() -> None:
    assert result_cells(result_of(42e-6)) == [
        *("amax_gsa", "bf16", "8192x8192", "42.00", "2.0%", "3,196 GB/s", "33.60", "80%", "-")
    ]
    gemm = result_of(1e-3, flops=730 * 10**9, floor=0.95e-3, speedup=0.97, is_cold=False)
    assert result_cells(gemm)[3:] == ["1,000*", "2.0%", "730.0 TFLOP/s", "950.0", "95%", "0.97"]
    assert result_cells(result_of(None, error="x"))[3:5] == ["failed", "-"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.65e-6, "0.65"), (123.46e-6, "123.5"), (4.8621e-3, "4,862")]
)
def test_times_keep_about_four_digits(seconds: float, text: str) -> None:
    assert short_seconds(seconds) == text


def test_the_table_has_header_ceilings_floor_and_failures() -> None:
    text = printed(report_of(result_of(42e-6), result_of(None, error="WrongResultError: gsa: 1")))
    first, second, *_ = text.splitlines()
    assert first.startswith("Some GPU (9.0, 132 SMs, 140 GiB, 60 MB L2), driver 580.1, CUDA 13.0")
    assert "2026-01-02" in first
    assert second == (
        "ceilings: copy 4.000 TB/s (array of 2.0 GiB, read + written), cuBLAS bf16 800 TFLOP/s at "
        "8192x8192x8192, empty kernel 0.65 µs"
    )
    assert "of floor" in text
    assert "80%" in text
    assert "failed: amax_gsa/bf16/8192x8192: WrongResultError: gsa: 1" in text
    assert "saved" not in text


def test_against_a_saved_run() -> None:
    now = report_of(
        result_of(40e-6), result_of(50e-6, variant="fp16"), result_of(None, shape="8x8")
    )
    saved = report_of(result_of(60e-6), result_of(60e-6, shape="8x8"))
    lines = [line for line in printed(now, saved).splitlines() if line.startswith(" amax_gsa")]
    assert [line.split()[-1] for line in lines] == ["1.50", "-", "-"]
    assert "x saved: speed-up over: Some GPU" in printed(now, saved)


def test_overhead_and_compile_times_are_printed() -> None:
    overhead = (CallOverhead("amax_gsa", 4, 12.5e-6, 7.25e-6),)
    times = (CompileTime("a.cu", 0.5, 0.01), CompileTime("b.cu", 1.0, 0.02))
    text = printed(report_of(overhead=overhead, compile_times=times))
    for part in ("12.50", "7.25", "5.25", "a.cu", "1.50", "30.0"):
        assert part in text
