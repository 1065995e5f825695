"""The files that a checkpoint consists of."""

from __future__ import annotations

import json
import re
from pathlib import Path

from nvfp4cupy.checkpoint.gguf_file import GGUFFile
from nvfp4cupy.checkpoint.gguf_header import MAGIC
from nvfp4cupy.checkpoint.safetensors_file import SafetensorsFile
from nvfp4cupy.checkpoint.tensors import TensorFile

_INDEX_SUFFIX = ".index.json"
_GGUF_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def find_files(path: Path) -> list[Path]:
    """Return the files of the checkpoint at ``path``, in order.

    Args:
        path: a file, an index, one of several GGUF shards, or a folder with one of these.

    Raises:
        FileNotFoundError: ``path`` or a shard is not there.
        ValueError: the index is not valid, or the folder holds no checkpoint or several.
    """
    if path.is_dir():
        return _files_of_folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    if path.name.endswith(_INDEX_SUFFIX):
        return _files_of_index(path)
    if match := _GGUF_SHARD.fullmatch(path.name):
        count = int(match["count"])
        names = [f"{match['stem']}-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
        return [_existing(path.parent / name, path) for name in names]
    return [path]


def open_files(path: Path) -> list[TensorFile]:
    """Open the files of the checkpoint at ``path``.

    Raises:
        FileNotFoundError: ``path`` or a shard is not there.
        RuntimeError: it is GGUF and the package gguf is missing.
        ValueError: a file is truncated or damaged, or an index does not fit its shards.
    """
    opened: list[TensorFile] = []
    try:
        opened.extend(_open_file(file) for file in find_files(path))
        index = _index_of(path)
        if index is not None:
            _check_index(index, {file.path.name: file for file in opened})
    except BaseException:
        for file in opened:
            file.close()
        raise
    return opened


def _open_file(path: Path) -> TensorFile:
    """Open a file by its first bytes, whatever its suffix."""
    with open(path, "rb") as file:
        is_gguf = file.read(len(MAGIC)) == MAGIC
    return GGUFFile(path) if is_gguf or path.suffix == ".gguf" else SafetensorsFile(path)


def _index_of(path: Path) -> Path | None:
    """Return the index that ``find_files`` goes by, if it does."""
    if path.is_dir():
        indices = list(path.glob(f"*.safetensors{_INDEX_SUFFIX}"))
        return indices[0] if len(indices) == 1 else None
    return path if path.name.endswith(_INDEX_SUFFIX) else None


def _files_of_folder(folder: Path) -> list[Path]:
    indices = sorted(folder.glob(f"*.safetensors{_INDEX_SUFFIX}"))
    tensors = sorted(folder.glob("*.safetensors"))
    if len(indices) == 1:
        return _files_of_index(indices[0])
    if not indices and tensors:
        return tensors
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1 or (ggufs and _are_shards_of_one(ggufs)):
        return find_files(ggufs[0])
    found = ", ".join(file.name for file in indices + ggufs) or "none"
    raise ValueError(f"{folder} must hold one checkpoint (safetensors or GGUF), found {found}")


def _are_shards_of_one(files: list[Path]) -> bool:
    matches = [_GGUF_SHARD.fullmatch(file.name) for file in files]
    return len({match and (match["stem"], match["count"]) for match in matches}) == 1 and all(
        matches
    )


def _files_of_index(index: Path) -> list[Path]:
    return [
        _existing(index.parent / name, index) for name in sorted(set(_read_index(index).values()))
    ]


def _read_index(index: Path) -> dict[str, str]:
    """Return which file holds which tensor."""
    try:
        weight_map = dict(json.loads(index.read_text("utf-8"))["weight_map"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{index} must have a weight_map of names to files: {error!r}") from None
    for name in weight_map.values():
        # A shard lies beside its index; a path may not lead out of the folder.
        if not isinstance(name, str) or Path(name).name != name or name in ("", ".", ".."):
            raise ValueError(f"{index} must name files beside it, got {name!r}")
    return weight_map


def _check_index(index: Path, files: dict[str, TensorFile]) -> None:
    for name, file in _read_index(index).items():
        if name not in files[file].infos:
            raise ValueError(f"{index} promises tensor {name!r} in {file}, which lacks it")


def _existing(file: Path, wanted_by: Path) -> Path:
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist, {wanted_by.name} needs it")
    return file
