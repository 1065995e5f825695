"""ModelOpt's layout of NVFP4 weights in safetensors files.

``x.weight`` U8 ``(n, k/2)``, ``x.weight_scale`` F8_E4M3 ``(n, k/16)``, ``x.weight_scale_2`` F32:
the decode scale, ``x.input_scale`` F32: the decode scale of the activations. Stacks of experts
have a leading axis.
"""

from __future__ import annotations

from collections.abc import Mapping

from nvfp4cupy.checkpoint.names import input_stem, weight_stem
from nvfp4cupy.checkpoint.parts import NVFP4Parts
from nvfp4cupy.checkpoint.streams import WeightStream, code_specs, global_scale_spec
from nvfp4cupy.checkpoint.tensors import TensorInfo, TensorSpec

_CODE_DTYPES = ("U8", "F4")


def find_parts(infos: Mapping[str, TensorInfo]) -> list[NVFP4Parts]:
    """Return the NVFP4 weights among the tensors of a checkpoint.

    A U8 matrix with block scales of type F8_E4M3, or with ``weight_scale_2``, is one.
    """
    found = []
    for name, info in infos.items():
        stem, input_scale = weight_stem(name), f"{input_stem(name)}_scale"
        scales, global_scale = f"{stem}_scale", f"{stem}_scale_2"
        if info.dtype not in _CODE_DTYPES or len(info.shape) not in (2, 3):
            continue
        has_e4m3 = scales in infos and infos[scales].dtype == "F8_E4M3"
        if not has_e4m3 and global_scale not in infos:
            continue
        found.append(
            NVFP4Parts(
                name=name,
                codes=name,
                scales=scales,
                global_scale=global_scale,
                input_scale=input_scale if input_scale in infos else None,
                reciprocal=False,
                missing=tuple(part for part in (scales, global_scale) if part not in infos),
            )
        )
    return found


def tensor_specs(stream: WeightStream) -> list[TensorSpec]:
    """Return the tensors that hold a weight in this layout."""
    stem = weight_stem(stream.name)
    shape = () if len(stream.shape) == 2 else stream.shape[:1]
    specs = code_specs(stream, stream.name, f"{stem}_scale")
    specs.append(global_scale_spec(f"{stem}_scale_2", shape, lambda: stream.decode_scale))
    if (input_scale := stream.input_scale) is not None:
        name = f"{input_stem(stream.name)}_scale"
        specs.append(global_scale_spec(name, shape, lambda: input_scale))
    return specs
