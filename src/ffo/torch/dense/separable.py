"""Newton's method on the dual of a batch of programs with a diagonal Q > 0, on any device.

In the units w = Q^(1/2) z, with the rows of R Q^(-1/2) scaled to unit length as U (r, n), the program

    minimize 1/2 |w|^2 + c'w   subject to  low <= Uw <= upp,  lo <= w <= hi

has a convex, piecewise quadratic dual, whose inner minimiser is w = clip(-c - U'lam) (`ffo.kernels.separable` is the
same for one sample, and equalities). Newton's matrix is U_F U_F' on the rows held, with the variables F off their
bounds; a multiplier that would change its sign stops at zero.
"""

from __future__ import annotations

import torch

from ffo.kernels.separable import CLOSE, DAMPING, DECREASE, EXACT, HALVINGS, REGULARISATION, ROUNDING, TINY, UNDAMPED
from ffo.torch.dense.program import DensePoint, DenseProgram, Tensor, largest, positive, times
from ffo.torch.dense.working import Working

STEPS = 40


def dual_newton(program: DenseProgram) -> tuple[DensePoint, Tensor, Tensor]:
    """A point, whether the method ended there (batch,), and the steps it took (batch,); Q is a diagonal."""
    assert program.diagonal is not None
    root = program.diagonal.sqrt()
    U = program.R / root.unsqueeze(1)
    length = positive(torch.linalg.vector_norm(U, dim=2))
    U = U / length.unsqueeze(2)
    low, upp = program.low / length, program.upp / length
    data = (U, program.p / root, low, upp, program.lb * root, program.ub * root, program.equal.unsqueeze(0))
    lam = _start(*data[:2], upp, program.equalities)
    count = torch.zeros(program.batch, dtype=torch.long, device=lam.device)
    phi, left, sign, gap, free = _evaluate(*data, lam)
    state = (lam, phi, left, sign, gap, free, left <= EXACT, count)
    lam, *_, ended, steps = Working(data, state).run(_step, STEPS)
    raw = _raw(*data[:2], lam)
    w = torch.clamp(raw, data[4], data[5])
    z = torch.clamp(w / root, program.lb, program.ub)
    return DensePoint(z, lam / length, (raw - w) * root), ended, steps


def _start(U: Tensor, c: Tensor, upp: Tensor, equalities: int) -> Tensor:
    """The multipliers of the equalities if nothing else were there; zero for the others."""
    lam = torch.zeros_like(upp)
    if equalities:
        E = U[:, :equalities]
        C = _factor(E @ E.mT, REGULARISATION)[0].expand(len(lam), -1, -1)
        lam[:, :equalities] = -torch.cholesky_solve((upp[:, :equalities] + times(E, c)).unsqueeze(2), C).squeeze(2)
    return lam


def _raw(U: Tensor, c: Tensor, lam: Tensor) -> Tensor:
    return -c - times(U.mT, lam)


def _factor(S: Tensor, shift: Tensor | float) -> tuple[Tensor, Tensor]:
    """Of S + shift; and whether it is one (batch,)."""
    S.diagonal(dim1=1, dim2=2).add_(shift)
    C, info = torch.linalg.cholesky_ex(S)
    return C, info == 0


def _evaluate(
    U: Tensor, c: Tensor, low: Tensor, upp: Tensor, lo: Tensor, hi: Tensor, equal: Tensor, lam: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The dual's value and the residual of the rows (batch,); which side of a row counts, and how far the row is beyond
    it (batch, r); which variables are free (batch, n)."""
    raw = _raw(U, c, lam)
    w = torch.clamp(raw, lo, hi)
    value = times(U, w)
    sign = torch.where(lam != 0, lam, torch.where(value > upp, 1.0, 0.0) - torch.where(value < low, 1.0, 0.0)).sign()
    sign = torch.where(equal, 1.0, sign)
    side = torch.where(sign > 0, upp, torch.where(sign < 0, low, 0.0))
    gap = torch.where(sign != 0, value - side, 0.0)
    phi = (lam * side).sum(dim=1) - (w * (0.5 * w - raw)).sum(dim=1)
    left = largest(gap / (side.abs() + largest(w).unsqueeze(1) + TINY))
    return phi, left, sign, gap, (lo < raw) & (raw < hi)


def _step(
    U: Tensor, c: Tensor, low: Tensor, upp: Tensor, lo: Tensor, hi: Tensor, equal: Tensor,
    lam: Tensor, phi: Tensor, left: Tensor, sign: Tensor, gap: Tensor, free: Tensor, ended: Tensor, steps: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """A damped Newton step, as far as the dual's value decreases."""
    on = sign.abs()
    S = ((U * free.unsqueeze(1)) @ U.mT) * on.unsqueeze(2) * on.unsqueeze(1)
    damping = torch.where(left > UNDAMPED, DAMPING * left, 0.0).unsqueeze(1)
    C, good = _factor(S, REGULARISATION + damping + (1 - on))
    move = torch.cholesky_solve(gap.unsqueeze(2), C).squeeze(2)
    far, found, to = torch.ones_like(phi).unsqueeze(1), (phi, left, sign, gap, free), lam
    for _ in range(HALVINGS):
        to = lam + far * move
        to = torch.where(equal, to, sign * (sign * to).clamp_min(0.0))
        found = _evaluate(U, c, low, upp, lo, hi, equal, to)
        slope = -(gap * (to - lam)).sum(dim=1)
        fine = (found[0] <= phi + DECREASE * slope + ROUNDING * phi.abs()) | (found[1] < 0.1 * left) | (left <= CLOSE)
        if bool(fine.all()):
            break
        far = torch.where(fine.unsqueeze(1), far, 0.5 * far)
    now = found[1]
    ended = (now <= EXACT) | ((now <= CLOSE) & (now > 0.5 * left))
    return ended | ~good | ~torch.isfinite(now), to, *found, ended, steps + 1
