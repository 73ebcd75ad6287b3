"""The upper objective as a function of x alone, plain or smoothed (theorem of the paper's appendix).

    F(x) = upper(x, y(x))                                                       plain
    F(x) = E upper(x, y_eta(x)),  eta ~ U(-rho, rho)^m on the right-hand sides    smoothed

The mean is over values of `upper`, not over solutions: the two differ unless `upper` is linear in y, so the
layer returns every draw (`Smoothing.average` is false).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ffo.bilevel.result import Point
from ffo.engine.options import Smoothing
from ffo.errors import InputError

Upper = Callable[[Any, Any], torch.Tensor]


class Objective:
    """upper(x, layer(x)) and its gradient at the current x.

    Attributes:
        x: leaf tensors, copies of x0, updated by an optimizer.
    """

    def __init__(
        self,
        upper: Upper,
        layer: Callable[..., Any],
        x0: torch.Tensor | Sequence[torch.Tensor],
        draws: int | None = None,
    ) -> None:
        self.upper, self.layer, self.draws = upper, layer, draws
        self.single = isinstance(x0, torch.Tensor)
        given = [x0] if isinstance(x0, torch.Tensor) else list(x0)
        if not given or not all(isinstance(t, torch.Tensor) and t.is_floating_point() for t in given):
            raise InputError("x0 must be a floating-point tensor or a sequence of them")
        self.x = [t.detach().clone().requires_grad_() for t in given]

    def evaluate(self) -> tuple[Any, torch.Tensor]:
        """The layer's output at x, and the objective."""
        x: Any = self.x[0] if self.single else tuple(self.x)
        y = self.layer(x) if self.single else self.layer(*x)
        y = y[0] if isinstance(y, (tuple, list)) and len(y) == 1 else y
        if self.draws is None:
            value = self.upper(x, y)
        else:
            value = sum((self.upper(x, _draw(y, k)) for k in range(self.draws)), start=torch.zeros(())) / self.draws
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise InputError(f"upper must return a tensor with one element, got {shape}: sum or average over the batch")
        return y, value.reshape(())

    def value_and_gradient(self) -> torch.Tensor:
        """The objective; the gradient is in the tensors' `grad`."""
        for t in self.x:
            t.grad = None
        _, value = self.evaluate()
        if not value.requires_grad:
            raise InputError("upper(x, y) does not depend on x through differentiable operations")
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()

    def gradient_norm(self) -> float:
        return math.hypot(*(0.0 if t.grad is None else float(t.grad.norm()) for t in self.x))

    @torch.no_grad()
    def move_to(self, point: Sequence[torch.Tensor]) -> None:
        for t, value in zip(self.x, point, strict=True):
            t.copy_(value)

    def point(self) -> Point:
        found = tuple(t.detach().clone() for t in self.x)
        return found[0] if self.single else found


def smoothed_layer(
    layer: Callable[..., Any], smoothing: float | Smoothing, generator: torch.Generator | None
) -> tuple[Callable[..., Any], int]:
    """A copy of the layer that returns every draw in a leading dimension, and the number of draws."""
    if not hasattr(layer, "smoothed"):
        raise InputError(
            "smoothing= perturbs the right-hand sides inside a layer, but this is a function around one: make "
            "the layer with smoothing=Smoothing(rho, draws=k, average=False) and take the mean over the draws "
            "(the first dimension of y) in upper"
        )
    chosen = smoothing if isinstance(smoothing, Smoothing) else Smoothing(smoothing)
    if generator is not None:
        device = generator.device
        seed = int(torch.randint(2**62, (), generator=generator, device=device))
        chosen = replace(chosen, seed=seed)
    return layer.smoothed(replace(chosen, average=False)), chosen.draws


def _draw(y: Any, k: int) -> Any:
    """The k-th draw of an output or of a tuple of outputs."""
    if isinstance(y, torch.Tensor):
        return y[k]
    if hasattr(y, "_fields"):
        return type(y)(*(t[k] for t in y))
    return tuple(t[k] for t in y)
