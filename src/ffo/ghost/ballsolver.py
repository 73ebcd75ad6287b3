"""The ghost system of linear and second-order cone constraints, over a pattern laid out once.

What `face` and `direct` do for all cones, with nothing but numbers to fill in. Solutions that these numbers
leave in doubt are left to `DirectSolver`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ffo.cones.base import BOUNDARY, INTERIOR, VERTEX
from ffo.cones.soc import SecondOrder
from ffo.ghost.ball import BallLayout, total
from ffo.ghost.bordered import factorized
from ffo.ghost.direct import INCONSISTENT, SMALL_ERROR, DirectSolver
from ffo.ghost.face import ActiveSet
from ffo.ghost.problem import GhostSolver, GhostSystem, Sensitivity
from ffo.ghost.refinement import refine
from ffo.probes import PROBE
from ffo.program.cone import ConeProgram

Array = np.ndarray

#: relative residual of solves
ACCURACY = 1e-14
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
        v, found = s - w, []
        for g in program.cones.groups:
            if isinstance(g.cone, SecondOrder):
                parts = w[:, g.index].reshape(-1, g.cone.size)
                ball = g.cone.sparse_faces(parts, tau[:, g.index[:, 0]].ravel())
                s[:, g.rows], v[:, g.rows] = ball.s.reshape(batch, -1), ball.v.reshape(batch, -1)
                case = np.minimum(ball.case, BOUNDARY)  # the two rays of size 2 have the same unknowns
                each = (case, ball.u[:, 1:], ball.delta[:, -1], ball.margin)
                found.append([part.reshape(batch, -1) for part in each])
        case, u, delta, distance = (np.concatenate(each, axis=1) for each in zip(*found, strict=True))
        h = np.divide(1.0, delta, out=np.zeros_like(delta), where=delta > 0)
        vertex = case == VERTEX
        active[:, blocks.top], active[:, blocks.row] = vertex, vertex[:, blocks.block]
        return cls(w, s, v / tau, active, case, u, h, delta, distance)

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
        held = face.active[:, layout.bound].astype(float)
        count = total(layout.to_variables, held)
        self._coefficient = program.A.values[..., layout.entry]
        self._held = held / np.maximum(count, 1.0)[:, layout.column]  # bounds that contradict each other share
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
        if accuracy is None:  # nobody knows the derivative of what is not unique
            asked = self._open & (r_x[:, self.layout.blocks.lid_variable] != 0)
            relative[asked.any(axis=1)] = np.inf
        doubtful = np.flatnonzero(self.trusted & ~(relative <= INCONSISTENT))
        if len(doubtful):
            other = self._general.solve(r_x, r_s, accuracy)
            u[doubtful], w[doubtful], relative[doubtful] = (v[doubtful] for v in (other.u, other.w, other.residual))
        return Sensitivity(u, w, relative)

    @cached_property
    def _general(self) -> DirectSolver:
        w, lid = self.face.w.copy(), self.layout.blocks.lid
        w[:, lid] = np.where(self._open, self._tau[:, lid], w[:, lid])
        return DirectSolver(GhostSystem(self.program, ActiveSet(self.program, w, self._tau)))

    @cached_property
    def regular(self) -> Array:
        """(batch,) whether the solution is safely unique, multipliers included: that of a random right-hand
        side would be large along any null vector."""
        rhs = np.random.default_rng(PROBE).standard_normal(self.keep.shape[1]) * self.keep
        z, _, relative, error = refine(self, rhs / self._factors.scale, ACCURACY, SMALL_ERROR)
        grown = _norm(z / self._factors.scale) > SINGULAR * _norm(rhs)
        return ~(self._clash | grown | ~(np.maximum(relative, error) <= INCONSISTENT))

    @cached_property
    def _open(self) -> Array:
        """(batch, lids) whether the lid could as well be off: it holds nothing down."""
        return self.face.case[:, self.layout.blocks.lid_block] == INTERIOR

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
            eliminated[:, layout.curving] = bent[:, layout.tangent] * self._coefficient[..., layout.curving]
            rhs[:, : layout.n] += total(layout.to_variables, eliminated)
            bent[:, layout.spread] = 0.0
            rhs[:, layout.k : layout.nu] = -total(layout.to_blocks, bent * face.u)
            rhs[:, layout.nu : layout.t] = r_s[:, blocks.top] - total(layout.to_blocks, face.u * r_ball)
            rhs[:, layout.t :] = r_s[:, layout.wide]
            rhs -= self._factors.dot(start)
        rhs *= self.keep
        if np.isinf(target).all():  # a step among many
            z, relative = self.correction(rhs), np.full(len(rhs), np.inf)
            error = relative
        else:
            z, _, relative, error = refine(self, rhs, target, allowed)
        z = z + start
        u, w, left = self._unpacked(z, r_x, r_ball)
        if np.isfinite(allowed):
            # What was eliminated may have come back with errors of its own, where curvatures are extreme.
            given = np.hypot(_norm(r_x), _norm(r_s * np.sqrt(self.program.A.row_norms_squared) / self._tau))
            left = _norm(left) / np.where(given > 0, given, 1.0)
            relative = np.maximum.reduce([relative, error, left])
        return u, w, relative

    def _unpacked(self, z: Array, r_x: Array, r_ball: Array) -> tuple[Array, Array, Array]:
        """u (batch, n) and w (batch, m), with what was eliminated; and what is left of r_x in free variables."""
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
        return u, w, left * self.keep[:, : layout.n]

    def correction(self, residual: Array) -> Array:
        return self._factors.solve(residual)

    def residual(self, rhs: Array, z: Array) -> Array:
        return (rhs - self._factors.dot(z)) * self.keep

    def norms(self, residual: Array) -> Array:
        return _norm(residual * self._factors.scale)

    def moved(self, step: Array, z: Array) -> Array:
        return _norm(step / self._factors.scale) / np.maximum(_norm(z / self._factors.scale), 1e-300)

    def choose(self, mine: Array, z: Array, other: Array) -> Array:
        return np.where(mine[:, None], z, other)


def _norm(v: Array) -> Array:
    return np.sqrt(np.einsum("ij,ij->i", v, v))
