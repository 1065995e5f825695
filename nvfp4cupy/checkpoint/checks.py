"""Scales that no writer may write: bytes that are NaN or negative, unusable global scales."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nvfp4cupy.checkpoint.global_scale import is_usable
from nvfp4cupy.checkpoint.weight import NVFP4Weight
from nvfp4cupy.formats import E4M3_MAX_BYTE, GROUP_SIZE, U8
from nvfp4cupy.layouts import QK_NVFP4

# Scales looked at in one go: the map of a large file never has to be in memory as a whole.
_CHUNK_SCALES = 1 << 22


@dataclass(frozen=True)
class BadScale:
    """A scale byte that is NaN or negative.

    Attributes:
        expert: index in a stack, None for one matrix.
        row: row of the matrix.
        block: index of the group of 16 columns.
        byte: the byte.
    """

    expert: int | None
    row: int
    block: int
    byte: int

    def __str__(self) -> str:
        """Name the byte and the place."""
        what = "NaN" if self.byte & 0x7F == 0x7F else "negative"
        place = f"row {self.row}, block {self.block}"
        expert = "" if self.expert is None else f" of expert {self.expert}"
        return f"scale byte 0x{self.byte:02X} ({what}) at {place}{expert}"


def check_weight(weight: NVFP4Weight) -> None:
    """Check that a weight may be written.

    Raises:
        ValueError: a scale byte is 0x7F or has the top bit set, or a global scale is not finite
            and above zero.
    """
    for field in ("decode_scale", "input_scale"):
        scale = getattr(weight, field)
        if scale is not None and not is_usable(scale):
            raise ValueError(f"{field} of {weight.name} must be finite and above zero, got {scale}")
    if bad := first_bad_scale(weight):
        raise ValueError(f"{weight.name} has {bad}")


def first_bad_scale(weight: NVFP4Weight) -> BadScale | None:
    """Return the first bad scale byte of a weight, None when all are good."""
    return next(bad_scales(weight), None)


def bad_scales(weight: NVFP4Weight) -> Iterator[BadScale]:
    """Yield the bad scale bytes of a weight in order."""
    for first_row, scales in _scale_rows(weight):
        for i, block in np.argwhere(scales > E4M3_MAX_BYTE):
            row, expert = first_row + int(i), None
            if weight.num_experts is not None:
                expert, row = divmod(row, weight.shape[-2])
            yield BadScale(expert, row, int(block), int(scales[i, block]))


def max_scale_byte(weight: NVFP4Weight) -> int:
    """Return the largest good scale byte of a weight, 0 for an empty one."""
    largest = 0
    for _, scales in _scale_rows(weight):
        good = np.where(scales > E4M3_MAX_BYTE, np.uint8(0), scales)
        largest = max(largest, int(good.max(initial=0)))
    return largest


def _scale_rows(weight: NVFP4Weight) -> Iterator[tuple[int, U8]]:
    """Yield (first row, scales ``(rows, k/16)``), all experts one below the other."""
    *leading, k = weight.shape
    num_rows, cols = math.prod(leading), k // GROUP_SIZE
    if weight.scales is not None:
        scales = weight.scales.reshape(num_rows, cols)
    else:
        # A view of the 4 scale bytes of each block, (rows, k/64, 4).
        blocks = weight.codes.reshape(num_rows, *weight.codes.shape[-2:])
        scales = blocks[..., : QK_NVFP4 // GROUP_SIZE]
    step = max(1, _CHUNK_SCALES // max(1, cols))
    for row in range(0, num_rows, step):
        chunk = scales[row : row + step]
        yield row, chunk.reshape(chunk.shape[0], cols)
