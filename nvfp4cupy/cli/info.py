"""Show what this machine has for NVFP4, and what is missing with the command that mends it."""

from __future__ import annotations

import argparse
import json
import platform
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from nvfp4cupy import arrays, compiler

HELP = "show GPU, compiler, versions, and what is missing"

_EXTRAS = {
    "cuda.bindings": ("compile", "kernels for any architecture without a GPU"),
    "gguf": ("gguf", "GGUF files"),
    "matplotlib": ("plot", "plots"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(options: argparse.Namespace) -> int:
    """Print the facts."""
    facts, missing = collect()
    if options.json:
        print(json.dumps({**facts, "missing": missing}, indent=2))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in facts.items():
        table.add_row(name, str(value))
    console = Console()
    console.print(table)
    for line in missing:
        console.print(f"missing: {line}", markup=False, soft_wrap=True)
    return 0


def collect() -> tuple[dict[str, Any], list[str]]:
    """Return the facts by name, and a line for each thing that is missing."""
    facts: dict[str, Any] = {
        "nvfp4cupy": _version("nvfp4cupy"),
        "Python": platform.python_version(),
        "NumPy": _version("numpy"),
        "ml_dtypes": _version("ml_dtypes"),
    }
    missing = []
    if reason := arrays.missing_gpu():
        facts |= {"GPU": "none", "path": "NumPy reference on the CPU"}
        missing.append(reason)
    else:
        facts |= _gpu_facts()
    for module, (extra, purpose) in _EXTRAS.items():
        if not _is_installed(module):
            missing.append(f'{purpose}: pip install "nvfp4cupy[{extra}]"')
    return facts, missing


def _gpu_facts() -> dict[str, Any]:
    cupy = arrays.cupy()
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    facts = {
        "GPU": properties["name"].decode(),
        "capability": f"{properties['major']}.{properties['minor']}",
        "memory": f"{properties['totalGlobalMem'] / 2**30:.1f} GiB",
        "CUDA driver": _cuda_version(cupy.cuda.runtime.driverGetVersion()),
        "CUDA runtime": _cuda_version(cupy.cuda.runtime.runtimeGetVersion()),
        "CuPy": cupy.__version__,
        "kernel cache": compiler.kernel_cache(),
    }
    try:
        nvrtc, _ = compiler.nvrtc()
        facts["NVRTC"] = f"{nvrtc[0]}.{nvrtc[1]}"
        target = compiler.current_target("nvfp4_mmq128.cu")
        facts["GEMM target"] = target.arch
        has_fp4 = target.arch.endswith("a")
        facts["path"] = target.note or ("FP4 instruction" if has_fp4 else "portable mma")
    except RuntimeError as error:
        facts["path"] = f"none: {error}"
    return facts


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed (running from a checkout)" if package == "nvfp4cupy" else "missing"


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
