"""``python -m nvfp4cupy``: the command line."""

from __future__ import annotations

import sys

from nvfp4cupy.cli import main

if __name__ == "__main__":
    sys.exit(main())
