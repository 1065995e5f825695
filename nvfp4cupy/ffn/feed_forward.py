"""Quantize, gate and up products, SwiGLU, down product, on weights that are repacked once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from nvfp4cupy import arrays, formats, ops
from nvfp4cupy.checkpoint import Checkpoint
from nvfp4cupy.ffn.graph import FeedForwardGraph
from nvfp4cupy.ffn.names import feed_forward_names
from nvfp4cupy.ffn.weights import Source, WeightLike
from nvfp4cupy.ffn.workspace import Buffers, ScratchSizes, Workspace
from nvfp4cupy.layouts import NibbleOrder, integer, size
from nvfp4cupy.ops import checks

__all__ = ["FeedForward"]

Device = Literal["auto", "cpu", "gpu"]


class FeedForward:
    """The gated feed-forward of a transformer layer with NVFP4 weights.

    ``y = down(h)``, ``h = silu(min(gate(x), L)) * clip(up(x), -L, L)``, where each projection is
    ``x W^T`` with ``W[n, k] = e2m1 * e4m3 * decode_scale``.

    By default activations are quantized too (W4A4): x once for both products, h in the same
    kernel as SwiGLU. The decode scales of gate and up are applied there, in float32; that of down
    when its sums are rounded. ``nvfp4_mmq_gemm`` takes the tile that suits the rows of a call.

    On a GPU the weights are uploaded and repacked when the object is made, and scratch memory is
    allocated for ``max_m`` rows. A call with at most as many rows and ``out`` then allocates
    nothing and does not wait for the GPU, so it can be captured in a CUDA graph. A call with more
    rows makes the scratch grow, once.

    Attributes:
        in_features: columns of x.
        intermediate: rows of gate and up.
        out_features: columns of y.
        on_gpu: whether it takes GPU arrays; else NumPy arrays and the reference.
        workspace: the scratch memory of calls without one of their own; None on the CPU.
    """

    def __init__(
        self,
        gate: WeightLike,
        up: WeightLike,
        down: WeightLike,
        *,
        device: Device = "auto",
        max_m: int = 128,
        workspace: Workspace | None = None,
        w4a16: bool = False,
        row_scale: bool = False,
        round_intermediate: bool = False,
        swiglu_limit: float | None = 10.0,
    ) -> None:
        """Check the weights, move them and repack them.

        A weight is an ``NVFP4Weight`` or ``(codes, scales, decode_scale)``: uint8
        ``(n, k // 2)``, uint8 E4M3 bytes ``(n, k // 16)``, and the number to multiply by. A 0-d
        GPU array as that number is read once, here, which waits for the GPU.

        Args:
            gate: ``(intermediate, in_features)``.
            up: ``(intermediate, in_features)``.
            down: ``(out_features, intermediate)``.
            device: ``"cpu"``, ``"gpu"`` (the current one, or where the weights lie), or
                ``"auto"``: a GPU if there is one.
            max_m: rows to allocate scratch memory for, on a GPU.
            workspace: scratch memory of another layer to share instead, see ``Workspace``.
            w4a16: keep activations in bfloat16, for checkpoints calibrated so.
            row_scale: quantize each row of activations with a float32 scale of its own, for
                activations that leave the range of the block scales (2^-11 to 2688).
            round_intermediate: round h to bfloat16 before it is quantized, as separate steps do.
            swiglu_limit: L, above zero; None for models that do not clamp.

        Raises:
            TypeError: a weight is neither of those above, or an argument has a wrong type.
            ValueError: a shape, decode scale, device or option does not fit.
            RuntimeError: ``device="gpu"`` and there is none, or no CuPy; or the current stream is
                being captured into a graph.
        """
        sources = [Source.of(n, w) for n, w in (("gate", gate), ("up", up), ("down", down))]
        _check_shapes(*(source.shape for source in sources))
        checks.check_flags(w4a16=w4a16, row_scale=row_scale, round_intermediate=round_intermediate)
        max_m = size("max_m", max_m)
        if w4a16 and row_scale:
            raise ValueError("row_scale must be False with w4a16=True: nothing is quantized then")
        self.on_gpu = _choose_side(device, sources)
        self.intermediate, self.in_features = sources[0].shape
        self.out_features = sources[2].shape[0]
        self._w4a16, self._row_scale = w4a16, row_scale
        self._sizes = ScratchSizes(self.in_features, self.intermediate, not w4a16, row_scale)
        self._swiglu: dict[str, Any] = {"swiglu_limit": swiglu_limit}
        if not w4a16:
            self._swiglu |= {"round_intermediate": round_intermediate, "row_scale": row_scale}
        nothing = np.empty(0, formats.bfloat16())  # so that a bad limit is refused here
        ops.nvfp4_silu_mul_scaled(nothing, nothing, 1.0, 1.0, swiglu_limit=swiglu_limit)
        if workspace is not None:
            self._check_workspace(workspace)
        gpu_array = next((s.codes for s in sources if arrays.is_gpu(s.codes)), None)
        with arrays.context(gpu_array):
            self._gate, self._up, self._down = (s.load(self.on_gpu) for s in sources)
            self.workspace = workspace
            if self.on_gpu and workspace is None:
                self.workspace = self.new_workspace(max_m)
            if self.on_gpu:  # calls on other streams find the weights complete
                arrays.cupy().cuda.get_current_stream().synchronize()

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str] | Checkpoint,
        layer: int,
        *,
        names: Sequence[str] | None = None,
        granularity: int | None = None,
        nibble_order: NibbleOrder = "low_first",
        **options: Any,
    ) -> FeedForward:
        """Read the weights of a layer from a safetensors or GGUF checkpoint.

        Usual names are found behind any prefix: ``layers.{layer}.mlp.`` (or ``feed_forward.``)
        with ``gate_proj``, ``up_proj``, ``down_proj``, or ``gate_up_proj``, ``down_proj``, or
        ``w1``, ``w3``, ``w2``; GGUF's ``blk.{layer}.ffn_gate``, ``ffn_up``, ``ffn_down``.

        Args:
            path: what ``Checkpoint.open`` takes, or an open checkpoint.
            layer: index of the layer.
            names: names of gate, up and down, or of gate and up in one and down, where they are
                others; ``{layer}`` stands for the index.
            granularity: for gate and up in one: rows of each in turn; None where all rows of gate
                come first.
            nibble_order: as ``Checkpoint.open``; an open checkpoint has its own.
            **options: as ``FeedForward``.

        Returns:
            The feed-forward; the file can be closed or removed.

        Raises:
            FileNotFoundError: a file is not there.
            TypeError: as ``FeedForward``.
            ValueError: the layer is not there (names near it are listed), a tensor is damaged or
                not NVFP4, or as ``FeedForward``.
            RuntimeError: as ``FeedForward``, or the file is GGUF and the package gguf is missing.
        """
        layer = integer("layer", layer)
        if granularity is not None:
            granularity = integer("granularity", granularity)
        if not isinstance(path, Checkpoint):
            with Checkpoint.open(path, nibble_order=nibble_order) as opened:
                return cls.from_checkpoint(
                    opened, layer, names=names, granularity=granularity, **options
                )
        weights = [path.nvfp4(name) for name in feed_forward_names(path, layer, names)]
        if len(weights) == 2:
            weights[:1] = weights[0].split_gate_up(granularity)
        elif granularity is not None:
            raise ValueError(f"granularity must be None for two weights, got {granularity}")
        gate, up, down = weights
        return cls(gate, up, down, **options)

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of the three weights in memory."""
        return sum(int(p.blocks.nbytes) for p in (self._gate, self._up, self._down))

    def new_workspace(self, max_m: int) -> Workspace:
        """Allocate scratch memory, for calls that shall overlap with others.

        Args:
            max_m: rows of the largest call that shall not allocate.

        Raises:
            TypeError: ``max_m`` is no integer.
            ValueError: ``max_m`` is negative.
            RuntimeError: the feed-forward is on the CPU, or the current stream is being captured.
        """
        self._need_gpu("a workspace")
        with arrays.context(self._gate.blocks):
            return Workspace(max_m, self._sizes)

    def capture(self, m: int) -> FeedForwardGraph:
        """Capture a call with m rows into a CUDA graph with fixed arrays for input and output.

        Args:
            m: rows of the call.

        Raises:
            TypeError: m is no integer.
            ValueError: m is below 1.
            RuntimeError: the feed-forward is on the CPU, or the current stream is being captured.
        """
        self._need_gpu("a CUDA graph")
        with arrays.context(self._gate.blocks):
            return FeedForwardGraph(self, m)

    def __call__(
        self,
        x: Any,
        *,
        dtype: str | None = None,
        out: Any = None,
        workspace: Workspace | None = None,
        stream: Any = None,
    ) -> Any:
        """Compute the feed-forward of m rows.

        Args:
            x: bfloat16 ``(m, in_features)``; rows of contiguous elements, at any row stride.
            dtype: ``"bfloat16"`` to read uint16 elements as bfloat16 bits.
            out: bfloat16 ``(m, out_features)`` to write to, may be x; allocated otherwise.
            workspace: scratch memory to use instead of ``self.workspace``, see ``new_workspace``.
            stream: CuPy stream to run on; the current one otherwise.

        Returns:
            bfloat16 ``(m, out_features)``.

        Raises:
            TypeError: a dtype is not bfloat16.
            ValueError: a shape, stride, device or workspace does not fit; nothing is written.
            RuntimeError: the stream is being captured and the workspace is too small for m.
        """
        x = checks.float_matrix("x", x, dtypes=("bfloat16",), dtype=dtype, strided_rows=True)
        m = x.shape[0]
        if x.shape[1] != self.in_features:
            raise ValueError(f"x must have {self.in_features} columns, got shape {x.shape}")
        arrays.check_same_side(weights=self._gate.blocks, x=x)
        run = self._run_w4a16 if self._w4a16 else self._run_w4a4
        with arrays.context(x, stream):
            y = arrays.output("out", out, (m, self.out_features), formats.bfloat16(), x)
            scratch = self.workspace if workspace is None else workspace
            if scratch is None:
                return run(x, y, Buffers())
            self._check_workspace(scratch)
            with scratch.borrow(m) as buffers:
                return run(x, y, buffers)

    def _run_w4a4(self, x: Any, y: Any, buffers: Buffers) -> Any:
        a = ops.nvfp4_mmq_quantize_act(x, row_scale=self._row_scale, out=buffers.act)
        a, rows = a if self._row_scale else (a, None)
        gate = ops.nvfp4_mmq_gemm(a, self._gate.blocks, row_scale=rows, out=buffers.gate)
        up = ops.nvfp4_mmq_gemm(a, self._up.blocks, row_scale=rows, out=buffers.up)
        factors = self._gate.decode_scale, self._up.decode_scale
        h = ops.nvfp4_silu_mul_quant(gate, up, *factors, **self._swiglu, out=buffers.hidden)
        h, rows = h if self._row_scale else (h, None)
        down = self._down
        return ops.nvfp4_mmq_gemm(h, down.blocks, out_scale=down.out_scale, row_scale=rows, out=y)

    def _run_w4a16(self, x: Any, y: Any, buffers: Buffers) -> Any:
        gate = ops.nvfp4_w4a16_gemm(x, self._gate.blocks, out=buffers.gate)
        up = ops.nvfp4_w4a16_gemm(x, self._up.blocks, out=buffers.up)
        factors = self._gate.decode_scale, self._up.decode_scale
        h = ops.nvfp4_silu_mul_scaled(gate, up, *factors, **self._swiglu, out=gate)
        return ops.nvfp4_w4a16_gemm(h, self._down.blocks, out_scale=self._down.out_scale, out=y)

    def _check_workspace(self, workspace: Workspace) -> None:
        if not isinstance(workspace, Workspace):
            raise TypeError(f"workspace must be a Workspace, got {type(workspace).__name__}")
        self._need_gpu("a workspace")
        if workspace.sizes != self._sizes:
            raise ValueError(
                f"workspace must be made for {self._sizes}, got one for {workspace.sizes}"
            )

    def _need_gpu(self, what: str) -> None:
        if not self.on_gpu:
            raise RuntimeError(f"{what} needs a GPU, this feed-forward is on the CPU")


def _check_shapes(gate: tuple[int, int], up: tuple[int, int], down: tuple[int, int]) -> None:
    if up != gate:
        raise ValueError(f"up must have the shape of gate, {gate}, got {up}")
    if down[1] != gate[0]:
        raise ValueError(
            f"down must have k = {gate[0]}, the rows of gate of shape {gate}, got shape {down}"
        )


def _choose_side(device: str, sources: Sequence[Source]) -> bool:
    """Return whether the weights go to a GPU."""
    if device not in ("auto", "cpu", "gpu"):
        raise ValueError(f'device must be "auto", "cpu" or "gpu", got {device!r}')
    on_gpu = [source for source in sources if arrays.is_gpu(source.codes)]
    if device == "cpu":
        if on_gpu:
            raise ValueError(
                f'{on_gpu[0].name} must be NumPy arrays for device="cpu", got CuPy arrays'
            )
        return False
    reason = arrays.missing_gpu()
    if device == "gpu" and reason:
        raise RuntimeError(reason)
    return not reason
