"""Skips the tests marked ``gpu`` where there is no GPU, or fails them if one is required."""

from __future__ import annotations

import os

import pytest

from nvfp4cupy.arrays import missing_gpu


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    for item in marked:
        # One worker at a time on the GPU: the large cases need its memory for themselves.
        item.add_marker(pytest.mark.xdist_group("gpu"))
    if not marked or not (reason := missing_gpu()):
        return
    if os.environ.get("NVFP4CUPY_REQUIRE_GPU") == "1":
        raise pytest.UsageError(f"NVFP4CUPY_REQUIRE_GPU=1, but {reason}")
    for item in marked:
        item.add_marker(pytest.mark.skip(reason=reason))
