"""The layout of NVFP4 weights in GGUF files.

``x.weight`` of type NVFP4 ``(n, k)`` holds block_nvfp4 rows; ``x.scale`` and ``x.input_scale``,
F32, are decode scales, one number or one per expert, and 1 where ``x.scale`` is left out. Stacks
of experts have a leading axis.
"""

from __future__ import annotations

from collections.abc import Mapping

from nvfp4cupy.checkpoint.names import module_of
from nvfp4cupy.checkpoint.parts import NVFP4Parts
from nvfp4cupy.checkpoint.streams import WeightStream, global_scale_spec
from nvfp4cupy.checkpoint.tensors import TensorInfo, TensorSpec


def find_parts(infos: Mapping[str, TensorInfo]) -> list[NVFP4Parts]:
    """Return the NVFP4 weights among the tensors of a GGUF file."""
    found = []
    for name, info in infos.items():
        if info.dtype != "NVFP4":
            continue
        scale, input_scale = f"{module_of(name)}.scale", f"{module_of(name)}.input_scale"
        found.append(
            NVFP4Parts(
                name=name,
                codes=name,
                scales=None,
                global_scale=scale if scale in infos else None,
                input_scale=input_scale if input_scale in infos else None,
                reciprocal=False,
            )
        )
    return found


def tensor_specs(stream: WeightStream) -> list[TensorSpec]:
    """Return the tensors that hold a weight in a GGUF file."""
    module = module_of(stream.name)
    shape = (1,) if len(stream.shape) == 2 else stream.shape[:1]
    specs = [
        TensorSpec(stream.name, "NVFP4", stream.shape, stream.blocks),
        global_scale_spec(f"{module}.scale", shape, lambda: stream.decode_scale),
    ]
    if (input_scale := stream.input_scale) is not None:
        specs.append(global_scale_spec(f"{module}.input_scale", shape, lambda: input_scale))
    return specs
