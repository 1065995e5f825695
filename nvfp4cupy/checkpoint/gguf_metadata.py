"""Key-value pairs of GGUF files, with the types that other readers need.

safetensors metadata holds strings only; all pairs of a GGUF file travel there as JSON under one
key, with their types, and come back unchanged.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from nvfp4cupy.checkpoint.arguments import check_mapping
from nvfp4cupy.checkpoint.gguf_library import require_gguf

_T = TypeVar("_T")

METADATA_KEY = "gguf"  # where the pairs lie in safetensors metadata

# Written by the writer itself, or about the shards of a file that is now one.
_WRITERS_OWN = ("general.alignment",)
_VIRTUAL_PREFIXES = ("GGUF.", "split.")
_FLOAT32_MAX = (2 - 2**-23) * 2.0**127


@dataclass(frozen=True)
class GGUFField:
    """A value with its GGUF type.

    Attributes:
        value: str, int, float, bool, or a list of one of them.
        type: name of the GGUF value type, such as ``"UINT32"``, ``"STRING"`` or ``"ARRAY"``.
        item_type: type of the items of an array.
    """

    value: Any
    type: str
    item_type: str | None = None


def fields_of_reader(reader: Any) -> dict[str, GGUFField]:
    """Return the pairs of an open GGUF file; empty arrays, which no writer can write, left out."""
    fields = {}
    for name, field in reader.fields.items():
        if _is_writers_own(name):
            continue
        kinds = [kind.name for kind in field.types]
        if kinds[0] != "ARRAY":
            fields[name] = GGUFField(field.contents(), kinds[0])
        elif field.data:
            fields[name] = GGUFField(field.contents(), "ARRAY", kinds[-1])
    return fields


def fields_of_metadata(metadata: Mapping[str, Any]) -> dict[str, GGUFField]:
    """Give plain metadata types; pairs that ``metadata_of_fields`` packed come back as they were.

    Pairs that describe the file itself (``general.alignment``, ``split.*``) are left out: the
    writer has its own.

    Raises:
        TypeError: a value has a type that GGUF has not, or a key is no string.
        ValueError: a value is beyond its type, ``general.alignment`` is no power of two, or a key
            starts with ``GGUF.``, where readers put the header.
    """
    check_mapping("metadata", metadata)
    fields: dict[str, GGUFField] = {}
    for name, value in metadata.items():
        if name.startswith("GGUF."):
            raise ValueError(f"metadata must have no key of the header, got {name!r}")
        packed = _unpack(value) if name == METADATA_KEY else None
        fields.update({name: _typed(name, value)} if packed is None else packed)
    _check_known(fields)
    return without_writers_own(fields)


def without_writers_own(metadata: Mapping[str, _T]) -> dict[str, _T]:
    """Return the pairs that describe a model, not the file that they came from."""
    return {name: value for name, value in metadata.items() if not _is_writers_own(name)}


def _is_writers_own(name: str) -> bool:
    return name.startswith(_VIRTUAL_PREFIXES) or name in _WRITERS_OWN


def _check_known(fields: Mapping[str, GGUFField]) -> None:
    """Check the pairs that mean something to every reader."""
    architecture = fields.get("general.architecture")
    if architecture is not None and not isinstance(architecture.value, str):
        raise TypeError(
            f"metadata 'general.architecture' must be a string, got {architecture.value!r:.80}"
        )
    alignment = fields.get("general.alignment")
    if alignment is None:
        return
    value = alignment.value
    if not isinstance(value, int) or value < 1 or value & (value - 1):
        raise ValueError(f"metadata 'general.alignment' must be a power of two, got {value!r:.80}")


def metadata_of_fields(fields: Mapping[str, GGUFField]) -> dict[str, str]:
    """Pack pairs into safetensors metadata."""
    if not fields:
        return {}
    packed = {name: [field.type, field.item_type, field.value] for name, field in fields.items()}
    return {METADATA_KEY: json.dumps(packed)}


def add_fields(writer: Any, fields: Mapping[str, GGUFField]) -> None:
    """Add pairs to a GGUFWriter; the architecture is the writer's own."""
    kinds = require_gguf().GGUFValueType
    for name, field in fields.items():
        if name == "general.architecture":
            continue
        item_kind = None if field.item_type is None else kinds[field.item_type]
        writer.add_key_value(name, field.value, kinds[field.type], item_kind)


def _unpack(text: Any) -> dict[str, GGUFField] | None:
    """Undo ``metadata_of_fields``; None when the text is something else."""
    known = require_gguf().GGUFValueType.__members__
    try:
        pairs = {
            name: (kind, item, value) for name, (kind, item, value) in json.loads(text).items()
        }
    except (TypeError, ValueError, AttributeError, RecursionError):
        return None
    if not all(
        kind in known and (item is None or item in known) for kind, item, _ in pairs.values()
    ):
        return None
    return {name: GGUFField(value, kind, item) for name, (kind, item, value) in pairs.items()}


def _typed(name: str, value: Any) -> GGUFField:
    if isinstance(value, GGUFField):
        return value
    if isinstance(value, list) and value:
        return GGUFField(value, "ARRAY", _item_type(name, value))
    if isinstance(value, bool):
        return GGUFField(value, "BOOL")
    if isinstance(value, int):
        return GGUFField(value, _integer_type(name, value, value))
    if isinstance(value, float):
        if math.isfinite(value) and abs(value) > _FLOAT32_MAX:
            raise ValueError(f"metadata {name!r} must fit float32, got {value!r}")
        return GGUFField(value, "FLOAT32")
    if isinstance(value, str):
        return GGUFField(value, "STRING")
    raise TypeError(
        f"metadata {name!r} must be a string, number or list of them, got {value!r:.80}"
    )


def _item_type(name: str, values: list[Any]) -> str:
    """Return the one type that all items of an array have."""
    types = {_typed(name, value).type for value in values}
    if types <= {"UINT32", "UINT64", "INT64"}:
        return _integer_type(name, min(values), max(values))
    if len(types) > 1:
        raise TypeError(f"metadata {name!r} must be a list of one type, got {values!r:.80}")
    return types.pop()


def _integer_type(name: str, smallest: int, largest: int) -> str:
    for kind, low, high in (("UINT32", 0, 1 << 32), ("INT64", -(1 << 63), 1 << 63)):
        if low <= smallest and largest < high:
            return kind
    if smallest >= 0 and largest < 1 << 64:
        return "UINT64"
    raise ValueError(f"metadata {name!r} must fit 64 bits, got {smallest} to {largest}")
