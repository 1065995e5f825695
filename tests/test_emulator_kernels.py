"""Every kernel runs in the emulator, or stands on a list with the reason why not."""

from __future__ import annotations

import re

import pytest
import test_emulator_gemm
import test_emulator_quantizers
import test_emulator_swiglu
import test_emulator_w4a16
from emulator import LEFT_OUT

from nvfp4cupy import sources

ENTRY = re.compile(r'extern "C" __global__ void\s+(?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(')
MODULES = (
    test_emulator_gemm,
    test_emulator_quantizers,
    test_emulator_swiglu,
    test_emulator_w4a16,
)


@pytest.mark.parametrize("source", sources.kernel_files())
def test_every_entry_is_emulated(source: str) -> None:
    if reason := LEFT_OUT.get(source):
        pytest.skip(f"not emulated: {reason}")
    emulated = set().union(*(module.ENTRIES for module in MODULES))
    entries = set(ENTRY.findall(sources.find(source).read_text()))
    assert entries
    assert entries <= emulated


def test_what_is_left_out_exists() -> None:
    assert set(LEFT_OUT) <= set(sources.kernel_files())
