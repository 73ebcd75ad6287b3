"""The ghost problem of dense quadratic programs in closed form (FFOQP of the paper).

On an active set the perturbed ghost is linear algebra: with the variables at bounds held (the free
ones F) and the active rows R_a,

    [ Q_FF  R_aF' ] [u]   [ r_x ]
    [ R_aF   0    ] [t] = [ r_a ]

solved for the whole batch by two Cholesky factorizations, of H = Q_FF + eps and of
S = R_aF H^-1 R_aF' + eps, and refinement against the unregularised system. Free variables and active
rows are gathered first (as many as the busiest sample has), so that what is held costs nothing.
Nothing leaves the device and nothing loops over samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ffo.torch.dense.program import DenseProgram, Point, Tensor, largest, times

REGULARISATION = 1e-8
#: pivots of Q, relative to its diagonal, below which it counts as singular
SINGULAR = 1e-5
#: pivots of S, relative to its diagonal, below which active rows may depend on each other, and the share
#: of a random right-hand side that is left where they do
DEPENDENT, LEFT = 1e-5, 1e-3
REFINEMENTS = 8
ACCURACY = 1e-13


@dataclass(frozen=True)
class Chosen:
    """Some entries of each sample, the same number k for all: `index` (batch, k), and `real` (batch, k),
    0 where a sample has fewer and an entry only fills the place."""

    index: Tensor
    real: Tensor

    @classmethod
    def of(cls, mask: Tensor, dtype: torch.dtype) -> Chosen:
        """The true entries of a (batch, size) mask."""
        count = int(mask.sum(dim=1).max()) if mask.numel() else 0
        index = torch.argsort(mask.to(torch.int8), dim=1, descending=True, stable=True)[:, :count]
        return cls(index, torch.gather(mask, 1, index).to(dtype))

    def take(self, v: Tensor) -> Tensor:
        """(batch, size) -> (batch, k), zero at the fillers."""
        return self.real * torch.gather(v, 1, self.index)

    def put(self, v: Tensor, size: int) -> Tensor:
        """(batch, k) -> (batch, size), zero elsewhere."""
        return v.new_zeros(v.shape[0], size).scatter_add(1, self.index, self.real * v)


class DenseGhost:
    """The factorized ghost of a batch at an active set.

    Args:
        rows: (batch, r) in {-1, 0, 1}: active lower side, inactive, active upper side.
        bounds: (batch, n) the same for variables.
    """

    def __init__(self, program: DenseProgram, rows: Tensor, bounds: Tensor) -> None:
        self.program, self.row_side, self.bound_side = program, rows, bounds
        self.free = Chosen.of(bounds == 0, program.p.dtype)
        self.active = Chosen.of(rows != 0, program.p.dtype)
        self.Q = _minor(program.Q, self.free.index, self.free.index)
        self.Q = self.Q * (self.free.real.unsqueeze(1) * self.free.real.unsqueeze(2))
        R = _minor(program.R, self.active.index, self.free.index)
        R = R * (self.active.real.unsqueeze(2) * self.free.real.unsqueeze(1))
        size = R.norm(dim=2)
        self.row_scale = 1.0 / torch.where(size > 0, size, torch.ones_like(size))
        self.R = R * self.row_scale.unsqueeze(-1)  # (batch, k, f)
        self._factorize()

    def _factorize(self) -> None:
        H = self.Q.clone()
        diagonal = H.diagonal(dim1=1, dim2=2)
        scale = diagonal.abs().amax(dim=1) if diagonal.shape[1] else H.new_ones(len(H))
        scale = torch.where(scale > 0, scale, torch.ones_like(scale)).unsqueeze(1)
        diagonal.add_(scale * (REGULARISATION + 1 - self.free.real))
        self.H, h_info = torch.linalg.cholesky_ex(H)
        # Where Q alone is singular, active rows hold u: H + R'R has the same solution, for r_x + R'r_a.
        pivots = self.H.diagonal(dim1=1, dim2=2).square()
        weak = pivots.amin(dim=1, keepdim=True) < SINGULAR * scale if pivots.shape[1] else scale < 0
        self.hold = torch.where(weak, scale, torch.zeros_like(scale))  # (batch, 1)
        if bool(weak.any()):
            self.H, h_info = torch.linalg.cholesky_ex(H + self.hold.unsqueeze(2) * (self.R.mT @ self.R))
        self.V = torch.linalg.solve_triangular(self.H, self.R.mT, upper=False)  # (batch, f, k)
        S = self.V.mT @ self.V
        diagonal = S.diagonal(dim1=1, dim2=2)
        weight = diagonal.amax(dim=1) if diagonal.shape[1] else S.new_ones(len(S))
        weight = torch.where(weight > 0, weight, torch.ones_like(weight)).unsqueeze(1)
        diagonal.add_(weight * (REGULARISATION + 1 - self.active.real))
        self.S, s_info = torch.linalg.cholesky_ex(S)
        self.row_pivots = self.S.diagonal(dim1=1, dim2=2).square() / weight
        self.sound = (h_info == 0) & (s_info == 0)  # (batch,)

    def _approximate(self, r_x: Tensor, r_a: Tensor) -> tuple[Tensor, Tensor]:
        held = r_x + self.hold * times(self.R.mT, r_a)
        half = torch.linalg.solve_triangular(self.H, held.unsqueeze(-1), upper=False)
        t = torch.cholesky_solve(self.V.mT @ half - r_a.unsqueeze(-1), self.S)
        u = torch.linalg.solve_triangular(self.H.mT, half - self.V @ t, upper=True)
        return u.squeeze(-1), t.squeeze(-1)

    def solve(self, r_x: Tensor, r_rows: Tensor, r_bounds: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """u (batch, n), t (batch, r), multipliers of the bounds (batch, n), relative residual (batch,).

        Args:
            r_x: (batch, n); r_rows: (batch, r) right-hand sides, read at active rows; r_bounds: (batch, n)
            values of the held variables, zero at free ones.
        """
        program = self.program
        wanted_x = self.free.take(r_x - times(program.Q, r_bounds))
        wanted_a = self.active.take(r_rows - program.rows(r_bounds)) * self.row_scale
        u, t, error = self._refine(wanted_x, wanted_a)
        full_u = self.free.put(u, program.n) + r_bounds
        full_t = self.active.put(t * self.row_scale, program.r)
        left = r_x - times(program.Q, full_u) - times(program.R.mT, full_t)
        return full_u, full_t, torch.where(self.bound_side != 0, left, torch.zeros_like(left)), error

    def _refine(self, wanted_x: Tensor, wanted_a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        size = torch.maximum(largest(wanted_x), largest(wanted_a))
        scale = torch.where(size > 0, size, torch.ones_like(size))
        u, t = torch.zeros_like(wanted_x), torch.zeros_like(wanted_a)
        left_x, left_a, error = wanted_x, wanted_a, size / scale
        for _ in range(REFINEMENTS):
            du, dt = self._approximate(left_x, left_a)
            new_u, new_t = u + du, t + dt
            new_x = wanted_x - times(self.Q, new_u) - times(self.R.mT, new_t)
            new_a = wanted_a - times(self.R, new_u)
            new_error = torch.maximum(largest(new_x), largest(new_a)) / scale
            better = (new_error < error).unsqueeze(1)
            u, t = torch.where(better, new_u, u), torch.where(better, new_t, t)
            left_x, left_a = torch.where(better, new_x, left_x), torch.where(better, new_a, left_a)
            done = (new_error <= ACCURACY) | ~(new_error < 0.3 * error)
            error = torch.where(better.squeeze(1), new_error, error)
            if bool(done.all()):
                break
        return u, t, error

    def dependent(self) -> Tensor:
        """(batch,) whether active rows and bounds, not all of them equalities, depend on each other.

        As in `ffo.ghost.direct`: where they do, a random right-hand side cannot be met, and what is left of
        it is a combination of rows that vanishes (on the free variables; elsewhere bounds take part).
        """
        batch, k = self.row_pivots.shape
        if not k or not bool((self.row_pivots < DEPENDENT).any()):
            return torch.zeros(batch, dtype=torch.bool, device=self.R.device)
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(k, generator=generator, dtype=self.R.dtype).to(self.R.device) * self.active.real
        u, _, _ = self._refine(drawn.new_zeros(batch, self.R.shape[2]), drawn)
        left = drawn - times(self.R, u)
        inequality = ~self.program.equal[self.active.index]
        combined = times(self.program.R.mT, self.active.put(left * self.row_scale, self.program.r))
        on_bounds = torch.where(self.bound_side != 0, combined, torch.zeros_like(combined)).norm(dim=1)
        norms = self.active.take(self.program.R.norm(dim=2).expand(batch, -1))
        size = (norms * self.row_scale).amax(dim=1)
        return ((left * inequality).norm(dim=1) > LEFT) | (on_bounds > LEFT * size)

    def polished(self, point: Point) -> Point:
        """The solution of the equality-constrained program on the active set, from a point near it."""
        program = self.program
        on_row, held = self.row_side != 0, self.bound_side != 0
        target = torch.where(self.row_side > 0, program.upp, program.low)
        bound = torch.where(self.bound_side > 0, program.ub, program.lb)
        z = torch.where(held, bound, point.z)
        lam = torch.where(on_row, point.lam, torch.zeros_like(point.lam))
        r_rows = torch.where(on_row, target - program.rows(z), torch.zeros_like(target))
        u, t, _, _ = self.solve(-program.stationarity(z, lam), r_rows, torch.zeros_like(z))
        z, lam = z + u, lam + t
        left = -program.stationarity(z, lam)
        return Point(z, lam, torch.where(held, left, torch.zeros_like(left)))


def _minor(M: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """(batch or 1, a, b), (batch, i), (batch, j) -> (batch, i, j)."""
    if M.shape[0] == 1:
        return M[0][rows.unsqueeze(2), cols.unsqueeze(1)]
    if cols.shape[1] == M.shape[2] and rows.shape[1] == M.shape[1] and _in_order(rows) and _in_order(cols):
        return M
    sample = torch.arange(M.shape[0], device=M.device).reshape(-1, 1, 1)
    return M[sample, rows.unsqueeze(2), cols.unsqueeze(1)]


def _in_order(index: Tensor) -> bool:
    """Whether every sample's index is 0, 1, 2, ..."""
    return bool((index == torch.arange(index.shape[1], device=index.device)).all())
