"""The feed-forward on a GPU: the references' bytes, in graphs, on any stream, no allocation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from golden import assert_bytes_equal
from test_ffn import BF16, OPTIONS, OUT, WEIGHTS, K, N, by_references, inputs, weight

from nvfp4cupy.checkpoint import NVFP4Weight
from nvfp4cupy.ffn import FeedForward
from nvfp4cupy.reference import gemm_error_bound, gemm_float64

pytestmark = pytest.mark.gpu


def gpu(array: np.ndarray) -> Any:
    import cupy

    return cupy.asarray(array)


def close_to_the_down_product(y: Any, references: tuple[Any, ...]) -> bool:
    """Compare with float64, given an intermediate that is right: within the GEMM's own bound."""
    hidden, rows = references[2:4]
    down = WEIGHTS[2]
    folds = {"out_scale": float(down.decode_scale)} | ({} if rows is None else {"row_scale": rows})
    error = np.abs(y.get().astype(np.float64) - gemm_float64(hidden, down.blocks, **folds))
    return bool((error <= gemm_error_bound(hidden, down.blocks, **folds)).all())


def exact_case(m: int) -> tuple[np.ndarray, tuple[NVFP4Weight, ...]]:
    """Return x and weights whose gate and up products have no rounding before bfloat16.

    All scales are 1 and values are E2M1 levels, so quantizing x loses nothing (each group has a
    6), and sums of k = 320 products are multiples of 1/4 below 2^14: float32 holds them exactly.
    """
    rng = np.random.default_rng(5)
    levels = np.array([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    x = rng.choice(levels, (m, K))
    x[:, ::16] = 6
    codes = [rng.integers(0, 256, (N, K // 2), np.uint8) for _ in range(2)]
    ones = np.full((N, K // 16), 0x38, np.uint8)
    gate, up = (
        NVFP4Weight(c, ones, np.float32(scale))
        for c, scale in zip(codes, (2**-8, 2**-7), strict=True)
    )
    return x.astype(BF16), (gate, up, WEIGHTS[2])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("m", [1, 16, 17, 33, 128, 150])
def test_every_step_gives_the_references_bytes(m: int, options: dict[str, Any]) -> None:
    x, weights = exact_case(m)
    right = by_references(x, weights, **options)
    ffn = FeedForward(*weights, device="gpu", max_m=m, **options)
    workspace = ffn.new_workspace(m)
    workspace._memory[...] = 0xFF
    y = ffn(gpu(x), workspace=workspace)
    parts = workspace.buffers(m)
    if not options.get("w4a16"):  # there SwiGLU has written over gate
        assert_bytes_equal(parts.gate, right[0])
        hidden = parts.hidden if options.get("row_scale") else (parts.hidden,)
        for got, expected in zip(hidden, (r for r in right[2:4] if r is not None), strict=True):
            assert_bytes_equal(got, expected)
    else:
        assert_bytes_equal(parts.gate, right[2])
    assert_bytes_equal(parts.up, right[1])
    assert close_to_the_down_product(y, right)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_no_rows_and_few_rows_and_strided_rows(options: dict[str, Any]) -> None:
    ffn = FeedForward(*WEIGHTS, device="auto", **options)
    assert ffn.on_gpu
    assert ffn(gpu(inputs(0))).shape == (0, OUT)
    wide = gpu(inputs(5, K + 16))
    dense = wide[:, 16:].copy()
    assert_bytes_equal(ffn(wide[:, 16:]), ffn(dense))
    assert_bytes_equal(ffn(dense.view(np.uint16), dtype="bfloat16"), ffn(dense))


def refuse(size: int) -> Any:
    raise AssertionError(f"{size} bytes are allocated")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_warm_call_allocates_nothing(options: dict[str, Any]) -> None:
    import cupy

    ffn = FeedForward(*WEIGHTS, max_m=40, **options)
    for m in (1, 20, 40):
        x, out = gpu(inputs(m)), cupy.full((m, OUT), np.nan, BF16)
        right = ffn(x).get()
        pool = cupy.get_default_memory_pool()
        before = pool.used_bytes(), pool.total_bytes()
        with cupy.cuda.using_allocator(refuse):
            assert ffn(x, out=out).data.ptr == out.data.ptr
        assert (pool.used_bytes(), pool.total_bytes()) == before
        assert_bytes_equal(out, right)


def test_the_sources_of_the_weights_are_released() -> None:
    import cupy

    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    before = pool.used_bytes()
    large = weight(1024, 1024, 0), weight(1024, 1024, 1), weight(1024, 1024, 2)
    ffn = FeedForward(*large, max_m=16)
    assert ffn.workspace is not None
    # The pool hands out multiples of 512 bytes: three weights, their scales, the workspace.
    assert pool.used_bytes() - before <= ffn.weight_bytes + ffn.workspace.nbytes + 7 * 512


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_captured_graph_follows_changed_inputs(options: dict[str, Any]) -> None:
    import cupy

    ffn = FeedForward(*WEIGHTS, **options)
    graph = ffn.capture(6)
    assert (graph.x.shape, graph.out.shape) == ((6, K), (6, OUT))
    for seed in range(3):
        x = gpu(inputs(6, seed=seed))
        right = ffn(x)
        graph.out[...] = np.nan
        with cupy.cuda.using_allocator(refuse):
            assert graph(x) is graph.out
        assert_bytes_equal(graph.out, right)
    graph.x[...] = gpu(inputs(6, seed=9))
    assert_bytes_equal(graph.replay(), ffn(gpu(inputs(6, seed=9))))


def test_a_graph_is_not_disturbed_by_eager_calls_of_another_size() -> None:
    ffn = FeedForward(*WEIGHTS, max_m=4)
    graph = ffn.capture(3)
    right = graph(gpu(inputs(3))).get()
    ffn(gpu(inputs(300)))  # the workspace grows
    assert ffn.workspace is not None
    assert ffn.workspace.max_m == 300
    assert_bytes_equal(graph.replay(), right)


def keep_busy(stream: Any) -> None:
    """Give the stream milliseconds of work: hundreds of copies of 64 MiB."""
    import cupy

    with stream:
        large, other = (cupy.empty((2**26,), np.uint8) for _ in range(2))
        for _ in range(300):
            large[...] = other


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_graph_copies_its_input_after_the_replay_of_another_stream(by_hand: bool) -> None:
    import cupy

    ffn = FeedForward(*WEIGHTS)
    graph = ffn.capture(6)
    first, second = (gpu(inputs(6, seed=seed)) for seed in range(2))
    right, wrong = ffn(second).get(), ffn(first).get()
    assert (right != wrong).any()
    late, early = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    for stream in (late, early):  # nothing is compiled or loaded below
        graph(first, stream=stream)
        stream.synchronize()
    keep_busy(late)
    if by_hand:
        with late:
            graph.x[...] = first
        graph.replay(stream=late)
    else:
        graph(first, stream=late)
    graph(second, stream=early)  # without order, late would copy over its input, which it reads
    early.synchronize()
    assert_bytes_equal(graph.out, right)
    assert_bytes_equal(graph.x, second)
    late.synchronize()
    assert_bytes_equal(graph.out, right)


def test_a_graph_is_not_replayed_in_a_capture() -> None:
    import cupy

    graph = FeedForward(*WEIGHTS).capture(2)
    x = gpu(inputs(2))
    right = graph(x).get()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        for call in (graph.replay, lambda: graph(x)):
            with pytest.raises(RuntimeError, match="cannot be replayed during a graph capture"):
                call()
        stream.end_capture()
    assert_bytes_equal(graph(x), right)


def test_nothing_is_made_in_a_capture() -> None:
    import cupy

    ffn = FeedForward(*WEIGHTS)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        for call in (lambda: ffn.new_workspace(1), lambda: ffn.capture(1)):
            with pytest.raises(RuntimeError, match="cannot be allocated during a graph capture"):
                call()
        stream.end_capture()


def test_a_graph_refuses_other_inputs() -> None:
    graph = FeedForward(*WEIGHTS).capture(2)
    with pytest.raises(ValueError, match=r"x must have the captured shape \(2, 320\), got \(3,"):
        graph(gpu(inputs(3)))
    with pytest.raises(ValueError, match="x must be a CuPy array like weights, got a NumPy"):
        graph(inputs(2))
    with pytest.raises(ValueError, match="m must be at least 1, got 0"):
        FeedForward(*WEIGHTS).capture(0)


def test_the_callers_own_capture_works_within_the_workspace_and_survives_its_growth() -> None:
    import cupy

    ffn = FeedForward(*WEIGHTS, max_m=4)
    x, out = gpu(inputs(4)), cupy.empty((4, OUT), BF16)
    right = ffn(x, out=out).get()
    large, large_out = gpu(inputs(5)), cupy.empty((5, OUT), BF16)
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        ffn(x, out=out)
        with pytest.raises(RuntimeError, match="holds 4 rows and cannot grow to 5 during"):
            ffn(large, out=large_out)
        graph = stream.end_capture()
    old_bytes = ffn.workspace.nbytes
    ffn(large)
    others = [cupy.full((old_bytes,), 0xFF, np.uint8) for _ in range(4)]  # would get the memory
    out[...] = np.nan
    cupy.cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    assert_bytes_equal(out, right)
    assert all((other == 0xFF).all() for other in others)


def test_a_captured_call_with_its_own_workspace_overlaps_with_others() -> None:
    import cupy

    ffn = FeedForward(*WEIGHTS)
    workspace = ffn.new_workspace(32)
    xs = [gpu(inputs(32, seed=seed)) for seed in range(2)]
    right = [ffn(x).get() for x in xs]
    outs = [cupy.empty((32, OUT), BF16) for _ in xs]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in xs]
    cupy.cuda.Device().synchronize()
    with streams[0]:
        streams[0].begin_capture()
        ffn(xs[0], out=outs[0], workspace=workspace)
        graph = streams[0].end_capture()
    for _ in range(50):
        graph.launch(streams[0])
        ffn(xs[1], out=outs[1], stream=streams[1])
    for stream, out, expected in zip(streams, outs, right, strict=True):
        stream.synchronize()
        assert_bytes_equal(out, expected)


@pytest.mark.parametrize("shared", [True, False])
def test_two_streams_at_once_give_what_one_gives(shared: bool) -> None:
    import cupy

    ffn = FeedForward(*WEIGHTS, max_m=64)
    xs = [gpu(inputs(m, seed=m)) for m in (64, 40)]
    right = [ffn(x).get() for x in xs]
    outs = [cupy.full((20, *r.shape), np.nan, BF16) for r in right]
    spaces = [None, None] if shared else [ffn.new_workspace(64) for _ in xs]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in xs]
    cupy.cuda.Device().synchronize()
    for i in range(20):
        for x, out, space, stream in zip(xs, outs, spaces, streams, strict=True):
            ffn(x, out=out[i], workspace=space, stream=stream)
    for out, expected, stream in zip(outs, right, streams, strict=True):
        stream.synchronize()
        for result in out:
            assert_bytes_equal(result, expected)


def test_an_input_of_another_stream_is_ordered_by_its_event() -> None:
    import cupy

    ffn = FeedForward(*WEIGHTS)
    values = gpu(inputs(8))
    right = ffn(values).get()
    producer, consumer = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    x = cupy.zeros_like(values)
    cupy.cuda.Device().synchronize()
    with producer:
        for _ in range(50):
            x[...] = values
        ready = producer.record()
    consumer.wait_event(ready)
    y = ffn(x, stream=consumer)
    consumer.synchronize()
    assert_bytes_equal(y, right)


def test_layers_share_a_workspace() -> None:
    first = FeedForward(*WEIGHTS, max_m=16)
    second = FeedForward(WEIGHTS[1], WEIGHTS[0], WEIGHTS[2], workspace=first.workspace)
    x = gpu(inputs(16))
    right = first(x).get(), FeedForward(WEIGHTS[1], WEIGHTS[0], WEIGHTS[2])(x).get()
    for ffn, expected in zip((first, second), right, strict=True):
        assert_bytes_equal(ffn(x), expected)
    with pytest.raises(ValueError, match="workspace must be made for ScratchSizes"):
        FeedForward(*WEIGHTS, workspace=first.workspace, w4a16=True)


def test_weights_may_lie_on_the_gpu_and_arrays_keep_to_their_side() -> None:
    arrays = [(gpu(w.codes), gpu(w.scales), w.decode_scale) for w in WEIGHTS]
    arrays[1] = (*arrays[1][:2], gpu(np.asarray(WEIGHTS[1].decode_scale)))  # 0-d
    ffn = FeedForward(*arrays)
    assert_bytes_equal(ffn(gpu(inputs(3))), FeedForward(*WEIGHTS)(gpu(inputs(3))))
    with pytest.raises(ValueError, match='gate must be NumPy arrays for device="cpu"'):
        FeedForward(*arrays, device="cpu")
    with pytest.raises(ValueError, match="x must be a CuPy array like weights, got a NumPy"):
        ffn(inputs(3))
    with pytest.raises(ValueError, match="x must be a NumPy array like weights, got a CuPy"):
        FeedForward(*WEIGHTS, device="cpu")(gpu(inputs(3)))


def test_out_may_be_x() -> None:
    square = weight(N, K, 1), weight(N, K, 2), weight(K, N, 3)
    for options in OPTIONS[:2]:
        ffn = FeedForward(*square, **options)
        x = gpu(inputs(5))
        right = ffn(x).get()
        ffn(x, out=x)
        assert_bytes_equal(x, right)


def test_a_torch_tensor_is_taken_as_it_is() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    ffn = FeedForward(*WEIGHTS)
    x = inputs(4)
    tensor = torch.from_numpy(x.view(np.int16)).cuda().view(torch.bfloat16)
    out = torch.empty((4, OUT), dtype=torch.bfloat16, device="cuda")
    torch.cuda.synchronize()
    ffn(tensor, out=out, stream=torch.cuda.current_stream())
    torch.cuda.synchronize()
    got = out.view(torch.int16).cpu().numpy().view(np.uint16)
    assert_bytes_equal(got, ffn(gpu(x)).get().view(np.uint16))
