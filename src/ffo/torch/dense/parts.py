"""Splitting a batch that does not fit into a device's memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ffo.engine.info import Info
from ffo.torch.base import OptimizationLayer, Report
from ffo.torch.blocks import Form
from ffo.torch.dense.answer import UnverifiedError, release
from ffo.torch.dense.layer import DensePlan, DenseSolve, Front
from ffo.torch.dense.program import Tensor
from ffo.torch.dense.report import DeviceReport
from ffo.torch.dense.warm import Remembered

#: suffix of solver names
SPLIT = ", batch split"


def solve_on_device(
    layer: OptimizationLayer,
    form: Form,
    front: Front,
    known: Remembered | None,
    tensors: dict[Any, Tensor],
    core: Callable[[dict[Any, Tensor], list[int], Callable[[Report], None]], tuple[Tensor, ...]],
) -> tuple[Tensor, ...] | None:
    """The outputs of a layer by dense batched algebra; None if no sample is verified. `core`: (inputs by name, sample
    numbers, receiver of the report) -> outputs of samples that are left to the core."""

    def reported(inputs: dict[Any, Tensor], samples: list[int]) -> tuple[tuple[Tensor, ...], Info]:
        reports: list[Report] = []
        return core(inputs, samples, reports.append), reports[0].info()

    derivative = torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values())
    plan = DensePlan(form, derivative, front, layer.reduction, reported, layer.engine)
    try:
        return solve_in_parts(plan, known, layer._receive, tensors)
    except UnverifiedError:
        return None


def solve_in_parts(
    plan: DensePlan, remembered: Remembered | None, receive: Callable[[Any], None], tensors: dict[Any, Tensor]
) -> tuple[Tensor, ...]:
    """The outputs of `DenseSolve`; if memory runs out, each half of the samples separately."""
    batch, shared = plan.form.batch or 1, plan.front.shared
    for again in (False, True):
        try:
            return DenseSolve.apply(plan, remembered, receive, *tensors.values())
        except torch.OutOfMemoryError:
            if batch == 1 and again:
                raise
        release()  # caches for other shapes may use most of the memory
    if plan.reduction == "mean":
        tensors = {name: Weighted.apply(t, 1 / batch) if name in shared else t for name, t in tensors.items()}
    outputs, reports = [], list[DeviceReport]()
    for part in (slice(0, batch // 2), slice(batch // 2, batch)):
        numbers = range(batch)[part]

        def core(inputs: dict[Any, Tensor], samples: list[int], numbers: range = numbers) -> Any:
            return plan.core(inputs, [numbers[k] for k in samples])

        one = replace(plan, form=replace(plan.form, batch=len(numbers)), reduction="sum", core=core)
        known = remembered and remembered.part(part)
        few = {name: t if name in shared else t[part] for name, t in tensors.items()}
        outputs.append(solve_in_parts(one, known, reports.append, few))
    receive(Parts(*reports))
    return tuple(torch.cat(pair) for pair in zip(*outputs, strict=True))


class Weighted(torch.autograd.Function):
    """(t, weight) -> t, whose gradient is multiplied by the weight."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return t.view_as(t)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.weight * gradient, None


class Parts(DeviceReport):
    """The report on a batch of two parts."""

    def __init__(self, first: DeviceReport, second: DeviceReport) -> None:
        super().__init__()
        self.both = first, second
        for each in self.both:
            each.changed = self._refresh

    def _made(self) -> Info:
        found = Info.joined([each.info() for each in self.both])
        found.solver = tuple(name.removesuffix(SPLIT) + SPLIT for name in found.solver)
        return found

    def _refresh(self) -> None:
        if self._info is not None:
            now = Info.joined([each.info() for each in self.both])
            self._info.evidence, self._info.times = now.evidence, now.times
        self.changed()
