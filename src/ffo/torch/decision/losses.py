"""Losses of predicted costs that need only optimal decisions.

For costs that are minimized, x(c) optimal for c, and the region X:

- regret:  c'x(c_hat) - c'x(c),  how much worse the decision for the predicted costs c_hat is than the best one;
- SPO+ (Elmachtoub and Grigas, 2022), a convex upper bound on the regret:
      max over X of (c - 2 c_hat)'x + 2 c_hat'x(c) - c'x(c),    with subgradient 2 (x(c) - x(2 c_hat - c));
- Fenchel-Young with perturbed costs (Berthet et al., 2020), convex, nonnegative, for a given decision x:
      c_hat'x - E min over X of (c_hat + s xi)'x',              with gradient x - E x(c_hat + s xi).

Costs to be maximized are minimized with the opposite sign.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from ffo.errors import InputError
from ffo.torch.decision.region import Oracle, batched, perturbed

Reduction = Literal["mean", "sum", "none"]


class DecisionLoss(torch.nn.Module):
    """A loss of decisions found by an oracle, reduced over the batch."""

    def __init__(self, oracle: Oracle, reduction: Reduction = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise InputError(f"reduction must be 'mean', 'sum' or 'none', not {reduction!r}")
        self.oracle, self.reduction = oracle, reduction

    @property
    def sign(self) -> float:
        """-1 where costs are maximized."""
        return -1.0 if self.oracle.maximize else 1.0

    def reduced(self, losses: Tensor, like: Tensor) -> Tensor:
        """The losses (batch,) as asked for; `like`: the costs, with or without a batch."""
        if self.reduction == "mean":
            return losses.mean()
        if self.reduction == "sum":
            return losses.sum()
        return losses if like.ndim > len(self.oracle.shape) else losses[0]


class SPOPlus(DecisionLoss):
    """The SPO+ loss: a convex upper bound on the regret.

    Args:
        oracle: a `FixedRegion`, or anything that finds optimal decisions; integers are allowed.
        reduction: "mean" or "sum" over the batch, or "none".

    Example:
        >>> loss = SPOPlus(region)
        >>> loss(model(features), costs).backward()
    """

    def forward(self, predicted: Tensor, true: Tensor, decision: Tensor | None = None) -> Tensor:
        """The loss of predicted costs (*batch, *shape) when the true costs are known.

        Args:
            decision: optimal for the true costs, if it is known already; else it is solved for.
        """
        guess, costs = pair(self.oracle, predicted, true)
        best = _best(self.oracle, costs, decision)
        return self.reduced(_SPOPlus.apply(self, guess, costs, best), predicted)

    if TYPE_CHECKING:
        __call__ = forward


class _Loss(torch.autograd.Function):
    """(loss, predicted, ...) -> (batch,), whose gradient in the predicted costs is saved."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (direction,) = ctx.saved_tensors
        return None, direction * gradient.reshape(-1, *(1,) * (direction.ndim - 1)), None, None


class _SPOPlus(_Loss):
    """(loss, predicted, true, decisions for the true costs) -> (batch,)."""

    @staticmethod
    def forward(ctx: Any, loss: SPOPlus, predicted: Tensor, true: Tensor, best: Tensor) -> Tensor:
        twice = 2 * predicted - true
        worst = loss.oracle.solve(twice)
        ctx.save_for_backward(2 * loss.sign * (best - worst))
        return loss.sign * (_dot(twice, best) - _dot(twice, worst))


class PerturbedFenchelYoung(DecisionLoss):
    """The Fenchel-Young loss with perturbed costs: how far a decision is from the mean decision for these costs.

    Its target is a decision, observed or optimal for known costs. It is convex in the predicted costs.

    Args:
        oracle: as in `SPOPlus`.
        size: standard deviation of the perturbation of the costs, in their units.
        draws: perturbed problems per sample; seed: of the draws (each call continues the sequence).
        reduction: as in `SPOPlus`.
    """

    def __init__(
        self,
        oracle: Oracle,
        size: float = 1.0,
        draws: int = 16,
        seed: int | np.random.Generator = 0,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(oracle, reduction)
        if not 0 < size < np.inf:
            raise InputError(f"size must be positive and finite, not {size!r}")
        if not (isinstance(draws, int) and draws > 0):
            raise InputError(f"draws must be a positive integer, not {draws!r}")
        self.size, self.draws = size, draws
        self._random = np.random.default_rng(seed)

    def forward(self, predicted: Tensor, decision: Tensor) -> Tensor:
        """The loss of predicted costs (*batch, *shape) when this decision (*batch, *shape) is right."""
        guess, target = pair(self.oracle, predicted, decision)
        noise = torch.from_numpy(self._random.normal(size=(len(guess), self.draws, *self.oracle.shape)))
        return self.reduced(_FenchelYoung.apply(self, guess, target, noise), predicted)

    if TYPE_CHECKING:
        __call__ = forward


class _FenchelYoung(_Loss):
    """(loss, predicted, decisions, noise (batch, draws, *shape)) -> (batch,)."""

    @staticmethod
    def forward(ctx: Any, loss: PerturbedFenchelYoung, predicted: Tensor, target: Tensor, noise: Tensor) -> Tensor:
        shifted, found = perturbed(loss.oracle, predicted, noise, loss.size)
        ctx.save_for_backward(loss.sign * (target - found.mean(dim=1)))
        lowest = (shifted * found).flatten(2).sum(dim=2).mean(dim=1)
        return loss.sign * (_dot(predicted, target) - lowest)


def regret(oracle: Oracle, predicted: Tensor, true: Tensor, decision: Tensor | None = None) -> Tensor:
    """How much worse decisions for the predicted costs are than the best ones, (*batch,): nonnegative, no gradient.

    Args:
        predicted, true: costs (*batch, *shape); decision: optimal for the true ones, if it is known already.
    """
    with torch.no_grad():
        guess, costs = pair(oracle, predicted, true)
        best = _best(oracle, costs, decision)
        lost = _dot(costs, oracle.solve(guess)) - _dot(costs, best)
        lost = -lost if oracle.maximize else lost
        return lost if true.ndim > len(oracle.shape) else lost[0]


def normalized_regret(oracle: Oracle, predicted: Tensor, true: Tensor, decision: Tensor | None = None) -> Tensor:
    """The regret of a batch, divided by the sum of the absolute optimal values, ()."""
    with torch.no_grad():
        _, costs = pair(oracle, predicted, true)
        best = _best(oracle, costs, decision)
        return regret(oracle, predicted, true, best.reshape(true.shape)).sum() / _dot(costs, best).abs().sum()


def pair(oracle: Oracle, predicted: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Both with a batch dimension and the predicted ones' dtype, checked."""
    guess, target = batched(predicted, oracle.shape), batched(other, oracle.shape)
    if guess.shape != target.shape:
        raise InputError(f"predictions are {tuple(predicted.shape)}, but their targets {tuple(other.shape)}")
    return guess, target.detach().to(guess)


def _best(oracle: Oracle, costs: Tensor, known: Tensor | None) -> Tensor:
    """Optimal decisions for costs (batch, *shape), unless they are known."""
    return oracle.solve(costs) if known is None else batched(known, oracle.shape).to(costs)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """(batch,)."""
    return (a * b).flatten(1).sum(dim=1)
