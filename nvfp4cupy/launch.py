"""What one kernel launch is, as frozen data: entry, grid, block, shared memory, typed arguments.

Nothing here knows a device. A launcher's ``plan`` builds a `LaunchConfig` from sizes alone, so
that every contract can be read, compared with literals and run in an emulator without a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np

from nvfp4cupy.layouts import div_ceil

__all__ = [
    "MAX_GRID_X",
    "MAX_GRID_YZ",
    "MAX_SHARED_MEM",
    "Arg",
    "ArgKind",
    "LaunchConfig",
    "div_ceil",
    "f32",
    "i32",
    "i64",
    "pointer",
    "u32",
    "u64",
]

# CUDA's limits on a grid, the same for every compute capability from 8.0 on.
MAX_GRID_X = 2**31 - 1
MAX_GRID_YZ = 65535
# Compute capability 9.0 and 10.x; 8.6, 8.9 and 12.x allow 99 KiB, 8.0 and 8.7 163 KiB.
MAX_SHARED_MEM = 227 * 1024

ArgKind = Literal["ptr", "u32", "i32", "u64", "i64", "f32"]

_SCALAR_TYPES: dict[str, Any] = {
    "u32": np.uint32,
    "i32": np.int32,
    "u64": np.uint64,
    "i64": np.int64,
    "f32": np.float32,
}


@dataclass(frozen=True)
class Arg:
    """One kernel parameter.

    Attributes:
        kind: its C type.
        name: the parameter's name in the ``.cu`` source.
        value: a number, or the array of a pointer; None while it is unbound.
        extent: for a pointer, the bytes the kernel may touch, counted from the pointer.
        access: for a pointer, what the kernel does with them. ``"out"`` means that every one of
            the ``extent`` bytes is written.
        alignment: for a pointer, the bytes its address must be a multiple of.
        nullable: whether a pointer may be null (bound to None).
    """

    kind: ArgKind
    name: str
    value: Any = None
    extent: int = 0
    access: Literal["in", "out", "inout"] = "in"
    alignment: int = 1
    nullable: bool = False

    def __post_init__(self) -> None:
        """Refuse a number that its C type cannot hold."""
        if self.kind not in ("ptr", "f32") and self.value is not None:
            limits = np.iinfo(_SCALAR_TYPES[self.kind])
            if not limits.min <= int(self.value) <= limits.max:
                raise ValueError(
                    f"{self.name} must be from {limits.min} to {limits.max} to be passed as "
                    f"{self.kind}, got {self.value}"
                )

    def scalar(self) -> np.generic:
        """Return the bound number as a NumPy scalar of exactly the parameter's type."""
        return cast("np.generic", _SCALAR_TYPES[self.kind](self.value))


_NULL = np.uint64(0)  # the kernel sees a null pointer


def _span(array: Any) -> int:
    """Return the bytes from an array's first element to the end of its last one."""
    if array.size == 0:
        return 0
    steps = [(n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)]
    return int(sum(steps)) + int(array.itemsize)


def pointer(
    name: str,
    extent: int,
    access: Literal["in", "out", "inout"] = "in",
    *,
    alignment: int = 1,
    nullable: bool = False,
) -> Arg:
    """Return an unbound pointer parameter of which the kernel touches ``extent`` bytes."""
    return Arg("ptr", name, None, extent, access, alignment, nullable)


def u32(name: str, value: int | None = None) -> Arg:
    """Return an unsigned 32-bit parameter."""
    return Arg("u32", name, value)


def i32(name: str, value: int | None = None) -> Arg:
    """Return a signed 32-bit parameter."""
    return Arg("i32", name, value)


def u64(name: str, value: int | None = None) -> Arg:
    """Return an unsigned 64-bit parameter."""
    return Arg("u64", name, value)


def i64(name: str, value: int | None = None) -> Arg:
    """Return a signed 64-bit parameter."""
    return Arg("i64", name, value)


def f32(name: str, value: float | None = None) -> Arg:
    """Return a float32 parameter."""
    return Arg("f32", name, value)


@dataclass(frozen=True)
class LaunchConfig:
    """A kernel launch without its device.

    Attributes:
        source: file name in ``kernels/``.
        entry: the ``extern "C"`` name of the kernel.
        grid: blocks in x, y, z; a 0 means that there is nothing to launch.
        block: threads in x, y, z.
        shared_mem: dynamic shared memory of a block in bytes.
        args: the parameters in order.
        defines: preprocessor definitions as sorted (name, value) pairs.
    """

    source: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_mem: int
    args: tuple[Arg, ...]
    defines: tuple[tuple[str, str], ...] = field(default=())

    def __post_init__(self) -> None:
        """Refuse a grid or block that no GPU can launch."""
        x, y, z = self.grid
        if min(self.grid) < 0 or x > MAX_GRID_X or max(y, z) > MAX_GRID_YZ:
            raise ValueError(
                f"{self.entry}: grid must be at most ({MAX_GRID_X}, {MAX_GRID_YZ}, {MAX_GRID_YZ}), "
                f"got {self.grid}"
            )
        if math.prod(self.block) > 1024 or min(self.block) < 1:
            raise ValueError(f"{self.entry}: block must hold 1 to 1024 threads, got {self.block}")
        if self.defines != tuple(sorted(self.defines)):
            raise ValueError(f"{self.entry}: defines must be sorted, got {self.defines}")

    @property
    def is_empty(self) -> bool:
        """Whether the grid holds no block, so that nothing is to be launched."""
        return 0 in self.grid

    @property
    def open_args(self) -> tuple[Arg, ...]:
        """The parameters that ``plan`` left unbound, in order: pointers and run-time numbers."""
        return tuple(arg for arg in self.args if arg.value is None)

    @cached_property
    def _template(self) -> tuple[list[Any], tuple[tuple[int, Arg], ...]]:
        """The call's arguments with the known ones in place, and where the open ones belong."""
        ready = [None if arg.value is None else arg.scalar() for arg in self.args]
        return ready, tuple((i, arg) for i, arg in enumerate(self.args) if arg.value is None)

    def bound_values(self, values: tuple[Any, ...], device: int) -> tuple[Any, ...]:
        """Return what the kernel is called with: typed numbers, and arrays that were checked.

        Args:
            values: one for each of ``open_args``, in order.
            device: the device that every array must lie on.

        Raises:
            TypeError: the count of values differs from that of the open parameters.
            ValueError: an array is too small, misaligned, or on another device.
        """
        ready, open_args = self._template
        if len(values) != len(open_args):
            names = ", ".join(arg.name for _, arg in open_args)
            raise TypeError(f"{self.entry} takes {names}; got {len(values)} values")
        args = ready.copy()
        for (i, arg), value in zip(open_args, values, strict=True):
            if arg.kind != "ptr":
                args[i] = _SCALAR_TYPES[arg.kind](value)
            elif value is None:
                if not arg.nullable:
                    raise ValueError(f"{self.entry}: {arg.name} must be an array, got None")
                args[i] = _NULL
            else:
                self._check_array(arg, value, device)
                args[i] = value
        return tuple(args)

    def _check_array(self, arg: Arg, value: Any, device: int) -> None:
        # A contiguous array spans nbytes; a strided one is judged by its last element.
        span = value.nbytes if value.flags.c_contiguous else _span(value)
        if span < arg.extent:
            raise ValueError(f"{self.entry}: {arg.name} must hold {arg.extent} bytes, got {span}")
        if value.data.ptr % arg.alignment:
            raise ValueError(
                f"{self.entry}: {arg.name} must be aligned to {arg.alignment} bytes, "
                f"got address {value.data.ptr:#x}"
            )
        if value.data.device_id != device:
            raise ValueError(
                f"{self.entry}: {arg.name} must lie on device {device}, got {value.data.device_id}"
            )

    def bind(self, **values: Any) -> LaunchConfig:
        """Return a copy with the named parameters bound.

        Args:
            **values: a number or an array for each parameter name.

        Raises:
            TypeError: a name is not a parameter of this kernel.
            ValueError: a number does not fit its type.
        """
        names = {arg.name for arg in self.args}
        if unknown := sorted(set(values) - names):
            raise TypeError(f"{self.entry} has no parameter {', '.join(unknown)}")
        args = tuple(
            replace(arg, value=values[arg.name]) if arg.name in values else arg for arg in self.args
        )
        return replace(self, args=args)
