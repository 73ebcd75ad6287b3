"""A batched interior-point method for dense quadratic programs, on any device.

Mehrotra's predictor-corrector for the whole batch at once: every iteration is two Cholesky
factorizations (H = Q + G'DG, and the Schur complement of the equalities) shared by the predictor and
the corrector. Samples that are done, or that no longer improve, stop; each ends at the best point it
has seen. It is a forward solver for CUDA tensors, where leaving the device would cost more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ffo.torch.dense.program import DensePoint, DenseProgram, Tensor, largest, times

ITERATIONS = 60
#: iterations without a better point after which a sample is given up; the residual ratio that counts as better
PATIENCE, BETTER = 6, 0.9
STEP = 0.995
REGULARISATION = 1e-14


@dataclass(frozen=True)
class _Standard:
    """Gz <= h where `valid`, Az = b; rows of G: upper bounds of rows, lower bounds of rows, ub, lb."""

    G: Tensor
    h: Tensor
    valid: Tensor
    A: Tensor
    b: Tensor


def interior_point(program: DenseProgram, eps: float = 1e-9) -> tuple[DensePoint, Tensor, Tensor]:
    """A point, the worst relative residual (batch,) and the iterations taken (batch,)."""
    form = _standard(program)
    state = _State(program, form)
    for _ in range(ITERATIONS):
        if bool(state.done(eps).all()):
            break
        state.step(eps)
    return state.point(), state.best, state.iterations


def _standard(program: DenseProgram) -> _Standard:
    B, n = program.batch, program.n
    uneven = ~program.equal[0]
    R = program.R[:, uneven]
    eye = torch.eye(n, dtype=program.p.dtype, device=program.p.device).expand(R.shape[0], n, n)
    h = torch.cat([program.upp[:, uneven], -program.low[:, uneven], program.ub, -program.lb], dim=1)
    G = torch.cat([R, -R, eye, -eye], dim=1)
    used = torch.isfinite(h).any(dim=0)
    h, G = h[:, used], G[:, used]
    valid = torch.isfinite(h)
    return _Standard(
        G,
        torch.where(valid, h, torch.zeros_like(h)),
        valid.to(h.dtype),
        program.R[:, program.equal[0]],
        program.upp[:, program.equal[0]].expand(B, -1),
    )


class _State:
    def __init__(self, program: DenseProgram, form: _Standard) -> None:
        self.program, self.form = program, form
        B = program.batch
        self.z = torch.zeros_like(program.p)
        self.nu = program.p.new_zeros(B, form.A.shape[1])
        self.s, self.lam = torch.ones_like(form.h), form.valid.clone()
        self._start()
        self.iterations = torch.zeros(B, dtype=torch.long, device=program.p.device)
        self.idle = torch.zeros_like(self.iterations)
        self._residuals()
        self.best, self.kept = self.error, self._now

    def _start(self) -> None:
        """Mehrotra's starting point: minimise the objective plus |Gz - h|^2, then shift s and lam to be positive."""
        f, p = self.form, self.program
        solve = self._factorized(f.valid)
        zero = torch.zeros_like(f.h)
        dz, _, _, self.nu = solve(p.p, f.valid * (self.s - f.h), -f.b, f.valid * self.s)
        self.z = dz
        excess = times(f.G, dz) - f.h
        self.s = torch.where(f.valid > 0, _shifted(-excess, f.valid), torch.ones_like(zero))
        self.lam = f.valid * _shifted(excess, f.valid)

    def _residuals(self) -> None:
        f, p = self.form, self.program
        Gz, Az, Qz = times(f.G, self.z), times(f.A, self.z), times(p.Q, self.z)
        dual = times(f.G.mT, self.lam) + times(f.A.mT, self.nu)
        self.r_d = Qz + p.p + dual
        self.r_p = f.valid * (Gz + self.s - f.h)
        self.r_e = Az - f.b
        count = f.valid.sum(dim=1).clamp_min(1.0)
        self.gap = (f.valid * self.s * self.lam).sum(dim=1)
        self.mu = self.gap / count
        one = torch.ones_like(self.mu)
        scale_d = torch.stack([one, largest(p.p), largest(Qz), largest(dual)]).amax(dim=0)
        scale_p = torch.stack([one, largest(f.h), largest(Gz), largest(Az), largest(f.b)]).amax(dim=0)
        objective = (self.z * (0.5 * Qz + p.p)).sum(dim=1).abs()
        self.error = torch.stack(
            [
                largest(self.r_d) / scale_d,
                largest(self.r_p) / scale_p,
                largest(self.r_e) / scale_p,
                self.gap / (1 + objective),
            ]
        ).amax(dim=0)

    @property
    def _now(self) -> tuple[Tensor, ...]:
        return self.z, self.s, self.lam, self.nu

    def done(self, eps: float) -> Tensor:
        return (self.best <= eps) | ~torch.isfinite(self.error) | (self.idle >= PATIENCE)

    def _keep_best(self) -> None:
        self.idle = torch.where(self.error < BETTER * self.best, torch.zeros_like(self.idle), self.idle + 1)
        better = self.error < self.best
        self.best = torch.where(better, self.error, self.best)
        self.kept = _either(better.unsqueeze(1), self._now, self.kept)

    def step(self, eps: float) -> None:
        f = self.form
        weight = f.valid * self.lam / self.s
        solve = self._factorized(weight)
        affine = solve(self.r_d, self.r_p, self.r_e, self.s * self.lam)
        alpha = self._length(affine)
        after = (f.valid * (self.s + alpha * affine[1]) * (self.lam + alpha * affine[2])).sum(dim=1)
        sigma = (after / self.gap.clamp_min(1e-300)).clamp(0.0, 1.0) ** 3
        centre = self.s * self.lam + affine[1] * affine[2] - (sigma * self.mu).unsqueeze(1)
        move = solve(self.r_d, self.r_p, self.r_e, centre)
        alive = (~self.done(eps)).to(self.z.dtype).unsqueeze(1)
        alpha = STEP * self._length(move) * alive
        old = self._now
        self.z = self.z + alpha * move[0]
        self.s = self.s + alpha * f.valid * move[1]
        self.lam = self.lam + alpha * f.valid * move[2]
        self.nu = self.nu + alpha * move[3]
        broken = ~torch.isfinite(self.z).all(dim=1, keepdim=True)
        self.z, self.s, self.lam, self.nu = _either(broken, old, self._now)
        self.iterations += alive.squeeze(1).long()
        self._residuals()
        self._keep_best()

    def _factorized(self, weight: Tensor):  # type: ignore[no-untyped-def]
        """A function solving the Newton system for (r_d, r_p, r_e, complementarity)."""
        f, p = self.form, self.program
        H = p.Q + f.G.mT @ (weight.unsqueeze(2) * f.G)
        L = _cholesky(H)
        V = torch.linalg.solve_triangular(L, f.A.mT.expand(len(L), -1, -1), upper=False)
        M = _cholesky(V.mT @ V)

        def solve(r_d: Tensor, r_p: Tensor, r_e: Tensor, complementarity: Tensor) -> tuple[Tensor, ...]:
            # G dz + ds = -r_p,  s dlam + lam ds = -complementarity
            pushed = f.valid * (self.lam * r_p - complementarity) / self.s
            rhs = -r_d - times(f.G.mT, pushed)
            half = torch.linalg.solve_triangular(L, rhs.unsqueeze(-1), upper=False)
            dnu = torch.cholesky_solve(V.mT @ half + r_e.unsqueeze(-1), M)
            dz = torch.linalg.solve_triangular(L.mT, half - V @ dnu, upper=True).squeeze(-1)
            ds = f.valid * (-r_p - times(f.G, dz))
            dlam = -f.valid * (complementarity + self.lam * ds) / self.s
            return dz, ds, dlam, dnu.squeeze(-1)

        return solve

    def _length(self, move: tuple[Tensor, ...]) -> Tensor:
        """(batch, 1) largest step that keeps s and lam positive."""
        longest = torch.ones_like(self.mu)
        for value, change in ((self.s, move[1]), (self.lam, move[2])):
            ratio = torch.where(change < 0, -value / change.clamp_max(-1e-300), torch.full_like(value, torch.inf))
            if ratio.shape[1]:
                longest = torch.minimum(longest, ratio.amin(dim=1))
        return longest.unsqueeze(1)

    def point(self) -> DensePoint:
        """The best point; multipliers of upper and lower bounds are combined into signed ones."""
        p = self.program
        z, _, found, nu = self.kept
        lam = p.p.new_zeros(p.batch, p.r)
        uneven = ~p.equal[0]
        lam[:, p.equal[0]] = nu
        h = torch.cat([p.upp[:, uneven], -p.low[:, uneven], p.ub, -p.lb], dim=1)
        used = torch.isfinite(h).any(dim=0)
        full = p.p.new_zeros(p.batch, len(used))
        full[:, used] = found
        k = int(uneven.sum())
        lam[:, uneven] = full[:, :k] - full[:, k : 2 * k]
        return DensePoint(z, lam, full[:, 2 * k : 2 * k + p.n] - full[:, 2 * k + p.n :])


def _either(mine: Tensor, first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The first where `mine` (batch, 1), else the second."""
    return tuple(torch.where(mine, a, b) for a, b in zip(first, second, strict=True))


def _cholesky(H: Tensor) -> Tensor:
    """Cholesky factors; matrices that are not definite to rounding get a larger diagonal first."""
    L, info = torch.linalg.cholesky_ex(H)
    shift = REGULARISATION
    while bool((info > 0).any()) and shift < 1e-2:
        size = H.diagonal(dim1=1, dim2=2).abs().amax(dim=1).clamp_min(1e-12)
        bad = (info > 0).to(H.dtype) * shift * size
        L, info = torch.linalg.cholesky_ex(H + torch.diag_embed(bad.unsqueeze(1).expand(-1, H.shape[1])))
        shift *= 100
    return L


def _shifted(v: Tensor, valid: Tensor) -> Tensor:
    """v shifted, sample by sample, until its valid entries are positive."""
    if not v.shape[1]:
        return v
    least = torch.where(valid > 0, v, torch.full_like(v, torch.inf)).amin(dim=1, keepdim=True)
    return torch.where(least > 1e-3, v, v - least + 1.0)
