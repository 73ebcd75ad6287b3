"""Block principal pivoting on the dual of a batch of definite programs, on any device.

With Q = LL', V = L^-1 R' and w = L^-1 p, the minimiser for multipliers lam has rows Rz = -V'w - V'V lam. Some rows are
held at their sides, which says what lam is on them; then all rows with a wrong sign change at once (Júdice and Pires
1994; `ffo.kernels.pivoting` is the same for one sample). Three to six Cholesky factorizations of the size of R end in
the solution, to rounding.
"""

from __future__ import annotations

import torch

from ffo.kernels.pivoting import LARGE, NEGATIVE, PATIENCE, VIOLATED
from ffo.torch.dense.program import DensePoint, DenseProgram, Tensor, largest, positive, product, times, triangular
from ffo.torch.dense.working import Working

#: exchanges at most; few samples take more than ten
EXCHANGES = 60


def pivot(program: DenseProgram) -> tuple[DensePoint, Tensor, Tensor]:
    """A point, whether pivoting ended there (batch,), and the steps it took (batch,), of a definite program."""
    rows, bounded = program.all_rows(), program.bounded
    white = rows.white
    assert white is not None
    gram = white.R @ white.R.mT
    free = -times(white.R, white.p)
    batch = program.batch
    side = torch.where(rows.equal, 1, torch.zeros_like(free, dtype=torch.int8)).to(torch.int8)
    count = torch.zeros(batch, dtype=torch.long, device=free.device)
    state = (side, torch.zeros_like(free), count == 0, count, count + rows.r + 1, count + PATIENCE)
    data = (gram, free, rows.low, rows.upp, rows.equal.unsqueeze(0))
    _, lam, ended, steps, _, _ = Working(data, state).run(lambda *a: _step(program.n, *a), EXCHANGES)
    half = white.p + times(white.R.mT, lam)
    z = -triangular(white.L.mT, half.unsqueeze(2), upper=True).squeeze(2)
    if not bounded:
        return DensePoint(z, lam, torch.zeros_like(z)), ended, steps
    return DensePoint(z, lam[:, : program.r], lam[:, program.r :]), ended, steps


def _step(
    n: int, gram: Tensor, free: Tensor, low: Tensor, upp: Tensor, equal: Tensor,
    side: Tensor, lam: Tensor, ended: Tensor, steps: Tensor, best: Tensor, tries: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """One exchange: hold the rows at their sides, and see which are wrong."""
    held = side != 0
    on = held.to(free.dtype)
    M = gram * on.unsqueeze(2) * on.unsqueeze(1)
    M.diagonal(dim1=1, dim2=2).add_(1 - on)
    C, info = torch.linalg.cholesky_ex(M)
    target = torch.where(held, free - torch.where(side > 0, upp, low), 0.0)
    lam = torch.cholesky_solve(target.unsqueeze(2), C).squeeze(2)
    moved = product(gram, lam.unsqueeze(2)).squeeze(2)
    value, root = free - moved, positive(gram.diagonal(dim1=1, dim2=2)).sqrt()
    force = lam * root
    leaves = held & ~equal & (side * force < -NEGATIVE * largest(force).unsqueeze(1))
    size = VIOLATED * (free.abs() + moved.abs())
    over = value - upp - VIOLATED * upp.abs() > size
    under = low - value - VIOLATED * low.abs() > size
    comes = ~held & (over | under)
    wrong = (leaves | comes).sum(dim=1)
    # Where more rows come than a point can have active, only those that are violated most do.
    violation = torch.where(comes, torch.maximum(value - upp, low - value) / root, 0.0)
    crowded = (held & ~leaves | comes).sum(dim=1) > n
    comes = comes & ~(crowded.unsqueeze(1) & (violation < LARGE * largest(violation).unsqueeze(1)))
    # Where exchanges do not help, only the last of the wrong rows changes until fewer are wrong: that ends.
    tries = torch.where(wrong < best, PATIENCE, tries - 1)
    place = torch.arange(held.shape[1], device=held.device)
    last = torch.where(leaves | comes, place, -1).amax(dim=1, keepdim=True)
    changes = (leaves | comes) & ((tries > 0).unsqueeze(1) | (place == last))
    side = torch.where(changes, torch.where(held, 0, torch.where(over, 1, -1)), side).to(torch.int8)
    ended = (wrong == 0) & (info == 0)
    return ended | (info != 0), side, lam, ended, steps + 1, torch.minimum(best, wrong), tries
