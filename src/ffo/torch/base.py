"""What all layers share: options, reports, and the way of a call through autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, Self

import torch

from ffo.engine import Engine, Info, Options, Smoothing
from ffo.engine.call import LayerCall
from ffo.engine.call import warn_of_doubt as warn_of_doubt  # for the dense path
from ffo.engine.smoothing import Sampler
from ffo.program.canonical import CanonicalProblem
from ffo.torch.function import Slot, Solve, SolveOutside, inside_transform


class Report(Protocol):
    """What a call found out, of which an `Info` can be made."""

    def info(self) -> Info: ...


class OptimizationLayer(torch.nn.Module):
    """A layer that solves a parametrised problem for each sample of a batch."""

    _last: Info | Report | None = None
    #: whether gradients of parameters shared by the batch are sums or means over it
    reduction: Literal["sum", "mean"] = "sum"

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.engine = Engine(options)
        self.sampler = Sampler(options.smoothing) if options.smoothing else None
        self.info = None

    @property
    def info(self) -> Info | None:
        """Report on the last call; None before any."""
        last = self._last
        return last if last is None or isinstance(last, Info) else last.info()

    @info.setter
    def info(self, info: Info | None) -> None:
        self._last = info

    def _receive(self, report: Info | Report) -> None:
        self.__dict__["_last"] = report  # past torch's search for parameters, which takes longer

    def call(self, *args: Any, **kwargs: Any) -> tuple[Any, Info]:
        """What the layer returns for these arguments, and the report on this very call.

        `layer.info` is the last call's. A call's own report stays with it, also where threads share the layer:
        derivatives through these outputs, whenever they are taken, add to it.
        """
        return call_with_report(self, args, kwargs)

    def smoothed(self, smoothing: float | Smoothing | None) -> Self:
        """The same layer with other smoothing, with draws and memories of its own."""
        other = copy.copy(self)
        other.engine = Engine(replace(self.engine.options, smoothing=smoothing))  # type: ignore[arg-type]
        chosen = other.engine.options.smoothing
        other.sampler = Sampler(chosen) if chosen else None
        other.info = None
        return other

    def _run(
        self,
        canonical: CanonicalProblem,
        params: Sequence[torch.Tensor],
        batched: tuple[bool, ...],
        batch: int | None,
        solver_args: Mapping[str, Any] | None,
        keys: list[Hashable] | None,
        *,
        receive: Callable[[Info], None] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Solve a canonical problem for tensors and keys that have been checked.

        Args:
            receive: takes the report instead of the layer; gradients of shared parameters are sums then.
        """
        call = LayerCall(
            self.engine,
            canonical,
            batched,
            batch,
            keys,
            dict(solver_args or {}),
            self.sampler,
            self.reduction == "mean" and receive is None,
            receive or self._receive,
        )
        if not params:
            outputs, _ = call.solve([])
            return tuple(torch.from_numpy(v).to(torch.get_default_dtype()) for v in outputs)
        function = Solve if inside_transform() else SolveOutside
        return function.apply(Slot(call), *params)


def call_with_report(layer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Info]:
    """Call a layer that keeps the report on its last call; also that report."""
    alone = copy.copy(layer)  # all but the report is shared, and no other thread calls this copy
    outputs = alone(*args, **kwargs)
    info = layer.info = alone.info
    return outputs, info
