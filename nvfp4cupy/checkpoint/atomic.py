"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give a path in the same folder to write to; it takes the place of ``path`` at the end.

    When the body raises, whatever was written is removed and ``path`` is as it was.

    Args:
        path: the file to write or replace; its folder exists.

    Yields:
        The path to create, write and close.

    Raises:
        FileNotFoundError: the folder does not exist.
        IsADirectoryError: ``path`` is a folder.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder of {path} does not exist")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, a file name is needed")
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        _flush_to_disk(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _flush_to_disk(path: Path) -> None:
    """Make the bytes durable before the rename is: else a power cut leaves an empty file."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
