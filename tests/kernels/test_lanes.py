"""Arithmetic on several samples at once."""

from __future__ import annotations

import numpy as np
from tests.outer import outer

from ffo.kernels import lanes
from ffo.kernels.jit import inner_kernel

Array = np.ndarray


@outer
@inner_kernel
def logarithms(v: Array, out: Array) -> None:
    for i in range(v.shape[0]):
        lanes.store(out, i, lanes.log(lanes.load(v, i)))


@outer
@inner_kernel
def is_any_below(v: Array, bound: float) -> bool:
    return bool(lanes.any_below(lanes.load(v, 0), bound))


def test_logarithms_are_right_to_the_last_digit() -> None:
    rng = np.random.default_rng(0)
    near = rng.uniform(0.5, 2.0, 4000), 1 + 1e-9 * rng.normal(size=4)
    v = np.concatenate([10.0 ** rng.uniform(-300, 300, 4000), *near])
    out = np.empty((len(v) // lanes.LANES, lanes.LANES))
    logarithms(v.reshape(out.shape), out)
    exact = np.log(v)
    assert (np.abs(out.ravel() - exact) <= np.spacing(np.abs(exact))).all()


def test_logarithms_of_what_has_none() -> None:
    v, out = np.array([[0.0, -1.0, np.inf, np.nan], [1.0, np.e, -np.inf, 1e-310]]), np.empty((2, 4))
    logarithms(v, out)
    np.testing.assert_array_equal(out[0], [-np.inf, np.nan, np.inf, np.nan])
    np.testing.assert_array_equal(out[1, :3], [0.0, 1.0, np.nan])
    assert -710.0 < out[1, 3] < -700.0


def test_any_below() -> None:
    v = np.array([[1.0, 2.0, np.nan, 4.0]])
    assert is_any_below(v, 1.5)
    assert not is_any_below(v, 1.0)
