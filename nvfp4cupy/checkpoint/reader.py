"""An open checkpoint: one file or several, of either kind, seen as tensors and NVFP4 weights."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias

from numpy.typing import NDArray

from nvfp4cupy.checkpoint import compressed_tensors, gguf_layout, modelopt
from nvfp4cupy.checkpoint.arguments import check_string
from nvfp4cupy.checkpoint.gguf_file import GGUFFile
from nvfp4cupy.checkpoint.gguf_metadata import GGUFField
from nvfp4cupy.checkpoint.names import WEIGHT_SUFFIX
from nvfp4cupy.checkpoint.parts import NVFP4Parts, read_weight
from nvfp4cupy.checkpoint.shards import open_files
from nvfp4cupy.checkpoint.tensors import (
    SAFETENSORS_DTYPES,
    TensorFile,
    TensorInfo,
    shaped,
    unknown_name,
    view_values,
)
from nvfp4cupy.checkpoint.weight import NVFP4Weight
from nvfp4cupy.layouts import NIBBLE_ORDERS, NibbleOrder

CheckpointFormat: TypeAlias = Literal["modelopt", "compressed-tensors", "gguf", "plain"]


class Checkpoint:
    """Tensors of a safetensors or GGUF checkpoint, read when they are asked for.

    Use ``Checkpoint.open``; a ``with`` block closes the files. Arrays look into the mapped files,
    are read-only, and stay valid after closing.

    Attributes:
        path: what was opened.
    """

    def __init__(
        self, path: Path, files: Sequence[TensorFile], nibble_order: NibbleOrder = "low_first"
    ) -> None:
        """Find the NVFP4 weights among the tensors of open files."""
        self.path = path
        self._files = tuple(files)
        self._nibble_order = nibble_order
        self._file_of: dict[str, TensorFile] = {}
        self._infos: dict[str, TensorInfo] = {}
        for file in self._files:
            for name, info in file.infos.items():
                if name in self._infos:
                    first = self._infos[name].path.name
                    raise ValueError(f"{info.where} stands in {first} too")
                self._infos[name], self._file_of[name] = info, file
        self._is_gguf = any(isinstance(file, GGUFFile) for file in self._files)
        self._parts = {parts.name: parts for parts in self._find_parts()}

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, nibble_order: NibbleOrder = "low_first"
    ) -> Checkpoint:
        """Open a checkpoint.

        Args:
            path: a ``.safetensors`` or ``.gguf`` file, the ``*.index.json`` of a sharded
                checkpoint, the first of several GGUF shards, or a folder that holds one of these.
            nibble_order: ``"high_first"`` for safetensors files whose bytes hold element 2j in
                the high nibble; such weights are copied when they are read.

        Returns:
            The open checkpoint.

        Raises:
            FileNotFoundError: a file is not there.
            RuntimeError: the file is GGUF and the package gguf is missing.
            ValueError: a file is truncated or damaged, a folder holds no checkpoint or more than
                one, or the nibble order is unknown or given for a GGUF file.
        """
        if nibble_order not in NIBBLE_ORDERS:
            allowed = ", ".join(NIBBLE_ORDERS)
            raise ValueError(f"nibble_order must be one of {allowed}, got {nibble_order!r}")
        files = open_files(Path(path))
        try:
            checkpoint = cls(Path(path), files, nibble_order)
        except BaseException:
            for file in files:
                file.close()
            raise
        if checkpoint._is_gguf and nibble_order != "low_first":
            checkpoint.close()
            raise ValueError(f"nibble_order is for safetensors files, {path} is GGUF")
        return checkpoint

    def __enter__(self) -> Checkpoint:
        """Return the checkpoint."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the files."""
        self.close()

    def close(self) -> None:
        """Close the files; reading from them then raises ValueError."""
        for file in self._files:
            file.close()

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files that the checkpoint consists of."""
        return tuple(file.path for file in self._files)

    @property
    def format(self) -> CheckpointFormat:
        """Return how NVFP4 weights are stored, ``"plain"`` when a safetensors file has none."""
        if self._is_gguf:
            return "gguf"
        if any(parts.reciprocal for parts in self._parts.values()):
            return "compressed-tensors"
        return "modelopt" if self._parts else "plain"

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the key-value pairs of all files; of equal keys the first file's value."""
        merged: dict[str, Any] = {}
        for file in reversed(self._files):
            merged.update(file.metadata)
        return merged

    @property
    def gguf_fields(self) -> dict[str, GGUFField]:
        """Return the key-value pairs of GGUF files with their types; of shards, the first's."""
        for file in self._files:
            if isinstance(file, GGUFFile):
                return dict(file.fields)
        return {}

    def names(self) -> list[str]:
        """Return the names of all tensors as the files have them."""
        return list(self._infos)

    def info(self, name: str) -> TensorInfo:
        """Return dtype, shape and place of a tensor.

        Raises:
            ValueError: there is no such tensor; the message lists the nearest names.
        """
        check_string("name", name)
        if name not in self._infos:
            raise unknown_name(name, self._infos, str(self.path))
        return self._infos[name]

    def tensor(self, name: str) -> NDArray[Any]:
        """Return a tensor as an array that looks into the file.

        Args:
            name: a name out of ``names()``.

        Returns:
            The values, read-only. BF16 is ``ml_dtypes.bfloat16``; every float8 type is its bytes
            as uint8; F4 and GGUF's block types are uint8 ``(..., bytes of a row)``.

        Raises:
            ValueError: there is no such tensor, or the checkpoint is closed.
        """
        info = self.info(name)
        raw = self._file_of[name].raw(info)
        if info.dtype in SAFETENSORS_DTYPES:
            return view_values(raw, info)
        rows = info.shape[:-1]
        return shaped(raw, (*rows, info.nbytes // max(1, math.prod(rows))), info)

    def nvfp4_names(self) -> list[str]:
        """Return the names of the NVFP4 weights: ``x.weight``, the same in every format."""
        return list(self._parts)

    def plain_names(self) -> list[str]:
        """Return the names of the tensors that belong to no NVFP4 weight."""
        return [name for name, is_nvfp4 in self.contents() if not is_nvfp4]

    def contents(self) -> list[tuple[str, bool]]:
        """Return, in the order of the files, each weight or other tensor and whether it is NVFP4.

        A weight stands where its codes are; its other tensors are not listed.
        """
        weights = {parts.codes: parts.name for parts in self._parts.values()}
        taken = {name for parts in self._parts.values() for name in parts.tensors}
        return [
            (weights.get(name, name), name in weights)
            for name in self._infos
            if name in weights or name not in taken
        ]

    def parts(self, name: str) -> NVFP4Parts:
        """Return which tensors make up an NVFP4 weight.

        Args:
            name: its name, the name of its codes, or its name without ``.weight``.

        Raises:
            ValueError: there is no such weight; the message lists the nearest names.
        """
        check_string("name", name)
        for parts in (self._parts.get(name), self._parts.get(f"{name}{WEIGHT_SUFFIX}")):
            if parts is not None:
                return parts
        for parts in self._parts.values():
            if parts.codes == name:
                return parts
        if name in self._infos:
            raise ValueError(f"{self._infos[name].where} is {self._infos[name].dtype}, not NVFP4")
        raise unknown_name(name, self._parts, f"{self.path} (NVFP4 weights)")

    def nvfp4(self, name: str, *, check: bool = True) -> NVFP4Weight:
        """Read an NVFP4 weight.

        Args:
            name: a name out of ``nvfp4_names()``.
            check: refuse bad scale bytes and global scales; without it they are given as they are.

        Returns:
            The weight, in the layout of the file (see ``NVFP4Weight.to_layout``), its global
            scales in the decode direction. Stacked experts keep their leading axis.

        Raises:
            ValueError: there is no such weight; a tensor of it is missing or has the wrong shape;
                k is not a multiple of 64; with ``check``, a scale byte is 0x7F or has the top bit
                set (row and block are named) or a global scale is not finite and above zero.
        """
        parts = self.parts(name)
        return read_weight(
            parts,
            self._infos,
            lambda info: self._file_of[info.name].raw(info),
            self._nibble_order,
            check=check,
        )

    def release(self, name: str) -> None:
        """Let the system drop the pages of a tensor from memory; arrays read them anew.

        Raises:
            ValueError: there is no such tensor.
        """
        info = self.info(name)
        self._file_of[name].release(info)

    def _find_parts(self) -> list[NVFP4Parts]:
        if self._is_gguf:
            return gguf_layout.find_parts(self._infos)
        return compressed_tensors.find_parts(self._infos) + modelopt.find_parts(self._infos)
