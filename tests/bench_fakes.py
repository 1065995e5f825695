"""What tests of the bench share: a timer without a GPU, and reports with known numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nvfp4cupy import ops
from nvfp4cupy.bench import BenchPlan, Report
from nvfp4cupy.bench.ceilings import Ceilings
from nvfp4cupy.bench.device import DeviceInfo
from nvfp4cupy.bench.report import Result
from nvfp4cupy.bench.timing import Program, Replay, Timing

TIMING = Timing(100e-6, 99e-6, 103e-6, 11, 20)
CEILINGS = Ceilings(4e12, 800e12, 0.65e-6, TIMING, TIMING, 2 << 30, 8192)
DEVICE = DeviceInfo(
    *("Some GPU", "9.0", 132, 60_000_000, 140 << 30, "580.1", "13.0", "13.0", "14.2.0", "0.1.0"),
    *("portable mma (sm_90)", "2026-01-02T03:04:05+00:00"),
)
SMALL = BenchPlan(ms=(1, 20), weights=((40, 128),), shapes=((16, 1024),))


class FakeTimer:
    """Runs every call once, and says that a call took as many microseconds as were given."""

    def __init__(self, seconds: Callable[[str], float] = lambda _: 100e-6) -> None:
        self.l2_bytes = 1000
        self.seconds = seconds
        self.programs: list[Program] = []

    def capture(self, program: Program) -> Replay:
        self.programs.append(program)
        for call in program.calls:
            call()
        return Replay(lambda: None, program.launches)

    def time(self, replays: Mapping[str, Replay]) -> dict[str, Timing]:
        return {n: Timing.of([self.seconds(n)] * 3, r.launches) for n, r in replays.items()}


class FakeBlas:
    def gemm(self, x: Any, w: Any, out: Any) -> None:
        out[...] = (x.astype(np.float32) @ w.astype(np.float32).T).astype(out.dtype)


def report_of(*results: Result, **extra: Any) -> Report:
    return Report(DEVICE, CEILINGS, results, **extra)


def result_of(median: float | None, **changes: Any) -> Result:
    timing = None if median is None else Timing(median, 0.98 * median, 1.02 * median, 11, 20)
    result = Result("amax_gsa", "bf16", "8192x8192", 134_250_496, 0, 33.6e-6, timing, True)
    return dataclasses.replace(result, **changes)


# The public names behind which a kernel runs; the others are sizes and orders of bytes.
WITH_KERNEL = {
    name
    for name in ops.__all__
    if name.islower()
    and not name.endswith(("_bytes", "_smem"))
    and not name.endswith("swizzle_scales")
}
