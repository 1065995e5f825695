"""The compressed-tensors layout of NVFP4 weights in safetensors files.

``x.weight_packed`` U8 ``(n, k/2)``, ``x.weight_scale`` F8_E4M3 ``(n, k/16)``,
``x.weight_global_scale`` F32 ``(1,)``: the **reciprocal** of the decode scale (2688 / amax),
``x.input_global_scale`` F32 ``(1,)``: the reciprocal again.
"""

from __future__ import annotations

from collections.abc import Mapping

from nvfp4cupy.checkpoint.global_scale import stored_reciprocal
from nvfp4cupy.checkpoint.names import input_stem, weight_of_stem, weight_stem
from nvfp4cupy.checkpoint.parts import NVFP4Parts
from nvfp4cupy.checkpoint.streams import WeightStream, code_specs, global_scale_spec
from nvfp4cupy.checkpoint.tensors import TensorInfo, TensorSpec

_PACKED = "weight_packed"


def find_parts(infos: Mapping[str, TensorInfo]) -> list[NVFP4Parts]:
    """Return the NVFP4 weights among the tensors of a checkpoint.

    A packed U8 matrix with block scales of type F8_E4M3, or with a global scale, is one.
    """
    found = []
    for name, info in infos.items():
        stem = name.removesuffix("_packed")
        scales, global_scale = f"{stem}_scale", f"{stem}_global_scale"
        if not name.endswith(_PACKED) or info.dtype != "U8" or len(info.shape) not in (2, 3):
            continue
        has_e4m3 = scales in infos and infos[scales].dtype == "F8_E4M3"
        if not has_e4m3 and global_scale not in infos:
            continue
        weight = weight_of_stem(stem)
        input_scale = f"{input_stem(weight)}_global_scale"
        found.append(
            NVFP4Parts(
                name=weight,
                codes=name,
                scales=scales,
                global_scale=global_scale,
                input_scale=input_scale if input_scale in infos else None,
                reciprocal=True,
                missing=tuple(part for part in (scales, global_scale) if part not in infos),
            )
        )
    return found


def tensor_specs(stream: WeightStream) -> list[TensorSpec]:
    """Return the tensors that hold a weight in this layout."""
    stem = weight_stem(stream.name)
    shape = (1,) if len(stream.shape) == 2 else stream.shape[:1]
    specs = code_specs(stream, f"{stem}_packed", f"{stem}_scale")
    name = f"{stem}_global_scale"
    specs.append(global_scale_spec(name, shape, lambda: stored_reciprocal(stream.decode_scale)))
    if (input_scale := stream.input_scale) is not None:
        name = f"{input_stem(stream.name)}_global_scale"
        specs.append(global_scale_spec(name, shape, lambda: stored_reciprocal(input_scale)))
    return specs
