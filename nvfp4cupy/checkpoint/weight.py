"""One NVFP4 weight: codes, block scales and decode scale, in either layout.

``w[n, k] = e2m1(codes[n, k]) * e4m3(scales[n, k // 16]) * decode_scale``
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.checkpoint.arguments import as_float32, check_string
from nvfp4cupy.formats import F32, GROUP_SIZE, U8
from nvfp4cupy.layouts import (
    NVFP4_BLOCK_BYTES,
    QK_NVFP4,
    block_nvfp4_to_linear,
    integer,
    linear_to_block_nvfp4,
)
from nvfp4cupy.reference.dequantize import dequantize_nvfp4
from nvfp4cupy.reference.output import OutputType

WeightLayout: TypeAlias = Literal["linear", "block_nvfp4"]
GlobalScale: TypeAlias = np.float32 | F32

WEIGHT_LAYOUTS: tuple[WeightLayout, ...] = ("linear", "block_nvfp4")


@dataclass(frozen=True, eq=False)
class NVFP4Weight:
    """An NVFP4 matrix ``(n, k)``, or a stack of them ``(experts, n, k)``, k a multiple of 64.

    ``w[n, k] = e2m1(codes[n, k]) * e4m3(scales[n, k // 16]) * decode_scale``. Arrays are taken as
    they are, without a copy; a weight from a file looks into the mapped file.

    Attributes:
        codes: uint8. Layout ``"linear"``: ``(..., n, k/2)``, element 2j in the low nibble of byte
            j. Layout ``"block_nvfp4"``: blocks ``(..., n, k/64, 36)``, the scales among them.
        scales: uint8 E4M3 bytes ``(..., n, k/16)``; None in layout ``"block_nvfp4"``.
        decode_scale: what to multiply by: a float32, or for a stack float32 ``(experts,)``.
        layout: ``"linear"`` or ``"block_nvfp4"``.
        name: name of the tensor, used by errors.
        input_scale: decode scale of the activations that this weight was calibrated with, of the
            same shape as decode_scale; None where the file has none.

    Raises:
        TypeError: codes or scales are not NumPy arrays of uint8 (or float8_e4m3fn).
        ValueError: a shape, the layout, or the shape of a global scale does not fit.
    """

    codes: U8
    scales: U8 | None
    decode_scale: GlobalScale
    layout: WeightLayout = "linear"
    name: str = "weight"
    input_scale: GlobalScale | None = None

    def __post_init__(self) -> None:
        """Check dtypes and shapes; bring bytes and global scales to their types."""
        check_string("name", self.name)
        if self.layout not in WEIGHT_LAYOUTS:
            allowed = ", ".join(WEIGHT_LAYOUTS)
            raise ValueError(f"layout must be one of {allowed}, got {self.layout!r}")
        object.__setattr__(self, "codes", _as_bytes(self.codes, f"codes of {self.name}"))
        if self.scales is not None:
            object.__setattr__(self, "scales", _as_bytes(self.scales, f"scales of {self.name}"))
        self._check_shapes()
        for field in ("decode_scale", "input_scale"):
            value = getattr(self, field)
            if value is not None or field == "decode_scale":
                object.__setattr__(self, field, self._global_scale(value, field))

    def _check_shapes(self) -> None:
        codes = self.codes.shape
        if self.layout == "block_nvfp4":
            if len(codes) not in (3, 4) or codes[-1] != NVFP4_BLOCK_BYTES:
                raise ValueError(f"codes of {self.name} must be (..., n, k/64, 36), got {codes}")
            if self.scales is not None:
                raise ValueError(f"scales of {self.name} lie in its blocks and must be None")
            return
        if len(codes) not in (2, 3) or (2 * codes[-1]) % QK_NVFP4:
            raise ValueError(
                f"codes of {self.name} must be (..., n, k/2) with k a multiple of {QK_NVFP4}, "
                f"got {codes}"
            )
        expected = (*codes[:-1], 2 * codes[-1] // GROUP_SIZE)
        got = None if self.scales is None else self.scales.shape
        if got != expected:
            raise ValueError(f"scales of {self.name} must have shape {expected}, got {got}")

    def _global_scale(self, value: GlobalScale, field: str) -> GlobalScale:
        array = as_float32(value, f"{field} of {self.name}")
        if self.num_experts is None and array.ndim == 0:
            scalar: np.float32 = np.float32(float(array))
            return scalar
        if self.num_experts is not None and array.shape == (self.num_experts,):
            return array
        expected = "a number" if self.num_experts is None else f"of shape ({self.num_experts},)"
        raise ValueError(f"{field} of {self.name} must be {expected}, got shape {array.shape}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Return ``(n, k)`` or ``(experts, n, k)``."""
        if self.layout == "block_nvfp4":
            return (*self.codes.shape[:-2], self.codes.shape[-2] * QK_NVFP4)
        return (*self.codes.shape[:-1], self.codes.shape[-1] * 2)

    @property
    def num_experts(self) -> int | None:
        """Return the length of the leading axis, None for one matrix."""
        leading = self.codes.ndim - (3 if self.layout == "block_nvfp4" else 2)
        return self.codes.shape[0] if leading else None

    @property
    def nbytes(self) -> int:
        """Return the bytes of codes, scales and decode scales."""
        scales = 0 if self.scales is None else self.scales.nbytes
        return self.codes.nbytes + scales + self.decode_scale.nbytes

    @property
    def bits_per_value(self) -> float:
        """Return the bits that one value takes: 4.5, and a little for the decode scale."""
        num_values = math.prod(self.shape)
        return 8 * self.nbytes / num_values if num_values else 0.0

    @property
    def blocks(self) -> U8:
        """Return the weight as block_nvfp4, uint8 ``(..., n, k/64, 36)``: what the GEMM reads."""
        return self.to_layout("block_nvfp4").codes

    def linear(self) -> tuple[U8, U8]:
        """Return codes ``(..., n, k/2)`` and scales ``(..., n, k/16)`` as checkpoints hold them."""
        weight = self.to_layout("linear")
        assert weight.scales is not None
        return weight.codes, weight.scales

    def to_layout(self, layout: WeightLayout) -> NVFP4Weight:
        """Move the bits to another layout; the weight itself where it is that layout already.

        Raises:
            ValueError: the layout is unknown.
        """
        if layout not in WEIGHT_LAYOUTS:
            allowed = ", ".join(WEIGHT_LAYOUTS)
            raise ValueError(f"layout must be one of {allowed}, got {layout!r}")
        if layout == self.layout:
            return self
        *leading, k = self.shape
        rows = math.prod(leading)
        if self.scales is None:
            codes, scales = block_nvfp4_to_linear(
                self.codes.reshape(rows, k // QK_NVFP4, NVFP4_BLOCK_BYTES)
            )
            return replace(
                self,
                layout=layout,
                codes=codes.reshape(*leading, k // 2),
                scales=scales.reshape(*leading, k // GROUP_SIZE),
            )
        blocks = linear_to_block_nvfp4(
            self.codes.reshape(rows, k // 2), self.scales.reshape(rows, k // GROUP_SIZE)
        )
        blocks = blocks.reshape(*leading, k // QK_NVFP4, NVFP4_BLOCK_BYTES)
        return replace(self, layout=layout, codes=blocks, scales=None)

    def dequantize(self, dtype: OutputType = "bfloat16") -> NDArray[Any]:
        """Decode the values.

        Args:
            dtype: ``"bfloat16"``, ``"float16"`` or ``"float32"``.

        Returns:
            ``(n, k)`` or ``(experts, n, k)`` of that dtype. NaN where a scale byte is 0x7F.

        Raises:
            ValueError: the dtype is unknown.
        """
        codes, scales = self.linear()
        if self.num_experts is None:
            return dequantize_nvfp4(codes, scales, float(self.decode_scale), dtype=dtype)
        decoded = [self.expert(i).dequantize(dtype) for i in range(self.num_experts)]
        return np.stack(decoded)

    def expert(self, i: int) -> NVFP4Weight:
        """Return matrix ``i`` of a stack, a view.

        Raises:
            ValueError: the weight is one matrix, or has no expert ``i``.
        """
        if self.num_experts is None or not 0 <= i < self.num_experts:
            raise ValueError(f"{self.name} of shape {self.shape} has no expert {i}")
        return replace(
            self,
            name=f"{self.name}[{i}]",
            codes=self.codes[i],
            scales=None if self.scales is None else self.scales[i],
            decode_scale=np.asarray(self.decode_scale)[i],
            input_scale=None if self.input_scale is None else np.asarray(self.input_scale)[i],
        )

    def rows(self, index: slice | NDArray[np.intp], name: str | None = None) -> NVFP4Weight:
        """Return some rows of the matrix, or of each matrix of a stack; a slice gives a view."""
        axis = 0 if self.num_experts is None else 1
        key = (slice(None),) * axis + (index,)
        return replace(
            self,
            name=self.name if name is None else name,
            codes=self.codes[key],
            scales=None if self.scales is None else self.scales[key],
        )

    def split_gate_up(self, granularity: int | None = None) -> tuple[NVFP4Weight, NVFP4Weight]:
        """Split a fused gate/up weight of ``2 * intermediate`` rows into gate and up.

        Args:
            granularity: None where all gate rows come first; g where g rows of gate and g rows of
                up take turns, as ``deinterleave_quantize_from_buffer`` has it. g = 1 for rows
                that alternate.

        Returns:
            gate, up: the weights, each with the scales of the fused one.

        Raises:
            TypeError: granularity is no integer.
            ValueError: the rows do not split so.
        """
        if granularity is not None:
            granularity = integer("granularity", granularity)
        n = self.shape[-2]
        run = n // 2 if granularity is None else granularity
        if n % 2 or run < 0 or (n and (run < 1 or n % (2 * run))):
            raise ValueError(
                f"{self.name} of {n} rows does not split into gate and up "
                f"with granularity {granularity}"
            )
        names = _gate_up_names(self.name)
        if granularity is None:
            return self.rows(slice(0, run), names[0]), self.rows(slice(run, n), names[1])
        gate = np.flatnonzero(np.arange(n) // run % 2 == 0)
        return self.rows(gate, names[0]), self.rows(gate + run, names[1])


def stack_experts(weights: Sequence[NVFP4Weight], name: str = "experts") -> NVFP4Weight:
    """Stack the matrices of all experts into one weight with a leading axis, a copy.

    Args:
        weights: matrices of one shape, in any layout; the first one's layout is the result's.
        name: name of the stack.

    Returns:
        The stack; its input_scale is None unless every matrix has one.

    Raises:
        TypeError: weights is no sequence of weights.
        ValueError: there are none, one is a stack itself, or shapes differ.
    """
    if not isinstance(weights, Sequence) or not all(isinstance(w, NVFP4Weight) for w in weights):
        raise TypeError(f"weights must be a sequence of NVFP4Weight objects, got {weights!r:.80}")
    shapes = {weight.shape for weight in weights}
    if len(shapes) != 1 or any(weight.num_experts is not None for weight in weights):
        raise ValueError(f"experts of {name} must be matrices of one shape, got {sorted(shapes)}")
    moved = [weight.to_layout(weights[0].layout) for weight in weights]
    scales = [weight.scales for weight in moved if weight.scales is not None]
    inputs = [weight.input_scale for weight in moved if weight.input_scale is not None]
    return NVFP4Weight(
        name=name,
        layout=weights[0].layout,
        codes=np.stack([weight.codes for weight in moved]),
        scales=np.stack(scales) if scales else None,
        decode_scale=np.array([weight.decode_scale for weight in moved], np.float32),
        input_scale=np.array(inputs, np.float32) if len(inputs) == len(moved) else None,
    )


def _as_bytes(array: Any, what: str) -> U8:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{what} must be a NumPy array, got {type(array).__name__}")
    if array.dtype == np.uint8:
        return array
    if array.dtype.name == "float8_e4m3fn":
        bytes_: U8 = array.view(np.uint8)
        return bytes_
    raise TypeError(f"{what} must be uint8, got {array.dtype}")


def _gate_up_names(name: str) -> tuple[str, str]:
    for fused in ("gate_up_proj", "gate_up"):
        if fused in name:
            suffix = fused.removeprefix("gate_up")
            return name.replace(fused, f"gate{suffix}"), name.replace(fused, f"up{suffix}")
    return f"{name}.gate", f"{name}.up"
