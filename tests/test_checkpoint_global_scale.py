from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvfp4cupy.checkpoint.global_scale import (
    decode_scale_from_amax,
    is_usable,
    reciprocal,
    stored_reciprocal,
)

AMAX = st.floats(2.0**-100, 2.0**100, width=32)


def test_literals_of_both_directions() -> None:
    # amax 2688 gives 1, 672 gives 1/4; compressed-tensors stores 2688 / amax.
    assert decode_scale_from_amax(2688.0) == 1
    assert decode_scale_from_amax(672.0) == 0.25
    assert stored_reciprocal(np.array(0.25, np.float32)) == 4
    assert reciprocal(np.array(4, np.float32)) == 0.25


def test_zeros_and_tiny_tensors_have_a_usable_scale() -> None:
    assert decode_scale_from_amax(0.0) == 1
    assert decode_scale_from_amax(2.0**-126) == np.float32(2.0**-126)


@given(AMAX)
def test_scale_from_amax_is_at_most_one_step_above_and_survives_the_reciprocal(amax: float) -> None:
    nearest = np.float32(amax / 2688.0)
    scale = decode_scale_from_amax(amax)
    assert nearest <= scale <= np.nextafter(nearest, np.float32(np.inf))
    assert reciprocal(stored_reciprocal(np.asarray(scale))) == scale


@given(AMAX)
def test_any_scale_returns_within_one_step_of_itself(value: float) -> None:
    scale = np.float32(value)
    back = reciprocal(stored_reciprocal(np.asarray(scale)))
    assert np.nextafter(scale, np.float32(0)) <= back
    assert back <= np.nextafter(scale, np.float32(np.inf))


def test_of_two_neighbours_at_least_one_survives_the_reciprocal() -> None:
    # Every 64th pair of mantissas; the exponent does not matter.
    bits = np.arange(0, 1 << 23, 64, dtype=np.uint32) | np.uint32(0x3F800000)
    pair = np.stack([bits, bits + np.uint32(1)]).view(np.float32)
    assert (reciprocal(stored_reciprocal(pair)) == pair).any(axis=0).all()


def test_stacks_keep_their_shape() -> None:
    scales = np.array([0.5, 3.0, 7e-5], np.float32)
    assert stored_reciprocal(scales).shape == (3,)


@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf, -np.inf, np.nan, 1e-40])
def test_unusable_scales(bad: float) -> None:
    assert not is_usable(np.array([1.0, bad], np.float32))
