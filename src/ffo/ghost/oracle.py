"""Algorithm 1: the hypergradient as a finite difference along the perturbed ghost solution.

Let (x_d, y_d) = (x, y) + d (u, w) solve the ghost problem perturbed by d c (P3), and let
L(theta; x, y) = 1/2 x'Px + q'x + y'(Ax - b) be the Lagrangian at data theta = (P, q, A, b). The
finite difference of its gradient in the data, taken centrally,

    v = ( grad L(theta; x_d, y_d) - grad L(theta; x_-d, y_-d) ) / 2d,

is   dP = sym(u x'),  dq = u,  dA = y u' + w x',  db = -w   for every d: the ghost solution is linear in
d and the quadratic terms cancel, so the O(d) error of the one-sided difference is not there at all.
Loss gradients in the slack s = b - Ax add c_s to db and -c_s x' to dA.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ffo.ghost.ball import BallLayout, layout_of
from ffo.ghost.certificate import WEAK, Certificate
from ffo.ghost.direct import Direct
from ffo.ghost.face import ActiveSet, scale
from ffo.ghost.flat import is_flat, polish_flat
from ffo.ghost.newton import from_nothing, polish_balls
from ffo.ghost.polish import Part, Polished, polish
from ffo.ghost.problem import GhostSystem, Sensitivity, Way
from ffo.program.affine import DataGradient
from ffo.program.cone import ConeProgram, Solution

Array = np.ndarray


@dataclass(frozen=True)
class Linearization:
    """A batch of solutions and their derivative, in both directions; `measured`: see `Polished`."""

    program: ConeProgram
    x: Array
    y: Array
    s: Array
    parts: tuple[Part, ...]
    certificate: Certificate
    measured: Array | None = field(default=None, kw_only=True)

    def take(self, samples: Array) -> Linearization:
        """The linearization of some (distinct) samples; solvers are shared with this one."""
        certificate = Certificate(**{k: v[samples] for k, v in vars(self.certificate).items()})
        return _Some(
            self.program.take(samples),
            self.x[samples],
            self.y[samples],
            self.s[samples],
            (),
            certificate,
            self,
            samples,
        )

    def sensitivity(self, r_x: Array, r_s: Array) -> Sensitivity:
        """Solve the ghost system; r_x (batch, n), r_s (batch, m)."""
        if len(self.parts) == 1 and self.parts[0].mine.sum() == len(self.x):
            return self.parts[0].solver.solve(r_x, r_s)
        batch = len(self.x)
        u, w = np.zeros_like(self.x), np.zeros_like(self.y)
        residual = np.zeros(batch)
        for part in self.parts:
            if not part.mine.any():
                continue
            found = part.solver.solve(r_x[part.members], r_s[part.members])
            mine = part.members[part.mine]
            u[mine], w[mine], residual[mine] = found.u[part.mine], found.w[part.mine], found.residual[part.mine]
        return Sensitivity(u, w, residual)

    def adjoint(self, c_x: Array, c_y: Array, c_s: Array | None = None) -> tuple[DataGradient, Array]:
        """Loss gradients in the solution -> gradient in the data, and the ghost residual (batch,)."""
        r_x = -c_x if c_s is None else -(c_x - self.program.A.tdot(c_s))
        found = self.sensitivity(r_x, -c_y)
        v = found.w if c_s is None else found.w - c_s
        return DataGradient(self.x, self.y, found.u, v, -v), found.residual

    def tangent(self, change: ConeProgram) -> Sensitivity:
        """Derivative u = dx, w = dy of the solution along a change of the data (dP, dq, dA, db)."""
        return self.sensitivity(-change.stationarity(self.x, self.y), change.slack(self.x))


@dataclass(frozen=True)
class _Some(Linearization):
    """Some samples of another linearization."""

    whole: Linearization
    samples: Array

    def sensitivity(self, r_x: Array, r_s: Array) -> Sensitivity:
        full_x, full_s = np.zeros_like(self.whole.x), np.zeros_like(self.whole.y)
        full_x[self.samples], full_s[self.samples] = r_x, r_s
        found = self.whole.sensitivity(full_x, full_s)
        return Sensitivity(found.u[self.samples], found.w[self.samples], found.residual[self.samples])


def linearize(program: ConeProgram, solution: Solution, way: Way) -> Linearization:
    """Polish a solution (if the way can) and make its derivative ready."""
    x, y, s = solution.x, solution.y, solution.s
    layout = layout_of(program) if isinstance(way, Direct) else None
    if isinstance(way, Direct) and is_flat(program):
        done = polish_flat(program, x, y, s, way)
    elif layout is not None:
        done = polish_balls(program, x, y, s, layout, way)
    elif way.polishes:
        done = polish(program, x, y, s, way)
    else:
        done = _as_it_is(program, solution, way)
    return _linearization(program, done)


def linearize_from_nothing(program: ConeProgram, layout: BallLayout) -> tuple[Linearization, Array]:
    """Solve a program by Newton's method, and make its derivative ready; also the numbers of steps (batch,).

    Residuals of samples on which that fails are infinite.
    """
    done, steps = from_nothing(program, layout)
    return _linearization(program, done), steps


def _linearization(program: ConeProgram, done: Polished) -> Linearization:
    return Linearization(program, done.x, done.y, done.s, done.parts, done.certificate, measured=done.measured)


def _as_it_is(program: ConeProgram, solution: Solution, way: Way) -> Polished:
    sizes = scale(program, solution.x, solution.y, solution.s)
    active = ActiveSet(program, solution.s - sizes.tau * solution.y, sizes.tau)
    everyone = np.arange(program.batch)
    part = Part(everyone, np.ones(program.batch, dtype=bool), way.solver(GhostSystem(program, active)))
    residual = solution.residuals(program).worst
    block = program.cones.block_norms(sizes.rows) * sizes.primal[:, None]
    # An interior-point answer errs by about the square root of its residual, and differences of such
    # answers by that to the power 2/3.
    ratio = (np.sqrt(residual)[:, None] * block / np.maximum(active.margin, 1e-300)).max(axis=1, initial=0.0)
    certificate = Certificate.before_backward(
        unsettled=np.zeros(program.batch, dtype=bool),
        margin_ratio=ratio,
        weakly_active=(active.margin <= WEAK * block).any(axis=1),
        error=np.cbrt(residual),
        natural_residual=residual,
        dependent=part.solver.dependent(),
    )
    return Polished(solution.x, active.y, active.s, (part,), certificate)
