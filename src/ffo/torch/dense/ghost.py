"""The ghost problem of dense quadratic programs in closed form (FFOQP of the paper).

On an active set the perturbed ghost is linear algebra: with the variables at bounds held (the free
ones F) and the active rows R_a,

    [ Q_FF  R_aF' ] [u]   [ r_x ]
    [ R_aF   0    ] [t] = [ r_a ]

solved for the whole batch by two Cholesky factorizations, of H = Q_FF + eps (none where Q is diagonal)
and of S = R_aF H^-1 R_aF' + eps, and refinement against the unregularised system. Free variables and
active rows are gathered first (as many as the busiest sample has), so that what is held costs nothing.
Nothing leaves the device and nothing loops over samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ffo.torch.dense.program import (
    SINGULAR,
    DensePoint,
    DenseProgram,
    Tensor,
    largest,
    plus,
    positive,
    product,
    raised,
    triangular,
)

REGULARISATION = 1e-8
#: pivots of S, relative to its diagonal, below which active rows may depend on each other
DEPENDENT = 1e-5
#: pivots of S, relative to its diagonal, that are nothing but rounding: rows that are merely close to each
#: other have larger ones, and shifted by more than those S would not even be refined
ROUNDING = 1e-13
REFINEMENTS = 8
#: entries up to which choosing some costs more than working on all
IN_PLACE = 16
ACCURACY = 1e-12


@dataclass(frozen=True)
class Chosen:
    """Some entries of each sample, the same number k for all: `index` (batch, k), None where all stand in
    their places; and `real` (batch, k), 0 where a sample has fewer and an entry only fills the place, None
    where all are chosen."""

    index: Tensor | None = None
    real: Tensor | None = None

    @classmethod
    def of(cls, mask: Tensor, dtype: torch.dtype) -> Chosen:
        """The true entries of a (batch, size) mask."""
        if mask.shape[1] <= IN_PLACE:
            return cls(real=mask.to(dtype))
        counts = mask.sum(dim=1)
        least, most = (int(c) for c in torch.aminmax(counts))
        if least == mask.shape[1]:
            return cls()
        index = torch.argsort(mask.to(torch.int8), dim=1, descending=True, stable=True)[:, :most]
        return cls(index, None if least == most else torch.gather(mask, 1, index).to(dtype))

    @property
    def everything(self) -> bool:
        return self.index is None and self.real is None

    @property
    def filler(self) -> Tensor | None:
        """(batch, k) 1 at the fillers, None where there are none."""
        return None if self.real is None else 1 - self.real

    def only(self, v: Tensor) -> Tensor:
        """v (batch or 1, k), zero at the fillers."""
        return v if self.real is None else self.real * v

    def pick(self, v: Tensor) -> Tensor:
        """(batch or 1, size) -> (batch or 1, k), whatever it is at the fillers."""
        return v if self.index is None else torch.gather(v.expand(len(self.index), -1), 1, self.index)

    def take(self, v: Tensor) -> Tensor:
        """(batch or 1, size) -> (batch, k), zero at the fillers."""
        return self.only(self.pick(v))

    def put(self, v: Tensor, size: int) -> Tensor:
        """(batch, k), zero at the fillers -> (batch, size), zero elsewhere."""
        return v if self.index is None else v.new_zeros(v.shape[0], size).scatter_add(1, self.index, v)


@dataclass(frozen=True)
class _Diagonal:
    """H = diag(h), h (batch, f): its square root on either side."""

    h: Tensor

    def taken(self, r: Tensor, u: Tensor) -> Tensor:
        """r - Qu, columns (batch, f, 1)."""
        return torch.addcmul(r, self.h.unsqueeze(2), u, value=-1.0)

    def half(self, X: Tensor) -> Tensor:
        return X / self.h.sqrt().unsqueeze(2)

    back = half

    @property
    def size(self) -> Tensor:
        """(batch, 1) largest curvature along a variable."""
        return _size(self.h)


@dataclass(frozen=True)
class _Full:
    """Q (batch, f, f), the factor of H = LL', and about the largest curvature (batch or 1, 1)."""

    Q: Tensor
    L: Tensor
    size: Tensor

    def taken(self, r: Tensor, u: Tensor) -> Tensor:
        """r - Qu, columns (batch, f, 1)."""
        return plus(r, self.Q, u, -1.0)

    def half(self, X: Tensor) -> Tensor:
        return triangular(self.L, X, upper=False)

    def back(self, X: Tensor) -> Tensor:
        return triangular(self.L.mT, X, upper=True)


class DenseGhost:
    """The factorized ghost of a batch at an active set.

    Args:
        rows: (batch, r) in {-1, 0, 1}: active lower side, inactive, active upper side; boolean where there are no
            lower ones.
        bounds: (batch, n) the same for variables.
    """

    def __init__(self, program: DenseProgram, rows: Tensor, bounds: Tensor) -> None:
        self.program, self.row_side, self.bound_side = program, rows, bounds
        at_bounds = program.bounded and bool(bounds.any())
        self.free = Chosen.of(bounds == 0, program.p.dtype) if at_bounds else Chosen()
        self.active = Chosen.of(rows.to(torch.bool), program.p.dtype) if program.r > program.equalities else Chosen()
        self.held = not self.free.everything
        if self.held:
            self.R = _minor(program.R, self.active, self.free)
            self.norms = positive(torch.linalg.vector_norm(self.R, dim=2))
        else:  # (batch or 1, k, f), and the lengths of its rows (batch or 1, k)
            self.R, self.norms = picked(program.R, self.active.index), self.active.pick(program.norms)
        self.hold: Tensor | None = None
        self._least: Tensor | None = None
        self.curvature = self._curvature()
        #: (batch or 1, k) what makes a residual of a row a force (costs may have any size), zero at the fillers;
        #: more where rows are close to each other
        self.weights = self.active.only(self.curvature.size) / self.norms
        self.V = self._whitened()  # (batch or 1, f, k)
        #: the factor of S, and (batch or 1,) its least pivot relative to the diagonal of S
        self.S, self.row_pivot = _complement(self.V, self.active.filler)
        # What nearly dependent rows leave of a residual is all that holds u in some direction.
        near = torch.where(self.row_pivot < DEPENDENT, self.row_pivot, 1.0)
        self.weights = self.weights / near.sqrt().unsqueeze(1)

    def _curvature(self) -> _Diagonal | _Full:
        program, free = self.program, self.free
        if program.diagonal is not None:
            h = free.take(program.diagonal.expand(program.batch, -1))
            return _Diagonal(h if free.filler is None else h + free.filler)
        Q = _minor(program.Q, free, free)
        if not self.held and program.white is not None:
            return _Full(Q, program.white.L, program.white.size)
        L, pivot = _cholesky(Q, free.filler)
        # Where Q alone is singular, active rows hold u: H + R'R has the same solution, for r_x + R'r_a.
        weak, size = pivot < SINGULAR, _size(Q.diagonal(dim1=1, dim2=2))
        if bool(weak.any()):
            self.hold = torch.where(weak, size, torch.zeros_like(pivot))  # (batch, 1)
            R = self.R * self.active.only(1.0 / self.norms).unsqueeze(2)
            L, self._least = _cholesky(Q + self.hold.unsqueeze(2) * (R.mT @ R), free.filler)
        return _Full(Q, L, size)

    @property
    def sound(self) -> Tensor:
        """(batch or 1,) whether active rows are clearly independent, and hold what the curvature does not."""
        independent = self.row_pivot >= DEPENDENT
        return independent if self._least is None else independent & (self._least.squeeze(1) >= SINGULAR)

    def _whitened(self) -> Tensor:
        """H^(-1/2) R', zero at the fillers; where no variable is held, the program has it for all rows."""
        program, real = self.program, self.active.real
        if self.held or program.diagonal is not None or program.white is None:
            V = self.curvature.half(self.R.mT)
        else:
            V = picked(program.white.R, self.active.index).mT
        return V if real is None else V * real.unsqueeze(1)

    def _approximate(self, r_x: Tensor, r_a: Tensor | None) -> tuple[Tensor, Tensor]:
        """u and t, all of them columns (batch, f or k, 1)."""
        if self.hold is not None and r_a is not None:
            r_x = plus(r_x, self.R.mT, (self.hold / self.norms.square()).unsqueeze(2) * r_a)
        half = self.curvature.half(r_x)
        pulled = product(self.V.mT, half) if r_a is None else plus(-r_a, self.V.mT, half)
        t = torch.cholesky_solve(pulled, self.S)
        return self.curvature.back(plus(half, self.V, t, -1.0)), t

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
        if not self.held:
            u, t, error = self._refine(r_x, None if r_rows is None else self.active.take(r_rows))
            return u, self.active.put(t, program.r), error
        wanted_x = r_x
        if r_bounds is not None:
            wanted_x = r_x - program.curved(r_bounds)
            shift = program.rows(r_bounds)
            r_rows = -shift if r_rows is None else r_rows - shift
        u, t, error = self._refine(self.free.take(wanted_x), None if r_rows is None else self.active.take(r_rows))
        u = self.free.put(u, program.n)
        return u if r_bounds is None else u + r_bounds, self.active.put(t, program.r), error

    def on_bounds(self, r_x: Tensor, u: Tensor, t: Tensor) -> Tensor:
        """(batch, n) multipliers of the bounds that belong to a solution u, t: what is left for them of r_x."""
        if not self.held:
            return torch.zeros_like(u)
        left = r_x - self.program.curved(u) - self.program.pull(t)
        return torch.where(self.bound_side != 0, left, 0.0)

    def _refine(self, wanted_x: Tensor, wanted_a: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """u (batch, f), t (batch, k), zero at the fillers, and the relative residual (batch,)."""
        forces = wanted_x if wanted_a is None else torch.cat([wanted_x, wanted_a * self.weights], dim=1)
        scale = positive(largest(forces))
        r_x, r_a = wanted_x.unsqueeze(2), None if wanted_a is None else wanted_a.unsqueeze(2)
        u, t = self._approximate(r_x, r_a)
        left_x, left_a, error = self._left(r_x, r_a, u, t, scale)
        if float(error.amax()) <= ACCURACY:
            return u.squeeze(2), t.squeeze(2), error
        best_u, best_t, best_x = torch.zeros_like(u), torch.zeros_like(t), r_x
        best_a, best = torch.zeros_like(t) if r_a is None else r_a, torch.ones_like(error)
        for _ in range(REFINEMENTS):
            better = error < best
            these = better.reshape(-1, 1, 1)
            best_u, best_t = torch.where(these, u, best_u), torch.where(these, t, best_t)
            best_x, best_a = torch.where(these, left_x, best_x), torch.where(these, left_a, best_a)
            done = (error <= ACCURACY) | ~(error < 0.3 * best)
            best = torch.where(better, error, best)
            if bool(done.all()):
                break
            du, dt = self._approximate(best_x, self.active.only(best_a.squeeze(2)).unsqueeze(2))
            u, t = best_u + du, best_t + dt
            left_x, left_a, error = self._left(r_x, r_a, u, t, scale)
        return best_u.squeeze(2), best_t.squeeze(2), best

    def _left(
        self, r_x: Tensor, r_a: Tensor | None, u: Tensor, t: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What u and t leave of the right-hand sides (whatever at the fillers), columns, and its size (batch,)."""
        left_x = plus(self.curvature.taken(r_x, u), self.R.mT, t, -1.0)
        left_a = -product(self.R, u) if r_a is None else plus(r_a, self.R, u, -1.0)
        forces = torch.cat([left_x, left_a * self.weights.unsqueeze(2)], dim=1)
        return left_x, left_a, largest(forces.squeeze(2)) / scale

    def polished(self, point: DensePoint) -> DensePoint:
        """The solution of the equality-constrained program on the active set, from a point near it."""
        program = self.program
        on_row, held = self.row_side != 0, self.bound_side != 0
        target = torch.where(self.row_side > 0, program.upp, program.low)
        bound = torch.where(self.bound_side > 0, program.ub, program.lb)
        z = torch.where(held, bound, point.z)
        lam = torch.where(on_row, point.lam, 0.0)
        r_rows = torch.where(on_row, target - program.rows(z), 0.0)
        u, t, _ = self.solve(-program.stationarity(z, lam), r_rows)
        z, lam = z + u, lam + t
        return DensePoint(z, lam, self.on_bounds(-program.p, z, lam))


def picked(M: Tensor, index: Tensor | None) -> Tensor:
    """(batch or 1, a, b) -> (batch, k, b), whole rows; all of them where there is no index."""
    if index is None:
        return M
    return M[torch.arange(M.shape[0], device=M.device).unsqueeze(1), index]


def _minor(M: Tensor, rows: Chosen, cols: Chosen) -> Tensor:
    """(batch or 1, a, b) -> (batch or 1, i, j), the chosen rows and columns, zero at the fillers."""
    if cols.index is None:
        found = picked(M, rows.index)
    elif rows.index is None or len(M) == 1:
        found = picked(M.mT, cols.index).mT
        found = found if rows.index is None else torch.take_along_dim(found, rows.index.unsqueeze(2), dim=1)
    else:
        sample = torch.arange(M.shape[0], device=M.device).reshape(-1, 1, 1)
        found = M[sample, rows.index.unsqueeze(2), cols.index.unsqueeze(1)]
    found = found if rows.real is None else found * rows.real.unsqueeze(2)
    return found if cols.real is None else found * cols.real.unsqueeze(1)


def _cholesky(H: Tensor, filler: Tensor | None) -> tuple[Tensor, Tensor]:
    """Factors of H (batch or 1, k, k), with a small shift where H is flat, and their least pivots
    (batch or 1, 1) relative to the diagonal of H."""
    scale = _size(H.diagonal(dim1=1, dim2=2))
    filled = H if filler is None else raised(H, scale * filler)
    L, info = torch.linalg.cholesky_ex(filled)
    pivot = _pivot(L, scale)
    if bool(info.any()) or float(pivot.min()) < REGULARISATION:
        L, _ = torch.linalg.cholesky_ex(raised(filled, scale * REGULARISATION))
        pivot = _pivot(L, scale)
    return L, pivot


def _gram(V: Tensor, filler: Tensor | None) -> Tensor:
    """V'V (batch or 1, k, k), 1 at the fillers."""
    S = torch.bmm(V.mT, V)
    if filler is not None:
        S.diagonal(dim1=1, dim2=2).add_(filler)
    return S


def _complement(V: Tensor, filler: Tensor | None) -> tuple[Tensor, Tensor]:
    """The factor of S = V'V (batch or 1, k, k), 1 at the fillers, with a small shift where rows depend on
    each other to rounding, and the least of its pivots (batch or 1,) relative to the diagonal of S."""
    S = _gram(V, filler)
    L, info = torch.linalg.cholesky_ex(S)
    if not S.shape[1]:
        return L, S.new_ones(len(S))
    diagonal = S.diagonal(dim1=1, dim2=2)
    pivot = _least_pivot(L, diagonal)
    if bool((info.bool() | (pivot < ROUNDING)).any()):
        size = positive(diagonal)
        L, _ = torch.linalg.cholesky_ex(raised(S, REGULARISATION * size))
        pivot = _least_pivot(L, size)
    return L, pivot


def _least_pivot(L: Tensor, size: Tensor) -> Tensor:
    root = L.diagonal(dim1=1, dim2=2)
    return (root * root / size).amin(dim=1)


def _pivot(L: Tensor, scale: Tensor) -> Tensor:
    return L.diagonal(dim1=1, dim2=2).amin(dim=1, keepdim=True).square() / scale if L.shape[1] else scale


def _size(diagonal: Tensor) -> Tensor:
    """(batch, k) -> (batch, 1) largest entry (none is negative), 1 where all are zero."""
    return positive(diagonal.amax(dim=1, keepdim=True)) if diagonal.shape[1] else diagonal.new_ones(len(diagonal), 1)
