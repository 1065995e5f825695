"""Finds the weights of a layer's feed-forward among the names of a checkpoint."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from nvfp4cupy.checkpoint import Checkpoint

__all__ = ["feed_forward_names"]

_SUFFIX = ".weight"
# What stands before the part and how the parts are called: gate, up, down, or both in one, down.
_PROJECTIONS = (
    ("gate_proj", "up_proj", "down_proj"),
    ("gate_up_proj", "down_proj"),
    ("w1", "w3", "w2"),
)
_SCHEMES = (
    ("layers.{layer}.mlp.", _PROJECTIONS),
    ("layers.{layer}.feed_forward.", _PROJECTIONS),
    ("blk.{layer}.ffn_", (("gate", "up", "down"),)),
)


class _Match(NamedTuple):
    """Names of the weights of one feed-forward, and those of them that are not there."""

    names: tuple[str, ...]
    missing: tuple[str, ...]


def feed_forward_names(
    checkpoint: Checkpoint, layer: int, names: Sequence[str] | None = None
) -> tuple[str, ...]:
    """Return the names of gate, up and down, or of gate and up in one and down.

    Args:
        checkpoint: where to look.
        layer: index of the layer.
        names: the three or two names, ``{layer}`` standing for the index; None to look for the
            usual ones, behind any prefix.

    Raises:
        TypeError: ``names`` is no sequence of strings.
        ValueError: there are none (names near them are listed), one of them is missing, or
            several fit; or ``names`` are not three or two.
    """
    if names is not None:
        return _filled(names, layer)
    incomplete: list[_Match] = []
    # A layer that is there but not quantized is found too: reading it then says what it is.
    for known in (checkpoint.nvfp4_names(), checkpoint.names()):
        matches = list(_find(known, layer))
        complete = [match for match in matches if not match.missing]
        if len(complete) > 1:
            several = ", ".join(match.names[0] for match in complete)
            raise ValueError(
                f"{checkpoint.path} has several feed-forwards for layer {layer} ({several}); "
                "pass names=(gate, up, down)"
            )
        if complete:
            return complete[0].names
        incomplete += matches
    if incomplete:
        closest = max(incomplete, key=lambda match: len(match.names) - len(match.missing))
        raise ValueError(
            f"{checkpoint.path} lacks {', '.join(closest.missing)} "
            f"of the feed-forward of layer {layer}"
        )
    raise ValueError(
        f"{checkpoint.path} has no gated feed-forward for layer {layer}{_near(checkpoint, layer)}; "
        "pass names=(gate, up, down) if it is called otherwise"
    )


def _filled(names: Sequence[str], layer: int) -> tuple[str, ...]:
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"names must be a tuple of strings, got {names!r}")
    if len(names) not in (2, 3):
        raise ValueError(f"names must be (gate, up, down) or (gate_up, down), got {names!r}")
    return tuple(name.replace("{layer}", str(layer)) for name in names)


def _find(names: Iterable[str], layer: int) -> Iterator[_Match]:
    """Yield each feed-forward of the layer of which at least one weight is there."""
    stems = {name.removesuffix(_SUFFIX): name for name in names}
    for scheme, projections in _SCHEMES:
        middle = scheme.replace("{layer}", str(layer))
        for parts in projections:
            tails = [middle + part for part in parts]
            prefixes = {
                stem.removesuffix(tail): None
                for tail in tails
                for stem in stems
                if stem == tail or stem.endswith(f".{tail}")
            }
            for prefix in prefixes:
                wanted = [prefix + tail for tail in tails]
                missing = tuple(stem for stem in wanted if stem not in stems)
                yield _Match(tuple(stems.get(stem, stem) for stem in wanted), missing)


def _near(checkpoint: Checkpoint, layer: int) -> str:
    """Return the words that list names like those that were looked for."""
    near: dict[str, None] = {}
    for scheme, projections in _SCHEMES:
        prefix = "model." if scheme.startswith("layers") else ""
        for parts in projections:
            name = f"{prefix}{scheme.replace('{layer}', str(layer))}{parts[0]}{_SUFFIX}"
            near.update(dict.fromkeys(difflib.get_close_matches(name, checkpoint.names(), 2, 0.7)))
    return f"; near it: {', '.join(list(near)[:6])}" if near else ""
