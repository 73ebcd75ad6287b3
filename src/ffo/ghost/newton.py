"""Newton's method on the optimality conditions of linear and second-order cone programs, from any point.

As in `polish`, a step solves the ghost system at the cleaned pair (s, y) of a point; here the matrix comes from
a `BallLayout`, so that nothing but numbers changes from step to step. Samples go on until their residual is
small, and the last step is one for all of them together: its factors serve the backward pass. Close to a
solution that is `polish`; from far away it is a primal-dual active set method, which often finds the
solution in ten steps or so and sometimes does not. What it finds is verified like any answer. Samples that are
not settled, or whose matrix is nearly singular, are left to others.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ffo.ghost.ball import BallLayout, total
from ffo.ghost.ballsolver import BallSolver, Face
from ffo.ghost.certificate import WEAK, Certificate
from ffo.ghost.face import Scale, scale
from ffo.ghost.polish import ROUNDING, SETTLED, STILL, Part, Polished, polish
from ffo.ghost.problem import Sensitivity, Way
from ffo.program.cone import ConeProgram
from ffo.threads import one_blas_thread

Array = np.ndarray

#: natural residual from which the last step is taken; a larger one where rounding keeps it from falling so far
NEAR, STUCK = 1e-11, 1e-9
#: natural residual up to which the result of the last step counts as a solution
EXACT = 1e-11
#: share of the residual that a step should leave at most, and shares of it that are tried where it does not
FALLING, SHORTER = 0.9, (0.5, 0.25, 0.1)
#: relative residual of the last step
ROUGH = 1e-6
#: steps from far away, and from a solver's answer
STEPS, POLISHING = 25, 6


def polish_balls(program: ConeProgram, x: Array, y: Array, s: Array, layout: BallLayout, way: Way) -> Polished:
    """`polish` for programs with a layout."""
    done, _ = newton(program, x, y, s, layout, POLISHING)
    rest = np.flatnonzero(done.certificate.unsettled)
    if not len(rest):
        return done
    if len(rest) == program.batch:
        return polish(program, x, y, s, way)
    return done.with_rest(rest, polish(program.take(rest), x[rest], y[rest], s[rest], way))


def newton(
    program: ConeProgram, x: Array, y: Array, s: Array, layout: BallLayout, steps: int = STEPS
) -> tuple[Polished, Array]:
    """Newton steps from a point of every sample; `s` is the solver's own slack. Also (batch,) their numbers.

    Samples that are not settled are marked so in the certificate, and their residuals are infinite.
    """
    walk = _Walk(program, layout, x, y, s)
    with one_blas_thread(), np.errstate(all="ignore"):  # wrong active sets may lead anywhere
        for _ in range(steps):
            if not walk.step():
                break
        return walk.end(), walk.steps


def from_nothing(program: ConeProgram, layout: BallLayout) -> tuple[Polished, Array]:
    """Newton steps from x = 0, y = 0."""
    batch = program.batch
    s = program.cones.project(np.ascontiguousarray(program.b))
    return newton(program, np.zeros((batch, program.n)), np.zeros((batch, program.m)), s, layout)


class _Walk:
    """All samples on their way; those in `pending` are not near their solutions yet."""

    def __init__(self, program: ConeProgram, layout: BallLayout, x: Array, y: Array, s: Array) -> None:
        self.program, self.layout = program, layout
        self.sizes = sizes = scale(program, x, y, s)
        self.x, self.w, self.slack = x.copy(), s - sizes.tau * y, program.slack(x)
        self.pending = np.arange(program.batch)
        self.natural = np.full(program.batch, np.inf)
        self.here: _Place | None = None
        self.steps = np.ones(program.batch, dtype=int)

    def step(self) -> bool:
        """A step of the pending samples; whether there are any left."""
        here = self.here or self._place(self.pending)
        stuck = (here.natural <= STUCK) & ~(here.natural <= 0.1 * self.natural[self.pending])
        self.natural[self.pending] = here.natural
        going = np.isfinite(here.natural) & (here.natural > NEAR) & ~stuck
        if not going.all():
            self.pending = self.pending[going]
            if not len(self.pending):
                return False
            here = self._place(self.pending)
        who = self.pending
        self.steps[who] += 1
        move = here.solver.solve(here.r_x, here.r_s, np.full(len(who), np.inf))
        after = here.moved(move)
        self._put(who, after)
        poor = np.flatnonzero(~(after.natural <= FALLING * here.natural))
        self.here = None if len(poor) else after
        if len(poor):
            self._shorten(who[poor], here.take(poor), move.take(poor), after.natural[poor])
        return True

    def _shorten(self, who: Array, here: _Place, move: Sensitivity, natural: Array) -> None:
        """Shorter steps where the whole one did not do: the one with the smallest residual is kept."""
        best = np.where(np.isfinite(natural), natural, np.inf)
        for share in SHORTER:
            after = here.moved(Sensitivity(share * move.u, share * move.w, move.residual))
            better = np.flatnonzero(after.natural < best)
            best[better] = after.natural[better]
            self._put(who[better], after, better)

    def _place(self, who: Array) -> _Place:
        if len(who) == self.program.batch:
            return _Place(self.program, self.sizes, self.layout, self.x, self.slack, self.w)
        program, sizes = self.program.take(who), self.sizes.take(who)
        return _Place(program, sizes, self.layout, self.x[who], self.slack[who], self.w[who])

    def _put(self, who: Array, place: _Place, which: Array | slice = slice(None)) -> None:
        x, slack, w = (v[which] for v in (place.x, place.slack, place.face.w))
        if len(who) == self.program.batch:
            self.x, self.slack, self.w = x, slack, w
        else:
            self.x[who], self.slack[who], self.w[who] = x, slack, w

    def end(self) -> Polished:
        """The last step, and what speaks for its result."""
        program, batch = self.program, self.program.batch
        near = np.isfinite(self.natural)
        near[self.pending] = False
        who = np.flatnonzero(near)
        x, y, s = (np.zeros((batch, k)) for k in (program.n, program.m, program.m))
        natural, error, ratio = (np.full(batch, np.inf) for _ in range(3))
        settled, weak = np.zeros(batch, dtype=bool), np.zeros(batch, dtype=bool)
        parts: tuple[Part, ...] = ()
        if len(who):
            here = self._place(who)
            last = _Last(here)
            x[who], y[who], s[who] = last.x, last.y, last.s
            natural[who], error[who], ratio[who], weak[who] = last.natural, last.error, last.ratio, last.weak
            settled[who] = here.solver.trusted = last.settled
            natural[~settled] = np.inf
            parts = (Part(who, last.settled, here.solver),)
        certificate = Certificate.before_backward(
            unsettled=~settled, margin_ratio=ratio, weakly_active=weak, error=error, natural_residual=natural
        )
        return Polished(x, y, s, parts, certificate)


class _Place:
    """Where some samples of a walk are: their face, and the residuals of the optimality conditions there."""

    def __init__(
        self, program: ConeProgram, sizes: Scale, layout: BallLayout, x: Array, slack: Array, w: Array
    ) -> None:
        self.program, self.sizes, self.layout, self.x, self.slack = program, sizes, layout, x, slack
        self.face = Face.at(program, w, sizes.tau, layout)
        self.r_x, self.r_s = -program.stationarity(x, self.face.y), slack - self.face.s
        dual, primal = _max(self.r_x) / sizes.dual, _max(self.r_s / sizes.rows) / sizes.primal
        self.natural = np.maximum(dual, primal)

    @cached_property
    def solver(self) -> BallSolver:
        return BallSolver(self.program, self.layout, self.face, self.sizes.tau)

    def take(self, samples: Array) -> _Place:
        """Some of the samples."""
        program, sizes = self.program.take(samples), self.sizes.take(samples)
        return _Place(program, sizes, self.layout, self.x[samples], self.slack[samples], self.face.w[samples])

    def moved(self, step: Sensitivity) -> _Place:
        """Where a step leads."""
        x = self.x + step.u
        slack = self.program.slack(x)
        w = slack - self.sizes.tau * (self.face.y + step.w)
        return _Place(self.program, self.sizes, self.layout, x, slack, w)


class _Last:
    """The result of the last step, judged as in `polish`."""

    def __init__(self, here: _Place) -> None:
        program, sizes, solver = here.program, here.sizes, here.solver
        step = solver.solve(here.r_x, here.r_s, np.full(program.batch, ROUGH))
        after = here.moved(step)
        self.x, self.y, self.s = after.x, after.face.y, after.face.s
        lid = here.layout.blocks.lid
        self.y[:, lid] = np.maximum(self.y[:, lid], 0.0)  # not negative but for rounding
        flat, ball = self._nearness(after)
        moved = np.maximum(_max(step.u) / sizes.primal, _max(step.w * sizes.rows) / sizes.dual)
        stale = moved * _max(ball)
        unsolved = moved * step.residual
        nearest = np.maximum(_max(flat), _max(ball))
        self.ratio = np.maximum(stale, after.natural * nearest)
        self.weak = nearest >= 1 / WEAK
        # Judged in the sizes of the answer: those of a start far away would excuse anything.
        answer = scale(program, self.x, self.y, self.s)
        primal, dual = _max(after.r_s / answer.rows) / answer.primal, _max(after.r_x) / answer.dual
        self.natural = np.maximum(primal, dual)
        self.error = np.fmax(np.maximum(stale, self.natural), unsolved)
        still = ((stale <= SETTLED) | (moved <= STILL)) & (unsolved <= SETTLED)
        falling = after.natural <= np.maximum(here.natural, ROUNDING)
        settled = after.face.same(here.face) & still & falling & (self.natural <= EXACT)
        self.settled = settled & solver.regular if settled.any() else settled

    def _nearness(self, place: _Place) -> tuple[Array, Array]:
        """Sizes of inequalities and of second-order blocks over their distances to a change of case."""
        sizes, blocks, face = place.sizes, place.layout.blocks, place.face
        flat = sizes.rows[:, blocks.unequal] * sizes.primal[:, None]
        squared = sizes.rows**2
        ball = np.sqrt(total(place.layout.to_blocks, squared[:, blocks.row]) + squared[:, blocks.top])
        ball *= sizes.primal[:, None]
        distances = (np.abs(face.w[:, blocks.unequal]), face.distance)
        flat, ball = (v / np.maximum(d, 1e-30 * v) for v, d in zip((flat, ball), distances, strict=True))
        return flat, ball


def _max(v: Array) -> Array:
    return np.abs(v).max(axis=1, initial=0.0)
