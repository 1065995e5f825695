"""The command line: ``nvfp4cupy`` and ``python -m nvfp4cupy``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from nvfp4cupy import __version__

__all__ = ["main"]

# Each module has HELP, add_arguments(parser) and run(options) -> exit code.
_COMMANDS = ("demo", "info", "quantize", "convert", "inspect", "bench", "compile")
_CLOSED_PIPE = 141  # 128 + SIGPIPE, what a shell shows for tools that the signal ends
_INTERRUPTED = 130  # 128 + SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments; those of the process by default.

    Returns:
        The exit code: 0 for success, 1 for a failure that was reported, 130 for Ctrl-C, 141 when
        nobody reads the output any more.

    Raises:
        SystemExit: with code 2 for wrong usage, with code 0 after ``--help`` and ``--version``.
    """
    parser = argparse.ArgumentParser(
        prog="nvfp4cupy", description="NVFP4 on NVIDIA GPUs for NumPy and CuPy."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    modules = {name: import_module(f"nvfp4cupy.cli.{name}") for name in _COMMANDS}
    for name, module in modules.items():
        module.add_arguments(
            commands.add_parser(name, help=module.HELP, description=module.__doc__)
        )
    command = "nvfp4cupy"
    try:
        try:
            options = parser.parse_args(argv)
            command = f"nvfp4cupy {options.command}"
            return _run(modules[options.command], options)
        finally:
            _flush()
    except BrokenPipeError:
        return _CLOSED_PIPE
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED


def _run(module: ModuleType, options: argparse.Namespace) -> int:
    try:
        return int(module.run(options))
    except SystemExit as error:
        # What rich makes of a closed pipe; no command exits by itself.
        raise BrokenPipeError from error


def _flush() -> None:
    """Write out what was printed while a failure can still be reported.

    Raises:
        OSError: it cannot be written; Python will not try again when it exits.
    """
    if sys.stdout is None:  # closed by whoever started the process
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise
