"""BPQP, from its description: the backward pass is an equality-constrained QP, solved by OSQP.

    minimize 1/2 u'Hu + c'u   subject to   N u = 0

with the letters of `implicit`. The forward pass uses OSQP for quadratic programs, and Clarabel if
there is a norm ball.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import scipy.sparse as sp

from ffo.kernels.pool import cpus
from ffo.lab.baselines.base import Baseline, Layer, Settings
from ffo.lab.baselines.implicit import Equality, Method, Solved, in_threads
from ffo.lab.tasks.inner import Inner

Array = np.ndarray
#: tolerance of the paper's synthetic task; with a norm ball, that at which Clarabel finds the active set
TOLERANCE, BALL_TOLERANCE = 1e-6, 1e-8
ITERATIONS = 20_000


class BPQP(Method):
    """Forward by OSQP or Clarabel, backward by OSQP."""

    def __init__(self, inner: Inner, tolerance: float | None, backward: float | None = None) -> None:
        super().__init__(inner)
        self.tolerance, self.backward = tolerance or TOLERANCE, backward or tolerance or TOLERANCE
        self.ball_tolerance = tolerance or BALL_TOLERANCE

    def solve(self, q: Array, A: sp.csc_array, b: Array) -> Solved:
        if not self.inner.is_qp:
            return solve_with_ball(self.inner, q, self.ball_tolerance)
        rows = sp.csc_array(sp.vstack([A, self.inner.sparse["G"]]))
        low = np.concatenate([b, np.full(len(self.inner.h), -np.inf)])
        upp = np.concatenate([b, self.inner.h])

        def part(samples: Array) -> list[tuple[Array, Array]]:
            solver = _osqp(self.inner.sparse["Q"], -q[samples[0]], rows, low, upp, self.tolerance)
            found = []
            for k in samples:
                solver.update(q=-q[k])
                found.append(_answer(solver, "forward"))
            return found

        parts = [s for s in np.array_split(np.arange(len(q)), cpus()) if len(s)]
        with ThreadPoolExecutor(len(parts)) as pool:
            found = [pair for group in pool.map(part, parts) for pair in group]
        x, y = (np.stack(v) for v in zip(*found, strict=True))
        nu, lam = np.split(y, [len(b)], axis=1)
        slack = self.inner.h - x @ self.inner.sparse["G"].T
        return Solved(x, nu, lam > slack, np.zeros(len(q)))

    def adjoint(self, problem: Equality) -> tuple[Array, Array]:
        zero = np.zeros(problem.N.shape[0])
        # OSQP's tolerances are absolute: scale the right-hand side to unit size
        scale = np.abs(problem.c).max() or 1.0
        u, w = _answer(_osqp(problem.H, problem.c / scale, problem.N, zero, zero, self.backward), "backward")
        return scale * u, scale * w


def _osqp(P: Any, q: Array, A: Any, low: Array, upp: Array, tolerance: float) -> Any:
    import osqp

    solver = osqp.OSQP()
    upper = sp.csc_matrix(sp.triu(P))
    settings = {"eps_abs": tolerance, "eps_rel": tolerance, "max_iter": ITERATIONS}
    solver.setup(upper, q, sp.csc_matrix(A), low, upp, verbose=False, **settings)
    return solver


def _answer(solver: Any, phase: str) -> tuple[Array, Array]:
    found = solver.solve(raise_error=False)
    if "solved" not in found.info.status:
        raise RuntimeError(f"OSQP, {phase}: {found.info.status}")
    return found.x.copy(), found.y.copy()


def solve_with_ball(inner: Inner, q: Array, tolerance: float) -> Solved:
    """Solutions of the SOCP by Clarabel: rows Gy <= h, then (radius, y) in the second-order cone."""
    import clarabel

    n, m = inner.n, len(inner.h)
    rows = sp.csc_matrix(sp.vstack([inner.sparse["G"], sp.csc_array((1, n)), -sp.eye_array(n)]))
    sides = np.concatenate([inner.h, [inner.radius], np.zeros(n)])
    P = sp.csc_matrix(sp.triu(inner.sparse["Q"]))
    cones = [clarabel.NonnegativeConeT(m), clarabel.SecondOrderConeT(n + 1)]
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = tolerance

    def one(k: int) -> tuple[Array, Array, Array]:
        found = clarabel.DefaultSolver(P, -q[k], rows, sides, cones, settings).solve()
        if "Solved" not in str(found.status):
            raise RuntimeError(f"Clarabel: {found.status}")
        return np.array(found.x), np.array(found.z), np.array(found.s)

    x, z, s = (np.stack(v) for v in zip(*in_threads(one, len(q)), strict=True))
    # mu x is the force of the ball, z_0 x / |x| in the units of the cone
    mu = np.where(z[:, m] > inner.radius - np.linalg.norm(x, axis=1), z[:, m] / inner.radius, 0.0)
    return Solved(x, np.zeros((len(q), 0)), z[:, :m] > s[:, :m], mu)


def _make(inner: Inner, settings: Settings) -> Layer:
    return BPQP(inner, settings.tolerance, settings.backward_tolerance).layer()


BPQP_BASELINE = Baseline(
    "BPQP",
    "conic",
    _make,
    packages=("osqp", "clarabel"),
    settings=frozenset({"tolerance", "backward_tolerance"}),
)
