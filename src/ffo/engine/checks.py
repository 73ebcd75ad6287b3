"""Closer looks at data, and at points that a solver, or Newton's method, returns as solutions."""

from __future__ import annotations

import numpy as np

from ffo.kernels.evidence import BURIED
from ffo.program.cone import ConeProgram

Array = np.ndarray

#: largest violation of a row, relative to its terms, at a coarse point that Newton's method found
HELD = 1e-10


def contradictions(program: ConeProgram) -> Array | None:
    """(batch, m) rows without entries that no point satisfies, however small their right-hand sides: 0 <= b < 0, or
    0 = b != 0. None if there are none."""
    empty = program.A.empty_rows
    if empty is None:
        return None
    wrong = np.where(program.cones.equalities, program.b != 0.0, program.b < 0.0) & program.cones.scalar_rows & empty
    return wrong if np.count_nonzero(wrong) else None


def buried(program: ConeProgram, x: Array) -> Array:
    """(batch,) whether all costs q are rounding beside the terms of Px. Then Px + q = 0 does not show that the
    objective is bounded below: P may vanish along x."""
    if not program.P.nnz:
        return np.zeros(len(x), dtype=bool)
    costs, root = np.abs(program.q), np.sqrt(np.abs(program.P.diagonal))  # bounds the rest: |P_ij| <= root_i root_j
    terms = root * (root * np.abs(x)).sum(axis=1, keepdims=True)
    return np.asarray((costs <= BURIED * terms).all(axis=1) & costs.any(axis=1))


def rows_hold(x: Array, s: Array, program: ConeProgram) -> Array:
    """(batch,) whether coarse points that Newton's method found may be solutions: those with more active rows than
    variables only if their scalar rows hold far better than to a tolerance.

    It makes the rows of its face hold to rounding, unless they contradict each other. If more rows than variables do so
    by less than the tolerance, as nearly parallel rows may, the face is wrong, and the solution may be far away.
    """
    with np.errstate(all="ignore"):
        left = program.b - program.A.dot(x)
        left = np.where(program.cones.equalities, np.abs(left), -left)
        terms = program.A.magnitudes.dot(np.abs(x)) + np.abs(program.b)
        broken = program.cones.scalar_rows & (left > HELD * terms)
    crowded = np.count_nonzero(s == 0.0, axis=1) > program.n
    return np.asarray(~(crowded & broken.any(axis=1)))
