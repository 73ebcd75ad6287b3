"""The ghost problem of dense quadratic programs in closed form (FFOQP of the paper).

On an active set the perturbed ghost is linear algebra: with the variables at bounds held (the free
ones F) and the active rows R_a,

    [ Q_FF  R_aF' ] [u]   [ r_x ]
    [ R_aF   0    ] [t] = [ r_a ]

solved for the whole batch by two Cholesky factorizations, of H = Q_FF (none if Q is diagonal) and of
S = R_aF H^-1 R_aF', and refinement. Held variables and inactive rows are switched off (ones on the diagonals of H and
S) instead of removed, so that all samples have the same shape, nothing leaves the device and nothing waits for it.
Second-order cones add curvature to Q, and rows (see `Faces`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ffo.torch.dense.program import SINGULAR, DensePoint, DenseProgram, Tensor, largest, positive, raised, times
from ffo.torch.dense.second_order import ConeLayout
from ffo.torch.dense.system import DenseSystem, factor, with_rows
from ffo.torch.dense.verify import Verdict

#: pivots of S, relative to its diagonal, below which active rows may depend on each other
DEPENDENT = 1e-5
#: refinements, and if variables without curvature were given some (relative to the largest, `FLAT`)
REFINEMENTS, MORE_REFINEMENTS, FLAT = 1, 4, 1e-7
#: residual of a random right-hand side above which the ghost counts as singular
SOLVED = 1e-8


@dataclass(frozen=True)
class Faces:
    """The faces of second-order cones (see `ffo.kernels.cones.soc`).

    On the boundary, at a slack s0 (1, u) with multiplier y0 (1, -u), the ghost holds the row (1, -u) and has the
    curvature h (I - uu'), h = y0/s0, on the other rows.

    Attributes:
        slack, force: (batch, rows) s and y, complementary.
        u: (batch, rows), zero at heads and off the boundary; h: (batch, cones), zero off the boundary.
    """

    cones: ConeLayout
    slack: Tensor
    force: Tensor
    u: Tensor
    h: Tensor

    @classmethod
    def of(cls, program: DenseProgram, verdict: Verdict) -> Faces | None:
        if not program.cones:
            return None
        cones, k = program.layout, program.r - program.curved_rows
        boundary = verdict.rows[:, k:] == 2
        s0, y0 = cones.heads(verdict.slack), cones.heads(verdict.force)
        u = torch.where(boundary & cones.tail, verdict.slack / cones.spread(s0), 0.0)
        return cls(cones, verdict.slack, verdict.force, u, torch.where(cones.heads(boundary), y0 / s0, 0.0))

    def across(self, v: Tensor) -> Tensor:
        """h (I - uu') v on the tails of cones on their boundary (batch, rows)."""
        tangent = v - self.u * self.cones.spread(self.cones.dot(self.u, v))
        return torch.where(self.cones.tail, self.cones.spread(self.h) * tangent, 0.0)

    def onto(self, v: Tensor) -> Tensor:
        """Values at the rows of the ghost: v0 - u'v1 at heads."""
        return self.cones.joined(self.cones.heads(v) - self.cones.dot(self.u, v), v)

    def back(self, t: Tensor) -> Tensor:
        """The adjoint of `onto`."""
        return t - self.u * self.cones.spread(self.cones.heads(t))


@dataclass(frozen=True)
class DenseGhost:
    """The factorized ghost of a batch at an active set.

    Attributes:
        rows: (batch, r) and bounds (batch, n) as in `Verdict`.
        free, on: (batch or 1, n) and (batch or 1, r), 1 at free variables and active rows, 0 elsewhere.
        system: the factors; rows of cones on their boundary are replaced as in `Faces`.
        kept: numbers of the rows in the system, if not all: with a diagonal Q, the tails of cones are only curvature.
        hold: (batch or 1, r) weights with which rows are added to H if Q alone is singular: with r_x + R' hold r_a the
            solution is the same. None: they are not added.
        weights: (batch or 1, r) convert the residual of a row into a force (costs may have any scale).
        sound: (batch or 1,) whether active rows are clearly independent, and fix all directions without curvature.
        refinements: how many.
    """

    program: DenseProgram
    rows: Tensor
    bounds: Tensor
    free: Tensor
    on: Tensor
    system: DenseSystem
    kept: Tensor | None
    hold: Tensor | None
    weights: Tensor
    sound: Tensor
    faces: Faces | None
    refinements: int

    def solve(
        self, r_x: Tensor, r_rows: Tensor | None = None, r_bounds: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """u (batch, n), t (batch, r), relative residual (batch,).

        Args:
            r_x: (batch, n).
            r_rows: (batch, r) right-hand sides, read at active rows; None: zero.
            r_bounds: (batch, n) values of the held variables, zero at free ones; None: zero.
        """
        program = self.program
        wanted_a = torch.zeros_like(program.upp) if r_rows is None else r_rows
        wanted_x = r_x
        if r_bounds is not None:
            wanted_x, wanted_a = r_x - program.curved(r_bounds), wanted_a - program.rows(r_bounds)
        given = wanted_a
        if self.faces is not None:
            wanted_x = wanted_x + self._pull_cones(self.faces.across(self._cone_rows(given)))
        wanted_x, wanted_a = self.free * wanted_x, self.on * self._onto(wanted_a)
        scale = positive(self._size(wanted_x, wanted_a))
        u, t = self._approximate(wanted_x, wanted_a)
        left_x, left_a = self._left(wanted_x, wanted_a, u, t)
        error = self._size(left_x, left_a)
        for _ in range(self.refinements):
            du, dt = self._approximate(left_x, left_a)
            rest_x, rest_a = self._left(left_x, left_a, du, dt)
            now = self._size(rest_x, rest_a)
            better = (now < error).unsqueeze(1)
            u, t = torch.where(better, u + du, u), torch.where(better, t + dt, t)
            left_x, left_a = torch.where(better, rest_x, left_x), torch.where(better, rest_a, left_a)
            error = torch.minimum(error, now)
        t = self._back(t)
        if self.faces is not None:
            k = program.r - program.curved_rows
            turned = self.faces.across(self._cone_rows(program.rows(u) - given))
            t = torch.cat([t[:, :k], t[:, k:] + turned], dim=1)
        return u if r_bounds is None else u + r_bounds, t, error / scale

    def on_bounds(self, r_x: Tensor, u: Tensor, t: Tensor) -> Tensor:
        """(batch, n) multipliers of the bounds for a solution u, t: the remainder of r_x."""
        left = r_x - self.program.curved(u) - self.program.pull(t)
        return torch.where(self.bounds != 0, left, 0.0)

    def polished(self, point: DensePoint) -> DensePoint:
        """The solution of the equality-constrained program on the active set, from a point near it; with cones on
        their boundary, a Newton step towards it."""
        program = self.program
        on_row, held = self.rows != 0, self.bounds != 0
        target = torch.where(self.rows > 0, program.upp, program.low)
        bound = torch.where(self.bounds > 0, program.ub, program.lb)
        z = torch.where(held, bound, point.z)
        lam = torch.where(on_row, point.lam, 0.0)
        r_rows = torch.where(on_row, target - program.rows(z), 0.0)
        if self.faces is not None:
            k = program.r - program.curved_rows
            lam = torch.cat([lam[:, :k], self.faces.force], dim=1)
            r_rows = torch.cat([r_rows[:, :k], r_rows[:, k:] - self.faces.slack], dim=1)
        u, t, _ = self.solve(-program.stationarity(z, lam), r_rows)
        z, lam = z + u, lam + t
        return DensePoint(z, lam, self.on_bounds(-program.p, z, lam))

    def _approximate(self, r_x: Tensor, r_a: Tensor) -> tuple[Tensor, Tensor]:
        if self.hold is not None:
            r_x = r_x + self.free * self.program.pull(self._back(self.hold * r_a))
        if self.kept is None:
            u, t = self.system.solve(r_x, r_a)
        else:
            u, few = self.system.solve(r_x, r_a[:, self.kept])
            t = torch.zeros_like(r_a).index_copy(1, self.kept, few)
        return self.free * u, self.on * t

    def _left(self, r_x: Tensor, r_a: Tensor, u: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The residuals of u and t."""
        program, reached = self.program, self.program.rows(u)
        force = program.curved(u) + program.pull(self._back(t))
        if self.faces is not None:
            force = force + self._pull_cones(self.faces.across(self._cone_rows(reached)))
        return self.free * (r_x - force), self.on * (r_a - self._onto(reached))

    def _size(self, r_x: Tensor, r_a: Tensor) -> Tensor:
        """(batch,) the largest of these in units of force."""
        return torch.maximum(largest(r_x), largest(r_a * self.weights))

    def _cone_rows(self, v: Tensor) -> Tensor:
        return v[:, self.program.r - self.program.curved_rows :]

    def _pull_cones(self, v: Tensor) -> Tensor:
        rows = self.program.r - self.program.curved_rows
        return self.program.pull(torch.cat([v.new_zeros(len(v), rows), v], dim=1))

    def _onto(self, v: Tensor) -> Tensor:
        """Values at the rows of the ghost from values at rows."""
        if self.faces is None:
            return v
        return torch.cat([v[:, : -self.program.curved_rows], self.faces.onto(self._cone_rows(v))], dim=1)

    def _back(self, t: Tensor) -> Tensor:
        """Multipliers of rows from those of the rows of the ghost."""
        if self.faces is None:
            return t
        return torch.cat([t[:, : -self.program.curved_rows], self.faces.back(self._cone_rows(t))], dim=1)


def factorize(
    program: DenseProgram,
    rows: Tensor,
    bounds: Tensor,
    faces: Faces | None = None,
    L: Tensor | None = None,
    W: Tensor | None = None,
) -> DenseGhost:
    """The ghost at an active set.

    Args:
        faces: of the cones, if there are any.
        L, W: the factor of Q and L^-1 R' (batch or 1, n, r), if the program is definite and has no bounds or cones.
    """
    dtype, hold, norms = program.p.dtype, None, program.norms
    free = (bounds == 0).to(dtype) if program.bounded else torch.ones_like(program.p[:1])
    active = rows != 0
    if faces is not None:  # the tails of cones on their boundary have curvature instead
        k = program.r - program.curved_rows
        active = torch.cat([active[:, :k], active[:, k:] & ~((rows[:, k:] == 2) & faces.cones.tail)], dim=1)
    on = active.to(dtype) if program.r > program.equalities else torch.ones_like(program.upp[:1])
    curvature = program.Q if program.diagonal else program.Q.diagonal(dim1=1, dim2=2)
    size = positive(curvature.abs().amax(dim=1, keepdim=True)) if program.n else torch.ones_like(norms[:, :1])
    flat = kept = None
    if L is not None and W is not None:
        fine = L.new_ones(len(L))
        system = with_rows(L, W * on.unsqueeze(1), 1 - on, fine > 0, fine)
    elif program.diagonal:
        H, R, N, kept = _diagonal(program, faces)
        flat = free * torch.le(H, SINGULAR * size)
        H = torch.where(free > 0, H + flat * FLAT * size, 1.0)
        here = on if kept is None else on[:, kept]
        system = factor(
            H, R * free.unsqueeze(1) * here.unsqueeze(2), 1 - here, None if N is None else N * free.unsqueeze(1)
        )
    else:
        H, R = _full(program, faces)
        R = R * free.unsqueeze(1) * on.unsqueeze(2)
        hold = on * size / norms.square()
        H = (H * free.unsqueeze(1) + R.mT @ (hold.unsqueeze(2) * R)) * free.unsqueeze(2)
        system = factor(raised(H, 1 - free), R, 1 - on)
    pivot = system.of_rows
    near = torch.where(pivot < DEPENDENT, pivot.clamp_min(1e-300), 1.0).sqrt().unsqueeze(1)
    sound = system.good & (system.pivot >= SINGULAR) & (pivot >= DEPENDENT)
    weights, many = on * size / norms / near, REFINEMENTS if faces is None else MORE_REFINEMENTS
    found = DenseGhost(program, rows, bounds, free, on, system, kept, hold, weights, sound, faces, many)
    if faces is None or flat is None:
        return found
    apex = (rows[:, program.r - program.curved_rows :] == 1).any(dim=1)
    return replace(found, sound=sound & ~apex & _determined(found, flat * size))


def _diagonal(program: DenseProgram, faces: Faces | None) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """A diagonal Q with the curvature of cones, the rows of the ghost, rows (batch, cones, n) to subtract, and which
    rows the system has; no cone is at its apex."""
    if faces is None:
        return program.Q, program.R, None, None
    k, cones = program.r - program.curved_rows, faces.cones
    C = program.R[:, k:]
    along = cones.sums(faces.u, C)
    tails = torch.where(cones.tail, cones.spread(faces.h), 0.0)
    R = torch.cat([program.R[:, :k].expand(len(along), -1, -1), C[:, cones.head] - along], dim=1)
    kept = torch.cat([torch.arange(k, device=cones.head.device), k + cones.head])
    return program.Q + times(C.square().mT, tails), R, faces.h.sqrt().unsqueeze(2) * along, kept


def _full(program: DenseProgram, faces: Faces | None) -> tuple[Tensor, Tensor]:
    """Q with the curvature of cones, and the rows of the ghost."""
    if faces is None:
        return program.Q, program.R
    k, cones = program.r - program.curved_rows, faces.cones
    C = program.R[:, k:]
    along = cones.sums(faces.u, C)
    heads = (C[:, cones.head] - along)[:, cones.of]
    replaced = torch.where(cones.tail.unsqueeze(1), C, heads)
    R = torch.cat([program.R[:, :k].expand(len(replaced), -1, -1), replaced], dim=1)
    tails = torch.where(cones.tail, cones.spread(faces.h), 0.0)
    across = tails.sqrt().unsqueeze(2) * (C - faces.u.unsqueeze(2) * along[:, cones.of])
    return program.Q + across.mT @ across, R


def _determined(ghost: DenseGhost, flat: Tensor) -> Tensor:
    """(batch,) whether rows fix the variables without curvature, marked (batch, n): a probe of forces on them is
    solved."""
    probe = torch.cos(1.7 * torch.arange(flat.shape[1], dtype=flat.dtype, device=flat.device) + 1.0)
    return ~(ghost.solve(flat * probe)[2] > SOLVED)
