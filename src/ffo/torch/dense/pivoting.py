"""Block principal pivoting on the dual of a batch of definite programs, on any device.

With Q = LL', W = L^-1 R' and w = L^-1 p, the minimiser for multipliers lam has rows Rz = -W'w - W'W lam. Some rows are
held at their bounds, which determines lam on them; then all rows with a wrong sign change at once (Júdice and Pires
1994; `ffo.kernels.pivoting` is the same for one sample). Three to six Cholesky factorizations of the size of R reach
the solution, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from ffo.kernels.pivoting import LARGE, NEGATIVE, VIOLATED
from ffo.torch.dense.ghost import DenseGhost, factorize
from ffo.torch.dense.program import (
    DensePoint,
    DenseProgram,
    Tensor,
    are_definite,
    largest,
    positive,
    raised,
    solved,
    times,
    triangular,
)  # fmt: skip
from ffo.torch.dense.verify import Verdict

NAME = "batched pivoting"
#: most exchanges; hardly any sample takes more than ten
STEPS = 40
#: Newton steps after it
POLISH = 0
#: exchanges without progress after which only the worst rows change, and after which only one does (20,000 programs
#: of ten variables: at most 11 exchanges; 31 if all rows change first and then only one)
CALM, PATIENCE = 1, 12
#: most rows for which all steps run in one kernel
FUSED = 255


@dataclass(frozen=True)
class Whitened:
    """The program with its bounds as rows; L, W (batch or 1, n, r), w (batch, n); the Gram matrix W'W and its roots,
    rows at the minimiser without any constraint (batch, r); and whether all programs are definite ()."""

    program: DenseProgram
    L: Tensor
    W: Tensor
    w: Tensor
    gram: Tensor
    root: Tensor
    free: Tensor
    valid: Tensor


@dataclass(frozen=True)
class Pivots:
    """Bounds at which rows are held, and multipliers (batch, r); whether pivoting has finished, or stopped; steps, the
    fewest wrong rows so far, tries left until there must be fewer (batch,); and whether some sample is running ()."""

    side: Tensor
    lam: Tensor
    ended: Tensor
    stopped: Tensor
    steps: Tensor
    best: Tensor
    tries: Tensor
    going: Tensor


def prepare(given: DenseProgram) -> Whitened:
    program = given.all_rows()
    L, info = torch.linalg.cholesky_ex(program.Q)
    valid = are_definite(L, info)
    W = triangular(L, program.R.mT, upper=False)
    w = triangular(L, program.p.unsqueeze(2), upper=False).squeeze(2)
    gram = W.mT @ W
    norms = positive(gram.diagonal(dim1=1, dim2=2)).sqrt()
    return Whitened(program, L, W, w, gram, norms, -times(W.mT, w), valid)


def start(made: Whitened) -> Pivots:
    """Start with the equalities held, or, if there are none and all rows can be active, the rows that the minimiser
    violates."""
    program = made.program
    side = program.equal.expand(program.batch, -1).to(torch.int8)
    if not program.equalities and program.r <= program.n:
        side = (made.free > program.upp).to(torch.int8) - (made.free < program.low).to(torch.int8)
    count = torch.zeros_like(side[:, 0] if side.shape[1] else made.w[:, 0], dtype=torch.long)
    best, tries = count + made.program.r + 1, count + PATIENCE
    return Pivots(
        side, torch.zeros_like(made.free), count > 0, count > 0, count, best, tries, torch.ones_like(made.valid)
    )


def step(now: Pivots, made: Whitened) -> Pivots:
    """One exchange: hold the rows at their bounds, and find which are wrong."""
    program, free, side = made.program, made.free, now.side
    held = side != 0
    on = held.to(free.dtype)
    C, info = torch.linalg.cholesky_ex(raised(made.gram * on.unsqueeze(2) * on.unsqueeze(1), 1 - on))
    target = torch.where(held, free - torch.where(side > 0, program.upp, program.low), 0.0)
    lam = solved(C, target)
    moved = times(made.gram, lam)
    value, force = free - moved, lam * made.root
    leaves = held & ~program.equal & (side * force < -NEGATIVE * largest(force).unsqueeze(1))
    above, below = value - program.upp, program.low - value
    size = VIOLATED * (free.abs() + moved.abs())
    over, under = above - VIOLATED * program.upp.abs() > size, below - VIOLATED * program.low.abs() > size
    comes = ~held & (over | under)
    wrong = leaves | comes
    count = wrong.sum(dim=1)
    tries = torch.where(count < now.best, PATIENCE, now.tries - 1)
    # If more rows enter than can be active at a point, or exchanges do not help, only the worst rows change. If that
    # does not help either, only the last of them changes until fewer are wrong, which terminates.
    badness = torch.where(comes, torch.maximum(above, below) / made.root, torch.where(leaves, force.abs(), 0.0))
    most = badness >= LARGE * largest(badness).unsqueeze(1)
    crowded = (held & ~leaves | comes).sum(dim=1) > program.n
    place = torch.arange(program.r, device=held.device)
    last = place == torch.where(wrong, place, -1).amax(dim=1, keepdim=True) if program.r else wrong
    several = torch.where((crowded | (tries < PATIENCE - CALM)).unsqueeze(1), most, wrong)
    changes = wrong & torch.where((tries > 0).unsqueeze(1), several, last) & ~now.stopped.unsqueeze(1)
    ended = (count == 0) & (info == 0)
    stopped = now.stopped | ended | (info != 0)
    return Pivots(
        torch.where(changes, torch.where(held, 0, torch.where(over, 1, -1)), side).to(torch.int8),
        torch.where(now.stopped.unsqueeze(1), now.lam, lam),
        torch.where(now.stopped, now.ended, ended),
        stopped,
        now.steps + (~now.stopped).long(),
        torch.minimum(now.best, count),
        tries,
        ~stopped.all(),
    )


def whole(made: Whitened) -> Callable[[Whitened], Pivots] | None:
    """A kernel for all steps at once, if there are few rows and Triton is available, as with every torch for GPUs."""
    if not made.free.is_cuda or not 0 < made.program.r <= FUSED or find_spec("triton") is None:
        return None
    from ffo.torch.dense.fused import pivots  # Triton may be missing

    return pivots


def point(now: Pivots, made: Whitened, given: DenseProgram) -> DensePoint:
    half = made.w + times(made.W, now.lam)
    z = -triangular(made.L.mT, half.unsqueeze(2), upper=True).squeeze(2)
    lam, mu = now.lam[:, : given.r], now.lam[:, given.r :]
    if not given.bounded:
        return DensePoint(z, lam, torch.zeros_like(z))
    side = now.side[:, given.r :]  # rounding errors of large variables are no error of theirs, but one of a small bound
    return DensePoint(torch.where(side > 0, given.ub, torch.where(side < 0, given.lb, z)), lam, mu)


def ghost(made: Whitened, verdict: Verdict) -> DenseGhost:
    """The ghost of the program with its bounds as rows."""
    rows = torch.cat([verdict.rows, verdict.bounds], dim=1) if made.program.r > verdict.rows.shape[1] else verdict.rows
    return factorize(made.program, rows, torch.zeros_like(verdict.bounds), L=made.L, W=made.W)
