"""What the commands on checkpoint files have in common."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvfp4cupy.checkpoint import Checkpoint
from nvfp4cupy.checkpoint.tensors import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

SOURCE_HELP = "a .safetensors or .gguf file, an index of shards, or a folder with one of these"
FORMAT_HELP = "layout and names of the NVFP4 weights in OUT"

_WIDE = 100_000  # columns, where lines must not be broken
_SHOWN_NAME = 40  # characters of a tensor's name beside the progress bar


def add_paths(parser: argparse.ArgumentParser) -> None:
    """Declare IN, OUT and the options that go with them."""
    parser.add_argument("source", metavar="IN", type=Path, help=SOURCE_HELP)
    parser.add_argument("out", metavar="OUT", type=Path, help="the file to write")
    parser.add_argument("--force", action="store_true", help="replace OUT if it is there")
    parser.add_argument("--quiet", "-q", action="store_true", help="no progress bar, no report")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def check_out(source: Path, out: Path, format: str, *, force: bool) -> None:
    """Refuse to write over a file, or to give one a suffix that its readers go by wrongly.

    Args:
        source: what is read.
        out: the file to be written.
        format: one of ``TARGET_FORMATS``.
        force: whether a file that is there may be replaced.

    Raises:
        FileExistsError: it is there, and ``force`` is not given.
        ValueError: it is the source, or is there and is no file, or its suffix belongs to another
            format.
    """
    suffix = ".gguf" if format == "gguf" else ".safetensors"
    if out.suffix in (".gguf", ".safetensors") and out.suffix != suffix:
        raise ValueError(f"OUT must end with {suffix} for --format {format}, got {out}")
    if not os.path.lexists(out):
        return
    # A device, a pipe or a folder must not be replaced by a file, not even with --force.
    if not out.is_file():
        raise ValueError(f"OUT must be the name of a file, {out} is something else")
    if source.exists() and out.samefile(source):
        raise ValueError(f"OUT must be another file than IN, got {out}")
    if not force:
        raise FileExistsError(f"{out} exists; --force replaces it")


@contextmanager
def progress_bar(verb: str, *, hidden: bool) -> Iterator[Progress]:
    """Show a progress bar on stderr if that is a terminal.

    Args:
        verb: what is done, shown until the first tensor is written.
        hidden: show nothing.

    Yields:
        What ``quantize_checkpoint`` and ``convert_checkpoint`` take as ``progress``.
    """
    from rich import progress
    from rich.console import Console

    stderr = Console(stderr=True)
    with progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=stderr,
        transient=True,
        disable=hidden or not stderr.file.isatty(),
    ) as bar:
        task = bar.add_task(verb, total=None)

        def report(name: str, done_bytes: int, total_bytes: int) -> None:
            description = f"{verb} {printable(name)[-_SHOWN_NAME:]}"
            bar.update(task, description=description, completed=done_bytes, total=total_bytes)

        yield report


def stdout() -> Console:
    """Return a console on stdout that prints text as it is.

    Where stdout is no terminal, lines are never broken, so that grep sees them whole.
    """
    from rich.console import Console

    console = Console(markup=False, emoji=False, highlight=False)
    if not console.is_terminal:
        console.width = _WIDE
    return console


def new_table(*left: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table with columns of text and, behind them, columns of numbers."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for name in left:
        table.add_column(name, overflow="fold")
    for name in right:
        table.add_column(name, justify="right")
    return table


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object; numbers in it must be finite."""
    print(json.dumps(value, indent=2, allow_nan=False))


def printable(text: str) -> str:
    """Escape what a terminal would act on: a name comes out of a file that anyone may have made."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def stored_bytes(checkpoint: Checkpoint, name: str, is_nvfp4: bool) -> int:
    """Return the bytes of a tensor in its file; of an NVFP4 weight, those of all its tensors."""
    names = checkpoint.parts(name).tensors if is_nvfp4 else (name,)
    return sum(checkpoint.info(tensor).nbytes for tensor in names)


def file_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of the files of a checkpoint."""
    return sum(file.stat().st_size for file in checkpoint.files)
