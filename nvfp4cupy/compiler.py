"""Source, defines and entry become a kernel on a device; every CuPy and NVRTC quirk lives here."""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from functools import cache
from typing import Any

from nvfp4cupy import sources
from nvfp4cupy.arrays import cupy, current_device, missing_gpu
from nvfp4cupy.launch import LaunchConfig

__all__ = [
    "COMPILE_OPTIONS",
    "FP4_CAPABILITIES",
    "STATIC_SHARED_MEM",
    "Cubin",
    "Resources",
    "Target",
    "choose_target",
    "cubin",
    "current_target",
    "kernel_cache",
    "launch",
    "nvrtc",
]

# -fmad=false: kernel and NumPy reference give the same bytes only if no product is contracted
# into a sum; where a kernel wants an fma it says so.
COMPILE_OPTIONS = ("-std=c++17", "-fmad=false")

# Capabilities whose `mma` takes E2M1 operands; only their `a` targets have the instruction.
FP4_CAPABILITIES = frozenset({(12, 0), (12, 1)})
# CuPy appends an `-arch` of its own; from this NVRTC on, the two may stand side by side and the
# `a` target wins. Older ones stop with "defined more than once".
_NVRTC_TWO_ARCHS = (12, 9)
# Dynamic shared memory that a block gets unasked; a kernel that needs more has to say so.
STATIC_SHARED_MEM = 48 * 1024

# Sources that have a body for an architecture's own instructions, and for which architectures.
_ARCH_SPECIFIC: dict[str, frozenset[tuple[int, int]]] = {
    **{f"nvfp4_mmq{tile}.cu": FP4_CAPABILITIES for tile in (16, 32, 64, 128)},
}


@dataclass(frozen=True)
class Target:
    """What a source is compiled for.

    Attributes:
        arch: an NVRTC architecture such as ``"sm_90"`` or ``"sm_120a"``.
        options: what must be added to CuPy's own options to get it.
        note: why a faster path is not taken, or an empty string.
    """

    arch: str
    options: tuple[str, ...] = ()
    note: str = ""


def choose_target(
    source: str,
    capability: tuple[int, int],
    nvrtc: tuple[int, int],
    known_archs: tuple[int, ...],
) -> Target:
    """Choose the architecture that ``source`` is compiled for on a GPU.

    Args:
        source: file name in ``kernels/``.
        capability: the GPU's compute capability.
        nvrtc: version of the NVRTC that CuPy uses.
        known_archs: architectures that this NVRTC knows, as 90 for ``sm_90``.

    Raises:
        RuntimeError: the GPU is older than 8.0, or newer than this NVRTC knows.
    """
    gpu = f"compute capability {capability[0]}.{capability[1]}"
    version = f"NVRTC {nvrtc[0]}.{nvrtc[1]}"
    if capability < (8, 0):
        raise RuntimeError(f"nvfp4cupy needs a GPU of compute capability 8.0 or newer, got {gpu}")
    # A cubin runs on later minor versions of its major one, and on no other GPU.
    usable = [a for a in known_archs if a // 10 == capability[0] and a % 10 <= capability[1]]
    # CuPy passes the GPU's own architecture, cut off at the newest it believes NVRTC to know.
    exact = capability[0] * 10 + capability[1]
    cupy_arch = min(exact, max(known_archs))
    if cupy_arch not in usable:
        raise RuntimeError(
            f"{version} cannot compile for {gpu} (it knows up to sm_{max(known_archs)}); install a "
            'newer one, for example: pip install -U "nvfp4cupy[cuda13]"'
        )
    if capability in _ARCH_SPECIFIC.get(source, frozenset()):
        if nvrtc >= _NVRTC_TWO_ARCHS:
            return Target(f"sm_{exact}a", (f"-arch=sm_{exact}a",))
        return Target(
            f"sm_{cupy_arch}",
            note=f"{version} cannot target sm_{exact}a through CuPy, so {source} takes the "
            "portable path; NVRTC 12.9 or newer has the GPU's own instructions",
        )
    return Target(f"sm_{cupy_arch}")


@cache
def _capability(device: int) -> tuple[int, int]:
    text = cupy().cuda.Device(device).compute_capability
    return int(text[:-1]), int(text[-1])


@cache
def nvrtc() -> tuple[tuple[int, int], tuple[int, ...]]:
    """Return the version of CuPy's NVRTC and the architectures it knows, as 90 for ``sm_90``.

    Raises:
        RuntimeError: CuPy or NVRTC is missing.
    """
    cupy()
    from cupy_backends.cuda.libs import nvrtc as library

    try:
        return tuple(library.getVersion()), tuple(library.getSupportedArchs())
    except Exception as error:  # CuPy raises what its loader met: RuntimeError, OSError, ...
        raise RuntimeError(
            f'NVRTC is not usable ({error}); install it with: pip install "nvfp4cupy[cuda12]" '
            "(or [cuda13])"
        ) from error


def kernel_cache() -> str:
    """Return the folder where CuPy keeps compiled kernels, for which it has no public name."""
    default = os.path.join(os.path.expanduser("~"), ".cupy", "kernel_cache")
    return os.environ.get("CUPY_CACHE_DIR", default)


def current_target(source: str) -> Target:
    """Return what ``source`` is compiled for on the current device.

    Raises:
        RuntimeError: there is no GPU, or it is not supported.
    """
    if reason := missing_gpu():
        raise RuntimeError(reason)
    device = current_device()
    return choose_target(source, _capability(device), *nvrtc())


def _options(defines: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    return (*COMPILE_OPTIONS, *(f"-D{name}={value}" for name, value in defines))


_Key = tuple[str, tuple[tuple[str, str], ...], str, int, int]
_kernels: dict[_Key, Any] = {}
_modules: dict[tuple[str, tuple[tuple[str, str], ...], int], Any] = {}
_lock = threading.Lock()


def _compile(key: _Key) -> Any:
    """Compile (or take from CuPy's cache) one entry, on the current device."""
    source, defines, entry, shared_mem, device = key
    with _lock:
        if (kernel := _kernels.get(key)) is not None:
            return kernel
        target = current_target(source)
        module = _modules.get((source, defines, device))
        if module is None:
            module = cupy().RawModule(
                code=sources.expand(source),
                options=(*_options(defines), *target.options),
                backend="nvrtc",
            )
            try:
                module.compile()
            except cupy().cuda.compiler.CompileException as error:
                # CuPy's message holds the compiler's log, with our #line files and lines.
                raise RuntimeError(
                    f"{source} does not compile for {target.arch}:\n{error}"
                ) from error
            _modules[source, defines, device] = module
        # get_function builds a new kernel object at each call, so it is kept.
        kernel = module.get_function(entry)
        if shared_mem > STATIC_SHARED_MEM:
            kernel.max_dynamic_shared_size_bytes = shared_mem
        _kernels[key] = kernel
        return kernel


def launch(config: LaunchConfig, *values: Any, stream: Any = None) -> None:
    """Launch on the current device, without synchronising.

    Args:
        config: what ``plan`` returned.
        *values: one for each of ``config.open_args``, in order: CuPy arrays (or None for a
            nullable one) and numbers.
        stream: a CuPy stream; the current one by default.

    Raises:
        ValueError: an array is smaller than what the kernel touches, lies on another device, or
            is not aligned.
        RuntimeError: there is no usable GPU or compiler.
    """
    if config.is_empty:
        return
    device = current_device()
    args = config.bound_values(values, device)
    key = (config.source, config.defines, config.entry, config.shared_mem, device)
    kernel = _kernels.get(key) or _compile(key)
    if stream is None:
        kernel(config.grid, config.block, args, shared_mem=config.shared_mem)
    else:
        with stream:
            kernel(config.grid, config.block, args, shared_mem=config.shared_mem)


@dataclass(frozen=True)
class Resources:
    """What the assembler says of one entry: registers a thread, and bytes a thread spills."""

    registers: int
    spill_bytes: int
    stack_bytes: int
    static_shared_mem: int


@dataclass(frozen=True)
class Cubin:
    """A source compiled for one architecture: ELF image, PTX, and each entry's resources."""

    image: bytes
    ptx: str
    resources: dict[str, Resources]
    log: str


_ENTRY_LOG = re.compile(
    r"Compiling entry function '(?P<entry>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
    r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)
_STATIC_SMEM_LOG = re.compile(r"(\d+) bytes smem")


def cubin(source: str, arch: str, defines: tuple[tuple[str, str], ...] = ()) -> Cubin:
    """Compile ``source`` for ``arch`` with no GPU, with the options a launch would use.

    Args:
        source: file name in ``kernels/``.
        arch: an NVRTC architecture such as ``"sm_121a"``.
        defines: preprocessor definitions as sorted (name, value) pairs.

    Raises:
        RuntimeError: the package ``cuda-bindings`` or its NVRTC is missing, or the source does
            not compile; the compiler's log is in the message.
    """
    # CuPy's own binding of NVRTC drops the last byte of a cubin.
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise RuntimeError(
            'compiling without a GPU needs: pip install "nvfp4cupy[compile]"'
        ) from error
    options = [*_options(defines), "-ftz=true", f"-arch={arch}", "--ptxas-options=-v"]
    text = sources.expand(source).encode()

    def check(result: tuple[Any, ...]) -> Any:
        if int(result[0]) != 0:
            raise RuntimeError(f"{source}: NVRTC says {nvrtc.nvrtcGetErrorString(result[0])[1]!r}")
        return result[1] if len(result) > 1 else None

    program = check(nvrtc.nvrtcCreateProgram(text, source.encode(), 0, [], []))
    try:
        encoded = [option.encode() for option in options]
        status = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)[0]
        log_bytes = bytearray(check(nvrtc.nvrtcGetProgramLogSize(program)))
        check(nvrtc.nvrtcGetProgramLog(program, log_bytes))
        log = log_bytes.decode(errors="replace").rstrip("\0\n")
        if int(status) != 0:
            raise RuntimeError(f"{source} does not compile for {arch}:\n{log}")
        image = bytearray(check(nvrtc.nvrtcGetCUBINSize(program)))
        check(nvrtc.nvrtcGetCUBIN(program, image))
        ptx = bytearray(check(nvrtc.nvrtcGetPTXSize(program)))
        check(nvrtc.nvrtcGetPTX(program, ptx))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return Cubin(bytes(image), ptx.decode().rstrip("\0"), _resources(log), log)


def _resources(log: str) -> dict[str, Resources]:
    found = {}
    for match in _ENTRY_LOG.finditer(log):
        static = _STATIC_SMEM_LOG.search(match["rest"])
        found[match["entry"]] = Resources(
            registers=int(match["registers"]),
            spill_bytes=int(match["stores"]) + int(match["loads"]),
            stack_bytes=int(match["stack"]),
            static_shared_mem=int(static.group(1)) if static else 0,
        )
    return found
