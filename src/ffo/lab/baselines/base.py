"""The interface of a method: a function that makes a layer, and a description of what it supports."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch

from ffo.lab.tasks.inner import Inner

#: the varying values of a step, by name -> solutions (batch, n)
Layer = Callable[[Mapping[str, torch.Tensor]], torch.Tensor]


@dataclass(frozen=True)
class Settings:
    """Settings varied by ablations; None: the method's default.

    Attributes:
        tolerance: of the solver, forward and (if it re-solves) backward.
        delta: size of the perturbation of a finite difference.
        solver: name of the forward solver.
        backward_tolerance: of the backward solve alone.
        device: of a method that runs on one.
    """

    tolerance: float | None = None
    delta: float | None = None
    solver: str | None = None
    backward_tolerance: float | None = None
    device: str | None = None

    @property
    def given(self) -> set[str]:
        return {field.name for field in fields(self) if getattr(self, field.name) is not None}


DEFAULTS = Settings()
#: the device of methods that run on one, unless a setting names another
CUDA = "cuda"


@dataclass(frozen=True)
class Baseline:
    """A method.

    Attributes:
        name: display name, unique.
        family: "conic": takes every convex problem of the lab; "qp": quadratic programs only.
        make: (problem, settings) -> layer.
        packages: modules that must be installed.
        settings: the fields of `Settings` that it supports.
        refuses: problem -> why the method cannot solve it, in words; empty if it can.
        same_build: name of a method that builds the same layer: if that one hits a limit, so will this one.
        exact: whether its gradient is exact up to the accuracy of its solver.
        first_order: whether its backward pass uses nothing but solves, gradients and products: no factorization.
        any_solver: whether it needs nothing from the solver but solutions and multipliers, so that any will do.
        ours: whether it belongs to this package.
        on_device: whether it runs on a CUDA device; inputs come from the host, outputs and gradients return to it.
    """

    name: str
    family: Literal["qp", "conic"]
    make: Callable[[Inner, Settings], Layer]
    packages: tuple[str, ...] = ()
    settings: frozenset[str] = frozenset()
    refuses: Callable[[Inner], str] = lambda inner: ""
    same_build: str = ""
    exact: bool = True
    first_order: bool = False
    any_solver: bool = False
    ours: bool = False
    on_device: bool = False

    def why_not(self, inner: Inner, settings: Settings = DEFAULTS) -> str:
        """Why this method cannot run here, in words; empty if it can."""
        if self.family == "qp" and not inner.is_qp:
            return "unsupported cone: second-order"
        missing = [name for name in self.packages if importlib.util.find_spec(name) is None]
        if missing:
            return f"not installed: {', '.join(missing)}"
        if self.on_device and (reason := no_device(settings.device or CUDA)):
            return reason
        unknown = settings.given - self.settings
        return f"has no setting: {', '.join(sorted(unknown))}" if unknown else self.refuses(inner)

    def build(self, inner: Inner, settings: Settings = DEFAULTS) -> Layer:
        """The layer for this problem."""
        return self.make(inner, settings)


def no_device(name: str) -> str:
    """Why torch cannot use the device of this name, in words; empty if it can."""
    if not torch.cuda.is_available():
        return "no CUDA device that torch can use"
    count = torch.cuda.device_count()
    return "" if (torch.device(name).index or 0) < count else f"no device {name}: torch can use {count}"


def moved(values: Mapping[str, torch.Tensor], device: str) -> dict[str, torch.Tensor]:
    """Values on a device."""
    return {name: value.to(device) for name, value in values.items()}


def expanded(values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Values with a batch dimension; shared ones are views, so that autograd sums over the batch."""
    batch = len(values["q"])
    own = {"q": 2, "A": 3, "b": 2}
    return {k: v if v.ndim == own[k] else v.expand(batch, *v.shape) for k, v in values.items()}


def only_given(**settings: Any) -> dict[str, Any]:
    """Keyword arguments without those that are None."""
    return {name: value for name, value in settings.items() if value is not None}
