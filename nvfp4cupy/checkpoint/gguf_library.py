"""The package ``gguf``, imported when a GGUF file is read or written."""

from __future__ import annotations

from typing import Any


def require_gguf() -> Any:
    """Return the package ``gguf``.

    Raises:
        RuntimeError: it is not installed, or too old to know NVFP4.
    """
    try:
        import gguf
    except ImportError as error:
        raise RuntimeError(
            "GGUF files need the package gguf: pip install 'nvfp4cupy[gguf]'"
        ) from error
    if not hasattr(gguf.GGMLQuantizationType, "NVFP4"):
        raise RuntimeError("this gguf knows no NVFP4: pip install 'gguf>=0.19'")
    return gguf


def block_sizes(type_name: str) -> tuple[int, int]:
    """Return (values, bytes) of one block of a GGML type.

    Raises:
        ValueError: GGUF has no such type.
    """
    gguf = require_gguf()
    if type_name not in gguf.GGMLQuantizationType.__members__:
        raise ValueError(f"GGUF has no {type_name} tensors")
    values, nbytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[type_name]]
    return int(values), int(nbytes)
