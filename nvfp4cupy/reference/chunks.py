"""Cut a matrix into pieces that fit the cache, so that temporaries stay small."""

from __future__ import annotations

from collections.abc import Iterator

from nvfp4cupy.formats import GROUP_SIZE

# 2^15 float32 values are 128 KB: a handful of temporaries fit a 512 KB to 1 MB second-level cache.
CHUNK_VALUES = 1 << 15


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
