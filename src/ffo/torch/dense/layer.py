"""Layers on dense tensors of devices other than the CPU, through autograd: everything stays on the device."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

from ffo.engine import Engine
from ffo.engine.info import Info, Times
from ffo.engine.notices import stands_still
from ffo.errors import SolverError
from ffo.torch.blocks import Form
from ffo.torch.dense.answer import Change, UnverifiedError, answered, changed, multipliers
from ffo.torch.dense.program import Tensor
from ffo.torch.dense.report import Backward, DenseReport, Evidence
from ffo.torch.dense.warm import Remembered
from ffo.torch.function import Once, refuse_legacy_batches


def accessible(device: torch.device) -> bool:
    """Whether tensors are on a device other than the CPU, outside torch.func and forward mode, which use the
    core."""
    if device.type == "cpu":
        return False
    return torch._C._functorch.peek_interpreter_stack() is None and torch.autograd.forward_ad._current_level < 0


class Core(Protocol):
    """Solves samples left to the core: (inputs by name, sample numbers) -> (outputs through autograd, report)."""

    def __call__(self, inputs: dict[Any, Tensor], samples: list[int]) -> tuple[tuple[Tensor, ...], Info]: ...


class Front(Protocol):
    """How the inputs and outputs of a layer correspond to the blocks of a program, z and its multipliers.

    Attributes:
        names: of the inputs; shared: those without a batch dimension.
    """

    @property
    def names(self) -> tuple[Hashable, ...]: ...

    @property
    def shared(self) -> frozenset[Any]: ...

    def blocks(self, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The blocks named in the form, from float64 inputs."""

    def outputs(self, z: Tensor, nu: Tensor, lam: Tensor, mu: Tensor) -> list[Tensor]:
        """Outputs (batch, ...)."""

    def incoming(self, gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        """Gradients of z, nu, lam and mu (batch, ·) from float64 ones of the outputs; None: zero."""

    def gradients(self, change: Change, wanted: Mapping[Any, bool]) -> dict[Any, Tensor]:
        """Gradients of the wanted inputs; those of shared ones are sums over the batch."""

    def wants_costs(self, wanted: Mapping[Any, bool]) -> bool:
        """Whether a wanted input enters the linear term."""


@dataclass(frozen=True)
class DensePlan:
    """What is wanted from a call with blocks of this form.

    Attributes:
        derivative: whether a backward pass may follow.
        front: the layer's inputs and outputs; reduction: of the gradients of inputs shared by the batch.
        core: for samples that cannot be verified, or whose derivative is in doubt.
        engine: of the layer, which issues notices.
    """

    form: Form
    derivative: bool
    front: Front
    reduction: Literal["sum", "mean"]
    core: Core
    engine: Engine


@dataclass(frozen=True)
class Left:
    """Samples that the core solved: their numbers, its inputs, its outputs through autograd, and its report."""

    samples: Tensor
    inputs: dict[Any, Tensor]
    outputs: tuple[Tensor, ...]
    info: Info

    def gradients(self, gradients: Sequence[Tensor | None], wanted: Mapping[Any, bool]) -> dict[Any, Tensor | None]:
        """Gradients of the wanted inputs."""
        pairs = [(v, g[self.samples]) for v, g in zip(self.outputs, gradients, strict=True) if g is not None]
        names = [name for name in self.inputs if wanted[name]]
        if not pairs or not names:
            return {}
        outputs, incoming = zip(*pairs, strict=True)
        inputs = [self.inputs[name] for name in names]
        found = torch.autograd.grad(outputs, inputs, incoming, retain_graph=True, allow_unused=True)
        return dict(zip(names, found, strict=True))


class DenseSolve(torch.autograd.Function):
    """(plan, remembered, receive, *values) -> outputs. `remembered` holds active sets of the samples, or is None;
    `receive` gets the `DenseReport` of the call."""

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
            answer = answered(plan.front.blocks(wide), plan.form, plan.derivative, remembered)
            solved = time.perf_counter()
        with answer.kept.reading() as ((solution, owners), _):
            found = plan.front.outputs(solution.point.z, *multipliers(solution, owners, plan.form.equalities))
            # copies: an output kept by ctx would keep ctx alive as its grad_fn, and neither would be freed
            outputs = [v.to(values[0].dtype, copy=True) for v in found]
            doubt, evidence = solution.doubt.clone() if answer.doubts else None, Evidence.of(solution)
        given = dict(zip(plan.front.names, values, strict=True))
        ctx.left = None if doubt is None else _left(plan, doubt, given)
        ctx.plan, ctx.answer = plan, answer
        ctx.save_for_backward(*values)
        ctx.shapes = [(v.shape, v.dtype) for v in values]
        now = time.perf_counter()
        times = Times(solve=solved - start, polish=now - solved, forward=now - start)
        ctx.report = DenseReport(evidence, answer, times, ctx.left and ctx.left.samples, ctx.left and ctx.left.info)
        receive(ctx.report)
        if ctx.left is not None:
            for mine, theirs in zip(outputs, ctx.left.outputs, strict=True):
                mine[ctx.left.samples] = theirs.detach()
        return tuple(v if plan.form.batch is not None else v[0].clone() for v in outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        start = time.perf_counter()
        for g in gradients:
            if g is not None:
                refuse_legacy_batches(g)
        values = ctx.saved_tensors  # raises if values were changed in place: the program may share them
        wanted = dict(zip(ctx.plan.front.names, ctx.needs_input_grad[3:], strict=True))
        with torch.no_grad():
            found, residual = _adjoint(ctx, gradients, wanted)
        ctx.report.finish(Backward(residual, time.perf_counter() - start))
        result: list[Tensor | None] = []
        for name, (shape, dtype) in zip(ctx.plan.front.names, ctx.shapes, strict=True):
            result.append(_as(found[name], shape, dtype) if wanted[name] else None)
        if torch.is_grad_enabled():  # create_graph=True
            causes = [*values, *(g for g in gradients if g is not None)]
            result = [None if r is None else Once.apply(r, *causes) for r in result]
        return (None, None, None, *result)


def _left(plan: DensePlan, doubt: Tensor, values: dict[Any, Tensor]) -> Left:
    """The core's answer for the samples in doubt."""
    samples = torch.nonzero(doubt).squeeze(1)
    if len(samples) == len(doubt):
        raise UnverifiedError
    with torch.enable_grad():
        shared = plan.front.shared
        inputs = {name: (v if name in shared else v[samples]).detach().clone().requires_grad_(plan.derivative)
                  for name, v in values.items()}  # fmt: skip
        try:
            outputs, info = plan.core(inputs, samples.tolist())
        except SolverError:
            raise UnverifiedError from None  # the error must name samples by their numbers in the whole batch
    return Left(samples, inputs, outputs, info)


def _notice_vertices(ctx: Any, c_z: Tensor | None, change: Change, wanted: Mapping[Any, bool]) -> None:
    """Warn if the gradient in the costs of linear programs is zero, as `LayerCall` does."""
    plan = ctx.plan
    linear = "Q" not in plan.form.names and not plan.form.cones
    if c_z is None or not linear or not plan.engine.notices_vertices or not plan.front.wants_costs(wanted):
        return
    costs = plan.front.blocks(tuple(v.detach().to(torch.float64) for v in ctx.saved_tensors))[0]
    if stands_still(*(v.reshape(-1, plan.form.n).numpy(force=True) for v in (c_z, change.z, change.u, costs))):
        plan.engine.notice_vertices()


def _as(v: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
    return (v if v.shape == shape else v.reshape(shape)).to(dtype)


def _adjoint(
    ctx: Any, gradients: tuple[Tensor | None, ...], wanted: Mapping[Any, bool]
) -> tuple[dict[Any, Tensor], Tensor]:
    """Gradients of the inputs: the perturbed ghost, and the finite difference along it (see ghost.oracle); and its
    residual (batch,)."""
    plan, answer, left = ctx.plan, ctx.answer, ctx.left
    batch, shared = plan.form.batch or 1, plan.front.shared
    single = plan.form.batch is None
    given = [None if g is None else (g.unsqueeze(0) if single else g).to(torch.float64) for g in gradients]
    incoming = plan.front.incoming(given)
    with changed(answer, incoming, plan.form) as change:
        if left is not None:  # the core handles these
            change = change.without(torch.ones_like(change.residual).index_fill(0, left.samples, 0.0) == 0)
        _notice_vertices(ctx, incoming[0], change, wanted)
        found, residual = plan.front.gradients(change, wanted), change.residual.clone()
    if left is not None:
        for name, theirs in left.gradients(gradients, wanted).items():
            if theirs is not None and name in shared:
                found[name] = found[name] + theirs
            elif theirs is not None:
                found[name] = found[name].index_add(0, left.samples, theirs.to(torch.float64))
    if plan.reduction == "mean":
        found = {name: v / batch if name in shared else v for name, v in found.items()}
    return found, residual
