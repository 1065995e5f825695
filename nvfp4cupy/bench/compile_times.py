"""How long the sources take to compile at run time, and to load in a second process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nvfp4cupy
from nvfp4cupy import sources
from nvfp4cupy.arrays import cupy
from nvfp4cupy.bench.raw import raw_module
from nvfp4cupy.bench.report import CompileTime

__all__ = ["measure_compile_times"]

_CHILD = "from nvfp4cupy.bench.compile_times import print_times; print_times()"


def measure_compile_times() -> tuple[CompileTime, ...]:
    """Time the default variant of every source in two processes with a cache of their own.

    Raises:
        RuntimeError: a source does not compile, or a process fails; its output is in the message.
    """
    with tempfile.TemporaryDirectory() as cache:
        cold, cached = (_run_child(cache) for _ in range(2))
    return tuple(CompileTime(name, cold[name], cached[name]) for name in cold)


def _run_child(cache: str) -> dict[str, float]:
    package_folder = str(Path(nvfp4cupy.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [package_folder, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "CUPY_CACHE_DIR": cache, "PYTHONPATH": path}
    result = subprocess.run(
        [sys.executable, "-c", _CHILD], capture_output=True, text=True, env=environment
    )
    if result.returncode != 0:
        raise RuntimeError(f"timing the compiler failed:\n{result.stderr}")
    times: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return times


def print_times() -> None:
    """Compile or load every source on the current device; print seconds by name as JSON."""
    # Loads NVRTC and makes the context, which the first user pays for whatever they compile.
    cupy().RawKernel('extern "C" __global__ void first() {}', "first").compile()
    cupy().zeros(1)
    times = {}
    for name in sources.kernel_files():
        sources.expand(name)  # reading the files is no part of it: a call keeps their text
        start = time.perf_counter()
        raw_module(name)
        times[name] = time.perf_counter() - start
    print(json.dumps(times))
