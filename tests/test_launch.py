"""LaunchConfig states a launch, refuses impossible ones, and checks what is bound to it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from nvfp4cupy.launch import (
    MAX_GRID_X,
    MAX_GRID_YZ,
    LaunchConfig,
    div_ceil,
    f32,
    i32,
    pointer,
    u32,
    u64,
)


class FakeArray:
    """What bound_values looks at, without a GPU."""

    class _Data:
        def __init__(self, ptr: int, device_id: int) -> None:
            self.ptr, self.device_id = ptr, device_id

    def __init__(self, nbytes: int, ptr: int = 256, device: int = 0) -> None:
        self.nbytes, self.itemsize = nbytes, 1
        self.shape, self.strides, self.size = (nbytes,), (1,), nbytes
        self.flags = np.empty(0).flags
        self.data = self._Data(ptr, device)


CONFIG = LaunchConfig(
    source="example.cu",
    entry="example",
    grid=(3, 1, 1),
    block=(256, 1, 1),
    shared_mem=0,
    args=(
        pointer("x", 64, alignment=4),
        u32("n", 16),
        f32("scale"),
        pointer("side", 8, "out", nullable=True),
    ),
)


def test_is_frozen_and_hashable() -> None:
    with pytest.raises(FrozenInstanceError):
        CONFIG.entry = "other"  # type: ignore[misc]
    assert hash(CONFIG) == hash(replace(CONFIG))


@pytest.mark.parametrize(
    "grid", [(MAX_GRID_X + 1, 1, 1), (1, MAX_GRID_YZ + 1, 1), (1, 1, MAX_GRID_YZ + 1), (-1, 1, 1)]
)
def test_refuses_a_grid_that_no_gpu_launches(grid: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="grid must be at most"):
        replace(CONFIG, grid=grid)


@pytest.mark.parametrize("block", [(1025, 1, 1), (32, 33, 1), (0, 1, 1)])
def test_refuses_a_block_that_no_gpu_launches(block: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="1 to 1024 threads"):
        replace(CONFIG, block=block)


def test_a_zero_in_the_grid_means_empty() -> None:
    assert not CONFIG.is_empty
    assert replace(CONFIG, grid=(0, 1, 1)).is_empty


@pytest.mark.parametrize(
    ("arg", "value"), [(u32, 2**32), (u32, -1), (i32, 2**31), (u64, 2**64), (i32, -(2**31) - 1)]
)
def test_refuses_a_number_that_its_type_cannot_hold(arg, value) -> None:
    with pytest.raises(ValueError, match=r"n must be from .* got"):
        arg("n", value)


def test_values_become_scalars_of_exactly_the_parameters_type() -> None:
    args = CONFIG.bound_values((FakeArray(64), 0.5, FakeArray(8)), device=0)
    assert [type(a) for a in args] == [FakeArray, np.uint32, np.float32, FakeArray]
    assert args[1] == 16
    assert args[2] == np.float32(0.5)


def test_a_nullable_pointer_becomes_null() -> None:
    assert CONFIG.bound_values((FakeArray(64), 1.0, None), device=0)[3] == np.uint64(0)
    with pytest.raises(ValueError, match="x must be an array"):
        CONFIG.bound_values((None, 1.0, None), device=0)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (FakeArray(63), "x must hold 64 bytes, got 63"),
        (FakeArray(64, ptr=258), "x must be aligned to 4 bytes"),
        (FakeArray(64, device=1), "x must lie on device 0, got 1"),
    ],
)
def test_refuses_an_array_that_the_kernel_would_leave(array: FakeArray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CONFIG.bound_values((array, 1.0, None), device=0)


def test_bind_names_unknown_parameters() -> None:
    assert CONFIG.bind(scale=2.0).args[2].value == 2.0
    with pytest.raises(TypeError, match="example has no parameter y"):
        CONFIG.bind(y=1)


def test_counts_the_values() -> None:
    with pytest.raises(TypeError, match="example takes x, scale, side; got 1 values"):
        CONFIG.bound_values((FakeArray(64),), device=0)


def test_div_ceil_is_exact_for_large_numbers() -> None:
    assert div_ceil(2**62 + 1, 2) == 2**61 + 1
    assert div_ceil(0, 128) == 0
