"""Times kernels against the device's own ceilings, prints and saves a table."""

from __future__ import annotations

from nvfp4cupy.bench.plan import BenchPlan
from nvfp4cupy.bench.report import Report, load, save
from nvfp4cupy.bench.run import run_bench, run_selftest
from nvfp4cupy.bench.table import print_report

__all__ = ["BenchPlan", "Report", "load", "print_report", "run_bench", "run_selftest", "save"]
