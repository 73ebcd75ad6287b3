"""A problem given by functions:  minimize g(theta, y)  subject to  h(theta, y) <= 0,  e(theta, y) = 0.

The functions are written for one sample. A batch is evaluated by `torch.func.vmap` over samples, or one
sample after the other where that is impossible (control flow that depends on values). Gradients are taken by
ordinary autograd around the mapped functions: samples are independent, so one backward pass of the sum gives
the gradient of each, and parameters shared by the batch receive the sum.

Inequalities and equalities are stacked from here on: c = [h; e] (batch, k), with multipliers
[lam; nu] (batch, k) of the Lagrangian g + lam'h + nu'e.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ffo.errors import InputError

Tensor = torch.Tensor
Function = Callable[..., Tensor]

NAMES = ("objective", "inequality", "equality")


class _Holder(torch.nn.Module):
    """Runs a function while `torch.func.functional_call` replaces the tensors of the modules."""

    def __init__(self, modules: Sequence[torch.nn.Module]) -> None:
        super().__init__()
        self.held = torch.nn.ModuleList(modules)

    def forward(self, function: Function, *arguments: Tensor) -> Any:
        return function(*arguments)


class Functions:
    """g, h and e for one sample, and the modules whose parameters and buffers they use.

    Attributes:
        mapped: whether batches go through `torch.func.vmap`; the first function that cannot turns it off
            permanently.
    """

    def __init__(
        self,
        objective: Function,
        inequality: Function | None = None,
        equality: Function | None = None,
        modules: Sequence[torch.nn.Module] = (),
    ) -> None:
        self.given = (objective, inequality, equality)
        self.holder = _Holder(modules)
        self.mapped = True

    @property
    def weights(self) -> dict[str, Tensor]:
        """Parameters and buffers of the modules by name."""
        return {**dict(self.holder.named_parameters()), **dict(self.holder.named_buffers())}

    def run(
        self, which: int, theta: Sequence[Tensor], batched: Sequence[bool], weights: Mapping[str, Tensor], y: Tensor
    ) -> Tensor:
        """Function number `which` at every sample: (batch,) of the objective, (batch, rows) of constraints.

        `y` (batch, *shape); batched theta have a leading batch dimension.
        """
        function = self.given[which]
        if function is None:
            return y.new_zeros(len(y), 0)

        def one(*arguments: Tensor) -> Tensor:
            return checked(function(*arguments), which)

        arguments, batched = (*theta, y), (*batched, True)
        if len(y) > 1 and self.mapped:
            try:
                dims = tuple(0 if b else None for b in batched)
                return self._bound(torch.func.vmap(one, in_dims=dims), weights, arguments)
            except InputError:
                raise
            except Exception as error:
                refusal = error
            found = self._one_by_one(one, weights, arguments, batched, which)
            self.mapped = _is_data_problem(refusal)
            return found
        return self._one_by_one(one, weights, arguments, batched, which)

    def _one_by_one(
        self,
        one: Function,
        weights: Mapping[str, Tensor],
        arguments: Sequence[Tensor],
        batched: Sequence[bool],
        which: int,
    ) -> Tensor:
        rows = []
        for k in range(len(arguments[-1])):
            row = [a[k] if b else a for a, b in zip(arguments, batched, strict=True)]
            try:
                rows.append(self._bound(one, weights, row))
            except (RuntimeError, TypeError) as error:
                raise InputError(_complaint(which, error)) from error
        return torch.stack(rows)

    def _bound(self, function: Function, weights: Mapping[str, Tensor], arguments: Sequence[Tensor]) -> Tensor:
        if not weights:
            return function(*arguments)
        return torch.func.functional_call(self.holder, dict(weights), (function, *arguments))


def checked(value: Any, which: int) -> Tensor:
    """What function number `which` returned, in double precision: one number, or a vector of constraints."""
    name = NAMES[which]
    if not isinstance(value, torch.Tensor):
        raise InputError(f"{name} must return a tensor, not {type(value).__name__}; torch.stack joins several")
    if which == 0 and value.numel() != 1:
        raise InputError(
            f"objective must return one number per sample, not a tensor of shape {tuple(value.shape)}: functions are "
            "written for a single sample (y without a batch dimension); sum over its entries"
        )
    if value.is_complex():
        raise InputError(f"{name} must return real numbers, not {value.dtype}")
    wide = value.to(torch.float64)
    return wide.reshape(()) if which == 0 else wide.reshape(-1)


def _is_data_problem(error: Exception) -> bool:
    """Whether vmap failed for lack of memory, which may not recur."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError)


def _complaint(which: int, error: RuntimeError | TypeError) -> str:
    text = f"{NAMES[which]} failed: {error}."
    if isinstance(error, TypeError):
        return f"{text} Functions are called with every theta and y, of one sample: {NAMES[which]}(*theta, y)"
    if "Inference tensors" in str(error):
        return f"{text} Pass the tensor as theta, or give its module in modules=: the layer copies these"
    if "dtype" in str(error) or "scalar type" in str(error):
        text += (
            " Functions are evaluated in double precision: pass the tensors they use as theta, give their modules in "
            "modules=, or convert constants with constant.to(y)"
        )
    return text


@dataclass(frozen=True)
class Problem:
    """Functions with values of their parameters; every tensor is double precision and detached.

    Attributes:
        theta, batched: values of the parameters, and which of them have a batch dimension.
        weights: tensors to use in place of those of the modules.
        shape: of one y; inside this package y is flat, (batch, n).
        inequalities: how many of the k constraints are inequalities; they come first.
        shift: (batch, inequalities) right-hand sides: h <= shift.
    """

    functions: Functions
    theta: tuple[Tensor, ...]
    batched: tuple[bool, ...]
    weights: Mapping[str, Tensor]
    batch: int
    shape: tuple[int, ...]
    inequalities: int = 0
    shift: Tensor | None = None

    def constraints(self, y: Tensor) -> Tensor:
        """c = [h - shift; e] at y: (batch, k)."""
        h, e = self.value(1, y), self.value(2, y)
        if self.shift is not None:
            h = h - self.shift
        return torch.cat([h, e], dim=1)

    def objective(self, y: Tensor) -> Tensor:
        """g at y: (batch,)."""
        return self.value(0, y)

    def value(self, which: int, y: Tensor) -> Tensor:
        """g, h or e, by its number, as given: (batch,), or (batch, rows)."""
        return self.functions.run(which, self.theta, self.batched, self.weights, y.reshape(-1, *self.shape))

    def lagrangian(self, y: Tensor, multipliers: Tensor) -> Tensor:
        """g + multipliers'c: (batch,)."""
        value = self.objective(y)
        return value + (multipliers * self.constraints(y)).sum(1) if multipliers.shape[1] else value

    def gradient(self, y: Tensor, multipliers: Tensor) -> Tensor:
        """Gradient of the Lagrangian in y, (batch, n); NaN outside the domain of the functions.

        (Autograd's gradient of a logarithm is finite at negative arguments, where the logarithm is not defined.)
        """
        value, found = value_and_gradient(lambda at: self.lagrangian(at, multipliers), y)
        inside = value.isfinite()
        return found if bool(inside.all()) else torch.where(inside.unsqueeze(1), found, torch.nan)

    def take(self, samples: Tensor) -> Problem:
        """Some samples of the batch, by their numbers (batch,)."""
        if len(samples) == self.batch:
            return self
        theta = tuple(t[samples] if b else t for t, b in zip(self.theta, self.batched, strict=True))
        shift = None if self.shift is None else self.shift[samples]
        return replace(self, theta=theta, batch=len(samples), shift=shift)

    def repeated(self, draws: int) -> Problem:
        """Every sample `draws` times, one after the other."""
        spread = [t.repeat_interleave(draws, 0) if b else t for t, b in zip(self.theta, self.batched, strict=True)]
        return replace(self, theta=tuple(spread), batch=self.batch * draws)


def value_and_gradient(function: Function, y: Tensor) -> tuple[Tensor, Tensor]:
    """The values (batch,) of a function at y (batch, n), and their gradients."""
    with torch.enable_grad():
        at = y.detach().requires_grad_()
        value = function(at)
        return value.detach(), pull(value.sum(), at)


def positive_part(c: Tensor, inequalities: int) -> Tensor:
    """Constraints (batch, k), of which the inequalities do not count where they hold."""
    return torch.cat([c[:, :inequalities].clamp_min(0.0), c[:, inequalities:]], dim=1)


def pull(output: Tensor, at: Tensor, weight: Tensor | None = None, keep: bool = False, graph: bool = False) -> Tensor:
    """Gradient of a tensor with respect to `at`, zero if it does not depend on it."""
    if not output.requires_grad:
        return torch.zeros_like(at)
    (found,) = torch.autograd.grad(
        output, at, weight, retain_graph=keep or graph, create_graph=graph, allow_unused=True, materialize_grads=True
    )
    return found


def graph_nodes(output: Tensor) -> Iterator[Any]:
    """Every node of the autograd graph behind a tensor."""
    seen, todo = set(), [output.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            todo += [parent for parent, _ in node.next_functions]


def is_cut(output: Tensor) -> bool:
    """Whether a function in the graph forbids another backward pass (`once_differentiable`).

    Autograd raises no error if the path to the inputs is cut there: it returns zero.
    """
    return any(node.name() == "torch::autograd::Error" for node in graph_nodes(output))
