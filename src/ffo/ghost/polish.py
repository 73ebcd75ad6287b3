"""Newton steps on the ghost system: a more accurate solution, and the factorization backward needs.

At the cleaned pair (s, y) of an approximate solution one step is

    K [dx; dt] = [-(Px + q + A'y); T(b - Ax - s)],     x += dx,   y += T'dt.

An interior-point answer at 1e-8, whose x is good to 1e-5 on curved cones, comes out at 1e-10 or
better. A sample is settled when a step leaves its active structure alone (and moves no curved block far
enough to change its curvature); its ghost solver then serves the backward pass. The others go on together.
Where steps run out, the iterate with the smallest natural residual is kept, or the point that was given
if its optimality conditions hold better: polish never makes a solution worse.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from ffo.ghost.certificate import WEAK, Certificate
from ffo.ghost.face import ActiveSet, Scale, scale
from ffo.ghost.oracle import Linearization, Way
from ffo.ghost.problem import GhostSolver, GhostSystem, Sensitivity
from ffo.program.cone import ConeProgram, Solution

Array = np.ndarray

STEPS = 10
#: step relative to a block's own size below which its curvature at the previous point serves at the new one
SETTLED = 1e-7
#: relative step that rounding makes
STILL = 1e-14
#: relative step below which the factors of the previous point serve the new one, with refinement
CLOSE = 1e-2
#: measured residual of a point worth returning as it is
SOLVED = 1e-5
#: natural residual that Newton's method passes unless the active set is wrong
CONVERGED = 1e-9
#: natural residual below which rounding decides
ROUNDING = 1e-14


@dataclass(frozen=True)
class Part:
    """Samples whose sensitivities come from one ghost solver.

    `members` are the samples (numbers in the polished batch) that the solver was built for, `mine`
    marks those whose final answer it is.
    """

    members: Array
    mine: Array
    solver: GhostSolver


@dataclass(frozen=True)
class Polished:
    """x (batch, n), y and s (batch, m) after polish, with the ghost solvers at these points."""

    x: Array
    y: Array
    s: Array
    parts: tuple[Part, ...]
    certificate: Certificate


class SteppedWay(Way):
    """A way that solves systems it is given, step by step for the whole batch."""

    @abstractmethod
    def solver(self, system: GhostSystem, previous: GhostSolver | None = None) -> GhostSolver:
        """A solver for a system; `previous` solved one of the same structure close by."""

    def linearize(self, program: ConeProgram, solution: Solution) -> Linearization:
        x, y, s = solution.x, solution.y, solution.s
        done = polish(program, x, y, s, self) if self.polishes else _as_it_is(program, solution, self)
        return Stepped(program, done.x, done.y, done.s, done.certificate, done.parts)


@dataclass(frozen=True)
class Stepped(Linearization):
    """Solutions whose ghost systems are solved by the solvers that polish left."""

    parts: tuple[Part, ...]

    def sensitivity(self, r_x: Array, r_s: Array, samples: Array | None = None) -> Sensitivity:
        if samples is not None:
            full_x, full_s = np.zeros_like(self.x), np.zeros_like(self.y)
            full_x[samples], full_s[samples] = r_x, r_s
            return self.sensitivity(full_x, full_s).take(samples)
        u, w, residual = np.zeros_like(self.x), np.zeros_like(self.y), np.zeros(len(self.x))
        for part in self.parts:
            if not part.mine.any():
                continue
            found = part.solver.solve(r_x[part.members], r_s[part.members])
            mine = part.members[part.mine]
            u[mine], w[mine], residual[mine] = found.u[part.mine], found.w[part.mine], found.residual[part.mine]
        return Sensitivity(u, w, residual)


def _as_it_is(program: ConeProgram, solution: Solution, way: SteppedWay) -> Polished:
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
        dependent=np.broadcast_to(part.solver.dependent(), program.batch),
    )
    return Polished(solution.x, active.y, active.s, (part,), certificate)


def polish(program: ConeProgram, x: Array, y: Array, s: Array, way: SteppedWay, steps: int = STEPS) -> Polished:
    """Polish approximate solutions of every sample; `s` is the solver's own slack."""
    run = _Run(program, x, y, s)
    while len(run.pending) and len(run.solvers) < max(steps, 1):
        run.step(way)
    return run.result()


class _Run:
    """All samples on their way; iterate k has its ghost solver in `solvers[k]`."""

    def __init__(self, program: ConeProgram, x: Array, y: Array, s: Array) -> None:
        self.program, self.sizes = program, scale(program, x, y, s)
        self.active: ActiveSet | None = ActiveSet(program, s - self.sizes.tau * y, self.sizes.tau)
        batch = program.batch
        self.start = (x, y, s)
        self.x, self.w = x.copy(), self.active.w.copy()
        self.natural = _natural(program, x, self.active, self.sizes)
        self.best = _Best(x.copy(), self.active.y.copy(), self.active.s.copy(), np.full(batch, np.inf))
        self.home = np.zeros(batch, dtype=int)
        self.solvers: list[tuple[Array, GhostSolver]] = []
        self.pending = np.arange(batch)
        self.neighbour: GhostSolver | None = None
        self.settled = np.zeros(batch, dtype=bool)
        self.error, self.ratio = np.full(batch, np.inf), np.full(batch, np.inf)
        self.weak = np.zeros(batch, dtype=bool)
        curved = [np.full(g.count, not g.cone.scalar) for g in program.cones.groups]
        self.curved = np.concatenate([*curved, np.zeros(0, dtype=bool)])

    def step(self, way: SteppedWay) -> None:
        """One Newton step for the pending samples."""
        who = self.pending
        everyone = len(who) == self.program.batch
        program = self.program if everyone else self.program.take(who)
        sizes = self.sizes if everyone else self.sizes.take(who)
        before = self.active or ActiveSet(program, self.w[who], sizes.tau)
        x, natural = self.x[who], self.natural[who]
        self._keep_best(who, x, before, natural)
        solver = way.solver(GhostSystem(program, before), self.neighbour)
        accuracy = np.clip(ROUNDING / np.maximum(natural, ROUNDING), 1e-13, 1e-3)
        move = solver.solve(-program.stationarity(x, before.y), program.slack(x) - before.s, accuracy)
        self.solvers.append((who, solver))
        new_x, new_y = x + move.u, before.y + move.w
        after = ActiveSet(program, program.slack(new_x) - sizes.tau * new_y, sizes.tau)
        new_natural = _natural(program, new_x, after, sizes)
        newton = np.maximum(_max(move.u) / sizes.primal, _max(move.w * sizes.rows) / sizes.dual)
        block = program.cones.block_norms(sizes.rows) * sizes.primal[:, None]
        nearness = block / np.maximum(after.margin, 1e-30 * block)
        # A stale curvature errs by about the step over the size of its block; flat cones have none.
        stale = _max(newton[:, None] * nearness[:, self.curved])
        same = (after.case == before.case).all(axis=1)
        still = (stale <= SETTLED) | (newton <= STILL)
        # What the step itself lacks: it was solved to a relative residual only.
        unsolved = newton * move.residual
        still &= ~(unsolved > SETTLED)
        settled = same & still & (new_natural <= np.maximum(natural, ROUNDING))
        self.error[who] = np.fmax(np.maximum(stale, new_natural), unsolved)
        # Could what error is left move a block to another face?
        self.ratio[who] = np.maximum(stale, _max(new_natural[:, None] * nearness))
        self.weak[who] = (after.margin <= WEAK * block).any(axis=1)
        self._finish(who[settled], new_x[settled], after.y[settled], after.s[settled], new_natural[settled])
        finite = np.isfinite(new_natural)
        self.x[who], self.w[who], self.natural[who] = new_x, after.w, new_natural
        go_on = ~settled & finite
        self.pending = who[go_on]
        self.active = after if go_on.all() else None
        close = go_on.all() and same.all() and (newton <= CLOSE).all()
        self.neighbour = solver if close else None

    def _keep_best(self, who: Array, x: Array, active: ActiveSet, natural: Array) -> None:
        better = natural < self.best.natural[who]
        mine = who[better]
        self.best.put(mine, x[better], active.y[better], active.s[better], natural[better])
        self.home[mine] = len(self.solvers)

    def _finish(self, who: Array, x: Array, y: Array, s: Array, natural: Array) -> None:
        self.best.put(who, x, y, s, natural)
        self.home[who] = len(self.solvers) - 1
        self.settled[who] = True

    def _restore(self) -> None:
        """Where Newton's method did not converge, the given point, if it is a solution and what was found a
        worse one.

        Cleaning for a wrong active set moves s and y by more than a solver's tolerance, and where its
        equations have no solution, steps end at their least squares one.
        """
        who = np.flatnonzero(~self.settled | ~(self.best.natural <= CONVERGED))
        if not len(who):
            return
        program = self.program.take(who)
        given, found = (_worst(program, *(v[who] for v in point)) for point in (self.start, self.best.point))
        back = who[(given <= SOLVED) & ~(found <= given)]
        x, y, s = self.start
        self.best.put(back, x[back], y[back], s[back], self.best.natural[back])
        self.home[back] = 0
        self.settled[back] = False

    def result(self) -> Polished:
        self._restore()
        parts = tuple(Part(who, self.home[who] == k, solver) for k, (who, solver) in enumerate(self.solvers))
        dependent = np.zeros(self.program.batch, dtype=bool)
        for part in parts:
            if part.mine.any():
                found = np.broadcast_to(part.solver.dependent(), len(part.members))
                dependent[part.members[part.mine]] = found[part.mine]
        # Judged in the sizes of the answer: those of a start far away would excuse anything.
        best = self.best
        natural = _residual(self.program, best.x, best.y, best.s, scale(self.program, best.x, best.y, best.s))
        certificate = Certificate.before_backward(
            unsettled=~self.settled,
            margin_ratio=self.ratio,
            weakly_active=self.weak,
            error=np.maximum(self.error, natural),
            natural_residual=natural,
            dependent=dependent,
        )
        return Polished(self.best.x, self.best.y, self.best.s, parts, certificate)


@dataclass(frozen=True)
class _Best:
    """The best iterate of every sample so far."""

    x: Array
    y: Array
    s: Array
    natural: Array

    @property
    def point(self) -> tuple[Array, Array, Array]:
        return self.x, self.y, self.s

    def put(self, who: Array, x: Array, y: Array, s: Array, natural: Array) -> None:
        self.x[who], self.y[who], self.s[who], self.natural[who] = x, y, s, natural


def _natural(program: ConeProgram, x: Array, active: ActiveSet, sizes: Scale) -> Array:
    """(batch,) residual of the optimality conditions at x and the cleaned pair, in natural units."""
    return _residual(program, x, active.y, active.s, sizes)


def _residual(program: ConeProgram, x: Array, y: Array, s: Array, sizes: Scale) -> Array:
    """The same for a complementary pair y, s."""
    dual = _max(program.stationarity(x, y)) / sizes.dual
    primal = _max((program.slack(x) - s) / sizes.rows) / sizes.primal
    return np.maximum(dual, primal)


def _worst(program: ConeProgram, x: Array, y: Array, s: Array) -> Array:
    """(batch,) the residual by which answers of solvers are judged; NaN for points that are not finite."""
    finite = np.isfinite(np.concatenate([x, y, s], axis=1)).all(axis=1)[:, None]
    x, y, s = (np.where(finite, v, 0.0) for v in (x, y, s))  # projections of NaN may raise
    nothing = np.zeros(len(x), dtype=int)
    return np.where(finite[:, 0], Solution(x, y, s, nothing, nothing).residuals(program).worst, np.nan)


def _max(v: Array) -> Array:
    return np.abs(v).max(axis=1, initial=0.0)
