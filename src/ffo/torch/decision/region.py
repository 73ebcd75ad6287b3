"""A fixed feasible region: costs in, optimal decisions out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import cvxpy as cp
import numpy as np
import torch
from torch import Tensor

from ffo.engine import Smoothing
from ffo.engine.call import read_batch
from ffo.engine.notices import VERTEX
from ffo.errors import InputError, ZeroGradientWarning
from ffo.torch.decision.integers import MixedInteger
from ffo.torch.graph import traced
from ffo.torch.layer import FFOLayer


class Oracle(Protocol):
    """Finds optimal decisions for given costs.

    Attributes:
        shape: of the costs of one sample, and of its decision.
        maximize: whether the costs are to be maximized.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def maximize(self) -> bool: ...

    def solve(self, costs: Tensor) -> Tensor:
        """Optimal decisions for costs (batch, *shape), of the same shape and dtype, without a gradient."""


class FixedRegion(torch.nn.Module):
    """Solves  minimize c'x  subject to constraints that are fixed; the costs c are the input.

    Variables may be integer or boolean: such problems go to a mixed-integer solver of CVXPY, sample by sample; others
    are solved as in `FFOLayer`. The losses of this package (`SPOPlus`, `PerturbedFenchelYoung`) use only the solutions.

    The decision is piecewise constant in the costs, so that its derivative is zero wherever it exists. With
    `Smoothing(costs=...)` the layer returns the mean decision for randomly perturbed costs instead, whose derivative
    is estimated from the same draws (docs/decisions.md).

    Args:
        decision: the variable x, of any shape.
        constraints: on x, and on other variables if there are any; without parameters.
        maximize: whether c'x is maximized.
        solver: a solver as in `FFOLayer`, or for problems with integers a mixed-integer solver of CVXPY; None chooses
            one.
        solver_args: settings of the solver (CVXPY's for problems with integers).
        smoothing: draws of perturbed costs, as `Smoothing(costs=..., draws=...)`.

    Example:
        >>> import cvxpy as cp, torch
        >>> x = cp.Variable(4, boolean=True)
        >>> region = FixedRegion(x, [cp.sum(x) == 2])  # the two cheapest
        >>> region(torch.tensor([[3.0, 1.0, 2.0, 4.0]]))  # tensor([[0., 1., 1., 0.]])
    """

    def __init__(
        self,
        decision: cp.Variable,
        constraints: Sequence[cp.Constraint],
        *,
        maximize: bool = False,
        solver: str | None = None,
        solver_args: Mapping[str, Any] | None = None,
        smoothing: Smoothing | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(decision, cp.Variable):
            raise InputError(f"the decision must be a CVXPY variable, not {type(decision).__name__}")
        costs = cp.Parameter(decision.shape)
        total = cp.sum(cp.multiply(costs, decision))
        problem = cp.Problem(cp.Maximize(total) if maximize else cp.Minimize(total), list(constraints))
        if len(problem.parameters()) > 1:
            names = [p.name() for p in problem.parameters() if p is not costs]
            raise InputError(
                f"a fixed region has no parameters, but its constraints have {', '.join(names)}: use FFOLayer"
            )
        self._shape, self._maximize = tuple(decision.shape), maximize
        self.integer = problem.is_mixed_integer()
        self.inner: FFOLayer | MixedInteger
        if self.integer:
            self.inner = MixedInteger(problem, costs, decision, solver, dict(solver_args or {}))
        else:
            self.inner = FFOLayer(problem, [costs], [decision], solver=solver, solver_args=solver_args)
        self._warned = False
        if smoothing is not None and (smoothing.radius or not smoothing.costs):
            raise InputError("a fixed region is smoothed by perturbed costs only: Smoothing(costs=..., draws=...)")
        self.smoothing = smoothing
        self._random = np.random.default_rng(smoothing.seed) if smoothing else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the costs of one sample, and of its decision."""
        return self._shape

    @property
    def maximize(self) -> bool:
        """Whether the costs are to be maximized."""
        return self._maximize

    def forward(self, costs: Tensor) -> Tensor:
        """Optimal decisions (*batch, *shape) for costs of that shape; with smoothing, means over the draws."""
        listed = batched(costs, self._shape)
        if self.smoothing is not None:
            return _Perturbed.apply(self, listed).reshape(costs.shape)
        if not self.integer and torch.is_grad_enabled() and costs.requires_grad:
            assert isinstance(self.inner, FFOLayer)
            return self.inner(costs)[0]
        return _Constant.apply(self, self.solve(listed).reshape(costs.shape), costs)

    if TYPE_CHECKING:  # torch declares that calling a module returns Any
        __call__ = forward

    def solve(self, costs: Tensor) -> Tensor:
        """Optimal decisions for costs (batch, *shape), of the same shape and dtype, without a gradient."""
        with torch.no_grad():
            if isinstance(self.inner, FFOLayer):
                return self.inner(costs)[0]
            if traced():
                raise InputError(
                    "decisions with integers cannot be part of a graph (make_fx, torch.func.linearize, "
                    "FakeTensorMode): call the region outside of it"
                )
            values = costs.detach().cpu().double().numpy()
            return torch.from_numpy(self.inner.solve(values)).to(costs)

    def noise(self, batch: int) -> Tensor:
        """(batch, draws, *shape) standard normal draws for perturbed costs."""
        assert self.smoothing is not None
        assert self._random is not None
        return torch.from_numpy(self._random.normal(size=(batch, self.smoothing.draws, *self._shape)))

    def extra_repr(self) -> str:
        return f"shape={self._shape}, maximize={self._maximize}, integer={self.integer}"


def batched(costs: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The costs with a batch dimension, checked."""
    if not isinstance(costs, Tensor):
        raise InputError(f"costs must be a torch tensor, got {type(costs).__name__}")
    (has,), _ = read_batch([tuple(costs.shape)], [shape], ["The costs"])
    return costs if has else costs.unsqueeze(0)


def perturbed(oracle: Oracle, costs: Tensor, noise: Tensor, size: float) -> tuple[Tensor, Tensor]:
    """Costs + size * noise (batch, draws, *shape), and the decisions for them."""
    shifted = costs.unsqueeze(1) + size * noise.to(costs)
    return shifted, oracle.solve(shifted.flatten(0, 1)).reshape(shifted.shape)


class _Perturbed(torch.autograd.Function):
    """(region, costs (batch, *shape)) -> mean decisions for perturbed costs, with the derivative of the mean.

    For normal xi of standard deviation s, d/dc E x(c + xi) = E[(x - baseline) xi] / s^2, whatever x is; the baseline is
    the mean of the other draws (`ffo.engine.smoothing`).
    """

    @staticmethod
    def forward(ctx: Any, region: FixedRegion, costs: Tensor) -> Tensor:
        assert region.smoothing is not None
        noise = region.noise(len(costs)).to(costs)
        _, found = perturbed(region, costs.detach(), noise, region.smoothing.costs)
        ctx.save_for_backward(found, noise)
        ctx.size = region.smoothing.costs
        return found.mean(dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        found, noise = ctx.saved_tensors
        draws = found.shape[1]
        value = (found * gradient.unsqueeze(1)).flatten(2).sum(dim=2)  # (batch, draws)
        centred = (value - value.mean(dim=1, keepdim=True)) / (draws - 1)
        return None, torch.einsum("bd,bd...->b...", centred, noise) / ctx.size


class _Constant(torch.autograd.Function):
    """(region, decisions, costs) -> decisions, with a zero derivative in the costs; the first one issues a warning."""

    @staticmethod
    def forward(ctx: Any, region: FixedRegion, decisions: Tensor, costs: Tensor) -> Tensor:
        ctx.region = region
        return decisions.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        if not ctx.region._warned:
            ctx.region._warned = True
            warnings.warn(VERTEX, ZeroGradientWarning, stacklevel=2)
        return None, None, torch.zeros_like(gradient)
