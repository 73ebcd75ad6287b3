"""The paper's own configurations: what the method gives without the engineering around it.

FFOCP: SCS forward, and Algorithm 1 with one SCS solve backward. FFOQP: a QP solver forward, and the closed form of the
ghost backward, a finite difference of which is exact for every step:

    u = -Q^-1 (c + N't),    (N Q^-1 N') t = -N Q^-1 c,

with the letters of `implicit`. Nothing is polished, and the active set is what the solver's answer shows. SCS calls an
answer solved whose error is eps of the largest right-hand side (the budget, 0.2 d_y). From d_y = 500 on, some do
not hold row by row, and the layer asks SCS for them again, with a smaller eps.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import scipy.linalg as sla
import scipy.sparse as sp
import torch

from ffo.lab.baselines.base import Baseline, Layer, Settings
from ffo.lab.baselines.dqp import DQP, SOLVER
from ffo.lab.baselines.implicit import Equality
from ffo.lab.tasks.inner import Inner

Array = np.ndarray
#: accuracy of the paper's decision-focused task, of both solves of FFOCP; and of FFOQP's forward solve
TOLERANCE, FORWARD = 1e-6, 1e-8


def _conic(inner: Inner, settings: Settings) -> Layer:
    from ffo.torch import FFOLayer

    problem, parameters, y = inner.cvxpy()
    eps = settings.tolerance or TOLERANCE
    layer = FFOLayer(
        problem,
        parameters,
        [y],
        solver=settings.solver or "SCS",
        solver_args={"eps": eps},
        backward="resolve",
        backward_eps=settings.backward_tolerance or eps,
        delta=settings.delta,
    )

    def solve(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return layer(*inner.arguments(values))[0]

    return solve


class ClosedFormGhost(DQP):
    """Forward by a solver of the qpsolvers package, backward by the Schur complement of Q."""

    def __init__(self, inner: Inner, solver: str, tolerance: float) -> None:
        super().__init__(inner, solver, tolerance)
        self.inverse = sla.inv(inner.Q)

    def adjoint(self, problem: Equality) -> tuple[Array, Array]:
        N, c = problem.N, problem.c
        if not N.shape[0]:
            return -self.inverse @ c, np.zeros(0)
        W = sp.csr_array(N) @ self.inverse  # (rows, n)
        S, right = W @ N.T, -(W @ c)
        try:
            t = sla.cho_solve(sla.cho_factor(S), right)
        except np.linalg.LinAlgError:  # dependent rows
            t = np.linalg.lstsq(S, right, rcond=None)[0]
        return -self.inverse @ (c + N.T @ t), t


def _quadratic(inner: Inner, settings: Settings) -> Layer:
    solver = (settings.solver or SOLVER).lower()
    return ClosedFormGhost(inner, solver, settings.tolerance or FORWARD).layer()


PAPER = [
    Baseline(
        "FFOCP (paper)",
        "conic",
        _conic,
        packages=("scs", "numba"),
        settings=frozenset({"tolerance", "backward_tolerance", "delta", "solver"}),
        exact=False,
        first_order=True,
        any_solver=True,
        ours=True,
    ),
    Baseline(
        "FFOQP (paper)",
        "qp",
        _quadratic,
        packages=("qpsolvers", "piqp"),
        settings=frozenset({"tolerance", "solver"}),
        any_solver=True,
        ours=True,
    ),
]
