"""FFOQPLayer on dense tensors of devices other than the CPU, through autograd: everything stays on the device."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from ffo.engine.info import Info, Times
from ffo.errors import SolverError
from ffo.program.quadratic import Name
from ffo.torch.blocks import Form, Given
from ffo.torch.dense.answer import Change, UnverifiedError, answered, changed
from ffo.torch.dense.presolve import Owners
from ffo.torch.dense.program import Tensor
from ffo.torch.dense.report import Backward, DenseReport, Evidence
from ffo.torch.dense.solve import DenseSolution
from ffo.torch.dense.warm import Remembered
from ffo.torch.function import Once, refuse_legacy_batches


def worthwhile(given: Given) -> bool:
    """Whether dense batched algebra on their device is faster than the core on these blocks: not on the CPU.

    Non-finite data shows in the residual of any point; the core then reports the error.
    """
    if given.form.device.type == "cpu" or not given.form.dense or given.form.batch == 0:
        return False
    # torch.func and forward mode go through the core
    return torch._C._functorch.peek_interpreter_stack() is None and torch.autograd.forward_ad._current_level < 0


class Core(Protocol):
    """Solves samples left to the core: (blocks by name, sample numbers) -> (outputs through autograd, report)."""

    def __call__(self, blocks: dict[Name, Tensor], samples: list[int]) -> tuple[tuple[Tensor, ...], Info]: ...


@dataclass(frozen=True)
class DensePlan:
    """What is wanted from a call with blocks of this form.

    Attributes:
        derivative: whether a backward pass may follow; duals: whether multipliers are wanted.
        reduction: of the gradients of blocks shared by the batch.
        core: for samples that cannot be verified, or whose derivative is in doubt.
    """

    form: Form
    derivative: bool
    duals: bool
    reduction: Literal["sum", "mean"]
    core: Core


@dataclass(frozen=True)
class Left:
    """Samples that the core solved: their numbers, its inputs, its outputs through autograd, and its report."""

    samples: Tensor
    blocks: dict[Name, Tensor]
    outputs: tuple[Tensor, ...]
    info: Info

    def gradients(self, gradients: Sequence[Tensor | None], wanted: Mapping[str, bool]) -> dict[str, Tensor | None]:
        """Gradients of the wanted blocks."""
        pairs = [(v, g[self.samples]) for v, g in zip(self.outputs, gradients, strict=True) if g is not None]
        names = [name for name in self.blocks if wanted[name]]
        if not pairs or not names:
            return {}
        outputs, incoming = zip(*pairs, strict=True)
        blocks = [self.blocks[name] for name in names]
        found = torch.autograd.grad(outputs, blocks, incoming, retain_graph=True, allow_unused=True)
        return dict(zip(names, found, strict=True))


class DenseSolve(torch.autograd.Function):
    """(plan, remembered, receive, *values) -> z, or z, nu, lam, mu. `remembered` holds active sets of the samples,
    or is None; `receive` gets the `DenseReport` of the call."""

    @staticmethod
    def forward(
        ctx: Any, plan: DensePlan, remembered: Remembered | None, receive: Any, *values: Tensor
    ) -> tuple[Tensor, ...]:
        start = time.perf_counter()
        ctx.set_materialize_grads(False)
        # nothing in here is differentiated, and operations are a tenth faster in inference mode
        with torch.inference_mode():
            # Detached: an input that is later changed in place, by a result of the output, would keep itself alive
            # through ctx.
            wide = tuple(v.detach().to(torch.float64) for v in values)
            answer = answered(wide, plan.form, plan.derivative, remembered)
            solved = time.perf_counter()
            with answer.kept.reading() as ((solution, owners), _):
                # copies: an output kept by ctx would keep ctx alive as its grad_fn, and neither would be freed
                outputs = [v.to(values[0].dtype, copy=True) for v in _outputs(plan, solution, owners)]
                doubt, evidence = solution.doubt.clone(), Evidence.of(solution)
        ctx.left = _left(plan, doubt, dict(zip(plan.form.names, values, strict=True)))
        ctx.plan, ctx.answer = plan, answer
        ctx.save_for_backward(*values)
        ctx.shapes = [(v.shape, v.dtype) for v in values]
        now = time.perf_counter()
        times = Times(solve=solved - start, polish=now - solved, forward=now - start)
        ctx.report = DenseReport(evidence, answer, times, ctx.left and ctx.left.samples, ctx.left and ctx.left.info)
        receive(ctx.report)
        if ctx.left is not None:
            with torch.inference_mode():
                for mine, theirs in zip(outputs, ctx.left.outputs, strict=True):
                    mine[ctx.left.samples] = theirs.detach()
        return tuple(v.clone() if plan.form.batch is not None else v[0].clone() for v in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        start = time.perf_counter()
        for g in gradients:
            if g is not None:
                refuse_legacy_batches(g)
        values = ctx.saved_tensors  # raises if values were changed in place: the program may share them
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


def _left(plan: DensePlan, doubt: Tensor, values: dict[Name, Tensor]) -> Left | None:
    """The core's answer for the samples in doubt."""
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
            raise UnverifiedError from None  # the error must name samples by their numbers in the whole batch
    return Left(samples, blocks, outputs, info)


def _as(v: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return (v if v.shape == shape else v.reshape(shape)).to(dtype)


def _outputs(plan: DensePlan, solution: DenseSolution, owners: Owners | None) -> list[Tensor]:
    point, bounds, k = solution.point, solution.verdict.bounds, plan.form.equalities
    if not plan.duals:
        return [point.z]
    lam, mu = point.lam, point.mu
    if owners is not None:
        lam, mu = owners.rows(mu, lam, bounds), owners.own(mu, bounds)
    return [point.z, lam[:, :k], lam[:, k:], mu]


def _adjoint(
    ctx: Any, gradients: tuple[Tensor | None, ...], wanted: Mapping[str, bool]
) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients of the blocks: the perturbed ghost, and the finite difference along it (see ghost.oracle); and its
    residual (batch,)."""
    plan, answer, left = ctx.plan, ctx.answer, ctx.left
    batch = plan.form.batch or 1
    incoming = tuple(None if g is None else _two(g, batch).to(torch.float64) for g in gradients)
    with torch.inference_mode():
        change = changed(answer, incoming, plan.form)
        if left is not None:  # the core handles these
            change = change.without(torch.ones_like(change.residual).index_fill(0, left.samples, 0.0) == 0)
    found = _gradients(plan, wanted, change)
    if left is not None:
        for name, theirs in left.gradients(gradients, wanted).items():
            if theirs is not None and name in plan.form.shared:
                found[name] = found[name] + theirs
            elif theirs is not None:
                found[name] = found[name].index_add(0, left.samples, theirs.to(torch.float64))
    if plan.reduction == "mean":
        found = {name: v / batch if name in plan.form.shared else v for name, v in found.items()}
    return found, change.residual


def _gradients(plan: DensePlan, wanted: Mapping[str, bool], c: Change) -> dict[str, Tensor]:
    """Gradients of the wanted blocks; those of shared ones are sums over the batch."""
    k = plan.form.equalities
    parts: dict[str, Any] = {
        "p": lambda: c.u.clone(),  # copied outside of inference mode, so that users may change it
        "b": lambda: -c.t[:, :k],
        "h": lambda: _after(k, torch.where(c.rows > 0, -c.t, 0.0)),
        "lower": lambda: _after(k, torch.where(c.rows < 0, -c.t, 0.0)),
        "ub": lambda: torch.where(c.bounds > 0, -c.w, 0.0),
        "lb": lambda: torch.where(c.bounds < 0, -c.w, 0.0),
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


def _two(v: Tensor, size: int) -> Tensor:
    """(batch, length)."""
    return v if v.ndim == 2 else v.expand(size, -1)


def _after(k: int, v: Tensor) -> Tensor:
    """(batch, r) -> (batch, r - k), all but the first."""
    return v[:, k:] if k else v


def _outer(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], summed: bool) -> Tensor:
    """a b' + c d' of every sample, or the sum over the batch, as one product."""
    (a, b), (c, d) = first, second
    if summed:
        return torch.cat([a, c]).mT @ torch.cat([b, d])
    return torch.addcmul(a.unsqueeze(2) * b.unsqueeze(1), c.unsqueeze(2), d.unsqueeze(1))
