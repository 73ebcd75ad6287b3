"""Policies that solve a convex problem at every step: six of cvxpylayers' notebooks.

What is learnt is the approximate value function |Px|^2 + q'x of the next state. The notebooks repeat it over the
batch unless noted otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cvxpy as cp
import numpy as np
from scipy.linalg import solve_discrete_are, sqrtm
from scipy.optimize import brentq

from benchmarks.problems import Array, Case

Formulated = tuple[cp.Problem, cp.Variable]
Data = Mapping[str, Any]


def _stable(rng: np.random.Generator, states: int, inputs: int) -> tuple[Array, Array]:
    """Random dynamics (A, B) with spectral radius 1."""
    A = rng.standard_normal((states, states))
    return A / np.abs(np.linalg.eigvals(A)).max(), rng.standard_normal((states, inputs))


def _repeated(rng: np.random.Generator, value: Array, batch: int) -> Array:
    """Copies of a learnt value, each slightly off, as after some steps of training on different samples."""
    return value + 0.05 * rng.standard_normal((batch, *value.shape))


def lqr(batch: int = 6, states: int = 4, inputs: int = 2) -> Case:
    """minimize |u|^2 + |P next|^2 with next = Ax + Bu: the linear-quadratic regulator; the state x is a column."""
    A, B = _stable(np.random.default_rng(1), states, inputs)

    def formulate(d: Data) -> Formulated:
        u, after = cp.Variable((inputs, 1)), cp.Variable((states, 1))
        cost = cp.quad_form(u, np.eye(inputs)) + cp.sum_squares(d["P"] @ after)
        return cp.Problem(cp.Minimize(cost), [after == A @ d["x"] + B @ u]), u

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        return {"x": rng.standard_normal((batch, states, 1)), "P": _repeated(rng, np.eye(states), batch)}

    def solve(d: Data) -> Array:
        PB = d["P"] @ B
        return -np.linalg.solve(np.eye(inputs) + PB.T @ PB, PB.T @ d["P"] @ A @ d["x"])

    return Case("LQR", formulate, {}, draw, ("x", "P"), exact=solve)


def constrained_lqr(batch: int = 6, states: int = 8, inputs: int = 2, limit: float = 0.1) -> Case:
    """The same with a linear term q'next and every input in [-0.1, 0.1]; most inputs are at a bound."""
    A, B = _stable(np.random.default_rng(2), states, inputs)
    value = np.real(sqrtm(solve_discrete_are(A, B, np.eye(states), np.eye(inputs))))

    def formulate(d: Data) -> Formulated:
        u, after = cp.Variable((inputs, 1)), cp.Variable((states, 1))
        cost = cp.quad_form(u, np.eye(inputs)) + cp.sum_squares(d["P"] @ after) + d["q"] @ after
        return cp.Problem(cp.Minimize(cost), [after == A @ d["x"] + B @ u, cp.norm(u, "inf") <= limit]), u

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        return {
            "x": 0.1 * rng.standard_normal((batch, states, 1)),
            "P": _repeated(rng, value, batch),
            "q": 0.1 * rng.standard_normal((batch, states)),
        }

    return Case("constrained LQR", formulate, {}, draw, ("x", "P", "q"))


def constrained_mpc(batch: int = 1, states: int = 10, inputs: int = 4, horizon: int = 5, limit: float = 0.5) -> Case:
    """Five steps ahead with inputs in [-0.5, 0.5]; the weights of the states are learnt. One state per call."""
    A, B = _stable(np.random.default_rng(3), states, inputs)

    def formulate(d: Data) -> Formulated:
        x = [cp.Variable(states) for _ in range(horizon)]
        u = [cp.Variable(inputs) for _ in range(horizon)]
        cost = sum(cp.sum(cp.multiply(d["weight"], cp.square(s))) for s in x) + sum(map(cp.sum_squares, u))
        moves = [after == A @ before + B @ v for before, after, v in zip(x, x[1:], u, strict=False)]
        limits = [cp.norm(v, "inf") <= limit for v in u]
        return cp.Problem(cp.Minimize(cost), [x[0] == d["x"], *moves, *limits]), u[0]

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        weight = np.abs(rng.standard_normal((batch, states))) + 0.1
        return {"x": rng.standard_normal((batch, states)), "weight": weight}

    return Case("constrained MPC", formulate, {}, draw, ("x", "weight"), {"weight": {"nonneg": True}})


def approximate_dynamic_programming(batch: int = 1, states: int = 2, inputs: int = 3) -> Case:
    """minimize |Pu|^2 / 2 + x'Mu + q'u over the unit ball, with y = Mu as a variable. One state per call."""

    def formulate(d: Data) -> Formulated:
        u, y = cp.Variable((inputs, 1)), cp.Variable((states, 1))
        cost = 0.5 * cp.sum_squares(d["P"] @ u) + d["x"].T @ y + d["q"].T @ u
        return cp.Problem(cp.Minimize(cost), [cp.norm(u) <= 1, y == d["M"] @ u]), u

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        return {
            "x": 2.0 * rng.standard_normal((batch, states, 1)),
            "P": _repeated(rng, np.eye(inputs), batch),
            "M": 0.5 * rng.standard_normal((batch, states, inputs)),
            "q": 0.1 * rng.standard_normal((batch, inputs, 1)),
        }

    def solve(d: Data) -> Array:
        """(P'P + mu I) u = -(M'x + q) with the smallest mu >= 0 for which |u| <= 1."""
        H, g = d["P"].T @ d["P"], d["M"].T @ d["x"] + d["q"]
        point = lambda mu: np.linalg.solve(H + mu * np.eye(inputs), -g)  # noqa: E731
        excess = lambda mu: np.linalg.norm(point(mu)) - 1  # noqa: E731
        if excess(0.0) <= 0:
            return point(0.0)
        return point(brentq(excess, 0, np.linalg.norm(g), xtol=1e-15, rtol=1e-15))

    return Case("approximate dynamic programming", formulate, {}, draw, ("x", "P", "M", "q"), exact=solve)


def supply_chain(batch: int = 5) -> Case:
    """Buy, ship and sell over four nodes and eight links; stock, prices and demands are the state x, a column.

    Links: buy at nodes 0 and 1, ship 0-2, 0-3, 1-3 and 3-2, sell at nodes 2 and 3. The revenue of a unit is 1.3, its
    shipping costs 0.05, stock is at most 3 and a link carries at most 2.
    """
    nodes, links = 4, 8
    into, out = np.zeros((2, nodes, links))
    into[[0, 1, 2, 3, 3, 2], [0, 1, 2, 3, 4, 5]] = 1
    out[[0, 0, 1, 3, 2, 3], [2, 3, 4, 5, 6, 7]] = 1

    def formulate(d: Data) -> Formulated:
        u, after = cp.Variable((links, 1)), cp.Variable((nodes, 1))
        stock, price, demand = d["x"][:4], d["x"][4:6], d["x"][6:]
        stage = cp.vstack([price, np.full((4, 1), 0.05), np.full((2, 1), -1.3)]).T @ u
        future = cp.sum_squares(d["P"] @ after) + d["q"].T @ after
        flow = [after == stock + (into - out) @ u, after <= 3, u >= 0, u <= 2]
        return cp.Problem(cp.Minimize(stage + future), [*flow, out @ u <= stock, u[6:] <= demand]), u

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        stock = rng.uniform(0, 3, (batch, 4, 1))
        market = np.exp([[0], [0.1], [0], [0.4]] + 0.2 * rng.standard_normal((batch, 4, 1)))
        return {
            "x": np.concatenate([stock, market], axis=1),
            "P": _repeated(rng, 0.5 * np.eye(nodes), batch),
            "q": -1.5 + 0.1 * rng.standard_normal((batch, nodes, 1)),
        }

    return Case("supply chain", formulate, {}, draw, ("x", "P", "q"))


def vehicle(batch: int = 6, length: float = 2.8) -> Case:
    """Acceleration and steering of a car from predicted errors `drift`; P and q are shared by the batch."""

    def formulate(d: Data) -> Formulated:
        u, y = cp.Variable(2), cp.Variable(4)
        cost = 10 * cp.square(u[0]) + 10 * cp.square(u[1]) + cp.sum_squares(d["P"] @ y) + d["q"] @ y
        limits = [cp.abs(u[0]) <= 2, cp.abs(u[1] + length * d["curvature"]) <= 0.68]
        return cp.Problem(cp.Minimize(cost), [y == d["drift"] + d["B"] @ u, *limits]), u

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        speed, step = rng.uniform(3, 6, batch), 0.2
        B = np.zeros((batch, 4, 2))
        B[:, 1, 1], B[:, 2, 0], B[:, 3, 1] = step * speed / length, step, (step * speed) ** 2 / length
        drift, curvature = rng.standard_normal((batch, 4)), 0.2 * rng.standard_normal((batch, 1))
        return {"drift": drift, "B": B, "curvature": curvature}

    rng = np.random.default_rng(4)
    shared = {"P": np.eye(4) + 0.1 * rng.standard_normal((4, 4)), "q": 0.1 * rng.standard_normal(4)}
    return Case("vehicle", formulate, shared, draw, ("P", "q", "drift", "B", "curvature"))


NOTEBOOKS = (lqr, constrained_lqr, constrained_mpc, approximate_dynamic_programming, supply_chain, vehicle)
