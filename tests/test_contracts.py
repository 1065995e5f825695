"""Sources, launchers and compiled code agree: entries, parameters, block sizes, no spills."""

from __future__ import annotations

import math
import re
from functools import cache
from typing import NamedTuple

import plans
import pytest

from nvfp4cupy import compiler, sources
from nvfp4cupy.launch import LaunchConfig

ARCHS = tuple(
    f"sm_{a}" for a in ["80", "86", "89", "90", "90a", "100", "103", "120", "120a", "121a"]
)
# Variants compile for one architecture of each kind, the default build for all.
VARIANT_ARCHS = ("sm_80", "sm_90", "sm_120a")

_ENTRY = re.compile(
    r'extern\s+"C"\s+__global__\s+void\s+__launch_bounds__\((\d+)(?:,\s*\d+)?\)\s*'
    r"(?:__cluster_dims__\([^)]*\)\s*)?(\w+)\s*\(([^)]*)\)",
)
_KINDS = {
    "uint32_t": "u32",
    "int32_t": "i32",
    "int": "i32",
    "uint64_t": "u64",
    "int64_t": "i64",
    "float": "f32",
}
_PTX_KINDS = {"ptr": "u64", "u32": "u32", "i32": "u32", "u64": "u64", "i64": "u64", "f32": "f32"}


class Entry(NamedTuple):
    threads: int
    params: list[tuple[str, str]]


@cache
def entries(source: str) -> dict[str, Entry]:
    """Return the entries of a source as its text declares them."""
    text = re.sub(r"//[^\n]*", "", sources.find(source).read_text())
    found = {}
    for threads, name, params in _ENTRY.findall(text):
        found[name] = Entry(int(threads), [_param(p) for p in params.split(",")])
    return found


def _param(text: str) -> tuple[str, str]:
    words = text.replace("*", " * ").split()
    kind = "ptr" if "*" in words else _KINDS[next(w for w in words if w in _KINDS)]
    return kind, words[-1]


def _id(config: LaunchConfig) -> str:
    return " ".join([config.entry, *(f"{n}={v}" for n, v in config.defines)])


ALL = plans.all_plans()
BUILDS = sorted({(c.source, c.defines) for c in ALL})
CASES = [(s, d, a) for s, d in BUILDS for a in (VARIANT_ARCHS if d else ARCHS)]


@pytest.mark.parametrize("config", ALL, ids=_id)
def test_a_launchers_parameters_are_those_of_the_source(config: LaunchConfig) -> None:
    entry = entries(config.source)[config.entry]
    assert [(arg.kind, arg.name) for arg in config.args] == entry.params
    assert math.prod(config.block) == entry.threads


def test_every_entry_has_a_launcher() -> None:
    declared = {(s, e) for s in sources.kernel_files() for e in entries(s)}
    assert declared == {(c.source, c.entry) for c in ALL}
    in_text = sum(
        sources.find(s).read_text().count('extern "C" __global__') for s in sources.kernel_files()
    )
    assert in_text == len(declared), "an entry is declared in a form that these tests cannot read"


@pytest.mark.parametrize(("source", "defines", "arch"), CASES)
def test_compiles_without_spills_as_the_launcher_states(source, defines, arch) -> None:
    built = compiler.cubin(source, arch, defines)
    assert set(built.resources) == set(entries(source))
    assert {name: r.spill_bytes for name, r in built.resources.items() if r.spill_bytes} == {}
    configs = {c.entry: c for c in ALL if (c.source, c.defines) == (source, defines)}
    for name, config in configs.items():
        declared = re.search(rf"\.entry {name}\((.*?)\)", built.ptx, re.DOTALL)
        assert declared is not None
        compiled = re.findall(r"\.param \.([a-z]\d+)", declared.group(1))
        assert compiled == [_PTX_KINDS[arg.kind] for arg in config.args]
        used = config.shared_mem + built.resources[name].static_shared_mem
        assert used <= plans.SHARED_MEM_LIMIT[arch.rstrip("a")]
