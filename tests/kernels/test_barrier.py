"""Exponential blocks of the interior-point method: barriers against differences, the scaling by its definition."""

from __future__ import annotations

import numpy as np
import pytest
from tests.outer import outer

from ffo.kernels import barrier, lanes
from ffo.kernels.jit import inner_kernel

Array = np.ndarray


@outer
@inner_kernel
def dual_barrier(y: Array, near: Array, hessian_times: Array, v: Array, a: Array, b: Array, third: Array) -> None:
    """s', the solution of f'' x = v, and f'''[a, b], all (3, LANES)."""
    point = barrier._at(y, 0)
    r, g, s, M = barrier._dual_barrier(point)
    x = barrier._newton_step(point, r, g, M, barrier._at(v, 0))
    t = barrier._second_order(point, r, g, barrier._at(a, 0), barrier._at(b, 0))
    for i in range(3):
        lanes.store(near, i, s[i])
        lanes.store(hessian_times, i, x[i])
        lanes.store(third, i, t[i])


@outer
@inner_kernel
def shadow(s: Array, out: Array) -> None:
    v = barrier._shadow(barrier._at(s, 0))
    for i in range(3):
        lanes.store(out, i, v[i])


@outer
@inner_kernel
def scaling(s: Array, y: Array, out: Array) -> None:
    """The columns V, one after the other."""
    u, v, w = barrier._scaling(barrier._at(s, 0), barrier._at(y, 0))
    for i in range(3):
        lanes.store(out, i, u[i])
        lanes.store(out, 3 + i, v[i])
        lanes.store(out, 6 + i, w[i])


@outer
@inner_kernel
def reach(v: Array, d: Array, most: float, out: Array) -> None:
    lanes.store(out, 0, barrier._reach(barrier._at(v, 0), barrier._at(d, 0), lanes.spread(most)))


def dual_points(rng: np.random.Generator, depth: float) -> Array:
    """(3, LANES) points of the dual cone, about so deep inside."""
    y1, y3 = -rng.uniform(0.1, 3, lanes.LANES), rng.uniform(0.1, 3, lanes.LANES)
    y2 = y1 + y1 * np.log(-y3 / y1) + depth * rng.uniform(0.5, 2, lanes.LANES)
    return np.stack([y1, y2, y3])


def points(rng: np.random.Generator, depth: float) -> Array:
    """(3, LANES) points of the cone."""
    s2, s3 = rng.uniform(0.1, 3, lanes.LANES), rng.uniform(0.1, 3, lanes.LANES)
    return np.stack([s2 * np.log(s3 / s2) - depth * rng.uniform(0.5, 2, lanes.LANES), s2, s3])


def gradient(y: Array) -> Array:
    """-f'(y), by hand."""
    logarithm = np.log(-y[2] / y[0])
    r = y[1] - y[0] - y[0] * logarithm
    return -np.stack([logarithm / r - 1 / y[0], -1 / r, (y[0] / r - 1) / y[2]])


def at(y: Array, v: Array, a: Array, b: Array) -> tuple[Array, Array, Array]:
    near, x, third = (np.empty_like(y) for _ in range(3))
    dual_barrier(y, near, x, v, a, b, third)
    return near, x, third


@pytest.mark.parametrize("depth", [1.0, 0.1])
def test_derivatives_of_the_dual_barrier(depth: float) -> None:
    rng = np.random.default_rng(0)
    y, (v, a, b) = dual_points(rng, depth), rng.normal(size=(3, 3, lanes.LANES))
    near, x, third = at(y, v, a, b)
    np.testing.assert_allclose(near, gradient(y), rtol=1e-10)
    step = 1e-6 * depth
    f2x = -(gradient(y + step * x / np.abs(x).max(0)) - gradient(y - step * x / np.abs(x).max(0))) / (2 * step)
    np.testing.assert_allclose(f2x * np.abs(x).max(0), v, atol=1e-5 * np.abs(v).max())
    step = 1e-4 * depth
    four = sum(i * j * -gradient(y + step * (i * a + j * b)) for i in (1, -1) for j in (1, -1)) / (4 * step**2)
    np.testing.assert_allclose(four, third, atol=1e-4 * np.abs(third).max())


@pytest.mark.parametrize("depth", [1.0, 1e-4, 1e-8])
def test_the_shadow_is_where_the_gradient_leads_back(depth: float) -> None:
    y = dual_points(np.random.default_rng(1), depth)
    found = np.empty_like(y)
    shadow(gradient(y), found)
    np.testing.assert_allclose(found, y, rtol=1e-7)


@pytest.mark.parametrize("depth", [1.0, 1e-3, 1e-6])
def test_the_scaling_takes_y_to_s_and_shadow_to_shadow(depth: float) -> None:
    rng = np.random.default_rng(2)
    s, y, V, far = points(rng, depth), dual_points(rng, depth), np.empty((9, lanes.LANES)), np.empty((3, lanes.LANES))
    scaling(s, y, V)
    shadow(s, far)
    near = gradient(y)
    for lane in range(lanes.LANES):
        columns = V[:, lane].reshape(3, 3)
        np.testing.assert_allclose(columns.T @ (columns @ y[:, lane]), s[:, lane], rtol=1e-6)
        back = columns.T @ (columns @ far[:, lane])
        np.testing.assert_allclose(back, near[:, lane], atol=1e-6 * np.abs(near[:, lane]).max())
        assert np.linalg.matrix_rank(columns) == 3


def test_on_the_central_path_it_is_the_hessian() -> None:
    rng = np.random.default_rng(3)
    y, V = dual_points(rng, 1.0), np.empty((9, lanes.LANES))
    scaling(0.3 * gradient(y), y, V)
    for v in np.eye(3):
        lanes_of = np.repeat(v[:, None], lanes.LANES, axis=1)
        _, x, _ = at(y, lanes_of, lanes_of, lanes_of)
        for lane in range(lanes.LANES):
            columns = V[:, lane].reshape(3, 3)
            np.testing.assert_allclose(columns.T @ (columns @ x[:, lane]), 0.3 * v, atol=1e-9)


@pytest.mark.parametrize("most", [1.0, 0.2])
@pytest.mark.parametrize("seed", range(5))
def test_a_step_reaches_the_boundary(seed: int, most: float) -> None:
    rng = np.random.default_rng(seed)
    v, d, found = points(rng, 0.5), 3.0 * rng.normal(size=(3, lanes.LANES)), np.empty((1, lanes.LANES))
    reach(v, d, most, found)
    for lane in range(lanes.LANES):
        alphas = np.linspace(0, 1, 20001)
        s = v[:, lane, None] + alphas * d[:, lane, None]
        with np.errstate(all="ignore"):
            inside = (s[1] > 0) & (s[2] > 0) & (s[1] * np.log(s[2] / s[1]) - s[0] > 0)
        largest = 1.0 if inside.all() else alphas[np.argmin(inside)]
        assert found[0, lane] == pytest.approx(min(most, largest), rel=5e-3, abs=2e-4)


def test_the_middle_is_its_own_gradient() -> None:
    e = np.repeat(np.array(barrier.MIDDLE)[:, None], lanes.LANES, axis=1)
    np.testing.assert_allclose(gradient(e), e, atol=1e-7)
