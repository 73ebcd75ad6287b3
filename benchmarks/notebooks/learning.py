"""Layers of networks, regression and denoising: eight of cvxpylayers' notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cvxpy as cp
import numpy as np
from scipy.optimize import brentq, isotonic_regression

from benchmarks import exact
from benchmarks.problems import Array, Case

Formulated = tuple[cp.Problem, cp.Variable]
Data = Mapping[str, Any]
NONNEG: dict[str, bool] = {"nonneg": True}


def relu_layer(batch: int = 300, n: int = 20) -> Case:
    """max(Wx + b, 0) as a projection; the weights W are copied into a variable V, so that Vx is DPP."""

    def formulate(d: Data) -> Formulated:
        z, V = cp.Variable(n), cp.Variable((n, n))
        return cp.Problem(cp.Minimize(cp.sum_squares(z - V @ d["x"] - d["b"])), [z >= 0, d["W"] == V]), z

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        W = np.broadcast_to(rng.standard_normal((n, n)) / np.sqrt(n), (batch, n, n))
        b = np.broadcast_to(0.1 * rng.standard_normal(n), (batch, n))
        return {"W": W, "b": b, "x": rng.standard_normal((batch, n))}

    solve = lambda d: np.maximum(d["W"] @ d["x"] + d["b"], 0)  # noqa: E731
    return Case("ReLU layers", formulate, {}, draw, ("W", "b", "x"), exact=solve)


def convex_regression(batch: int = 1) -> Case:
    """The number nearest to a target y that is at least c, the value of a convex function. One sample per call."""

    def formulate(d: Data) -> Formulated:
        z = cp.Variable()
        return cp.Problem(cp.Minimize(cp.square(z - d["y"])), [z >= d["c"]]), z

    def draw(seed: int) -> dict[str, Array]:
        c, y = np.random.default_rng(seed).standard_normal((2, batch))
        return {"c": c, "y": y}

    solve = lambda d: np.maximum(d["c"], d["y"])  # noqa: E731
    return Case("convex regression", formulate, {}, draw, ("c", "y"), exact=solve)


def data_poisoning(batch: int = 1, points: int = 30, n: int = 2) -> Case:
    """Logistic regression with an elastic net, as a function of its training points X. Output: slopes and intercept."""
    ones = np.arange(points) % 2

    def formulate(d: Data) -> Formulated:
        w = cp.Variable(n + 1)
        score = d["X"] @ w[:n] + w[n]
        likelihood = cp.sum(cp.multiply(ones, score) - cp.logistic(score)) / points
        return cp.Problem(cp.Maximize(likelihood - 0.1 * cp.norm1(w[:n]) - 0.1 * cp.sum_squares(w[:n]))), w

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        return {"X": 2 * (2 * ones[:, None] - 1) + 3 * rng.standard_normal((batch, points, n))}

    def solve(d: Data) -> Array:
        """Newton's method on the slopes that are not zero, with their signs."""
        problem, variable = formulate(d)
        problem.solve(solver="CLARABEL")
        free = np.append(np.abs(variable.value[:n]) > 1e-4, True)
        sign = np.append(np.sign(variable.value[:n]), 0)[free]
        M, ridge = np.column_stack([d["X"], np.ones(points)])[:, free], 0.2 * (sign != 0)

        def derivatives(w: Array) -> tuple[Array, Array]:
            p = 1 / (1 + np.exp(-M @ w))
            gradient = M.T @ (p - ones) / points + 0.1 * sign + ridge * w
            return gradient, (M.T * (p * (1 - p))) @ M / points + np.diag(ridge)

        found = np.zeros(n + 1)
        found[free] = exact.newton(derivatives, variable.value[free])
        return found

    return Case("data poisoning", formulate, {}, draw, ("X",), exact=solve)


def monotonic_regression(batch: int = 16, m: int = 10) -> Case:
    """The nondecreasing sequence nearest to a prediction, in the norm rather than its square."""

    def formulate(d: Data) -> Formulated:
        y = cp.Variable(m)
        return cp.Problem(cp.Minimize(cp.norm2(y - d["prediction"])), [cp.diff(y) >= 0]), y

    draw = lambda seed: {"prediction": 3 * np.random.default_rng([seed, 1]).standard_normal((batch, m))}  # noqa: E731
    solve = lambda d: isotonic_regression(d["prediction"]).x  # noqa: E731
    return Case("monotonic output regression", formulate, {}, draw, ("prediction",), exact=solve)


def stiffness(batch: int = 1, blocks: int = 5, length: float = 1.0, width: float = 0.05) -> Case:
    """Positions of blocks between two walls, joined by springs of learnt stiffness k; blocks have a width."""

    def formulate(d: Data) -> Formulated:
        x = cp.Variable(blocks + 2)
        energy = cp.sum(cp.multiply(d["k"], 0.5 * cp.square(cp.diff(x))))
        gaps = [x[i + 1] - x[i] >= width for i in range(blocks + 1)]
        return cp.Problem(cp.Minimize(energy), [x[0] == 0, x[-1] == length, *gaps]), x

    draw = lambda seed: {"k": np.exp(np.random.default_rng(seed).standard_normal((batch, blocks + 1)))}  # noqa: E731

    def solve(d: Data) -> Array:
        """Every gap is nu / k, or the width of a block if that is more."""
        gaps = lambda nu: np.maximum(nu / d["k"], width)  # noqa: E731
        nu = brentq(lambda nu: gaps(nu).sum() - length, 0, length * d["k"].sum(), xtol=1e-15, rtol=1e-15)
        return np.append(0.0, np.cumsum(gaps(nu)))

    return Case("stiffness constants", formulate, {}, draw, ("k",), {"k": NONNEG}, exact=solve)


def robust_regression(batch: int = 1, n: int = 10, rows: int = 30) -> Case:
    """minimize |Ax - b|^2 + eps |x|: least squares against errors in A; eps is learnt. One sample per call."""
    A = np.random.default_rng(42).standard_normal((rows, n))

    def formulate(d: Data) -> Formulated:
        x = cp.Variable(n)
        return cp.Problem(cp.Minimize(cp.sum_squares(A @ x - d["b"]) + d["eps"] * cp.norm(x, 2))), x

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((batch, n))
        b = x / np.linalg.norm(x, axis=1, keepdims=True) @ A.T + 0.3 * rng.standard_normal((batch, rows))
        return {"b": b, "eps": rng.uniform(0.5, 5, batch)}

    def solve(d: Data) -> Array:
        def derivatives(x: Array) -> tuple[Array, Array]:
            size = np.linalg.norm(x)
            v = x / size
            gradient = 2 * A.T @ (A @ x - d["b"]) + d["eps"] * v
            return gradient, 2 * A.T @ A + d["eps"] / size * (np.eye(n) - np.outer(v, v))

        return exact.newton(derivatives, np.linalg.lstsq(A, d["b"], rcond=None)[0])

    return Case("robust regression", formulate, {}, draw, ("b", "eps"), {"eps": NONNEG}, exact=solve)


def signal_denoising(batch: int = 32, n: int = 50) -> Case:
    """minimize |T(x - y)|^2 + lam |diff y|^2; the matrix T and lam are learnt and shared, x is the noisy signal."""

    def formulate(d: Data) -> Formulated:
        y, noise = cp.Variable(n), cp.Variable(n)
        cost = cp.sum_squares(d["T"] @ noise) + d["lam"] * cp.sum_squares(cp.diff(y))
        return cp.Problem(cp.Minimize(cost), [noise == d["x"] - y]), y

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        signal = np.cos(rng.uniform(1, 3, (batch, 1)) * np.linspace(0, 2 * np.pi, n))
        return {"x": signal + 0.3 * rng.standard_normal((batch, n))}

    def solve(d: Data) -> Array:
        D, TT = np.diff(np.eye(n), axis=0), d["T"].T @ d["T"]
        return np.linalg.solve(TT + d["lam"] * D.T @ D, TT @ d["x"])

    T = np.eye(n) + 0.1 * np.random.default_rng(7).standard_normal((n, n)) / np.sqrt(n)
    shared = {"T": T, "lam": np.array(0.5)}
    return Case("signal denoising", formulate, shared, draw, ("T", "lam", "x"), {"lam": {"pos": True}}, exact=solve)


def elastic_net(batch: int = 1, points: int = 30) -> Case:
    """The tutorial: a line through points (x, y) with an elastic net on its slope. Output: slope and intercept."""

    def formulate(d: Data) -> Formulated:
        w = cp.Variable(2)
        loss = cp.sum(cp.square(d["X"] @ w[:1] + w[1] - d["y"])) / points
        return cp.Problem(cp.Minimize(loss + d["lam"] * cp.norm1(w[:1]) + d["alpha"] * cp.sum_squares(w[:1]))), w

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((batch, points, 1))
        y = X[..., 0] + 0.5 * rng.standard_normal((batch, points))
        return {"X": X, "y": y, "lam": rng.uniform(0.1, 0.3, batch), "alpha": rng.uniform(0.1, 2, batch)}

    def solve(d: Data) -> Array:
        x, y = d["X"][:, 0], d["y"]
        slope = np.mean((x - x.mean()) * (y - y.mean()))
        slope = np.sign(slope) * max(abs(slope) - d["lam"] / 2, 0) / (np.var(x) + d["alpha"])
        return np.array([slope, y.mean() - slope * x.mean()])

    attributes = {"lam": NONNEG, "alpha": NONNEG}
    return Case("tutorial, elastic net", formulate, {}, draw, ("X", "y", "lam", "alpha"), attributes, exact=solve)


NOTEBOOKS = (
    relu_layer,
    convex_regression,
    data_poisoning,
    monotonic_regression,
    stiffness,
    robust_regression,
    signal_denoising,
    elastic_net,
)
