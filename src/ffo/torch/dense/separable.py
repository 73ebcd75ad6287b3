"""Newton's method on the dual of a batch of programs with diagonal Q > 0, on any device.

In the units w = Q^(1/2) z, with the rows of R Q^(-1/2) scaled to unit length as U (r, n), the program

    minimize 1/2 |w|^2 + c'w   subject to  low <= Uw <= upp,  lo <= w <= hi

has a convex, piecewise quadratic dual, whose inner minimiser is w = clip(-c - U'lam) (`ffo.kernels.separable` is the
same for one sample, and equalities). Newton's matrix is U_F U_F' on the held rows, where F are the variables not at
their bounds; a multiplier that would change its sign stops at zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ffo.kernels.separable import CLOSE, DAMPING, DECREASE, EXACT, HALVINGS, REGULARISATION, ROUNDING, TINY, UNDAMPED
from ffo.torch.dense.ghost import DenseGhost, factorize
from ffo.torch.dense.program import (
    SINGULAR,
    DensePoint,
    DenseProgram,
    Tensor,
    largest,
    positive,
    raised,
    solved,
    times,
)  # fmt: skip
from ffo.torch.dense.verify import Verdict

NAME = "batched dual Newton"
STEPS = 60
#: Newton steps after it
POLISH = 0
#: step lengths to try, relative to the length allowed by the last step; a matrix costs more than several evaluations
LENGTHS = (1.0, 0.2, 0.04)


@dataclass(frozen=True)
class DualProgram:
    """The program, its roots of Q (batch or 1, n) and lengths of rows (batch or 1, r), and what it is in the units of
    w: U (batch or 1, r, n), c, lo, hi (batch, n), low, upp (batch, r); and whether no Q is singular ()."""

    program: DenseProgram
    root: Tensor
    length: Tensor
    U: Tensor
    c: Tensor
    low: Tensor
    upp: Tensor
    lo: Tensor
    hi: Tensor
    valid: Tensor


@dataclass(frozen=True)
class DualState:
    """Multipliers (batch, r), the dual's value and the residual of the rows there (batch,), which bound of a row
    applies and by how much the row exceeds it (batch, r), which variables are free (batch, n); the length of the next
    step, whether a sample has finished, or stopped, and steps (batch,); and whether some sample is running ()."""

    lam: Tensor
    phi: Tensor
    left: Tensor
    sign: Tensor
    gap: Tensor
    free: Tensor
    far: Tensor
    ended: Tensor
    stopped: Tensor
    steps: Tensor
    going: Tensor


def prepare(given: DenseProgram) -> DualProgram:
    least, most = torch.aminmax(given.Q, dim=1)
    root = given.Q.sqrt()
    U = given.R / root.unsqueeze(1)
    length = positive(torch.linalg.vector_norm(U, dim=2))
    sides = (given.low / length, given.upp / length, given.lb * root, given.ub * root)
    valid = (least > SINGULAR * most).all()
    return DualProgram(given, root, length, U / length.unsqueeze(2), given.p / root, *sides, valid)


def start(made: DualProgram) -> DualState:
    """Start with the multipliers that equalities would have without other constraints."""
    k, lam = made.program.equalities, torch.zeros_like(made.upp)
    if k:
        E = made.U[:, :k]
        C, _ = torch.linalg.cholesky_ex(raised(E @ E.mT, made.root.new_full((1, 1), REGULARISATION)))
        lam = torch.cat([-solved(C, made.upp[:, :k] + times(E, made.c)), lam[:, k:]], dim=1)
    phi, left, sign, gap, free = _evaluate(made, lam)
    far, steps = torch.ones_like(phi), torch.zeros_like(phi).long()
    return DualState(lam, phi, left, sign, gap, free, far, left <= EXACT, left <= EXACT, steps, (left > EXACT).any())


def _raw(made: DualProgram, lam: Tensor) -> Tensor:
    return -made.c - times(made.U.mT, lam)


def _evaluate(made: DualProgram, lam: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """phi, left, sign, gap and free of a `DualState`."""
    raw = _raw(made, lam)
    w = torch.clamp(raw, made.lo, made.hi)
    value = times(made.U, w)
    beyond = torch.where(value > made.upp, 1.0, 0.0) - torch.where(value < made.low, 1.0, 0.0)
    sign = torch.where(made.program.equal, 1.0, torch.where(lam != 0, lam.sign(), beyond))
    side = torch.where(sign > 0, made.upp, torch.where(sign < 0, made.low, 0.0))
    gap = torch.where(sign != 0, value - side, 0.0)
    phi = (lam * side).sum(dim=1) - (w * (0.5 * w - raw)).sum(dim=1)
    left = largest(gap / (side.abs() + largest(w).unsqueeze(1) + TINY))
    return phi, left, sign, gap, (made.lo < raw) & (raw < made.hi)


def step(now: DualState, made: DualProgram) -> DualState:
    """A damped Newton step, the longest of a few that decrease the dual's value; if none does, the next is shorter."""
    on = now.sign.abs()
    S = ((made.U * now.free.unsqueeze(1)) @ made.U.mT) * on.unsqueeze(2) * on.unsqueeze(1)
    damping = torch.where(now.left > UNDAMPED, DAMPING * now.left, 0.0).unsqueeze(1)
    C, info = torch.linalg.cholesky_ex(raised(S, REGULARISATION + damping + (1 - on)))
    move = solved(C, now.gap)
    found: tuple[Tensor, ...] = (now.lam, now.phi, now.left, now.sign, now.gap, now.free)
    fine = now.stopped
    for length in LENGTHS:
        lam = now.lam + (length * now.far).unsqueeze(1) * move
        lam = torch.where(made.program.equal, lam, now.sign * (now.sign * lam).clamp_min(0.0))
        trial = (lam, *_evaluate(made, lam))
        phi, left = trial[1:3]
        slope = -(now.gap * (lam - now.lam)).sum(dim=1)
        enough = phi <= now.phi + DECREASE * slope + ROUNDING * now.phi.abs()
        good = ~fine & (enough | (left < 0.1 * now.left) | (now.left <= CLOSE) | (now.far <= 0.5**HALVINGS))
        found = tuple(torch.where(good if v.ndim == 1 else good.unsqueeze(1), v, w)
                      for v, w in zip(trial, found, strict=True))  # fmt: skip
        fine = fine | good
    left = found[2]
    ended = fine & ((left <= EXACT) | ((left <= CLOSE) & (left > 0.5 * now.left)))
    lost = (info != 0) | ~torch.isfinite(left)
    stopped = now.stopped | ended | lost
    lam, phi, left, sign, gap, free = found
    return DualState(
        lam,
        phi,
        left,
        sign,
        gap,
        free,
        torch.where(fine, 1.0, LENGTHS[-1] / 2 * now.far),
        torch.where(now.stopped, now.ended, ended),
        stopped,
        now.steps + (~now.stopped).long(),
        ~stopped.all(),
    )


def whole(made: DualProgram) -> None:
    """There is no kernel that takes all steps at once."""


def point(now: DualState, made: DualProgram, given: DenseProgram) -> DensePoint:
    raw = _raw(made, now.lam)
    w = torch.clamp(raw, made.lo, made.hi)
    z = torch.clamp(w / made.root, given.lb, given.ub)
    return DensePoint(z, now.lam / made.length, (raw - w) * made.root)


def ghost(made: DualProgram, verdict: Verdict) -> DenseGhost:
    return factorize(made.program, verdict.rows, verdict.bounds)
