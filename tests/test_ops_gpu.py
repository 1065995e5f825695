"""The public functions on a GPU: the reference's bytes, on any stream, in graphs, any source."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calls import (
    ACT,
    BF16,
    BLOCKS,
    CALLS,
    EVERY,
    GATE,
    GSA,
    IN_PLACE,
    UP,
    Call,
    X,
    as_tuple,
    bf16,
    poisoned,
)
from golden import assert_bytes_equal

import nvfp4cupy as nv
from nvfp4cupy import reference

pytestmark = pytest.mark.gpu

# Their sums may be rounded in another order: compared within the bound of any order.
GEMMS = {"nvfp4_mmq_gemm", "nvfp4_mmq_gemm_tiled", "nvfp4_w4a16_gemm"}


def to_gpu(value: Any) -> Any:
    import cupy

    if isinstance(value, tuple):
        return tuple(map(to_gpu, value))
    return cupy.asarray(value) if isinstance(value, np.ndarray) else value


def call(name: str, **extra: Any) -> tuple[Any, ...]:
    function, args, options = CALLS[name]
    return as_tuple(function(*map(to_gpu, args), **options, **extra))


def in_a_capture(name: str) -> Call:
    """Return a call without the number that would have to be uploaded."""
    function, args, options = EVERY[name]
    return function, args, {key: v for key, v in options.items() if key != "out_scale"}


def assert_right(name: str, results: tuple[Any, ...], call: Call) -> None:
    function, args, options = call
    for got, right in zip(results, as_tuple(function(*args, **options)), strict=True):
        assert got.shape == right.shape
        assert got.dtype == right.dtype
        if name not in GEMMS:
            assert_bytes_equal(got.get().view(np.uint8), right.view(np.uint8))
            continue
        scale = {key: v for key, v in options.items() if key == "out_scale"}
        error = abs(got.get().astype(np.float64) - reference.gemm_float64(*args, **scale))
        assert (error <= reference.gemm_error_bound(*args, **scale)).all()


@pytest.mark.parametrize("name", CALLS)
def test_gives_what_the_reference_gives(name: str) -> None:
    assert_right(name, call(name), CALLS[name])


@pytest.mark.parametrize("name", CALLS)
def test_writes_every_byte_of_out(name: str) -> None:
    function, args, options = CALLS[name]
    outs = to_gpu(poisoned(function(*args, **options)))
    results = call(name, out=outs if len(outs) > 1 else outs[0])
    assert [r.data.ptr for r in results] == [o.data.ptr for o in outs]
    assert_right(name, results, CALLS[name])


@pytest.mark.parametrize("name", CALLS)
def test_runs_on_the_given_stream(name: str) -> None:
    import cupy

    function, args, options = in_a_capture(name)
    on_gpu, outs = to_gpu(args), to_gpu(poisoned(function(*args, **options)))
    given = outs if len(outs) > 1 else outs[0]
    function(*on_gpu, **options, out=given)  # compiles, which is no part of a capture
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.begin_capture()  # it does not become the current one: only stream= leads there
    try:
        function(*on_gpu, **options, out=given, stream=stream)
    finally:
        graph = stream.end_capture()
    for out in outs:
        out.view(np.uint8)[...] = 0xFF
    cupy.cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    assert_right(name, outs, (function, args, options))


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_works_in_place_runs_on_the_given_stream_and_in_a_graph(name: str) -> None:
    import cupy

    function, args, options = IN_PLACE[name]
    data, *others = to_gpu(args)
    right = function(args[0].copy(), *args[1:], **options)
    assert function(data, *others, **options) is data
    assert_bytes_equal(data.get().view(np.uint8), right.view(np.uint8))
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.begin_capture()  # it does not become the current one: only stream= leads there
    try:
        function(data, *others, **options, stream=stream)
    finally:
        graph = stream.end_capture()
    changed = args[0][::-1].copy()
    data.set(changed)
    cupy.cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    right = function(changed, *args[1:], **options)
    assert_bytes_equal(data.get().view(np.uint8), right.view(np.uint8))


@pytest.mark.parametrize("name", CALLS)
def test_a_captured_graph_follows_changed_inputs(name: str) -> None:
    import cupy

    function, args, options = in_a_capture(name)
    on_gpu = to_gpu(args)
    outs = to_gpu(poisoned(function(*args, **options)))
    given = outs if len(outs) > 1 else outs[0]
    function(*on_gpu, **options, out=given)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        function(*on_gpu, **options, out=given)
        graph = stream.end_capture()
    changed = [a[::-1].copy() if isinstance(a, np.ndarray) else a for a in args]
    for target, value in zip(on_gpu, changed, strict=True):
        if isinstance(value, np.ndarray):
            target.set(value)
    cupy.cuda.Device().synchronize()
    graph.launch(stream)
    stream.synchronize()
    right = as_tuple(function(*to_gpu(tuple(changed)), **options))
    for got, expected in zip(outs, right, strict=True):
        assert_bytes_equal(got.get().view(np.uint8), expected.get().view(np.uint8))


def test_what_would_allocate_in_a_capture_raises() -> None:
    import cupy

    x, a, blocks = to_gpu(X), to_gpu(ACT), to_gpu(BLOCKS)
    out = nv.nvfp4_mmq_gemm(a, blocks, out_scale=2.0)
    nv.amax_gsa(x)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            with pytest.raises(RuntimeError, match="out= must be given"):
                nv.amax_gsa(x)
            with pytest.raises(RuntimeError, match="out_scale must be an array on the GPU"):
                nv.nvfp4_mmq_gemm(a, blocks, out_scale=2.0, out=out)
        finally:
            stream.end_capture()


@pytest.mark.parametrize("name", [n for n in CALLS if "quantize_act" in n or n == "amax_gsa"])
def test_check_finite_raises_in_a_capture(name: str) -> None:
    import cupy

    function, args, options = CALLS[name]
    on_gpu = to_gpu(args)
    outs = to_gpu(poisoned(function(*args, **options)))
    given = outs if len(outs) > 1 else outs[0]
    function(*on_gpu, **options, out=given, check_finite=True)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        try:
            with pytest.raises(RuntimeError, match="check_finite=True waits for the GPU"):
                function(*on_gpu, **options, out=given, check_finite=True)
        finally:
            stream.end_capture()


def test_check_finite_names_the_first_bad_row() -> None:
    for row in (0, 3, 4):
        bad = X.copy()
        bad[row, 5] = np.nan
        with pytest.raises(ValueError, match=f"in row {row}$"):
            nv.amax_gsa(to_gpu(bad), check_finite=True)
    nv.amax_gsa(to_gpu(X), check_finite=True)


def test_check_finite_looks_at_the_rows_and_not_between_them() -> None:
    x = X.copy()
    x[:, 32:] = np.nan
    nv.nvfp4_mmq_quantize_act(to_gpu(x)[:, :32], check_finite=True)
    x[3, 31], x[4, 0] = np.inf, np.nan
    with pytest.raises(ValueError, match=r"x must be finite, got a NaN or an infinity in row 3$"):
        nv.nvfp4_mmq_quantize_act(to_gpu(x)[:, :32], check_finite=True)


@pytest.mark.parametrize("out_scale", [None, np.nan, np.inf])
def test_a_gemm_with_k_zero_gives_zeros(out_scale: float | None) -> None:
    a, blocks = np.empty((0, 7, 144), np.uint8), np.empty((40, 0, 36), np.uint8)
    for function, operand in (
        (nv.nvfp4_mmq_gemm, a),
        (nv.nvfp4_mmq_gemm_tiled, a),
        (nv.nvfp4_w4a16_gemm, np.empty((7, 0), BF16)),
    ):
        out = to_gpu(np.full((7, 40), np.nan, BF16))
        function(to_gpu(operand), to_gpu(blocks), out_scale=out_scale, out=out)
        assert not out.get().view(np.uint16).any(), function.__name__


def test_row_scales_of_rows_without_elements_are_one() -> None:
    blocks, empty = to_gpu(np.empty((0, 5, 144), np.uint8)), to_gpu(np.empty((5, 0), BF16))
    for function, args in (
        (nv.nvfp4_mmq_quantize_act, (empty,)),
        (nv.nvfp4_silu_mul_quant, (empty, empty, 1, 1)),
    ):
        scale = to_gpu(np.full(5, np.nan, np.float32))
        function(*args, row_scale=True, out=(blocks, scale))
        assert (scale.get() == 1).all(), function.__name__


@pytest.mark.parametrize("name", EVERY)
def test_an_array_operand_of_another_type_is_a_type_error(name: str) -> None:
    function, args, options = EVERY[name]
    on_gpu = to_gpu(args)
    for i, arg in enumerate(args):
        if isinstance(arg, np.ndarray):
            others = [to_gpu(arg.astype(dtype)) for dtype in (np.int32, np.float64)]
            for bad in (*others, None, "x", [1, 2]):
                with pytest.raises(TypeError, match="must be"):
                    function(*on_gpu[:i], bad, *on_gpu[i + 1 :], **options)


@pytest.mark.parametrize("name", CALLS)
def test_an_operand_of_another_rank_is_a_value_error(name: str) -> None:
    function, args, options = CALLS[name]
    on_gpu = to_gpu(args)
    for i, arg in enumerate(args):
        if isinstance(arg, np.ndarray):
            with pytest.raises(ValueError, match="must"):
                function(*on_gpu[:i], on_gpu[i][None], *on_gpu[i + 1 :], **options)


def test_operands_of_two_sides_are_refused() -> None:
    with pytest.raises(ValueError, match="gsa must be a CuPy array like x, got a NumPy array"):
        nv.quantize_nvfp4_from_buffer(to_gpu(X), GSA)
    with pytest.raises(ValueError, match="a must be a CuPy array like blocks, got a NumPy array"):
        nv.nvfp4_mmq_gemm(ACT, to_gpu(BLOCKS))


@pytest.mark.parametrize("offset", [1, 2, 3, 4, 7, 8])
def test_any_element_aligned_address_is_served(offset: int) -> None:
    flat = np.concatenate([np.zeros(offset, BF16), X.ravel()])
    x = to_gpu(flat)[offset:].reshape(X.shape)
    codes, scales, gsa = nv.amax_quantize_nvfp4(x)
    for got, right in zip((codes, scales, gsa), nv.amax_quantize_nvfp4(X), strict=True):
        assert_bytes_equal(got.get().view(np.uint8), right.view(np.uint8))
    assert_bytes_equal(nv.nvfp4_mmq_quantize_act(x).get(), nv.nvfp4_mmq_quantize_act(X))
    gate = to_gpu(np.concatenate([np.zeros(offset, BF16), GATE.ravel()]))[offset:]
    h = nv.nvfp4_silu_mul_scaled(gate.reshape(GATE.shape), to_gpu(UP), 0.5, 2.0)
    right = nv.nvfp4_silu_mul_scaled(GATE, UP, 0.5, 2.0)
    assert_bytes_equal(h.get().view(np.uint8), right.view(np.uint8))


@pytest.mark.parametrize("offset", [1, 2, 4])
def test_odd_addresses_of_bytes_are_served_or_refused(offset: int) -> None:
    packed, scales = nv.nvfp4_mmq_unpack(BLOCKS)
    on_gpu = to_gpu(np.concatenate([np.zeros(offset, np.uint8), packed.ravel()]))
    view = on_gpu[offset:].reshape(packed.shape)
    assert_bytes_equal(nv.nvfp4_mmq_repack(view, to_gpu(scales)).get(), BLOCKS)
    blocks = to_gpu(np.concatenate([np.zeros(offset, np.uint8), BLOCKS.ravel()]))
    shifted = blocks[offset:].reshape(BLOCKS.shape)
    if offset % 4:
        with pytest.raises(ValueError, match="must be aligned to 4 bytes"):
            nv.nvfp4_mmq_gemm(to_gpu(ACT), shifted)
        return
    out = nv.nvfp4_mmq_gemm(to_gpu(ACT), shifted).get()
    right = nv.nvfp4_mmq_gemm(to_gpu(ACT), to_gpu(BLOCKS)).get()
    assert_bytes_equal(out.view(np.uint8), right.view(np.uint8))


def test_an_input_of_another_stream_is_ordered_by_an_event() -> None:
    import cupy

    producer, consumer = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    source = to_gpu(bf16(4096, 2048))
    x = cupy.zeros_like(source)
    cupy.cuda.Device().synchronize()
    with producer:
        for _ in range(20):
            x[...] = source
        done = producer.record()
    consumer.wait_event(done)
    with consumer:
        gsa = nv.amax_gsa(x)
    consumer.synchronize()
    assert_bytes_equal(gsa.get().view(np.uint8), nv.amax_gsa(source).get().view(np.uint8))


def test_four_threads_on_four_streams_agree() -> None:
    import cupy

    x = to_gpu(bf16(257, 1024))
    right = [r.get() for r in nv.amax_quantize_nvfp4(x)]
    results: dict[int, list[np.ndarray]] = {}

    def work(i: int) -> None:
        stream = cupy.cuda.Stream(non_blocking=True)
        for _ in range(20):
            got = nv.amax_quantize_nvfp4(x, stream=stream)
        stream.synchronize()
        results[i] = [r.get() for r in got]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for got in results.values():
        for g, r in zip(got, right, strict=True):
            assert_bytes_equal(g.view(np.uint8), r.view(np.uint8))
    assert len(results) == 4


def test_two_processes_with_an_empty_cache_compile_at_once(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np, cupy, nvfp4cupy as nv;"
        "x = np.load(sys.argv[1]);"
        "np.savez(sys.argv[2], *[r.get() for r in nv.amax_quantize_nvfp4(cupy.asarray(x))])"
    )
    x = X.astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    environment = {**os.environ, "CUPY_CACHE_DIR": str(tmp_path / "cache")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "x.npy"), str(tmp_path / f"{i}.npz")],
            env=environment,
        )
        for i in range(2)
    ]
    assert [process.wait() for process in processes] == [0, 0]
    for i in range(2):
        with np.load(tmp_path / f"{i}.npz") as results:
            for got, right in zip(results.values(), nv.amax_quantize_nvfp4(x), strict=True):
                assert_bytes_equal(got.view(np.uint8), right.view(np.uint8))


@pytest.mark.parametrize("rows", [70_000, 248_320])
def test_more_rows_than_a_grids_y_allows(rows: int) -> None:
    x = bf16(rows, 64)
    for got, right in zip(
        nv.amax_quantize_nvfp4(to_gpu(x)), nv.amax_quantize_nvfp4(x), strict=True
    ):
        assert_bytes_equal(got.get().view(np.uint8), right.view(np.uint8))
    assert_bytes_equal(
        nv.nvfp4_mmq_quantize_act(to_gpu(x[:, :32])).get()[:, -300:],
        reference.nvfp4_mmq_quantize_act(x[-300:, :32]),
    )


def test_more_elements_than_32_bits_count() -> None:
    import cupy

    rows, columns = 2**16 + 3, 2**15 + 16
    needed = rows * columns * 3
    if cupy.cuda.runtime.memGetInfo()[0] < needed + 2**31:
        pytest.skip(f"needs {needed / 2**30:.0f} GiB of free GPU memory")
    tail = bf16(8, columns)
    x = cupy.zeros((rows, columns), BF16)
    x[-8:] = to_gpu(tail)
    codes, scales, gsa = nv.amax_quantize_nvfp4(x)
    for got, right in zip((codes, scales, gsa), nv.amax_quantize_nvfp4(tail), strict=True):
        assert_bytes_equal(got[-8:].get().view(np.uint8), right.view(np.uint8))
    assert not codes[:-8].any()
    del x, codes, scales
    cupy.get_default_memory_pool().free_all_blocks()


def test_torch_tensors_are_taken_without_a_copy() -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(X.astype(np.float32)).to(torch.bfloat16).cuda()
    codes, scales, gsa = nv.amax_quantize_nvfp4(x)
    for got, right in zip((codes, scales, gsa), nv.amax_quantize_nvfp4(X), strict=True):
        assert_bytes_equal(got.get().view(np.uint8), right.view(np.uint8))
    out = torch.empty(GATE.shape, dtype=torch.bfloat16, device="cuda")
    nv.nvfp4_silu_mul_scaled(to_gpu(GATE), to_gpu(UP), 1, 1, out=out)
    right = nv.nvfp4_silu_mul_scaled(GATE, UP, 1, 1)
    torch.cuda.synchronize()
    assert_bytes_equal(out.view(torch.uint8).cpu().numpy(), right.view(np.uint8))
    with pytest.raises(TypeError, match=r"view\(torch.uint8\)"):
        nv.dequantize_nvfp4(
            codes, torch.zeros(scales.shape, device="cuda").to(torch.float8_e4m3fn), gsa
        )


def test_swizzled_scales_equal_the_swizzle_of_linear_ones() -> None:
    for rows, columns in [(1, 16), (5, 48), (127, 80), (128, 2880), (129, 48)]:
        x = to_gpu(bf16(rows, columns))
        _, linear, gsa = nv.amax_quantize_nvfp4(x)
        codes, swizzled = nv.quantize_nvfp4_from_buffer(x, gsa, scale_layout="128x4")
        assert_bytes_equal(swizzled.get(), nv.swizzle_scales(linear.get()))
        assert_bytes_equal(nv.swizzle_scales(linear).get(), swizzled.get())
        back = nv.unswizzle_scales(swizzled, rows, columns // 16)
        assert_bytes_equal(back.get(), linear.get())
        y = nv.dequantize_nvfp4(codes, swizzled, gsa, scale_layout="128x4")
        right = nv.dequantize_nvfp4(codes, linear, gsa)
        assert_bytes_equal(y.get().view(np.uint8), right.get().view(np.uint8))
