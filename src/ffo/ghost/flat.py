"""Flat faces: where all constraints are equalities and inequalities, an active set decides everything.

The ghost problem of an active set, with right-hand side (-q, b), is the equality-constrained problem whose
solution is that of the program, if the set is the right one. So an active set that was remembered, or read
off a solver's answer, is tried by one solve, and what comes out is verified: multipliers of active
inequalities and slacks of the others have the right signs, and the optimality conditions hold to rounding.
Where signs are wrong, they name the next set to try (a Newton step). Samples that are not settled so, or
whose matrix is nearly singular, are left to `polish`.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np

from ffo.cones.product import Product
from ffo.cones.zero import Zero
from ffo.ghost.certificate import WEAK, Certificate
from ffo.ghost.direct import INCONSISTENT, SMALL_ERROR, Direct, DirectSolver
from ffo.ghost.face import ActiveSet, scale
from ffo.ghost.layout import BoundRows, CutFactors, Layout
from ffo.ghost.polish import Part, Polished, polish
from ffo.ghost.problem import GhostSolver, GhostSystem, Sensitivity
from ffo.ghost.refinement import refine
from ffo.probes import PROBE
from ffo.program.cone import ConeProgram
from ffo.program.sparse import span

Array = np.ndarray

#: active sets that are tried for one sample
TRIALS = 4
#: relative residual of solves; where it is larger, one more step of refinement removes the rest
ROUNDING = 1e-14
#: natural residual up to which a trial counts as a solution
EXACT = 1e-12


def is_flat(program: ConeProgram) -> bool:
    """Whether there are constraints, all of them equalities and inequalities (and an objective with curvature:
    matrices of linear programs are too near singular to be solved without looking)."""
    return program.m > 0 and program.P.nnz > 0 and all(cone.scalar for cone, _ in program.cones.blocks)


def polish_flat(program: ConeProgram, x: Array, y: Array, s: Array, way: Direct) -> Polished:
    """Solve for the active sets of approximate solutions of a flat program; `s` is the solver's own slack."""
    trials = _Trials(program, way)
    with np.errstate(all="ignore"):  # wrong active sets may lead anywhere
        trials.run(_equalities(program.cones)[0] | _active(program, x, y, s))
    rest = np.flatnonzero(~trials.settled)
    if len(rest) == program.batch:
        return polish(program, x, y, s, way)
    if not len(rest):
        return trials.polished
    return trials.polished.with_rest(rest, polish(program.take(rest), x[rest], y[rest], s[rest], way))


def _active(program: ConeProgram, x: Array, y: Array, s: Array) -> Array:
    """(batch, m) the rows that a point calls active, comparing s with tau y."""
    if not (s * y).any():
        return y > 0  # whatever tau is
    return s - scale(program, x, y, s).tau * y < 0


@lru_cache(maxsize=16)
def _equalities(cones: Product) -> tuple[Array, Array | slice]:
    """(m,) true for rows of equalities, and where the others are."""
    found = np.zeros(cones.dim, dtype=bool)
    for group in cones.groups:
        found[group.index.ravel()] = isinstance(group.cone, Zero)
    return found, span(np.flatnonzero(~found))


class _Trials:
    """The samples that are settled so far."""

    def __init__(self, program: ConeProgram, way: Direct) -> None:
        batch, n, m = program.batch, program.n, program.m
        self.program, self.way = program, way
        self.x, self.y, self.s = np.empty((batch, n)), np.empty((batch, m)), np.empty((batch, m))
        self.settled = np.zeros(batch, dtype=bool)
        self.natural, self.measured, self.ratio = (np.full(batch, np.inf) for _ in range(3))
        self.weak = np.zeros(batch, dtype=bool)
        self.parts: list[Part] = []

    def run(self, active: Array) -> None:
        """Try active sets (batch, m), and those that they lead to."""
        inequality = _equalities(self.program.cones)[1]
        layout = self.way.layout(self.program)
        pending = np.arange(self.program.batch)
        for _ in range(TRIALS):
            everyone = len(pending) == self.program.batch
            program = self.program
            if not everyone:
                program = program.take(pending)
                layout = layout if layout.K.shared else self.way.layout(program)
            remember = self.way.remember and layout.again
            trial = _Trial(FlatSolver(program, layout, active, remember), inequality)
            good = trial.settled
            self._keep(pending, trial, good)
            again = np.flatnonzero(~good & trial.moved)
            if not len(again):
                break
            pending, active = pending[again], trial.next(again)

    def _keep(self, who: Array, trial: _Trial, good: Array) -> None:
        if not good.any():
            return
        trial.solver.trusted = good
        self.parts.append(Part(who, good, trial.solver))
        if len(good) == self.program.batch and good.all():
            self.x, self.y, self.s, self.settled = trial.x, trial.y, trial.s, good
            self.natural, self.measured, self.ratio, self.weak = trial.natural, trial.measured, trial.ratio, trial.weak
            return
        mine = who[good]
        self.x[mine], self.y[mine], self.s[mine] = trial.x[good], trial.y[good], trial.s[good]
        self.natural[mine], self.measured[mine] = trial.natural[good], trial.measured[good]
        self.ratio[mine], self.weak[mine] = trial.ratio[good], trial.weak[good]
        self.settled[mine] = True

    @property
    def polished(self) -> Polished:
        certificate = Certificate.before_backward(
            unsettled=~self.settled,
            margin_ratio=self.ratio,
            weakly_active=self.weak,
            error=self.natural.copy(),
            natural_residual=self.natural,
        )
        return Polished(self.x, self.y, self.s, tuple(self.parts), certificate, self.measured)


class _Trial:
    """One active set (batch, m) for every sample, solved for and verified.

    Attributes:
        x, y, s: the solution on the active set; settled: (batch,) where it is that of the program.
        natural, measured: (batch,) residuals of the optimality conditions, in natural units and absolute ones.
        ratio, weak: (batch,) see `Certificate`.
        moved: (batch,) where signs name another set to try.
    """

    def __init__(self, solver: FlatSolver, inequality: Array | slice) -> None:
        self.solver, self._inequality = solver, inequality
        program, active = solver.program, solver.active
        found, left = solver.solve_openly(-program.q, program.b)
        self.x, self.y = found.u, found.w
        slack = program.slack(self.x)
        self.s = np.where(active, 0.0, slack)
        sizes = scale(program, self.x, self.y, self.s)
        # bounds that hold, and stationarity in their variables, are met by construction
        left *= solver.keep
        n, rows = solver.layout.n, solver.layout.rows
        force, held = left[:, :n], left[:, n:]
        # y >= 0 and s >= 0 are complementary: this is all that is left of the duality gap
        gap = np.einsum("ij,ij->i", self.y[:, rows], held) - np.einsum("ij,ij->i", self.x, force)
        largest = _max(force)
        self.measured = np.maximum.reduce([largest, _max(held), np.abs(gap)])
        self.natural = np.maximum(largest / sizes.dual, _max(held / sizes.rows[:, rows]) / sizes.primal)
        w = (slack - sizes.tau * self.y)[:, inequality]
        self._below = w < 0
        same = (self._below == active[:, inequality]).all(axis=1)
        self.moved = ~same & np.isfinite(self.natural) & solver.regular
        nearest = (np.abs(w) / sizes.rows[:, inequality]).min(axis=1, initial=np.inf) / sizes.primal
        self.ratio = self.natural / np.maximum(nearest, 1e-30)
        self.weak = nearest <= WEAK
        signed = self.y[:, inequality].min(axis=1, initial=0.0) >= 0
        exact = (self.natural <= EXACT) & (found.residual <= INCONSISTENT)
        self.settled = same & signed & exact & solver.regular

    def next(self, samples: Array) -> Array:
        """(samples, m) the active sets that the signs name."""
        active = self.solver.active[samples]
        active[:, self._inequality] = self._below[samples]
        return active


def _max(v: Array) -> Array:
    return np.abs(v).max(axis=1, initial=0.0)


class _Bounds:
    """Bounds of one kind, where they hold: `held` (batch, variables)."""

    def __init__(self, rows: BoundRows, active: Array) -> None:
        self.rows = rows
        self.held = active[:, rows.rows]
        self._inverse = self.held / rows.coefficient

    def fix(self, u: Array, r_s: Array) -> None:
        """Put in u (batch, n) what these bounds make of it."""
        u[:, self.rows.columns] += r_s[:, self.rows.rows] * self._inverse

    def balance(self, w: Array, left: Array) -> None:
        """Put in w (batch, m) their multipliers, which take up what is left of r_x (batch, n)."""
        w[:, self.rows.rows] = left[:, self.rows.columns] * self._inverse


class FlatSolver(GhostSolver):
    """The ghost system of active sets (batch, m): variables at bounds eliminated, the rest factorized.

    Attributes:
        trusted: (batch,) samples whose solutions matter.
    """

    def __init__(self, program: ConeProgram, layout: Layout, active: Array, remember: bool) -> None:
        self.program, self.layout, self.active = program, layout, active
        self._bounds = [_Bounds(rows, active) for rows in layout.bounds]
        self.keep = np.ones((program.batch, layout.weights.shape[1]), dtype=bool)
        self._twice: Array = np.zeros(program.batch, dtype=bool)
        for bounds in self._bounds:
            free = self.keep[:, bounds.rows.columns]
            if bounds is not self._bounds[0]:
                self._twice |= (bounds.held > free).any(axis=1)
            self.keep[:, bounds.rows.columns] = free > bounds.held
        self.keep[:, layout.n :] = active[:, layout.rows]
        self._weights = self.keep * layout.weights
        self._factors = CutFactors(layout, self.keep, remember)
        self.trusted = np.zeros(program.batch, dtype=bool)

    @cached_property
    def regular(self) -> Array:
        """(batch,) whether the solution is safely unique, multipliers included.

        Where pivots leave a doubt, a random right-hand side decides: a share of it lies along any null
        vector, and cannot be met.
        """
        suspect = self._factors.suspect
        singular = suspect
        if suspect.any():
            rhs = np.random.default_rng(PROBE).standard_normal(self.keep.shape[1]) * self.keep
            found = refine(_Kept(self), rhs, ROUNDING, SMALL_ERROR)
            singular = suspect & ~(np.maximum(found.relative, found.error) <= INCONSISTENT)
            self._factors.acquit(np.flatnonzero(suspect & ~singular))
        return ~(self._twice | singular)

    @cached_property
    def system(self) -> GhostSystem:
        """The same system for other solvers."""
        tau = np.broadcast_to(self.layout.tau, self.active.shape)
        return GhostSystem(self.program, ActiveSet(self.program, np.where(self.active, -tau, tau), tau))

    def solve(self, r_x: Array, r_s: Array, accuracy: Array | None = None) -> Sensitivity:
        return self.solve_openly(r_x, r_s, accuracy)[0]

    def solve_openly(self, r_x: Array, r_s: Array, accuracy: Array | None = None) -> tuple[Sensitivity, Array]:
        """The solution, and (batch, n + g) what it leaves of r_x, without multipliers of bounds, and of r_s."""
        n, rows, K = self.layout.n, self.layout.rows, self.layout.K
        rhs = np.concatenate([r_x, r_s[:, rows]], axis=1)
        start = None
        if self._bounds and r_s.any():
            start = np.zeros(rhs.shape)
            for bounds in self._bounds:
                bounds.fix(start[:, :n], r_s)
            rhs -= K.dot(start)
        target = ROUNDING if accuracy is None else np.maximum(accuracy, ROUNDING)
        z, left, relative, error = refine(_Kept(self, start), rhs, target, SMALL_ERROR if accuracy is None else np.inf)
        relative = np.maximum(relative, error) if accuracy is None else relative
        if start is not None:
            z += start
        u, w = z[:, :n], np.zeros(r_s.shape)
        w[:, rows] = z[:, n:]
        for bounds in self._bounds:
            bounds.balance(w, left)
        doubtful = np.flatnonzero(self.trusted & ~(relative <= INCONSISTENT))
        if len(doubtful):
            other = self._general.solve(r_x, r_s, accuracy)
            u[doubtful], w[doubtful], relative[doubtful] = (v[doubtful] for v in (other.u, other.w, other.residual))
        return Sensitivity(u, w, relative), left

    @cached_property
    def _general(self) -> DirectSolver:
        return DirectSolver(self.system)


class _Kept:
    """The unknowns that are left of a `FlatSolver`'s system, for `refine`; `start` (batch, n + g): those that are
    eliminated."""

    def __init__(self, solver: FlatSolver, start: Array | None = None) -> None:
        self.correction = solver._factors.solve
        self._layout, self._weights, self._start = solver.layout, solver._weights, start

    def residual(self, rhs: Array, z: Array) -> Array:
        return rhs - self._layout.K.dot(z)

    def norms(self, residual: Array) -> Array:
        return np.sqrt(np.einsum("ij,ij,ij->i", residual, residual, self._weights))

    def moved(self, step: Array, z: Array) -> Array:
        inverse, whole = 1.0 / self._layout.weights, z if self._start is None else z + self._start
        squared, all_squared = (np.einsum("ij,ij,ij->i", v, v, inverse) for v in (step, whole))
        return np.sqrt(squared) / np.maximum(np.sqrt(all_squared), 1e-300)

    def choose(self, mine: Array, z: Array, other: Array) -> Array:
        return np.where(mine[:, None], z, other)
