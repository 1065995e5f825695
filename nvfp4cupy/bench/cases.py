"""What is timed, as data: names, bytes, operations, and how to make one set of buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from nvfp4cupy.bench.samples import Samples
from nvfp4cupy.bench.timing import Capture

__all__ = ["Case", "Group", "Work", "select"]


@dataclass(frozen=True)
class Work:
    """A call with its own buffers.

    Attributes:
        call: does the work on the current stream; nothing is allocated.
        outputs: what the call writes, to be poisoned before it is checked.
        check: raises WrongResultError if the outputs of the last call are not right.
    """

    call: Callable[[], Any]
    outputs: Sequence[Any]
    check: Callable[[], None]


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        name: the public function, or the peer.
        variant: which kernel or option of it.
        shape: sizes, such as ``"8192x8192"``; ``"m x n x k"`` for products.
        num_bytes: fewest bytes the call must read and write.
        make: makes the i-th set of buffers.
        flops: operations on the matrix units.
        baseline: id of the case in the same group that its time is compared with.
        capture: how another library's work gets into a CUDA graph.
    """

    name: str
    variant: str
    shape: str
    num_bytes: int
    make: Callable[[Samples, int], Work]
    flops: int = 0
    baseline: str = ""
    capture: Capture | None = None

    @property
    def id(self) -> str:
        """What patterns are compared with: ``name/variant/shape``."""
        return f"{self.name}/{self.variant}/{self.shape}"


@dataclass(frozen=True)
class Group:
    """Cases that are timed in turn with one another, and share buffers."""

    title: str
    cases: tuple[Case, ...]


def select(groups: Iterable[Group], patterns: Sequence[str]) -> list[Group]:
    """Keep the cases that a pattern names, and the baselines that they need.

    Args:
        groups: all groups.
        patterns: a part of an id, or with ``*``, ``?`` or ``[`` a pattern for all of it; none of
            them keeps everything.

    Raises:
        ValueError: a pattern names nothing.
    """
    groups = list(groups)
    ids = [case.id for group in groups for case in group.cases]
    for pattern in patterns:
        if not any(_matches(pattern, case_id) for case_id in ids):
            names = sorted({case.name for group in groups for case in group.cases})
            raise ValueError(f"nothing to time is named {pattern!r}; there is: {', '.join(names)}")
    kept = []
    for group in groups:
        wanted = [c for c in group.cases if not patterns or _any_matches(patterns, c.id)]
        baselines = {case.baseline for case in wanted}
        cases = tuple(c for c in group.cases if c in wanted or c.id in baselines)
        if cases:
            kept.append(Group(group.title, cases))
    return kept


def _any_matches(patterns: Sequence[str], case_id: str) -> bool:
    return any(_matches(pattern, case_id) for pattern in patterns)


def _matches(pattern: str, case_id: str) -> bool:
    if not set(pattern) & set("*?["):
        pattern = f"*{pattern}*"
    return fnmatchcase(case_id, pattern)
