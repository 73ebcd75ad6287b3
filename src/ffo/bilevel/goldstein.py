"""GoldsteinDescent: nonsmooth, nonconvex descent to a Goldstein stationary point, with inexact gradients.

A point x is (delta, epsilon)-Goldstein stationary when some convex combination of gradients taken within
delta of x has norm at most epsilon. The iteration builds such combinations (Corollary of Theorem 4.1, by the
meta-algorithm of online-to-nonconvex conversion): for t = 1, 2, ...

    x_t = x_{t-1} + Delta_t
    z_t = x_{t-1} + s_t Delta_t,  s_t uniform on [0, 1]
    g_t = gradient at z_t
    Delta_{t+1} = Delta_t - eta g_t, clipped to norm D

and after each window of M steps, M D = delta, the mean z of the points z_t is stationary up to the norm of
the mean g of the gradients g_t: all of them were taken within delta of z. With exact gradients that is a
certificate, not an estimate. `ffo.bilevel.theory` derives D, eta and M.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer

from ffo.bilevel.theory import Plan, check_positive, plan
from ffo.errors import InputError, NotFiniteError

#: key of the optimizer's state that belongs to no single parameter
WALK = "walk"


@dataclass(frozen=True)
class Window:
    """A finished window of steps.

    Attributes:
        index: its number, from 0.
        stationarity: norm of the mean gradient over the window.
        radius: total length of the steps in the window; no gradient was taken farther from `centre`.
        value: mean of the closure's return values.
        centre: mean of the points where gradients were taken, one tensor per parameter.
    """

    index: int
    stationarity: float
    radius: float
    value: float
    centre: tuple[torch.Tensor, ...]


class GoldsteinDescent(Optimizer):
    """Finds (delta, epsilon)-Goldstein stationary points of Lipschitz functions, delta = window * radius.

    The gradient is taken at a random point along each step, so `step` needs a closure that zeroes the
    gradients, evaluates the loss, calls backward and returns the loss, as for `torch.optim.LBFGS`.
    Between steps the parameters hold the iterates x_t; `load_best` sets them to the centre of the best
    window, which is the result of the method.

    Args:
        params: parameters or parameter groups. Groups may have their own `radius` and `lr`. Each is then
            clipped to its own ball and moves by at most window * its radius within a window; the stationarity
            is still the norm of the whole mean gradient.
        radius: D, the longest step.
        lr: eta, step size of the online learner; 2 D / (L sqrt(M)) for gradients of norm up to L.
        window: M, steps over which gradients are averaged.
        maximize: maximize instead of minimizing.
        generator: source of the random points (default: torch's own); its state is part of `state_dict`.

    Example:
        >>> import torch
        >>> x = torch.tensor([2.0, -1.0], requires_grad=True)
        >>> optimizer = GoldsteinDescent.from_theory([x], delta=0.5, epsilon=0.3, lipschitz=1.0)
        >>> def closure():
        ...     optimizer.zero_grad()
        ...     loss = x.norm()
        ...     loss.backward()
        ...     return loss
        >>> while optimizer.best is None or optimizer.best.stationarity > 0.3:
        ...     loss = optimizer.step(closure)
        >>> optimizer.load_best()
    """

    generator: torch.Generator | None = None

    def __init__(
        self,
        params: Iterable[Any],
        radius: float,
        lr: float,
        window: int,
        *,
        maximize: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        _check_window(window)
        super().__init__(params, {"radius": radius, "lr": lr, "maximize": maximize})
        self.generator = generator
        walk = {"window": window, "filled": 0, "finished": 0, "path": 0.0, "value": 0.0}
        self.state[WALK] = walk  # type: ignore[index]

    @classmethod
    def from_theory(
        cls,
        params: Iterable[Any],
        *,
        delta: float,
        epsilon: float,
        lipschitz: float,
        maximize: bool = False,
        generator: torch.Generator | None = None,
    ) -> GoldsteinDescent:
        """An optimizer with the parameters of `ffo.bilevel.plan`."""
        p = plan(delta, epsilon, lipschitz)
        return cls(params, p.radius, p.lr, p.window, maximize=maximize, generator=generator)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As for any optimizer; the group joins the current window."""
        super().add_param_group(param_group)
        check_positive({name: self.param_groups[-1][name] for name in ("radius", "lr")})

    @property
    def window(self) -> int:
        """M of the current window."""
        return int(self._walk["window"])

    @property
    def filled(self) -> int:
        """Steps taken in the current window."""
        return int(self._walk["filled"])

    @property
    def last(self) -> Window | None:
        """The last finished window."""
        return self._window("last")

    @property
    def best(self) -> Window | None:
        """The finished window with the smallest stationarity."""
        return self._window("best")

    def follow(self, plan: Plan) -> None:
        """Switch to other parameters, for all groups; an unfinished window is discarded."""
        check_positive({"radius": plan.radius, "lr": plan.lr})
        _check_window(plan.window)
        self._walk.update(window=plan.window, filled=0)
        for group in self.param_groups:
            group.update(radius=plan.radius, lr=plan.lr)
            _clip([self._of(p)["move"] for p in group["params"]], plan.radius)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step; returns the loss at the random point where the gradient was taken."""
        if closure is None:
            raise InputError(
                "GoldsteinDescent takes the gradient at a random point along each step: pass step() a closure "
                "that calls zero_grad(), evaluates the loss, calls backward() and returns the loss"
            )
        if torch.is_inference_mode_enabled():
            raise InputError(
                "there are no gradients in inference mode, and enable_grad() does not bring them back: call this "
                "outside of it, or inside torch.inference_mode(False)"
            )
        self.to_random_point()
        try:
            with torch.enable_grad():
                loss = closure()
        except BaseException:
            self._back_to_iterate()
            raise
        self.advance(float(torch.as_tensor(loss).detach()))
        return loss

    @torch.no_grad()
    def to_random_point(self) -> None:
        """First half of `step`: move the parameters to where the gradient is to be taken.

        For callers that evaluate many optimizers in one batch; `advance` is the second half.
        """
        device = self.generator.device if self.generator is not None else "cpu"
        s = torch.rand((), generator=self.generator, device=device, dtype=torch.float64).item()
        for p in self._all():
            state = self._of(p)
            state["iterate"].copy_(p)
            p.add_(state["move"], alpha=s)

    @torch.no_grad()
    def advance(self, value: float = math.nan) -> None:
        """Second half of `step`: use the gradients, and move the parameters to the next iterate."""
        walk = self._walk
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._all()]
        if not math.isfinite(_norm(gradients)):
            self._back_to_iterate()
            raise NotFiniteError(
                "a gradient is not finite: look for samples that were not solved "
                "(layer.info.status) and for log, sqrt or division in the loss near their singularities"
            )
        weight = 1 / (walk["filled"] + 1)
        walk["path"] = _norm([self._of(p)["move"] for p in self._all()]) + (walk["path"] if walk["filled"] else 0.0)
        walk["value"] = weight * value + (1 - weight) * (walk["value"] if walk["filled"] else 0.0)
        given = iter(gradients)
        for group in self.param_groups:
            for p in group["params"]:
                state, gradient = self._of(p), next(given)
                state["gradient"].lerp_(gradient, weight)
                state["centre"].lerp_(p, weight)
                p.copy_(state["iterate"] + state["move"])
                state["move"].add_(gradient, alpha=group["lr"] if group["maximize"] else -group["lr"])
            _clip([self._of(p)["move"] for p in group["params"]], group["radius"])
        walk["filled"] += 1
        if walk["filled"] == walk["window"]:
            self.finish_window()

    def finish_window(self) -> Window | None:
        """Finish the current window now; a shorter window is a certificate too. None if empty."""
        walk = self._walk
        if walk["filled"] == 0:
            return None
        norm = _norm([self._of(p)["gradient"] for p in self._all()])
        found = (walk["finished"], norm, walk["path"], walk["value"])
        better = "best" not in walk or norm < walk["best"][1]
        for name in ("last", "best") if better else ("last",):
            walk[name] = found
            for p in self._all():
                self._of(p)[name] = self._of(p)["centre"].clone()
        walk.update(filled=0, finished=walk["finished"] + 1)
        return self.last

    @torch.no_grad()
    def load_best(self) -> None:
        """Set the parameters to the centre of the best window."""
        best = self.best
        if best is None:
            raise InputError(f"no window is finished yet: take {self.window - self.filled} more steps")
        for p, centre in zip(self._all(), best.centre, strict=True):
            p.copy_(centre)

    def state_dict(self) -> dict[str, Any]:
        """As for any optimizer, with the state of the generator."""
        if self.generator is not None:
            self._walk["generator"] = self.generator.get_state()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume from another optimizer's state; with its own generator, at the same random points."""
        super().load_state_dict(copy.deepcopy(state_dict))
        if self.generator is not None and "generator" in self._walk:
            self.generator.set_state(self._walk["generator"])

    @property
    def _walk(self) -> dict[str, Any]:
        return self.state[WALK]  # type: ignore[index]

    def _all(self) -> list[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _of(self, p: torch.Tensor) -> dict[str, torch.Tensor]:
        state = self.state[p]
        if not state:
            for name in ("iterate", "move", "gradient", "centre"):
                state[name] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return state

    def _window(self, name: str) -> Window | None:
        if name not in self._walk:
            return None
        index, stationarity, path, value = self._walk[name]
        return Window(index, stationarity, path, value, tuple(self._of(p)[name].clone() for p in self._all()))

    def _back_to_iterate(self) -> None:
        for p in self._all():
            p.copy_(self._of(p)["iterate"])


def _check_window(window: int) -> None:
    if not (isinstance(window, int) and window > 0):
        raise InputError(f"window must be a positive number of steps, not {window!r}")


def _norm(tensors: Iterable[torch.Tensor]) -> float:
    norms = [torch.linalg.vector_norm(t.detach()).to("cpu", torch.float64) for t in tensors]
    return float(torch.linalg.vector_norm(torch.stack(norms)))


def _clip(tensors: list[torch.Tensor], radius: float) -> None:
    norm = _norm(tensors)
    if norm > radius:
        for t in tensors:
            t.mul_(radius / norm)
