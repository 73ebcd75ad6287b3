"""Residuals of solutions, computed independently: a reference for the solvers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffo.program.cone import ConeProgram, Solution

Array = np.ndarray


@dataclass(frozen=True)
class Residuals:
    """How well a solution satisfies the optimality conditions; (batch,) each, relative.

    primal: |Ax + s - b|, dual: |Px + q + A'y|, gap: |x'Px + q'x + b'y|, cone: distance of s to K and
    of y to K*; each divided by the largest term it is made of.
    """

    primal: Array
    dual: Array
    gap: Array
    cone: Array

    @property
    def worst(self) -> Array:
        return np.maximum.reduce([self.primal, self.dual, self.gap, self.cone])


def residuals(solution: Solution, program: ConeProgram) -> Residuals:
    """Relative residuals of the optimality conditions; NaN where the point is not finite."""
    x, y, s = solution.x, solution.y, solution.s
    Px, Ax, Aty = program.P.dot(x), program.A.dot(x), program.A.tdot(y)
    xPx = np.einsum("ij,ij->i", x, Px)
    qx = np.einsum("ij,ij->i", program.q, x)
    by = np.einsum("ij,ij->i", program.b, y)
    cones = program.cones
    outside = np.maximum(_norm(cones.project(s) - s) / _scale(s), _norm(cones.project_dual(y) - y) / _scale(y))
    return Residuals(
        primal=_norm(Ax + s - program.b) / _scale(Ax, s, program.b),
        dual=_norm(Px + program.q + Aty) / _scale(Px, program.q, Aty),
        gap=np.abs(xPx + qx + by) / np.maximum.reduce([np.ones_like(qx), abs(xPx), abs(qx), abs(by)]),
        cone=outside,
    )


def _norm(v: Array) -> Array:
    return np.abs(v).max(axis=1, initial=0.0)


def _scale(*terms: Array) -> Array:
    largest: Array = np.ones(1)
    for term in terms:
        largest = np.maximum(largest, _norm(term))
    return largest
