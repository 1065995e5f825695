"""CuPy when it is there, and the device and stream that a call runs on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

__all__ = ["context", "cupy", "current_device", "is_capturing", "is_gpu", "missing_gpu"]


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
        ValueError: a stream was given with NumPy arrays.
    """
    if not is_gpu(array):
        if stream is not None:
            raise ValueError("stream must be None for NumPy arrays")
        return nullcontext()
    if stream is None:
        if array.data.device_id == current_device():
            return _UNCHANGED
        return array.device  # type: ignore[no-any-return]
    return _Current(array.device, _as_stream(stream))


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


class _Current:
    """Makes a device and one of its streams current, for the length of a ``with``."""

    def __init__(self, *parts: AbstractContextManager[Any]) -> None:
        self._parts: Sequence[AbstractContextManager[Any]] = parts

    def __enter__(self) -> None:
        for part in self._parts:
            part.__enter__()

    def __exit__(self, *exception: Any) -> None:
        for part in reversed(self._parts):
            part.__exit__(*exception)


def is_capturing() -> bool:
    """Return whether the current stream is being captured into a CUDA graph."""
    stream = cupy().cuda.get_current_stream()
    return bool(stream.is_capturing())
