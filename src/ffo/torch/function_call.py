"""One call of an `FFOFunctionLayer`: from tensors to a solved problem, and back to gradients."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from ffo.engine.call import warn_of_doubt
from ffo.engine.options import Options
from ffo.errors import DerivativeError, InputError
from ffo.functions.inspection import check_graph
from ffo.functions.outcome import FunctionOutcome
from ffo.functions.problem import Problem
from ffo.torch.function import Once

if TYPE_CHECKING:
    from ffo.torch.functional import FFOFunctionLayer

Tensor = torch.Tensor

_FORWARD = (
    "FFOFunctionLayer has no forward mode: take gradients by backward(), or Jacobians row by row with "
    "torch.autograd.functional.jacobian"
)
#: torch has no public name for the hooks in use
_top_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)


@dataclass(frozen=True)
class CallLayout:
    """How to interpret the tensors of a call; `batch` is None for a single sample."""

    batched: tuple[bool, ...]
    batch: int | None
    shape: tuple[int, ...]
    y0: Tensor | None
    dtype: torch.dtype
    device: torch.device

    def start(self) -> Tensor:
        """(batch, n) in double precision."""
        batch, n = self.batch or 1, int(np.prod(self.shape))
        if self.y0 is None:
            return torch.zeros(batch, n, dtype=torch.float64, device=self.device)
        given = self.y0.detach().to(self.device, torch.float64)
        return given.reshape(-1, n).expand(batch, n).clone()


@dataclass(frozen=True)
class FunctionCall:
    """One call of a layer.

    Attributes:
        names: of the weights; derivative: whether any input needs a gradient; watched: whether gradients are enabled.
    """

    layer: FFOFunctionLayer
    layout: CallLayout
    names: tuple[str, ...]
    derivative: bool
    watched: bool
    keys: list[Hashable] | None
    overrides: dict[str, Any]

    @property
    def options(self) -> Options:
        return self.layer.runner.options

    def solve(self, tensors: Sequence[Tensor]) -> tuple[Tensor, FunctionOutcome]:
        """y as the caller gets it, and what backward needs."""
        layout, draws = self.layout, self.options.draws
        wide = [t.detach().to(torch.float64) if t.is_floating_point() else t.detach() for t in tensors]
        count = len(layout.batched)
        weights = dict(zip(self.names, wide[count:], strict=True))
        functions = self.layer.functions
        problem = Problem(functions, tuple(wide[:count]), layout.batched, weights, layout.batch or 1, layout.shape)
        y0 = layout.start()
        with torch.no_grad():
            rows = functions.run(1, problem.theta, problem.batched, weights, y0.reshape(-1, *layout.shape)).shape[1]
        problem = replace(problem, inequalities=rows)
        check_graph(problem, y0, self.derivative)  # now, not after the solve
        keys = self.keys
        if self.layer._random is not None:
            problem, y0 = self._perturbed(problem), y0.repeat_interleave(draws, 0)
            keys = None if keys is None else [(k, d) for k in keys for d in range(draws)]
        outcome = self.layer.runner.run(problem, y0, self.derivative, keys, self.overrides, draws)
        if self.watched and len(outcome.solved):
            # Also if no input needs a gradient, and again at the solution: functions may take another branch there.
            # This is one more evaluation, where a solve has dozens.
            check_graph(outcome.problem.take(outcome.solved), outcome.y[outcome.solved], True)
        self.layer._receive(outcome.info)
        y = outcome.y.reshape(-1, draws, *layout.shape)
        if not self.options.lead:
            y = y.mean(1)
            return (y if layout.batch is not None else y[0]).to(layout.dtype), outcome
        y = y.transpose(0, 1)  # (draws, batch, ...)
        return (y if layout.batch is not None else y[:, 0]).to(layout.dtype, copy=True), outcome

    def _perturbed(self, problem: Problem) -> Problem:
        """Every sample `draws` times, the right-hand sides of its inequalities perturbed."""
        smoothing, source = self.options.smoothing, self.layer._random
        if not problem.inequalities:
            raise InputError("smoothing perturbs the inequalities, of which this problem has none: omit smoothing=")
        assert smoothing is not None
        assert source is not None
        size = (problem.batch * smoothing.draws, problem.inequalities)
        shift = source.uniform(-smoothing.radius, smoothing.radius, size)
        return replace(problem.repeated(smoothing.draws), shift=torch.tensor(shift, device=self.layout.device))

    def adjoint(self, outcome: FunctionOutcome, gradient: Tensor, wanted: Sequence[bool]) -> list[Tensor | None]:
        draws = self.options.draws
        batch = self.layout.batch or 1
        c = gradient.to(torch.float64)
        if not self.options.lead:
            c = (c.reshape(batch, -1) / draws).repeat_interleave(draws, 0)
        else:
            c = c.reshape(draws, batch, -1).transpose(0, 1).reshape(batch * draws, -1)
        # If one draw of a sample failed, the sample has no mean, and so no gradient.
        ok = torch.tensor(outcome.info.ok, device=c.device).reshape(-1, draws).all(1).repeat_interleave(draws)
        found = outcome.adjoint(torch.where(ok.unsqueeze(1), c, 0.0), wanted, self.options.delta, ok)
        warn_of_doubt(outcome.info)
        if draws > 1:
            for k, batched in enumerate(self.layout.batched):
                g = found[k]
                if batched and g is not None:
                    found[k] = g.reshape(-1, draws, *g.shape[1:]).sum(1)
        return found


class SolveFunctions(torch.autograd.Function):
    """(call, *theta, *weights) -> y."""

    @staticmethod
    def forward(ctx: Any, call: FunctionCall, *tensors: Tensor) -> Tensor:
        with unhooked():
            y, ctx.outcome = call.solve(tensors)
        ctx.call = call
        ctx.save_for_backward(*tensors)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        wanted = tuple(ctx.needs_input_grad[1:])
        tensors = ctx.saved_tensors
        with torch.no_grad(), unhooked():
            found = ctx.call.adjoint(ctx.outcome, gradient.detach(), wanted)
        result = [None if g is None else g.to(t.dtype) for g, t in zip(found, tensors, strict=True)]
        if torch.is_grad_enabled():  # create_graph=True
            result = [None if r is None else Once.apply(r, *tensors, gradient) for r in result]
        return (None, *result)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise DerivativeError(_FORWARD)


def unhooked() -> AbstractContextManager[Any]:
    """Hides the graphs that this package makes for itself from hooks for saved tensors: checkpoints count them."""
    if _top_hooks is not None and _top_hooks(True) is None:
        return nullcontext()  # hooks that do nothing take a tenth of the time of a small function
    return torch.autograd.graph.saved_tensors_hooks(_unchanged, _unchanged)


def _unchanged(t: torch.Tensor) -> torch.Tensor:
    return t
