"""A zoo of parametrised convex problems, shared by the tests of layers.

Every problem comes with parameter values at which its solution is unique and no constraint is weakly
active, so that solution and derivative are well defined. `CASES` names the builders.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """A problem, its parameters with values, and the outputs to request."""

    problem: cp.Problem
    parameters: list[cp.Parameter]
    variables: list[cp.Variable]
    values: list[Array]
    gp: bool = False

    def solve_with_cvxpy(self, values: list[Array] | None = None) -> list[Array]:
        """The requested variables, from CVXPY's own path through Clarabel."""
        for parameter, value in zip(self.parameters, values or self.values, strict=True):
            parameter.value = value
        tight = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
        with warnings.catch_warnings():  # CVXPY's: curved cones rarely reach 1e-11, n-d problems use SciPy
            warnings.simplefilter("ignore", UserWarning)
            self.problem.solve(cp.CLARABEL, gp=self.gp, **tight)
        return [v.value.toarray() if sp.issparse(v.value) else np.asarray(v.value) for v in self.variables]

    def batch(self, size: int, rng: np.random.Generator, spread: float = 0.02) -> list[Array]:
        """`size` values of each parameter around the given ones, of the same structure."""
        return [np.stack([self._near(p, v, rng, spread) for _ in range(size)]) for p, v in self._pairs()]

    def directions(self, rng: np.random.Generator) -> list[Array]:
        """One random direction per parameter, of its structure."""
        return [self._structured(p, rng.normal(size=v.shape)) for p, v in self._pairs()]

    def _pairs(self) -> list[tuple[cp.Parameter, Array]]:
        return list(zip(self.parameters, self.values, strict=True))

    def _near(self, p: cp.Parameter, v: Array, rng: np.random.Generator, spread: float) -> Array:
        return v + spread * self._structured(p, rng.normal(size=v.shape)) * max(np.abs(v).max(), 0.1)

    @staticmethod
    def _structured(p: cp.Parameter, d: Array) -> Array:
        if p.attributes["diag"]:
            return np.diag(np.diag(d))
        if p.is_symmetric() and d.ndim == 2:
            return (d + d.T) / 2
        return d


Builder = Callable[[np.random.Generator], Case]
CASES: dict[str, Builder] = {}
#: cases grouped by what is special about them
TAGS: dict[str, set[str]] = {}


def register(*tags: str) -> Callable[[Builder], Builder]:
    def add(builder: Builder) -> Builder:
        CASES[builder.__name__] = builder
        for tag in tags:
            TAGS.setdefault(tag, set()).add(builder.__name__)
        return builder

    return add


def build(name: str, seed: int = 0) -> Case:
    return CASES[name](np.random.default_rng([seed, *map(ord, name)]))


def tagged(tag: str) -> list[str]:
    return [name for name in CASES if name in TAGS[tag]]


def _semidefinite(rng: np.random.Generator, n: int) -> Array:
    M = rng.normal(size=(n, n))
    return M @ M.T / n + 0.5 * np.eye(n)


# Quadratic programs


@register("qp", "peer")
def least_squares(rng: np.random.Generator) -> Case:
    A, b, x = cp.Parameter((8, 4)), cp.Parameter(8), cp.Variable(4)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(A @ x - b) + cp.sum_squares(x)))
    return Case(problem, [A, b], [x], [rng.normal(size=(8, 4)), rng.normal(size=8)])


@register("qp", "peer", "small")
def constrained_least_squares(rng: np.random.Generator) -> Case:
    A, b, x = cp.Parameter((6, 4)), cp.Parameter(6), cp.Variable(4)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(A @ x - b)), [x >= 0, cp.sum(x) <= 0.3])
    return Case(problem, [A, b], [x], [rng.normal(size=(6, 4)), rng.normal(size=6)])


@register("qp", "small", "duals")
def general_qp(rng: np.random.Generator) -> Case:
    """All blocks are parameters, and both kinds of multipliers are outputs."""
    n, x = 5, cp.Variable(5)
    Q, q, G, h = cp.Parameter((n, n), PSD=True), cp.Parameter(n), cp.Parameter((6, n)), cp.Parameter(6)
    A, b = cp.Parameter((2, n)), cp.Parameter(2)
    below, equal = G @ x <= h, A @ x == b
    problem = cp.Problem(cp.Minimize(0.5 * cp.quad_form(x, Q) + q @ x), [below, equal])
    inside = rng.normal(size=n)
    G_v, A_v = rng.normal(size=(6, n)), rng.normal(size=(2, n))
    values = [_semidefinite(rng, n), 3 * rng.normal(size=n), G_v, G_v @ inside + 0.8, A_v, A_v @ inside]
    duals = [below.dual_variables[0], equal.dual_variables[0]]
    return Case(problem, [Q, q, G, h, A, b], [x, *duals], values)


@register("qp")
def sum_of_quadratic_forms(rng: np.random.Generator) -> Case:
    n, x = 3, cp.Variable(3)
    P, N, q = cp.Parameter((n, n), PSD=True), cp.Parameter((n, n), NSD=True), cp.Parameter(n)
    objective = cp.Maximize(q @ x - 0.5 * cp.quad_form(x, P) + cp.quad_form(x, N))
    problem = cp.Problem(objective, [x >= -0.2, x <= 0.3])
    return Case(problem, [P, N, q], [x], [_semidefinite(rng, n), -_semidefinite(rng, n), rng.normal(size=n)])


@register("qp", "peer")
def relu(rng: np.random.Generator) -> Case:
    x, y = cp.Parameter(6), cp.Variable(6)
    return Case(cp.Problem(cp.Minimize(cp.sum_squares(y - x)), [y >= 0]), [x], [y], [rng.normal(size=6)])


@register("qp", "peer")
def sparsemax(rng: np.random.Generator) -> Case:
    x, y = cp.Parameter(6), cp.Variable(6)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(y - x)), [cp.sum(y) == 1, y >= 0, y <= 1])
    return Case(problem, [x], [y], [rng.normal(size=6)])


@register("qp")
def equality_only(rng: np.random.Generator) -> Case:
    x, b = cp.Variable(4), cp.Parameter(2)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x)), [rng.normal(size=(2, 4)) @ x == b])
    return Case(problem, [b], [x], [rng.normal(size=2)])


@register("qp")
def huber_regression(rng: np.random.Generator) -> Case:
    A, b, x = cp.Parameter((7, 3)), cp.Parameter(7), cp.Variable(3)
    problem = cp.Problem(cp.Minimize(cp.sum(cp.huber(A @ x - b, 0.4)) + 0.1 * cp.sum_squares(x)))
    return Case(problem, [A, b], [x], [rng.normal(size=(7, 3)), rng.normal(size=7)])


@register("qp", "shapes")
def matrix_variable(rng: np.random.Generator) -> Case:
    A, B, X = cp.Parameter((5, 3)), cp.Parameter((5, 2)), cp.Variable((3, 2))
    problem = cp.Problem(cp.Minimize(cp.sum_squares(A @ X - B) + 0.01 * cp.sum_squares(X)), [X <= 0.4])
    return Case(problem, [A, B], [X], [rng.normal(size=(5, 3)), rng.normal(size=(5, 2))])


@register("qp", "shapes")
def three_dimensional(rng: np.random.Generator) -> Case:
    T, X = cp.Parameter((2, 3, 2)), cp.Variable((2, 3, 2))
    problem = cp.Problem(cp.Minimize(cp.sum_squares(X - T)), [X >= -0.3, cp.sum(X, axis=1) <= 0.5])
    return Case(problem, [T], [X], [rng.normal(size=(2, 3, 2))])


@register("qp", "shapes")
def scalars(rng: np.random.Generator) -> Case:
    x, a, b = cp.Variable(), cp.Parameter(), cp.Parameter(nonneg=True)
    problem = cp.Problem(cp.Minimize(cp.square(x - a) + b * x), [x <= 3])
    return Case(problem, [a, b], [x], [np.array(1.2), np.array(0.7)])


@register("qp", "shapes")
def structured_variables(rng: np.random.Generator) -> Case:
    """Symmetric, diagonal and nonnegative variables beside a symmetric and a diagonal parameter."""
    S, D = cp.Variable((3, 3), symmetric=True), cp.Variable((3, 3), diag=True)
    v = cp.Variable((2, 3), nonneg=True)
    C, E, F = cp.Parameter((3, 3), symmetric=True), cp.Parameter((3, 3), diag=True), cp.Parameter((2, 3))
    objective = cp.sum_squares(S - C) + cp.sum_squares(D - E + S) + cp.sum_squares(v - F)
    problem = cp.Problem(cp.Minimize(objective), [cp.sum(S) <= 1, cp.sum(v) >= 2])
    C_v = rng.normal(size=(3, 3))
    values = [C_v + C_v.T, np.diag(rng.normal(size=3)), rng.normal(size=(2, 3))]
    return Case(problem, [C, E, F], [D, S, v], values)


@register("qp")
def parameter_used_twice(rng: np.random.Generator) -> Case:
    """In the objective, in the constraint matrix and in a right-hand side."""
    p, x = cp.Parameter(3, nonneg=True), cp.Variable(3)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - 2 * p) + p @ x), [p @ x <= 1, x >= p - 1])
    return Case(problem, [p], [x], [rng.uniform(0.5, 1.5, size=3)])


@register("qp")
def constants_and_idle_parameters(rng: np.random.Generator) -> Case:
    """A parameter that only shifts the objective, constant constraints, and a separate variable."""
    x, z, a, idle = cp.Variable(3), cp.Variable(2), cp.Parameter(3), cp.Parameter()
    problem = cp.Problem(
        cp.Minimize(cp.sum_squares(x - a) + cp.sum_squares(z) + idle + 4.0),
        [cp.sum(x) == 1, z >= np.array([1.0, -2.0])],
    )
    return Case(problem, [idle, a], [z, x], [np.array(3.0), rng.normal(size=3)])


# Linear programs


@register("lp", "peer", "duals")
def linear_program(rng: np.random.Generator) -> Case:
    """A vertex: multipliers depend on the cost, the point on the right-hand side."""
    n = 4
    A, b, c, x = cp.Parameter((6, n)), cp.Parameter(6), cp.Parameter(n), cp.Variable(n)
    rows = A @ x <= b
    problem = cp.Problem(cp.Maximize(c @ x), [rows])
    A_v = rng.normal(size=(6, n)) + 2 * np.eye(6, n)
    cost = A_v[:n].T @ rng.uniform(0.5, 1.5, size=n)
    b_v = A_v @ rng.normal(size=n) + np.array([0, 0, 0, 0, 1.0, 2.0])
    return Case(problem, [c, A, b], [x, rows.dual_variables[0]], [cost, A_v, b_v])


@register("lp", "peer")
def least_absolute_values(rng: np.random.Generator) -> Case:
    A, b, x = cp.Parameter((5, 2)), cp.Parameter(5), cp.Variable(2)
    problem = cp.Problem(cp.Minimize(0.5 * cp.pnorm(A @ x - b, p=1)), [x >= 0])
    return Case(problem, [A, b], [x], [rng.uniform(0.5, 1.5, size=(5, 2)), rng.uniform(1, 2, size=5)])


# Second-order cones


@register("socp", "peer", "small")
def ball_constrained(rng: np.random.Generator) -> Case:
    n, x = 5, cp.Variable((5, 1))
    R, q, A, b = cp.Parameter((n, n)), cp.Parameter((n, 1)), cp.Parameter((1, n)), cp.Parameter((1, 1))
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(R @ x) + q.T @ x), [A @ x == b, cp.norm(x) <= 1])
    values = [rng.normal(size=(n, n)), 3 * rng.normal(size=(n, 1)), rng.normal(size=(1, n)), np.full((1, 1), 0.2)]
    return Case(problem, [R, q, A, b], [x], values)


@register("socp")
def group_lasso(rng: np.random.Generator) -> Case:
    """One group is nonzero, one is at the vertex of its cone."""
    A, b, lam, x = cp.Parameter((6, 4)), cp.Parameter(6), cp.Parameter(nonneg=True), cp.Variable(4)
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(A @ x - b) + lam * (cp.norm(x[:2]) + cp.norm(x[2:]))))
    A_v = rng.normal(size=(6, 4))
    return Case(problem, [A, b, lam], [x], [A_v, A_v[:, :2] @ np.array([2.0, -1.0]), np.array(1.5)])


@register("socp", "duals")
def second_order_duals(rng: np.random.Generator) -> Case:
    """Two cones at once, written with cp.SOC, both multipliers asked for."""
    X, c, t = cp.Variable((3, 2)), cp.Parameter((3, 2)), cp.Parameter(2, nonneg=True)
    ball = cp.SOC(t, X, axis=0)
    problem = cp.Problem(cp.Minimize(cp.sum(cp.multiply(c, X)) + 0.1 * cp.sum_squares(X)), [ball])
    return Case(problem, [c, t], [X, *ball.dual_variables], [rng.normal(size=(3, 2)), np.array([1.0, 0.5])])


@register("socp", "duals", "peer")
def norm_dual(rng: np.random.Generator) -> Case:
    x, c, t = cp.Variable(3), cp.Parameter(3), cp.Parameter(nonneg=True)
    ball = cp.norm(x) <= t
    problem = cp.Problem(cp.Minimize(c @ x + 0.1 * cp.sum_squares(x)), [ball])
    return Case(problem, [c, t], [x, ball.dual_variables[0]], [rng.normal(size=3), np.array(1.0)])


# Semidefinite programs


@register("sdp", "peer", "duals")
def smallest_eigenvalue(rng: np.random.Generator) -> Case:
    X, C = cp.Variable((3, 3), symmetric=True), cp.Parameter((3, 3), symmetric=True)
    cone, trace = X >> 0, cp.trace(X) == 1
    problem = cp.Problem(cp.Minimize(cp.trace(C @ X)), [cone, trace])
    values = [np.array([[2.0, 0.5, 0.1], [0.5, 3.0, 0.2], [0.1, 0.2, 1.5]])]
    return Case(problem, [C], [X, cone.dual_variables[0], trace.dual_variables[0]], values)


@register("sdp", "small")
def projection_on_semidefinite(rng: np.random.Generator) -> Case:
    X, C = cp.Variable((4, 4), PSD=True), cp.Parameter((4, 4))
    C_v = rng.normal(size=(4, 4))
    return Case(cp.Problem(cp.Minimize(cp.sum_squares(X - C))), [C], [X], [C_v])


@register("sdp")
def matrix_inequality(rng: np.random.Generator) -> Case:
    x, c, F = cp.Variable(3), cp.Parameter(3), cp.Parameter((4, 4), symmetric=True)
    G = [M + M.T for M in rng.normal(size=(3, 4, 4))]
    inside = F + sum(x[i] * G[i] for i in range(3)) >> 0
    problem = cp.Problem(cp.Minimize(c @ x + 0.05 * cp.sum_squares(x)), [inside])
    return Case(problem, [c, F], [x], [rng.normal(size=3), 3 * np.eye(4)])


@register("sdp")
def nuclear_norm(rng: np.random.Generator) -> Case:
    X, B, lam = cp.Variable((3, 2)), cp.Parameter((3, 2)), cp.Parameter(nonneg=True)
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(X - B) + lam * cp.normNuc(X)))
    U = np.linalg.qr(rng.normal(size=(3, 2)))[0]
    V = np.linalg.qr(rng.normal(size=(2, 2)))[0]
    return Case(problem, [B, lam], [X], [U @ np.diag([3.0, 0.4]) @ V, np.array(1.0)])


# Exponential cones


@register("exp", "peer")
def logistic_regression(rng: np.random.Generator) -> Case:
    X, lam, a = cp.Parameter((6, 2)), cp.Parameter(1, nonneg=True), cp.Variable((2, 1))
    y = np.array([[1.0], [0], [1], [1], [0], [0]])
    likelihood = cp.sum(cp.multiply(y, X @ a) - cp.logistic(X @ a))
    problem = cp.Problem(cp.Minimize(-likelihood + lam @ cp.reshape(cp.sum_squares(a), (1,), order="F")))
    return Case(problem, [X, lam], [a], [rng.normal(size=(6, 2)), np.array([0.3])])


@register("exp", "peer", "small")
def softmax(rng: np.random.Generator) -> Case:
    x, y = cp.Parameter(5), cp.Variable(5)
    problem = cp.Problem(cp.Minimize(-x @ y - cp.sum(cp.entr(y))), [cp.sum(y) == 1])
    return Case(problem, [x], [y], [rng.normal(size=5)])


@register("exp", "peer")
def sigmoid(rng: np.random.Generator) -> Case:
    x, y = cp.Parameter(4), cp.Variable(4)
    problem = cp.Problem(cp.Minimize(-x @ y - cp.sum(cp.entr(y) + cp.entr(1 - y))))
    return Case(problem, [x], [y], [rng.normal(size=4)])


@register("exp", "peer")
def limited_multi_label(rng: np.random.Generator) -> Case:
    x, y = cp.Parameter(4), cp.Variable(4)
    objective = -x @ y - cp.sum(cp.entr(y)) - cp.sum(cp.entr(1.0 - y))
    return Case(cp.Problem(cp.Minimize(objective), [cp.sum(y) == 2]), [x], [y], [np.array([1.0, -1.0, -1.3, -0.7])])


@register("exp")
def entropy_maximization(rng: np.random.Generator) -> Case:
    x = cp.Variable(5)
    A, b, F, g = cp.Parameter((2, 5)), cp.Parameter(2), cp.Parameter((2, 5)), cp.Parameter(2)
    objective = cp.Maximize(cp.sum(cp.entr(x)) - 0.01 * cp.sum_squares(x))
    problem = cp.Problem(objective, [A @ x == b, F @ x <= g])
    inside = rng.uniform(0.2, 1.0, size=5)
    A_v, F_v = rng.normal(size=(2, 5)), rng.normal(size=(2, 5))
    return Case(problem, [A, b, F, g], [x], [A_v, A_v @ inside, F_v, F_v @ inside + np.array([-0.05, 0.5])])


@register("exp")
def log_sum_exp(rng: np.random.Generator) -> Case:
    A, b, x = cp.Parameter((5, 3)), cp.Parameter(5), cp.Variable(3)
    problem = cp.Problem(cp.Minimize(cp.log_sum_exp(A @ x + b) + 0.1 * cp.sum_squares(x)), [x >= -0.3])
    return Case(problem, [A, b], [x], [rng.normal(size=(5, 3)), rng.normal(size=5)])


@register("exp", "duals", "peer")
def exponential_duals(rng: np.random.Generator) -> Case:
    x, y, z, t = cp.Variable(), cp.Variable(), cp.Variable(), cp.Parameter(nonneg=True)
    cone = cp.constraints.ExpCone(x, y, z)
    objective = -z - x + 0.1 * (x**2 + y**2 + z**2)
    problem = cp.Problem(cp.Minimize(objective), [cone, y >= 0.1, z <= t])
    return Case(problem, [t], [x, y, z, *cone.dual_variables], [np.array(3.0)])


# Power cones


@register("pow", "small")
def power_penalty(rng: np.random.Generator) -> Case:
    A, b, x = cp.Parameter((5, 3)), cp.Parameter(5), cp.Variable(3)
    problem = cp.Problem(cp.Minimize(cp.sum(cp.power(cp.abs(A @ x - b), 1.5)) + 0.1 * cp.sum_squares(x)))
    return Case(problem, [A, b], [x], [rng.normal(size=(5, 3)), 2 * rng.normal(size=5)])


@register("pow")
def three_norm(rng: np.random.Generator) -> Case:
    c, x, r = cp.Parameter(4), cp.Variable(4), cp.Parameter(nonneg=True)
    problem = cp.Problem(cp.Minimize(c @ x + 0.1 * cp.sum_squares(x)), [cp.pnorm(x, 3) <= r])
    return Case(problem, [c, r], [x], [rng.normal(size=4) + np.array([1, -1, 1, -1]), np.array(0.8)])


@register("pow", "duals")
def power_duals(rng: np.random.Generator) -> Case:
    x, y, z, t = cp.Variable(), cp.Variable(), cp.Variable(), cp.Parameter(nonneg=True)
    cone = cp.PowCone3D(x, y, z, 0.4)
    problem = cp.Problem(cp.Minimize(-z + 0.1 * (x**2 + y**2)), [cone, x + 2 * y <= t])
    return Case(problem, [t], [x, y, z, *cone.dual_variables], [np.array(2.0)])


# Geometric programs


@register("gp", "peer")
def box_volume(rng: np.random.Generator) -> Case:
    """One parameter is an exponent, and the order is not CVXPY's."""
    x, y, z = (cp.Variable(pos=True) for _ in range(3))
    a, b, c = cp.Parameter(pos=True), cp.Parameter(pos=True), cp.Parameter()
    problem = cp.Problem(cp.Minimize(1 / (x * y * z)), [a * (x * y + x * z + y * z) <= b, x >= y**c])
    return Case(problem, [c, b, a], [z, x, y], [np.array(0.5), np.array(1.0), np.array(2.0)], gp=True)


@register("gp")
def geometric_vectors(rng: np.random.Generator) -> Case:
    x, w, cap = cp.Variable(3, pos=True), cp.Parameter(3, pos=True), cp.Parameter(pos=True)
    problem = cp.Problem(cp.Maximize(cp.geo_mean(x)), [cp.sum(cp.multiply(w, x)) <= cap, x[0] <= 0.5 * x[1]])
    return Case(problem, [cap, w], [x], [np.array(2.0), rng.uniform(0.5, 2.0, size=3)], gp=True)
