"""Newton's method on the optimality conditions of linear and second-order cone programs, from any point.

As in `polish`, a step solves the ghost system at the cleaned pair (s, y) of a point; here the matrix comes from
a `BallLayout`, so that nothing but numbers changes from step to step. Samples go on until their residual is
small, and the last step is one for all of them together: its factors serve the backward pass. Close to a
solution that is `polish`; from far away it is a primal-dual active set method, which often finds the
solution in ten steps or so and sometimes does not. What it finds is verified like any answer. Samples that are
not settled, or whose matrix is nearly singular, are left to others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ffo.cones.base import BOUNDARY, VERTEX
from ffo.cones.rows import weight
from ffo.cones.soc import SecondOrder
from ffo.ghost.ball import BallLayout, total
from ffo.ghost.bordered import factorized
from ffo.ghost.certificate import WEAK, Certificate
from ffo.ghost.direct import INCONSISTENT, REFINEMENTS, SMALL_ERROR, DirectSolver
from ffo.ghost.face import ActiveSet, Scale, scale
from ffo.ghost.polish import ROUNDING, SETTLED, STILL, Part, Polished, polish
from ffo.ghost.problem import GhostSolver, GhostSystem, Sensitivity, Way
from ffo.program.cone import ConeProgram

Array = np.ndarray

#: natural residual from which the last step is taken; a larger one where rounding keeps it from falling so far
NEAR, STUCK = 1e-11, 1e-9
#: natural residual up to which the result of the last step counts as a solution
EXACT = 1e-11
#: relative residual of solves, and of Newton steps on the way
ACCURACY, ROUGH = 1e-14, 1e-6
#: steps from far away, and from a solver's answer
STEPS, POLISHING = 15, 6
#: size of the solution (in scaled units) for a random right-hand side of size 1 beyond which a matrix is
#: called nearly singular
SINGULAR = 1e6


@dataclass(frozen=True)
class Face:
    """Where w = s - tau y lies, for linear and second-order cones.

    Attributes:
        w, s, y: (batch, m) the point and its cleaned pair.
        active: (batch, m) rows that are equalities here: active inequalities, blocks at their vertex.
        case: (batch, blocks) of the second-order blocks; u: (batch, tangents) their directions, h and delta
            (batch, blocks) their curvature and its inverse; all zero unless they are on the boundary.
        distance: (batch, blocks) of second-order blocks to a change of case.
    """

    w: Array
    s: Array
    y: Array
    active: Array
    case: Array
    u: Array
    h: Array
    delta: Array
    distance: Array

    @classmethod
    def at(cls, program: ConeProgram, w: Array, tau: Array, layout: BallLayout) -> Face:
        batch, blocks = len(w), layout.blocks
        active = w < 0
        active[:, blocks.equal] = True
        s = np.maximum(w, 0.0)
        s[:, blocks.equal] = 0.0
        balls = [g for g in program.cones.groups if isinstance(g.cone, SecondOrder)]
        case, u, n = [], [], []
        for g in balls:
            parts = w[:, g.index].reshape(-1, g.cone.size)
            s_ball, _, case_ball, norm = g.cone.split(parts)
            s[:, g.rows] = s_ball.reshape(batch, -1)
            on = case_ball == BOUNDARY
            u.append((parts[:, 1:] * (on / np.where(norm > 0, norm, 1.0))[:, None]).reshape(batch, -1))
            case.append(case_ball.reshape(batch, -1))
            n.append(norm.reshape(batch, -1))
        case, u, n = (np.concatenate(v, axis=1) for v in (case, u, n))
        w0, boundary = w[:, blocks.top], case == BOUNDARY
        delta = np.where(boundary, weight(n + w0, n - w0, tau[:, blocks.top]), 0.0)
        h = np.divide(1.0, delta, out=np.zeros_like(delta), where=boundary & (delta > 0))
        vertex = case == VERTEX
        active[:, blocks.top], active[:, blocks.row] = vertex, vertex[:, blocks.block]
        distance = np.minimum(np.abs(n - w0), np.abs(n + w0)) / np.sqrt(2.0)
        return cls(w, s, (s - w) / tau, active, case, u, h, delta, distance)

    def same(self, other: Face) -> Array:
        """(batch,) whether the active structure is the same."""
        return (self.active == other.active).all(axis=1) & (self.case == other.case).all(axis=1)


class BallSolver(GhostSolver):
    """The ghost system of a batch at a face.

    Attributes:
        trusted: (batch,) samples whose solutions matter.
    """

    def __init__(self, program: ConeProgram, layout: BallLayout, face: Face, tau: Array) -> None:
        self.program, self.layout, self.face, self._tau = program, layout, face, tau
        batch = program.batch
        self._held = face.active[:, layout.bound]
        self._coefficient = program.A.values[..., layout.entry]
        count = total(layout.to_variables, self._held.astype(float))
        self._clash = (count > 1).any(axis=1) | face.active[:, layout.bare].any(axis=1)
        boundary = face.case == BOUNDARY
        wide = face.active[:, layout.wide]
        if len(layout.spread):
            at = np.searchsorted(layout.wide, layout.blocks.row[layout.spread])
            wide[:, at] |= boundary[:, layout.blocks.block[layout.spread]]
        self.keep = np.concatenate([count == 0, boundary, boundary | (face.case == VERTEX), wide], axis=1)
        values = layout.values(program, face.u, face.h, face.delta)
        self._factors = factorized(layout.pattern, values, self.keep)
        self.trusted = np.zeros(batch, dtype=bool)

    def solve(self, r_x: Array, r_s: Array, accuracy: Array | None = None) -> Sensitivity:
        target = ACCURACY if accuracy is None else np.maximum(accuracy, ACCURACY)
        u, w, relative = self._solve(r_x, r_s, target, SMALL_ERROR if accuracy is None else np.inf)
        doubtful = np.flatnonzero(self.trusted & ~(relative <= INCONSISTENT))
        if len(doubtful):
            other = self._general.solve(r_x, r_s, accuracy)
            u[doubtful], w[doubtful], relative[doubtful] = (v[doubtful] for v in (other.u, other.w, other.residual))
        return Sensitivity(u, w, relative)

    @cached_property
    def _general(self) -> DirectSolver:
        return DirectSolver(GhostSystem(self.program, ActiveSet(self.program, self.face.w, self._tau)))

    @cached_property
    def regular(self) -> Array:
        """(batch,) whether the solution is safely unique, multipliers included: that of a random right-hand
        side would be large along any null vector."""
        rhs = np.random.default_rng(0).standard_normal(self.keep.shape[1]) * self.keep
        z, relative, error = self._refine(rhs / self._factors.scale, ACCURACY, SMALL_ERROR)
        grown = _norm(z / self._factors.scale) > SINGULAR * _norm(rhs)
        return ~(self._clash | grown | ~(np.maximum(relative, error) <= INCONSISTENT))

    def _solve(self, r_x: Array, r_s: Array, target: Array | float, allowed: float) -> tuple[Array, Array, Array]:
        layout, face, blocks = self.layout, self.face, self.layout.blocks
        start = np.zeros(self.keep.shape)
        rhs = np.concatenate([r_x, np.zeros((len(r_x), layout.size - layout.n))], axis=1)
        r_ball = r_s[:, blocks.row]
        if r_s.any():
            bent = face.h[:, blocks.block] * r_ball
            at_bound = self._held * r_s[:, layout.bound] / self._coefficient
            start[:, : layout.n] = total(layout.to_variables, at_bound)
            eliminated = np.zeros_like(at_bound)
            eliminated[:, layout.curving] = (bent[:, layout.tangent] * self._coefficient[..., layout.curving])
            rhs[:, : layout.n] += total(layout.to_variables, eliminated)
            bent[:, layout.spread] = 0.0
            rhs[:, layout.k : layout.nu] = -total(layout.to_blocks, bent * face.u)
            rhs[:, layout.nu : layout.t] = r_s[:, blocks.top] - total(layout.to_blocks, face.u * r_ball)
            rhs[:, layout.t :] = r_s[:, layout.wide]
            rhs -= self._factors.dot(start)
        z, relative, error = self._refine(rhs * self.keep, target, allowed)
        z += start
        u, w = self._unpacked(z, r_x, r_ball)
        return u, w, np.maximum(relative, error) if np.isfinite(allowed) else relative

    def _unpacked(self, z: Array, r_x: Array, r_ball: Array) -> tuple[Array, Array]:
        """u (batch, n) and w (batch, m): what was eliminated comes back."""
        layout, face, program, blocks = self.layout, self.face, self.program, self.layout.blocks
        u, k, nu = z[:, : layout.n], z[:, layout.k : layout.nu], z[:, layout.nu : layout.t]
        w = np.zeros((len(z), layout.m))
        w[:, layout.wide] = z[:, layout.t :]
        t = -face.u * k[:, blocks.block] - r_ball
        t[:, layout.tangent] += u[:, layout.column[layout.curving]] * self._coefficient[..., layout.curving]
        t *= face.h[:, blocks.block]
        t[:, layout.spread] = w[:, blocks.row[layout.spread]]
        w[:, blocks.top] = nu
        w[:, blocks.row] = t - face.u * nu[:, blocks.block]
        left = r_x - program.P.dot(u) - program.A.tdot(w)
        w[:, layout.bound] += self._held * left[:, layout.column] / self._coefficient
        return u, w

    def _refine(self, rhs: Array, target: Array | float, allowed: float) -> tuple[Array, Array, Array]:
        """Iterative refinement to relative residuals and errors (batch,), as in `DirectSolver`."""
        scale = self._factors.scale
        norm = _norm(rhs * scale)
        size = np.where(norm > 0, norm, 1.0)
        best, best_norm = np.zeros_like(rhs), norm / size
        error = np.where(best_norm > 0, 1.0, 0.0)
        z, residual = best, rhs
        for _ in range(REFINEMENTS):
            step = self._factors.solve(residual)
            z = z + step
            residual = (rhs - self._factors.dot(z)) * self.keep
            norm = _norm(residual * scale) / size
            better = norm < best_norm
            shrunk = norm / np.where(best_norm > 0, best_norm, 1.0)
            error = np.where(better, shrunk * _norm(step / scale) / np.maximum(_norm(z / scale), 1e-300), error)
            best = z if better.all() else np.where(better[:, None], z, best)
            stalled = ~(norm <= 0.3 * best_norm)
            best_norm = np.where(better, norm, best_norm)
            if (((best_norm <= target) & (error <= allowed)) | stalled).all():
                break
        return best, best_norm, error


def polish_balls(program: ConeProgram, x: Array, y: Array, s: Array, way: Way) -> Polished:
    """`polish` for programs that `has_layout` is true of."""
    done, _ = newton(program, x, y, s, POLISHING)
    rest = np.flatnonzero(done.certificate.unsettled)
    if not len(rest):
        return done
    if len(rest) == program.batch:
        return polish(program, x, y, s, way)
    return done.with_rest(rest, polish(program.take(rest), x[rest], y[rest], s[rest], way))


def newton(program: ConeProgram, x: Array, y: Array, s: Array, steps: int = STEPS) -> tuple[Polished, Array]:
    """Newton steps from a point of every sample; `s` is the solver's own slack. Also (batch,) their numbers.

    Samples that are not settled are marked so in the certificate, and their residuals are infinite.
    """
    walk = _Walk(program, BallLayout(program), x, y, s)
    with np.errstate(all="ignore"):  # wrong active sets may lead anywhere
        for _ in range(steps):
            if not walk.step():
                break
        return walk.end(), walk.steps


def from_nothing(program: ConeProgram) -> tuple[Polished, Array]:
    """Newton steps from x = 0, y = 0."""
    batch = program.batch
    s = program.cones.project(np.ascontiguousarray(program.b))
    return newton(program, np.zeros((batch, program.n)), np.zeros((batch, program.m)), s)


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
        point = [np.zeros((batch, k)) for k in (program.n, program.m, program.m)]
        natural, error, ratio = (np.full(batch, np.inf) for _ in range(3))
        settled, weak = np.zeros(batch, dtype=bool), np.zeros(batch, dtype=bool)
        parts: tuple[Part, ...] = ()
        if len(who):
            here = _Place.of(self, who)
            last = _Last(here)
            for mine, theirs in zip(point, (last.x, last.y, last.s), strict=True):
                mine[who] = theirs
            natural[who], error[who], ratio[who], weak[who] = last.natural, last.error, last.ratio, last.weak
            settled[who] = here.solver.trusted = last.settled
            natural[~settled] = np.inf
            parts = (Part(who, last.settled, here.solver),)
        certificate = Certificate.before_backward(
            unsettled=~settled, margin_ratio=ratio, weakly_active=weak, error=error, natural_residual=natural
        )
        return Polished(*point, parts, certificate)


class _Place:
    """Where some samples of a walk are: their face, and the residuals of the optimality conditions there."""

    def __init__(self, program: ConeProgram, sizes: Scale, layout: BallLayout, x: Array, slack: Array, w: Array) -> None:
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


def _norm(v: Array) -> Array:
    return np.sqrt(np.einsum("ij,ij->i", v, v))
