"""Forty-five ordinary families of problems, as users of CVXPY write them: small, parametrised, easy to draw from.

Their gradients are correct almost everywhere: a flagged sample is a false alarm, unless it happens to lie on a kink.
`fuzz/families.py` counts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np

Array = np.ndarray
Random = np.random.Generator


@dataclass(frozen=True)
class Family:
    """A parametrised problem, the variables that a loss sees, and a way to draw values of its parameters."""

    problem: cp.Problem
    parameters: Sequence[cp.Parameter]
    variables: Sequence[cp.Variable]
    draw: Callable[[Random], list[Array]]
    gp: bool = False


FAMILIES: dict[str, Callable[[Random], Family]] = {}


def register(make: Callable[[Random], Family]) -> Callable[[Random], Family]:
    FAMILIES[make.__name__] = make
    return make


def build(name: str) -> Family:
    """The family of this name; its constants are the same each time."""
    return FAMILIES[name](np.random.default_rng([*map(ord, name)]))


def minimize(cost: cp.Expression, rows: list, p: cp.Parameter, x: cp.Variable, scale: float = 1.0) -> Family:
    """A family of one parameter, normally distributed."""
    return Family(cp.Problem(cp.Minimize(cost), rows), [p], [x], lambda rng: [scale * rng.normal(size=p.shape)])


# Piecewise linear costs: epigraph variables at vertices


@register
def quantile_loss(rng: Random) -> Family:
    A, b, x = rng.normal(size=(8, 3)), cp.Parameter(8), cp.Variable(3)
    e = A @ x - b
    return minimize(cp.sum(0.3 * cp.pos(e) + 0.7 * cp.neg(e)) + 0.5 * cp.sum_squares(x), [], b, x)


@register
def pos_neg_loss(rng: Random) -> Family:
    q, x = cp.Parameter(5), cp.Variable(5)
    e = x - q
    return minimize(cp.sum_squares(x) + 0.3 * cp.sum(cp.pos(e)) + 0.7 * cp.sum(cp.neg(e)), [], q, x)


@register
def maximum_of_maxima(rng: Random) -> Family:
    q, x = cp.Parameter(6), cp.Variable(6)
    worst = cp.maximum(cp.max(x[:3] - q[:3]), cp.max(q[3:] - x[3:]))
    return minimize(worst + 0.5 * cp.sum_squares(x), [], q, x)


@register
def newsvendor(rng: Random) -> Family:
    demand, x = cp.Parameter((4, 3)), cp.Variable(3)
    short, left = cp.pos(demand - np.ones((4, 1)) @ cp.reshape(x, (1, 3), order="C")), x
    cost = cp.sum(short) * 0.5 + 0.3 * cp.sum(left) + 0.1 * cp.sum_squares(x)
    return Family(
        cp.Problem(cp.Minimize(cost), [x >= 0]), [demand], [x], lambda rng: [rng.uniform(0.5, 3.0, size=(4, 3))]
    )


@register
def norm_infinity(rng: Random) -> Family:
    A, b, x = rng.normal(size=(6, 3)), cp.Parameter(6), cp.Variable(3)
    return minimize(cp.norm_inf(A @ x - b) + 0.1 * cp.sum_squares(x), [], b, x)


@register
def sum_of_largest(rng: Random) -> Family:
    q, x = cp.Parameter(6), cp.Variable(6)
    return minimize(cp.sum_squares(x - q) + cp.sum_largest(x, 2), [], q, x)


@register
def fused_lasso(rng: Random) -> Family:
    q, x = cp.Parameter(8), cp.Variable(8)
    return minimize(0.5 * cp.sum_squares(x - q) + 0.2 * cp.norm1(x) + 0.4 * cp.norm1(cp.diff(x)), [], q, x)


@register
def total_variation(rng: Random) -> Family:
    q, x = cp.Parameter(8), cp.Variable(8)
    return minimize(0.5 * cp.sum_squares(x - q) + 0.5 * cp.norm1(cp.diff(x)), [], q, x)


@register
def lasso(rng: Random) -> Family:
    A, b, x = rng.normal(size=(8, 5)), cp.Parameter(8), cp.Variable(5)
    return minimize(0.5 * cp.sum_squares(A @ x - b) + cp.norm1(x), [], b, x)


@register
def min_max(rng: Random) -> Family:
    A, b, x = rng.normal(size=(6, 3)), cp.Parameter(6), cp.Variable(3)
    return minimize(cp.max(A @ x + b) + 0.5 * cp.sum_squares(x), [], b, x)


@register
def value_at_risk(rng: Random) -> Family:
    """CVaR of losses over scenarios, a little regularised."""
    R, mu, w, t = 0.2 * rng.normal(size=(12, 4)), cp.Parameter(4), cp.Variable(4), cp.Variable()
    risk = t + cp.sum(cp.pos(-R @ w - t)) / (0.3 * 12)
    return minimize(risk - mu @ w + 0.1 * cp.sum_squares(w), [cp.sum(w) == 1, w >= 0], mu, w, scale=0.1)


@register
def huber(rng: Random) -> Family:
    A, b, x = rng.normal(size=(8, 3)), cp.Parameter(8), cp.Variable(3)
    return minimize(cp.sum(cp.huber(A @ x - b, 0.5)) + 0.1 * cp.sum_squares(x), [], b, x)


@register
def hinge_norms(rng: Random) -> Family:
    q, x = cp.Parameter((3, 2)), cp.Variable((3, 2))
    hinge = cp.sum(cp.pos(cp.norm(x, axis=1) - 0.5))
    return Family(cp.Problem(cp.Minimize(cp.sum_squares(x - q) + hinge)), [q], [x], lambda r: [r.normal(size=(3, 2))])


# Projections


@register
def absolute_box(rng: Random) -> Family:
    q, x = cp.Parameter(5), cp.Variable(5)
    return minimize(cp.sum_squares(x - q), [cp.abs(x) <= 1], q, x, scale=1.5)


@register
def pair_of_sides(rng: Random) -> Family:
    q, x = cp.Parameter(4), cp.Variable(4)
    a = rng.normal(size=4)
    return minimize(cp.sum_squares(x - q), [a @ x <= 1, a @ x >= 1], q, x)


@register
def norm1_ball(rng: Random) -> Family:
    q, x = cp.Parameter(6), cp.Variable(6)
    return minimize(cp.sum_squares(x - q), [cp.norm1(x) <= 1], q, x)


@register
def birkhoff(rng: Random) -> Family:
    q, X = cp.Parameter((3, 3)), cp.Variable((3, 3))
    rows = [cp.sum(X, axis=0) == 1, cp.sum(X, axis=1) == 1, X >= 0]
    return minimize(cp.sum_squares(X - q), rows, q, X)


@register
def top_k(rng: Random) -> Family:
    q, x = cp.Parameter(6), cp.Variable(6)
    return minimize(cp.sum_squares(x - q), [cp.sum(x) == 2, x >= 0, x <= 1], q, x)


@register
def isotonic(rng: Random) -> Family:
    q, x = cp.Parameter(7), cp.Variable(7)
    return minimize(cp.sum_squares(x - q), [cp.diff(x) >= 0], q, x)


@register
def isotonic_in_a_box(rng: Random) -> Family:
    q, x = cp.Parameter(7), cp.Variable(7)
    return minimize(cp.sum_squares(x - q), [cp.diff(x) >= 0, x >= -0.5, x <= 0.5], q, x)


@register
def sudoku_equalities(rng: Random) -> Family:
    """Rows, columns and blocks of a 4x4 puzzle sum to one: dependent equalities."""
    q, X = cp.Parameter((4, 4)), cp.Variable((4, 4))
    blocks = [cp.sum(X[i : i + 2, j : j + 2]) == 1 for i in (0, 2) for j in (0, 2)]
    rows = [cp.sum(X, axis=0) == 1, cp.sum(X, axis=1) == 1, X >= 0, *blocks]
    return minimize(0.1 * cp.sum_squares(X) + cp.sum(cp.multiply(q, X)), rows, q, X, scale=0.1)


# Linear and quadratic programs


@register
def linear_program(rng: Random) -> Family:
    A = rng.normal(size=(6, 4))
    b, x = cp.Parameter(6), cp.Variable(4)
    cost = -A.T @ rng.uniform(0.5, 1.5, size=6)
    return Family(cp.Problem(cp.Minimize(cost @ x), [A @ x <= b]), [b], [x], lambda r: [r.uniform(0.5, 2.0, size=6)])


@register
def shortest_path(rng: Random) -> Family:
    """A regularised flow on a grid; one conservation equation is redundant."""
    edges = [(0, 1), (0, 2), (1, 3), (2, 3), (1, 2), (3, 4), (2, 5), (4, 5)]
    N = np.zeros((6, len(edges)))
    for k, (i, j) in enumerate(edges):
        N[i, k], N[j, k] = 1.0, -1.0
    c, f = cp.Parameter(len(edges)), cp.Variable(len(edges))
    demand = np.array([1.0, 0, 0, 0, 0, -1.0])
    problem = cp.Problem(cp.Minimize(c @ f + 0.2 * cp.sum_squares(f)), [N @ f == demand, f >= 0])
    return Family(problem, [c], [f], lambda rng: [rng.uniform(0.2, 1.0, size=len(edges))])


@register
def quadratic_transport(rng: Random) -> Family:
    C, X = cp.Parameter((3, 4)), cp.Variable((3, 4))
    rows = [cp.sum(X, axis=1) == 1 / 3, cp.sum(X, axis=0) == 1 / 4, X >= 0]
    problem = cp.Problem(cp.Minimize(cp.sum(cp.multiply(C, X)) + cp.sum_squares(X)), rows)
    return Family(problem, [C], [X], lambda rng: [rng.uniform(size=(3, 4))])


def _factors(rng: Random, n: int) -> tuple[Array, Array]:
    return 0.4 * rng.normal(size=(n, 3)), rng.uniform(0.3, 0.8, n)


@register
def portfolio(rng: Random) -> Family:
    (F, D), mu, w = _factors(rng, 8), cp.Parameter(8), cp.Variable(8)
    risk = cp.sum_squares(F.T @ w) + cp.sum_squares(cp.multiply(D, w))
    return minimize(risk - mu @ w, [cp.sum(w) == 1, w >= 0], mu, w, scale=0.2)


@register
def turnover(rng: Random) -> Family:
    (F, D), mu, w = _factors(rng, 8), cp.Parameter(8), cp.Variable(8)
    risk = cp.sum_squares(F.T @ w) + cp.sum_squares(cp.multiply(D, w))
    cost = risk - mu @ w + 0.05 * cp.norm1(w - np.full(8, 0.125))
    return minimize(cost, [cp.sum(w) == 1, w >= 0, w <= 0.3], mu, w, scale=0.2)


@register
def turnover_from_a_start(rng: Random) -> Family:
    (F, D), mu, held, w = _factors(rng, 8), cp.Parameter(8), cp.Parameter(8), cp.Variable(8)
    risk = cp.sum_squares(F.T @ w) + cp.sum_squares(cp.multiply(D, w))
    problem = cp.Problem(cp.Minimize(risk - mu @ w + 0.05 * cp.norm1(w - held)), [cp.sum(w) == 1, w >= 0])
    return Family(problem, [mu, held], [w], lambda r: [0.2 * r.normal(size=8), r.dirichlet(np.ones(8))])


def _dynamics(start: cp.Parameter, x: cp.Variable, u: cp.Variable, horizon: int) -> list[cp.Constraint]:
    A, B = np.array([[1.0, 0.3], [0.0, 0.9]]), np.array([[0.0], [0.3]])
    rows = [x[:, 0] == start]
    return rows + [x[:, k + 1] == A @ x[:, k] + B @ u[:, k] for k in range(horizon)]


@register
def predictive_control(rng: Random) -> Family:
    start, x, u = cp.Parameter(2), cp.Variable((2, 6)), cp.Variable((1, 5))
    rows = [*_dynamics(start, x, u, 5), cp.abs(u) <= 0.5]
    return minimize(cp.sum_squares(x) + 0.1 * cp.sum_squares(u), rows, start, u)


@register
def soft_predictive_control(rng: Random) -> Family:
    start, x, u, e = cp.Parameter(2), cp.Variable((2, 6)), cp.Variable((1, 5)), cp.Variable((2, 6))
    rows = [*_dynamics(start, x, u, 5), u <= 0.5, u >= -0.5, x <= 0.6 + e, -x <= 0.6 + e, e >= 0]
    return minimize(cp.sum_squares(x) + 0.1 * cp.sum_squares(u) + 3 * cp.sum(e), rows, start, u)


@register
def battery(rng: Random) -> Family:
    price, charge, use, level = cp.Parameter(6), cp.Variable(6), cp.Variable(6), cp.Variable(7)
    rows = [level[0] == 0.5, level[1:] == level[:-1] + 0.9 * charge - use, level >= 0, level <= 1]
    rows += [charge >= 0, charge <= 0.4, use >= 0, use <= 0.4]
    cost = price @ (charge - use) + 0.05 * cp.sum_squares(charge) + 0.05 * cp.sum_squares(use)
    return Family(cp.Problem(cp.Minimize(cost), rows), [price], [charge, use], lambda r: [r.uniform(0.1, 1.0, size=6)])


@register
def support_vectors(rng: Random) -> Family:
    X, w, b, signs = cp.Parameter((10, 3)), cp.Variable(3), cp.Variable(), np.repeat([1.0, -1.0], 5)
    loss = 0.5 * cp.sum_squares(w) + 0.05 * cp.square(b) + cp.sum(cp.pos(1 - cp.multiply(signs, X @ w + b)))
    return Family(cp.Problem(cp.Minimize(loss)), [X], [w], lambda r: [r.normal(size=(10, 3)) + 0.5 * signs[:, None]])


@register
def support_vectors_dual(rng: Random) -> Family:
    X, signs = rng.normal(size=(8, 3)), np.repeat([1.0, -1.0], 4)
    K = (signs[:, None] * X) @ (signs[:, None] * X).T + 0.2 * np.eye(8)
    p, a = cp.Parameter(8), cp.Variable(8)
    rows = [a >= 0, a <= 1, signs @ a == 0]
    return Family(
        cp.Problem(cp.Minimize(0.5 * cp.quad_form(a, cp.psd_wrap(K)) - p @ a), rows), [p], [a],
        lambda rng: [rng.uniform(0.5, 1.5, size=8)],
    )  # fmt: skip


@register
def ridge(rng: Random) -> Family:
    A, b, x = rng.normal(size=(8, 4)), cp.Parameter(8), cp.Variable(4)
    return minimize(cp.sum_squares(A @ x - b) + 0.5 * cp.sum_squares(x), [], b, x)


# Second-order cones


@register
def group_lasso(rng: Random) -> Family:
    A, b, x = rng.normal(size=(8, 6)), cp.Parameter(8), cp.Variable(6)
    groups = sum(cp.norm(x[k : k + 2]) for k in (0, 2, 4))
    return minimize(0.5 * cp.sum_squares(A @ x - b) + groups, [], b, x, scale=1.5)


@register
def square_root_lasso(rng: Random) -> Family:
    A, b, x = rng.normal(size=(8, 4)), cp.Parameter(8), cp.Variable(4)
    return minimize(cp.norm(A @ x - b) + 0.3 * cp.norm1(x), [], b, x)


@register
def robust_least_squares(rng: Random) -> Family:
    A, b, x = rng.normal(size=(7, 3)), cp.Parameter(7), cp.Variable(3)
    return minimize(cp.norm(A @ x - b) + 0.4 * cp.norm(x), [], b, x)


# Semidefinite cones


@register
def projection_on_semidefinite(rng: Random) -> Family:
    X, C = cp.Variable((3, 3), PSD=True), cp.Parameter((3, 3))
    return Family(cp.Problem(cp.Minimize(cp.sum_squares(X - C))), [C], [X], lambda r: [r.normal(size=(3, 3))])


@register
def matrix_inequality(rng: Random) -> Family:
    G = [M + M.T for M in rng.normal(size=(3, 3, 3))]
    c, x = cp.Parameter(3), cp.Variable(3)
    inside = 2 * np.eye(3) + sum(x[i] * G[i] for i in range(3)) >> 0
    return minimize(c @ x + 0.05 * cp.sum_squares(x), [inside], c, x)


@register
def log_determinant(rng: Random) -> Family:
    X, C = cp.Variable((3, 3), symmetric=True), cp.Parameter((3, 3))
    problem = cp.Problem(cp.Minimize(cp.sum_squares(X - C) - cp.log_det(X)))
    return Family(problem, [C], [X], lambda rng: [rng.normal(size=(3, 3))])


# Exponential and power cones


@register
def logistic(rng: Random) -> Family:
    X, a, y = cp.Parameter((8, 2)), cp.Variable(2), np.tile([1.0, 0.0], 4)
    loss = cp.sum(cp.logistic(X @ a) - cp.multiply(y, X @ a)) + 0.3 * cp.sum_squares(a)
    return Family(cp.Problem(cp.Minimize(loss)), [X], [a], lambda rng: [rng.normal(size=(8, 2))])


@register
def entropy(rng: Random) -> Family:
    q, x = cp.Parameter(5), cp.Variable(5)
    return minimize(q @ x - cp.sum(cp.entr(x)), [cp.sum(x) == 1], q, x)


@register
def divergence(rng: Random) -> Family:
    """The distribution with a given mean nearest to another one."""
    p, x, values = cp.Parameter(5, pos=True), cp.Variable(5), np.arange(5.0)
    rows = [cp.sum(x) == 1, values @ x == 2.2]
    return Family(
        cp.Problem(cp.Minimize(cp.sum(cp.kl_div(x, p))), rows),
        [p], [x], lambda rng: [rng.dirichlet(3 * np.ones(5)) + 0.02],
    )  # fmt: skip


@register
def entropic_transport(rng: Random) -> Family:
    C, X = cp.Parameter((3, 3)), cp.Variable((3, 3))
    rows = [cp.sum(X, axis=1) == 1 / 3, cp.sum(X, axis=0) == 1 / 3]
    problem = cp.Problem(cp.Minimize(cp.sum(cp.multiply(C, X)) - 0.3 * cp.sum(cp.entr(X))), rows)
    return Family(problem, [C], [X], lambda rng: [rng.uniform(size=(3, 3))])


@register
def geometric(rng: Random) -> Family:
    x, w, cap = cp.Variable(3, pos=True), cp.Parameter(3, pos=True), cp.Parameter(pos=True)
    problem = cp.Problem(cp.Minimize(1 / (x[0] * x[1] * x[2])), [cp.sum(cp.multiply(w, x)) <= cap, x[0] <= 0.4 * x[1]])
    return Family(
        problem, [w, cap], [x], lambda rng: [rng.uniform(0.5, 2.0, size=3), np.array(rng.uniform(1.0, 3.0))], gp=True
    )


@register
def power_cone(rng: Random) -> Family:
    A, b, x = rng.normal(size=(6, 3)), cp.Parameter(6), cp.Variable(3)
    return minimize(cp.sum(cp.power(cp.abs(A @ x - b), 1.5)) + 0.1 * cp.sum_squares(x), [], b, x)
