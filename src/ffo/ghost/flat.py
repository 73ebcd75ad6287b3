"""Flat faces: where all constraints are equalities and inequalities, an active set decides everything.

The ghost problem of an active set, with right-hand side (-q, b), is the equality-constrained problem whose
solution is that of the program, if the set is the right one. So an active set that was remembered, or read
off a solver's answer, is tried by one solve, and what comes out is verified: multipliers of active
inequalities and slacks of the others have the right signs, and the optimality conditions hold to rounding.
Where signs are wrong, they name the next set to try (a Newton step). Samples that are not settled so, or
whose matrix is nearly singular, are left to `polish`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ffo.cones.zero import Zero
from ffo.ghost.certificate import WEAK, Certificate
from ffo.ghost.direct import ACCURACY, INCONSISTENT, REFINEMENTS, SMALL_ERROR, SMALL_PIVOT, Direct, DirectSolver
from ffo.ghost.face import ActiveSet, Scale, scale
from ffo.ghost.layout import BoundRows, CutFactors, Layout
from ffo.ghost.polish import Part, Polished, polish
from ffo.ghost.problem import GhostSolver, GhostSystem, Sensitivity
from ffo.program.cone import ConeProgram

Array = np.ndarray

#: active sets that are tried for one sample
TRIALS = 4
#: natural residual up to which a trial counts as a solution
EXACT = 1e-12


def is_flat(program: ConeProgram) -> bool:
    """Whether there are constraints, all of them equalities and inequalities."""
    return program.m > 0 and all(cone.scalar for cone, _ in program.cones.blocks)


def polish_flat(program: ConeProgram, x: Array, y: Array, s: Array, way: Direct) -> Polished:
    """Solve for the active sets of approximate solutions of a flat program; `s` is the solver's own slack."""
    sizes = scale(program, x, y, s)
    trials = _Trials(program, sizes, way)
    trials.run(_equalities(program) | (s - sizes.tau * y < 0))
    rest = np.flatnonzero(~trials.settled)
    if len(rest) == program.batch:
        return polish(program, x, y, s, way)
    if not len(rest):
        return trials.polished
    return _merged(trials, rest, polish(program.take(rest), x[rest], y[rest], s[rest], way))


def _equalities(program: ConeProgram) -> Array:
    """(m,) true for rows of equalities."""
    found = np.zeros(program.m, dtype=bool)
    for group in program.cones.groups:
        found[group.index.ravel()] = isinstance(group.cone, Zero)
    return found


class _Trials:
    """The samples that are settled so far."""

    def __init__(self, program: ConeProgram, sizes: Scale, way: Direct) -> None:
        batch, n, m = program.batch, program.n, program.m
        self.program, self.sizes, self.way = program, sizes, way
        self.x, self.y, self.s = np.zeros((batch, n)), np.zeros((batch, m)), np.zeros((batch, m))
        self.settled = np.zeros(batch, dtype=bool)
        self.natural, self.ratio = np.full(batch, np.inf), np.full(batch, np.inf)
        self.weak = np.zeros(batch, dtype=bool)
        self.parts: list[Part] = []

    def run(self, active: Array) -> None:
        """Try active sets (batch, m), and those that they lead to."""
        inequality = ~_equalities(self.program)
        layout = self.way.layout(self.program)
        pending = np.arange(self.program.batch)
        for _ in range(TRIALS):
            everyone = len(pending) == self.program.batch
            program, sizes = self.program, self.sizes
            if not everyone:
                program, sizes = program.take(pending), sizes.take(pending)
                layout = layout if layout.K.shared else self.way.layout(program)
            solver = FlatSolver(program, layout, active, sizes, self.way.remember)
            trial = _Trial(solver, inequality)
            good = trial.settled
            self._keep(pending, trial, good)
            again = np.flatnonzero(~good & trial.moved)
            if not len(again):
                break
            pending, active = pending[again], trial.next[again]

    def _keep(self, who: Array, trial: _Trial, good: Array) -> None:
        if not good.any():
            return
        mine = who[good]
        self.x[mine], self.y[mine], self.s[mine] = trial.x[good], trial.y[good], trial.s[good]
        self.natural[mine], self.ratio[mine], self.weak[mine] = trial.natural[good], trial.ratio[good], trial.weak[good]
        self.settled[mine] = True
        trial.solver.trusted = good
        self.parts.append(Part(who, good, trial.solver))

    @property
    def polished(self) -> Polished:
        certificate = Certificate(
            unsettled=~self.settled,
            margin_ratio=self.ratio,
            weakly_active=self.weak,
            error=self.natural.copy(),
            natural_residual=self.natural,
            ghost_residual=np.full(self.program.batch, np.nan),
        )
        return Polished(self.x, self.y, self.s, tuple(self.parts), certificate)


def _merged(trials: _Trials, rest: Array, others: Polished) -> Polished:
    """Settled samples, and the rest as it was polished."""
    whole = trials.polished
    for mine, theirs in ((whole.x, others.x), (whole.y, others.y), (whole.s, others.s)):
        mine[rest] = theirs
    for name, values in vars(whole.certificate).items():
        values[rest] = getattr(others.certificate, name)
    parts = tuple(Part(rest[part.members], part.mine, part.solver) for part in others.parts)
    return Polished(whole.x, whole.y, whole.s, whole.parts + parts, whole.certificate)


class _Trial:
    """One active set (batch, m) for every sample, solved for and verified."""

    def __init__(self, solver: FlatSolver, inequality: Array) -> None:
        self.solver, program, active = solver, solver.program, solver.active
        found = solver.solve(-program.q, program.b)
        self.x, self.y = found.u, found.w
        slack = program.slack(self.x)
        self.s = np.where(active, 0.0, slack)
        self.sizes = scale(program, self.x, self.y, self.s)
        w = slack - self.sizes.tau * self.y
        below = w < 0
        self.next = below | ~inequality
        same = (self.next == active).all(axis=1)
        self.moved = ~same & np.isfinite(w).all(axis=1)
        signed = ((self.y >= 0) | ~inequality).all(axis=1)
        self.natural = self._natural(program, slack, active)
        distance = np.abs(w) / (self.sizes.rows * self.sizes.primal[:, None])
        nearest = distance[:, inequality].min(axis=1, initial=np.inf)
        self.ratio = self.natural / np.maximum(nearest, 1e-30)
        self.weak = nearest <= WEAK
        exact = (self.natural <= EXACT) & (found.residual <= INCONSISTENT)
        self.settled = same & signed & exact & solver.regular

    def _natural(self, program: ConeProgram, slack: Array, active: Array) -> Array:
        """(batch,) residual of the optimality conditions, in natural units."""
        dual = np.abs(program.stationarity(self.x, self.y)).max(axis=1, initial=0.0) / self.sizes.dual
        held = np.abs(np.where(active, slack, 0.0)) / self.sizes.rows
        return np.maximum(dual, held.max(axis=1, initial=0.0) / self.sizes.primal)


@dataclass
class _Bound:
    """The bounds of one kind that hold: (batch, n) where, and their coefficients."""

    rows: BoundRows
    held: Array

    def fixed(self, r_s: Array) -> Array:
        """(batch, n) u of the variables that these bounds fix."""
        return np.where(self.held, r_s[:, self.rows.row] / self.rows.coefficient, 0.0)

    def put(self, w: Array, left: Array) -> None:
        """Their multipliers, which take up what is left of r_x."""
        there = self.rows.there
        value = np.where(self.held, left / self.rows.coefficient, 0.0)
        w[:, self.rows.row[there]] = value if there.all() else value[:, there]


class FlatSolver(GhostSolver):
    """The ghost system of active sets (batch, m): variables at bounds eliminated, the rest factorized.

    Attributes:
        sizes: natural sizes near the solution, in which residuals are compared.
        trusted: (batch,) samples whose solutions matter.
    """

    def __init__(self, program: ConeProgram, layout: Layout, active: Array, sizes: Scale, remember: bool) -> None:
        self.program, self.layout, self.active, self.sizes = program, layout, active, sizes
        self.bounds = [_Bound(rows, active[:, rows.row] & rows.there) for rows in layout.bounds]
        self.twice = (self.bounds[0].held & self.bounds[1].held).any(axis=1)
        fixed = self.bounds[0].held | self.bounds[1].held
        self.keep = np.concatenate([~fixed, active[:, layout.rows]], axis=1)
        self._factors = CutFactors(layout, self.keep, remember)
        own = (sizes.dual / sizes.primal)[:, None] / sizes.rows[:, layout.rows]
        #: (batch, n + g) factors that make the residuals of rows comparable with those of u
        self._units = np.concatenate([np.ones((program.batch, layout.n)), own], axis=1)
        self.trusted = np.zeros(program.batch, dtype=bool)

    @property
    def regular(self) -> Array:
        """(batch,) whether no active rows depend on each other, nor nearly so."""
        return ~self.twice & (self._factors.smallest_pivot > SMALL_PIVOT)

    @cached_property
    def system(self) -> GhostSystem:
        """The same system for other solvers."""
        tau = self.sizes.tau
        return GhostSystem(self.program, ActiveSet(self.program, np.where(self.active, -tau, tau), tau))

    def solve(self, r_x: Array, r_s: Array, accuracy: Array | None = None) -> Sensitivity:
        n, K = self.layout.n, self.layout.K
        fixed = self.bounds[0].fixed(r_s) + self.bounds[1].fixed(r_s)
        whole = np.concatenate([r_x, r_s[:, self.layout.rows]], axis=1)
        start = np.zeros_like(whole)
        start[:, :n] = fixed
        rhs = np.where(self.keep, whole - K.dot(start) if fixed.any() else whole, 0.0)
        target = ACCURACY if accuracy is None else np.maximum(accuracy, ACCURACY)
        z, relative, error = self._refine(rhs, _norm(fixed), target, SMALL_ERROR if accuracy is None else np.inf)
        relative = np.maximum(relative, error) if accuracy is None else relative
        z += start
        w = np.zeros_like(r_s)
        w[:, self.layout.rows] = z[:, n:]
        left = r_x - K.dot(z)[:, :n]
        for bound in self.bounds:
            bound.put(w, left)
        u = z[:, :n]
        doubtful = np.flatnonzero(self.trusted & ~(relative <= INCONSISTENT))
        if len(doubtful):
            other = self._general.solve(r_x, r_s, accuracy)
            u[doubtful], w[doubtful], relative[doubtful] = (v[doubtful] for v in (other.u, other.w, other.residual))
        return Sensitivity(u, w, relative)

    @cached_property
    def _general(self) -> DirectSolver:
        return DirectSolver(self.system)

    def _refine(self, rhs: Array, fixed: Array, target: Array | float, allowed: float) -> tuple[Array, Array, Array]:
        """Iterative refinement, as in `DirectSolver`; `fixed` (batch,) is the norm of what is eliminated."""
        K, units = self.layout.K, self._units
        size = _norm(rhs * units)
        size = np.where(size > 0, size, 1.0)
        best, best_norm = np.zeros_like(rhs), _norm(rhs * units) / size
        error = np.where(best_norm > 0, 1.0, 0.0)
        z, residual = best, rhs
        for _ in range(REFINEMENTS):
            step = self._factors.solve(residual)
            z = z + step
            residual = np.where(self.keep, rhs - K.dot(z), 0.0)
            norm = _norm(residual * units) / size
            better = norm < best_norm
            shrunk = norm / np.where(best_norm > 0, best_norm, 1.0)
            moved = _norm(step / units) / np.maximum(np.hypot(_norm(z / units), fixed), 1e-300)
            error = np.where(better, moved * shrunk, error)
            best = z if better.all() else np.where(better[:, None], z, best)
            stalled = ~(norm <= 0.3 * best_norm)
            best_norm = np.where(better, norm, best_norm)
            if (((best_norm <= target) & (error <= allowed)) | stalled).all():
                break
        return best, best_norm, error


def _norm(v: Array) -> Array:
    return np.sqrt(np.einsum("ij,ij->i", v, v))
