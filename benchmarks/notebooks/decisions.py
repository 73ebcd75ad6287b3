"""Portfolios, allocation, transport and design: seven of cvxpylayers' notebooks. Returns and costs are in percent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cvxpy as cp
import numpy as np
from scipy.optimize import brentq, linprog

from benchmarks import exact
from benchmarks.problems import Array, Case

Formulated = tuple[cp.Problem, cp.Variable]
Data = Mapping[str, Any]
NONNEG: dict[str, bool] = {"nonneg": True}
POSITIVE: dict[str, bool] = {"pos": True}


def _root_of_covariance(rng: np.random.Generator, assets: int, deviation: float) -> Array:
    """A symmetric square root of a covariance of correlated assets."""
    factors = rng.standard_normal((assets, 3 * assets)) + 2 * rng.standard_normal(3 * assets)
    values, vectors = np.linalg.eigh(factors @ factors.T / np.sum(factors**2) * assets)
    return deviation * (vectors * np.sqrt(values)) @ vectors.T


def portfolio_with_vix(batch: int = 8, assets: int = 7) -> Case:
    """Daily trading with costs of shorting, of trades and of risk, each learnt for a state of the market.

    Trades cost more than a day's expected return, so the policy only trades where the drifted weights `held` exceed a
    limit: nearly all its constraints are active.
    """

    def formulate(d: Data) -> Formulated:
        w, trades, risk = cp.Variable(assets), cp.Variable(assets), cp.Variable(assets)
        costs = d["short"] * cp.sum(cp.neg(w)) + d["trade"] * cp.sum(cp.abs(trades))
        limits = [cp.sum(w) == 1, cp.norm(w, 1) <= 1.5, cp.norm(w, "inf") <= 0.5]
        links = [risk == d["S"] @ w, trades == w - d["held"]]
        utility = d["alpha"] @ w - d["gamma"] * cp.sum_squares(risk) - costs
        return cp.Problem(cp.Maximize(utility), [*limits, *links]), w

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        held = np.array([rng.permutation([0.5, 0.5, 0.3, 0.1, -0.05, -0.15, -0.2][:assets]) for _ in range(batch)])
        held = held * (1 + 0.02 * rng.standard_normal(held.shape))
        return {
            "held": held / held.sum(axis=1, keepdims=True),
            "alpha": 0.03 + 0.02 * rng.standard_normal((batch, assets)),
            "S": np.stack([_root_of_covariance(rng, assets, 1.0) for _ in range(batch)]),
            "short": np.full(batch, 0.02),
            "trade": np.full(batch, 0.1),
            "gamma": np.full(batch, 0.05),
        }

    attributes = dict.fromkeys(("short", "trade", "gamma"), NONNEG)
    return Case(
        "portfolio with VIX", formulate, {}, draw, ("held", "alpha", "S", "short", "trade", "gamma"), attributes
    )


def batched_portfolio(batch: int = 8, assets: int = 5) -> Case:
    """maximize mu'w, w on the simplex, with a budget of risk |L'w| <= sigma."""
    F = 10 * np.random.default_rng(42).standard_normal((assets, assets))
    covariance = F.T @ F + 500 * np.eye(assets)
    L, least_risk = np.linalg.cholesky(covariance), np.linalg.inv(covariance).sum() ** -0.5

    def formulate(d: Data) -> Formulated:
        w = cp.Variable(assets)
        limits = [cp.norm(L.T @ w, 2) <= d["sigma"], cp.sum(w) == 1, w >= 0]
        return cp.Problem(cp.Maximize(d["mu"] @ w), limits), w

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        mu = 6 + 3 * rng.standard_normal((batch, assets))
        return {"mu": mu, "sigma": least_risk * rng.uniform(1.05, 1.4, batch)}

    def solve(d: Data) -> Array:
        """On the assets held, mu = nu + t Cov w: w = w0 + s w1 with w0 of least risk, and s from the budget."""
        problem, variable = formulate(d)
        problem.solve(solver="CLARABEL")
        held = variable.value > 1e-4
        C, mu, w = covariance[np.ix_(held, held)], d["mu"][held], np.zeros(assets)
        ones = np.linalg.solve(C, np.ones(len(mu)))
        least, along = ones / ones.sum(), np.linalg.solve(C, mu)
        along = along - ones * along.sum() / ones.sum()
        w[held] = least + along * np.sqrt((d["sigma"] ** 2 - least @ C @ least) / (along @ C @ along))
        return w

    return Case("batched portfolio", formulate, {}, draw, ("mu", "sigma"), {"sigma": POSITIVE}, exact=solve)


def markowitz_tuning(batch: int = 10, assets: int = 12) -> Case:
    """Self-financing trades u with costs of trades and of shorting; mu and the root S of the covariance are learnt,
    and shared by the batch."""

    def formulate(d: Data) -> Formulated:
        u, after = cp.Variable(assets), cp.Variable(assets)
        paid = 0.001 * cp.norm1(u) + 0.001 * cp.sum(cp.neg(after))
        utility = d["mu"] @ after - cp.sum_squares(d["S"] @ after)
        return cp.Problem(cp.Maximize(utility), [cp.sum(u) + paid <= 0, after == d["held"] + u]), u

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        held = 1 / assets + 0.1 * rng.standard_normal((batch, assets))
        return {"held": held / held.sum(axis=1, keepdims=True)}

    rng = np.random.default_rng(5)
    shared = {"mu": rng.uniform(0.2, 0.8, assets), "S": _root_of_covariance(rng, assets, 1.5)}
    return Case("Markowitz tuning", formulate, shared, draw, ("mu", "S", "held"))


def predict_then_optimize(batch: int = 1, n: int = 5, rows: int = 3) -> Case:
    """minimize c'x, Ax <= 3, x >= 0: a linear program, whose gradient is zero. One sample per call.

    Some costs are negative here: with positive costs alone, as in the notebook, the solution is always 0.
    """
    A = np.random.default_rng(42).uniform(0.5, 1.5, (rows, n))

    def formulate(d: Data) -> Formulated:
        x = cp.Variable(n)
        return cp.Problem(cp.Minimize(d["c"] @ x), [A @ x <= 3, x >= 0]), x

    draw = lambda seed: {"c": np.random.default_rng(seed).standard_normal((batch, n))}  # noqa: E731
    solve = lambda d: linprog(d["c"], A, np.full(rows, 3.0)).x  # noqa: E731
    return Case("predict then optimize", formulate, {}, draw, ("c",), exact=solve)


def resource_allocation(batch: int = 4, m: int = 10) -> Case:
    """Spend B on goods of prices p with utility (1 - exp(-alpha y / p)) / alpha; alpha is learnt, and shared."""

    def formulate(d: Data) -> Formulated:
        y, units, t = cp.Variable(m), cp.Variable(m), cp.Variable(m)
        utility = -cp.exp(-cp.multiply(d["alpha"], units)) >= cp.multiply(d["alpha"], t)
        bought = units == cp.multiply(y, d["inverse"])
        return cp.Problem(cp.Maximize(cp.sum(t)), [cp.sum(y) == d["B"], y >= 0, utility, bought]), y

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        return {"B": rng.uniform(1, 10, batch), "inverse": 1 / rng.uniform(0.2, 1, (batch, m))}

    def solve(d: Data) -> Array:
        """exp(-alpha y / p) / p = nu where y > 0."""
        scale = d["alpha"] * d["inverse"]
        point = lambda log: np.maximum((np.log(d["inverse"]) - log) / scale, 0)  # noqa: E731
        return point(brentq(lambda log: point(log).sum() - d["B"], -100, 10, xtol=1e-15, rtol=1e-15))

    attributes = dict.fromkeys(("alpha", "B", "inverse"), NONNEG)
    shared = {"alpha": np.random.default_rng(6).uniform(0.2, 1, m)}
    names = ("alpha", "B", "inverse")
    return Case("resource allocation", formulate, shared, draw, names, attributes, exact=solve)


def optimal_transport(batch: int = 1, n: int = 3) -> Case:
    """Transport with an entropy term eps and costs C; both marginals are uniform. One sample per call."""

    def formulate(d: Data) -> Formulated:
        X = cp.Variable((n, n))
        cost = cp.trace(X.T @ d["C"]) - d["eps"] * (cp.sum(cp.entr(X)) + cp.sum(X))
        marginals = [X @ np.ones(n) == d["a"], X.T @ np.ones(n) == d["b"], X >= 0]
        return cp.Problem(cp.Minimize(cost), marginals), X

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        C = np.square(rng.standard_normal((batch, n, 1)) - rng.standard_normal((batch, 1, n)))
        return {"C": C, "eps": rng.uniform(0.5, 1.5, batch)}

    def solve(d: Data) -> Array:
        """X = exp((f + g - C) / eps), with potentials f and g that minimise the dual; g[-1] = 0."""

        def plan(v: Array) -> Array:
            f, g = v[:n], np.append(v[n:], 0.0)
            return np.exp((f[:, None] + g - d["C"]) / d["eps"])

        def derivatives(v: Array) -> tuple[Array, Array]:
            X = plan(v)
            gradient = np.concatenate([X.sum(axis=1) - d["a"], (X.sum(axis=0) - d["b"])[:-1]])
            hessian = np.block([[np.diag(X.sum(axis=1)), X[:, :-1]], [X.T[:-1], np.diag(X.sum(axis=0)[:-1])]])
            return gradient, hessian / d["eps"]

        return plan(exact.newton(derivatives, np.zeros(2 * n - 1)))

    shared = {"a": np.full(n, 1 / n), "b": np.full(n, 1 / n)}
    return Case("optimal transport", formulate, shared, draw, ("C", "eps"), {"eps": NONNEG}, exact=solve)


def circuit_sizing(batch: int = 1) -> Case:
    """A geometric program: widths of three transistors of least delay within an area and a power budget."""
    delay, power = np.array([1.0, 1.5, 0.8]), np.array([0.5, 0.8, 0.6])

    def formulate(d: Data) -> Formulated:
        w = cp.Variable(3, pos=True)
        total = sum(delay[i] * cp.inv_pos(w[i]) for i in range(3))
        return cp.Problem(cp.Minimize(total), [cp.sum(w) <= d["area"], power @ w <= d["power"], w >= 0.1]), w

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        return {"area": rng.uniform(4, 6, batch), "power": rng.uniform(2, 4, batch)}

    def solve(d: Data) -> Array:
        """w = sqrt(delay / (mu + nu power)) with one or both budgets spent."""
        point = lambda mu, nu: np.sqrt(delay / (mu + nu * power))  # noqa: E731
        area_alone = point(1, 0) * d["area"] / point(1, 0).sum()
        if power @ area_alone <= d["power"]:
            return area_alone
        power_alone = point(0, 1) * d["power"] / (power @ point(0, 1))
        if power_alone.sum() <= d["area"]:
            return power_alone

        def both(t: float) -> Array:  # area spent, power as a function of the mixture
            w = point(1 - t, t)
            return w * d["area"] / w.sum()

        return both(brentq(lambda t: power @ both(t) - d["power"], 0, 1, xtol=1e-15, rtol=1e-15))

    attributes = {"area": POSITIVE, "power": POSITIVE}
    return Case("circuit sizing", formulate, {}, draw, ("area", "power"), attributes, exact=solve, gp=True)


NOTEBOOKS = (
    portfolio_with_vix,
    batched_portfolio,
    markowitz_tuning,
    predict_then_optimize,
    resource_allocation,
    optimal_transport,
    circuit_sizing,
)
