"""What the device itself reaches: a copy, a bf16 product, an empty kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nvfp4cupy.arrays import cupy
from nvfp4cupy.bench.samples import Samples
from nvfp4cupy.bench.timing import MIN_LAUNCHES, GraphTimer, Program, Timing

if TYPE_CHECKING:
    from nvfp4cupy.bench.cublas import Cublas

__all__ = ["Ceilings", "measure_ceilings"]

_COPY_BYTES = 2 << 30
_COPIES = 5
_GEMM_SIZE = 8192
_EMPTY_LAUNCHES = 200
_EMPTY_KERNEL = 'extern "C" __global__ void empty_kernel() {}'


@dataclass(frozen=True)
class Ceilings:
    """Rates that a floor is counted with.

    Attributes:
        copy_rate: bytes per second of a device copy, read and written.
        gemm_rate: operations per second of cuBLAS in bf16, None when it is not usable.
        empty_seconds: one launch of an empty kernel in a graph.
        copy: the copy's timing.
        gemm: the product's timing.
        copy_bytes: size of the array that was copied.
        gemm_size: m, n and k of the product.
    """

    copy_rate: float
    gemm_rate: float | None
    empty_seconds: float
    copy: Timing
    gemm: Timing | None
    copy_bytes: int
    gemm_size: int

    def floor(self, num_bytes: int, flops: int) -> float:
        """Return the seconds below which a call cannot go, as far as these rates tell.

        Args:
            num_bytes: fewest bytes it must move through memory.
            flops: operations it does on the matrix units.
        """
        matrix = flops / self.gemm_rate if self.gemm_rate else 0.0
        return max(num_bytes / self.copy_rate, matrix)


def measure_ceilings(timer: GraphTimer, samples: Samples, blas: Cublas | None) -> Ceilings:
    """Measure the rates of the current device.

    Args:
        timer: what measures.
        samples: where operands come from.
        blas: cuBLAS, or None when it is not usable.
    """
    copy, copy_bytes = _time_copy(timer)
    gemm = None if blas is None else _time_gemm(timer, samples, blas)
    flops = 2 * _GEMM_SIZE**3
    return Ceilings(
        copy_rate=2 * copy_bytes / copy.median,  # every byte is read and written
        gemm_rate=None if gemm is None else flops / gemm.median,
        empty_seconds=_time_empty(timer).median,
        copy=copy,
        gemm=gemm,
        copy_bytes=copy_bytes,
        gemm_size=_GEMM_SIZE,
    )


def _time_copy(timer: GraphTimer) -> tuple[Timing, int]:
    free, _ = cupy().cuda.runtime.memGetInfo()
    num_bytes = min(_COPY_BYTES, free // 3)
    source, target = (cupy().full(num_bytes, value, "uint8") for value in (0x5A, 0))

    def copy() -> None:
        stream = cupy().cuda.get_current_stream()
        target.data.copy_from_device_async(source.data, num_bytes, stream)

    timing = timer.time_direct(copy, _COPIES)
    if not (target[:: num_bytes // 8] == 0x5A).all():
        raise RuntimeError("the device copy did not copy")
    return timing, num_bytes


def _time_gemm(timer: GraphTimer, samples: Samples, blas: Cublas) -> Timing:
    size = _GEMM_SIZE
    x, w = (samples.bfloat16(what, size, size) for what in ("ceiling x", "ceiling w"))
    out = samples.empty("ceiling out", (size, size), x.dtype)

    def multiply() -> None:
        blas.gemm(x, w, out)

    return timer.time_one(Program([multiply], MIN_LAUNCHES))


def _time_empty(timer: GraphTimer) -> Timing:
    kernel = cupy().RawKernel(_EMPTY_KERNEL, "empty_kernel")

    def launch() -> Any:
        kernel((1,), (32,), ())

    return timer.time_one(Program([launch], _EMPTY_LAUNCHES))
