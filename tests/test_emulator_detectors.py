"""The emulator's checks: each small faulty kernel is caught, its correct sibling passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulator import Emulator, EmulatorError, Sparse, missing_emulator, session_folder

from nvfp4cupy.launch import Arg, LaunchConfig, pointer, u32

pytestmark = pytest.mark.skipif(bool(missing_emulator()), reason=missing_emulator())

_X = pointer("x", 128, alignment=4)
_Y = pointer("y", 128, "out", alignment=4)

# Bodies with `i` the thread's index, and what the emulator says to them.
_ACCESS = {
    "read_past_the_end": (
        "y[i] = x[i + 1];",
        "out of bounds read: 4 bytes at byte 128 of x, which has 128 in read_past_the_end at",
    ),
    "read_before_the_start": ("y[i] = x[i - 1];", "out of bounds read: 4 bytes at byte -4 of x"),
    "write_past_the_end": ("y[i + 1] = 0;", "out of bounds write: 4 bytes at byte 128 of y"),
    "vector_past_the_end": (
        "auto p = (const uint2*)(x + 1); y[i] = p[i / 2].y;",
        "out of bounds read: 4 bytes at byte 128 of x",
    ),
    "null": ("y[i] = *(uint32_t*)(x[0] * 8ull);", r"4 bytes at \(nil\), outside every array"),
    "write_to_an_input": ("const_cast<uint32_t*>(x)[i] = 0;", "write to an input: 4 bytes"),
    "missing_output": ("if (i != 7) y[i] = 0;", "byte 28 of y, which has 128, was never written"),
    "missing_output_byte": ("((uint16_t*)y)[i] = 0;", "byte 64 of y"),
    "output_as_input": ("y[i] += x[i];", "read of uninitialized memory: 4 bytes at byte 0 of y"),
    "shared_index": ("__shared__ uint32_t s[32]; s[i + x[1]] = y[i] = 0;", "index 32 out of"),
    "shared_pointer": (
        "__shared__ uint32_t s[32]; uint32_t* p = s; p[i + x[1]] = y[i] = 0;",
        "insufficient space for an object of type",
    ),
    "uninitialized_shared": (
        "__shared__ uint32_t s[33]; s[i] = 0; __syncthreads(); y[i] = s[i + 1];",
        "read of uninitialized memory: 4 bytes at byte .* of static shared memory",
    ),
    "local_index": ("uint32_t v[4] = {}; y[i] = v[x[4]];", "index 4 out of bounds"),
    "stack_of_another_thread": (
        "__shared__ uint32_t* s; uint32_t v = 1; if (!i) s = &v; __syncthreads(); y[i] = *s;",
        "outside every array",
    ),
    "misaligned_vector": (
        "if (i < 16) ((uint2*)y)[i] = ((const uint2*)x)[i];",
        "misaligned address .* for type '.*uint2', which requires 8 byte alignment",
    ),
    "signed_overflow": ("y[i] = 0x7FFFFFF0 + (int)x[i];", "signed integer overflow"),
    "shift": ("y[i] = 1u << (x[i] + 1);", "shift exponent 32 is too large"),
    "float_to_int": ("y[i] = (int)(x[i] * 1e9f);", "is outside the range of representable values"),
    "division": ("y[i] = 1 / (int)x[i];", "division by zero"),
}
_SYNC = {
    "skipped_barrier": (
        "if (i < 16) __syncthreads(); y[i] = 0;",
        r"deadlock in block \(0, 0, 0\); 16 threads from 0 on are at __syncthreads, .*; "
        "16 threads from 16 on are at its end",
    ),
    "divergent_barrier": (
        "if (i < 16)\n__syncthreads();\nelse\n__syncthreads();\ny[i] = 0;",
        "divergent barrier: thread 16 is at line .*, thread 0 at line",
    ),
    "shuffle_without_all_lanes": (
        "y[i] = i < 16 ? __shfl_sync(~0u, x[i], 0) : 0;",
        "16 threads from 0 on are at __shfl_sync, .*16 threads from 16 on are at its end",
    ),
    "shuffle_with_a_wrong_mask": (
        "y[i] = __shfl_sync(0xFFFF, x[i], 0);",
        "__shfl_sync, line .*: lane 16 is not in its own mask 0xffff",
    ),
    "shuffle_from_outside_its_mask": (
        "y[i] = i < 16 ? __shfl_xor_sync(0xFFFF, x[i], 16) : 0;",
        "a shuffle with mask 0xffff lets lane 0 read lane 16",
    ),
    "different_shuffles": (
        "y[i] = i < 16 ? __shfl_up_sync(~0u, x[i], 1) : __shfl_down_sync(~0u, x[i], 1);",
        "deadlock.*__shfl_up_sync.*__shfl_down_sync",
    ),
    "barrier_against_shuffle": (
        "if (i < 16) __syncthreads(); y[i] = __shfl_sync(~0u, x[i], 0);"
        "if (i > 15) __syncthreads();",
        "deadlock",
    ),
    "write_by_two_threads": ("y[i / 2] = i;", "race: write over what another thread wrote"),
}
# Between two warps a missing __syncthreads is a race, within one a missing __syncwarp.
_RACES = {
    "write_then_read": "s[i] = x[i & 31]; BARRIER if (i < 64) r = s[i ^ MASK];",
    "read_then_write": "if (i < 64) r = s[i ^ MASK]; BARRIER s[i] = r;",
    "write_then_write": "s[i] = 1; BARRIER if (i < 64) s[i ^ MASK] = 2;",
    "atomic_then_read": "atomicAdd(s + i, 1u); BARRIER if (i < 64) r = s[i ^ MASK];",
    "atomic_then_write": "atomicAdd(s + i, 1u); BARRIER if (i < 64) s[i ^ MASK] = 0;",
}
# Barrier 1 is for warps 0 and 1, which share bytes, barrier 2 for warps 0 and 2, which do not.
_BARRIERS = {
    "nothing": "",
    "warp": "__syncwarp();",
    "block": "__syncthreads();",
    "right": "if (i < 64) ptx::barrier_sync(1, 64);",
    "wrong": "if (i / 32 % 2 == 0) ptx::barrier_sync(2, 64);",
    "chain": "if (i / 32 != 1) ptx::barrier_sync(2, 64); if (i >= 32) ptx::barrier_sync(3, 64);"
    "if (i < 64) ptx::barrier_sync(1, 64);",
}
_BLOCK_RACES = {
    "blocks_write_the_same": "y[i] = i;",
    "block_reads_what_another_writes": "if (i < 16) y[16 * blockIdx.x + i] = 0; if (y[i]) y[i]++;",
    "block_writes_what_another_reads": "if (blockIdx.x) y[i] = 1; else if (y[i] == 9) y[i] = 8;",
}
_COPIES = {
    "copy_without_wait": ("y[i] = s[i];", "access during an asynchronous copy"),
    "copy_without_barrier": ("ptx::cp_async_wait<0>(); y[i] = s[i ^ 1];", "access during|uninit"),
    "copy_of_a_later_group": ("ptx::cp_async_wait<1>(); y[i] = s[i];", "access during an asyn"),
    "copy_overwritten": ("s[i] = 1; ptx::cp_async_wait<0>();", "access during an asynchronous"),
    "copy_misaligned": ("ptx::cp_async<8>(s + 32, x);", "misaligned asynchronous copy of 8"),
    "copy_from_outside": ("ptx::cp_async<4>(s + 32, x + 32);", "out of bounds read: 4 bytes"),
    "copy": ("ptx::cp_async_wait<0>(); __syncthreads(); y[i] = s[31 - i];", ""),
}
_COPY = (
    "__shared__ alignas(16) uint32_t s[36]; ptx::cp_async<4>(s + i, x + i, i < 31 ? 4 : 0);"
    "ptx::cp_async_commit(); BODY"
)
_RACE = (
    "__shared__ uint32_t s[96]; s[i] = 0; __syncthreads(); uint32_t r = 0; BODY"
    " if (i < 32) y[i] = r;"
)
_DYNAMIC = "extern __shared__ __align__(16) uint32_t d[]; d[i] = x[i]; __syncthreads(); "
_BODIES = {
    **{name: body for name, (body, _) in {**_ACCESS, **_SYNC}.items()},
    **{name: _COPY.replace("BODY", body) for name, (body, _) in _COPIES.items()},
    **{
        f"{name}_{key}_{mask}": _RACE.replace("BODY", body)
        .replace("BARRIER", barrier)
        .replace("MASK", str(mask))
        for name, body in _RACES.items()
        for key, barrier in _BARRIERS.items()
        for mask in (1, 32)
    },
    "dynamic": _DYNAMIC + "y[i] = d[31 - i];",
    "endless": "volatile int n = 1; while (n) {}",
    "addresses": "y[i] = (uintptr_t)x % 256;",
}
_PARAMETERS = {
    **dict.fromkeys(_BODIES, "const uint32_t* x, uint32_t* y"),
    **dict.fromkeys(_BLOCK_RACES, "uint32_t* y"),
    "signed_size": "const uint32_t* x, uint32_t* y, int n",
    "large": "const uint32_t* x, uint32_t* y",
}
_BODIES |= _BLOCK_RACES
_BODIES |= {"signed_size": "", "large": "const size_t j = blockIdx.x * 32ull + i; y[j] = ~x[j];"}
_TEXT = '#include "ptx.cuh"\n' + "\n".join(
    f'extern "C" __global__ void {name}({_PARAMETERS[name]}) {{const int i = threadIdx.x; {body} }}'
    for name, body in _BODIES.items()
)


@pytest.fixture(scope="module")
def emulate(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    return Emulator(session_folder(tmp_path_factory))


def _config(
    name: str, block: int = 32, shared: int = 0, grid: int = 1, args: tuple[Arg, ...] = (_X, _Y)
) -> LaunchConfig:
    return LaunchConfig("detectors.cu", name, (grid, 1, 1), (block, 1, 1), shared, args)


def _run(emulate: Emulator, config: LaunchConfig, **options: Any) -> np.ndarray:
    y = np.zeros(32, np.uint32)
    emulate(config, text=_TEXT, x=np.arange(32, dtype=np.uint32), y=y, **options)
    return y


@pytest.mark.parametrize("name", [*_ACCESS, *_SYNC])
def test_fault_is_caught(emulate: Emulator, name: str) -> None:
    _, message = {**_ACCESS, **_SYNC}[name]
    with pytest.raises(EmulatorError, match=message):
        _run(emulate, _config(name))


@pytest.mark.parametrize("name", _RACES)
@pytest.mark.parametrize("order", [0, 1, 7])
def test_race_is_caught(emulate: Emulator, name: str, order: int) -> None:
    for barrier, mask in [("nothing", 1), ("nothing", 32), ("warp", 32), ("wrong", 32)]:
        with pytest.raises(EmulatorError, match="race: "):
            _run(emulate, _config(f"{name}_{barrier}_{mask}", block=96), order=order)
    for barrier, mask in [("warp", 1), ("block", 1), ("block", 32), ("right", 32), ("chain", 32)]:
        _run(emulate, _config(f"{name}_{barrier}_{mask}", block=96), order=order)


@pytest.mark.parametrize("name", _BLOCK_RACES)
@pytest.mark.parametrize("order", [0, 1])
def test_race_of_two_blocks_is_caught(emulate: Emulator, name: str, order: int) -> None:
    config = _config(name, grid=2, args=(pointer("y", 128, "inout", alignment=4),))
    with pytest.raises(EmulatorError, match="race: "):
        emulate(config, text=_TEXT, y=np.zeros(32, np.uint32), order=order)


def test_dynamic_shared_memory_ends_where_the_launch_says(emulate: Emulator) -> None:
    assert _run(emulate, _config("dynamic", shared=128))[0] == 31
    with pytest.raises(EmulatorError, match="bounds write: 4 bytes at byte 124 of dynamic shared"):
        _run(emulate, _config("dynamic", shared=124))


@pytest.mark.parametrize("name", [name for name in _COPIES if name != "copy"])
def test_wrong_asynchronous_copy_is_caught(emulate: Emulator, name: str) -> None:
    with pytest.raises(EmulatorError, match=_COPIES[name][1]):
        _run(emulate, _config(name))


def test_asynchronous_copy_zeroes_what_is_not_valid(emulate: Emulator) -> None:
    np.testing.assert_array_equal(_run(emulate, _config("copy")), [0, *range(30, -1, -1)])


def test_arguments_are_compared_with_the_signature(emulate: Emulator) -> None:
    with pytest.raises(EmulatorError, match="the launcher passes ppu, the kernel takes ppi"):
        _run(emulate, _config("signed_size", args=(_X, _Y, u32("n", 32))))


def test_endless_loop_is_stopped(tmp_path_factory: pytest.TempPathFactory) -> None:
    emulate = Emulator(session_folder(tmp_path_factory), timeout_s=1)
    with pytest.raises(EmulatorError, match="not done after 1 s"):
        _run(emulate, _config("endless"))


def test_only_listed_blocks_of_arrays_beyond_memory_run(emulate: Emulator) -> None:
    num_blocks = 2**26  # of 32 words: 8 GiB
    args = (pointer("x", 2**33, alignment=4), pointer("y", 2**33, "out", alignment=4))
    config = _config("large", grid=num_blocks, args=args)
    last = (num_blocks - 1) * 128
    x, y = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    blocks = [(num_blocks - 1, 0, 0)]
    emulate(config, text=_TEXT, x=Sparse({last: x}), y=Sparse({last: y}), only=blocks)
    np.testing.assert_array_equal(y, ~x)


def test_arrays_are_as_misaligned_as_their_parameters_allow(emulate: Emulator) -> None:
    assert set(_run(emulate, _config("addresses"))) == {4}
    assert set(_run(emulate, _config("addresses"), offset=0)) == {0}


def test_unset_shared_memory_can_be_poisoned(emulate: Emulator) -> None:
    y = _run(emulate, _config("uninitialized_shared"), poison=0xAB)
    assert y[31] == 0xABABABAB


def test_array_must_hold_the_extent(emulate: Emulator) -> None:
    with pytest.raises(ValueError, match="y must hold 128 contiguous bytes, got 4"):
        emulate(_config("copy"), text=_TEXT, x=np.zeros(32, np.uint32), y=np.zeros(1, np.uint32))


def test_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing_emulator() == "no C++ compiler: g++ is not found"
