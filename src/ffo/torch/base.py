"""Common code of all layers: options, reports, and the path of a call through autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, Self, TypeVar

import torch

from ffo.engine import Engine, Info, Options, Smoothing
from ffo.engine.call import LayerCall, read_start
from ffo.engine.call import warn_of_doubt as warn_of_doubt  # for the dense path
from ffo.engine.smoothing import Sampler
from ffo.errors import InputError, NotCalledError
from ffo.program.canonical import CanonicalProblem
from ffo.torch.function import NumpyArray, Slot, Solve, SolveOutside, inside_transform, to_numpy
from ffo.torch.graph import number

#: a guess of each output, or of the only one
Guesses = torch.Tensor | Sequence[torch.Tensor | None]


Arguments = ParamSpec("Arguments")
Found = TypeVar("Found")
Layer = TypeVar("Layer", bound="Reporting")


def ordinary(t: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of one made in inference mode, which autograd cannot save for the backward pass."""
    return t.clone() if t.is_inference() else t


class Report(Protocol):
    """The findings of a call, from which an `Info` can be made."""

    def info(self) -> Info: ...


class Reporting(torch.nn.Module):
    """A layer that reports on its last call."""

    _last: Info | Report | None = None

    @property
    def info(self) -> Info:
        """Report on the last call; raises a `NotCalledError` before the first."""
        last = self._last
        if last is None:
            raise NotCalledError("info reports on the last call of the layer: call the layer first")
        return last if isinstance(last, Info) else last.info()

    def _receive(self, report: Info | Report) -> None:
        self.__dict__["_last"] = report  # bypasses torch's slower __setattr__


class OptimizationLayer(Reporting):
    """A layer that solves a parametrised problem for each sample of a batch."""

    #: whether gradients of parameters shared by the batch are sums or means over it
    reduction: Literal["sum", "mean"] = "sum"

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.engine = Engine(options)
        self.sampler = Sampler(options.smoothing) if options.smoothing else None
        self._number = number(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._number = number(self)  # a copy is another layer

    @property
    def smooths(self) -> bool:
        """Whether every call has its own random draws."""
        return self.sampler is not None

    def from_graph(self, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """The outputs for the tensors of a call (see `ffo.torch.graph`)."""
        raise NotImplementedError

    def shapes_in_graph(self, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """Tensors of the shapes and kinds of these outputs."""
        raise NotImplementedError

    @property
    def _plain(self) -> bool:
        """Whether the options leave the method to this package, so that dense algebra on a device may be used. It is
        exact, whatever `eps` is."""
        options = self.engine.options
        return (
            options.solver_args.keys() <= {"eps"}
            and not (options.smoothing or options.verbose)
            and options.solver is None
            and options.backward in ("auto", "direct")
        )

    def smoothed(self, smoothing: float | Smoothing | None) -> Self:
        """The same layer with other smoothing, with its own draws and memory."""
        other = copy.copy(self)
        other.engine = Engine(replace(self.engine.options, smoothing=smoothing))  # type: ignore[arg-type]
        chosen = other.engine.options.smoothing
        other.sampler = Sampler(chosen) if chosen else None
        other._last = None
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
        start: Guesses | None = None,
        receive: Callable[[Report], None] | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Solve a canonical problem for tensors and keys that have been checked.

        Args:
            start: the user's guess of each output.
            receive: takes the report instead of the layer; gradients of shared parameters are sums then.
        """
        call = LayerCall(
            self.engine,
            canonical if self.sampler else canonical.compact,  # draws perturb the program as it was given
            batched,
            batch,
            keys,
            dict(solver_args or {}),
            self.sampler,
            self.reduction == "mean" and receive is None,
            receive or self._receive,
            start=() if start is None else self._guesses(canonical, start, batch),
        )
        if not params:
            outputs, _ = call.solve([])
            return tuple(torch.from_numpy(v).to(torch.get_default_dtype()) for v in outputs)
        function = Solve if inside_transform() else SolveOutside
        if torch.is_grad_enabled():
            params = [ordinary(p) for p in params]
        return function.apply(Slot(call), *params)

    @staticmethod
    def _guesses(canonical: CanonicalProblem, start: Guesses, batch: int | None) -> tuple[NumpyArray | None, ...]:
        shapes = [out.shape for out in canonical.recovery.outputs]
        listed = [start] if isinstance(start, torch.Tensor) else list(start)
        for guess in listed:
            if guess is not None and not isinstance(guess, torch.Tensor):
                raise InputError(f"start= takes torch tensors shaped like the outputs, got {type(guess).__name__}")
            if guess is not None and torch._C._functorch.is_functorch_wrapped_tensor(guess):
                raise InputError("start= cannot be used inside torch.func transforms: pass a batch instead")
        return read_start([None if g is None else to_numpy(g.detach()) for g in listed], shapes, batch)


def reporting(
    forward: Callable[Concatenate[Layer, Arguments], Found],
) -> Callable[Concatenate[Layer, Arguments], tuple[Found, Info]]:
    """The method `call` of a layer, with the arguments of its `forward`."""

    def call(self: Layer, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> tuple[Found, Info]:
        """The layer's outputs for these arguments, and the report on this call.

        `layer.info` belongs to the last call. The report returned here belongs to this call, even if threads share
        the layer: every derivative taken through these outputs adds to it.
        """
        alone: Any = copy.copy(self)  # shares everything but the report; no other thread calls this copy
        outputs = alone(*args, **kwargs)
        self._last = alone._last
        return outputs, alone.info

    return call
