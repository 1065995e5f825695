"""The tensors of a file that make up one NVFP4 weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nvfp4cupy.checkpoint.checks import first_bad_scale
from nvfp4cupy.checkpoint.global_scale import is_usable, reciprocal
from nvfp4cupy.checkpoint.tensors import TensorInfo, shaped, view_values
from nvfp4cupy.checkpoint.weight import GlobalScale, NVFP4Weight, WeightLayout
from nvfp4cupy.formats import GROUP_SIZE, U8
from nvfp4cupy.layouts import NVFP4_BLOCK_BYTES, QK_NVFP4, NibbleOrder


@dataclass(frozen=True)
class NVFP4Parts:
    """Names of the tensors of one weight; those that a file lacks are None.

    Attributes:
        name: name of the weight, the same in every format.
        codes: tensor of the codes, or of the blocks.
        scales: tensor of the E4M3 block scales; None where they lie in the blocks.
        global_scale: tensor of the float32 scale; None means 1.
        input_scale: tensor of the activations' float32 scale.
        reciprocal: whether the file stores the reciprocals of the two global scales.
        missing: tensors that the format demands and the file lacks.
    """

    name: str
    codes: str
    scales: str | None
    global_scale: str | None
    input_scale: str | None
    reciprocal: bool
    missing: tuple[str, ...] = ()

    @property
    def layout(self) -> WeightLayout:
        """Return the layout in the file."""
        return "linear" if self.scales is not None else "block_nvfp4"

    @property
    def tensors(self) -> tuple[str, ...]:
        """Return the names of all tensors that are there."""
        names = (self.codes, self.scales, self.global_scale, self.input_scale)
        return tuple(name for name in names if name is not None and name not in self.missing)


def read_weight(
    parts: NVFP4Parts,
    infos: Mapping[str, TensorInfo],
    raw: Callable[[TensorInfo], U8],
    nibble_order: NibbleOrder = "low_first",
    *,
    check: bool = True,
) -> NVFP4Weight:
    """Make a weight of its tensors, with views where the file's order is ours.

    Args:
        parts: which tensors.
        infos: the tensors of the checkpoint.
        raw: gives the bytes of a tensor.
        nibble_order: order of the two codes of a byte; anything but low_first makes a copy.
        check: refuse bad scale bytes and global scales.

    Returns:
        The weight; its global scales are decode scales.

    Raises:
        ValueError: a tensor is missing or has the wrong shape, k is not a multiple of 64, or with
            ``check`` a scale byte is 0x7F or has the top bit set, or a global scale is not finite
            and above zero.
    """
    info = infos[parts.codes]
    if len(info.shape) not in (2, 3):
        raise ValueError(f"{info.where} must be a matrix or a stack of them, got {info.shape}")
    if parts.missing:
        raise ValueError(f"{info.where} needs {', '.join(parts.missing)}, which is not there")
    codes, scales = _matrices(parts, infos, raw, nibble_order)
    num_experts = info.shape[0] if len(info.shape) == 3 else None

    def global_scale(name: str | None) -> GlobalScale | None:
        if name is None:
            return None
        stored = view_values(raw(infos[name]), infos[name])
        return _decode_scale(infos[name], stored, num_experts, parts.reciprocal, check)

    ones = np.float32(1) if num_experts is None else np.ones(num_experts, np.float32)
    decode_scale = global_scale(parts.global_scale)
    weight = NVFP4Weight(
        name=parts.name,
        layout=parts.layout,
        codes=codes,
        scales=scales,
        decode_scale=ones if decode_scale is None else decode_scale,
        input_scale=global_scale(parts.input_scale),
    )
    if check and (bad := first_bad_scale(weight)):
        raise ValueError(f"{infos[parts.scales or parts.codes].where} has {bad}")
    return weight


def _matrices(
    parts: NVFP4Parts,
    infos: Mapping[str, TensorInfo],
    raw: Callable[[TensorInfo], U8],
    nibble_order: NibbleOrder,
) -> tuple[U8, U8 | None]:
    """Return codes (or blocks) and scales, row-major."""
    info = infos[parts.codes]
    if parts.scales is None:
        *leading, k = info.shape
        if k % QK_NVFP4:
            raise _bad_width(info, k)
        return shaped(raw(info), (*leading, k // QK_NVFP4, NVFP4_BLOCK_BYTES), info), None
    scale_info = infos[parts.scales]
    if scale_info.dtype not in ("F8_E4M3", "U8"):
        raise ValueError(f"{scale_info.where} must be F8_E4M3, got {scale_info.dtype}")
    codes: U8 = shaped(raw(info), _packed_shape(info), info)
    scales: U8 = shaped(raw(scale_info), scale_info.shape, scale_info)
    if _is_transposed(codes.shape, scales.shape):
        codes = np.ascontiguousarray(codes.swapaxes(1, 2))
        scales = np.ascontiguousarray(scales.swapaxes(1, 2))
    k = 2 * codes.shape[-1]
    if k % QK_NVFP4:
        raise _bad_width(info, k)
    if scales.shape != (*codes.shape[:-1], k // GROUP_SIZE):
        raise ValueError(
            f"{scale_info.where} must have shape {(*codes.shape[:-1], k // GROUP_SIZE)} "
            f"for codes {codes.shape}, got {scales.shape}"
        )
    return (swap_nibbles(codes) if nibble_order == "high_first" else codes), scales


def _packed_shape(info: TensorInfo) -> tuple[int, ...]:
    """Return the shape of the codes in bytes; the type F4 counts values."""
    if info.dtype != "F4":
        return info.shape
    *leading, k = info.shape
    if k % QK_NVFP4:
        raise _bad_width(info, k)
    return (*leading, k // 2)


def swap_nibbles(codes: U8) -> U8:
    """Exchange the two codes of each byte, a copy."""
    swapped: U8 = (codes << np.uint8(4)) | (codes >> np.uint8(4))
    return swapped


def _is_transposed(codes: tuple[int, ...], scales: tuple[int, ...]) -> bool:
    """Tell whether a stack is stored as ``(experts, k/2, n)`` with scales ``(experts, k/16, n)``.

    Some stacked experts are, so that ``x @ w`` needs no transpose; codes are packed along k all
    the same. The row-major pair has scales of another shape unless both are empty.
    """
    if len(codes) != 3 or 0 in codes:
        return False
    experts, half_k, n = codes
    return scales == (experts, 2 * half_k // GROUP_SIZE, n)


def _bad_width(info: TensorInfo, k: int) -> ValueError:
    return ValueError(f"{info.where} must have k a multiple of {QK_NVFP4}, got k = {k}")


def _decode_scale(
    info: TensorInfo,
    stored: NDArray[np.generic],
    num_experts: int | None,
    is_reciprocal: bool,
    check: bool,
) -> GlobalScale:
    """Bring a stored global scale to the decode direction and to the shape of a weight's."""
    count = 1 if num_experts is None else num_experts
    if info.dtype not in ("F32", "BF16", "F16", "F64") or stored.size not in (1, count):
        expected = "1 float" if count == 1 else f"1 or {count} floats"
        raise ValueError(f"{info.where} must hold {expected}, got {info.dtype} {info.shape}")
    with np.errstate(over="ignore", under="ignore"):
        flat = stored.reshape(-1).astype(np.float32)
    decode_scale = reciprocal(flat) if is_reciprocal else flat
    if check and not (is_usable(decode_scale) and is_usable(flat)):
        i = next(i for i in range(flat.size) if not is_usable(np.stack([flat, decode_scale])[:, i]))
        expert = f" for expert {i}" if flat.size > 1 else ""
        raise ValueError(f"{info.where} must be finite and above zero, got {flat[i]}{expert}")
    if num_experts is None:
        scalar: np.float32 = decode_scale[0]
        return scalar
    return np.ascontiguousarray(np.broadcast_to(decode_scale, (num_experts,)))
