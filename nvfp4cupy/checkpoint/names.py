"""Names of the tensors that belong to one weight.

The weight ``x.weight`` has companions ``x.weight_*`` and ``x.input_*``. Stacked experts are often
bare parameters, such as ``experts.down_proj``: theirs are ``experts.down_proj_weight_*`` and
``experts.down_proj_input_*``.
"""

from __future__ import annotations

WEIGHT_SUFFIX = ".weight"


def weight_stem(name: str) -> str:
    """Return what companions of the weight start with: ``x.weight`` or ``y_weight``."""
    return name if name.endswith(WEIGHT_SUFFIX) else f"{name}_weight"


def input_stem(name: str) -> str:
    """Return what companions of the input start with: ``x.input`` or ``y_input``."""
    return weight_stem(name).removesuffix("weight") + "input"


def weight_of_stem(stem: str) -> str:
    """Undo ``weight_stem``."""
    return stem if stem.endswith(WEIGHT_SUFFIX) else stem.removesuffix("_weight")


def module_of(name: str) -> str:
    """Return the name of the module: ``x`` for ``x.weight``, ``y`` for ``y``."""
    return name.removesuffix(WEIGHT_SUFFIX)
