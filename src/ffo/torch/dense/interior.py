"""A batched interior-point method for dense quadratic and second-order cone programs, on any device.

Mehrotra's predictor-corrector with Nesterov and Todd's scaling for the whole batch at once. An iteration factorizes
one system, shared by the predictor and the corrector: H = Q + G'W^-2 G, and the Schur complement of the equalities. If
Q is diagonal, only bounds and the diagonal parts of cones are added to H; the other rows stay rows, and what is
factorized is as small as their number. Samples that are done, or that no longer improve, stop; each ends at the best
point it has seen. Iterations need no synchronization, so that a GPU can run them as recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ffo.torch.dense.ghost import DenseGhost, Faces, factorize
from ffo.torch.dense.graphs import copied
from ffo.torch.dense.program import DensePoint, DenseProgram, Tensor, chosen, largest, positive, raised, times
from ffo.torch.dense.second_order import ConeScaling, divided, jordan, longest
from ffo.torch.dense.system import DenseSystem, factor
from ffo.torch.dense.verify import Verdict

NAME = "batched interior point"
STEPS = 60
#: Newton steps after it
POLISH = 6
#: residual at which a sample is done, without and with cones: Newton's method takes over (decision-focused SOCPs of
#: 200 variables: 22 iterations to 1e-7, 14 to 1e-5, and three Newton steps after both)
EPS, EPS_CONES = 1e-7, 1e-5
#: iterations without a better point after which a sample is given up; the residual ratio that counts as better
PATIENCE, BETTER = 6, 0.9
#: share of the step to the boundary, without and with cones: close to the boundary of a curved cone, steps zigzag
#: (the same SOCPs: 15 to 25 iterations with 0.995, 14 to 17 with 0.95)
STEP, STEP_CONES = 0.995, 0.95
#: added to the diagonals of matrices that have no Cholesky factor, relative to them: at first, and the factor by which
#: that grows as long as there is none
REGULARISATION, MORE = 1e-14, 100.0


@dataclass(frozen=True)
class Standard:
    """The program as Gz + s = h with s >= 0 where `present`, Ez = d, and h_c - Cz in the cones.

    G has the rows R, -R, I, -I; without bounds only the first two. h and `present` (batch, sides),
    E (batch or 1, e, n), d (batch, e), R (batch or 1, u, n) the rows with inequalities, C (batch or 1, c, n),
    h_c (batch, c); the residual at which samples are done, and whether every Q is positive semidefinite ().
    """

    program: DenseProgram
    h: Tensor
    present: Tensor
    E: Tensor
    d: Tensor
    R: Tensor
    C: Tensor
    h_c: Tensor
    eps: float
    valid: Tensor

    def rows(self, z: Tensor) -> Tensor:
        """(batch, sides) Gz."""
        Rz = times(self.R, z)
        return torch.cat([Rz, -Rz, z, -z] if self.program.bounded else [Rz, -Rz], dim=1)

    def parts(self, v: Tensor) -> tuple[Tensor, ...]:
        """v (batch, sides) on R, -R, I, -I."""
        u, n = self.R.shape[1], self.program.n
        return torch.split(v, [u, u, n, n] if self.program.bounded else [u, u], dim=1)

    def pull(self, v: Tensor, v_c: Tensor) -> Tensor:
        """(batch, n) G'v + C'v_c."""
        parts = self.parts(v)
        found = times(self.R.mT, parts[0] - parts[1])
        found = found + parts[2] - parts[3] if self.program.bounded else found
        return found + times(self.C.mT, v_c) if self.program.cones else found


@dataclass(frozen=True)
class InteriorPoint:
    """z (batch, n), s and lam (batch, sides), s_c and lam_c (batch, c), nu (batch, e)."""

    z: Tensor
    s: Tensor
    lam: Tensor
    s_c: Tensor
    lam_c: Tensor
    nu: Tensor

    def moved(self, step: InteriorPoint, length: Tensor) -> InteriorPoint:
        return InteriorPoint(*(v + length * d for v, d in zip(vars(self).values(), vars(step).values(), strict=True)))


@dataclass(frozen=True)
class Residuals:
    """Of the dual, of sides, of equalities, of cones; the complementarity gap and the largest relative one (batch,)."""

    dual: Tensor
    sides: Tensor
    equal: Tensor
    curved: Tensor
    gap: Tensor
    error: Tensor


@dataclass(frozen=True)
class InteriorState:
    """The iterate, the best one and its residual, iterations since it improved, the regularisation, whether a sample
    has stopped, and iterations (batch,); and whether some sample is running ()."""

    now: InteriorPoint
    kept: InteriorPoint
    best: Tensor
    idle: Tensor
    shift: Tensor
    stopped: Tensor
    steps: Tensor
    going: Tensor


def prepare(program: DenseProgram, eps: float | None = None) -> Standard:
    k, curved = program.equalities, program.curved_rows
    flat = slice(k, program.r - curved)
    sides = [program.upp[:, flat], -program.low[:, flat]]
    if program.bounded:
        sides += [program.ub, -program.lb]
    h = torch.cat(sides, dim=1)
    present = torch.isfinite(h)
    last = slice(program.r - curved, program.r)
    if program.diagonal:
        convex = (program.Q >= 0).all()
    else:  # to a shift in the size of rounding (see `ffo.program.convexity`)
        shift = 1e-9 * math.sqrt(program.n) * positive(program.curvature)
        convex = ~torch.linalg.cholesky_ex(raised(program.Q, shift.unsqueeze(1)))[1].any()
    return Standard(
        program,
        torch.where(present, h, 0.0),
        present.to(h.dtype),
        program.R[:, :k],
        program.upp[:, :k],
        program.R[:, flat],
        program.R[:, last],
        program.upp[:, last],
        (EPS_CONES if program.cones else EPS) if eps is None else eps,
        convex,
    )


def start(made: Standard) -> InteriorState:
    """Mehrotra's starting point: minimise the objective plus |Gz - h|^2, then shift s and lam into the cones."""
    p, one = made.program, torch.ones_like(made.h)
    none = made.h_c.new_zeros(made.h_c.shape)
    unit = p.layout.unit(none).expand_as(none) if p.cones else none
    system = _system(made, made.present, _scaling(made, unit, unit), torch.full_like(p.p[:, 0], REGULARISATION))
    z, nu = _solved(made, system, made.pull(made.present * made.h, made.h_c) - p.p, made.d)
    excess, excess_c = made.rows(z) - made.h, times(made.C, z) - made.h_c
    s, lam = (torch.where(made.present > 0, _shifted(v, made.present), one) for v in (-excess, excess))
    s_c, lam_c = (_shifted_inside(made, v) for v in (-excess_c, excess_c))
    now = InteriorPoint(z, s, made.present * lam, s_c, lam_c, nu)
    error = _residuals(made, now).error
    stopped = ~(error > made.eps)  # also where it is NaN
    idle, steps = (torch.zeros_like(error, dtype=torch.long) for _ in range(2))
    # no tensor is used twice: recorded steps overwrite their state
    return InteriorState(now, copied(now), error, idle, torch.zeros_like(error), stopped, steps, ~stopped.all())


def _residuals(made: Standard, now: InteriorPoint) -> Residuals:
    p, z = made.program, now.z
    Gz, Ez, Qz, Cz = made.rows(z), times(made.E, z), p.curved(z), times(made.C, z)
    dual = made.pull(now.lam, now.lam_c) + times(made.E.mT, now.nu)
    left = (Qz + p.p + dual, made.present * (Gz + now.s - made.h), Ez - made.d, Cz + now.s_c - made.h_c)
    gap = (made.present * now.s * now.lam).sum(dim=1) + (now.s_c * now.lam_c).sum(dim=1)
    one = torch.ones_like(gap)
    force = torch.stack([one, largest(p.p), largest(Qz), largest(dual)]).amax(dim=0)
    length = torch.stack([one, *(largest(v) for v in (made.h, Gz, Ez, made.d, made.h_c, Cz))]).amax(dim=0)
    objective = (z * (0.5 * Qz + p.p)).sum(dim=1).abs()
    worst = torch.stack([largest(left[0]) / force, *(largest(v) / length for v in left[1:]), gap / (1 + objective)])
    return Residuals(*left, gap, worst.amax(dim=0))


def step(state: InteriorState, made: Standard) -> InteriorState:
    """One iteration; samples that have stopped stay where they are."""
    now, r = state.now, _residuals(made, state.now)
    scaling = _scaling(made, now.s_c, now.lam_c)
    system = _system(made, made.present * now.lam / now.s, scaling, state.shift)
    affine = _direction(made, system, scaling, now, r, now.s * now.lam, now.lam_c)
    after = now.moved(affine, _length(made, now, affine))
    gap = (made.present * after.s * after.lam).sum(dim=1) + (after.s_c * after.lam_c).sum(dim=1)
    sigma = (gap / r.gap.clamp_min(1e-300)).clamp(0.0, 1.0) ** 3
    degree = (made.present.sum(dim=1) + len(made.program.cones)).clamp_min(1.0)
    target = (sigma * r.gap / degree).unsqueeze(1)
    centre = now.s * now.lam + affine.s * affine.lam - target
    move = _direction(made, system, scaling, now, r, centre, _centred(made, scaling, now, affine, target))
    new = now.moved(move, (STEP_CONES if made.program.cones else STEP) * _length(made, now, move))
    found = _residuals(made, new)
    fine = system.good & torch.isfinite(found.error) & ~state.stopped
    new, error = chosen(fine, new, now), torch.where(fine, found.error, r.error)
    better = fine & (error < state.best)
    idle = torch.where(fine & (error < BETTER * state.best), 0, state.idle + 1)
    best = torch.where(better, error, state.best)
    stopped = state.stopped | (best <= made.eps) | (idle >= PATIENCE)
    return InteriorState(
        new,
        chosen(better, new, state.kept),
        best,
        idle,
        torch.where(system.good, state.shift, torch.clamp(MORE * state.shift, min=REGULARISATION)),
        stopped,
        state.steps + (~state.stopped).long(),
        ~stopped.all(),
    )


def _scaling(made: Standard, s_c: Tensor, lam_c: Tensor) -> ConeScaling | None:
    return ConeScaling.of(made.program.layout, s_c, lam_c) if made.program.cones else None


def _system(made: Standard, weight: Tensor, scaling: ConeScaling | None, shift: Tensor) -> DenseSystem:
    """Factors of the Newton system for weights (batch, sides) and a scaling of the cones."""
    p, parts = made.program, made.parts(weight)
    rows, shift = parts[0] + parts[1], shift.unsqueeze(1)
    diagonal = parts[2] + parts[3] if p.bounded else torch.zeros_like(p.p)
    if not p.diagonal:
        H = p.Q + made.R.mT @ (rows.unsqueeze(2) * made.R)
        if scaling is not None:
            curved = scaling.back_rows(made.C)
            H = H + curved.mT @ curved
        size = (H.diagonal(dim1=1, dim2=2) + diagonal).abs().amax(dim=1, keepdim=True).clamp_min(1e-12)
        return factor(raised(H, diagonal + shift * size), made.E, torch.zeros_like(made.d), shift=shift)
    # rows with weights stay rows, multiplied with the roots of these
    B, N = [made.E.expand(len(rows), -1, -1), rows.sqrt().unsqueeze(2) * made.R], None
    diagonal = diagonal + p.Q
    if scaling is not None:
        d, a, b = scaling.sparse()
        diagonal = diagonal + times(made.C.square().mT, d)
        B.append(p.layout.sums(a, made.C))
        N = p.layout.sums(b, made.C)
    stacked = torch.cat(B, dim=1)
    e = torch.cat([torch.zeros_like(made.d), torch.ones_like(stacked[:, p.equalities :, 0])], dim=1)
    size = diagonal.amax(dim=1, keepdim=True).clamp_min(1e-12)
    return factor(diagonal + shift * size, stacked, e, N, shift)


def _solved(made: Standard, system: DenseSystem, r_x: Tensor, r_e: Tensor) -> tuple[Tensor, Tensor]:
    """The change of z and of nu."""
    more = system.C.shape[1] - r_e.shape[1]
    u, t = system.solve(r_x, torch.cat([r_e, r_e.new_zeros(len(r_e), more)], dim=1))
    return u, t[:, : r_e.shape[1]]


def _direction(
    made: Standard,
    system: DenseSystem,
    scaling: ConeScaling | None,
    now: InteriorPoint,
    r: Residuals,
    centre: Tensor,
    centre_c: Tensor,
) -> InteriorPoint:
    """The Newton direction: Gz + s = h, Ez = d, stationarity, and s lam + lam ds + s dlam = `centre` changed to zero;
    for cones dlam + W^-2 ds = -`centre_c`."""
    pushed = made.present * (now.lam * r.sides - centre) / now.s
    pushed_c = _twice_back(scaling, r.curved) - centre_c
    dz, dnu = _solved(made, system, -r.dual - made.pull(pushed, pushed_c), -r.equal)
    ds = made.present * (-r.sides - made.rows(dz))
    ds_c = -r.curved - times(made.C, dz)
    dlam = -made.present * (centre + now.lam * ds) / now.s
    return InteriorPoint(dz, ds, dlam, ds_c, -centre_c - _twice_back(scaling, ds_c), dnu)


def _twice_back(scaling: ConeScaling | None, v: Tensor) -> Tensor:
    return v if scaling is None else scaling.back(scaling.back(v))


def _centred(
    made: Standard, scaling: ConeScaling | None, now: InteriorPoint, affine: InteriorPoint, target: Tensor
) -> Tensor:
    """lam + W^-1 (l \\ (W^-1 ds o W dlam - target e)) with l = W lam, in the algebra of the cones."""
    if scaling is None:
        return now.lam_c
    cones = scaling.cones
    second = jordan(cones, scaling.back(affine.s_c), scaling.forth(affine.lam_c)) - target * cones.unit(target)
    return now.lam_c + scaling.back(divided(cones, scaling.forth(now.lam_c), second))


def _length(made: Standard, now: InteriorPoint, move: InteriorPoint) -> Tensor:
    """(batch, 1) the largest step up to 1 that keeps s and lam in their cones."""
    found = torch.ones_like(now.z[:, :1])
    for value, change in ((now.s, move.s), (now.lam, move.lam)):
        if value.shape[1]:
            ratio = torch.where(change < 0, -value / change.clamp_max(-1e-300), torch.inf)
            found = torch.minimum(found, ratio.amin(dim=1, keepdim=True))
    if made.program.cones:
        for value, change in ((now.s_c, move.s_c), (now.lam_c, move.lam_c)):
            found = torch.minimum(found, longest(made.program.layout, value, change).unsqueeze(1))
    return found


def whole(made: Standard) -> None:
    """There is no kernel that takes all steps at once."""


def point(state: InteriorState, made: Standard, given: DenseProgram) -> DensePoint:
    """The best point; multipliers of upper and lower bounds are combined into signed ones."""
    parts = made.parts(state.kept.lam)
    lam = torch.cat([state.kept.nu, parts[0] - parts[1], state.kept.lam_c], dim=1)
    z = state.kept.z.clone()
    return DensePoint(z, lam, parts[2] - parts[3] if given.bounded else torch.zeros_like(z))


def ghost(made: Standard, verdict: Verdict) -> DenseGhost:
    return factorize(made.program, verdict.rows, verdict.bounds, Faces.of(made.program, verdict))


def _shifted(v: Tensor, valid: Tensor) -> Tensor:
    """v shifted, sample by sample, until its valid entries are positive."""
    if not v.shape[1]:
        return v
    least = torch.where(valid > 0, v, torch.inf).amin(dim=1, keepdim=True)
    return torch.where(least > 1e-3, v, v - least + 1.0)


def _shifted_inside(made: Standard, v: Tensor) -> Tensor:
    """v (batch, c) shifted along the axis of each cone until it is inside."""
    if not made.program.cones:
        return v
    cones = made.program.layout
    least = cones.heads(v) - cones.norm(v)
    return v + cones.unit(v) * cones.spread(torch.where(least > 1e-3, 0.0, 1.0 - least))
