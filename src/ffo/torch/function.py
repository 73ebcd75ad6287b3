"""Autograd glue: a solve and its derivatives as `torch.autograd.Function`s.

`Solve` runs a `Call` (NumPy inside) and keeps its record. `Adjoint` and `Tangent` are its two derivatives,
as separate functions so that `torch.func` can batch them (whole Jacobians). They take the parameters as
arguments, although their record has all they need, for two reasons. Autograd then sees that derivatives
depend on the parameters, so that a second derivative raises an error instead of being zero. And under
`torch.func.vmap` a mapped parameter shows that the solve was mapped too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import torch

from ffo.errors import DerivativeError, InputError

NumpyArray = np.ndarray
Record = Any
Dims = Sequence[int | None]

SECOND = (
    "ffo layers are differentiable once: a second derivative (create_graph=True, or grad of grad) is "
    "not defined by the ghost problem. Use finite differences of the gradient instead."
)
_LEGACY = (
    "ffo layers cannot be batched by torch.autograd's vectorize=True or is_grads_batched=True: use "
    "torch.func.jacrev or torch.func.jacfwd, or torch.autograd.functional.jacobian without vectorize."
)


class NotATensorError(InputError, AttributeError):
    """A parameter is not a tensor; also an AttributeError, which users of CvxpyLayer may expect."""


class Call(Protocol):
    """A solve to be run: what a layer passes to `Solve`."""

    def solve(self, values: list[NumpyArray]) -> tuple[list[NumpyArray], Record]: ...

    def adjoint(
        self, record: Record, gradients: list[NumpyArray | None], wanted: Sequence[bool], per_sample: bool
    ) -> list[NumpyArray | None]:
        """Gradients in the wanted parameters; `per_sample`: one per sample, for shared parameters too."""

    def tangent(self, record: Record, tangents: list[NumpyArray | None]) -> list[NumpyArray]: ...

    def folded(self, samples: int, batched: Sequence[bool]) -> Call: ...

    def parameter_dims(self) -> Sequence[int]: ...


class Slot:
    """Carries the record of a solve to its derivatives.

    Attributes:
        call, record: what was solved.
        inner: under `torch.func.vmap`, the slot of the solve in which the mapped dimension has joined
            the batch; the record is there (or deeper still).
        batch: size of the batch dimension inside the mapped one, None without.
    """

    record: Record = None
    inner: Slot | None = None
    batch: int | None = None

    def __init__(self, call: Call) -> None:
        self.call = call


#: torch has no public name for the tensors inside vectorize=True
_is_legacy_batched = getattr(torch._C._functorch, "is_legacy_batchedtensor", lambda t: False)


def inside_transform() -> bool:
    """Whether this runs inside a torch.func transform, for which torch has no public function."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def refuse_legacy_batches(t: torch.Tensor) -> None:
    if _is_legacy_batched(t):
        raise DerivativeError(_LEGACY)


def to_numpy(t: torch.Tensor) -> NumpyArray:
    try:
        if t.ndim and t.shape[0] > 1 and t.stride(0) == 0:  # expanded over the batch: one sample is copied, not all
            return np.broadcast_to(to_numpy(t[:1]), tuple(t.shape))
        return np.asarray((t if t.dtype is torch.float64 else t.to(torch.float64)).numpy(force=True), order="C")
    except RuntimeError:
        refuse_legacy_batches(t)
        raise


def _like(value: NumpyArray, reference: torch.Tensor) -> torch.Tensor:
    tensor = torch.from_numpy(np.asarray(value, order="C"))
    if reference.dtype is torch.float64 and reference.is_cpu:
        return tensor
    return tensor.to(device=reference.device, dtype=reference.dtype)


class Solve(torch.autograd.Function):
    """(slot, *parameters) -> outputs."""

    @staticmethod
    def forward(slot: Slot, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs, slot.record = slot.call.solve([to_numpy(p) for p in parameters])
        return tuple([_like(v, parameters[0]) for v in outputs])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.slot, *parameters = inputs
        ctx.save_for_backward(*parameters)
        ctx.save_for_forward(*parameters)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        wanted, given = tuple(ctx.needs_input_grad[1:]), [g is not None for g in gradients]
        if True not in given or True not in wanted:
            return (None,) * (1 + len(wanted))
        parameters = ctx.saved_tensors
        if torch.is_grad_enabled() or inside_transform():  # further derivatives or torch.func may follow
            result = iter(Adjoint.apply(ctx.slot, wanted, given, False, *parameters, *_present(gradients)))
            return (None, *[next(result) if w else None for w in wanted])
        return (None, *_adjoint(ctx.slot, wanted, False, parameters, gradients))

    @staticmethod
    def jvp(ctx: Any, _slot: None, *tangents: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        given = tuple(t is not None for t in tangents)
        return Tangent.apply(ctx.slot, given, *ctx.saved_tensors, *_present(tangents))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], slot: Slot, *parameters: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, ...], Any]:
        """The mapped dimension joins the batch dimension."""
        size, base = info.batch_size, slot.call.parameter_dims()
        slot.batch = _batch_size(in_dims[1:], parameters, base)
        joint = _fold(size, slot.batch, in_dims[1:], parameters, base)
        slot.inner = Slot(slot.call.folded(size, [p.ndim > d for p, d in zip(joint, base, strict=True)]))
        outputs = Solve.apply(slot.inner, *joint)
        return tuple(_unfold(o, size, slot.batch) for o in outputs), (0,) * len(outputs)


class SolveOutside(torch.autograd.Function):
    """`Solve` outside torch.func. For functions that support torch.func, torch reads the signature of `forward` at
    every call: a tenth of a millisecond, a fifth of a step on a small problem."""

    @staticmethod
    def forward(ctx: Any, slot: Slot, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        outputs = Solve.forward(slot, *parameters)
        Solve.setup_context(ctx, (slot, *parameters), outputs)
        return outputs

    backward = staticmethod(Solve.backward)
    jvp = staticmethod(Solve.jvp)


def _adjoint(
    slot: Slot,
    wanted: Sequence[bool],
    per_sample: bool,
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor | None],
) -> list[torch.Tensor | None]:
    """Gradients in the wanted parameters, None in the others."""
    values = [None if g is None else to_numpy(g) for g in gradients]
    found = slot.call.adjoint(slot.record, values, wanted, per_sample)
    return [None if v is None else _like(v, p) for v, p in zip(found, parameters, strict=True)]


class _Derivative(torch.autograd.Function):
    """A derivative, which is not differentiable itself."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> NoReturn:
        raise DerivativeError(SECOND)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        raise DerivativeError(SECOND)


class Adjoint(_Derivative):
    """(slot, wanted, given, per_sample, *parameters, *gradients) -> gradients of the wanted parameters."""

    @staticmethod
    def forward(
        slot: Slot, wanted: Sequence[bool], given: Sequence[bool], per_sample: bool, *arguments: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        parameters, rest = arguments[: len(wanted)], iter(arguments[len(wanted) :])
        gradients = [next(rest) if g else None for g in given]
        return tuple(_present(_adjoint(slot, wanted, per_sample, parameters, gradients)))

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        slot: Slot,
        wanted: Sequence[bool],
        given: Sequence[bool],
        per_sample: bool,
        *arguments: torch.Tensor,
    ) -> tuple[tuple[torch.Tensor, ...], Any]:
        count, dims = len(wanted), in_dims[4:]
        if all(d is None for d in dims[:count]):
            return _one_by_one(Adjoint, info.batch_size, (slot, wanted, given, per_sample), dims, arguments)
        assert slot.inner is not None
        size, base = info.batch_size, slot.call.parameter_dims()
        parameters, gradients = arguments[:count], arguments[count:]
        joint = _fold(size, slot.batch, dims[:count], parameters, base)
        outer = [_joined(_mapped(g, d, size), slot.batch) for g, d in zip(gradients, dims[count:], strict=True)]
        # A parameter shared by all mapped samples has a separate gradient in each of them.
        found = iter(Adjoint.apply(slot.inner, wanted, given, True, *joint, *outer))
        result = []
        for p, d, k, w in zip(parameters, dims, base, wanted, strict=False):
            if w:
                g = _unfold(next(found), size, slot.batch)
                shared = slot.batch is not None and p.ndim - (d is not None) == k
                result.append(g.sum(1) if shared and not per_sample else g)
        return tuple(result), (0,) * len(result)


class Tangent(_Derivative):
    """(slot, given, *parameters, *tangents) -> tangents of the outputs."""

    @staticmethod
    def forward(slot: Slot, given: Sequence[bool], *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        parameters, rest = arguments[: len(given)], iter(arguments[len(given) :])
        values = [to_numpy(next(rest)) if g else None for g in given]
        return tuple(_like(v, parameters[0]) for v in slot.call.tangent(slot.record, values))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], slot: Slot, given: Sequence[bool], *arguments: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, ...], Any]:
        count, dims = len(given), in_dims[2:]
        if all(d is None for d in dims[:count]):
            return _one_by_one(Tangent, info.batch_size, (slot, given), dims, arguments)
        assert slot.inner is not None
        size, base = info.batch_size, slot.call.parameter_dims()
        joint = _fold(size, slot.batch, dims[:count], arguments[:count], base)
        own = [k for k, g in zip(base, given, strict=True) if g]
        tangents = _fold(size, slot.batch, dims[count:], arguments[count:], own)
        found = Tangent.apply(slot.inner, given, *joint, *tangents)
        return tuple(_unfold(t, size, slot.batch) for t in found), (0,) * len(found)


class Once(torch.autograd.Function):
    """A gradient and what it depends on, so that its derivative raises an error instead of being zero."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, *causes: torch.Tensor) -> torch.Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> NoReturn:
        raise DerivativeError(SECOND)


def _present(items: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    return [t for t in items if t is not None]


def _one_by_one(
    function: type[torch.autograd.Function],
    size: int,
    fixed: tuple[Any, ...],
    dims: Dims,
    arguments: Sequence[torch.Tensor],
) -> tuple[tuple[torch.Tensor, ...], Any]:
    """Map over right-hand sides; with the existing factors each costs two triangular solves."""
    rows = []
    for k in range(size):
        pairs = zip(arguments, dims, strict=True)
        rows.append(function.apply(*fixed, *(t if d is None else t.select(d, k) for t, d in pairs)))
    return tuple(torch.stack(column) for column in zip(*rows, strict=True)), (0,) * len(rows[0])


def _mapped(t: torch.Tensor, dim: int | None, size: int) -> torch.Tensor:
    """Move the mapped dimension to the front, adding one if there is none."""
    return t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)


def _joined(t: torch.Tensor, batch: int | None) -> torch.Tensor:
    """(mapped, batch, ...) -> (mapped * batch, ...)."""
    return t if batch is None else t.reshape(-1, *t.shape[2:])


def _unfold(t: torch.Tensor, size: int, batch: int | None) -> torch.Tensor:
    """(mapped * batch, ...) -> (mapped, batch, ...)."""
    return t if batch is None else t.reshape(size, batch, *t.shape[1:])


def _batch_size(dims: Dims, parameters: Sequence[torch.Tensor], base: Sequence[int]) -> int | None:
    """Size of the batch dimension inside the mapped one."""
    for p, d, k in zip(parameters, dims, base, strict=True):
        if p.ndim - (d is not None) > k:
            return _mapped(p, d, 1).shape[1]
    return None


def _fold(
    size: int, batch: int | None, dims: Dims, parameters: Sequence[torch.Tensor], base: Sequence[int]
) -> list[torch.Tensor]:
    """Join the mapped dimension of each parameter with its batch dimension, mapped one first.

    A parameter with neither is unchanged: shared by the joint batch.
    """
    joint = []
    for p, d, k in zip(parameters, dims, base, strict=True):
        batched = p.ndim - (d is not None) > k
        if d is None and not batched:
            joint.append(p)
            continue
        full = _mapped(p, d, size)
        if batch is not None and not batched:
            full = full.unsqueeze(1).expand(size, batch, *full.shape[1:])
        joint.append(_joined(full, batch))
    return joint


def kinds_of(parameters: Sequence[Any], labels: Sequence[str]) -> tuple[Kind, ...]:
    """The kinds of parameters, which must be tensors; `labels` are for messages, for the first of them at least."""
    for i, p in enumerate(parameters):
        if not isinstance(p, torch.Tensor):
            label = labels[i] if i < len(labels) else f"Argument {i}"
            raise NotATensorError(f"{label} must be a torch tensor, got {type(p).__name__}")
    return tuple([Kind(p.shape, p.dtype, p.device, p.layout) for p in parameters])


def have_kinds(parameters: Sequence[Any], kinds: Sequence[Kind]) -> bool:
    """Whether parameters are tensors of these kinds: those of the last call, almost always."""
    if len(parameters) != len(kinds):
        return False
    for p, kind in zip(parameters, kinds, strict=True):
        if not isinstance(p, torch.Tensor) or p.shape != kind.shape or p.dtype is not kind.dtype:
            return False
        if p.device != kind.device or p.layout is not kind.layout:
            return False
    return True


def in_one_dtype(tensors: Sequence[Any]) -> Sequence[Any]:
    """The tensors in their common dtype, promoted as by torch; without any floating-point tensor in torch's default.

    Conversions are differentiable. Whatever cannot be promoted (complex tensors, other objects) is left to the checks.
    """
    dtypes = {t.dtype for t in tensors if isinstance(t, torch.Tensor) and t.numel()}  # qpth's empty blocks do not count
    if not dtypes or (len(dtypes) == 1 and next(iter(dtypes)).is_floating_point):
        return tensors
    common = reduce(torch.promote_types, dtypes)
    if common.is_complex:
        return tensors
    dtype = common if common.is_floating_point else torch.get_default_dtype()
    return [t.to(dtype) if isinstance(t, torch.Tensor) else t for t in tensors]


class Kind(NamedTuple):
    """Everything about a tensor except its values."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout


def check_kinds(
    kinds: Sequence[Kind], labels: Sequence[str], short: Sequence[Any], sparse: Collection[str] = ()
) -> None:
    """Check that tensors of these kinds are floating point, of one dtype, on one device, and dense except for those
    in `sparse`; `labels` are for messages, `short` for lists of all of them."""
    for label, kind in zip(labels, kinds, strict=True):
        if not kind.dtype.is_floating_point:
            raise InputError(f"{label} must have a floating-point dtype, got {kind.dtype}")
        if kind.layout is not torch.strided and label not in sparse:
            raise InputError(f"{label} is a sparse tensor; pass parameter.to_dense()")
    for name in ("dtype", "device"):
        found = [getattr(kind, name) for kind in kinds]
        if len(set(found)) > 1:
            listed = ", ".join(f"{k}: {v}" for k, v in zip(short, found, strict=True))
            raise InputError(f"All parameters must have the same {name}; got {listed}")
    if kinds and kinds[0].device.type == "meta":
        raise InputError("Parameters are meta tensors, which have no values to solve for")
