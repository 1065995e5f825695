"""The feed-forward is the references in order, near float64, and finds its weights in files."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nvfp4cupy import reference
from nvfp4cupy.checkpoint import Checkpoint, NVFP4Weight, save_checkpoint
from nvfp4cupy.ffn import FeedForward
from nvfp4cupy.ffn.workspace import ScratchSizes
from nvfp4cupy.layouts import block_fp4_mmq_to_linear, nvfp4_mmq_weight_bytes
from nvfp4cupy.reference import gemm_error_bound, gemm_float64

BF16 = ml_dtypes.bfloat16
K, N, OUT = 320, 192, 128  # neither k is a multiple of 256
OPTIONS: list[dict[str, Any]] = [
    {},
    {"w4a16": True},
    {"row_scale": True},
    {"round_intermediate": True},
    {"row_scale": True, "round_intermediate": True},
    {"swiglu_limit": None},
    {"w4a16": True, "swiglu_limit": 1.5},
]


def weight(n: int, k: int, seed: int, name: str = "w") -> NVFP4Weight:
    values = np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32) / k**0.5
    decode_scale = float(np.abs(values).max()) / 2688
    codes, scales = reference.quantize_nvfp4(values, decode_scale, rounding="nearest_even")
    return NVFP4Weight(codes, scales, np.float32(decode_scale), name=name)


WEIGHTS = weight(N, K, 1), weight(N, K, 2), weight(OUT, N, 3)


def inputs(m: int, k: int = K, seed: int = 0) -> np.ndarray:
    return (4 * np.random.default_rng(seed).standard_normal((m, k))).astype(BF16)


def by_references(
    x: np.ndarray,
    weights: tuple[NVFP4Weight, ...] = WEIGHTS,
    *,
    w4a16: bool = False,
    row_scale: bool = False,
    **swiglu: Any,
) -> tuple[np.ndarray, ...]:
    """Return gate, up, hidden (plain or blocks), its row scale or None, and the result."""
    gate, up, down = weights
    scales = float(gate.decode_scale), float(up.decode_scale)
    fold = {"out_scale": float(down.decode_scale)}
    if w4a16:
        g, u = (reference.nvfp4_w4a16_gemm(x, w.blocks) for w in (gate, up))
        h = reference.nvfp4_silu_mul_scaled(g, u, *scales, **swiglu)
        return g, u, h, None, reference.nvfp4_w4a16_gemm(h, down.blocks, **fold)
    a = reference.nvfp4_mmq_quantize_act(x, row_scale=row_scale)
    a, rows = a if row_scale else (a, None)
    g, u = (reference.nvfp4_mmq_gemm(a, w.blocks, row_scale=rows) for w in (gate, up))
    h = reference.nvfp4_silu_mul_quant(g, u, *scales, row_scale=row_scale, **swiglu)
    h, rows = h if row_scale else (h, None)
    return g, u, h, rows, reference.nvfp4_mmq_gemm(h, down.blocks, row_scale=rows, **fold)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("m", [0, 1, 5, 20])
def test_a_call_is_the_references_in_order(m: int, options: dict[str, Any]) -> None:
    x = inputs(m)
    y = FeedForward(*WEIGHTS, device="cpu", **options)(x)
    assert (y.shape, y.dtype) == ((m, OUT), BF16)
    assert y.tobytes() == by_references(x, **options)[-1].tobytes()


def decoded(blocks: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
    """Return float64 values of quantized activations, without the padding up to 256 columns."""
    scale = 1.0 if rows is None else rows
    values = reference.dequantize_nvfp4(*block_fp4_mmq_to_linear(blocks), 1.0, dtype="float32")
    return values.astype(np.float64)[:, :N] * np.asarray(scale, np.float64).reshape(-1, 1)


def swiglu_float64(gate: np.ndarray, up: np.ndarray, limit: float) -> np.ndarray:
    gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit)
    return gate / (1 + np.exp(-gate)) * up


def down_float64() -> np.ndarray:
    return WEIGHTS[2].dequantize("float32").astype(np.float64).T


def test_w4a16_is_within_its_rounding_errors_of_float64() -> None:
    x = inputs(7)
    y = FeedForward(*WEIGHTS, device="cpu", w4a16=True)(x).astype(np.float64)
    h = by_references(x, w4a16=True)[2]
    folds = [{"out_scale": float(w.decode_scale)} for w in WEIGHTS]
    blocks = [w.blocks for w in WEIGHTS]
    g, u = (gemm_float64(x, b, **f) for b, f in zip(blocks[:2], folds, strict=False))
    # The products are rounded to bfloat16 before their scale, which is a float32 operation more.
    dg, du = (
        gemm_error_bound(x, b) * f["out_scale"] + np.abs(v) * 2.0**-23
        for b, f, v in zip(blocks[:2], folds, (g, u), strict=False)
    )
    exact = swiglu_float64(g, u, 10.0)
    # Clamps do not spread values, the slope of silu is below 1.1 and |silu(g)| <= |g|. SwiGLU is
    # six float32 operations of at most 2 units in the last place each; h is rounded to bfloat16.
    dh = 1.1 * dg * (np.abs(u) + du) + (np.abs(g) + dg) * du
    dh += (np.abs(exact) + dh) * (12 * 2.0**-23 + 2.0**-8)
    bound = dh @ np.abs(down_float64()) + gemm_error_bound(h, blocks[2], **folds[2])
    assert (np.abs(y - exact @ down_float64()) <= bound).all()
    assert bound.mean() < np.abs(y).mean() / 2  # so that a result off by a factor of 2 fails


@pytest.mark.parametrize("options", [{}, {"row_scale": True}, {"swiglu_limit": 0.5}], ids=str)
def test_w4a4_is_within_its_quantization_errors_of_float64(options: dict[str, Any]) -> None:
    x = inputs(7)
    rows = options.get("row_scale", False)
    y = FeedForward(*WEIGHTS, device="cpu", **options)(x).astype(np.float64)
    hidden, hidden_rows = by_references(x, **options)[2:4]
    a = reference.nvfp4_mmq_quantize_act(x, row_scale=rows)
    a, act_rows = a if rows else (a, None)
    g, u = (
        gemm_float64(a, w.blocks, out_scale=float(w.decode_scale), row_scale=act_rows)
        for w in WEIGHTS[:2]
    )
    exact = swiglu_float64(g, u, options.get("swiglu_limit", 10.0))
    # What the codes of h lost, carried through the down product, and that product's own error.
    lost = np.abs(decoded(hidden, hidden_rows) - exact)
    folds = {"out_scale": float(WEIGHTS[2].decode_scale), "row_scale": hidden_rows}
    bound = lost @ np.abs(down_float64()) + gemm_error_bound(hidden, WEIGHTS[2].blocks, **folds)
    assert (np.abs(y - exact @ down_float64()) <= bound).all()
    # The scale kept is no worse than e4m3(amax / 6), whose codes are at most one scale off: 16 of
    # them at most 4 * 17/16 * amax / 6 = 0.71 of the group's norm; gate and up add 3 * 2^-8.
    # A result off by a factor of 2 would lose the whole norm.
    assert np.linalg.norm(lost) < 0.75 * np.linalg.norm(exact)


def test_row_scale_rescues_activations_outside_the_range_of_block_scales() -> None:
    x = inputs(6)
    right = FeedForward(*WEIGHTS, device="cpu", w4a16=True)
    tiny = (x.astype(np.float32) * 2.0**-16).astype(BF16)
    plain = FeedForward(*WEIGHTS, device="cpu")(tiny)
    scaled = FeedForward(*WEIGHTS, device="cpu", row_scale=True)(tiny)
    assert not plain.astype(np.float32).any()  # below 2^-11: gone
    exact = right(tiny).astype(np.float64)
    # With a scale per row W4A4 loses no more than on inputs of about 1.
    near = by_references(x, row_scale=True)[-1].astype(np.float64)
    error = np.linalg.norm(scaled.astype(np.float64) - exact) / np.linalg.norm(exact)
    usual = np.linalg.norm(near - right(x).astype(np.float64)) / np.linalg.norm(near)
    assert error < 1.5 * usual


def test_out_is_written_whole_and_may_be_x() -> None:
    square = weight(N, K, 1), weight(N, K, 2), weight(K, N, 3)
    ffn = FeedForward(*square, device="cpu")
    x = inputs(3)
    right = ffn(x)
    out = np.full((3, K), np.nan, BF16)
    assert ffn(x, out=out) is out
    assert out.tobytes() == right.tobytes()
    ffn(x, out=x)
    assert x.tobytes() == right.tobytes()


def test_strided_rows_and_raw_bits_are_taken() -> None:
    ffn = FeedForward(*WEIGHTS, device="cpu")
    x = inputs(4, K + 16)
    right = ffn(np.ascontiguousarray(x[:, 16:]))
    assert ffn(x[:, 16:]).tobytes() == right.tobytes()
    bits = np.ascontiguousarray(x[:, 16:]).view(np.uint16)
    assert ffn(bits, dtype="bfloat16").tobytes() == right.tobytes()
    with pytest.raises(TypeError, match='got uint16 .pass dtype="bfloat16"'):
        ffn(bits)


def test_weights_are_taken_in_every_form() -> None:
    x = inputs(2)
    right = FeedForward(*WEIGHTS, device="cpu")(x)
    plain = [(w.codes, w.scales, float(w.decode_scale)) for w in WEIGHTS]
    float8 = [(c, s.view(ml_dtypes.float8_e4m3fn), np.float32(d)) for c, s, d in plain]
    blocks = [w.to_layout("block_nvfp4") for w in WEIGHTS]
    for form in (plain, float8, blocks):
        ffn = FeedForward(*form, device="cpu")
        assert ffn(x).tobytes() == right.tobytes()
    assert ffn.weight_bytes == 2 * nvfp4_mmq_weight_bytes(N, K) + nvfp4_mmq_weight_bytes(OUT, N)
    assert (ffn.in_features, ffn.intermediate, ffn.out_features) == (K, N, OUT)


CODES, SCALES = WEIGHTS[0].codes, WEIGHTS[0].scales
STACK = NVFP4Weight(CODES[None], SCALES[None], np.ones(1, np.float32))
OTHER = weight(OUT, 64, 0)
REFUSED: dict[str, dict[str, Any]] = {
    r"ValueError: up must have the shape of gate, \(192, 320\), got": {"up": OTHER},
    r"ValueError: down must have k = 192, .* got shape \(128, 64\)": {"down": OTHER},
    r"ValueError: gate must be one matrix, got a stack of shape \(1,": {"gate": STACK},
    r"TypeError: gate must be an NVFP4Weight or a tuple .* got list": {"gate": [1, 2, 3]},
    r"ValueError: codes of gate must hold .* 64 col": {"gate": (CODES[:, :40].copy(), SCALES, 1)},
    r"ValueError: scales must have .* for codes of up": {"up": (CODES, SCALES[:, 1:].copy(), 1)},
    r"ValueError: decode_scale of up must be finite .* inf": {"up": (CODES, SCALES, np.inf)},
    r"ValueError: decode_scale of up must be finite .* 0": {"up": (CODES, SCALES, 0)},
    r"TypeError: decode_scale of up must be a number": {"up": (CODES, SCALES, "1")},
    r"ValueError: device must be \"auto\", .* got 'tpu'": {"device": "tpu"},
    r"ValueError: row_scale must be False with w4a16": {"w4a16": True, "row_scale": True},
    r"ValueError: swiglu_limit must be finite and above zero": {"swiglu_limit": 0},
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused_by_name(message: str) -> None:
    arguments = {"gate": WEIGHTS[0], "up": WEIGHTS[1], "down": WEIGHTS[2], "device": "cpu"}
    kind, _, pattern = message.partition(": ")
    with pytest.raises({"TypeError": TypeError, "ValueError": ValueError}[kind], match=pattern):
        FeedForward(**arguments | REFUSED[message])


def test_a_call_refuses_what_does_not_fit() -> None:
    ffn = FeedForward(*WEIGHTS, device="cpu")
    with pytest.raises(ValueError, match=r"x must have 320 columns, got shape \(2, 64\)"):
        ffn(inputs(2, 64))
    with pytest.raises(TypeError, match="x must be bfloat16, got float32"):
        ffn(inputs(2).astype(np.float32))
    with pytest.raises(ValueError, match=r"out must have shape \(2, 128\)"):
        ffn(inputs(2), out=np.empty((3, OUT), BF16))
    with pytest.raises(ValueError, match="stream must be None for NumPy arrays"):
        ffn(inputs(2), stream=0)
    for call in (lambda: ffn.capture(1), lambda: ffn.new_workspace(1)):
        with pytest.raises(RuntimeError, match="needs a GPU, this feed-forward is on the CPU"):
            call()


@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("m", [0, 1, 7, 128])
def test_scratch_regions_are_aligned_and_do_not_overlap(m: int, quantized: bool) -> None:
    sizes = ScratchSizes(k=K, n=N, quantized=quantized, row_scale=quantized)
    regions = sizes.regions(m)
    spans = [
        (r.offset, r.offset + int(np.prod(r.shape)) * r.dtype.itemsize) for r in regions.values()
    ]
    assert all(start % 256 == 0 for start, _ in spans)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
    assert sizes.nbytes(m) == spans[-1][1]
    assert regions["gate"].shape == regions["up"].shape == (m, N)
    expected = {"act": (2, m, 144), "hidden": (1, m, 144), "act_scale": (m,), "hidden_scale": (m,)}
    assert {n: r.shape for n, r in regions.items() if n not in ("gate", "up")} == (
        expected if quantized else {}
    )


GATE, UP, DOWN = WEIGHTS
SEPARATE = ("{}gate_proj.weight", "{}up_proj.weight", "{}down_proj.weight")
NAMES = {
    "llama": [name.format("model.layers.3.mlp.") for name in SEPARATE],
    "prefixed": [name.format("language_model.model.layers.3.mlp.") for name in SEPARATE],
    "bare": [name.format("layers.3.feed_forward.") for name in SEPARATE],
    "w1 w3 w2": [f"model.layers.3.feed_forward.w{i}.weight" for i in (1, 3, 2)],
    "gguf": [f"blk.3.ffn_{part}.weight" for part in ("gate", "up", "down")],
}


def named(names: list[str], weights: tuple[NVFP4Weight, ...]) -> list[NVFP4Weight]:
    return [replace(w, name=name) for name, w in zip(names, weights, strict=True)]


def saved(path: Path, names: list[str], weights: Any = WEIGHTS, format: Any = "modelopt") -> Path:
    others = {"model.norm.weight": np.ones(4, np.float32)}
    save_checkpoint(path, named(names, weights), others, format=format)
    return path


@pytest.mark.parametrize("scheme", NAMES)
@pytest.mark.parametrize("format", ["modelopt", "compressed-tensors", "gguf"])
def test_usual_names_are_found_in_every_format(scheme: str, format: str, tmp_path: Path) -> None:
    if format == "gguf":
        pytest.importorskip("gguf")
    names = NAMES[scheme]
    others = [name.replace(".3.", ".13.") for name in names]
    path = saved(tmp_path / "m", names + others, (*WEIGHTS, UP, GATE, DOWN), format)
    x = inputs(2)
    # compressed-tensors stores reciprocals, which may move a decode scale by a unit or two in the
    # last place: read back, the weights are what the result is compared with.
    with Checkpoint.open(path) as checkpoint:
        weights = tuple(checkpoint.nvfp4(name) for name in names)
        from_open = FeedForward.from_checkpoint(checkpoint, 3, device="cpu")
    from_path = FeedForward.from_checkpoint(path, 3, device="cpu", max_m=2)
    path.unlink()
    for ffn in (from_open, from_path):
        assert ffn(x).tobytes() == by_references(x, weights)[-1].tobytes()


@pytest.mark.parametrize("granularity", [None, 8])
def test_gate_and_up_in_one_are_split(granularity: int | None, tmp_path: Path) -> None:
    up = NVFP4Weight(UP.codes, UP.scales, GATE.decode_scale)  # one weight has one decode scale
    parts = [np.stack([getattr(w, a) for w in (GATE, up)]) for a in ("codes", "scales")]
    run = granularity or N
    fused = [p.reshape(2, N // run, run, -1).swapaxes(0, 1).reshape(2 * N, -1) for p in parts]
    weights = NVFP4Weight(*fused, GATE.decode_scale), DOWN
    names = [f"model.layers.0.mlp.{part}.weight" for part in ("gate_up_proj", "down_proj")]
    path = saved(tmp_path / "m.safetensors", names, weights)
    ffn = FeedForward.from_checkpoint(path, 0, granularity=granularity, device="cpu")
    x = inputs(2)
    assert ffn(x).tobytes() == by_references(x, (GATE, up, DOWN))[-1].tobytes()


def test_other_names_are_given_as_patterns(tmp_path: Path) -> None:
    names = ["h.5.ff.a", "h.5.ff.b", "h.5.ff.c"]
    path = saved(tmp_path / "m.safetensors", [f"{name}.weight" for name in names])
    pattern = [name.replace("5", "{layer}") for name in names]
    ffn = FeedForward.from_checkpoint(path, 5, names=pattern, device="cpu")
    x = inputs(1)
    assert ffn(x).tobytes() == by_references(x)[-1].tobytes()
    with pytest.raises(ValueError, match=r"names must be \(gate, up, down\) or \(gate_up, down\)"):
        FeedForward.from_checkpoint(path, 5, names=pattern[:1], device="cpu")
    with pytest.raises(TypeError, match="names must be a tuple of strings"):
        FeedForward.from_checkpoint(path, 5, names="h.5.ff.a", device="cpu")
    with pytest.raises(ValueError, match=r"no tensor 'h.5.ff.x'; near it: h.5.ff."):
        FeedForward.from_checkpoint(path, 5, names=("h.5.ff.x", *names[1:]), device="cpu")


def test_a_layer_that_is_not_there_is_refused_with_near_names(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.safetensors", NAMES["llama"])
    message = "no gated feed-forward for layer 4; near it: .*model.layers.3.mlp.gate_proj"
    with pytest.raises(ValueError, match=message):
        FeedForward.from_checkpoint(path, 4, device="cpu")
    path = saved(tmp_path / "m.safetensors", NAMES["llama"][::2], (GATE, DOWN))
    with pytest.raises(ValueError, match="lacks model.layers.3.mlp.up_proj of the feed-forward"):
        FeedForward.from_checkpoint(path, 3, device="cpu")


def test_several_feed_forwards_of_a_layer_are_not_guessed_among(tmp_path: Path) -> None:
    names = NAMES["llama"] + [f"draft.{name}" for name in NAMES["llama"]]
    path = saved(tmp_path / "m.safetensors", names, WEIGHTS * 2)
    with pytest.raises(ValueError, match="several feed-forwards for layer 3 .*draft.model"):
        FeedForward.from_checkpoint(path, 3, device="cpu")


def test_a_layer_that_is_not_quantized_is_called_so(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    plain = {NAMES["llama"][2]: DOWN.dequantize()}
    save_checkpoint(path, named(NAMES["llama"][:2], (GATE, UP)), plain, format="modelopt")
    with pytest.raises(ValueError, match="down_proj.weight.* is BF16, not NVFP4"):
        FeedForward.from_checkpoint(path, 3, device="cpu")
