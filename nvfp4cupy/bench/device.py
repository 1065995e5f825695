"""What was measured on: GPU, driver, CUDA, versions, date."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from nvfp4cupy import __version__, compiler
from nvfp4cupy.arrays import cupy, missing_gpu

__all__ = ["DeviceInfo", "current_device"]


@dataclass(frozen=True)
class DeviceInfo:
    """The device and the software around it.

    Attributes:
        gpu: the product's name.
        capability: compute capability, such as ``"9.0"``.
        num_sms: multiprocessors.
        l2_bytes: size of the L2.
        memory_bytes: size of the device memory.
        driver: the driver's version.
        cuda: the newest CUDA version that the driver serves.
        nvrtc: version of the compiler.
        cupy: version of CuPy.
        nvfp4cupy: version of this package.
        gemm_path: which matrix instructions the W4A4 GEMM uses here.
        date: when, ISO 8601, UTC.
    """

    gpu: str
    capability: str
    num_sms: int
    l2_bytes: int
    memory_bytes: int
    driver: str
    cuda: str
    nvrtc: str
    cupy: str
    nvfp4cupy: str
    gemm_path: str
    date: str

    @property
    def header(self) -> str:
        """One line that names everything a figure depends on."""
        memory = f"{self.memory_bytes / 2**30:.0f} GiB, {self.l2_bytes / 1e6:.0f} MB L2"
        return (
            f"{self.gpu} ({self.capability}, {self.num_sms} SMs, {memory}), driver {self.driver}, "
            f"CUDA {self.cuda}, NVRTC {self.nvrtc}, CuPy {self.cupy}, nvfp4cupy {self.nvfp4cupy}, "
            f"{self.date[:10]}; GEMM: {self.gemm_path}"
        )


def current_device() -> DeviceInfo:
    """Describe the current device.

    Raises:
        RuntimeError: there is no usable GPU or compiler; the message says what to do.
    """
    if reason := missing_gpu():
        raise RuntimeError(reason)
    runtime = cupy().cuda.runtime
    properties = runtime.getDeviceProperties(runtime.getDevice())
    (major, minor), _ = compiler.nvrtc()
    return DeviceInfo(
        gpu=properties["name"].decode(),
        capability=f"{properties['major']}.{properties['minor']}",
        num_sms=int(properties["multiProcessorCount"]),
        l2_bytes=int(properties["l2CacheSize"]),
        memory_bytes=int(properties["totalGlobalMem"]),
        driver=_driver(),
        cuda=_cuda_version(runtime.driverGetVersion()),
        nvrtc=f"{major}.{minor}",
        cupy=cupy().__version__,
        nvfp4cupy=__version__,
        gemm_path=gemm_path(),
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def gemm_path() -> str:
    """Return which matrix instructions the W4A4 GEMM uses on the current device, and why."""
    target = compiler.current_target("nvfp4_mmq128.cu")
    name = "FP4 instruction" if target.arch.endswith("a") else "portable mma"
    return f"{name} ({target.arch})" + (f": {target.note}" if target.note else "")


def _driver() -> str:
    """Return the driver's release, which CUDA itself does not tell."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
        words = text.splitlines()[0].split()
        return next(word for word in words if word.replace(".", "").isdigit() and "." in word)
    except (OSError, StopIteration, IndexError):
        pass
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (result.stdout.split() or ["unknown"])[0]


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
