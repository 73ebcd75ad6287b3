"""FFOQPLayer on dense tensors of other devices than the CPU, through autograd: everything stays on the device."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol

import torch

from ffo.engine.info import Info, Times
from ffo.errors import SolverError
from ffo.ghost.certificate import ERROR
from ffo.kernels.point import MARGIN_RATIO, WEAK
from ffo.program.blocks import SIDES
from ffo.program.quadratic import Name
from ffo.torch.blocks import Form, Given
from ffo.torch.dense.ghost import DenseGhost
from ffo.torch.dense.presolve import Owners, SingleRows, with_bounds
from ffo.torch.dense.program import DenseProgram, Tensor
from ffo.torch.dense.report import Backward, DenseReport
from ffo.torch.dense.solve import DenseSolution, solve_dense
from ffo.torch.dense.warm import Remembered
from ffo.torch.function import Once, refuse_legacy_batches

#: variables and rows that are no bounds up to which programs are treated as dense ones
LARGEST = 2000


def worthwhile(given: Given) -> bool:
    """Whether dense batched algebra on their device beats the core on these blocks: not on the CPU.

    What is not finite shows in the residual of any point; the core then says what is wrong.
    """
    if given.form.device.type == "cpu" or not given.form.dense:
        return False
    # torch.func and forward mode go through the core
    return torch._C._functorch.peek_interpreter_stack() is None and torch.autograd.forward_ad._current_level < 0


class UnverifiedError(Exception):
    """No sample could be verified, or the core fails on one: the whole batch goes to the core."""


class Core(Protocol):
    """Solves samples that are left to the core: blocks by name, numbers of the samples -> outputs, through autograd,
    and the report on them."""

    def __call__(self, blocks: dict[Name, Tensor], samples: list[int]) -> tuple[tuple[Tensor, ...], Info]: ...


@dataclass(frozen=True)
class DensePlan:
    """What is wanted of the blocks of a call, of this form.

    Attributes:
        derivative: whether a backward pass may come; duals: whether multipliers are wanted.
        reduction: of the gradients of blocks that the batch shares.
        core: for samples that cannot be verified, or whose derivative is in doubt.
    """

    form: Form
    derivative: bool
    duals: bool
    reduction: Literal["sum", "mean"]
    core: Core

    def program(self, values: Mapping[Name, Tensor]) -> tuple[DenseProgram, Owners | None]:
        """The program of float64 values; a missing block is empty, zero or infinite. Rows with one entry are bounds of
        it, and remember whose they are."""
        form, p = self.form, values["p"]
        n, size = form.n, form.batch or 1
        Q = _three(values["Q"]) if "Q" in values else p.new_zeros(1, n, n)
        low, upp = (self._side(values, name, form.inequalities) for name in ("lower", "h"))
        if form.equalities:
            b = _two(values["b"], size)
            low, upp = torch.cat([b, low], dim=1), torch.cat([b, upp], dim=1)
        matrices = [_three(values[name]) for name in ("A", "G") if name in values]
        R = _stacked(matrices) if matrices else p.new_zeros(1, 0, n)
        lb, ub, owners = self._side(values, "lb", n), self._side(values, "ub", n), None
        single = SingleRows.of(R, form.equalities)
        if single is not None:
            owners, low, upp, lb, ub = with_bounds(single, low, upp, lb, ub)
            R = R[:, single.rest]
        program = DenseProgram(
            Q=Q if torch.equal(Q, Q.mT) else 0.5 * (Q + Q.mT),
            p=_two(p, size),
            R=R,
            low=low,
            upp=upp,
            lb=lb,
            ub=ub,
            equalities=form.equalities,
            bounded=single is not None or _limits(values, "lb") or _limits(values, "ub"),
        )
        return program, owners

    def _side(self, values: Mapping[Name, Tensor], name: Name, length: int) -> Tensor:
        """(batch, length) sides of inequalities, infinite where none are given."""
        size = self.form.batch or 1
        if name in values:
            return _two(values[name], size)
        # Where tensors are traced (torch.export) they are no numbers, and must not be remembered as such.
        make = _no_limit.__wrapped__ if torch._C._len_torch_dispatch_stack() else _no_limit
        return make(name, size, length, self.form.device)


def _limits(values: Mapping[Name, Tensor], name: Name) -> bool:
    """Whether sides are given and some of them are a limit."""
    return name in values and bool((values[name] != SIDES[name]).any())


@lru_cache
def _no_limit(name: Name, size: int, length: int, device: torch.device) -> Tensor:
    """(size, length) infinite sides, one number in memory."""
    return torch.full((1, 1), SIDES[name], dtype=torch.float64, device=device).expand(size, length)


def _three(M: Tensor) -> Tensor:
    """(batch or 1, rows, n)."""
    return M if M.ndim == 3 else M.unsqueeze(0)


def _two(v: Tensor, size: int) -> Tensor:
    """(batch, length)."""
    return v if v.ndim == 2 else v.expand(size, -1)


def _stacked(matrices: Sequence[Tensor]) -> Tensor:
    """(batch or 1, rows of all, n), without a copy where there is only one."""
    if len(matrices) == 1:
        return matrices[0]
    size = max(len(M) for M in matrices)
    return torch.cat([M.expand(size, -1, -1) for M in matrices], dim=1)


@dataclass(frozen=True)
class Left:
    """Samples that the core solved: their numbers, what it was given, its outputs through autograd, and its report."""

    samples: Tensor
    blocks: dict[Name, Tensor]
    outputs: tuple[Tensor, ...]
    info: Info

    def gradients(self, gradients: Sequence[Tensor | None], wanted: Mapping[str, bool]) -> dict[str, Tensor | None]:
        """Of the wanted blocks."""
        pairs = [(v, g[self.samples]) for v, g in zip(self.outputs, gradients, strict=True) if g is not None]
        names = [name for name in self.blocks if wanted[name]]
        if not pairs or not names:
            return {}
        outputs, incoming = zip(*pairs, strict=True)
        blocks = [self.blocks[name] for name in names]
        found = torch.autograd.grad(outputs, blocks, incoming, retain_graph=True, allow_unused=True)
        return dict(zip(names, found, strict=True))


class DenseSolve(torch.autograd.Function):
    """(plan, remembered, receive, *values) -> z, or z, nu, lam, mu. `remembered` are active sets of the samples,
    None without; `receive` is given the `DenseReport` of the call."""

    @staticmethod
    def forward(
        ctx: Any, plan: DensePlan, remembered: Remembered | None, receive: Any, *values: Tensor
    ) -> tuple[Tensor, ...]:
        start = time.perf_counter()
        ctx.set_materialize_grads(False)
        # Nothing in here is differentiated; in inference mode operations take a tenth less time.
        with torch.inference_mode():
            # Detached: an input that is changed in place later, by what is computed from the output, would keep
            # itself alive through ctx.
            wide = {name: v.detach().to(torch.float64) for name, v in zip(plan.form.names, values, strict=True)}
            program, ctx.owners = plan.program(wide)
            if program.n + program.r > LARGEST or not program.convex:
                raise UnverifiedError
            guess = None if remembered is None else remembered.guess(program)
            solution = solve_dense(program, guess=guess)
            if remembered is not None:
                remembered.keep(guess, solution)
            solved = time.perf_counter()
            ctx.ghost = solution.ghost
            if ctx.ghost is None and plan.derivative:
                ctx.ghost = DenseGhost(program, solution.rows, solution.bounds)
            outputs = _outputs(plan, ctx.owners, solution)
            doubt = ~solution.solved | ~_clear(solution, ctx.ghost) if plan.derivative else ~solution.solved
        ctx.left = _left(plan, doubt, dict(zip(plan.form.names, values, strict=True)))
        ctx.plan, ctx.solution, ctx.program = plan, solution, program
        ctx.save_for_backward(*values)
        ctx.shapes = [(v.shape, v.dtype) for v in values]
        now = time.perf_counter()
        times = Times(solve=solved - start, polish=now - solved, forward=now - start)
        ctx.report = DenseReport(solution, times, ctx.left and ctx.left.samples, ctx.left and ctx.left.info)
        receive(ctx.report)
        # copies: an output that ctx kept would keep ctx, as its grad_fn, and neither would ever be freed
        found = [v.to(values[0].dtype, copy=True) for v in outputs]
        if ctx.left is not None:
            for mine, theirs in zip(found, ctx.left.outputs, strict=True):
                mine[ctx.left.samples] = theirs.detach()
        return tuple(found if plan.form.batch is not None else [v[0] for v in found])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        start = time.perf_counter()
        for g in gradients:
            if g is not None:
                refuse_legacy_batches(g)
        values = ctx.saved_tensors  # complains of values that were changed in place, which the program may share
        wanted = dict(zip(ctx.plan.form.names, ctx.needs_input_grad[3:], strict=True))
        with torch.no_grad():
            found, residual = _adjoint(ctx, gradients, wanted)
        ctx.report.finish(Backward(residual, time.perf_counter() - start))
        result: list[Tensor | None] = []
        for name, (shape, dtype) in zip(ctx.plan.form.names, ctx.shapes, strict=True):
            result.append(_as(found[name], shape, dtype) if wanted[name] else None)
        if torch.is_grad_enabled():  # create_graph=True
            causes = [*values, *(g for g in gradients if g is not None)]
            result = [None if r is None else Once.apply(r, *causes) for r in result]
        return (None, None, None, *result)


def _clear(solution: DenseSolution, ghost: DenseGhost) -> Tensor:
    """(batch,) whether nothing can be held against the derivative: no constraint is nearly active or inactive, and the
    active ones hold the solution without depending on each other. The core looks at the others."""
    verdict, program = solution.verdict, ghost.program
    near = _meet(program.low, program.upp) & ~program.equal
    clear = (verdict.margin > WEAK) & (verdict.natural <= torch.clamp(MARGIN_RATIO * verdict.margin, max=ERROR))
    clear &= ghost.sound & ~near.any(dim=1)
    return clear & ~_meet(program.lb, program.ub).any(dim=1) if program.bounded else clear


def _meet(low: Tensor, upp: Tensor) -> Tensor:
    return (upp - low <= WEAK * upp.abs()) & upp.isfinite()


def _left(plan: DensePlan, doubt: Tensor, values: dict[Name, Tensor]) -> Left | None:
    """What the core makes of the samples in doubt."""
    count = int(doubt.sum())
    if not count:
        return None
    if count == len(doubt):
        raise UnverifiedError
    samples = torch.nonzero(doubt).squeeze(1)
    with torch.enable_grad():
        shared = plan.form.shared
        blocks = {name: (v if name in shared else v[samples]).detach().clone().requires_grad_(plan.derivative)
                  for name, v in values.items()}  # fmt: skip
        try:
            outputs, info = plan.core(blocks, samples.tolist())
        except SolverError:
            raise UnverifiedError from None  # said of the whole batch, whose samples have other numbers
    return Left(samples, blocks, outputs, info)


def _as(v: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return (v if v.shape == shape else v.reshape(shape)).to(dtype)


def _outputs(plan: DensePlan, owners: Owners | None, solution: DenseSolution) -> list[Tensor]:
    point, k = solution.point, plan.form.equalities
    if not plan.duals:
        return [point.z]
    lam, mu = point.lam, point.mu
    if owners is not None:
        lam, mu = owners.rows(mu, lam, solution.bounds), owners.own(mu, solution.bounds)
    return [point.z, lam[:, :k], lam[:, k:], mu]


def _adjoint(
    ctx: Any, gradients: tuple[Tensor | None, ...], wanted: Mapping[str, bool]
) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients of the blocks: the perturbed ghost, and the finite difference along it (see ghost.oracle); and its
    residual (batch,)."""
    plan, program, owners, left = ctx.plan, ctx.program, ctx.owners, ctx.left
    ghost: DenseGhost = ctx.ghost or DenseGhost(program, ctx.solution.rows, ctx.solution.bounds)
    incoming = [None if g is None else _two(g, program.batch).to(torch.float64) for g in gradients]
    point, bounds = ctx.solution.point, ghost.bound_side
    with torch.inference_mode():
        r_x, *r_sides = _perturbations(plan, ghost, owners, incoming)
        u, t, residual = ghost.solve(r_x, *r_sides)
        w, lam, rows = ghost.on_bounds(r_x, u, t) if program.bounded else None, point.lam, ghost.row_side
        if owners is not None:
            t, lam = owners.rows(w, t, bounds), owners.rows(point.mu, lam, bounds)
            rows, w = owners.rows(bounds, rows, bounds, per_entry=False), owners.own(w, bounds)
        z = point.z
        if left is not None:  # the core has these
            none = torch.ones_like(u[:, :1]).index_fill(0, left.samples, 0.0) == 0
            u, t, z, lam = (torch.where(none, 0.0, v) for v in (u, t, z, lam))
            w = w if w is None else torch.where(none, 0.0, w)
            residual = torch.where(none.squeeze(1), 0.0, residual)
    found = _gradients(plan, wanted, _Change(u, t, w, z, lam, rows, bounds))
    if left is not None:
        for name, theirs in left.gradients(gradients, wanted).items():
            if theirs is not None:
                shared = name in plan.form.shared
                found[name] = (
                    found[name] + theirs if shared else found[name].index_add(0, left.samples, theirs.to(torch.float64))
                )
    if plan.reduction == "mean":
        found = {name: v / program.batch if name in plan.form.shared else v for name, v in found.items()}
    return found, residual


@dataclass(frozen=True)
class _Change:
    """The ghost's answer u (batch, n), t (batch, r), w at bounds (batch, n); the point, and active sides."""

    u: Tensor
    t: Tensor
    w: Tensor | None
    z: Tensor
    lam: Tensor
    rows: Tensor
    bounds: Tensor


def _gradients(plan: DensePlan, wanted: Mapping[str, bool], c: _Change) -> dict[str, Tensor]:
    """Of the wanted blocks; those of shared ones are sums over the batch."""
    k = plan.form.equalities
    parts: dict[str, Any] = {
        "p": lambda: c.u.clone(),  # outside of inference mode: what users get is theirs to change
        "b": lambda: -c.t[:, :k],
        "h": lambda: _after(k, torch.where(c.rows > 0, -c.t, 0.0)),
        "lower": lambda: _after(k, torch.where(c.rows < 0, -c.t, 0.0)),
        "ub": lambda: torch.zeros_like(c.u) if c.w is None else torch.where(c.bounds > 0, -c.w, 0.0),
        "lb": lambda: torch.zeros_like(c.u) if c.w is None else torch.where(c.bounds < 0, -c.w, 0.0),
    }
    found: dict[str, Tensor] = {}
    for name in (name for name, want in wanted.items() if want):
        shared = name in plan.form.shared
        if name in parts:
            value = parts[name]()
            found[name] = value.sum(dim=0) if shared else value
        elif name == "Q":
            half = 0.5 * c.u
            found[name] = _outer((half, c.z), (c.z, half), shared)
        else:
            lam, change = (v[:, :k] if name == "A" else _after(k, v) for v in (c.lam, c.t))
            found[name] = _outer((lam, c.u), (change, c.z), shared)
    return found


def _after(k: int, v: Tensor) -> Tensor:
    """(batch, r) -> (batch, r - k), all but the first."""
    return v[:, k:] if k else v


def _perturbations(
    plan: DensePlan, ghost: DenseGhost, owners: Owners | None, incoming: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Right-hand sides of the ghost for incoming gradients of z, nu, lam and mu; None: zero."""
    p = ghost.program.p
    c_z, *c_duals = incoming
    r_x = torch.zeros_like(p) if c_z is None else -c_z
    if all(c is None for c in c_duals):
        return r_x, None, None
    widths = (plan.form.equalities, plan.form.inequalities, plan.form.n)
    c_nu, c_lam, c_mu = (
        p.new_zeros(len(p), width) if c is None else c for c, width in zip(c_duals, widths, strict=True)
    )
    rows, bounds = torch.cat([c_nu, c_lam], dim=1), ghost.bound_side
    if owners is None:
        return r_x, -rows, torch.where(bounds != 0, -c_mu, 0.0)
    return r_x, -rows[:, owners.single.rest], -owners.bounds(c_mu, rows, bounds)


def _outer(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], summed: bool) -> Tensor:
    """a b' + c d' of every sample, or the sum over the batch, as one product."""
    (a, b), (c, d) = first, second
    if summed:
        return torch.cat([a, c]).mT @ torch.cat([b, d])
    return torch.addcmul(a.unsqueeze(2) * b.unsqueeze(1), c.unsqueeze(2), d.unsqueeze(1))
