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
from ffo.ghost.ballsolver import ACCURACY, BallSolver, Face
from ffo.ghost.certificate import WEAK, Certificate
from ffo.ghost.face import Scale, scale
from ffo.ghost.polish import ROUNDING, SETTLED, STILL, Part, Polished, polish
from ffo.ghost.problem import Sensitivity, Way
from ffo.program.cone import ConeProgram

Array = np.ndarray

#: natural residual from which the last step is taken; a larger one where rounding keeps it from falling so far
NEAR, STUCK = 1e-11, 1e-9
#: natural residual up to which the result of the last step counts as a solution
EXACT = 1e-11
#: relative residual of Newton steps on the way
ROUGH = 1e-6
#: steps from far away, and from a solver's answer
STEPS, POLISHING = 25, 6


def polish_balls(program: ConeProgram, x: Array, y: Array, s: Array, way: Way) -> Polished:
    """`polish` for programs that `has_layout` is true of."""
    done, _ = newton(program, x, y, s, BallLayout(program), POLISHING)
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
    with np.errstate(all="ignore"):  # wrong active sets may lead anywhere
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
        self.lost = np.zeros(program.batch, dtype=bool)
        self.steps = np.ones(program.batch, dtype=int)

    def step(self) -> bool:
        """A step of the pending samples; whether there are any left."""
        here = _Place.of(self, self.pending)
        self.lost[self.pending] = ~np.isfinite(here.natural)
        stuck = (here.natural <= STUCK) & ~(here.natural <= 0.1 * self.natural[self.pending])
        going = np.isfinite(here.natural) & (here.natural > NEAR) & ~stuck
        self.natural[self.pending] = here.natural
        if not going.all():
            self.pending = self.pending[going]
            if not len(self.pending):
                return False
            here = _Place.of(self, self.pending)
        self.steps[self.pending] += 1
        accuracy = np.maximum(ROUGH * np.minimum(here.natural, 1.0), ACCURACY)
        self._put(self.pending, *here.moved(here.solver.solve(here.r_x, here.r_s, accuracy)))
        return True

    def _put(self, who: Array, x: Array, slack: Array, w: Array) -> None:
        if len(who) == self.program.batch:
            self.x, self.slack, self.w = x, slack, w
        else:
            self.x[who], self.slack[who], self.w[who] = x, slack, w

    def end(self) -> Polished:
        """The last step, and what speaks for its result."""
        program, batch = self.program, self.program.batch
        near = ~self.lost
        near[self.pending] = False
        who = np.flatnonzero(near)
        x, y, s = (np.zeros((batch, k)) for k in (program.n, program.m, program.m))
        natural, error, ratio = (np.full(batch, np.inf) for _ in range(3))
        settled, weak = np.zeros(batch, dtype=bool), np.zeros(batch, dtype=bool)
        parts: tuple[Part, ...] = ()
        if len(who):
            here = _Place.of(self, who)
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
        self.program, self.sizes, self.layout, self.x = program, sizes, layout, x
        self.face = Face.at(program, w, sizes.tau, layout)
        self.r_x, self.r_s = -program.stationarity(x, self.face.y), slack - self.face.s
        dual, primal = _max(self.r_x) / sizes.dual, _max(self.r_s / sizes.rows) / sizes.primal
        self.natural = np.maximum(dual, primal)

    @classmethod
    def of(cls, walk: _Walk, who: Array) -> _Place:
        if len(who) == walk.program.batch:
            return cls(walk.program, walk.sizes, walk.layout, walk.x, walk.slack, walk.w)
        program, sizes = walk.program.take(who), walk.sizes.take(who)
        return cls(program, sizes, walk.layout, walk.x[who], walk.slack[who], walk.w[who])

    @cached_property
    def solver(self) -> BallSolver:
        return BallSolver(self.program, self.layout, self.face, self.sizes.tau)

    def moved(self, step: Sensitivity) -> tuple[Array, Array, Array]:
        """x, slack and w after a step."""
        x = self.x + step.u
        slack = self.program.slack(x)
        return x, slack, slack - self.sizes.tau * (self.face.y + step.w)


class _Last:
    """The result of the last step, judged as in `polish`."""

    def __init__(self, here: _Place) -> None:
        program, sizes, solver = here.program, here.sizes, here.solver
        step = solver.solve(here.r_x, here.r_s, np.full(program.batch, ROUGH))
        after = _Place(program, sizes, here.layout, *here.moved(step))
        self.x, self.y, self.s = after.x, after.face.y, after.face.s
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
