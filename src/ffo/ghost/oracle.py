"""Algorithm 1: the hypergradient as a finite difference along the perturbed ghost solution.

Let (x_d, y_d) = (x, y) + d (u, w) solve the ghost problem perturbed by d c (P3), and let
L(theta; x, y) = 1/2 x'Px + q'x + y'(Ax - b) be the Lagrangian at data theta = (P, q, A, b). The
finite difference of its gradient in the data, taken centrally,

    v = ( grad L(theta; x_d, y_d) - grad L(theta; x_-d, y_-d) ) / 2d,

is   dP = sym(u x'),  dq = u,  dA = y u' + w x',  db = -w   for every d: the ghost solution is linear in
d and the quadratic terms cancel, so there is no O(d) error as in a one-sided difference.
Loss gradients in the slack s = b - Ax add c_s to db and -c_s x' to dA.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ffo.ghost.certificate import Certificate
from ffo.program.affine import DataGradient
from ffo.program.cone import ConeProgram, Solution

Array = np.ndarray

#: columns of `Sensitivity.sees` for ghost systems with null vectors: whether u (w) is more than rounding, and whether
#: it has nonzero entries where a null vector has; and whether u depends on the curvature of blocks whose multipliers
#: change along a null vector
LARGE_U, LARGE_W, MEETS_U, MEETS_W, BENDS = range(5)
SEES = 5


class Sensitivity(NamedTuple):
    """A solution of the ghost system, and evidence about it.

    Attributes:
        u, w: (batch, n), (batch, m).
        residual: (batch,) relative residual.
        kinked: (batch,) whether the solution depends on which weakly active rows count as active.
        sees: (batch, SEES) which parts of the solution null vectors could change.
    """

    u: Array
    w: Array
    residual: Array
    kinked: Array
    sees: Array

    def take(self, samples: Array) -> Sensitivity:
        """Select some samples."""
        return Sensitivity(*(v[samples] for v in self))


class NullVectors(NamedTuple):
    """Random null vectors of the ghost systems of some samples (count,); a sample may have several.

    Along u (count, n) the solution is not unique; along w (count, m) active rows depend on each other.
    """

    samples: Array
    u: Array
    w: Array

    def take(self, samples: Array) -> NullVectors:
        """Those of some (distinct) samples, renumbered by position in `samples`."""
        place = np.full(max(samples.max(initial=0), self.samples.max(initial=0)) + 1, -1)
        place[samples] = np.arange(len(samples))
        here = place[self.samples]
        return NullVectors(here[here >= 0], self.u[here >= 0], self.w[here >= 0])


@dataclass(frozen=True)
class Linearization(ABC):
    """A batch of solutions and their derivative, in both directions."""

    program: ConeProgram
    x: Array
    y: Array
    s: Array

    @property
    @abstractmethod
    def certificate(self) -> Certificate:
        """How far to trust derivatives, before any is taken."""

    @property
    @abstractmethod
    def start_residual(self) -> Array:
        """(batch,) residual of the given point relative to the largest terms of its program, as solvers measure it."""

    @abstractmethod
    def sensitivity(self, r_x: Array, r_s: Array, samples: Array | None = None) -> Sensitivity:
        """Solve the ghost systems of some samples (None: of all); r_x (samples, n), r_s (samples, m)."""

    @property
    @abstractmethod
    def null(self) -> NullVectors:
        """Null vectors of the samples whose ghost systems are singular."""

    @property
    def regular(self) -> bool:
        """Whether there are none."""
        return not len(self.null.samples)

    @property
    def dependent(self) -> Array:
        """(batch,) whether active constraints, not all of them equalities, depend on each other."""
        found, null = np.zeros(len(self.x), dtype=bool), self.null
        found[null.samples[null.w[:, ~self.program.cones.equalities].any(axis=1)]] = True
        return found

    def take(self, samples: Array) -> Linearization:
        """The linearization of some (distinct) samples; factors are shared with this one."""
        x, y, s = (v[samples] for v in (self.x, self.y, self.s))
        return _Some(self.program.take(samples), x, y, s, self, samples)

    def adjoint(self, c_x: Array, c_y: Array, c_s: Array | None = None) -> tuple[DataGradient, Array]:
        """Loss gradients in the solution -> gradient in the data, and the ghost residual (batch,)."""
        r_x = -c_x if c_s is None else -(c_x - self.program.A.tdot(c_s))
        found = self.sensitivity(r_x, -c_y)
        v = found.w if c_s is None else found.w - c_s
        return DataGradient(self.x, self.y, found.u, v), found.residual

    def tangent(self, change: ConeProgram) -> Sensitivity:
        """Derivative u = dx, w = dy of the solution along a change of the data (dP, dq, dA, db)."""
        return self.sensitivity(-change.stationarity(self.x, self.y), change.slack(self.x))


@dataclass(frozen=True)
class _Some(Linearization):
    """Some samples of another linearization."""

    whole: Linearization
    samples: Array

    @cached_property
    def certificate(self) -> Certificate:
        return Certificate(**{k: v[self.samples] for k, v in vars(self.whole.certificate).items()})

    @property
    def start_residual(self) -> Array:
        return self.whole.start_residual[self.samples]

    def sensitivity(self, r_x: Array, r_s: Array, samples: Array | None = None) -> Sensitivity:
        return self.whole.sensitivity(r_x, r_s, self.samples if samples is None else self.samples[samples])

    @property
    def null(self) -> NullVectors:
        return self.whole.null.take(self.samples)


class Way(ABC):
    """A way to solve ghost systems."""

    @property
    def polishes(self) -> bool:
        """Whether solutions are polished with this way's solves before differentiating."""
        return True

    @property
    def factorizes(self) -> bool:
        """Whether ghost systems are factorized, so that Newton's method from zero is worth a try."""
        return False

    @abstractmethod
    def linearize(self, program: ConeProgram, solution: Solution) -> Linearization:
        """Polish a solution (if the way can) and prepare its derivative."""


def linearize(program: ConeProgram, solution: Solution, way: Way) -> Linearization:
    """Polish a solution (if the way can) and prepare its derivative."""
    return way.linearize(program, solution)
