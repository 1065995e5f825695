"""cuBLAS's bf16 GEMM, callable while a stream is captured into a CUDA graph.

CuPy's own calls will not do: its wrapper refuses any cuBLAS call during a capture
(NotImplementedError), although cuBLAS itself allows it once the handle has a workspace of its
own. So this calls the library that CuPy has loaded, with a handle that no one else uses.
"""

from __future__ import annotations

import ctypes
from typing import Any

from nvfp4cupy.arrays import cupy

__all__ = ["Cublas"]

# From library_types.h and cublas_api.h.
_CUDA_R_16BF = 14
_COMPUTE_32F = 68
_OP_N, _OP_T = 0, 1
_GEMM_DEFAULT = -1
# What cuBLAS itself takes on a Hopper GPU, more than on any older one; less would rule out some
# of its split-k kernels.
_WORKSPACE_BYTES = 32 << 20


class Cublas:
    """A cuBLAS handle for bf16 products with float32 accumulation.

    Raises:
        RuntimeError: the library is missing, or refuses to work.
    """

    def __init__(self) -> None:
        """Create the handle and its workspace on the current device."""
        self._library = _library()
        self._handle = ctypes.c_void_p()
        self._check("cublasCreate_v2", ctypes.byref(self._handle))
        self._workspace = cupy().empty(_WORKSPACE_BYTES, "uint8")
        self._stream: int | None = None
        # Read when the call is made, not when the kernel runs (host pointer mode, the default).
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)

    def gemm(self, x: Any, w: Any, out: Any) -> None:
        """Multiply on the current stream: ``out[m, n] = sum_k x[m, k] * w[n, k]``.

        Args:
            x: bfloat16 ``(m, k)``, C-contiguous.
            w: bfloat16 ``(n, k)``, C-contiguous.
            out: bfloat16 ``(m, n)``, C-contiguous.
        """
        self._use_current_stream()
        (m, k), n = x.shape, w.shape[0]
        integer, address = ctypes.c_int, ctypes.c_void_p
        bf16 = integer(_CUDA_R_16BF)
        # cuBLAS counts columns first: out's transpose (n, m) is w (k, n) transposed times x (k, m).
        self._check(
            "cublasGemmEx",
            *(self._handle, integer(_OP_T), integer(_OP_N), integer(n), integer(m), integer(k)),
            ctypes.byref(self._one),
            *(address(w.data.ptr), bf16, integer(k), address(x.data.ptr), bf16, integer(k)),
            ctypes.byref(self._zero),
            *(address(out.data.ptr), bf16, integer(n)),
            *(integer(_COMPUTE_32F), integer(_GEMM_DEFAULT)),
        )

    def _use_current_stream(self) -> None:
        stream = cupy().cuda.get_current_stream().ptr
        if stream == self._stream:
            return
        self._check("cublasSetStream_v2", self._handle, ctypes.c_void_p(stream))
        # After the stream: setting that takes the workspace away again.
        pointer, size = self._workspace.data.ptr, ctypes.c_size_t(_WORKSPACE_BYTES)
        self._check("cublasSetWorkspace_v2", self._handle, ctypes.c_void_p(pointer), size)
        self._stream = stream

    def _check(self, name: str, *args: Any) -> None:
        status = getattr(self._library, name)(*args)
        if status != 0:
            raise RuntimeError(f"{name} failed with cuBLAS status {status}")


def _library() -> ctypes.CDLL:
    """Return the cuBLAS library that CuPy uses."""
    cure = 'install it with: pip install "nvfp4cupy[cuda12]" (or [cuda13])'
    try:
        from cuda import pathfinder
    except ImportError as error:
        raise RuntimeError(f"cuBLAS is not found without cuda-pathfinder; {cure}") from error
    try:
        path = pathfinder.load_nvidia_dynamic_lib("cublas").abs_path
        if path is None:
            raise RuntimeError("its file is not known")
        return ctypes.CDLL(path)  # the one that is loaded already
    except (OSError, RuntimeError) as error:
        raise RuntimeError(
            f"cuBLAS is not usable ({str(error).splitlines()[0]}); {cure}"
        ) from error
