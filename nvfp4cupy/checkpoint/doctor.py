"""Findings about a checkpoint: what is broken, and what is probably not meant."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from nvfp4cupy.checkpoint.checks import bad_scales, max_scale_byte
from nvfp4cupy.checkpoint.global_scale import is_usable
from nvfp4cupy.checkpoint.reader import Checkpoint
from nvfp4cupy.checkpoint.weight import GlobalScale, NVFP4Weight
from nvfp4cupy.formats import E2M1_MAX, e4m3_decode

Severity: TypeAlias = Literal["error", "warning", "note"]

# Trained weights have an amax between about 1e-3 and a few tens. A weight's decode scale is
# amax / 2688, so above 1 its amax would pass 2688; the reciprocal of a usual one is above 50.
LARGEST_PLAUSIBLE_DECODE_SCALE = 1.0
SMALLEST_PLAUSIBLE_AMAX = 1e-6
# Activations have larger outliers, up to some 1e5: 1e5 / 2688 is about 37.
LARGEST_PLAUSIBLE_INPUT_SCALE = 40.0
FLOAT16_MAX = 65504.0  # no trained weight lies beyond

_GATE_AND_UP = (("gate_proj", "up_proj"), ("ffn_gate", "ffn_up"), ("w1", "w3"))

_ADVICE_DIRECTION = (
    "compare with the source: decode scales are amax / 2688; ModelOpt and GGUF store them, "
    "compressed-tensors stores 2688 / amax"
)


@dataclass(frozen=True)
class Finding:
    """Something about a checkpoint that its user should know.

    Attributes:
        severity: ``"error"``: the weight cannot be used; ``"warning"``: it is probably wrong;
            ``"note"``: it limits what can be done.
        tensor: name of the weight or tensor, None for the checkpoint as a whole.
        row: row of the matrix, where one is to blame.
        block: index of the group of 16 columns, where one is to blame.
        message: what was found.
        advice: what to do.
    """

    severity: Severity
    tensor: str | None
    row: int | None
    block: int | None
    message: str
    advice: str


def doctor(checkpoint: Checkpoint | str | os.PathLike[str]) -> list[Finding]:
    """Examine a checkpoint for the faults that spoil results without an error.

    Looks for scale bytes that are NaN (0x7F) or negative, global scales that are not finite and
    above zero or point the wrong way, widths that are no multiple of 64, missing tensors, gate and
    up weights with different decode scales, missing input scales and truncated files.

    Args:
        checkpoint: an open checkpoint, or what ``Checkpoint.open`` takes.

    Returns:
        Findings, errors first; empty when there is nothing to say.

    Raises:
        FileNotFoundError: a file is not there.
        RuntimeError: a file is GGUF and the package gguf is missing.
    """
    if isinstance(checkpoint, Checkpoint):
        return _sorted(_findings(checkpoint))
    try:
        opened = Checkpoint.open(checkpoint)
    except ValueError as error:
        advice = "fetch the file again and compare its size or checksum with the publisher's"
        return [Finding("error", None, None, None, str(error), advice)]
    with opened:
        return _sorted(_findings(opened))


def _sorted(findings: Iterator[Finding]) -> list[Finding]:
    order = ("error", "warning", "note")
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def _findings(checkpoint: Checkpoint) -> Iterator[Finding]:
    decode_scales: dict[str, GlobalScale] = {}
    without_input: list[str] = []
    for name in checkpoint.nvfp4_names():
        try:
            weight = checkpoint.nvfp4(name, check=False)
        except ValueError as error:
            advice = "quantize the tensor again, or leave it out"
            yield Finding("error", name, None, None, str(error), advice)
            continue
        yield from _bad_scale_findings(weight)
        yield from _global_scale_findings(checkpoint, weight)
        decode_scales[name] = weight.decode_scale
        if weight.input_scale is None:
            without_input.append(name)
        for tensor in checkpoint.parts(name).tensors:
            checkpoint.release(tensor)
    yield from _gate_up_findings(decode_scales)
    yield from _input_findings(without_input, len(decode_scales))


def _bad_scale_findings(weight: NVFP4Weight) -> Iterator[Finding]:
    bad = bad_scales(weight)
    first = next(bad, None)
    if first is None:
        return
    more = sum(1 for _ in bad)
    message = f"{first}" + (f", and {more} more" if more else "")
    advice = "the group of 16 values is lost: quantize the tensor again, or fetch the file again"
    yield Finding("error", weight.name, first.row, first.block, message, advice)


def _global_scale_findings(checkpoint: Checkpoint, weight: NVFP4Weight) -> Iterator[Finding]:
    parts = checkpoint.parts(weight.name)
    if not is_usable(np.asarray(weight.decode_scale)):
        stored = checkpoint.tensor(parts.global_scale or parts.codes).reshape(-1)
        message = f"{parts.global_scale} must be finite and above zero, got {_shown(stored)}"
        advice = "quantize the tensor again: no value can be decoded with this scale"
        yield Finding("error", weight.name, None, None, message, advice)
        return
    yield from _direction_findings(weight)
    if weight.input_scale is None:
        return
    if not is_usable(np.asarray(weight.input_scale)):
        message = f"{parts.input_scale} gives the input scale {_shown(weight.input_scale)}"
        advice = "quantize activations with a scale of their own instead of this one"
        yield Finding("warning", weight.name, None, None, message, advice)
    elif np.max(weight.input_scale) > LARGEST_PLAUSIBLE_INPUT_SCALE:
        message = (
            f"input scale {_shown(weight.input_scale)} means activations up to "
            f"{float(np.max(weight.input_scale)) * 2688:.3g}: is it the reciprocal?"
        )
        yield Finding("warning", weight.name, None, None, message, _ADVICE_DIRECTION)


def _direction_findings(weight: NVFP4Weight) -> Iterator[Finding]:
    """Judge the direction of the decode scale by the largest value it gives."""
    decode_scale = float(np.max(weight.decode_scale))
    largest = float(e4m3_decode(np.array(max_scale_byte(weight), np.uint8))) * E2M1_MAX
    amax, other_amax = largest * decode_scale, largest / decode_scale
    if largest == 0:
        return
    if decode_scale > LARGEST_PLAUSIBLE_DECODE_SCALE:
        is_reversed = SMALLEST_PLAUSIBLE_AMAX < other_amax < amax
        message = f"decode scale {decode_scale:.6g} means weights up to {amax:.3g}"
        if is_reversed:
            message += f"; its reciprocal would mean {other_amax:.3g}, so it points the wrong way"
        severity: Severity = "error" if is_reversed and amax > FLOAT16_MAX else "warning"
        yield Finding(severity, weight.name, None, None, message, _ADVICE_DIRECTION)
    elif amax < SMALLEST_PLAUSIBLE_AMAX:
        message = f"decode scale {decode_scale:.6g} means weights of at most {amax:.3g}"
        yield Finding("warning", weight.name, None, None, message, _ADVICE_DIRECTION)


def _gate_up_findings(decode_scales: dict[str, GlobalScale]) -> Iterator[Finding]:
    for name, gate_scale in decode_scales.items():
        for gate, up in _GATE_AND_UP:
            partner = ".".join(
                up + part.removeprefix(gate) if _is_or_extends(part, gate) else part
                for part in name.split(".")
            )
            if partner == name or partner not in decode_scales:
                continue
            up_scale = decode_scales[partner]
            if np.array_equal(gate_scale, up_scale):
                continue
            message = f"decode scale {_shown(gate_scale)}, {partner} has {_shown(up_scale)}"
            advice = "multiply each by its own scale; a kernel that fuses the two needs equal ones"
            yield Finding("note", name, None, None, message, advice)


def _is_or_extends(part: str, gate: str) -> bool:
    # ffn_gate_exps belongs to ffn_up_exps, but ffn_gate_inp, the router, to nothing.
    return part == gate or part in (f"{gate}_exps", f"{gate}_shexp")


def _input_findings(without_input: list[str], num_weights: int) -> Iterator[Finding]:
    advice = "quantize activations with scales of their own (amax_gsa), as for W4A16 files"
    if num_weights and len(without_input) == num_weights:
        message = "no weight has an input scale"
        yield Finding("note", None, None, None, message, advice)
        return
    for name in without_input:
        message = "has no input scale, though other weights have one"
        yield Finding("warning", name, None, None, message, advice)


def _shown(scale: GlobalScale) -> str:
    values = np.asarray(scale, np.float64).reshape(-1)
    shown = ", ".join(f"{value:.6g}" for value in values[:3])
    return shown + (", ..." if values.size > 3 else "")
