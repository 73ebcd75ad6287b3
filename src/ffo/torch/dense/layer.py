"""FFOQPLayer on dense tensors of other devices than the CPU, through autograd: everything stays on the device."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

import torch

from ffo.engine.info import Times
from ffo.program.blocks import SIDES
from ffo.program.quadratic import Name
from ffo.torch.blocks import Form, Given
from ffo.torch.dense.ghost import DenseGhost
from ffo.torch.dense.program import DenseProgram, Tensor
from ffo.torch.dense.report import Backward, DenseReport
from ffo.torch.dense.solve import DenseSolution, solve_dense
from ffo.torch.dense.warm import Remembered
from ffo.torch.function import Once, refuse_legacy_batches

#: variables and rows up to which programs are treated as dense ones
LARGEST = 2000


def worthwhile(given: Given) -> bool:
    """Whether dense batched algebra on their device beats the core on these blocks: not on the CPU.

    What is not finite shows in the residual of any point; the core then says what is wrong.
    """
    form = given.form
    if form.device.type == "cpu" or not form.dense:
        return False
    if torch._C._functorch.peek_interpreter_stack() is not None or torch.autograd.forward_ad._current_level >= 0:
        return False  # torch.func and forward mode go through the core
    return form.n + form.equalities + form.inequalities <= LARGEST


class UnverifiedError(Exception):
    """Some sample could not be verified: the whole batch goes to the core."""


@dataclass(frozen=True)
class DensePlan:
    """What is wanted of the blocks of a call, of this form.

    Attributes:
        derivative: whether a backward pass may come; duals: whether multipliers are wanted.
        reduction: of the gradients of blocks that the batch shares.
    """

    form: Form
    derivative: bool
    duals: bool
    reduction: Literal["sum", "mean"]

    def program(self, values: Mapping[Name, Tensor]) -> DenseProgram:
        """The program of float64 values; a missing block is empty, zero or infinite."""
        form, p = self.form, values["p"]
        n, size = form.n, form.batch or 1
        Q = _three(values["Q"]) if "Q" in values else p.new_zeros(1, n, n)
        low, upp = (self._side(values, name, form.inequalities) for name in ("lower", "h"))
        if form.equalities:
            b = _two(values["b"], size)
            low, upp = torch.cat([b, low], dim=1), torch.cat([b, upp], dim=1)
        matrices = [_three(values[name]) for name in ("A", "G") if name in values]
        return DenseProgram(
            Q=Q if torch.equal(Q, Q.mT) else 0.5 * (Q + Q.mT),
            p=_two(p, size),
            R=_stacked(matrices) if matrices else p.new_zeros(1, 0, n),
            low=low,
            upp=upp,
            lb=self._side(values, "lb", n),
            ub=self._side(values, "ub", n),
            equalities=form.equalities,
            bounded=_limits(values, "lb") or _limits(values, "ub"),
            two_sided=_limits(values, "lower"),
        )

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
            program = plan.program(wide)
            if not program.convex:
                raise UnverifiedError
            guess = None if remembered is None else remembered.guess(program)
            solution = solve_dense(program, guess=guess)
            if not solution.solved:
                raise UnverifiedError
            if remembered is not None:
                remembered.keep(guess, solution)
            solved = time.perf_counter()
            ctx.ghost = solution.ghost
            if ctx.ghost is None and plan.derivative:
                ctx.ghost = DenseGhost(program, solution.rows, solution.bounds)
        ctx.plan, ctx.solution, ctx.program = plan, solution, program
        ctx.save_for_backward(*values)
        ctx.shapes = [(v.shape, v.dtype) for v in values]
        now = time.perf_counter()
        ctx.report = DenseReport(solution, Times(solve=solved - start, polish=now - solved, forward=now - start))
        receive(ctx.report)
        outputs = _outputs(plan, solution)
        # copies: an output that ctx kept would keep ctx, as its grad_fn, and neither would ever be freed
        return tuple(v.to(values[0].dtype, copy=True) for v in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        start = time.perf_counter()
        for g in gradients:
            if g is not None:
                refuse_legacy_batches(g)
        values = ctx.saved_tensors  # complains of values that were changed in place, which the program may share
        wanted = dict(zip(ctx.plan.form.names, ctx.needs_input_grad[3:], strict=True))
        with torch.no_grad():
            found, residual, dependent = _adjoint(ctx, gradients, wanted)
        constraints = any(want for name, want in wanted.items() if name not in ("Q", "p"))
        ctx.report.finish(Backward(residual, dependent if constraints else None, time.perf_counter() - start))
        result: list[Tensor | None] = []
        for name, (shape, dtype) in zip(ctx.plan.form.names, ctx.shapes, strict=True):
            result.append(_as(found[name], shape, dtype) if wanted[name] else None)
        if torch.is_grad_enabled():  # create_graph=True
            causes = [*values, *(g for g in gradients if g is not None)]
            result = [None if r is None else Once.apply(r, *causes) for r in result]
        return (None, None, None, *result)


def _as(v: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return (v if v.shape == shape else v.reshape(shape)).to(dtype)


def _outputs(plan: DensePlan, solution: DenseSolution) -> list[Tensor]:
    point, k = solution.point, plan.form.equalities
    outputs = [point.z, point.lam[:, :k], point.lam[:, k:], point.mu] if plan.duals else [point.z]
    return outputs if plan.form.batch is not None else [v[0] for v in outputs]


def _adjoint(
    ctx: Any, gradients: tuple[Tensor | None, ...], wanted: Mapping[str, bool]
) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
    """Gradients of the blocks: the perturbed ghost, and the finite difference along it (see ghost.oracle); its
    residual, and which samples' constraints are dependent (see `Backward`)."""
    plan, program, point = ctx.plan, ctx.program, ctx.solution.point
    ghost: DenseGhost = ctx.ghost or DenseGhost(program, ctx.solution.rows, ctx.solution.bounds)
    with torch.inference_mode():
        r_x, *r_sides = _perturbations(plan, ghost, gradients)
        u, t, residual = ghost.solve(r_x, *r_sides)
    rows, bounds, k = ghost.row_side, ghost.bound_side, plan.form.equalities
    w = cache(lambda: ghost.on_bounds(r_x, u, t))
    parts: dict[str, Any] = {
        "p": lambda: u.clone(),  # outside of inference mode: what users get is theirs to change
        "b": lambda: -t[:, :k],
        "h": lambda: _after(k, torch.where(rows > 0, -t, 0.0) if program.two_sided else 0.0 - t),
        "lower": lambda: _after(k, torch.where(rows < 0, -t, 0.0)),
        "ub": lambda: torch.where(bounds > 0, -w(), 0.0),
        "lb": lambda: torch.where(bounds < 0, -w(), 0.0),
    }
    found: dict[str, Tensor] = {}
    for name, want in wanted.items():
        if not want:
            continue
        shared = name in plan.form.shared
        if name in parts:
            value = parts[name]()
            value = value.sum(dim=0) if shared else value
        elif name == "Q":
            half = 0.5 * u
            value = _outer((half, point.z), (point.z, half), shared)
        else:
            lam, change = (v[:, :k] if name == "A" else _after(k, v) for v in (point.lam, t))
            value = _outer((lam, u), (change, point.z), shared)
        if shared and plan.reduction == "mean":
            value = value / program.batch
        found[name] = value
    return found, residual, ghost.dependent()


def _after(k: int, v: Tensor) -> Tensor:
    """(batch, r) -> (batch, r - k), all but the first."""
    return v[:, k:] if k else v


def _perturbations(
    plan: DensePlan, ghost: DenseGhost, gradients: tuple[Tensor | None, ...]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Right-hand sides of the ghost for incoming gradients of z, nu, lam and mu; None: zero."""
    p = ghost.program.p
    c_z, *c_duals = (None if g is None else _two(g, len(p)).to(torch.float64) for g in gradients)
    r_x = torch.zeros_like(p) if c_z is None else -c_z
    if all(c is None for c in c_duals):
        return r_x, None, None
    widths = (plan.form.equalities, plan.form.inequalities, plan.form.n)
    c_nu, c_lam, c_mu = (
        p.new_zeros(len(p), width) if c is None else c for c, width in zip(c_duals, widths, strict=True)
    )
    return r_x, -torch.cat([c_nu, c_lam], dim=1), torch.where(ghost.bound_side != 0, -c_mu, 0.0)


def _outer(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], summed: bool) -> Tensor:
    """a b' + c d' of every sample, or the sum over the batch, as one product."""
    (a, b), (c, d) = first, second
    if summed:
        return torch.cat([a, c]).mT @ torch.cat([b, d])
    return torch.addcmul(a.unsqueeze(2) * b.unsqueeze(1), c.unsqueeze(2), d.unsqueeze(1))
