"""Times GPU work in CUDA graphs, and the statistics of what was measured."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from nvfp4cupy.arrays import cupy
from nvfp4cupy.layouts import div_ceil, round_up

__all__ = [
    "MIN_LAUNCHES",
    "GraphTimer",
    "Program",
    "Replay",
    "Timer",
    "Timing",
    "num_buffer_sets",
    "num_launches",
]

# One launch between two events swings with the host; of 20 and more only the mean is seen.
MIN_LAUNCHES = 20
# Data under three times the L2 is rotated among buffers, or replays would read it from the L2.
_L2_MULTIPLE = 3
# Bounds the buffers of a call that moves next to nothing, whose time they would not change.
_MAX_BUFFER_SETS = 64
# A copy this large takes longer than the host needs to submit a round.
_PLUG_BYTES = 1 << 30

Capture = Callable[[Sequence[Callable[[], Any]]], Callable[[], None]]


@dataclass(frozen=True)
class Timing:
    """Seconds of one call.

    Attributes:
        median: over the replays, each the mean of its launches.
        low: the 10th percentile.
        high: the 90th percentile.
        replays: how often the graph was timed.
        launches: calls in one graph.
    """

    median: float
    low: float
    high: float
    replays: int
    launches: int

    @property
    def spread(self) -> float:
        """Half the distance from ``low`` to ``high``, as a part of the median."""
        return (self.high - self.low) / (2 * self.median) if self.median else 0.0

    @classmethod
    def of(cls, seconds: Sequence[float], launches: int) -> Timing:
        """Summarise the times of replays.

        Args:
            seconds: of one call, one number for each replay.
            launches: calls in one replay.
        """
        ordered = sorted(seconds)
        low, high = (_percentile(ordered, part) for part in (0.1, 0.9))
        return cls(statistics.median(ordered), low, high, len(ordered), launches)


def _percentile(ordered: Sequence[float], part: float) -> float:
    """Return the value below which ``part`` of the sorted numbers lie, between neighbours."""
    place = part * (len(ordered) - 1)
    i = int(place)
    upper = ordered[min(i + 1, len(ordered) - 1)]
    return ordered[i] + (place - i) * (upper - ordered[i])


def num_buffer_sets(num_bytes: int, l2_bytes: int) -> int:
    """Return how many sets of buffers keep a call's data out of the L2.

    Args:
        num_bytes: what one call reads and writes.
        l2_bytes: size of the device's L2.
    """
    return min(_MAX_BUFFER_SETS, max(1, div_ceil(_L2_MULTIPLE * l2_bytes, max(1, num_bytes))))


def num_launches(num_sets: int) -> int:
    """Return how many calls a graph holds: at least 20, and each buffer set equally often."""
    return round_up(MIN_LAUNCHES, num_sets)


@dataclass(frozen=True)
class Program:
    """What is timed.

    Attributes:
        calls: one call for each set of buffers; they are made in turn.
        launches: calls in one graph.
        capture: makes the replay where CuPy's stream capture does not do (another library's
            graphs); gets the calls in order, returns what replays them on the current stream.
    """

    calls: Sequence[Callable[[], Any]]
    launches: int
    capture: Capture | None = None

    @property
    def in_order(self) -> list[Callable[[], Any]]:
        """The calls of one graph."""
        return [self.calls[i % len(self.calls)] for i in range(self.launches)]


@dataclass(frozen=True)
class Replay:
    """A program that is ready to be timed.

    Attributes:
        run: submits all its calls to the current stream.
        launches: how many calls that are.
        keep: what must stay alive as long as the replay does.
    """

    run: Callable[[], None]
    launches: int
    keep: Any = None


class Timer(Protocol):
    """Measures programs."""

    @property
    def l2_bytes(self) -> int:
        """Size of the device's L2."""

    def capture(self, program: Program) -> Replay:
        """Make a program ready to be timed."""

    def time(self, replays: Mapping[str, Replay]) -> dict[str, Timing]:
        """Time replays in turn with one another; return the timing of each."""


class GraphTimer:
    """Replays CUDA graphs between two events, in random order, on a device that is kept busy.

    Args:
        l2_bytes: size of the device's L2.
        replays: how often each program is timed.
        seed: of the random order.
    """

    def __init__(self, l2_bytes: int, replays: int = 11, seed: int = 0) -> None:
        """Create the stream that everything runs on."""
        self.l2_bytes = l2_bytes
        self.replays = replays
        self._random = random.Random(seed)
        self._stream = cupy().cuda.Stream(non_blocking=True)
        self._plug: Any = None

    def capture(self, program: Program) -> Replay:
        """Capture a program into a CUDA graph.

        Args:
            program: its calls run once before the capture.
        """
        cupy().cuda.Device().synchronize()  # what the calls read may come from other streams
        with self._stream:
            for call in program.calls:  # compiles, and sets what cannot be set in a capture
                call()
            self._stream.synchronize()
            if program.capture is None:
                run = self._captured(program)
            else:
                run = program.capture(program.in_order)
        return Replay(run, program.launches, program)

    def time(self, replays: Mapping[str, Replay]) -> dict[str, Timing]:
        """Time replays in several rounds, each in another random order.

        Args:
            replays: by name.

        Returns:
            A timing for each name.
        """
        cupy().cuda.Device().synchronize()
        seconds: dict[str, list[float]] = {name: [] for name in replays}
        with self._stream:
            for replay in replays.values():
                replay.run()
            for _ in range(self.replays):
                for name, elapsed in self._round(replays).items():
                    seconds[name].append(elapsed / replays[name].launches)
        return {name: Timing.of(seconds[name], r.launches) for name, r in replays.items()}

    def time_one(self, program: Program) -> Timing:
        """Capture and time one program."""
        return self.time({"": self.capture(program)})[""]

    def time_direct(self, call: Callable[[], Any], launches: int) -> Timing:
        """Time a call outside a graph: a captured copy would run on the slower copy engine.

        Args:
            call: submits work to the current stream.
            launches: calls between two events.
        """

        def run() -> None:
            for _ in range(launches):
                call()

        return self.time({"": Replay(run, launches)})[""]

    def _captured(self, program: Program) -> Callable[[], None]:
        """Return what replays the program's graph on this timer's stream."""
        self._stream.begin_capture()
        try:
            for call in program.in_order:
                call()
        except BaseException:
            with suppress(Exception):  # the capture may be invalid already; leave it either way
                self._stream.end_capture()
            raise
        graph = self._stream.end_capture()

        def launch() -> None:
            graph.launch(self._stream)

        return launch

    def _round(self, replays: Mapping[str, Replay]) -> dict[str, float]:
        """Replay each once in random order; return seconds of each."""
        names = list(replays)
        self._random.shuffle(names)
        events = {name: tuple(cupy().cuda.Event() for _ in range(2)) for name in names}
        self._keep_busy()
        for name in names:
            start, stop = events[name]
            start.record(self._stream)
            replays[name].run()
            stop.record(self._stream)
        self._stream.synchronize()
        return {n: cupy().cuda.get_elapsed_time(*events[n]) / 1e3 for n in names}

    def _keep_busy(self) -> None:
        """Give the device a copy to do, so that the host runs ahead and no launch waits for it."""
        if self._plug is None:
            free, _ = cupy().cuda.runtime.memGetInfo()
            half = min(_PLUG_BYTES, free // 4) // 2
            self._plug = cupy().ones((2, half), "uint8")
        source, target = self._plug
        target.data.copy_from_device_async(source.data, source.nbytes, self._stream)
