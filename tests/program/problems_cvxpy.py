"""A table of CVXPY problems with unique primal and dual solutions, one of every kind users write.

Each entry is a function of a random generator; its parameters have values (Clarabel solves it as it
stands), and `outputs` are the variables and duals to compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

Array = np.ndarray
Random = np.random.Generator


@dataclass(frozen=True)
class Case:
    problem: cp.Problem
    parameters: Sequence[cp.Parameter]
    outputs: Sequence[cp.Variable]
    gp: bool = False

    @property
    def values(self) -> list[Array]:
        """Parameter values, dense and flat in C order, as `AffineMap.apply` takes them."""
        return [dense(p).ravel() for p in self.parameters]


CASES: dict[str, Callable[[Random], Case]] = {}


def case(make: Callable[[Random], Case]) -> Callable[[Random], Case]:
    CASES[make.__name__] = make
    return make


def dense(p: cp.Parameter) -> Array:
    value = p.value_sparse if p.sparse_idx is not None else p.value
    return np.asarray(value.toarray() if hasattr(value, "toarray") else value, dtype=float)


def parameter(value: Array | float, **attributes: object) -> cp.Parameter:
    return cp.Parameter(np.shape(value), value=value, **attributes)


def duals(*constraints: cp.Constraint) -> list[cp.Variable]:
    return [d for c in constraints for d in c.dual_variables]


def psd(rng: Random, n: int) -> Array:
    M = rng.normal(size=(n, n))
    return M @ M.T / n + 0.3 * np.eye(n)


def symmetric(rng: Random, n: int) -> Array:
    M = rng.normal(size=(n, n))
    return (M + M.T) / 2


# ---------------------------------------------------------------------- linear and quadratic


@case
def linear_program(rng: Random) -> Case:
    x = cp.Variable(4)
    c, A, b = parameter(rng.normal(size=4)), parameter(rng.normal(size=(6, 4))), parameter(rng.uniform(1, 2, 6))
    rows, low, high, total = A @ x <= b, x >= -2, x <= 3, cp.sum(x) == 1
    return Case(cp.Problem(cp.Minimize(c @ x), [rows, low, high, total]), [b, A, c], [x, *duals(rows, total, low)])


@case
def least_squares_with_penalty(rng: Random) -> Case:
    x = cp.Variable(4)
    A, b, weight = parameter(rng.normal(size=(6, 4))), parameter(rng.normal(size=6)), parameter(0.7, nonneg=True)
    rows = [x >= -0.3, cp.sum(x) <= 0.2]
    objective = cp.sum_squares(A @ x - b) + weight * cp.norm1(x)
    return Case(cp.Problem(cp.Minimize(objective), rows), [A, b, weight], [x, *duals(*rows)])


@case
def quadratic_form(rng: Random) -> Case:
    x = cp.Variable(5)
    P, q = parameter(psd(rng, 5), PSD=True), parameter(rng.normal(size=5))
    G, h = parameter(rng.normal(size=(4, 5))), parameter(rng.uniform(0, 0.5, 4))
    A, b = parameter(rng.normal(size=(2, 5))), parameter(rng.normal(size=2))
    upper, equal = G @ x <= h, A @ x == b
    objective = 0.5 * cp.quad_form(x, P) + q @ x
    return Case(cp.Problem(cp.Minimize(objective), [upper, equal]), [P, q, G, h, A, b], [x, *duals(upper, equal)])


@case
def concave_quadratic_form(rng: Random) -> Case:
    x = cp.Variable(3)
    N, q = parameter(-psd(rng, 3), NSD=True), parameter(rng.normal(size=3))
    high = x <= 0.2
    return Case(cp.Problem(cp.Maximize(cp.quad_form(x, N) + q @ x), [high]), [q, N], [x, *duals(high)])


@case
def no_objective(rng: Random) -> Case:
    x, a = cp.Variable(3), parameter(rng.normal(size=3))
    return Case(cp.Problem(cp.Minimize(0), [x == a]), [a], [x])


@case
def no_constraints(rng: Random) -> Case:
    x, y = cp.Variable((2, 3)), cp.Variable()
    c = parameter(rng.normal(size=(2, 3)))
    return Case(cp.Problem(cp.Minimize(cp.sum_squares(x - c) + cp.square(y - 2 + c[0, 1]))), [c], [y, x])


@case
def maximisation(rng: Random) -> Case:
    x = cp.Variable(3)
    c, r = parameter(rng.normal(size=3)), parameter(1.5, nonneg=True)
    ball, low, equal = cp.sum_squares(x) <= r, x >= -0.4, x[0] + 2 * x[1] == 0.3
    return Case(cp.Problem(cp.Maximize(c @ x), [ball, low, equal]), [r, c], [x, *duals(low, equal)])


@case
def no_parameters(rng: Random) -> Case:
    x = cp.Variable(3)
    low, total = x >= 0, cp.sum(x) == 1
    return Case(cp.Problem(cp.Minimize(cp.sum_squares(x - rng.normal(size=3))), [low, total]), [], [x, *duals(total)])


@case
def parameter_used_twice(rng: Random) -> Case:
    x = cp.Variable(3)
    a = parameter(rng.uniform(0.5, 1, 3))
    rows = [a @ x <= 1, x >= -a]
    objective = cp.sum_squares(x - 2 * a) + cp.sum(cp.multiply(a, x)) + 3
    return Case(cp.Problem(cp.Minimize(objective), rows), [a], [x, *duals(*rows)])


@case
def scalars(rng: Random) -> Case:
    x, y = cp.Variable(), cp.Variable()
    a, b = parameter(1.3), parameter(0.4)
    rows = [x + y >= a, x - y == b]
    return Case(cp.Problem(cp.Minimize(cp.square(x) + 2 * cp.square(y)), rows), [b, a], [y, x, *duals(*rows)])


@case
def matrix_variables(rng: Random) -> Case:
    X, Y = cp.Variable((2, 3)), cp.Variable((3, 2))
    C, D = parameter(rng.normal(size=(2, 3))), parameter(rng.normal(size=(3, 2)))
    rows = [X @ D - np.eye(2) == 0, Y <= 0.3, X.T + Y >= -1]
    objective = cp.sum_squares(X - C) + cp.sum_squares(Y - D)
    return Case(cp.Problem(cp.Minimize(objective), rows), [C, D], [Y, X, *duals(*rows)])


@case
def three_dimensions(rng: Random) -> Case:
    X = cp.Variable((2, 3, 4))
    C, t = parameter(rng.normal(size=(2, 3, 4))), parameter(rng.normal(size=(3, 4)))
    total, high = cp.sum(X, axis=0) == t, X <= 0.9
    return Case(cp.Problem(cp.Minimize(cp.sum_squares(X - C)), [total, high]), [C, t], [X, *duals(total, high)])


@case
def cones_of_inequalities(rng: Random) -> Case:
    x = cp.Variable((2, 2))
    a, b = parameter(rng.uniform(-1, 1, (2, 2))), parameter(2.5)
    rows = [cp.NonNeg(x - a), cp.Zero(x[0, 0] + x[1, 1] - b), cp.NonNeg(3 - x[0])]
    return Case(cp.Problem(cp.Minimize(cp.sum_squares(x + 0.5)), rows), [b, a], [x, *duals(*rows)])


@case
def bounds_by_entry(rng: Random) -> Case:
    low = np.array([[0.0, -1.0], [0.2, -0.5]])
    X, C = cp.Variable((2, 2), bounds=[low, low + 0.3]), parameter(rng.normal(size=(2, 2)))
    return Case(cp.Problem(cp.Minimize(cp.sum_squares(X - C))), [C], [X])


@case
def sign_and_bounds(rng: Random) -> Case:
    x, y, z = cp.Variable(3, nonneg=True), cp.Variable(2, nonpos=True), cp.Variable(3, bounds=[-0.2, 0.3])
    c, d = parameter(rng.normal(size=3)), parameter(rng.normal(size=2))
    scale = parameter(rng.uniform(1, 2), pos=True)
    total = cp.sum(x) + cp.sum(z) + scale * cp.sum(y) == 0.5
    objective = cp.sum_squares(x - c) + cp.sum_squares(y - d) + scale * cp.sum_squares(z - 0.1)
    return Case(cp.Problem(cp.Minimize(objective), [total]), [c, d, scale], [z, x, y, *duals(total)])


@case
def piecewise_linear(rng: Random) -> Case:
    x = cp.Variable(4)
    a, b = parameter(rng.normal(size=4)), parameter(rng.normal(size=4))
    objective = cp.sum(cp.abs(x - a)) + cp.max(x + b) + cp.sum(cp.maximum(x, 0.2 * b)) + cp.sum_squares(x)
    return Case(cp.Problem(cp.Minimize(objective)), [a, b], [x])


@case
def huber_loss(rng: Random) -> Case:
    x = cp.Variable(3)
    A, b = parameter(rng.normal(size=(6, 3))), parameter(3 * rng.normal(size=6))
    return Case(cp.Problem(cp.Minimize(cp.sum(cp.huber(A @ x - b, 0.5))), [cp.sum(x) == 1]), [A, b], [x])


# ---------------------------------------------------------------------- attributes


@case
def symmetric_leaves(rng: Random) -> Case:
    X = cp.Variable((3, 3), symmetric=True)
    C, B = parameter(symmetric(rng, 3), symmetric=True), parameter(rng.normal(size=(3, 3)))
    rows = [cp.trace(B @ X) == 1, X <= 0.8]
    return Case(cp.Problem(cp.Minimize(cp.sum_squares(X - C)), rows), [B, C], [X, *duals(rows[0])])


@case
def semidefinite_leaves(rng: Random) -> Case:
    X, Y = cp.Variable((3, 3), PSD=True), cp.Variable((2, 2), NSD=True)
    C, D = parameter(symmetric(rng, 3), symmetric=True), parameter(-psd(rng, 2), NSD=True)
    total = cp.trace(X) + cp.trace(D @ Y) == 2
    objective = cp.sum_squares(X - C) + cp.sum_squares(Y - D + np.diag([2.0, 0.1]))
    return Case(cp.Problem(cp.Minimize(objective), [total]), [D, C], [Y, X, *duals(total)])


@case
def diagonal_leaves(rng: Random) -> Case:
    X = cp.Variable((3, 3), diag=True)
    D, c = parameter(np.diag(rng.uniform(1, 2, 3)), diag=True), parameter(rng.normal(size=(3, 3)))
    total = cp.trace(D @ X) == 1
    return Case(cp.Problem(cp.Minimize(cp.sum_squares(X - c)), [total, X >= -0.5]), [c, D], [X, *duals(total)])


@case
def sparse_leaves(rng: Random) -> Case:
    where = (np.array([0, 1, 2, 0]), np.array([1, 2, 0, 0]))
    X, S = cp.Variable((3, 3), sparsity=where), cp.Parameter((3, 3), sparsity=where)
    S.value_sparse = sp.coo_array((rng.normal(size=4), where), shape=(3, 3))
    c = parameter(rng.normal(size=(3, 3)))
    total = cp.sum(cp.multiply(S, X)) == 1
    return Case(cp.Problem(cp.Minimize(cp.sum_squares(X - c - S)), [total, X <= 1]), [c, S], [X, *duals(total)])


# ---------------------------------------------------------------------- second-order cones


@case
def norm_constraint(rng: Random) -> Case:
    x = cp.Variable(4)
    A, b = parameter(rng.normal(size=(3, 4))), parameter(rng.normal(size=3))
    c, d = parameter(0.3 * rng.normal(size=4)), parameter(2.0)
    objective = cp.sum_squares(x - 1) + cp.norm2(x)
    ball, third = cp.norm(A @ x + b) <= c @ x + d, cp.pnorm(x, 3, approx=False) <= 0.8
    return Case(cp.Problem(cp.Minimize(objective), [ball, third]), [A, b, c, d], [x, *duals(ball, third)])


@case
def cones_by_columns(rng: Random) -> Case:
    t, X = cp.Variable(4), cp.Variable((3, 4))
    C, r = parameter(2 * rng.normal(size=(3, 4))), parameter(rng.uniform(0.5, 1, 4))
    cone = cp.SOC(t, X, axis=0)
    objective = cp.sum_squares(X - C) + cp.sum_squares(t - r)
    return Case(cp.Problem(cp.Minimize(objective), [cone]), [C, r], [X, t, *duals(cone)])


@case
def cones_by_rows(rng: Random) -> Case:
    t, X = cp.Variable(4), cp.Variable((4, 2))
    C, r = parameter(2 * rng.normal(size=(4, 2))), parameter(rng.uniform(0.5, 1, 4))
    cone, total = cp.SOC(t + r, X - C, axis=1), cp.sum(X) == 1
    objective = cp.sum_squares(X) + cp.sum_squares(t)
    return Case(cp.Problem(cp.Minimize(objective), [total, cone]), [r, C], [t, X, *duals(cone, total)])


@case
def one_cone(rng: Random) -> Case:
    x = cp.Variable(3)
    p, r = parameter(3 * rng.normal(size=3)), parameter(1.2)
    cone = cp.SOC(r, x)
    return Case(cp.Problem(cp.Minimize(cp.sum_squares(x - p)), [cone]), [p, r], [x, *duals(cone)])


# ---------------------------------------------------------------------- semidefinite cones


@case
def semidefinite_program(rng: Random) -> Case:
    X = cp.Variable((4, 4), symmetric=True)
    C, b = parameter(symmetric(rng, 4), symmetric=True), parameter(rng.uniform(1, 2, 4))
    diagonal, cone = cp.diag(X) == b, X >> 0
    objective = cp.trace(C @ X) + 0.1 * cp.sum_squares(X)
    return Case(cp.Problem(cp.Minimize(objective), [cone, diagonal]), [b, C], [X, *duals(cone, diagonal)])


@case
def matrix_inequality(rng: Random) -> Case:
    x = cp.Variable(2)
    F = [parameter(symmetric(rng, 3), symmetric=True) for _ in range(2)]
    c = parameter(rng.normal(size=2))
    lower = np.eye(3) + x[0] * F[0] + x[1] * F[1] >> 0
    upper = x[0] * F[1] << 2 * np.eye(3)
    return Case(cp.Problem(cp.Minimize(cp.sum_squares(x) + 3 * c @ x), [lower, upper]), [c, *F], [x, *duals(lower)])


@case
def stack_of_semidefinite_matrices(rng: Random) -> Case:
    X, Y = cp.Variable((2, 3, 3), PSD=True), cp.Variable((2, 2, 2), symmetric=True)
    C, D = parameter(rng.normal(size=(2, 3, 3))), parameter(rng.normal(size=(2, 2, 2)))
    return Case(cp.Problem(cp.Minimize(cp.sum_squares(X - C) + cp.sum_squares(Y - D))), [C, D], [Y, X])


@case
def largest_eigenvalue(rng: Random) -> Case:
    x = cp.Variable(3)
    A = parameter(symmetric(rng, 3), symmetric=True)
    objective = cp.lambda_max(A + cp.diag(x)) + cp.sum_squares(x)
    return Case(cp.Problem(cp.Minimize(objective), [cp.sum(x) == 0.5]), [A], [x])


@case
def log_determinant(rng: Random) -> Case:
    X = cp.Variable((3, 3), PSD=True)
    S = parameter(psd(rng, 3), PSD=True)
    return Case(cp.Problem(cp.Minimize(cp.trace(S @ X) - cp.log_det(X))), [S], [X])


# ---------------------------------------------------------------------- exponential cones


@case
def entropy_and_exponential(rng: Random) -> Case:
    x = cp.Variable(4)
    c, total = parameter(rng.normal(size=4)), parameter(1.0)
    sums = [cp.sum(x) == total, x[0] <= 0.3]
    objective = c @ x - cp.sum(cp.entr(x)) + cp.exp(x[1]) + cp.logistic(x[2] - c[0])
    return Case(cp.Problem(cp.Minimize(objective), sums), [total, c], [x, *duals(*sums)])


@case
def log_sum_exp(rng: Random) -> Case:
    x = cp.Variable(3)
    A, b = parameter(rng.normal(size=(5, 3))), parameter(rng.normal(size=5))
    objective = cp.log_sum_exp(A @ x + b) + 0.1 * cp.sum_squares(x)
    return Case(cp.Problem(cp.Minimize(objective), [x <= 0.2]), [A, b], [x])


@case
def divergence(rng: Random) -> Case:
    x = cp.Variable(4)
    p = parameter(rng.dirichlet(np.ones(4)), nonneg=True)
    mean = parameter(0.2)
    rows = [cp.sum(x) == 1, np.arange(4) @ x == 1.5 + mean]
    return Case(cp.Problem(cp.Minimize(cp.sum(cp.kl_div(x, p))), rows), [mean, p], [x, *duals(*rows)])


@case
def concave_logarithm(rng: Random) -> Case:
    x = cp.Variable(3)
    w, price = parameter(rng.uniform(0.5, 1, 3), nonneg=True), parameter(rng.uniform(1, 2, 3))
    budget = price @ x <= 4
    return Case(cp.Problem(cp.Maximize(w @ cp.log(x + 0.1)), [budget]), [price, w], [x, *duals(budget)])


@case
def exponential_cones(rng: Random) -> Case:
    x, y, z = (cp.Variable((2, 3)) for _ in range(3))
    C = [parameter(rng.normal(size=(2, 3))) for _ in range(3)]
    cone = cp.ExpCone(x, y, z)
    objective = sum(cp.sum_squares(v - c) for v, c in zip((x, y, z), C, strict=True))
    return Case(cp.Problem(cp.Minimize(objective), [cone]), C, [z, x, y, *duals(cone)])


@case
def scalar_exponential_cone(rng: Random) -> Case:
    x, y, z = (cp.Variable() for _ in range(3))
    C = [parameter(v) for v in (0.8, 0.3, -0.4)]
    cone = cp.ExpCone(x, y, z)
    objective = sum(cp.square(v - c) for v, c in zip((x, y, z), C, strict=True))
    return Case(cp.Problem(cp.Minimize(objective), [cone]), C, [x, *duals(cone)])


# ---------------------------------------------------------------------- power cones


@case
def power_cones(rng: Random) -> Case:
    x, y, z = (cp.Variable(3) for _ in range(3))
    C = [parameter(rng.normal(size=3) + shift) for shift in (0.2, 0.2, 0.5)]
    cone = cp.PowCone3D(x, y, z, np.array([0.3, 0.5, 0.8]))
    objective = sum(cp.sum_squares(v - c) for v, c in zip((x, y, z), C, strict=True))
    return Case(cp.Problem(cp.Minimize(objective), [cone]), C, [y, x, z, *duals(cone)])


@case
def power_cones_of_matrices(rng: Random) -> Case:
    x, y, z = (cp.Variable((2, 2)) for _ in range(3))
    C = [parameter(rng.normal(size=(2, 2)) + shift) for shift in (0.2, 0.2, 0.5)]
    cone = cp.PowCone3D(x, y, z, np.array([[0.3, 0.4], [0.5, 0.6]]))
    objective = sum(cp.sum_squares(v - c) for v, c in zip((x, y, z), C, strict=True))
    return Case(cp.Problem(cp.Minimize(objective), [cone]), C, [z, *duals(cone)])


@case
def power_cone_of_many(rng: Random) -> Case:
    W, z = cp.Variable((3, 2)), cp.Variable(2)
    C, d = parameter(rng.uniform(0.2, 1, (3, 2))), parameter(rng.uniform(1, 2, 2))
    cone = cp.PowConeND(W, z, np.array([[0.3, 0.2], [0.3, 0.5], [0.4, 0.3]]))
    return Case(cp.Problem(cp.Minimize(cp.sum_squares(W - C) + cp.sum_squares(z - d)), [cone]), [d, C], [W, z])


@case
def powers(rng: Random) -> Case:
    x = cp.Variable(3)
    c = parameter(rng.uniform(0.5, 1, 3))
    objective = cp.sum(cp.power(x, 3.3, approx=False)) + cp.pnorm(x + c, 2.7, approx=False) + cp.sum_squares(x - c)
    return Case(cp.Problem(cp.Minimize(objective)), [c], [x])


@case
def geometric_mean(rng: Random) -> Case:
    x = cp.Variable(3)
    price = parameter(rng.uniform(1, 2, 3))
    budget = price @ x <= 3
    objective = cp.geo_mean(x, [0.5, 0.2, 0.3], approx=False) - 0.1 * cp.sum_squares(x)
    return Case(cp.Problem(cp.Maximize(objective), [budget]), [price], [x, *duals(budget)])


@case
def powers_by_second_order_cones(rng: Random) -> Case:
    x = cp.Variable(3)
    c = parameter(rng.uniform(0.5, 1, 3))
    objective = cp.sum(cp.power(x, 1.5, approx=True)) + cp.sum_squares(x - 2 * c)
    return Case(cp.Problem(cp.Minimize(objective)), [c], [x])


# ---------------------------------------------------------------------- geometric programs


@case
def geometric_program(rng: Random) -> Case:
    x, y, z = (cp.Variable(pos=True) for _ in range(3))
    a, b = parameter(2.0, pos=True), parameter(1.0, pos=True)
    c = parameter(0.5)
    rows = [a * (x * y + x * z + y * z) <= b, x >= y**c]
    return Case(cp.Problem(cp.Minimize(1 / (x * y * z)), rows), [b, c, a], [z, x, y], gp=True)


@case
def geometric_program_with_exponents(rng: Random) -> Case:
    x = cp.Variable(2, pos=True)
    power, scale = parameter(0.6), parameter(rng.uniform(1, 2, 2), pos=True)
    objective = x[0] ** power * x[1] + scale[0] / x[0] + scale[1] / x[1]
    return Case(cp.Problem(cp.Minimize(objective), [cp.prod(x) <= 3]), [scale, power], [x], gp=True)
