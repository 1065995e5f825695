"""Runs a launch in every way that must not matter, and compares each result's bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from golden import assert_bytes_equal

from emulator import Emulator
from nvfp4cupy.launch import LaunchConfig, pointer

__all__ = ["assert_emulates", "awkward_values", "run_words", "word_kernels"]

# (offset, order): the worst addresses and the best, threads and blocks in three orders.
_WAYS = ((None, 0), (0, 1), (0, 7))


def assert_emulates(
    emulate: Emulator,
    config: LaunchConfig,
    inputs: dict[str, Any],
    outputs: dict[str, np.ndarray],
    *,
    builds: tuple[bool, ...] = (False, True),
    num_ways: int = len(_WAYS),
    kinds: dict[str, str] | None = None,
) -> None:
    """Compare what the kernel writes with ``outputs``, in the builds without and with FP4 mma.

    Args:
        emulate: the emulator.
        config: the launch.
        inputs: value of each parameter, that before the launch where the kernel writes it.
        outputs: what each written array must be afterwards; NaN bits of float32 do not matter.
        builds: values of ``fp4_mma``.
        num_ways: how many combinations of alignment and order to try.
        kinds: what bytes are, for the message, see ``assert_bytes_equal``.
    """
    for fp4_mma in builds:
        for offset, order in _WAYS[:num_ways]:
            arrays = {
                name: np.copy(inputs.get(name, np.zeros_like(expected)))
                for name, expected in outputs.items()
            }
            values = {**inputs, **arrays}
            emulate(config, fp4_mma=fp4_mma, offset=offset, order=order, **values)
            for name, expected in outputs.items():
                result = arrays[name]
                if expected.dtype == np.float32:
                    both = np.isnan(result) & np.isnan(expected)
                    result = np.where(both, expected, result)
                assert_bytes_equal(result, expected, (kinds or {}).get(name, ""))


def awkward_values(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    """Return random values with some NaN, infinities, zeros of both signs, and extremes."""
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3, shape)).astype(np.float32)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-39, 6e4, -3e38], np.float32)
    chosen = rng.random(shape) < 0.02
    values[chosen] = rng.choice(special, int(chosen.sum()))
    with np.errstate(all="ignore"):
        return values.astype(dtype)


def word_kernels(bodies: dict[str, str]) -> str:
    """Return a kernel source; ``x`` and ``y`` are words, ``i`` is the thread's number of ``N``."""
    entry = (
        'extern "C" __global__ void {}(const uint32_t* x, uint32_t* y)'
        " {{ const int i = blockIdx.x * 32 + threadIdx.x, N = 32 * gridDim.x; (void)N; {} }}\n"
    )
    kernels = "".join(entry.format(name, body) for name, body in bodies.items())
    return f'#include "ptx.cuh"\n{kernels}'


def run_words(
    emulate: Emulator,
    text: str,
    name: str,
    x: np.ndarray,
    *,
    y_words: int = 0,
    fp4_mma: bool = False,
) -> np.ndarray:
    """Return ``y`` of a kernel of ``word_kernels``.

    Args:
        emulate: the emulator.
        text: the source.
        name: the kernel.
        x: one word for each thread; with ``y_words`` there is one warp.
        y_words: size of the output, if it is not that of ``x``.
        fp4_mma: build the path of the FP4 matrix instruction.
    """
    x = np.ascontiguousarray(x).view(np.uint32).ravel()
    y = np.zeros(y_words or x.size, np.uint32)
    args = (pointer("x", x.nbytes, alignment=16), pointer("y", y.nbytes, "out", alignment=16))
    grid = (1 if y_words else x.size // 32, 1, 1)
    config = LaunchConfig("words.cu", name, grid, (32, 1, 1), 0, args)
    emulate(config, text=text, fp4_mma=fp4_mma, x=x, y=y)
    return y
