"""The bench counts bytes right, and checks before it times."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bench_fakes import CEILINGS, SMALL, WITH_KERNEL, FakeBlas, FakeTimer

from nvfp4cupy import compiler, ops, reference
from nvfp4cupy.arrays import missing_gpu
from nvfp4cupy.bench import BenchPlan, load, overhead, raw
from nvfp4cupy.bench.cases import Case, select
from nvfp4cupy.bench.checks import WrongResultError, expect_bytes, expect_within, spread
from nvfp4cupy.bench.engine import run_groups
from nvfp4cupy.bench.overhead import host_seconds
from nvfp4cupy.bench.samples import Samples
from nvfp4cupy.bench.timing import Timing, num_buffer_sets, num_launches
from nvfp4cupy.cli import main
from nvfp4cupy.launchers.mmq import MmqGemm


def all_cases(plan: BenchPlan) -> dict[str, Case]:
    groups = plan.groups(FakeBlas())
    return {case.id: case for group in groups for case in group.cases}


# 8192 * 8192 = 67,108,864 values: 134,217,728 bytes of bf16, 33,554,432 of codes, 4,194,304 of
# scales; 8192 float32 are 32,768 bytes. 17408 * 5120 = 89,128,960 weights: 44,564,480 bytes of
# codes, 5,570,560 of scales, 50,135,040 in blocks of 36 for 64.
BYTES = {
    "amax_gsa/bf16/8192x8192": 134_217_728 + 32_768,
    "quantize_nvfp4/half_step/8192x8192": 134_217_728 + 33_554_432 + 4_194_304,
    "quantize_nvfp4_from_buffer/half_step/8192x8192": 134_217_728 + 32_768 + 37_748_736,
    "quantize_nvfp4_from_buffer/128x4/8192x8192": 134_217_728 + 32_768 + 37_748_736,
    "amax_quantize_nvfp4/half_step/65536x1024": 134_217_728 + 262_144 + 37_748_736,
    "deinterleave_quantize_from_buffer/g=8/8192x8192": 134_217_728 + 32_768 + 18_874_368,
    "dequantize_nvfp4/bf16/8192x8192": 37_748_736 + 32_768 + 134_217_728,
    "nvfp4_mmq_quantize_act/bf16/8192x8192": 134_217_728 + 32 * 8192 * 144,
    "nvfp4_silu_mul_quant/limit 10/8192x8192": 2 * 134_217_728 + 32 * 8192 * 144,
    "nvfp4_silu_mul_scaled/limit 10/8192x8192": 3 * 134_217_728,
    "nvfp4_scale_bf16/in place/8192x8192": 2 * 134_217_728,
    "nvfp4_mmq_repack/low_first/17408x5120": 100_270_080,
    "nvfp4_mmq_unpack/low_first/17408x5120": 100_270_080,
    "cublas_gemm/bf16/16x17408x5120": 2 * (89_128_960 + 81_920 + 278_528),
    "nvfp4_mmq_gemm/auto/16x17408x5120": 50_135_040 + 46_080 + 557_056,
    "nvfp4_mmq_gemm_tiled/mmq_x=16/16x17408x5120": 50_135_040 + 46_080 + 557_056,
    "nvfp4_w4a16_gemm/bf16/16x17408x5120": 50_135_040 + 163_840 + 557_056,
}


@pytest.mark.parametrize("case_id", BYTES)
def test_bytes_are_those_counted_by_hand(case_id: str) -> None:
    assert all_cases(BenchPlan())[case_id].num_bytes == BYTES[case_id]


def test_operations_are_two_for_each_product_of_two_numbers() -> None:
    for case in all_cases(BenchPlan()).values():
        if case.shape == "16x17408x5120":
            assert case.flops == 2_852_126_720
        elif case.shape.count("x") == 1:
            assert case.flops == 0


def test_the_floor_is_the_larger_of_memory_and_matrix_time() -> None:
    assert CEILINGS.floor(4_000_000, 0) == pytest.approx(1e-6)
    assert CEILINGS.floor(4_000_000, 1_600_000_000) == pytest.approx(2e-6)
    assert dataclasses.replace(CEILINGS, gemm_rate=None).floor(4_000_000, 10**15) == 1e-6


def test_median_and_percentiles() -> None:
    timing = Timing.of([5.0, 1.0, 2.0, 3.0, 4.0, 100.0], 20)
    assert (timing.median, timing.replays, timing.launches) == (3.5, 6, 20)
    assert (timing.low, timing.high) == (1.5, 52.5)  # half way between neighbours
    assert timing.spread == (52.5 - 1.5) / 7
    assert Timing.of([2.0], 20) == Timing(2.0, 2.0, 2.0, 1, 20)


@pytest.mark.parametrize(
    ("num_bytes", "sets"),
    [(0, 64), (1, 64), (3_000_000, 60), (50_135_040, 4), (179_999_999, 2), (180_000_000, 1)],
)
def test_buffers_are_rotated_until_they_are_three_times_the_l2(num_bytes: int, sets: int) -> None:
    assert num_buffer_sets(num_bytes, 60_000_000) == sets
    assert num_launches(sets) % sets == 0
    assert 20 <= num_launches(sets) < 20 + sets


def test_every_case_is_right_on_the_cpu_and_timed() -> None:
    timer = FakeTimer()
    results = run_groups(SMALL.groups(FakeBlas()), Samples(np), timer, CEILINGS)
    assert [r.error for r in results] == [""] * len(results)
    assert {r.name for r in results} >= WITH_KERNEL
    assert all(r.timing.median == 100e-6 for r in results)
    assert all(p.launches >= 20 for p in timer.programs)


def test_products_are_compared_with_cublas_of_the_same_sizes() -> None:
    timer = FakeTimer(lambda name: 300e-6 if name.startswith("cublas") else 100e-6)
    plan = dataclasses.replace(SMALL, patterns=("gemm/auto/20x",))
    results = run_groups(plan.groups(FakeBlas()), Samples(np), timer, CEILINGS)
    assert [r.id for r in results] == [
        "cublas_gemm/bf16/20x40x128",
        "nvfp4_mmq_gemm/auto/20x40x128",
    ]
    assert [r.speedup for r in results] == [None, pytest.approx(3)]


def test_a_wrong_kernel_is_reported_and_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(x: Any, *, out: Any) -> None:
        out[...] = reference.amax_gsa(x)
        out[-1] *= 2

    monkeypatch.setattr(ops, "amax_gsa", wrong)
    plan = dataclasses.replace(SMALL, patterns=("amax_gsa", "quantize_nvfp4/*"))
    timer = FakeTimer()
    bad, good = run_groups(plan.groups(None), Samples(np), timer, CEILINGS)
    assert bad.timing is None
    assert bad.error.startswith("WrongResultError: gsa: 1 of 6 sampled items differ")
    assert good.timing is not None
    assert len(timer.programs) == 1


def test_an_output_that_is_not_written_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "nvfp4_mmq_gemm", lambda a, blocks, **_: None)
    plan = dataclasses.replace(SMALL, patterns=("nvfp4_mmq_gemm/*",))
    results = run_groups(plan.groups(None), Samples(np), FakeTimer(), CEILINGS)
    assert all("further from the exact product" in r.error for r in results)


def test_results_come_out_after_each_group() -> None:
    counts: list[int] = []
    plan = dataclasses.replace(SMALL, patterns=("repack", "scale_bf16"))
    run_groups(
        plan.groups(None),
        Samples(np),
        FakeTimer(),
        CEILINGS,
        partial=lambda r: counts.append(len(r)),
    )
    assert counts == [1, 2]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("repack", {"nvfp4_mmq_repack"}),
        ("*_nvfp4/half*", {"quantize_nvfp4", "amax_quantize_nvfp4", "quantize_nvfp4_from_buffer"}),
        ("w4a16*/1x*", {"nvfp4_w4a16_gemm"}),
    ],
)
def test_patterns_select_cases(pattern: str, names: set[str]) -> None:
    pattern = pattern if pattern == "repack" else f"*{pattern}"
    groups = select(SMALL.groups(None), [pattern])
    assert {case.name for group in groups for case in group.cases} == names


def test_words_that_are_no_cases() -> None:
    assert dataclasses.replace(SMALL, patterns=("ceilings",)).groups(None) == []
    only = dataclasses.replace(SMALL, patterns=("overhead",))
    assert only.groups(None) == []
    assert only.measures_overhead
    with pytest.raises(ValueError, match=r"nothing to time is named 'gem2'; there is: amax_gsa, "):
        dataclasses.replace(SMALL, patterns=("gem2",)).groups(None)


def test_host_time_is_the_median_of_batches() -> None:
    now = [0.0]
    calls = {"call": lambda: None, "bare": lambda: None}

    def tick(seconds: float) -> None:
        now[0] += seconds

    calls = {"call": lambda: tick(10e-6), "bare": lambda: tick(7e-6)}
    seconds = host_seconds(calls, lambda: tick(1.0), lambda: now[0])
    assert seconds == {"call": pytest.approx(10e-6), "bare": pytest.approx(7e-6)}


def test_compared_calls_come_down_to_the_launches_beside_them() -> None:
    pairs = overhead._pairs(Samples(np))
    assert len(pairs) == 4
    for pair in pairs:
        pair.call()
        assert len(pair.config.open_args) == len(pair.values)
        for arg, value in zip(pair.config.open_args, pair.values, strict=True):
            assert arg.kind == "f32" or arg.extent == value.nbytes, (pair.name, arg)


class _Compiled:
    """A module and its kernels that record what they were made of."""

    def __init__(self, made: list[Any], **options: Any) -> None:
        self.made, self.options = made, options

    def compile(self) -> None:
        self.made.append((self.options, self))

    def get_function(self, entry: str) -> Any:
        self.entry = entry
        return self


def test_raw_kernels_are_compiled_as_those_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    fake = SimpleNamespace(RawModule=lambda **options: _Compiled(made, **options))
    target = compiler.Target("sm_120a", ("-arch=sm_120a",))
    monkeypatch.setattr(compiler, "current_target", lambda source: target)
    for module in (compiler, raw):
        monkeypatch.setattr(module, "cupy", lambda: fake)
    monkeypatch.setattr(compiler, "_kernels", {})
    monkeypatch.setattr(compiler, "_modules", {})
    config = MmqGemm.plan(m=1, n=128, k=64, dtype="float32")
    compiler._compile((config.source, config.defines, config.entry, config.shared_mem, 0))
    raw.raw_kernel(config)
    (options, kernel), (raw_options, raw_kernel) = made
    assert options == raw_options
    assert vars(kernel) == vars(raw_kernel)
    assert kernel.max_dynamic_shared_size_bytes == config.shared_mem


def test_samples_are_shared_until_cleared_and_never_zero() -> None:
    samples = Samples(np)
    x = samples.bfloat16("x", 3, 100)
    assert samples.bfloat16("x", 3, 100) is x
    for other in (samples.bfloat16("x", 3, 100, 1), samples.bfloat16("w", 3, 100)):
        assert not np.shares_memory(x, other)
    assert (x != 0).all()
    assert not (x[0] == x[1]).all()
    samples.clear()
    assert samples.bfloat16("x", 3, 100) is not x
    blocks = samples.weight_blocks(5000, 128)
    assert (blocks.reshape(-1, 36).any(axis=1)).all()
    assert not (blocks[0] == blocks[1]).all()


def test_checks_say_what_differs() -> None:
    a = np.array([[1, 2], [3, 4]], np.uint8)
    b = np.array([[1, 2], [3, 5]], np.uint8)
    expect_bytes("codes", a, a)
    with pytest.raises(WrongResultError, match=r"codes: 1 of 4 .* first at \(1, 1\): 0x4, not 0x5"):
        expect_bytes("codes", a, b)
    bound = np.full((2, 2), 0.5)
    expect_within("out", a.astype(np.float32), a.astype(float), bound)
    bad = np.where(b == 5, np.nan, b).astype(np.float32)
    with pytest.raises(WrongResultError, match=r"out: 1 of 4 .* first at \(1, 1\): nan, not 4"):
        expect_within("out", bad, a.astype(float), bound)


def test_sampled_rows_are_first_last_and_between() -> None:
    assert spread(1).tolist() == [0]
    assert spread(4).tolist() == [0, 1, 2, 3]
    assert spread(101).tolist() == [0, 20, 40, 60, 80, 100]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--n", "64"), "--n and --k must be given equally often"),
        (("--n", "64", "--k", "65"), "k a multiple of 64, got 64x65"),
        (("--shape", "8x40"), "a multiple of 32 columns, got 8x40"),
        (("--m", "0"), "m must be at least 1, got 0"),
        (("--list", "none"), "nothing to time is named 'none'"),
        (("--against", "/nonexistent/file.json"), "No such file"),
    ],
)
def test_wrong_arguments_are_named(capsys, args: tuple[str, ...], message: str) -> None:
    assert main(["bench", *args]) == 1
    assert message in capsys.readouterr().err


def test_list_needs_no_gpu(capsys) -> None:
    assert main(["bench", "--list", "repack", "gemm/auto", "--m", "3", "--quick"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "nvfp4_mmq_repack/low_first/17408x5120",
        "nvfp4_mmq_gemm/auto/3x17408x5120",
    ]


@pytest.mark.skipif(not missing_gpu(), reason="there is a GPU")
@pytest.mark.parametrize("args", [(), ("--selftest",), ("--quick", "gemm")])
def test_a_missing_gpu_is_an_error_with_the_cure(capsys, args: tuple[str, ...]) -> None:
    assert main(["bench", *args]) == 1
    assert capsys.readouterr().err.startswith(f"nvfp4cupy bench: {missing_gpu()}")


@pytest.mark.gpu
def test_small_shapes_on_the_gpu(capsys, tmp_path) -> None:
    sizes = ("--shape", "256x1024", "--m", "1", "20", "--n", "256", "--k", "576")
    path = tmp_path / "report.json"
    assert main(["bench", "--quick", "--selftest", *sizes, "--json", str(path)]) == 0
    text = capsys.readouterr().out
    assert "Against the reference, bit for bit" in text
    report = load(path)
    assert not report.failed
    assert {r.name for r in report.results} >= {*WITH_KERNEL, "cublas_gemm"}
    assert all(r.timing.median > 0 for r in report.results)
    assert report.ceilings.copy_rate > 50e9
    assert len(report.overhead) == 4
    assert main(["bench", "--quick", "amax_gsa", *sizes, "--against", str(path)]) == 0
    assert "x saved" in capsys.readouterr().out
