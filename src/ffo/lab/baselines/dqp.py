"""dQP, from its description: any QP solver, then the KKT system reduced to the active set.

    [H  N'] [u]   [-c]
    [N  0 ] [w] = [ 0]

with the letters of `implicit`, by a sparse factorization, or least squares if active rows are dependent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import splu

from ffo.lab.baselines.base import Baseline, Layer, Settings
from ffo.lab.baselines.implicit import Equality, Method, Solved, in_threads
from ffo.lab.tasks.inner import Inner

Array = np.ndarray
SOLVER, TOLERANCE = "piqp", 1e-8
#: share of nonzeros above which the solver gets dense matrices
DENSE = 0.2


class DQP(Method):
    """Forward by a solver of the qpsolvers package, backward by SuperLU."""

    def __init__(self, inner: Inner, solver: str, tolerance: float) -> None:
        super().__init__(inner)
        self.solver, self.tolerance = solver, tolerance

    def solve(self, q: Array, A: sp.csc_array, b: Array) -> Solved:
        from qpsolvers import Problem, solve_problem

        dense = A.nnz + self.inner.sparse["G"].nnz > DENSE * (A.shape[0] + len(self.inner.h)) * self.inner.n
        form: Any = (lambda M: M.toarray()) if dense else sp.csc_matrix
        P = form(self.inner.sparse["Q"])
        blocks: dict[str, Any] = {"A": form(A), "b": b} if len(b) else {}
        if self.inner.nonnegative:
            blocks["lb"] = np.zeros(self.inner.n)
        else:
            blocks |= {"G": form(self.inner.sparse["G"]), "h": self.inner.h}
        settings: dict[str, Any] = {"eps_abs": self.tolerance, "eps_rel": self.tolerance}

        def one(k: int) -> tuple[Array, Array, Array]:
            found: Any = solve_problem(Problem(P, -q[k], **blocks), solver=self.solver, **settings)
            if not found.found:
                raise RuntimeError(f"{self.solver} found no solution for sample {k}")
            lam = -found.z_box if self.inner.nonnegative else found.z
            return found.x, found.y if len(b) else np.zeros(0), lam

        x, nu, lam = (np.stack(v) for v in zip(*in_threads(one, len(q)), strict=True))
        slack = self.inner.h - x @ self.inner.sparse["G"].T
        return Solved(x, nu, lam > slack, np.zeros(len(q)))

    def adjoint(self, problem: Equality) -> tuple[Array, Array]:
        n, rows = problem.H.shape[0], problem.N.shape[0]
        K = sp.csc_matrix(sp.block_array([[problem.H, problem.N.T], [problem.N, sp.csc_array((rows, rows))]]))
        right = np.concatenate([-problem.c, np.zeros(rows)])
        try:
            found = splu(K).solve(right)
        except RuntimeError:  # exactly singular
            found = np.linalg.lstsq(K.toarray(), right, rcond=None)[0]
        return found[:n], found[n:]


def _make(inner: Inner, settings: Settings) -> Layer:
    return DQP(inner, (settings.solver or SOLVER).lower(), settings.tolerance or TOLERANCE).layer()


DQP_BASELINE = Baseline(
    "dQP",
    "qp",
    _make,
    packages=("qpsolvers", "piqp"),
    settings=frozenset({"tolerance", "solver"}),
    any_solver=True,
)
