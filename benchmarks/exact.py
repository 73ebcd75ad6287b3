"""Solutions to rounding error, each by a method special to its problem."""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq, minimize, root

Array = np.ndarray


def box_and_budget(q: Array, budget: float, radius: float) -> Array:
    """minimize |y|^2/2 - q'y subject to 0 <= y <= 1, sum(y) <= budget, |y| <= radius (inf: no ball).

    The KKT conditions give y = clip((q - lam)/(1 + mu), 0, 1) with the multipliers lam of the sum
    and mu of the norm: two nested monotone equations.
    """

    def shrunk(lam: float) -> Array:
        v = q - lam
        point = lambda mu: np.clip(v / (1 + mu), 0, 1)  # noqa: E731
        excess = lambda mu: np.linalg.norm(point(mu)) - radius  # noqa: E731
        if excess(0.0) <= 0:
            return point(0.0)
        return point(brentq(excess, 0, np.linalg.norm(v) / radius, xtol=1e-15, rtol=1e-15))

    if shrunk(0.0).sum() <= budget:
        return shrunk(0.0)
    return shrunk(brentq(lambda lam: shrunk(lam).sum() - budget, 0, q.max(), xtol=1e-15, rtol=1e-15))


def semidefinite(C: Array, b: Array, F: Array) -> Array:
    """minimize <C, X> + |X|^2/20 subject to <F_i, X> = b_i, X positive semidefinite.

    X = Pi(10 (sum_i nu_i F_i - C)) for the multipliers nu, which maximise the concave, once
    differentiable dual b'nu - |X|^2/20.
    """
    C = (C + C.T) / 2

    def primal(nu: Array) -> Array:
        values, vectors = np.linalg.eigh(10 * (np.tensordot(nu, F, 1) - C))
        return (vectors * np.maximum(values, 0)) @ vectors.T

    def gap(nu: Array) -> Array:
        return np.einsum("ijk,jk->i", F, primal(nu)) - b

    negative_dual = lambda nu: 0.05 * np.sum(primal(nu) ** 2) - b @ nu  # noqa: E731
    start = minimize(negative_dual, np.zeros(len(b)), jac=gap, method="BFGS", options={"gtol": 1e-9, "maxiter": 2000})
    nu = root(gap, start.x, method="hybr", options={"xtol": 1e-15}).x
    if np.abs(gap(nu)).max() > 1e-10:
        raise RuntimeError("the reference solution of the semidefinite program did not converge")
    return primal(nu)


def p_norm(A: Array, b: Array, p: float, bound: float, start: Array) -> Array:
    """minimize |Ax - b|_p subject to |x| <= bound: Newton's method on the free variables of `start`."""
    x = np.clip(start, -bound, bound)
    fixed = np.abs(x) > bound - 1e-5
    x[fixed] = np.sign(x[fixed]) * bound
    free = A[:, ~fixed]
    for _ in range(40):
        r = A @ x - b
        gradient = free.T @ (np.sign(r) * np.abs(r) ** (p - 1))
        hessian = (free.T * ((p - 1) * np.abs(r) ** (p - 2))) @ free
        step = np.linalg.solve(hessian, gradient)
        x[~fixed] -= step
        if np.abs(step).max(initial=0.0) < 1e-15:
            break
    return x
