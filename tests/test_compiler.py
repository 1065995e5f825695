"""The compiler picks the right architecture, refuses what cannot work, and says what to do."""

from __future__ import annotations

import re

import pytest

from nvfp4cupy import compiler, sources
from nvfp4cupy.compiler import choose_target

NVRTC_12_8 = ((12, 8), (50, 60, 70, 75, 80, 86, 87, 89, 90, 100, 101, 120))
NVRTC_12_9 = ((12, 9), (50, 60, 70, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121))
NVRTC_13_0 = ((13, 0), (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121))
GEMM = "nvfp4_mmq128.cu"


@pytest.mark.parametrize(
    ("source", "capability", "nvrtc", "arch"),
    [
        (GEMM, (8, 0), NVRTC_12_8, "sm_80"),
        (GEMM, (8, 9), NVRTC_12_9, "sm_89"),
        (GEMM, (9, 0), NVRTC_13_0, "sm_90"),
        (GEMM, (10, 3), NVRTC_12_9, "sm_103"),
        (GEMM, (12, 0), NVRTC_12_9, "sm_120a"),
        (GEMM, (12, 1), NVRTC_13_0, "sm_121a"),
        ("amax_gsa.cu", (12, 0), NVRTC_12_9, "sm_120"),
    ],
)
def test_takes_the_suffix_only_where_a_feature_needs_it(source, capability, nvrtc, arch) -> None:
    target = choose_target(source, capability, *nvrtc)
    assert target.arch == arch
    assert target.options == ((f"-arch={arch}",) if arch.endswith("a") else ())
    assert not target.note


@pytest.mark.parametrize("capability", [(12, 0), (12, 1)])
def test_an_old_nvrtc_gets_the_portable_path_and_a_reason(capability: tuple[int, int]) -> None:
    target = choose_target(GEMM, capability, *NVRTC_12_8)
    assert target.arch == "sm_120"
    assert target.options == ()
    assert re.search(r"NVRTC 12\.8 cannot target sm_12[01]a .*NVRTC 12\.9 or newer", target.note)


@pytest.mark.parametrize("capability", [(7, 5), (6, 1)])
def test_a_gpu_below_8_0_is_refused_by_name(capability: tuple[int, int]) -> None:
    major, minor = capability
    with pytest.raises(
        RuntimeError, match=rf"8\.0 or newer, got compute capability {major}\.{minor}"
    ):
        choose_target(GEMM, capability, *NVRTC_12_9)


@pytest.mark.parametrize(
    ("capability", "nvrtc"), [((11, 0), NVRTC_12_9), ((13, 0), NVRTC_13_0), ((10, 3), NVRTC_12_8)]
)
def test_a_gpu_that_nvrtc_does_not_know_is_refused_with_the_cure(capability, nvrtc) -> None:
    with pytest.raises(
        RuntimeError, match=r"NVRTC .* cannot compile for compute capab.*pip install"
    ):
        choose_target(GEMM, capability, *nvrtc)


def test_a_later_minor_version_runs_the_newest_cubin_of_its_major() -> None:
    assert choose_target("amax_gsa.cu", (12, 1), *NVRTC_12_8).arch == "sm_120"


def test_a_compile_error_keeps_file_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "expand", lambda name: f'#line 7 "{name}"\nint x = ;\n')
    with pytest.raises(
        RuntimeError, match=r"broken\.cu does not compile for sm_90:\n.*broken\.cu\(7\)"
    ):
        compiler.cubin("broken.cu", "sm_90")
