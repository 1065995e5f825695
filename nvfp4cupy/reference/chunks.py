"""Cut a matrix into pieces that fit the cache, so that temporaries stay small."""

from __future__ import annotations

from collections.abc import Iterator

from nvfp4cupy.formats import GROUP_SIZE

# 2^16 float32 values are 256 KB: a few temporaries fit the second-level cache of one core, and
# NumPy's cost per call is small beside the work.
CHUNK_VALUES = 1 << 16


def chunks(rows: int, cols: int) -> Iterator[tuple[slice, slice]]:
    """Yield ``(row slice, column slice)`` pieces that tile ``(rows, cols)``.

    Pieces hold about ``CHUNK_VALUES`` values; columns are cut only when one row is longer, at
    multiples of 16.
    """
    if rows == 0 or cols == 0:
        return
    width = min(cols, CHUNK_VALUES // GROUP_SIZE * GROUP_SIZE)
    height = max(1, CHUNK_VALUES // width)
    for top in range(0, rows, height):
        for left in range(0, cols, width):
            yield slice(top, min(top + height, rows)), slice(left, min(left + width, cols))
