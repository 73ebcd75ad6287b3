"""Autograd glue: a solve and its adjoint as `torch.autograd.Function`s.

`Solve` runs a `Call` (NumPy inside) and keeps its record for backward; `Adjoint` is the backward pass
as a function of its own, so that `torch.func.vmap` can batch it (whole Jacobians). Both directions
are first derivatives; a second derivative is refused in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from ffo.errors import DerivativeError, InputError

NumpyArray = np.ndarray
Record = Any

_SECOND = (
    "ffo layers are differentiable once: a second derivative (create_graph=True, or grad of grad) is "
    "not defined by the ghost problem. Use finite differences of the gradient instead."
)


class Call(Protocol):
    """A solve that is about to happen: what a layer hands to `Solve`."""

    def solve(self, values: list[NumpyArray]) -> tuple[list[NumpyArray], Record]: ...

    def adjoint(
        self, record: Record, gradients: list[NumpyArray | None], wanted: Sequence[bool]
    ) -> list[NumpyArray | None]: ...

    def tangent(self, record: Record, tangents: list[NumpyArray | None]) -> list[NumpyArray]: ...

    def folded(self, samples: int, batched: Sequence[bool]) -> Call: ...

    def parameter_dims(self) -> Sequence[int]: ...


class Slot:
    """Carries the record of a solve from `forward` to `setup_context`."""

    record: Record = None


def to_numpy(t: torch.Tensor) -> NumpyArray:
    return t.detach().to(device="cpu", dtype=torch.float64).contiguous().numpy()


def _like(value: NumpyArray, reference: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(value)).to(device=reference.device, dtype=reference.dtype)


class Solve(torch.autograd.Function):
    """(call, slot, *parameters) -> outputs."""

    @staticmethod
    def forward(call: Call, slot: Slot, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs, slot.record = call.solve([to_numpy(p) for p in parameters])
        return tuple(_like(v, parameters[0]) for v in outputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.call, slot, *parameters = inputs
        ctx.record = slot.record
        ctx.templates = [p.new_empty(0) for p in parameters]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        wanted = tuple(ctx.needs_input_grad[2:])
        if all(g is None for g in gradients) or not any(wanted):
            return (None,) * (2 + len(wanted))
        given = tuple(g is not None for g in gradients)
        found = Adjoint.apply(
            ctx.call, ctx.record, wanted, given, ctx.templates, *(g for g in gradients if g is not None)
        )
        result = iter(found)
        return (None, None, *(next(result) if w else None for w in wanted))

    @staticmethod
    def jvp(ctx: Any, _call: None, _slot: None, *tangents: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        given = tuple(t is not None for t in tangents)
        return Tangent.apply(ctx.call, ctx.record, given, *(t for t in tangents if t is not None))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], call: Call, _slot: Slot, *parameters: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, ...], Any]:
        """The mapped dimension joins the batch dimension."""
        base = call.parameter_dims()
        joint, inner = _fold(info.batch_size, in_dims[2:], parameters, base)
        batched = [p.ndim > d for p, d in zip(joint, base, strict=True)]
        outputs = Solve.apply(call.folded(info.batch_size, batched), Slot(), *joint)
        if inner is None:
            return outputs, (0,) * len(outputs)
        return tuple(o.reshape(info.batch_size, inner, *o.shape[1:]) for o in outputs), (0,) * len(outputs)


def _fold(
    size: int, dims: Sequence[int | None], parameters: Sequence[torch.Tensor], base: Sequence[int]
) -> tuple[list[torch.Tensor], int | None]:
    """Join the mapped dimension of each parameter with its batch dimension, mapped one first."""
    mapped = [p if d is None else p.movedim(d, 0) for p, d in zip(parameters, dims, strict=True)]
    inner = None
    for p, d, k in zip(mapped, dims, base, strict=True):
        if p.ndim - (d is not None) > k:
            inner = p.shape[1 if d is not None else 0]
    joint = []
    for p, d, k in zip(mapped, dims, base, strict=True):
        batched = p.ndim - (d is not None) > k
        if d is None and not batched:
            joint.append(p)
        elif inner is None:
            joint.append(p)
        else:
            full = p if d is not None else p.unsqueeze(0)
            full = full if batched else full.unsqueeze(1)
            full = full.expand(size, inner, *full.shape[2:])
            joint.append(full.reshape(size * inner, *full.shape[2:]))
    return joint, inner


class Adjoint(torch.autograd.Function):
    """(call, record, wanted, given, templates, *gradients) -> gradients of the wanted parameters."""

    @staticmethod
    def forward(
        call: Call,
        record: Record,
        wanted: Sequence[bool],
        given: Sequence[bool],
        templates: Sequence[torch.Tensor],
        *gradients: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        rest = iter(gradients)
        values = [to_numpy(next(rest)) if g else None for g in given]
        found = call.adjoint(record, values, wanted)
        return tuple(_like(v, t) for v, t in zip(found, templates, strict=True) if v is not None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> None:
        raise DerivativeError(_SECOND)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[tuple[torch.Tensor, ...], Any]:
        return _one_by_one(Adjoint, info, in_dims, arguments, 5)


class Tangent(torch.autograd.Function):
    """(call, record, given, *tangents) -> tangents of the outputs."""

    @staticmethod
    def forward(call: Call, record: Record, given: Sequence[bool], *tangents: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = iter(tangents)
        values = [to_numpy(next(rest)) if g else None for g in given]
        return tuple(_like(v, tangents[0]) for v in call.tangent(record, values))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> None:
        raise DerivativeError(_SECOND)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[tuple[torch.Tensor, ...], Any]:
        return _one_by_one(Tangent, info, in_dims, arguments, 3)


def _one_by_one(
    function: type[torch.autograd.Function], info: Any, in_dims: tuple[Any, ...], arguments: tuple[Any, ...], fixed: int
) -> tuple[tuple[torch.Tensor, ...], Any]:
    """Map over right-hand sides; with the factorization at hand each costs two triangular solves."""
    rows = []
    for k in range(info.batch_size):
        pairs = zip(arguments[fixed:], in_dims[fixed:], strict=True)
        rows.append(function.apply(*arguments[:fixed], *(t if d is None else t.select(d, k) for t, d in pairs)))
    return tuple(torch.stack(column) for column in zip(*rows, strict=True)), (0,) * len(rows[0])


def check_tensors(parameters: Sequence[Any]) -> None:
    """All parameters are floating-point tensors of one dtype on one device."""
    for i, p in enumerate(parameters):
        if not isinstance(p, torch.Tensor):
            raise InputError(f"Parameter {i} must be a torch tensor, got {type(p).__name__}")
        if not p.is_floating_point():
            raise InputError(f"Parameter {i} must have a floating-point dtype, got {p.dtype}")
        if p.layout is not torch.strided:
            raise InputError(f"Parameter {i} is a sparse tensor; pass parameter.to_dense()")
    for name in ("dtype", "device"):
        kinds = {getattr(p, name) for p in parameters}
        if len(kinds) > 1:
            listed = ", ".join(f"{i}: {getattr(p, name)}" for i, p in enumerate(parameters))
            raise InputError(f"All parameters must have the same {name}; got {listed}")
