"""CuPy when it is there, and the device and stream that a call runs on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

__all__ = [
    "context",
    "cupy",
    "current_device",
    "is_capturing",
    "is_gpu",
    "missing_gpu",
    "runs_on_stream",
]

_P = ParamSpec("_P")
_R = TypeVar("_R")


@cache
def cupy() -> Any:
    """Return the module ``cupy``.

    Raises:
        RuntimeError: CuPy is missing, too old, or broken.
    """
    try:
        import cupy as module
    except ImportError as error:
        raise RuntimeError(
            f'CuPy is not usable here ({error}); install it with: pip install "nvfp4cupy[cuda12]" '
            "(or [cuda13], as nvidia-smi's CUDA version says)"
        ) from error
    if int(module.__version__.split(".")[0]) < 14:
        raise RuntimeError(
            f"nvfp4cupy needs CuPy 14 or newer, got {module.__version__}; "
            "run: pip install -U cupy-cuda12x (or cupy-cuda13x)"
        )
    return module


def missing_gpu() -> str:
    """Return why kernels cannot run here, with the cure, or an empty string when they can."""
    try:
        module = cupy()
    except RuntimeError as error:
        return str(error)
    if not module.cuda.is_available():
        return "no CUDA GPU is visible (nvidia-smi shows what the driver sees)"
    return ""


def is_gpu(array: Any) -> bool:
    """Return whether ``array`` is a CuPy array, without importing CuPy."""
    return _is_gpu_type(type(array))  # type: ignore[arg-type]  # a class is hashable


@cache
def _is_gpu_type(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "cupy"


def context(array: Any, stream: Any = None) -> AbstractContextManager[Any]:
    """Return what makes the array's device, and ``stream`` if given, the current ones.

    Args:
        array: an operand of the call.
        stream: a CuPy stream, an object with ``cuda_stream`` (torch), a raw stream pointer, or
            None for the current stream.

    Raises:
        TypeError: it is no stream.
        ValueError: a stream was given with NumPy arrays, or belongs to another GPU.
    """
    if not is_gpu(array):
        if stream is not None:
            raise ValueError("stream must be None for NumPy arrays")
        return _UNCHANGED
    device = array.data.device_id
    if stream is None:
        if device == current_device():
            return _UNCHANGED
        return array.device  # type: ignore[no-any-return]
    current = _Current(_as_stream(stream))
    if current.device not in (-1, device):
        raise ValueError(
            f"stream must belong to GPU {device} like the arrays, got one of GPU {current.device}"
        )
    return current


def runs_on_stream(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function's ``stream=`` the current stream for the length of each call.

    It is current before the operands are taken over, so that arrays of other libraries are
    ordered before the work that reads them.
    """

    @wraps(function)
    def call(*args: _P.args, **options: _P.kwargs) -> _R:
        stream = options.get("stream")
        if stream is None or any(isinstance(arg, np.ndarray) for arg in args):
            return function(*args, **options)  # which refuses a stream for NumPy arrays
        with _Current(_as_stream(stream)):
            return function(*args, **options)

    return call


def current_device() -> int:
    """Return the number of the current device."""
    return int(_get_device()())


@cache
def _get_device() -> Any:
    return cupy().cuda.runtime.getDevice  # looked up once: this is on every call's path


def _as_stream(stream: Any) -> Any:
    if hasattr(stream, "__enter__") and hasattr(stream, "ptr"):
        return stream
    pointer = getattr(stream, "cuda_stream", stream)
    if isinstance(pointer, int) and not isinstance(pointer, bool):
        return _external_stream(pointer)
    raise TypeError(
        "stream must be a CuPy stream, an object with cuda_stream, or a pointer, "
        f"got {type(stream).__name__}"
    )


def _external_stream(pointer: int) -> Any:
    streams = cupy().cuda
    if not hasattr(streams.Stream, "from_external"):
        return streams.ExternalStream(pointer)
    return streams.Stream.from_external(_StreamPointer(pointer))


class _StreamPointer:
    """A raw stream pointer behind the protocol that CuPy takes foreign streams by."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the protocol's version and the pointer."""
        return 0, self.pointer


_UNCHANGED: AbstractContextManager[Any] = nullcontext()


class _Current(ExitStack):
    """Makes a stream and the device it belongs to current, for the length of a ``with``."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream
        # -1 is a foreign stream, which is taken to be of the current device.
        self.device = int(getattr(stream, "device_id", -1))

    def __enter__(self) -> _Current:
        if self.device >= 0:
            self.enter_context(cupy().cuda.Device(self.device))
        self.enter_context(self._stream)
        return self


def is_capturing() -> bool:
    """Return whether the current stream is being captured into a CUDA graph."""
    stream = cupy().cuda.get_current_stream()
    return bool(stream.is_capturing())
