"""Pictures show the right numbers, are labelled, and need neither a screen nor a GPU."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from nvfp4cupy import plot, reference
from nvfp4cupy.formats import E2M1_VALUES, e4m3_decode, unpack_codes
from nvfp4cupy.layouts import swizzle_scales

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402, the backend comes first

BF16 = ml_dtypes.bfloat16
X = (np.random.default_rng(0).standard_normal((40, 96)) * np.logspace(-3, 3, 96)).astype(BF16)
X[3, 16:32] = 0
CODES, SCALES, GSA = reference.amax_quantize_nvfp4(X)
ERROR = np.abs(
    X.astype(np.float64) - reference.dequantize_nvfp4(CODES, SCALES, GSA, dtype="float32")
)
OPERANDS = (X, CODES, SCALES, GSA)
DRAWN: dict[str, Any] = {
    "error_map": lambda **o: plot.error_map(*OPERANDS, **o),
    "error_map group": lambda **o: plot.error_map(*OPERANDS, per="group", **o),
    "group_errors": lambda **o: plot.group_errors(*OPERANDS, **o),
    "scale_histogram": lambda **o: plot.scale_histogram(SCALES, **o),
    "code_histogram": lambda **o: plot.code_histogram(CODES, **o),
    "rounding_rules": lambda **o: plot.rounding_rules(**o),
    "rounding_errors": lambda **o: plot.rounding_errors(X, **o),
}


@pytest.fixture(autouse=True)
def _no_figure_stays_open() -> Iterator[None]:
    yield
    pyplot.close("all")


def rendered(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=50)
    return buffer.getvalue()


@pytest.mark.parametrize("name", DRAWN)
def test_axes_are_labelled_and_render(name: str) -> None:
    axes = DRAWN[name]()
    assert axes.get_title() or axes.get_title(loc="left")
    assert axes.get_xlabel()
    assert axes.get_ylabel() or name.startswith("rounding")  # their rows have names
    assert rendered(axes.figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("name", DRAWN)
def test_given_axes_are_drawn_on_and_no_figure_is_made(name: str) -> None:
    figure, (left, right) = pyplot.subplots(1, 2)
    assert DRAWN[name](ax=left) is left
    assert pyplot.get_fignums() == [figure.number]
    assert left.has_data()
    assert not right.has_data()


def test_the_map_shows_every_error() -> None:
    image = plot.error_map(*OPERANDS).images[0]
    np.testing.assert_array_equal(image.get_array(), ERROR)
    image = plot.error_map(*OPERANDS, per="group").images[0]
    np.testing.assert_array_equal(image.get_array(), ERROR.reshape(40, 6, 16).mean(axis=-1))


def test_the_title_has_the_relative_error() -> None:
    relative = np.linalg.norm(ERROR) / np.linalg.norm(X.astype(np.float64))
    assert f"{relative:.4f}" in plot.error_map(*OPERANDS).get_title()


def test_swizzled_scales_scalar_gsa_and_raw_bits_give_the_same_map() -> None:
    swizzled = swizzle_scales(SCALES)
    bits = X.view(np.uint16)
    axes = plot.error_map(bits, CODES, swizzled, GSA, scale_layout="128x4", dtype="bfloat16")
    np.testing.assert_array_equal(axes.images[0].get_array(), ERROR)
    figure = plot.overview(X, CODES, swizzled, GSA, scale_layout="128x4")
    assert len(figure.axes) == 6  # four pictures and two colour bars
    assert rendered(figure)
    codes, scales = reference.quantize_nvfp4(X, 0.5)
    plot.error_map(X, codes, scales, 0.5)


def test_each_group_but_zeros_is_in_the_cloud() -> None:
    axes = plot.group_errors(*OPERANDS)
    assert axes.collections[0].get_array().sum() == 40 * 6 - 1
    assert f"{40 * 6 - 1} groups" in axes.get_title()


def test_scale_bars_are_shares_of_groups() -> None:
    heights = np.array([bar.get_height() for bar in plot.scale_histogram(SCALES).patches])
    counts = np.bincount(SCALES.ravel(), minlength=128)
    np.testing.assert_allclose(heights, 100 * counts / SCALES.size)


def test_scale_ticks_stand_below_the_bytes_of_their_values() -> None:
    axes = plot.scale_histogram(SCALES)
    for tick, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True):
        text = label.get_text().strip("$").replace("^", "**").replace("{", "(").replace("}", ")")
        assert eval(text) == e4m3_decode(np.uint8(tick))


def test_code_bars_are_shares_of_elements_in_the_order_of_values() -> None:
    axes = plot.code_histogram(CODES)
    counts = np.bincount(unpack_codes(CODES).ravel(), minlength=16)
    labels = [label.get_text().split("\n") for label in axes.get_xticklabels()]
    values = [float(value.replace("\N{MINUS SIGN}", "-")) for value, _ in labels]
    assert values == sorted(values)
    for bar, (value, code) in zip(axes.patches, labels, strict=True):
        i = int(code, 16)
        assert abs(float(value.replace("\N{MINUS SIGN}", "-"))) == E2M1_VALUES[i & 7]
        np.testing.assert_allclose(bar.get_height(), 100 * counts[i] / counts.sum())


def test_rules_are_cut_at_their_decision_points() -> None:
    axes = plot.rounding_rules()
    edges = [bar.get_x() for bar in axes.patches]
    nearest = [0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5]
    assert edges == [0, 0.25, 0.75, 1.25, 1.75, 2.75, 3.75, 5.25] + nearest * 2
    dots = [float(dot.get_xdata()[0]) for dot in axes.lines]
    points = [edge for edge in edges if edge]
    sides = "".join("+" if dot > point else "-" for dot, point in zip(dots, points, strict=True))
    # half_step and nearest_even: ties to an even integer or code; nearest_low: down.
    assert sides == "-+-+++-" + "-------" + "-+-+-+-"


def test_costs_are_the_relative_errors() -> None:
    axes = plot.rounding_errors(X)
    widths = [bar.get_width() for bar in axes.patches]
    x = X.astype(np.float64)
    for search, shown in ((0, widths[:3]), (2, widths[3:])):
        for rule, width in zip(("half_step", "nearest_low", "nearest_even"), shown, strict=True):
            parts = reference.amax_quantize_nvfp4(X, rounding=rule, scale_search=search)
            y = reference.dequantize_nvfp4(*parts, dtype="float32")
            assert width == np.linalg.norm(x - y) / np.linalg.norm(x)


@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (2, 32)])
def test_empty_and_zero_matrices_are_drawn(shape: tuple[int, int]) -> None:
    x = np.zeros(shape, BF16)
    quantized = reference.amax_quantize_nvfp4(x)
    assert rendered(plot.overview(x, *quantized))
    assert rendered(plot.rounding_errors(x).figure)


def test_bad_values_do_not_spoil_a_picture() -> None:
    x = X.copy()
    x[0, 0], x[1, 0] = np.nan, np.inf
    assert rendered(plot.overview(x, *reference.amax_quantize_nvfp4(x)))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match='per must be "element" or "group", got \'row\''):
        plot.error_map(*OPERANDS, per="row")
    with pytest.raises(ValueError, match=r"x must have the shape \(40, 96\) that codes decode to"):
        plot.error_map(X[1:], CODES, SCALES, GSA)
    with pytest.raises(TypeError, match="scales must be uint8, got float32"):
        plot.scale_histogram(GSA)
    with pytest.raises(TypeError, match="codes must be uint8"):
        plot.code_histogram(X)


def test_missing_matplotlib_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in DRAWN.values():
        with pytest.raises(RuntimeError, match=r'pip install "nvfp4cupy\[plot\]"'):
            draw()


def test_a_backend_that_needs_a_screen_does_not_stop_a_picture() -> None:
    code = (
        "import io; from nvfp4cupy import plot;"
        "plot.rounding_rules().figure.savefig(io.BytesIO(), format='png')"
    )
    hidden = ("DISPLAY", "WAYLAND_DISPLAY")
    environment = {k: v for k, v in os.environ.items() if k not in hidden} | {"MPLBACKEND": "TkAgg"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.gpu
def test_gpu_arrays_are_drawn_as_numpy_arrays_are() -> None:
    import cupy

    on_gpu = tuple(map(cupy.asarray, OPERANDS))
    image = plot.error_map(*on_gpu).images[0]
    np.testing.assert_array_equal(image.get_array(), ERROR)
    assert rendered(plot.overview(*on_gpu)) == rendered(plot.overview(*OPERANDS))
    costs = [[bar.get_width() for bar in plot.rounding_errors(x).patches] for x in (X, on_gpu[0])]
    assert costs[0] == costs[1]
