"""Iterative refinement: what regularisation, or factors of a neighbouring matrix, left undone."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

Array = np.ndarray

REFINEMENTS = 12
#: a residual that does not shrink to this share of the one before has stalled
STALLED = 0.3


class Refinable(Protocol):
    """The linear systems of a batch, with an approximate inverse."""

    def correction(self, residual: Array) -> Array:
        """Approximate solutions for these right-hand sides."""

    def residual(self, rhs: Array, z: Array) -> Array: ...

    def norms(self, residual: Array) -> Array:
        """(batch,) norms of residuals, in natural units."""

    def moved(self, step: Array, z: Array) -> Array:
        """(batch,) norms of a step relative to those of the unknowns, in natural units."""

    def choose(self, mine: Array, z: Array, other: Array) -> Array:
        """The unknowns of z for the samples that `mine` (batch,) marks, else of the other."""


class Refined(NamedTuple):
    """The best iterates, their residuals, and (batch,) relative residuals and estimated relative errors."""

    z: Array
    residual: Array
    relative: Array
    error: Array


def refine(systems: Refinable, rhs: Array, target: Array | float, allowed: Array | float) -> Refined:
    """Refine until relative residuals reach `target` and errors `allowed`; keeps each sample's best iterate.

    The last step of refinement is as large as the error before it; after it the error is smaller, by the
    ratio by which the residual fell.
    """
    size = systems.norms(rhs)
    best_norm = np.where(size > 0, 1.0, 0.0)
    size = np.where(size > 0, size, 1.0)
    z, residual, best, error = None, rhs, None, best_norm
    for _ in range(REFINEMENTS):
        step = systems.correction(residual)
        z = step if z is None else z + step
        residual = systems.residual(rhs, z)
        norm = systems.norms(residual) / size
        better, stalled = norm < best_norm, ~(norm <= STALLED * best_norm)
        shrunk = norm / np.where(best_norm > 0, best_norm, 1.0)
        if z is not step:
            shrunk *= systems.moved(step, z)
        error = np.where(better, shrunk, error)
        best = z if better.all() else systems.choose(better, z, np.zeros_like(z) if best is None else best)
        best_norm = np.where(better, norm, best_norm)
        if (((best_norm <= target) & (error <= allowed)) | stalled).all():
            break
    assert best is not None
    return Refined(best, residual if best is z else systems.residual(rhs, best), best_norm, error)
