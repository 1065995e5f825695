"""What a call costs on the host: the public function beside a bare RawKernel."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from nvfp4cupy import ops
from nvfp4cupy.arrays import cupy
from nvfp4cupy.bench.raw import raw_kernel
from nvfp4cupy.bench.report import CallOverhead
from nvfp4cupy.bench.samples import Samples
from nvfp4cupy.launch import LaunchConfig
from nvfp4cupy.launchers.mmq import MmqGemmTiled
from nvfp4cupy.launchers.quantize import AmaxGsa, QuantizeFromBuffer
from nvfp4cupy.launchers.swiglu import ScaleBf16

__all__ = ["host_seconds", "measure_overhead"]

# Few enough that no call waits for a place in the device's queue, which holds about a thousand.
_CALLS = 50
_BATCHES = 41


@dataclass(frozen=True)
class _Pair:
    """A public call, and the launch it comes down to."""

    name: str
    call: Callable[[], Any]
    config: LaunchConfig
    values: tuple[Any, ...]


def measure_overhead(samples: Samples) -> tuple[CallOverhead, ...]:
    """Time some calls on the current device; their kernels take less time than the calls.

    Args:
        samples: where operands come from.
    """
    device = cupy().cuda.Device()
    found = []
    for pair in _pairs(samples):
        config, kernel = pair.config, raw_kernel(pair.config)
        args = config.bound_values(pair.values, device.id)

        def bare(config: LaunchConfig = config, kernel: Any = kernel, args: Any = args) -> None:
            kernel(config.grid, config.block, args, shared_mem=config.shared_mem)

        seconds = host_seconds({"call": pair.call, "bare": bare}, device.synchronize)
        found.append(CallOverhead(pair.name, len(args), seconds["call"], seconds["bare"]))
    samples.clear()
    return tuple(found)


def host_seconds(
    calls: Mapping[str, Callable[[], Any]],
    synchronize: Callable[[], Any],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return the median host seconds of each call.

    Args:
        calls: by name; their batches alternate.
        synchronize: waits for the device, between batches and untimed.
        clock: tells seconds.
    """
    for call in calls.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_BATCHES):
        for name, call in calls.items():
            synchronize()
            start = clock()
            for _ in range(_CALLS):
                call()
            seconds[name].append((clock() - start) / _CALLS)
    synchronize()
    return {name: statistics.median(values) for name, values in seconds.items()}


def _pairs(s: Samples) -> list[_Pair]:
    m, n, k = 16, 128, 256
    x, gsa = s.bfloat16("x", m, k), s.empty("gsa", (m,), np.float32)
    codes = s.empty("codes", (m, k // 2), np.uint8)
    scales = s.empty("scales", (m, k // 16), np.uint8)
    act, blocks = s.act_blocks(m, k), s.weight_blocks(n, k)
    out = s.empty("out", (m, n), x.dtype)
    quantize = QuantizeFromBuffer.plan(m=m, n=k)
    gemm = MmqGemmTiled.plan(m=m, n=n, k=k, mmq_x=16)
    return [
        _Pair("amax_gsa", lambda: ops.amax_gsa(x, out=gsa), AmaxGsa.plan(m=m, n=k), (x, gsa)),
        _Pair(
            "nvfp4_scale_bf16",
            lambda: ops.nvfp4_scale_bf16(x, -1.0),
            ScaleBf16.plan(total=x.size),
            (x, -1.0),
        ),
        _Pair(
            "quantize_nvfp4_from_buffer",
            lambda: ops.quantize_nvfp4_from_buffer(x, gsa, out=(codes, scales)),
            quantize,
            (x, gsa, codes, scales),
        ),
        _Pair(
            "nvfp4_mmq_gemm_tiled",
            lambda: ops.nvfp4_mmq_gemm_tiled(act, blocks, mmq_x=16, out=out),
            gemm,
            (blocks, act, out),
        ),
    ]
