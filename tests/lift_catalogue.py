"""Problems that are convex but not DPP, each beside the DPP problem that one would write by hand.

The parameters of the twin are functions of those of the problem; outputs correspond one to one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import torch

Array = np.ndarray
Tensor = torch.Tensor


@dataclass(frozen=True)
class Written:
    """A problem, its parameters and what a loss sees of its solution."""

    problem: cp.Problem
    parameters: Sequence[cp.Parameter]
    outputs: Sequence[cp.Variable]


@dataclass(frozen=True)
class Pair:
    """A problem, its twin, and the twin's parameters as functions of the problem's."""

    own: Written
    twin: Written
    values: Callable[..., Sequence[Tensor]]
    gp: bool = False

    def draw(self, rng: np.random.Generator) -> list[Array]:
        return [value_of(p, rng) for p in self.own.parameters]


PAIRS: dict[str, Callable[[], Pair]] = {}


def pair(make: Callable[[], Pair]) -> Callable[[], Pair]:
    PAIRS[make.__name__] = make
    return make


def value_of(p: cp.Parameter, rng: np.random.Generator) -> Array:
    """A value of the kind that the parameter was declared to be."""
    said, v = p.attributes, rng.normal(size=p.shape)
    if said["PSD"] or said["NSD"]:
        v = v @ v.T / p.shape[0] + 0.5 * np.eye(p.shape[0])
        return -v if said["NSD"] else v
    if said["symmetric"]:
        return v + v.T
    return np.asarray(rng.uniform(0.5, 1.5, size=p.shape) if said["nonneg"] or said["pos"] else v)


def P(*shape: int, **said: bool) -> cp.Parameter:
    return cp.Parameter(shape, **said)


def of(x: cp.Variable, objective: cp.Expression, rows: list, parameters: list, dual: bool = True) -> Written:
    """Minimize over x; the duals of the first constraint are outputs, too."""
    duals = [rows[0].dual_variables[0]] if rows and dual else []
    return Written(cp.Problem(cp.Minimize(objective), rows), parameters, [x, *duals])


def bowl(x: cp.Variable) -> cp.Expression:
    """A strongly convex term with a minimum off the origin."""
    return cp.sum_squares(x - np.cos(1 + np.arange(x.size)))


# Products of parameters


@pair
def product_of_parameters() -> Pair:
    x, a, b, c = cp.Variable(3), P(3), P(3), P(3)
    own = of(x, bowl(x) + cp.multiply(a, b) @ x, [cp.sum(x) == 1], [a, b])
    twin = of(x, bowl(x) + c @ x, [cp.sum(x) == 1], [c])
    return Pair(own, twin, lambda a, b: [a * b])


@pair
def product_of_matrices() -> Pair:
    x, A, B, C = cp.Variable(3), P(2, 4), P(4, 3), P(2, 3)
    return Pair(of(x, bowl(x), [A @ B @ x <= -0.5], [A, B]), of(x, bowl(x), [C @ x <= -0.5], [C]), lambda A, B: [A @ B])


@pair
def matrices_one_after_the_other() -> Pair:
    """A @ (B @ x) with a small inner dimension: two products are less than one."""
    x, F, y = cp.Variable(5), P(5, 1), cp.Variable(1)
    own = of(x, bowl(x) + cp.sum_squares(F @ (F.T @ x)), [F @ (F.T @ x) <= 0.2], [F])
    twin = of(x, bowl(x) + cp.sum_squares(F @ y), [F @ y <= 0.2, y == F.T @ x], [F])
    return Pair(own, twin, lambda F: [F])


@pair
def three_scalars() -> Pair:
    x, a, b, c, d = cp.Variable(3), P(nonneg=True), P(nonneg=True), P(nonneg=True), P(nonneg=True)
    own = of(x, bowl(x) + a * (b * (c * cp.norm1(x))), [cp.sum(x) >= 1], [a, b, c])
    return Pair(own, of(x, bowl(x) + d * cp.norm1(x), [cp.sum(x) >= 1], [d]), lambda a, b, c: [a * b * c])


@pair
def product_of_a_sum() -> Pair:
    x, A, b, c = cp.Variable(3), P(2, 3), P(3), P(2)
    own = of(x, bowl(x), [A @ (x - b) <= 0.1], [A, b])
    return Pair(own, of(x, bowl(x), [A @ x - c <= 0.1], [A, c]), lambda A, b: [A, A @ b])


@pair
def scaled_difference() -> Pair:
    x, a, b, c = cp.Variable(3), P(), P(3), P(3)
    own = of(x, bowl(x) + cp.norm1(a * (x - b)), [x <= 1], [a, b])
    return Pair(own, of(x, bowl(x) + cp.norm1(a * x - c), [x <= 1], [a, c]), lambda a, b: [a, a * b])


@pair
def product_on_the_right() -> Pair:
    X, A, B, C = cp.Variable((2, 2)), P(2, 2), P(2, 2), P(2, 2)
    cost = cp.sum_squares(X - np.eye(2))
    own = of(X, cost, [X @ A @ B <= 0.3], [A, B])
    return Pair(own, of(X, cost, [X @ C <= 0.3], [C]), lambda A, B: [A @ B])


# Parameters as weights of expressions that have parameters themselves


@pair
def weighted_least_squares() -> Pair:
    x, r, lam, A, b = cp.Variable(3), cp.Variable(4), P(nonneg=True), P(4, 3), P(4)
    own = of(x, lam * cp.sum_squares(A @ x - b) + cp.norm1(x), [x >= -0.2], [lam, A, b])
    twin = of(x, lam * cp.sum_squares(r) + cp.norm1(x), [x >= -0.2, r == A @ x - b], [lam, A, b])
    return Pair(own, twin, lambda lam, A, b: [lam, A, b])


@pair
def weighted_norm() -> Pair:
    x, lam, A, b, B, c = cp.Variable(3), P(nonneg=True), P(4, 3), P(4), P(4, 3), P(4)
    own = of(x, bowl(x) + lam * cp.norm(A @ x - b), [cp.sum(x) == 0], [lam, A, b])
    twin = of(x, bowl(x) + cp.norm(B @ x - c), [cp.sum(x) == 0], [B, c])
    return Pair(own, twin, lambda lam, A, b: [lam * A, lam * b])


@pair
def weighted_divergence() -> Pair:
    x, y, lam, p = cp.Variable(3), cp.Variable(3), P(nonneg=True), P(3, nonneg=True)
    own = of(x, lam * cp.sum(cp.kl_div(x, p)) + x[0], [cp.sum(x) == 1], [lam, p])
    twin = of(x, lam * cp.sum(cp.kl_div(x, y)) + x[0], [cp.sum(x) == 1, y == p], [lam, p])
    return Pair(own, twin, lambda lam, p: [lam, p])


@pair
def weights_of_a_residual() -> Pair:
    x, s, A, b, B, c = cp.Variable(3), P(4), P(4, 3), P(4), P(4, 3), P(4)
    own = of(x, cp.sum_squares(cp.multiply(s, A @ x - b)) + 0.1 * bowl(x), [x <= 0.5], [s, A, b])
    twin = of(x, cp.sum_squares(B @ x - c) + 0.1 * bowl(x), [x <= 0.5], [B, c])
    return Pair(own, twin, lambda s, A, b: [s[:, None] * A, s * b])


@pair
def convex_inside_a_product_inside_an_exponential() -> Pair:
    x, t, a, b, c = cp.Variable(2), cp.Variable(), P(nonneg=True), P(2), P(nonneg=True)
    own = of(x, cp.exp(a * cp.norm(x - b)) + bowl(x), [c * cp.norm1(x - b) <= 1.0], [a, b, c])
    r = cp.Variable(2)
    rows = [c * cp.norm1(r) <= 1.0, r == x - b, t >= cp.norm(r)]
    return Pair(own, of(x, cp.exp(a * t) + bowl(x), rows, [a, b, c]), lambda a, b, c: [a, b, c])


# Functions of parameters


@pair
def exponential_weight() -> Pair:
    x, t, w = cp.Variable(3), P(), P(nonneg=True)
    own = of(x, bowl(x) + cp.exp(t) * cp.norm1(x), [cp.sum(x) <= 0.3], [t])
    return Pair(own, of(x, bowl(x) + w * cp.norm1(x), [cp.sum(x) <= 0.3], [w]), lambda t: [t.exp()])


@pair
def norm_of_a_parameter() -> Pair:
    x, a, c = cp.Variable(3), P(3), P(nonneg=True)
    own = of(x, bowl(x), [cp.norm(a) * x <= 0.4], [a])
    return Pair(own, of(x, bowl(x), [c * x <= 0.4], [c]), lambda a: [a.norm()])


@pair
def division() -> Pair:
    x, p, b, r = cp.Variable(3), P(nonneg=True), P(3), P(nonneg=True)
    own = of(x, cp.sum_squares(x - b) / p + cp.norm1(x), [x / p <= 0.7], [p, b])
    y = cp.Variable(3)
    twin = of(x, r * cp.sum_squares(y) + cp.norm1(x), [x * r <= 0.7, y == x - b], [r, b])
    return Pair(own, twin, lambda p, b: [1 / p, b])


@pair
def elementwise_functions() -> Pair:
    x, a, b, c = cp.Variable(3), P(3, nonneg=True), P(3), P(3)
    weight = cp.sqrt(a) + cp.log(a) - cp.abs(b) + cp.maximum(a, b, 0.2) + cp.logistic(b) + cp.inv_pos(a)
    own = of(x, bowl(x) + weight @ x, [cp.sum(x) == 1], [a, b])

    def values(a: Tensor, b: Tensor) -> list[Tensor]:
        top = torch.maximum(torch.maximum(a, b), torch.tensor(0.2))
        return [a.sqrt() + a.log() - b.abs() + top + torch.nn.functional.softplus(b) + 1 / a]

    return Pair(own, of(x, bowl(x) + c @ x, [cp.sum(x) == 1], [c]), values)


@pair
def spectra() -> Pair:
    x, S, c = cp.Variable(3), P(3, 3, PSD=True), P(3)
    parts = [cp.log_det(S), cp.lambda_max(S), cp.tr_inv(S)]
    own = of(x, bowl(x) + sum(f * x[k] for k, f in enumerate(parts)), [x <= 0.5], [S])

    def values(S: Tensor) -> list[Tensor]:
        return [torch.stack([torch.logdet(S), torch.linalg.eigvalsh(S)[-1], torch.trace(torch.linalg.inv(S))])]

    return Pair(own, of(x, bowl(x) + c @ x, [x <= 0.5], [c]), values)


@pair
def norms_and_sums() -> Pair:
    x, A, c = cp.Variable(4), P(3, 2), P(4)
    parts = [cp.norm(A, "fro"), cp.norm(A, "nuc"), cp.sum_largest(A, 2), cp.log_sum_exp(A)]
    own = of(x, bowl(x) - sum(f * x[k] for k, f in enumerate(parts)), [x <= 0.5], [A])

    def values(A: Tensor) -> list[Tensor]:
        top = A.flatten().sort().values[-2:].sum()
        return [torch.stack([A.norm(), torch.linalg.svdvals(A).sum(), top, torch.logsumexp(A, (0, 1))])]

    return Pair(own, of(x, bowl(x) - c @ x, [x <= 0.5], [c]), values)


@pair
def moved_entries() -> Pair:
    """Index, reshape in both orders, transpose, stack and accumulate a product."""
    x, A, B, C = cp.Variable(3), P(2, 3), P(2, 3), P(3, 3)
    M = cp.multiply(A, B)
    columns = cp.reshape(M, (3, 2), order="F")[:, 1] + cp.reshape(M, (3, 2), order="C")[:, 0]
    full = cp.vstack([M[1], cp.cumsum(M.T, axis=0)[:, 0], columns])
    own = of(x, bowl(x), [full @ x <= 0.1], [A, B])

    def values(A: Tensor, B: Tensor) -> list[Tensor]:
        M = A * B
        columns = M.T.reshape(-1)[3:] + M.reshape(3, 2)[:, 0]
        return [torch.stack([M[1], M[0].cumsum(0), columns])]

    return Pair(own, of(x, bowl(x), [C @ x <= 0.1], [C]), values)


@pair
def huber_with_a_computed_bound() -> Pair:
    x, t, b, M = cp.Variable(3), P(), P(3), P(nonneg=True)
    own = of(x, cp.sum(cp.huber(x - b, cp.exp(t))) + cp.sum_squares(x), [x >= 0.1], [t, b])
    twin = of(x, cp.sum(cp.huber(x - b, M)) + cp.sum_squares(x), [x >= 0.1], [M, b])
    return Pair(own, twin, lambda t, b: [t.exp(), b])


@pair
def weights_of_sorted_entries() -> Pair:
    """CVXPY takes this for DPP, but its reduction multiplies parameters."""
    x, y, a, w = cp.Variable(3), cp.Variable(3), P(3), P(3, nonneg=True)
    own = of(x, bowl(x) + cp.dotsort(x - a, w), [cp.sum(x) == 1], [a, w])
    twin = of(x, bowl(x) + cp.dotsort(y, w), [cp.sum(x) == 1, y == x - a], [a, w])
    return Pair(own, twin, lambda a, w: [a, w])


# Kronecker products and convolutions


@pair
def kronecker() -> Pair:
    X, A, C = cp.Variable((2, 1)), P(2, 2), P(4, 2)
    cost = cp.sum_squares(X - 1)
    own = of(X, cost, [cp.kron(A, X) <= 0.2], [A])
    split = cp.hstack([cp.multiply(C[:, [0]], cp.vstack([X, X])), cp.multiply(C[:, [1]], cp.vstack([X, X]))])
    return Pair(own, of(X, cost, [split <= 0.2], [C]), lambda A: [A.repeat_interleave(2, 0)])


@pair
def convolution() -> Pair:
    x, c, b, T = cp.Variable(3), P(2), P(4), P(4, 3)
    own = of(x, cp.sum_squares(cp.convolve(c, x) - b) + 0.1 * bowl(x), [x >= -0.3], [c, b])

    def values(c: Tensor, b: Tensor) -> list[Tensor]:
        zero = torch.zeros(())
        rows = [[c[i - j] if 0 <= i - j < 2 else zero for j in range(3)] for i in range(4)]
        return [torch.stack([torch.stack(row) for row in rows]), b]

    return Pair(own, of(x, cp.sum_squares(T @ x - b) + 0.1 * bowl(x), [x >= -0.3], [T, b]), values)


@pair
def convolution_of_a_difference() -> Pair:
    """DPP, but CVXPY's reduction cannot convolve parameters with constants."""
    x, b, h, T = cp.Variable(3), P(3), np.array([1.0, -0.5]), P(4)
    matrix = np.array([[1.0, 0, 0], [-0.5, 1, 0], [0, -0.5, 1], [0, 0, -0.5]])
    own = of(x, cp.sum_squares(cp.convolve(h, x - b)) + cp.norm1(x), [x >= -0.3], [b])
    twin = of(x, cp.sum_squares(matrix @ x - T) + cp.norm1(x), [x >= -0.3], [T])
    return Pair(own, twin, lambda b: [torch.tensor(matrix) @ b])


# Quadratic forms


@pair
def squares_over_a_parameter() -> Pair:
    x, y, t, b = cp.Variable(3), cp.Variable(3), P(nonneg=True), P(3)
    rows = [cp.quad_over_lin(x, 1 + t) <= 0.2]
    own = of(x, t * cp.quad_over_lin(x - b, 1 + t) + cp.norm1(x), rows, [t, b])
    w, s = P(nonneg=True), P(nonneg=True)
    twin = of(x, w * cp.sum_squares(y) + cp.norm1(x), [s * cp.sum_squares(x) <= 0.2, y == x - b], [w, b, s])
    return Pair(own, twin, lambda t, b: [t / (1 + t), b, 1 / (1 + t)])


@pair
def form_beside_a_weight() -> Pair:
    """The sign of the weight counts, and that of the form's matrix does, too."""
    x, s, Q, b, w = cp.Variable(3), P(), P(3, 3, PSD=True), P(3), P(nonneg=True)
    y = cp.Variable(3)
    own = of(x, cp.quad_form(x - b, Q) + cp.exp(s) * cp.square(cp.pos(cp.log_sum_exp(x - b))), [x <= 0.5], [s, Q, b])
    cost = cp.quad_form(y, Q) + w * cp.square(cp.pos(cp.log_sum_exp(y)))
    return Pair(own, of(x, cost, [x <= 0.5, y == x - b], [w, Q, b]), lambda s, Q, b: [s.exp(), Q, b])


@pair
def factor_model() -> Pair:
    x, F, S, c = cp.Variable(3), P(3, 2), P(2, 2, PSD=True), P(3)
    Q = P(3, 3, PSD=True)
    risk = cp.quad_form(x, F @ S @ F.T, assume_PSD=True)
    own = of(x, risk + cp.sum_squares(x) + c @ x, [cp.sum(x) == 1], [F, S, c])
    twin = of(x, cp.quad_form(x, Q) + cp.sum_squares(x) + c @ x, [cp.sum(x) == 1], [Q, c])
    return Pair(own, twin, lambda F, S, c: [F @ S @ F.T, c])


@pair
def portfolio() -> Pair:
    x, g, F, s, mu, Q = cp.Variable(4), P(nonneg=True), P(4, 2), P(4, nonneg=True), P(4), P(4, 4, PSD=True)
    covariance = cp.psd_wrap(F @ F.T + cp.diag(cp.square(s)))
    own = of(x, g * cp.quad_form(x, covariance) - mu @ x, [cp.sum(x) == 1, x >= 0], [g, F, s, mu])
    twin = of(x, cp.quad_form(x, Q) - mu @ x, [cp.sum(x) == 1, x >= 0], [Q, mu])
    return Pair(own, twin, lambda g, F, s, mu: [g * (F @ F.T + torch.diag(s**2)), mu])


@pair
def ellipsoid() -> Pair:
    x, c, Q, L = cp.Variable(3), P(3), P(3, 3, PSD=True), P(3, 3)
    own = of(x, c @ x + 0.1 * cp.sum_squares(x), [cp.quad_form(x, Q) <= 0.3], [c, Q])
    twin = of(x, c @ x + 0.1 * cp.sum_squares(x), [cp.sum_squares(L.T @ x) <= 0.3], [c, L])
    return Pair(own, twin, lambda c, Q: [c, torch.linalg.cholesky(Q)])


@pair
def ellipsoid_of_an_expression() -> Pair:
    """z = x - b with its own shape, a matrix expression, and a right-hand side that is one."""
    x, b, r, F, L = cp.Variable(3), P(3), P(nonneg=True), P(3, 3), P(3, 3)
    Q = cp.psd_wrap(F @ F.T + 0.5 * np.eye(3))
    own = of(x, bowl(x) + cp.sum(x), [cp.quad_form(x - b, Q) <= 0.1 * r**2], [b, r, F])
    s = P(nonneg=True)
    z = cp.Variable(3)
    twin = of(x, bowl(x) + cp.sum(x), [cp.sum_squares(L.T @ z) <= s, z == x - b], [b, s, L])

    def values(b: Tensor, r: Tensor, F: Tensor) -> list[Tensor]:
        return [b, 0.1 * r**2, torch.linalg.cholesky(F @ F.T + 0.5 * torch.eye(3, dtype=F.dtype))]

    return Pair(own, twin, values)


@pair
def concave_form() -> Pair:
    x, c, N, L = cp.Variable(3), P(3), P(3, 3, NSD=True), P(3, 3)
    own = of(x, c @ x + 0.1 * cp.sum_squares(x), [cp.quad_form(x, N) >= -0.3], [c, N])
    twin = of(x, c @ x + 0.1 * cp.sum_squares(x), [-cp.sum_squares(L.T @ x) >= -0.3], [c, L])
    return Pair(own, twin, lambda c, N: [c, torch.linalg.cholesky(-N)])


@pair
def weighted_form_in_a_constraint() -> Pair:
    x, a, c, Q, L = cp.Variable(3), P(nonneg=True), P(3), P(3, 3, PSD=True), P(3, 3)
    own = of(x, c @ x, [a * cp.quad_form(x, Q) + cp.norm1(x) <= 1], [a, c, Q])
    twin = of(x, c @ x, [cp.sum_squares(L.T @ x) + cp.norm1(x) <= 1], [c, L])
    return Pair(own, twin, lambda a, c, Q: [c, torch.linalg.cholesky(a * Q)])


@pair
def form_inside_an_exponential() -> Pair:
    x, b, Q, L, t = cp.Variable(2), P(2), P(2, 2, PSD=True), P(2, 2), cp.Variable()
    own = of(x, cp.exp(cp.quad_form(x, Q)) + bowl(x) + b @ x, [], [b, Q])
    twin = of(x, cp.exp(t) + bowl(x) + b @ x, [t >= cp.sum_squares(L.T @ x)], [b, L], dual=False)
    return Pair(own, twin, lambda b, Q: [b, torch.linalg.cholesky(Q)])


@pair
def matrix_variable_between_parameters() -> Pair:
    """quad_form(p, X) with a variable X is p'Xp."""
    X, p, Q = cp.Variable((2, 2), symmetric=True), P(2), P(2, 2)
    cost = cp.sum_squares(X - np.eye(2))
    own = of(X, cost, [cp.quad_form(p, X) <= 0.2], [p])
    return Pair(own, of(X, cost, [cp.sum(cp.multiply(Q, X)) <= 0.2], [Q]), lambda p: [torch.outer(p, p)])


# Cones that the user wrote


@pair
def second_order_cone() -> Pair:
    x, a, b, A, r = cp.Variable(3), P(nonneg=True), P(nonneg=True), P(2, 3), P(nonneg=True)
    own = of(x, bowl(x), [cp.SOC(a * b, A @ x)], [a, b, A])
    return Pair(own, of(x, bowl(x), [cp.SOC(r, A @ x)], [r, A]), lambda a, b, A: [a * b, A])


@pair
def semidefinite_cone() -> Pair:
    X, a, S, Q = cp.Variable((2, 2), symmetric=True), P(nonneg=True), P(2, 2, symmetric=True), P(2, 2, symmetric=True)
    cost = cp.sum_squares(X - np.eye(2))
    own = of(X, cost, [X >> a * S @ S], [a, S])
    return Pair(own, of(X, cost, [X >> Q], [Q]), lambda a, S: [a * S @ S])


@pair
def exponential_cone() -> Pair:
    x, a, b, c = cp.Variable(3), P(nonneg=True), P(nonneg=True), P(nonneg=True)
    own = of(x, bowl(x), [cp.ExpCone(a * b * x[0], x[1], x[2])], [a, b])
    return Pair(own, of(x, bowl(x), [cp.ExpCone(c * x[0], x[1], x[2])], [c]), lambda a, b: [a * b])


# Larger ones


@pair
def control() -> Pair:
    """Two steps of x+ = A(h) x + h B u, discretised inside the problem."""
    u, x, h, A, B, x0 = cp.Variable((2, 1)), cp.Variable((3, 2)), P(nonneg=True), P(2, 2), P(2, 1), P(2)
    step, push = np.eye(2) + h * A + cp.square(h) / 2 * A @ A, h * B
    rows = [cp.abs(u) <= 0.5, x[0] == x0]
    rows += [x[k + 1] == step @ x[k] + push @ u[k] for k in range(2)]
    own = of(u, cp.sum_squares(x) + 0.1 * cp.sum_squares(u), rows, [h, A, B, x0])
    C, D = P(2, 2), P(2, 1)
    rows = [cp.abs(u) <= 0.5, x[0] == x0, *(x[k + 1] == C @ x[k] + D @ u[k] for k in range(2))]
    twin = of(u, cp.sum_squares(x) + 0.1 * cp.sum_squares(u), rows, [C, D, x0])

    def values(h: Tensor, A: Tensor, B: Tensor, x0: Tensor) -> list[Tensor]:
        return [torch.eye(2, dtype=A.dtype) + h * A + h**2 / 2 * A @ A, h * B, x0]

    return Pair(own, twin, values)


@pair
def robust_regression() -> Pair:
    x, k, A, b, C = cp.Variable(3), P(nonneg=True), P(5, 3), P(5), P(3, 3)
    own = of(x, cp.norm1(A @ x - b) + k * cp.norm(A.T @ A @ x), [cp.sum(x) == 0.5], [k, A, b])
    twin = of(x, cp.norm1(A @ x - b) + cp.norm(C @ x), [cp.sum(x) == 0.5], [C, A, b])
    return Pair(own, twin, lambda k, A, b: [k * A.T @ A, A, b])


@pair
def maximization() -> Pair:
    x, a, b, c, w = cp.Variable(3), P(nonneg=True), P(3), P(3), P(nonneg=True)
    rows = [cp.sum(x) <= 1]
    own = Written(cp.Problem(cp.Maximize(cp.multiply(b, b) @ x - a**2 * cp.sum_squares(x)), rows), [a, b], [x])
    other = Written(cp.Problem(cp.Maximize(c @ x - w * cp.sum_squares(x)), rows), [w, c], [x])
    return Pair(own, other, lambda a, b: [a**2, b * b])


# Geometric programs


@pair
def geometric_quotient() -> Pair:
    x, y, a, b, c = cp.Variable(pos=True), cp.Variable(pos=True), P(pos=True), P(pos=True), P(pos=True)
    own = Written(cp.Problem(cp.Minimize(1 / x + 1 / y), [x / (a + b) + y <= 1]), [a, b], [x, y])
    twin = Written(cp.Problem(cp.Minimize(1 / x + 1 / y), [x / c + y <= 1]), [c], [x, y])
    return Pair(own, twin, lambda a, b: [a + b], gp=True)


@pair
def geometric_exponent() -> Pair:
    x, y, a, p, z = cp.Variable(pos=True), cp.Variable(pos=True), P(pos=True), P(pos=True), cp.Variable(pos=True)
    own = Written(cp.Problem(cp.Minimize((a * x) ** p + 1 / y), [y / x <= 1, x * y >= 0.5]), [a, p], [x, y])
    twin = Written(cp.Problem(cp.Minimize(z**p + 1 / y), [y / x <= 1, x * y >= 0.5, z == a * x]), [a, p], [x, y])
    return Pair(own, twin, lambda a, p: [a, p], gp=True)
