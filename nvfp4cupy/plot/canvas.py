"""matplotlib when it is there, and the axes to draw on."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from nvfp4cupy import arrays

BAR = "#33638d"  # from viridis: goes with the maps, and stays dark in grey
SECOND_BAR = "#9ec3e0"


def matplotlib() -> Any:
    """Return the module ``matplotlib``.

    Raises:
        RuntimeError: it is missing.
    """
    try:
        import matplotlib as module
    except ImportError as error:
        raise RuntimeError(
            f"matplotlib is not usable here ({error}); install it with: "
            'pip install "nvfp4cupy[plot]"'
        ) from error
    return module


def new_figure(size: tuple[float, float]) -> Any:
    """Return a figure of ``size`` inches.

    It belongs to pyplot, so that notebooks show it. Where pyplot's backend wants a screen that is
    not there, it is a figure that can only be saved.

    Raises:
        RuntimeError: matplotlib is missing.
    """
    matplotlib()
    try:
        from matplotlib import pyplot

        return pyplot.figure(figsize=size, layout="constrained")
    except ImportError:  # what pyplot raises for a backend that cannot be loaded
        from matplotlib.figure import Figure

        return Figure(figsize=size, layout="constrained")


def axes(ax: Any, size: tuple[float, float]) -> Any:
    """Return ``ax``, or the axes of a figure of ``size`` inches.

    Raises:
        RuntimeError: matplotlib is missing.
    """
    return new_figure(size).add_subplot() if ax is None else ax


def to_numpy(array: Any) -> NDArray[Any]:
    """Return a NumPy or CuPy array on the CPU."""
    host: NDArray[Any] = array.get() if arrays.is_gpu(array) else array
    return host
