"""Dense solution of ghost systems: a reference for presolve."""

from __future__ import annotations

import numpy as np

from ffo.program.cone import ConeProgram
from ffo.program.presolve import GhostSolve, Triple


def holding(given: ConeProgram, held: np.ndarray) -> GhostSolve:
    """The ghost system with some rows held as equalities and the others free, solved densely."""

    def solve(r_x: np.ndarray, r_s: np.ndarray) -> Triple:
        u, w = np.zeros(r_x.shape), np.zeros(r_s.shape)
        for k in range(given.batch):
            A = given.A.matrix(k).toarray()[held]
            K = np.block([[given.P.full(k).toarray(), A.T], [A, np.zeros((len(A), len(A)))]])
            found = np.linalg.solve(K, np.concatenate([r_x[k], r_s[k, held]]))
            u[k], w[k, held] = found[: given.n], found[given.n :]
        return u, w, np.zeros(given.batch)

    return solve
