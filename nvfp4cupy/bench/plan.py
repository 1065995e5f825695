"""What a run is asked to measure, and the cases that come of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nvfp4cupy import layouts
from nvfp4cupy.bench.cases import Group, select
from nvfp4cupy.bench.gemm_cases import gemm_groups
from nvfp4cupy.bench.peers import torch_gemm_case, torch_groups
from nvfp4cupy.bench.quantize_cases import quantize_groups
from nvfp4cupy.bench.swiglu_cases import repack_groups, swiglu_groups

if TYPE_CHECKING:
    from nvfp4cupy.bench.cublas import Cublas

__all__ = ["BenchPlan"]

# A 27B model's feed-forward, and a square.
_WEIGHTS = ((17408, 5120), (5120, 17408), (8192, 8192))
_MS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
_QUICK_MS = (1, 16, 128, 4096)
_SHAPES = ((8192, 8192),)
# Patterns that name no case.
_CEILINGS, _OVERHEAD = "ceilings", "overhead"


@dataclass(frozen=True)
class BenchPlan:
    """What to measure.

    Attributes:
        patterns: parts of case ids, or patterns with ``*``; ``"overhead"`` is the cost of calls,
            ``"ceilings"`` nothing besides the ceilings. None of them: everything.
        ms: numbers of activation rows of the products; None for a range from 1 to 4096.
        weights: n and k of the products' weights; None for three large ones.
        shapes: rows and columns for the other kernels.
        quick: fewer sizes, fewer replays.
        peers: whether to time torch too.
        compile_times: whether to time the compiler.
    """

    patterns: tuple[str, ...] = ()
    ms: tuple[int, ...] | None = None
    weights: tuple[tuple[int, int], ...] | None = None
    shapes: tuple[tuple[int, int], ...] = _SHAPES
    quick: bool = False
    peers: bool = False
    compile_times: bool = False

    def __post_init__(self) -> None:
        """Refuse sizes that no kernel takes."""
        for m in self.ms or ():
            if m < 1:
                raise ValueError(f"m must be at least 1, got {m}")
        for n, k in self.weights or ():
            if n < 1 or k < 1 or k % layouts.QK_NVFP4:
                raise ValueError(
                    f"n must be at least 1 and k a multiple of {layouts.QK_NVFP4}, got {n}x{k}"
                )
        for rows, columns in self.shapes:
            if rows < 1 or columns < 1 or columns % 32:  # half of them are deinterleaved
                raise ValueError(
                    f"shape must be rows and a multiple of 32 columns, got {rows}x{columns}"
                )

    @property
    def num_replays(self) -> int:
        """How often each graph is timed."""
        return 5 if self.quick else 11

    @property
    def measures_overhead(self) -> bool:
        """Whether the cost of calls is asked for."""
        return not self.patterns or _OVERHEAD in self.patterns

    def groups(self, blas: Cublas | None) -> list[Group]:
        """Return the groups to time.

        Args:
            blas: what products are compared with, or None.

        Raises:
            ValueError: a pattern names nothing.
        """
        patterns = [p for p in self.patterns if p not in (_CEILINGS, _OVERHEAD)]
        if self.patterns and not patterns:
            return []
        return select(self._all_groups(blas), patterns)

    def _all_groups(self, blas: Cublas | None) -> list[Group]:
        ms = tuple(dict.fromkeys(self.ms or (_QUICK_MS if self.quick else _MS)))
        weights: Sequence[tuple[int, int]] = self.weights or _WEIGHTS
        if self.quick and self.weights is None:
            weights = weights[:1]
        peers = [torch_gemm_case] if self.peers else []
        return [
            *quantize_groups(self.shapes),
            *swiglu_groups(self.shapes),
            *repack_groups(weights[:1]),
            *gemm_groups(ms, weights, blas, peers),
            *(torch_groups(self.shapes) if self.peers else []),
        ]
