"""The command line: ``nvfp4cupy`` and ``python -m nvfp4cupy``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

__all__ = ["main"]

# Each module has HELP, add_arguments(parser) and run(options) -> exit code.
_COMMANDS = ("demo", "info", "compile")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the arguments; those of the process by default.

    Returns:
        The exit code: 0 for success, 1 for a failure that was reported, 2 for wrong usage.
    """
    parser = argparse.ArgumentParser(
        prog="nvfp4cupy", description="NVFP4 on NVIDIA GPUs for NumPy and CuPy."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    modules = {name: import_module(f"nvfp4cupy.cli.{name}") for name in _COMMANDS}
    for name, module in modules.items():
        module.add_arguments(
            commands.add_parser(name, help=module.HELP, description=module.__doc__)
        )
    options = parser.parse_args(argv)
    try:
        return int(modules[options.command].run(options))
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        print(f"nvfp4cupy {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
