"""This package's kernels, compiled and called by CuPy alone: what calls are compared with."""

from __future__ import annotations

from typing import Any

from nvfp4cupy import compiler, sources
from nvfp4cupy.arrays import cupy
from nvfp4cupy.launch import LaunchConfig

__all__ = ["raw_kernel", "raw_module"]


def raw_module(source: str, defines: tuple[tuple[str, str], ...] = ()) -> Any:
    """Return a compiled ``cupy.RawModule`` of a source for the current device."""
    options = (  # those of a call, whose compile time is to be the same
        *compiler.COMPILE_OPTIONS,
        *(f"-D{name}={value}" for name, value in defines),
        *compiler.current_target(source).options,
    )
    module = cupy().RawModule(code=sources.expand(source), options=options, backend="nvrtc")
    module.compile()
    return module


def raw_kernel(config: LaunchConfig) -> Any:
    """Return the ``cupy.RawKernel`` of a launch."""
    kernel = raw_module(config.source, config.defines).get_function(config.entry)
    if config.shared_mem > compiler.STATIC_SHARED_MEM:
        kernel.max_dynamic_shared_size_bytes = config.shared_mem
    return kernel
