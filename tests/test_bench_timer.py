"""The graph timer's order of events, and cuBLAS's arguments, with stand-ins for the libraries."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nvfp4cupy.bench import cublas, timing
from nvfp4cupy.bench.timing import GraphTimer, Program


class FakeCupy:
    """A device on which a call takes as long as it says; ``log`` has what happened in order."""

    def __init__(self) -> None:
        self.now, self.log, self.captured = 0.0, [], None
        runtime = SimpleNamespace(memGetInfo=lambda: (1 << 20, 1 << 20))
        device = SimpleNamespace(synchronize=lambda: None)
        self.cuda = SimpleNamespace(
            Stream=lambda non_blocking: FakeStream(self),
            Event=lambda: FakeEvent(self),
            Device=lambda: device,
            runtime=runtime,
            get_elapsed_time=lambda start, stop: (stop.at - start.at) * 1e3,
        )

    def ones(self, shape: tuple[int, ...], dtype: str) -> Any:
        copy = SimpleNamespace(copy_from_device_async=lambda *_: self.work("plug", 1.0))
        return [SimpleNamespace(data=copy, nbytes=shape[1])] * 2

    def work(self, name: str, seconds: float) -> None:
        if self.captured is not None:
            self.captured.append((name, seconds))
        else:
            self.log.append(name)
            self.now += seconds


class FakeEvent:
    def __init__(self, cupy: FakeCupy) -> None:
        self.cupy = cupy

    def record(self, stream: Any) -> None:
        self.at = self.cupy.now


class FakeStream:
    def __init__(self, cupy: FakeCupy) -> None:
        self.cupy = cupy

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def synchronize(self) -> None:
        assert self.cupy.captured is None

    def begin_capture(self) -> None:
        self.cupy.captured = []

    def end_capture(self) -> Any:
        nodes, self.cupy.captured = self.cupy.captured, None

        def launch(stream: FakeStream) -> None:
            for name, seconds in nodes:
                self.cupy.work(name, seconds)

        return SimpleNamespace(launch=launch)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    module = FakeCupy()
    monkeypatch.setattr(timing, "cupy", lambda: module)
    return module


def test_a_call_runs_before_the_capture_and_its_mean_is_measured(fake: FakeCupy) -> None:
    calls = [lambda: fake.work("a", 2e-6), lambda: fake.work("b", 4e-6)]
    timer = GraphTimer(1000, replays=3)
    replay = timer.capture(Program(calls, 20))
    assert fake.log == ["a", "b"]
    found = timer.time({"x": replay})["x"]
    assert (found.replays, found.launches) == (3, 20)
    assert found.median == pytest.approx(3e-6)
    assert fake.log[2:22] == ["a", "b"] * 10
    assert fake.log.count("plug") == 3


def test_each_round_has_an_order_of_its_own(fake: FakeCupy) -> None:
    timer = GraphTimer(1000, replays=20)
    names = "abcd"
    programs = {n: Program([lambda n=n: fake.work(n, 1e-6)], 1) for n in names}
    replays = {n: timer.capture(program) for n, program in programs.items()}
    fake.log.clear()
    timer.time(replays)
    rounds = ["".join(sorted(r)) for r in "".join(fake.log).replace("plug", " ").split()]
    assert set(rounds[1:]) == {names}
    orders = set("".join(fake.log).replace("plug", " ").split()[1:])
    assert len(orders) > 5


def test_a_failed_capture_is_left(fake: FakeCupy) -> None:
    def fail_in_capture() -> None:
        if fake.captured is not None:
            raise ValueError("no")

    timer = GraphTimer(1000)
    with pytest.raises(ValueError, match="no"):
        timer.capture(Program([fail_in_capture], 20))
    assert fake.captured is None


def test_another_librarys_capture_gets_the_calls_in_turn(fake: FakeCupy) -> None:
    calls = [lambda: fake.work("a", 1e-6), lambda: fake.work("b", 1e-6)]
    seen: list[Any] = []
    timer = GraphTimer(1000)
    replay = timer.capture(Program(calls, 4, lambda in_order: seen.extend(in_order) or calls[0]))
    assert seen == calls * 2
    assert replay.run is calls[0]


def test_a_direct_call_is_not_captured(fake: FakeCupy) -> None:
    found = GraphTimer(1000, replays=2).time_direct(lambda: fake.work("copy", 5e-6), 4)
    assert found.median == pytest.approx(5e-6)
    assert fake.log.count("copy") == 4 * 3


class FakeLibrary:
    """Multiplies in host memory as cublasGemmEx would, in float32, columns first."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.log.append(name) or 0

    def cublasGemmEx(self, _handle: Any, ta: Any, tb: Any, *rest: Any) -> int:
        self.log.append("gemm")
        assert (ta.value, tb.value, len(rest)) == (1, 0, 16)
        n, m, k, _, a, a_type, lda, b, b_type, ldb, _, c, c_type, ldc, compute, algo = rest
        types = (a_type.value, b_type.value, c_type.value, compute.value, algo.value)
        assert types == (14, 14, 14, 68, -1)
        left = _columns_first(a, lda.value, n.value).T  # op T of (k, n)
        right = _columns_first(b, ldb.value, m.value)
        _columns_first(c, ldc.value, m.value)[...] = left[:, : k.value] @ right[: k.value]
        return 0


def _columns_first(address: Any, rows: int, columns: int) -> np.ndarray:
    numbers = (ctypes.c_float * (rows * columns)).from_address(address.value)
    return np.frombuffer(numbers, np.float32).reshape(columns, rows).T


def _on_device(array: np.ndarray) -> Any:
    return SimpleNamespace(data=SimpleNamespace(ptr=array.ctypes.data), shape=array.shape)


def test_cublas_gets_row_major_operands_as_their_transposes(monkeypatch) -> None:
    library = FakeLibrary()
    stream = SimpleNamespace(ptr=7)
    workspace = SimpleNamespace(data=SimpleNamespace(ptr=64))
    module = SimpleNamespace(
        empty=lambda *_: workspace, cuda=SimpleNamespace(get_current_stream=lambda: stream)
    )
    monkeypatch.setattr(cublas, "cupy", lambda: module)
    monkeypatch.setattr(cublas, "_library", lambda: library)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((rows, 5)).astype(np.float32) for rows in (3, 4))
    out = np.zeros((3, 4), np.float32)
    blas = cublas.Cublas()
    for _ in range(2):
        blas.gemm(*map(_on_device, (x, w, out)))
    np.testing.assert_allclose(out, x @ w.T, rtol=1e-6)
    setup = ["cublasCreate_v2", "cublasSetStream_v2", "cublasSetWorkspace_v2"]
    assert library.log == [*setup, "gemm", "gemm"]
