from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_checkpoint_builders import DATA, assert_same_weight, random_weight, write_tensors

from nvfp4cupy.checkpoint import (
    TARGET_FORMATS,
    Checkpoint,
    quantize_checkpoint,
    save_checkpoint,
    streams,
)
from nvfp4cupy.formats import bfloat16
from nvfp4cupy.reference import quantize_nvfp4

FORMATS = pytest.mark.parametrize("format", TARGET_FORMATS)


def normal(n: int, k: int, dtype: Any = None, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32) * 0.05
    return values.astype(bfloat16() if dtype is None else dtype)


def write_plain(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    words = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "int64": "I64"}
    entries = {name: (words[array.dtype.name], array) for name, array in tensors.items()}
    return write_tensors(path, entries)


def test_real_weights_are_equal_in_every_format(tmp_path: Path) -> None:
    weights = {}
    for format in TARGET_FORMATS:
        report = quantize_checkpoint(DATA, tmp_path / format, format=format)
        assert report.quantized == ("down_proj.weight", "up_proj.weight")
        assert set(report.kept) == {"down_proj.input", "up_proj.input"}
        assert report.written_bytes == (tmp_path / format).stat().st_size < report.source_bytes / 2
        with Checkpoint.open(tmp_path / format) as checkpoint:
            assert checkpoint.format == format
            weights[format] = [checkpoint.nvfp4(name) for name in report.quantized]
            assert checkpoint.metadata["source"].startswith("all-MiniLM")
    for format in TARGET_FORMATS[1:]:
        for a, b in zip(weights["modelopt"], weights[format], strict=True):
            assert_same_weight(a, b)


@FORMATS
def test_codes_are_those_of_the_quantizer(tmp_path: Path, format: Any) -> None:
    quantize_checkpoint(DATA, tmp_path / "file", format=format, rounding="half_step")
    with Checkpoint.open(DATA) as source, Checkpoint.open(tmp_path / "file") as checkpoint:
        for name in checkpoint.nvfp4_names():
            values, weight = source.tensor(name), checkpoint.nvfp4(name)
            amax = np.abs(values.astype(np.float32)).max()
            nearest = np.float32(amax / np.float32(2688))
            assert nearest <= weight.decode_scale <= np.nextafter(nearest, np.float32(1))
            expected = quantize_nvfp4(values, float(weight.decode_scale), rounding="half_step")
            for got, wanted in zip(weight.linear(), expected, strict=True):
                np.testing.assert_array_equal(got, wanted)
        for name in checkpoint.plain_names():
            if name.endswith(".input"):
                np.testing.assert_array_equal(checkpoint.tensor(name), source.tensor(name))


def test_error_on_real_weights_is_below_the_bound_of_the_format(tmp_path: Path) -> None:
    quantize_checkpoint(DATA, tmp_path / "file")
    with Checkpoint.open(DATA) as source, Checkpoint.open(tmp_path / "file") as checkpoint:
        for name in checkpoint.nvfp4_names():
            weight = checkpoint.nvfp4(name)
            values = source.tensor(name).astype(np.float64)
            error = np.abs(weight.dequantize("float32") - values).reshape(-1, 16)
            amax = np.abs(values).reshape(-1, 16).max(axis=1)
            # A normal scale is s = amax/6 (1 + d), |d| <= 2^-4. Half the widest gap of the codes
            # (4 to 6) is s; what saturates misses by at most |d| amax: both are below
            # amax/6 (1 + 2^-4). A group whose scale is below 2^-9 becomes zero and misses by
            # less than 6 * 2^-9 decode scales, and subnormal scales are at most 2^-10 off. Three
            # float32 roundings (x / gsa, v / scale, the product) move a value by 3 * 2^-24 amax.
            vanishing = 6 * 2.0**-9 * float(weight.decode_scale)
            bound = amax / 6 * (1 + 2**-4) + vanishing + amax * 2.0**-22
            assert (error.max(axis=1) <= bound).all()


@FORMATS
def test_pieces_do_not_change_the_bytes(
    tmp_path: Path, format: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantize_checkpoint(DATA, tmp_path / "a", format=format)
    monkeypatch.setattr(streams, "CHUNK_VALUES", 100_000)
    calls: list[tuple[str, int, int]] = []
    quantize_checkpoint(
        DATA, tmp_path / "b", format=format, progress=lambda *call: calls.append(call)
    )
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    done = [call[1] for call in calls]
    assert done == sorted(done)
    assert done[-1] == calls[-1][2]
    # 260 of 1536 rows of 384 values, or 65 of 384 rows of 1536: 6 pieces of each weight, once as
    # blocks or twice as codes and scales; then two decode scales and two other tensors.
    assert len(calls) == 2 * 6 * (1 if format == "gguf" else 2) + 4


KEPT = {
    "a.proj.bias": (normal(4, 64)[0], "no matrix, shape (64,)"),
    "a.narrow.weight": (normal(4, 40), "k = 40 is not a multiple of 64"),
    "model.embed_tokens.weight": (normal(4, 64), "excluded by *embed*"),
    "model.norm.weight": (normal(4, 64), "excluded by *norm*"),
    "lm_head.weight": (normal(4, 64), "excluded by *lm_head*"),
    "mlp.gate.weight": (normal(4, 64), "excluded by *.gate.weight"),
    "ids.weight": (np.zeros((4, 64), np.int64), "of type I64"),
    "a.table": (normal(4, 64), "matched by no include pattern"),
}


def test_what_is_kept_and_why(tmp_path: Path) -> None:
    names = ["a.proj.weight", "mlp.gate_proj.weight"]
    tensors = {name: array for name, (array, _) in KEPT.items()}
    tensors |= {name: normal(4, 64) for name in names}
    source = write_plain(tmp_path / "a.safetensors", tensors)
    report = quantize_checkpoint(source, tmp_path / "b.safetensors")
    assert sorted(report.quantized) == names
    assert report.kept == {name: reason for name, (_, reason) in KEPT.items()}
    with Checkpoint.open(tmp_path / "b.safetensors") as checkpoint:
        for name in report.kept:
            np.testing.assert_array_equal(checkpoint.tensor(name), tensors[name])


def test_patterns_replace_the_defaults(tmp_path: Path) -> None:
    tensors = {"lm_head.weight": normal(4, 64), "up.weight": normal(4, 64)}
    source = write_plain(tmp_path / "a.safetensors", tensors)
    report = quantize_checkpoint(
        source, tmp_path / "b", include=["*_head.weight", "up*"], exclude=["up.*"]
    )
    assert report.quantized == ("lm_head.weight",)


@FORMATS
def test_zero_tensor_zero_row_and_zero_group(tmp_path: Path, format: Any) -> None:
    values = normal(4, 128)
    values[1] = 0
    values[2, 16:32] = 0
    tensors = {"zero.weight": np.zeros_like(values), "some.weight": values}
    source = write_plain(tmp_path / "a.safetensors", tensors)
    quantize_checkpoint(source, tmp_path / "b", format=format)
    with Checkpoint.open(tmp_path / "b") as checkpoint:
        zero, some = checkpoint.nvfp4("zero.weight"), checkpoint.nvfp4("some.weight")
    assert zero.decode_scale == 1
    assert not zero.linear()[1].any()
    assert not zero.dequantize().any()
    assert not some.linear()[1][1].any()
    assert some.linear()[1][2, 1] == 0
    assert np.isfinite(some.dequantize("float32")).all()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    dtype=st.sampled_from(["bfloat16", "float16", "float32"]),
    exponent=st.integers(-14, 14),
    search=st.sampled_from([0, 2]),
    rounding=st.sampled_from(["half_step", "nearest_low", "nearest_even"]),
    seed=st.integers(0, 99),
)
def test_no_bad_scale_byte_is_ever_written(
    tmp_path: Path, dtype: str, exponent: int, search: int, rounding: Any, seed: int
) -> None:
    kind = bfloat16() if dtype == "bfloat16" else np.dtype(dtype)
    values = (normal(3, 64, np.float32, seed) * np.float32(2.0**exponent)).astype(kind)
    source = write_plain(tmp_path / "a.safetensors", {"x.weight": values})
    quantize_checkpoint(source, tmp_path / "b", scale_search=search, rounding=rounding)
    with Checkpoint.open(tmp_path / "b") as checkpoint:
        assert checkpoint.nvfp4("x.weight").linear()[1].max() <= 0x7E


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_weights_that_are_not_finite_are_named_and_nothing_is_left(
    tmp_path: Path, bad: float, dtype: str
) -> None:
    values = normal(9, 64, bfloat16() if dtype == "bfloat16" else np.dtype(dtype))
    values[7, 3] = bad
    source = write_plain(tmp_path / "a.safetensors", {"x.weight": values})
    with pytest.raises(ValueError, match="'x.weight' of a.safetensors must be finite .* row 7"):
        quantize_checkpoint(source, tmp_path / "b")
    assert list(tmp_path.iterdir()) == [source]


def test_gguf_files_say_that_they_are_mostly_nvfp4(tmp_path: Path) -> None:
    quantize_checkpoint(DATA, tmp_path / "b", format="gguf")
    with Checkpoint.open(tmp_path / "b") as checkpoint:
        assert checkpoint.metadata["general.file_type"] == 39


def test_another_quantizer_gets_the_options(tmp_path: Path) -> None:
    seen: list[Any] = []

    def quantizer(x: np.ndarray, gsa: float, **options: Any) -> Any:
        seen.append((x.shape, type(gsa), options))
        return quantize_nvfp4(x, gsa, **options)

    source = write_plain(tmp_path / "a.safetensors", {"x.weight": normal(4, 64)})
    quantize_checkpoint(source, tmp_path / "b", quantizer=quantizer, scale_search=2)
    assert seen == [((4, 64), float, {"rounding": "nearest_even", "scale_search": 2})]


def test_weights_that_are_nvfp4_already_are_moved(tmp_path: Path) -> None:
    weight = random_weight(decode_scale=0.25, input_scale=0.5)
    plain = {"y.weight": normal(4, 64, np.float32)}
    save_checkpoint(tmp_path / "a", [weight], plain, format="compressed-tensors")
    report = quantize_checkpoint(tmp_path / "a", tmp_path / "b", format="gguf")
    assert report.quantized == ("y.weight",)
    assert report.kept == {"x.weight": "NVFP4 already"}
    with Checkpoint.open(tmp_path / "b") as checkpoint:
        assert_same_weight(checkpoint.nvfp4("x.weight"), weight)


def test_bad_arguments(tmp_path: Path) -> None:
    source = write_plain(tmp_path / "a.safetensors", {"x.bias": normal(4, 64)})
    target = tmp_path / "b"
    with pytest.raises(ValueError, match="to be quantized: 1 matched by no include pattern"):
        quantize_checkpoint(source, target)
    with pytest.raises(ValueError, match="rounding must be one of"):
        quantize_checkpoint(DATA, target, rounding="up")
    with pytest.raises(ValueError, match="scale_search must be 0 or 2, got 1"):
        quantize_checkpoint(DATA, target, scale_search=1)
    with pytest.raises(ValueError, match="format must be one of"):
        quantize_checkpoint(DATA, target, format="plain")
    with pytest.raises(ValueError, match="dst must not be a file of the source checkpoint"):
        quantize_checkpoint(source, tmp_path / ".." / tmp_path.name / "a.safetensors")
    assert list(tmp_path.iterdir()) == [source]
