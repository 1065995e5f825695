"""The emulator's checks: each small faulty kernel is caught, its correct sibling passes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from nvfp4cupy.launch import Arg, LaunchConfig, pointer, u32
from emulator import Emulator, EmulatorError, Sparse, missing_emulator, session_folder

pytestmark = pytest.mark.skipif(bool(missing_emulator()), reason=missing_emulator())

_X = pointer("x", 128, alignment=4)
_Y = pointer("y", 128, "out", alignment=4)
_HEAD = 'extern "C" __global__ void kernel(const uint32_t* x, uint32_t* y) {{ {} }}'
_LANE = "const int i = threadIdx.x; "


@pytest.fixture(scope="module")
def emulate(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(session_folder(tmp_path_factory))


def _config(block: int = 32, shared: int = 0, grid: int = 1, args: tuple[Arg, ...] = (_X, _Y)):
    return LaunchConfig("none.cu", "kernel", (grid, 1, 1), (block, 1, 1), shared, args)


def _run(emulate: Emulator, body: str, config: LaunchConfig | None = None, **options) -> np.ndarray:
    y = np.zeros(32, np.uint32)
    text = body if "__global__" in body else _HEAD.format(body)
    config = config or _config()
    emulate(config, text=text, x=np.arange(32, dtype=np.uint32), y=y, **options)
    return y


_ACCESS = {
    "read_past_the_end": (
        "y[i] = x[i + 1];",
        "out of bounds read: 4 bytes at byte 128 of x, which has 128 in kernel at",
    ),
    "read_before_the_start": ("y[i] = x[i - 1];", "out of bounds read: 4 bytes at byte -4 of x"),
    "write_past_the_end": ("y[i + 1] = 0;", "out of bounds write: 4 bytes at byte 128 of y"),
    "half_of_a_vector": (
        "*(uint2*)(y + (i & ~1)) = i < 30 ? uint2() : *(const uint2*)(x + i + (i == 31));",
        "out of bounds read: 8 bytes at byte 124|misaligned",
    ),
    "null": (
        "y[i] = *(uint32_t*)(x[0] * 8ull);",
        "read of 4 bytes at (0|\\(nil\\)).*outside every",
    ),
    "write_to_an_input": ("const_cast<uint32_t*>(x)[i] = 0;", "write to an input: 4 bytes"),
    "missing_output": ("if (i != 7) y[i] = 0;", "byte 28 of y, which has 128, was never written"),
    "missing_output_byte": ("((uint16_t*)y)[i] = 0;", "byte 64 of y"),
    "output_as_input": ("y[i] += x[i];", "read of uninitialized memory: 4 bytes at byte 0 of y"),
    "static_shared": (
        "__shared__ uint32_t s[32]; s[i + x[1]] = 0; y[i] = 0;",
        "index 32 out of bounds for type",
    ),
    "static_shared_by_pointer": (
        "__shared__ uint32_t s[32]; uint32_t* p = s; p[i + x[1]] = 0; y[i] = 0;",
        "static shared memory|insufficient space",
    ),
    "local_array": ("uint32_t v[4] = {}; y[i] = v[x[4]];", "index 4 out of bounds"),
    "other_thread_stack": (
        "__shared__ uint32_t* s; uint32_t v = 1; if (!i) s = &v; __syncthreads(); y[i] = *s;",
        "outside every array",
    ),
    "uninitialized_shared": (
        "__shared__ uint32_t s[33]; s[i] = 0; __syncthreads(); y[i] = s[i + 1];",
        "read of uninitialized memory: 4 bytes at byte 128 of static shared memory",
    ),
    "misaligned_vector": (
        "if (i < 16) *(uint2*)(y + 2 * i) = *(const uint2*)(x + 2 * i);",
        "misaligned address .* for type '.*uint2', which requires 8 byte alignment",
    ),
    "signed_overflow": ("y[i] = 0x7FFFFFF0 + (int)x[i];", "signed integer overflow"),
    "shift": ("y[i] = 1u << (x[i] + 1);", "shift exponent 32 is too large"),
    "float_to_int": ("y[i] = (int)(x[i] * 1e9f);", "is outside the range of representable values"),
    "division": ("y[i] = 1 / (int)x[i];", "division by zero"),
}


@pytest.mark.parametrize("name", _ACCESS)
def test_wrong_access_is_caught(emulate: Emulator, name: str) -> None:
    body, message = _ACCESS[name]
    with pytest.raises(EmulatorError, match=message):
        _run(emulate, _LANE + body)


_SYNC = {
    "skipped_barrier": (
        "if (i < 16) __syncthreads(); y[i] = 0;",
        "deadlock in block \\(0, 0, 0\\); 16 threads from 0 on are at __syncthreads, .*; "
        "16 threads from 16 on are at its end",
    ),
    "divergent_barrier": (
        "if (i < 16)\n__syncthreads();\nelse\n__syncthreads();\ny[i] = 0;",
        "divergent barrier: thread 16 is at line 4, thread 0 at line 2",
    ),
    "shuffle_without_all_lanes": (
        "y[i] = i < 16 ? __shfl_sync(~0u, x[i], 0) : 0;",
        "16 threads from 0 on are at __shfl_sync",
    ),
    "shuffle_with_wrong_mask": (
        "y[i] = __shfl_sync(0xFFFF, x[i], 0);",
        "__shfl_sync, line 1: lane 16 is not in its own mask 0xffff",
    ),
    "shuffle_from_outside_its_mask": (
        "y[i] = i < 16 ? __shfl_xor_sync(0xFFFF, x[i], 16) : 0;",
        "a shuffle with mask 0xffff lets lane 0 read lane 16",
    ),
    "different_collectives": (
        "y[i] = i < 16 ? __shfl_up_sync(~0u, x[i], 1) : __shfl_down_sync(~0u, x[i], 1);",
        "deadlock.*__shfl_up_sync.*__shfl_down_sync",
    ),
    "barrier_against_shuffle": (
        "if (i < 16) __syncthreads(); y[i] = __shfl_sync(~0u, x[i], 0); if (i > 15) "
        "__syncthreads();",
        "deadlock",
    ),
}


@pytest.mark.parametrize("name", _SYNC)
def test_wrong_synchronisation_is_caught(emulate: Emulator, name: str) -> None:
    body, message = _SYNC[name]
    with pytest.raises(EmulatorError, match=message):
        _run(emulate, _LANE + body)


# Between two warps a missing __syncthreads is a race, within one a missing __syncwarp.
_RACES = {
    "write_then_read": ("s[i] = x[i & 31]; BARRIER r = s[i ^ MASK];", "read of what another"),
    "read_then_write": (
        "s[i] = 1; __syncthreads(); r = s[i ^ MASK]; BARRIER s[i] = r;",
        "write over what another thread reads",
    ),
    "write_then_write": ("s[i] = 1; BARRIER s[i ^ MASK] = 2; r = 0;", "write over what another"),
    "atomic_then_read": (
        "s[i] = 1; atomicAdd(s + i, 1u); BARRIER r = s[i ^ MASK];",
        "read of what",
    ),
}


@pytest.mark.parametrize(
    ("barrier", "mask"), [("__syncthreads();", 32), ("__syncwarp();", 1)], ids=["block", "warp"]
)
@pytest.mark.parametrize("name", _RACES)
def test_race_is_caught(emulate: Emulator, name: str, barrier: str, mask: int) -> None:
    body, message = _RACES[name]
    body = f"{_LANE} uint32_t r; __shared__ uint32_t s[64]; {body} if (i < 32) y[i] = r;"
    body = body.replace("MASK", str(mask))
    with pytest.raises(EmulatorError, match=f"race: {message}"):
        _run(emulate, body.replace("BARRIER", ""), _config(block=64))
    _run(emulate, body.replace("BARRIER", barrier), _config(block=64))
    if mask == 32:
        with pytest.raises(EmulatorError, match="race"):
            _run(emulate, body.replace("BARRIER", "__syncwarp();"), _config(block=64))


_BLOCK_RACES = {
    "both_write": ("y[i] = i;", "write over what another thread wrote"),
    "one_reads_what_the_other_wrote": (
        "if (blockIdx.x == 0) y[i] = i; else y[i + 16] = y[i];",
        "read of what another|write over",
    ),
    "two_threads_of_a_block": ("y[i / 2] = i;", "write over what another thread wrote"),
}


@pytest.mark.parametrize("name", _BLOCK_RACES)
@pytest.mark.parametrize("order", [0, 1, 7])
def test_race_in_an_array_is_caught(emulate: Emulator, name: str, order: int) -> None:
    body, message = _BLOCK_RACES[name]
    config = _config(block=32, grid=2)
    with pytest.raises(EmulatorError, match=f"race: {message}|uninitialized"):
        _run(emulate, _LANE + body, config, order=order)


_DYNAMIC = "extern __shared__ __align__(16) uint32_t s[]; "


def test_dynamic_shared_memory_ends_where_the_launch_says(emulate: Emulator) -> None:
    body = _LANE + _DYNAMIC + "s[i] = x[i]; __syncthreads(); y[i] = s[31 - i];"
    assert _run(emulate, body, _config(shared=128))[0] == 31
    with pytest.raises(EmulatorError, match="bounds write: 4 bytes at byte 124 of dynamic shared"):
        _run(emulate, body, _config(shared=124))
    with pytest.raises(EmulatorError, match="declares no dynamic shared memory"):
        _run(emulate, _LANE + "y[i] = 0;", _config(shared=16))


_COPY = (
    '#include "ptx.cuh"\nextern "C" __global__ void kernel(const uint32_t* x, uint32_t* y) {'
    + _LANE
    + "__shared__ alignas(16) uint32_t s[32]; ptx::cp_async<4>(s + i, x + i, i < 31 ? 4 : 0);"
    "ptx::cp_async_commit(); BODY }"
)
_COPIES = {
    "no_wait": ("y[i] = s[i];", "access during an asynchronous copy"),
    "no_barrier": ("ptx::cp_async_wait<0>(); y[i] = s[i ^ 1];", "access during|race"),
    "too_few_groups": ("ptx::cp_async_wait<1>(); y[i] = s[i];", "access during an asynchronous"),
    "overwritten": ("s[i] = 1; ptx::cp_async_wait<0>(); y[i] = s[i];", "access during an asynch"),
    "misaligned": ("ptx::cp_async<8>(s, x + 1); y[i] = 0;", "misaligned asynchronous copy of 8"),
    "out_of_bounds": ("ptx::cp_async<4>(s + i, x + 32); y[i] = 0;", "out of bounds read: 4 bytes"),
}


@pytest.mark.parametrize("name", _COPIES)
def test_wrong_asynchronous_copy_is_caught(emulate: Emulator, name: str) -> None:
    body, message = _COPIES[name]
    with pytest.raises(EmulatorError, match=message):
        _run(emulate, _COPY.replace("BODY", body))


def test_asynchronous_copy_zeroes_what_is_not_valid(emulate: Emulator) -> None:
    body = "ptx::cp_async_wait<0>(); __syncthreads(); y[i] = s[31 - i];"
    y = _run(emulate, _COPY.replace("BODY", body))
    np.testing.assert_array_equal(y, [0, *range(30, -1, -1)])


def test_arguments_are_compared_with_the_signature(emulate: Emulator) -> None:
    config = _config(args=(_X, _Y, u32("n", 32)))
    text = 'extern "C" __global__ void kernel(const uint32_t* x, uint32_t* y, int n) {}'
    with pytest.raises(EmulatorError, match="the launcher passes ppu, the kernel takes ppi"):
        _run(emulate, text, config)


def test_endless_loop_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(EmulatorError, match="not done after 1 s"):
        _run(Emulator(tmp_path, timeout_s=1), "volatile int n = 1; while (n) {}")


def test_only_listed_blocks_of_an_array_beyond_memory_run(emulate: Emulator) -> None:
    num_blocks = 2**26  # of 32 words: 8 GiB
    args = (pointer("x", 2**33, alignment=4), pointer("y", 2**33, "out", alignment=4))
    last = (num_blocks - 1) * 128
    piece = np.zeros(32, np.uint32)
    text = _HEAD.format("const uint64_t i = blockIdx.x * 32ull + threadIdx.x; y[i] = ~x[i];")
    emulate(
        _config(grid=num_blocks, args=args),
        text=text,
        x=Sparse({last: np.arange(32, dtype=np.uint32)}),
        y=Sparse({last: piece}),
        blocks=[(num_blocks - 1, 0, 0)],
    )
    np.testing.assert_array_equal(piece, ~np.arange(32, dtype=np.uint32))


def test_every_array_is_as_misaligned_as_its_parameter_allows(emulate: Emulator) -> None:
    y = _run(emulate, "y[threadIdx.x] = (uintptr_t)x % 256;")
    assert set(y) == {4}
    assert set(_run(emulate, "y[threadIdx.x] = (uintptr_t)x % 256;", offset=0)) == {0}


def test_messages_are_regular_expressions_that_compile() -> None:
    for table in (_ACCESS, _SYNC, _RACES, _BLOCK_RACES, _COPIES):
        for _, message in table.values():
            re.compile(message)
