"""Advice that a layer gives once: on correct results that are rarely what a user wants."""

from __future__ import annotations

import numpy as np

from ffo.cones import Nonneg, Zero
from ffo.program.affine import DataGradient
from ffo.program.cone import ConeProgram

Array = np.ndarray

#: relative change of the solution that counts as none
STILL = 1e-10
VERTEX = (
    "the gradient with respect to the costs is zero: the solution of a problem with a linear objective is a vertex, "
    "which does not move when the costs change a little. To train on it, use smoothing=Smoothing(costs=...), add a "
    "small quadratic term, or use a loss of ffo.torch.decision (docs/linear_programs.md). This warning is issued once "
    "per layer"
)


def tells_nothing(program: ConeProgram, c_x: Array, gradient: DataGradient) -> bool:
    """Whether all samples are vertices of linear programs, so that a loss that sees them has no gradient in the costs.

    Args:
        c_x: (batch, n) gradient of the loss in the solution; gradient: of the loss in the data.
    """
    if program.P.nnz or not program.cones.kinds <= {Zero, Nonneg}:
        return False
    sides = np.where(np.isfinite(program.b), program.b, 0.0)
    return stands_still(c_x, gradient.x, gradient.u, program.q, _largest(program.A.values), _largest(sides))


def stands_still(
    c_x: Array, x: Array, u: Array, q: Array, entries: Array | float = 1.0, sides: Array | float = 0.0
) -> bool:
    """Whether a loss with gradient c_x at the solutions x has no gradient u in the costs q, (batch, n) each. The scale
    of x is its size or, for a solution at the origin, that of right-hand sides over entries of the matrix."""
    seen = _largest(c_x) * np.maximum(_largest(x) * entries, sides)
    with np.errstate(invalid="ignore"):  # infinite costs of a failed sample
        moved = _largest(u) * _largest(q) * entries
    return bool((seen > 0).any() and (moved <= STILL * seen).all())


def _largest(v: Array) -> Array:
    """(batch,) largest magnitudes; one number if the batch shares the values."""
    return np.abs(v).max(axis=-1, initial=0.0)
