"""Solutions to rounding error, each by a method special to its problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping

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


def newton(derivatives: Callable[[Array], tuple[Array, Array]], start: Array) -> Array:
    """The minimiser of a smooth, strictly convex function: w -> (gradient, Hessian). Steps are halved until
    the gradient shrinks."""
    w = start
    gradient, hessian = derivatives(w)
    for _ in range(100):
        step = np.linalg.solve(hessian, gradient)
        if np.abs(step).max() < 1e-15 * (1 + np.abs(w).max()):
            break
        for halvings in range(40):
            moved = derivatives(w - 0.5**halvings * step)
            if np.linalg.norm(moved[0]) < np.linalg.norm(gradient):
                break
        else:
            break  # the gradient is down to rounding error
        w = w - 0.5**halvings * step
        gradient, hessian = moved
    if np.abs(step).max() > 1e-10:
        raise RuntimeError("the reference's Newton steps did not converge")
    return w


def quadratic_gradient(d: Mapping[str, Array], start: Array, weights: Array) -> dict[str, Array]:
    """Gradients of weights'y in the blocks of  minimize 1/2 y'Qy + p'y  subject to  Gy <= h, Ay = b, y >= lb.

    The active set is that of `start`, a solution to a few digits, corrected until all slacks and
    multipliers have their sign; on it, the solution and its derivative are two dense linear systems.
    """
    Q, p, n = d["Q"], d["p"], len(d["p"])
    A, b = d.get("A", np.zeros((0, n))), d.get("b", np.zeros(0))
    G, h = (-np.eye(n), -d["lb"]) if "lb" in d else (d["G"], d["h"])
    active = h - G @ start < 1e-5 * max(1.0, np.abs(h).max())
    for _ in range(20):
        R = np.vstack([A, G[active]])
        K = np.block([[Q, R.T], [R, np.zeros((len(R), len(R)))]])
        found = np.linalg.solve(K, np.concatenate([-p, b, h[active]]))
        y, lam = found[:n], np.zeros(len(h))
        lam[active] = found[n + len(b) :]
        right = np.where(active, lam > 0, h - G @ y > 0)
        if right.all():
            break
        active = np.where(right, active, ~active)
    else:
        raise RuntimeError("the reference found no active set")
    back = np.linalg.solve(K, np.concatenate([-weights, np.zeros(len(R))]))
    u, nu, t_eq, t = back[:n], found[n : n + len(b)], back[n : n + len(b)], np.zeros(len(h))
    t[active] = back[n + len(b) :]
    return {
        "Q": (np.outer(u, y) + np.outer(y, u)) / 2,
        "p": u,
        "G": np.outer(lam, u) + np.outer(t, y),
        "h": -t,
        "A": np.outer(nu, u) + np.outer(t_eq, y),
        "b": -t_eq,
    }
