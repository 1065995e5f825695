"""What a run found, as data that goes to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from nvfp4cupy.bench.ceilings import Ceilings
from nvfp4cupy.bench.device import DeviceInfo
from nvfp4cupy.bench.timing import Timing
from nvfp4cupy.checkpoint.atomic import atomic_path

__all__ = ["CallOverhead", "CompileTime", "Report", "Result", "load", "save"]

_FORMAT = 1
_T = TypeVar("_T")


@dataclass(frozen=True)
class Result:
    """One case: what it does, and how long that took.

    Attributes:
        name: the public function, or the peer.
        variant: which kernel or option of it.
        shape: sizes.
        num_bytes: fewest bytes the call moves.
        flops: operations on the matrix units.
        floor: seconds that the ceilings allow.
        timing: None when there is none because of ``error``.
        is_cold: whether its buffers together are too large for the L2.
        baseline: id of the case that ``speedup`` refers to.
        speedup: the baseline's time divided by this one's.
        error: why it was not timed.
    """

    name: str
    variant: str
    shape: str
    num_bytes: int
    flops: int
    floor: float
    timing: Timing | None
    is_cold: bool
    baseline: str = ""
    speedup: float | None = None
    error: str = ""

    @property
    def id(self) -> str:
        """``name/variant/shape``."""
        return f"{self.name}/{self.variant}/{self.shape}"

    @property
    def of_floor(self) -> float | None:
        """The floor's time divided by the measured one."""
        return self.floor / self.timing.median if self.timing else None

    @property
    def rate(self) -> float | None:
        """Operations per second, or bytes per second where there are none."""
        return (self.flops or self.num_bytes) / self.timing.median if self.timing else None


@dataclass(frozen=True)
class CallOverhead:
    """Host seconds of a call, medians.

    Attributes:
        name: the public function.
        num_args: parameters of its kernel.
        call: the public function with ``out=``, check to launch.
        bare: a cached CuPy RawKernel with the same arguments, already of the right types.
    """

    name: str
    num_args: int
    call: float
    bare: float


@dataclass(frozen=True)
class CompileTime:
    """Seconds that a source takes until its kernels can be launched.

    Attributes:
        source: file name.
        cold: compiled by NVRTC.
        cached: in a second process, from CuPy's cache.
    """

    source: str
    cold: float
    cached: float


@dataclass(frozen=True)
class Report:
    """Everything that one run found."""

    device: DeviceInfo
    ceilings: Ceilings
    results: tuple[Result, ...]
    overhead: tuple[CallOverhead, ...] = ()
    compile_times: tuple[CompileTime, ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def failed(self) -> list[Result]:
        """The cases that were not timed because of an error."""
        return [result for result in self.results if result.error]

    def to_json(self) -> str:
        """Return the report as one JSON object."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Undo `to_json`.

        Raises:
            ValueError: it is not such a report.
        """
        try:
            data = json.loads(text)
            if data["format"] != _FORMAT:
                raise ValueError(f"format {data['format']}, this version reads {_FORMAT}")
            return cls(
                device=_build(DeviceInfo, data["device"]),
                ceilings=_build(Ceilings, data["ceilings"]),
                results=tuple(_build(Result, item) for item in data["results"]),
                overhead=tuple(_build(CallOverhead, item) for item in data["overhead"]),
                compile_times=tuple(_build(CompileTime, item) for item in data["compile_times"]),
                notes=tuple(data["notes"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a report of nvfp4cupy bench: {error!r}") from error


def _build(cls: type[_T], data: Mapping[str, Any]) -> _T:
    """Make a dataclass from a JSON object; timings are objects in it."""
    values = dict(data)
    for item in fields(cls):  # type: ignore[arg-type]
        if item.type in ("Timing", "Timing | None") and values[item.name] is not None:
            values[item.name] = Timing(**values[item.name])
    return cls(**values)


def save(report: Report, path: Path) -> None:
    """Write a report, whole or not at all.

    Raises:
        OSError: the folder does not exist, or cannot be written to.
    """
    with atomic_path(path) as temporary:
        temporary.write_text(report.to_json() + "\n", encoding="utf-8")


def load(path: Path) -> Report:
    """Read what `save` wrote.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not a report; the message names the file.
    """
    try:
        return Report.from_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
