"""The ghost problem of dense quadratic programs in closed form (FFOQP of the paper).

On an active set the perturbed ghost is linear algebra: with the variables at bounds held (the free
ones F) and the active rows R_a,

    [ Q_FF  R_aF' ] [u]   [ r_x ]
    [ R_aF   0    ] [t] = [ r_a ]

solved for the whole batch by two Cholesky factorizations, of H = Q_FF (none if Q is diagonal) and of
S = R_aF H^-1 R_aF', and refinement. Held variables and inactive rows are switched off (ones on the diagonals of H and
S) instead of removed, so that all samples have the same shape, nothing leaves the device and nothing waits for it.
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
    positive,
    raised,
    solved,
    times,
    triangular,
)  # fmt: skip

#: pivots of S, relative to its diagonal, below which active rows may depend on each other
DEPENDENT = 1e-5
REFINEMENTS = 1


@dataclass(frozen=True)
class DenseGhost:
    """The factorized ghost of a batch at an active set.

    Attributes:
        rows: (batch, r) in {-1, 0, 1}: active lower bound, inactive, active upper bound; bounds: (batch, n) the same
            for variables.
        free, on: (batch or 1, n) and (batch or 1, r), 1 at free variables and active rows, 0 elsewhere.
        L: factor of H (batch or 1, n, n), or roots of its diagonal (batch or 1, n).
        V: (batch or 1, n, r) H^(-1/2) R', zero where switched off; C: factor of S (batch or 1, r, r).
        hold: (batch or 1, r) weights with which rows are added to H if Q alone is singular: with r_x + R' hold r_a the
            solution is the same. None: they are not added.
        weights: (batch or 1, r) convert the residual of a row into a force (costs may have any scale).
        sound: (batch or 1,) whether active rows are clearly independent, and fix all directions without curvature.
    """

    program: DenseProgram
    rows: Tensor
    bounds: Tensor
    free: Tensor
    on: Tensor
    L: Tensor
    V: Tensor
    C: Tensor
    hold: Tensor | None
    weights: Tensor
    sound: Tensor

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
        wanted_x, wanted_a = self.free * wanted_x, self.on * wanted_a
        scale = positive(self._size(wanted_x, wanted_a))
        u, t = self._approximate(wanted_x, wanted_a)
        left_x, left_a = self._left(wanted_x, wanted_a, u, t)
        error = self._size(left_x, left_a)
        for _ in range(REFINEMENTS):
            du, dt = self._approximate(left_x, left_a)
            rest_x, rest_a = self._left(left_x, left_a, du, dt)
            now = self._size(rest_x, rest_a)
            better = (now < error).unsqueeze(1)
            u, t = torch.where(better, u + du, u), torch.where(better, t + dt, t)
            left_x, left_a = torch.where(better, rest_x, left_x), torch.where(better, rest_a, left_a)
            error = torch.minimum(error, now)
        return u if r_bounds is None else u + r_bounds, t, error / scale

    def on_bounds(self, r_x: Tensor, u: Tensor, t: Tensor) -> Tensor:
        """(batch, n) multipliers of the bounds for a solution u, t: the remainder of r_x."""
        left = r_x - self.program.curved(u) - self.program.pull(t)
        return torch.where(self.bounds != 0, left, 0.0)

    def polished(self, point: DensePoint) -> DensePoint:
        """The solution of the equality-constrained program on the active set, from a point near it."""
        program = self.program
        on_row, held = self.rows != 0, self.bounds != 0
        target = torch.where(self.rows > 0, program.upp, program.low)
        bound = torch.where(self.bounds > 0, program.ub, program.lb)
        z = torch.where(held, bound, point.z)
        lam = torch.where(on_row, point.lam, 0.0)
        r_rows = torch.where(on_row, target - program.rows(z), 0.0)
        u, t, _ = self.solve(-program.stationarity(z, lam), r_rows)
        z, lam = z + u, lam + t
        return DensePoint(z, lam, self.on_bounds(-program.p, z, lam))

    def _approximate(self, r_x: Tensor, r_a: Tensor) -> tuple[Tensor, Tensor]:
        if self.hold is not None:
            r_x = r_x + self.free * self.program.pull(self.hold * r_a)
        half = _half(self.L, r_x.unsqueeze(2)).squeeze(2)
        t = solved(self.C, times(self.V.mT, half) - r_a)
        rest = (half - times(self.V, t)).unsqueeze(2)
        back = rest / self.L.unsqueeze(2) if self.L.ndim == 2 else triangular(self.L.mT, rest, upper=True)
        return self.free * back.squeeze(2), self.on * t

    def _left(self, r_x: Tensor, r_a: Tensor, u: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The residuals of u and t."""
        program = self.program
        return self.free * (r_x - program.curved(u) - program.pull(t)), self.on * (r_a - program.rows(u))

    def _size(self, r_x: Tensor, r_a: Tensor) -> Tensor:
        """(batch,) the largest of these in units of force."""
        return torch.maximum(largest(r_x), largest(r_a * self.weights))


def factorize(
    program: DenseProgram, rows: Tensor, bounds: Tensor, L: Tensor | None = None, W: Tensor | None = None
) -> DenseGhost:
    """The ghost at an active set.

    Args:
        L, W: the factor of Q and L^-1 R' (batch or 1, n, r), if the program is definite and has no bounds.
    """
    dtype, hold, norms = program.p.dtype, None, program.norms
    free = (bounds == 0).to(dtype) if program.bounded else torch.ones_like(program.p[:1])
    on = (rows != 0).to(dtype) if program.r > program.equalities else torch.ones_like(program.upp[:1])
    good = torch.ones_like(free[:, 0], dtype=torch.bool) if program.n else torch.ones_like(program.p[:1, 0] > 0)
    R = program.R * free.unsqueeze(1) * on.unsqueeze(2) if program.bounded or W is None else program.R
    if program.diagonal:
        curvature = program.Q
        L = torch.where(free > 0, program.Q, 1.0).sqrt()
    else:
        curvature = program.Q.diagonal(dim1=1, dim2=2)
        if L is None:
            hold = on * positive(curvature.abs().amax(dim=1, keepdim=True)) / norms.square()
            H = (program.Q * free.unsqueeze(1) + R.mT @ (hold.unsqueeze(2) * R)) * free.unsqueeze(2)
            H = raised(H, 1 - free)
            L, info = torch.linalg.cholesky_ex(H)
            good = (info == 0) & (_least_pivot(L, H) >= SINGULAR)
    size = positive(curvature.abs().amax(dim=1, keepdim=True))
    V = _half(L, R.mT) if W is None else W * on.unsqueeze(1)
    S = raised(torch.matmul(V.mT, V), 1 - on)
    C, info = torch.linalg.cholesky_ex(S)
    pivot = _least_pivot(C, S)
    near = torch.where(pivot < DEPENDENT, pivot.clamp_min(1e-300), 1.0).sqrt().unsqueeze(1)
    sound = good & (info == 0) & (pivot >= DEPENDENT)
    return DenseGhost(program, rows, bounds, free, on, L, V, C, hold, on * size / norms / near, sound)


def _half(L: Tensor, X: Tensor) -> Tensor:
    """H^(-1/2) X for columns X (batch or 1, n, c)."""
    return X / L.unsqueeze(2) if L.ndim == 2 else triangular(L, X, upper=False)


def _least_pivot(L: Tensor, H: Tensor) -> Tensor:
    """(batch or 1,) the smallest pivot of the factor L of H, relative to the diagonal of H; 1 if there is none."""
    if not H.shape[1]:
        return H.new_ones(len(H))
    root = L.diagonal(dim1=1, dim2=2)
    return (root * root / positive(H.diagonal(dim1=1, dim2=2))).amin(dim=1)
