"""Key-value pairs of GGUF files, with the types that other readers need.

safetensors metadata holds strings only; all pairs of a GGUF file travel there as JSON under one
key, with their types, and come back unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nvfp4cupy.checkpoint.gguf_library import require_gguf

METADATA_KEY = "gguf"  # where the pairs lie in safetensors metadata

# Written by the writer itself, or about the shards of a file that is now one.
_WRITERS_OWN = ("general.alignment",)
_VIRTUAL_PREFIXES = ("GGUF.", "split.")


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
        if name.startswith(_VIRTUAL_PREFIXES) or name in _WRITERS_OWN:
            continue
        kinds = [kind.name for kind in field.types]
        if kinds[0] != "ARRAY":
            fields[name] = GGUFField(field.contents(), kinds[0])
        elif field.data:
            fields[name] = GGUFField(field.contents(), "ARRAY", kinds[-1])
    return fields


def fields_of_metadata(metadata: Mapping[str, Any]) -> dict[str, GGUFField]:
    """Give plain metadata types; pairs that ``metadata_of_fields`` packed come back as they were.

    Raises:
        TypeError: a value has a type that GGUF has not.
    """
    fields = {}
    for name, value in metadata.items():
        packed = _unpack(value) if name == METADATA_KEY else None
        fields.update({name: _typed(name, value)} if packed is None else packed)
    return fields


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
        return GGUFField(value, "ARRAY", _typed(name, value[0]).type)
    if isinstance(value, bool):
        return GGUFField(value, "BOOL")
    if isinstance(value, int):
        return GGUFField(value, "UINT32" if 0 <= value < 1 << 32 else "INT64")
    if isinstance(value, float):
        return GGUFField(value, "FLOAT32")
    if isinstance(value, str):
        return GGUFField(value, "STRING")
    raise TypeError(
        f"metadata {name!r} must be a string, number or list of them, got {value!r:.80}"
    )
