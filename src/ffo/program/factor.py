"""Quadratic forms with a parametric matrix in constraints: z'Pz <= t, through a factor of P.

The program has the cone |(1 - t, 2Mz)| <= 1 + t, in the rows s_0 = 1 + t, s_1 = 1 - t, s_2 = 2Mz. M is the
Cholesky factor of P, or its symmetric square root where P is singular: both move continuously with P, so that
remembered solutions stay near. No factor is differentiable where P is singular; the solution is. Its derivative comes
from the form itself, whose multiplier is lam = y_0 - y_1: when P moves by dP, the optimality conditions change by what

    dq = 2 lam dP z  in the columns of z,    (db_0, db_1) = (-z'dPz, z'dPz)

would change them by. With the gradients u in q and g in b, dL/dP = lam (u z' + z u') + (g_1 - g_0) z z', at any rank of
P; where P is singular, it is the derivative along all directions into the cone of semidefinite matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ffo.program.affine import DataGradient

Array = np.ndarray

#: matrices with a smallest eigenvalue below this share of the largest count as having no Cholesky factor
SINGULAR = 1e-13


@dataclass(frozen=True)
class Factor:
    """Where the form stands: `columns` (n,) of z, `rows` (2,) of the cone; sign: -1, or +1 to add up magnitudes."""

    columns: Array
    rows: Array
    sign: float = -1.0

    @property
    def magnitude(self) -> Factor:
        return replace(self, sign=1.0)

    def matrix(self, theta: Array) -> Array:
        """Factors of matrices, (n * n,) or (batch, n * n)."""
        n = len(self.columns)
        P = theta.reshape(-1, n, n)
        finite = np.isfinite(P).all(axis=(1, 2))
        P = 0.5 * (P + P.swapaxes(1, 2))
        if not finite.all():
            P = np.where(finite[:, None, None], P, np.eye(n))
        try:
            M = np.linalg.cholesky(P).swapaxes(1, 2)
        except np.linalg.LinAlgError:
            M = _roots(P)
        M = np.array(M, order="C")
        M[~finite] = np.nan
        return M.reshape(theta.shape)

    def gradient(self, g: DataGradient) -> Array:
        """dL/dP, (batch, n * n)."""
        z, u = g.x[:, self.columns], g.u[:, self.columns]
        form = self._multiplier(g.y)[:, None, None] * (u[:, :, None] * z[:, None, :])
        side = self.sign * self._multiplier(g.db)  # g_1 - g_0
        both = form + form.swapaxes(1, 2) + side[:, None, None] * (z[:, :, None] * z[:, None, :])
        return both.reshape(len(z), -1)

    def change(self, dP: Array, x: Array, y: Array) -> tuple[Array, Array]:
        """dq (batch, n) and db (batch, 2) along dP (n * n,) or (batch, n * n)."""
        n = len(self.columns)
        z = x[:, self.columns]
        dP = dP.reshape(-1, n, n)
        moved = np.einsum("...ij,...j->...i", 0.5 * (dP + dP.swapaxes(1, 2)), z)
        size = np.einsum("ij,ij->i", z, moved)
        return 2.0 * self._multiplier(y)[:, None] * moved, np.stack([-size, size], axis=1)

    def _multiplier(self, v: Array) -> Array:
        return v[:, self.rows[0]] + self.sign * v[:, self.rows[1]]


def _roots(P: Array) -> Array:
    """Cholesky factors of the matrices that have one, symmetric square roots of the others: (batch, n, n)."""
    w, V = np.linalg.eigh(P)
    definite = w[:, 0] > SINGULAR * w[:, -1]
    M = (V * np.sqrt(np.maximum(w, 0.0))[:, None, :]) @ V.swapaxes(1, 2)
    if definite.any():
        M[definite] = np.linalg.cholesky(P[definite]).swapaxes(1, 2)
    return M
