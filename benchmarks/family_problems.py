"""Sixteen ordinary families of problems, the way users of CVXPY write them.

What a network would predict is batched and differentiated; what describes the problem (factor models,
dynamics, marginals, design matrices) is constant or unbatched. Every formulation is DPP, so that all layers for
CVXPY problems accept it. Outputs have between 6 and 100 entries. Families on curved cones have an exact
reference, since interior-point solutions are too coarse there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import cvxpy as cp
import numpy as np
from scipy.optimize import brentq

from benchmarks import exact
from benchmarks.problems import Array, Case

Formulated = tuple[cp.Problem, cp.Variable]
Data = Mapping[str, Any]
NONNEG: dict[str, bool] = {"nonneg": True}


def _random(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def portfolio(batch: int, assets: int = 50, factors: int = 8) -> Case:
    """maximize mu'w - |F'w|^2 - |Dw|^2, w on the simplex; the returns mu are predicted."""
    rng = _random(1)
    F, D = 0.4 * rng.standard_normal((assets, factors)), rng.uniform(0.3, 0.8, assets)

    def formulate(d: Data) -> Formulated:
        w = cp.Variable(assets)
        risk = cp.sum_squares(F.T @ w) + cp.sum_squares(cp.multiply(D, w))
        return cp.Problem(cp.Maximize(d["mu"] @ w - risk), [cp.sum(w) == 1, w >= 0]), w

    draw = lambda seed: {"mu": 0.2 * _random(seed).standard_normal((batch, assets))}  # noqa: E731
    return Case("portfolio", formulate, {}, draw, ("mu",))


def turnover(batch: int, assets: int = 30, factors: int = 5) -> Case:
    """The same with a cost on trades |w - held|_1 and a cap on each weight; `held` changes by sample."""
    rng = _random(2)
    F, D = 0.4 * rng.standard_normal((assets, factors)), rng.uniform(0.3, 0.8, assets)

    def formulate(d: Data) -> Formulated:
        w = cp.Variable(assets)
        risk = cp.sum_squares(F.T @ w) + cp.sum_squares(cp.multiply(D, w))
        utility = d["mu"] @ w - risk - 0.05 * cp.norm1(w - d["held"])
        return cp.Problem(cp.Maximize(utility), [cp.sum(w) == 1, w >= 0, w <= 0.2]), w

    def draw(seed: int) -> dict[str, Array]:
        rng = _random(seed)
        held = rng.dirichlet(np.full(assets, 2.0), batch)
        return {"mu": 0.2 * rng.standard_normal((batch, assets)), "held": held}

    return Case("turnover", formulate, {}, draw, ("mu", "held"))


def mpc(batch: int, horizon: int = 10, states: int = 4, inputs: int = 2) -> Case:
    """Model predictive control: inputs in [-1, 1] that steer the first state to a predicted target."""
    rng = _random(3)
    dynamics = np.eye(states) + 0.15 * rng.standard_normal((states, states))
    control = 0.3 * rng.standard_normal((states, inputs))

    def formulate(d: Data) -> Formulated:
        x, u = cp.Variable((states, horizon + 1)), cp.Variable((inputs, horizon))
        goal = cp.reshape(d["target"], (states, 1), order="F") @ np.ones((1, horizon))
        cost = cp.sum_squares(x[:, 1:] - goal) + 0.1 * cp.sum_squares(u)
        moves = x[:, 1:] == dynamics @ x[:, :-1] + control @ u
        return cp.Problem(cp.Minimize(cost), [x[:, 0] == d["start"], moves, cp.abs(u) <= 1]), u

    def draw(seed: int) -> dict[str, Array]:
        start, target = _random(seed).standard_normal((2, batch, states))
        return {"start": start, "target": 0.5 * target}

    return Case("MPC", formulate, {}, draw, ("start", "target"))


def lasso(batch: int, n: int = 30, rows: int = 50) -> Case:
    """minimize |Ax - b|^2 / 2 + lam |x|_1; b and lam are predicted."""
    A = _random(4).standard_normal((rows, n)) / np.sqrt(rows)

    def formulate(d: Data) -> Formulated:
        x = cp.Variable(n)
        return cp.Problem(cp.Minimize(0.5 * cp.sum_squares(A @ x - d["b"]) + d["lam"] * cp.norm1(x))), x

    def draw(seed: int) -> dict[str, Array]:
        rng = _random(seed)
        return {"b": rng.standard_normal((batch, rows)), "lam": rng.uniform(0.2, 0.5, batch)}

    return Case("lasso", formulate, {}, draw, ("b", "lam"), {"lam": NONNEG})


def svm(batch: int, n: int = 8, points: int = 40) -> Case:
    """Support vector machine on predicted features X of points with fixed labels."""
    labels = np.where(np.arange(points) % 2 == 0, 1.0, -1.0)

    def formulate(d: Data) -> Formulated:
        w, bias = cp.Variable(n), cp.Variable()
        hinge = cp.sum(cp.pos(1 - cp.multiply(labels, d["X"] @ w + bias)))
        return cp.Problem(cp.Minimize(0.5 * cp.sum_squares(w) + 0.5 * hinge)), w

    def draw(seed: int) -> dict[str, Array]:
        return {"X": _random(seed).standard_normal((batch, points, n)) + 0.3 * labels[:, None]}

    return Case("SVM", formulate, {}, draw, ("X",))


def logistic(batch: int, n: int = 6, points: int = 40) -> Case:
    """Logistic regression with |w|^2 on predicted features X of points with fixed labels."""
    labels = np.where(np.arange(points) % 2 == 0, 1.0, -1.0)

    def formulate(d: Data) -> Formulated:
        w = cp.Variable(n)
        loss = cp.sum(cp.logistic(cp.multiply(-labels, d["X"] @ w)))
        return cp.Problem(cp.Minimize(loss + cp.sum_squares(w))), w

    def draw(seed: int) -> dict[str, Array]:
        return {"X": _random(seed).standard_normal((batch, points, n)) + 0.3 * labels[:, None]}

    def solve(d: Data) -> Array:
        M = -labels[:, None] * d["X"]

        def derivatives(w: Array) -> tuple[Array, Array]:
            p = 1 / (1 + np.exp(-M @ w))
            return M.T @ p + 2 * w, (M.T * (p * (1 - p))) @ M + 2 * np.eye(n)

        return exact.newton(derivatives, np.zeros(n))

    return Case("logistic", formulate, {}, draw, ("X",), exact=solve)


def entropy(batch: int, n: int = 30, cap: float = 0.1) -> Case:
    """maximize entropy(x) + c'x, x on the simplex, x <= cap: a softmax with a cap."""

    def formulate(d: Data) -> Formulated:
        x = cp.Variable(n)
        return cp.Problem(cp.Maximize(cp.sum(cp.entr(x)) + d["c"] @ x), [cp.sum(x) == 1, x <= cap]), x

    def solve(d: Data) -> Array:
        point = lambda nu: np.minimum(np.exp(d["c"] - nu), cap)  # noqa: E731
        return point(brentq(lambda nu: point(nu).sum() - 1, -20, 20, xtol=1e-15, rtol=1e-15))

    draw = lambda seed: {"c": _random(seed).standard_normal((batch, n))}  # noqa: E731
    return Case("entropy", formulate, {}, draw, ("c",), exact=solve)


def correlation(batch: int, order: int = 8) -> Case:
    """SDP: the correlation matrix nearest to a predicted symmetric matrix C."""
    F = np.einsum("ij,ik->ijk", np.eye(order), np.eye(order))

    def formulate(d: Data) -> Formulated:
        X = cp.Variable((order, order), PSD=True)
        return cp.Problem(cp.Minimize(cp.sum_squares(X - d["C"])), [cp.diag(X) == 1]), X

    def draw(seed: int) -> dict[str, Array]:
        C = _random(seed).uniform(-1.2, 1.2, (batch, order, order))
        return {"C": (C + C.transpose(0, 2, 1)) / 2}

    solve = lambda d: exact.semidefinite(-0.1 * d["C"], np.ones(order), F)  # noqa: E731
    return Case("SDP", formulate, {}, draw, ("C",), exact=solve)


def robust(batch: int, n: int = 15, rows: int = 30) -> Case:
    """minimize |Ax - b| + |x| / 2, least squares against errors in A; A is an unbatched parameter."""
    A = _random(5).standard_normal((rows, n)) / np.sqrt(n)

    def formulate(d: Data) -> Formulated:
        x = cp.Variable(n)
        return cp.Problem(cp.Minimize(cp.norm(d["A"] @ x - d["b"], 2) + 0.5 * cp.norm(x, 2))), x

    def solve(d: Data) -> Array:
        A, b = d["A"], d["b"]

        def derivatives(x: Array) -> tuple[Array, Array]:
            r, s = np.linalg.norm(A @ x - b), np.linalg.norm(x)
            u, v = A.T @ (A @ x - b) / r, x / s
            curvature = (A.T @ A - np.outer(u, u)) / r + 0.5 * (np.eye(n) - np.outer(v, v)) / s
            return u + 0.5 * v, curvature

        return exact.newton(derivatives, np.linalg.solve(A.T @ A + np.eye(n), A.T @ b))

    draw = lambda seed: {"b": _random(seed).standard_normal((batch, rows))}  # noqa: E731
    return Case("robust least squares", formulate, {"A": A}, draw, ("b",), exact=solve)


def huber(batch: int, n: int = 15, rows: int = 50) -> Case:
    """minimize sum_i huber(a_i'x - b_i); one in five of the predicted b is far off."""
    A = _random(6).standard_normal((rows, n))

    def formulate(d: Data) -> Formulated:
        x = cp.Variable(n)
        return cp.Problem(cp.Minimize(cp.sum(cp.huber(A @ x - d["b"], 1.0)))), x

    def draw(seed: int) -> dict[str, Array]:
        rng = _random(seed)
        far = 5 * rng.standard_normal((batch, rows)) * (rng.uniform(size=(batch, rows)) < 0.2)
        return {"b": rng.standard_normal((batch, n)) @ A.T + 0.5 * rng.standard_normal((batch, rows)) + far}

    return Case("huber", formulate, {}, draw, ("b",))


def total_variation(batch: int, n: int = 60) -> Case:
    """minimize |x - y|^2 / 2 + lam |diff x|_1: a signal with steps from a noisy one; y and lam are predicted."""

    def formulate(d: Data) -> Formulated:
        x = cp.Variable(n)
        return cp.Problem(cp.Minimize(0.5 * cp.sum_squares(x - d["y"]) + d["lam"] * cp.norm1(cp.diff(x)))), x

    def draw(seed: int) -> dict[str, Array]:
        rng = _random(seed)
        steps = np.repeat(rng.standard_normal((batch, 6)), n // 6, axis=1)
        return {"y": steps + 0.3 * rng.standard_normal((batch, n)), "lam": rng.uniform(0.3, 0.6, batch)}

    return Case("total variation", formulate, {}, draw, ("y", "lam"), {"lam": NONNEG})


def isotonic(batch: int, n: int = 50) -> Case:
    """The nondecreasing sequence nearest to a predicted y."""

    def formulate(d: Data) -> Formulated:
        x = cp.Variable(n)
        return cp.Problem(cp.Minimize(cp.sum_squares(x - d["y"])), [cp.diff(x) >= 0]), x

    def draw(seed: int) -> dict[str, Array]:
        return {"y": np.linspace(-1, 1, n) + 0.5 * _random(seed).standard_normal((batch, n))}

    return Case("isotonic", formulate, {}, draw, ("y",))


def l1_ball(batch: int, n: int = 40) -> Case:
    """Projection onto |x|_1 <= 5."""

    def formulate(d: Data) -> Formulated:
        x = cp.Variable(n)
        return cp.Problem(cp.Minimize(cp.sum_squares(x - d["y"])), [cp.norm1(x) <= 5]), x

    draw = lambda seed: {"y": _random(seed).standard_normal((batch, n))}  # noqa: E731
    return Case("l1 ball", formulate, {}, draw, ("y",))


def transport(batch: int, n: int = 10) -> Case:
    """Transport with predicted costs C and a quadratic term; its 2n equalities have rank 2n - 1."""
    rng = _random(7)
    supply, demand = rng.uniform(0.5, 1.5, (2, n))
    supply, demand = n * supply / supply.sum(), n * demand / demand.sum()

    def formulate(d: Data) -> Formulated:
        X = cp.Variable((n, n))
        marginals = [cp.sum(X, axis=1) == supply, cp.sum(X, axis=0) == demand]
        cost = cp.sum(cp.multiply(d["C"], X)) + 0.5 * cp.sum_squares(X)
        return cp.Problem(cp.Minimize(cost), [X >= 0, *marginals]), X

    draw = lambda seed: {"C": _random(seed).standard_normal((batch, n, n))}  # noqa: E731
    return Case("quadratic transport", formulate, {}, draw, ("C",))


def max_min(batch: int, n: int = 10, goals: int = 20) -> Case:
    """maximize min_k (Ax + b)_k - |x|^2 / 2, x on the simplex; A and b are predicted."""

    def formulate(d: Data) -> Formulated:
        x = cp.Variable(n)
        worst = cp.min(d["A"] @ x + d["b"])
        return cp.Problem(cp.Maximize(worst - 0.5 * cp.sum_squares(x)), [cp.sum(x) == 1, x >= 0]), x

    def draw(seed: int) -> dict[str, Array]:
        rng = _random(seed)
        return {"A": rng.standard_normal((batch, goals, n)), "b": 0.3 * rng.standard_normal((batch, goals))}

    return Case("max-min", formulate, {}, draw, ("A", "b"))


def relu(batch: int, n: int = 100) -> Case:
    """A layer of a network as a projection onto y >= 0; the preactivations z are predicted."""

    def formulate(d: Data) -> Formulated:
        y = cp.Variable(n)
        return cp.Problem(cp.Minimize(cp.sum_squares(y - d["z"])), [y >= 0]), y

    draw = lambda seed: {"z": _random(seed).standard_normal((batch, n))}  # noqa: E731
    return Case("ReLU", formulate, {}, draw, ("z",), exact=lambda d: np.maximum(d["z"], 0))


FAMILIES: tuple[Callable[[int], Case], ...] = (
    portfolio,
    turnover,
    mpc,
    lasso,
    svm,
    logistic,
    entropy,
    correlation,
    robust,
    huber,
    total_variation,
    isotonic,
    l1_ball,
    transport,
    max_min,
    relu,
)
