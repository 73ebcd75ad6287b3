"""Reference gradients: a tight solve, Newton's method on its active set, and a dense KKT system.

No code of the package under test is used. The letters are those of `baselines.implicit`; a row of G with
a single nonzero fixes a variable, so that only the free ones enter the system.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch

from ffo.kernels.pool import one_blas_thread
from ffo.lab.tasks.inner import Inner

Array = np.ndarray
TIGHT, NEWTON, ACCEPT = 1e-12, 6, 1e-8
#: share of nonzeros of Q above which it is treated as dense
DENSE = 0.2
#: most changes of the active set, each by the signs of multipliers and slacks
ROUNDS = 8


class NoReferenceError(RuntimeError):
    """The optimality conditions could not be met: there is nothing to compare with."""


@dataclass(frozen=True)
class Reference:
    """Solutions (batch, n) and the gradient of the loss in the learnt values."""

    y: Array
    gradient: dict[str, Array]


@dataclass(frozen=True)
class Comparison:
    """Distance from the reference: of a gradient, worst over its tensors, and of a solution, worst over its samples."""

    cosine: float
    l2: float
    linf: float
    solution: float


def reference(
    inner: Inner, values: Mapping[str, torch.Tensor], loss: Callable[[torch.Tensor], torch.Tensor]
) -> Reference:
    """The solutions for these values, and the gradient there of `loss`, a function of solutions (batch, n)."""
    with one_blas_thread(), torch.enable_grad():
        points = _points(inner, values)
        y = torch.tensor(np.stack([point.x for point in points]), requires_grad=True)
        (c,) = torch.autograd.grad(loss(y), y)
        adjoints = [point.adjoint(c_k) for point, c_k in zip(points, c.numpy(), strict=True)]
    u, w, nu = (np.stack(v) for v in zip(*((*a, p.nu) for a, p in zip(adjoints, points, strict=True)), strict=True))
    x = y.detach().numpy()
    gradient = {"q": -u, "A": nu.T @ u + w.T @ x, "b": -w.sum(axis=0)}
    return Reference(x, {name: gradient[name] for name in inner.learnt})


def solutions(inner: Inner, values: Mapping[str, torch.Tensor]) -> Array:
    """Only the solutions (batch, n): they exist even where there is no derivative."""
    with one_blas_thread():
        return np.stack([point.x for point in _points(inner, values)])


def _points(inner: Inner, values: Mapping[str, torch.Tensor]) -> list[_Point]:
    q = values["q"].detach().numpy()
    A, b = (values[k].detach().numpy() if k in values else np.zeros(s) for k, s in (("A", (0, inner.n)), ("b", (0,))))
    return [_Point.solve(inner, q_k, A, b) for q_k in q]


def compare(y: Array, gradient: Mapping[str, Array], true: Reference) -> Comparison:
    """Cosine similarity, and relative distances in the Euclidean and the largest-entry norm; y: (batch, n)."""
    cosine, l2, linf = 1.0, 0.0, 0.0
    for name, exact in true.gradient.items():
        g = np.nan_to_num(gradient[name], nan=0.0, posinf=0.0, neginf=0.0)
        norms = float(np.linalg.norm(g) * np.linalg.norm(exact))
        cosine = min(cosine, float((g * exact).sum()) / norms if norms else 0.0)
        l2 = max(l2, float(np.linalg.norm(g - exact) / np.linalg.norm(exact)))
        linf = max(linf, float(np.abs(g - exact).max() / np.abs(exact).max()))
    return Comparison(cosine, l2, linf, distance(y, true.y))


def distance(y: Array, true: Array) -> float:
    """Distance of solutions (batch, n), relative to the larger of 1 and the true norm; the worst of the batch."""
    off = np.linalg.norm(y - true, axis=1) / np.maximum(np.linalg.norm(true, axis=1), 1.0)
    return float(np.nan_to_num(off, nan=np.inf).max())


@dataclass
class _Point:
    """A solution: x, its free variables, the active rows M x = r other than bounds, and multipliers."""

    inner: Inner
    A: Array
    x: Array
    free: Array
    M: Array
    right: Array
    w: Array
    mu: float

    @property
    def nu(self) -> Array:
        return self.w[: len(self.A)]

    @classmethod
    def solve(cls, inner: Inner, q: Array, A: Array, b: Array) -> _Point:
        dense = len(A) or inner.sparse["Q"].nnz > DENSE * inner.n**2
        x, nu, lam, slack, mu = _dense_qp(inner, q, A, b) if dense and inner.is_qp else _cone_program(inner, q)
        active = np.flatnonzero(lam > slack)
        for _ in range(ROUNDS):
            point = cls._on(inner, A, b, active, x, nu, lam, mu)
            for _ in range(NEWTON):
                if point.newton(q) < 1e-14:
                    break
            x, nu, mu, lam, slack = point.read(q, active)
            before, active = active, np.flatnonzero(lam > slack)
            if np.array_equal(before, active):
                break
        point.check(q, active)
        return point

    @classmethod
    def _on(cls, inner: Inner, A: Array, b: Array, active: Array, x: Array, nu: Array, lam: Array, mu: float) -> _Point:
        """The point on these active rows of G, close to x."""
        x, rows = x.copy(), inner.G[active]
        single = np.count_nonzero(rows, axis=1) == 1
        column = np.argmax(rows[single] != 0, axis=1)
        x[column] = inner.h[active[single]] / rows[single, column]
        free = np.setdiff1d(np.arange(inner.n), column)
        M = np.vstack([A, rows[~single]])
        right = np.concatenate([b, inner.h[active[~single]]])
        return cls(inner, A, x, free, M, right, np.concatenate([nu, lam[active[~single]]]), mu)

    def read(self, q: Array, active: Array) -> tuple[Array, Array, float, Array, Array]:
        """x, nu, mu, and multipliers and slacks of all rows of G: if one is negative, the active set was wrong."""
        inner, rows = self.inner, self.inner.G[active]
        single = np.count_nonzero(rows, axis=1) == 1
        force = q - inner.Q @ self.x - self.M.T @ self.w - self.mu * self.x
        lam, slack = np.zeros(len(inner.h)), inner.h - inner.G @ self.x
        column = np.argmax(rows[single] != 0, axis=1)
        lam[active[single]] = force[column] / rows[single, column]
        lam[active[~single]] = self.w[len(self.A) :]
        slack[active] = 0.0
        return self.x, self.nu, max(self.mu, 0.0), lam, slack

    def system(self) -> Array:
        """The dense KKT matrix over free variables, rows, and the ball where it is active."""
        R, ball = self.free, self.mu > 0
        H = self.inner.Q[np.ix_(R, R)] + self.mu * np.eye(len(R))
        N = np.vstack([self.M[:, R], self.x[None, R]]) if ball else self.M[:, R]
        return np.block([[H, N.T], [N, np.zeros((len(N), len(N)))]])

    def newton(self, q: Array) -> float:
        """One step; returns its size relative to x."""
        R, k = self.free, len(self.M)
        force = self.inner.Q[R] @ self.x - q[R] + self.M[:, R].T @ self.w + self.mu * self.x[R]
        gap = [self.M @ self.x - self.right]
        if self.mu > 0:
            gap.append(np.array([(self.x @ self.x - self.inner.radius**2) / 2]))
        step = _solved(self.system(), -np.concatenate([force, *gap]))
        self.x[R] += step[: len(R)]
        self.w = self.w + step[len(R) : len(R) + k]
        if self.mu > 0:
            self.mu += float(step[-1])
        return float(np.abs(step[: len(R)]).max(initial=0.0) / max(np.abs(self.x).max(), 1e-300))

    def check(self, q: Array, active: Array) -> None:
        """Raises unless the optimality conditions hold."""
        inner = self.inner
        outside = float((inner.G @ self.x - inner.h).max(initial=0.0))
        if np.isfinite(inner.radius):
            outside = max(outside, float(np.linalg.norm(self.x)) - inner.radius)
        # the residual of stationarity must be a nonnegative combination of the rows that fix variables
        force = q - inner.Q @ self.x - self.M.T @ self.w - self.mu * self.x
        single = active[np.count_nonzero(inner.G[active], axis=1) == 1]
        signs = inner.G[single] @ force
        negative = max(0.0, -float(min(signs.min(initial=0.0), self.w[len(self.A) :].min(initial=0.0), self.mu)))
        wrong = max(outside, negative, float(np.abs(force[self.free]).max(initial=0.0)))
        if wrong > ACCEPT * max(1.0, np.abs(q).max()):
            raise NoReferenceError(f"the reference solution violates its optimality conditions by {wrong:.1e}")

    def adjoint(self, c: Array) -> tuple[Array, Array]:
        """u (n,) and the part of w that belongs to A."""
        K = self.system()
        right = np.zeros(len(K))
        right[: len(self.free)] = -c[self.free]
        try:
            found = np.linalg.solve(K, right)
        except np.linalg.LinAlgError:
            raise NoReferenceError("the active constraints are dependent: the derivative is not unique") from None
        u = np.zeros(self.inner.n)
        u[self.free] = found[: len(self.free)]
        return u, found[len(self.free) : len(self.free) + len(self.A)]


def _solved(K: Array, right: Array) -> Array:
    """K^-1 right; in the least-squares sense if active constraints are dependent."""
    try:
        return np.linalg.solve(K, right)
    except np.linalg.LinAlgError:
        return np.linalg.lstsq(K, right, rcond=None)[0]


def _cone_program(inner: Inner, q: Array) -> tuple[Array, Array, Array, Array, float]:
    """x, (no) equality multipliers, multipliers and slacks of Gx <= h, the multiplier of |x|^2/2: by Clarabel."""
    import clarabel

    n, m, ball = inner.n, len(inner.h), np.isfinite(inner.radius)
    rows, sides, cones = inner.sparse["G"], inner.h, [clarabel.NonnegativeConeT(m)]
    if ball:
        rows = sp.vstack([rows, sp.csc_array((1, n)), -sp.eye_array(n)])
        sides = np.concatenate([sides, [inner.radius], np.zeros(n)])
        cones.append(clarabel.SecondOrderConeT(n + 1))
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = TIGHT
    P = sp.csc_matrix(sp.triu(inner.sparse["Q"]))
    found = clarabel.DefaultSolver(P, -q, sp.csc_matrix(rows), sides, cones, settings).solve()
    x, z, s = np.array(found.x), np.array(found.z), np.array(found.s)
    force = z[m] if ball and z[m] > inner.radius - np.linalg.norm(x) else 0.0
    return x, np.zeros(0), z[:m], s[:m], float(force / inner.radius)


def _dense_qp(inner: Inner, q: Array, A: Array, b: Array) -> tuple[Array, Array, Array, Array, float]:
    """The same by PIQP, for dense matrices; rows of G with one entry are bounds, one of each kind a variable."""
    import piqp

    G, h, n = inner.G, inner.h, inner.n
    single = np.count_nonzero(G, axis=1) == 1
    column = np.argmax(G != 0, axis=1)
    entry = G[np.arange(len(G)), column]
    low, upp = single & (entry < 0), single & (entry > 0)
    x_l, x_u = np.full(n, -np.inf), np.full(n, np.inf)
    x_l[column[low]], x_u[column[upp]] = (h[rows] / entry[rows] for rows in (low, upp))
    blocks = {"A": A, "b": b} if len(A) else {}
    if not single.all():
        blocks |= {"G": G[~single], "h_u": h[~single]}
    solver = piqp.DenseSolver()
    solver.settings.eps_abs = solver.settings.eps_rel = TIGHT
    solver.setup(P=inner.Q, c=-q, x_l=x_l, x_u=x_u, **blocks)
    solver.solve()
    found = solver.result
    lam, slack = np.zeros(len(h)), np.zeros(len(h))
    lam[~single], slack[~single] = found.z_u[: (~single).sum()], found.s_u[: (~single).sum()]
    for rows, z, s in ((low, found.z_bl, found.s_bl), (upp, found.z_bu, found.s_bu)):
        lam[rows], slack[rows] = z[column[rows]] / np.abs(entry[rows]), s[column[rows]] * np.abs(entry[rows])
    return found.x.copy(), found.y.copy(), lam, slack, 0.0
