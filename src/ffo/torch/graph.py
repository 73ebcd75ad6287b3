"""Layers in graphs: a solve and its adjoint as operators of torch, for `torch.compile`, `torch.export` and `make_fx`.

A graph contains tensors and numbers, no Python objects. So the operator `ffo::solve` gets the layer's number, and
returns a token beside the outputs, under which the solve's own autograd graph is kept for `ffo::adjoint`
(`engine.records`). Inside of both operators the layer runs as it does outside of graphs.
"""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ffo.engine.records import GONE, NOTHING, Records
from ffo.errors import DerivativeError, InputError
from ffo.torch.function import Slot, inside_transform

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
#: why a call is not part of a graph
BREAK = (
    "This call of an ffo layer cannot be part of a graph. With torch.compile, omit fullgraph=True: the graph breaks at "
    "the layer, and everything works. Calls of FFOLayer and FFOQPLayer with dense tensors, outside torch.func, and "
    "without solver_args=, keys=, warm_start= and start= can be part of a graph, also of torch.export's and make_fx's; "
    "inside make_fx, gradients are taken by torch.autograd.grad."
)
_FORWARD = (
    "ffo layers have no forward mode inside graphs, which torch.func.linearize needs: use torch.func.jvp, vjp, jacfwd "
    "or jacrev of the model itself, without a tracer around it"
)
_UNKNOWN = (
    "this graph was made for a layer that does not exist in this process, or no longer: graphs name layers by number. "
    "Keep the layer alive, and run the graph in the process that made the layer, or make it again with another layer"
)


class GraphSolve(NamedTuple):
    """A solve, differentiable by autograd: its inputs as leaves, None where there is none, and its outputs."""

    leaves: list[Tensor | None]
    outputs: list[Tensor]


class InGraph(Protocol):
    """A layer that can be part of a graph."""

    @property
    def smooths(self) -> bool:
        """Whether every call has its own random draws."""

    def from_graph(self, tensors: Sequence[Tensor | None]) -> list[Tensor]:
        """The outputs for these tensors, with no other arguments."""

    def shapes_in_graph(self, tensors: Sequence[Tensor | None]) -> list[Tensor]:
        """Tensors of the shapes and kinds of these outputs, without values; the sizes may be symbols."""


_layers: WeakValueDictionary[int, Any] = WeakValueDictionary()
_records: Records[GraphSolve] = Records()


def number(layer: InGraph) -> int:
    """A number for a layer in graphs, which no layer of another process has."""
    found = secrets.randbits(62)
    _layers[found] = layer
    return found


def _layer(handle: int) -> InGraph:
    found = _layers.get(handle)
    if found is None:
        raise InputError(_UNKNOWN)
    return found  # type: ignore[no-any-return]


def solve_in_graph(handle: int, tensors: list[Tensor | None]) -> list[Tensor]:
    """The outputs of a layer, as part of the graph that is being made."""
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    given = [t for t in tensors if t is not None]  # autograd does not look into lists with None
    return torch.ops.ffo.solve(given, [t is not None for t in tensors], handle, keep)[:-1]  # type: ignore[no-any-return]


def fits_into_graphs(tensors: Sequence[Tensor | None]) -> bool:
    """Whether a solve for these tensors can be part of a graph: not if they are sparse, nor inside torch.func."""
    if not torch.compiler.is_compiling() and _have_tangents():
        raise InputError(_FORWARD)
    return not _transformed() and all(t is None or t.layout is torch.strided for t in tensors)


#: evaluated when a graph is made
_transformed: Callable[[], bool] = torch.compiler.assume_constant_result(inside_transform)


def _have_tangents() -> bool:
    return int(torch.autograd.forward_ad._current_level) >= 0


#: how many dispatch modes are active: 0 in ordinary calls, which this keeps fast (0.05 us); torch has no public name
_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)


def traced() -> bool:
    """Whether a tracer records operations of this call: make_fx, torch.func.linearize, FakeTensorMode.

    NumPy is invisible to tracers, so that the solution would be a constant of the graph.
    """
    if not _modes():
        return False
    from torch._guards import detect_fake_mode
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    return get_proxy_mode() is not None or detect_fake_mode([]) is not None


def outside_graphs(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The function, at which torch breaks a graph that is being made, or says why it cannot."""

    @wraps(function)
    def outside(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        # torch.export(strict=False), make_fx
        if traced() or (torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()):
            raise InputError(BREAK)
        return function(*args, **kwargs)

    if "reason" in inspect.signature(torch.compiler.disable).parameters:  # since torch 2.7
        return torch.compiler.disable(outside, reason=BREAK)  # type: ignore[no-any-return]
    return torch.compiler.disable(outside)  # type: ignore[no-any-return]


def _solved(layer: InGraph, tensors: Sequence[Tensor | None]) -> GraphSolve:
    leaves = [None if t is None else t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
    with torch.enable_grad(), _recording():
        return GraphSolve(leaves, layer.from_graph(leaves))


def _recording() -> Any:
    """A context in which autograd records operations, although this runs inside of an operator."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor", "AutogradCPU", "AutogradCUDA"):
        excluded = excluded.remove(getattr(torch._C.DispatchKey, key))
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def _with_absent(given: Sequence[Tensor], present: Sequence[bool]) -> list[Tensor | None]:
    rest = iter(given)
    return [next(rest) if there else None for there in present]


@torch.library.custom_op("ffo::solve", mutates_args=())
def _solve(given: list[Tensor], present: list[bool], layer: int, keep: bool) -> list[Tensor]:
    found, tensors = _layer(layer), _with_absent(given, present)
    token = NOTHING
    if keep:
        solved = _solved(found, tensors)
        held = [slot.record for o in solved.outputs if isinstance(slot := getattr(o.grad_fn, "slot", None), Slot)]
        outputs, token = [o.detach().clone() for o in solved.outputs], _records.keep(solved, held)
    else:
        with torch.no_grad():
            outputs = found.from_graph(tensors)
    return [*outputs, torch.tensor(token.tolist())]


@_solve.register_fake
def _(given: list[Tensor], present: list[bool], layer: int, keep: bool) -> list[Tensor]:
    return [
        *_layer(layer).shapes_in_graph(_with_absent(given, present)),
        torch.empty(2, dtype=torch.int64, device="cpu"),
    ]


@torch.library.custom_op("ffo::adjoint", mutates_args=())
def _adjoint(
    given: list[Tensor],
    present: list[bool],
    token: Tensor,
    gradients: list[Tensor | None],
    wanted: list[bool],
    layer: int,
) -> list[Tensor]:
    solved = _records.find(token.numpy())
    if solved is None:
        found = _layer(layer)
        if found.smooths:
            raise DerivativeError(GONE)
        solved = _solved(found, _with_absent(given, present))
    inputs = [t for t in solved.leaves if t is not None]
    leaves = [t for t, w in zip(inputs, wanted, strict=True) if w]
    pairs = [(o, g) for o, g in zip(solved.outputs, gradients, strict=True) if g is not None]
    outputs, incoming = zip(*pairs, strict=True)
    with _recording():
        found_gradients = torch.autograd.grad(outputs, leaves, incoming, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g.clone() for t, g in zip(leaves, found_gradients, strict=True)]


@_adjoint.register_fake
def _(
    given: list[Tensor],
    present: list[bool],
    token: Tensor,
    gradients: list[Tensor | None],
    wanted: list[bool],
    layer: int,
) -> list[Tensor]:
    return [torch.empty_like(t) for t, w in zip(given, wanted, strict=True) if w]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    given, ctx.present, ctx.layer, _ = inputs
    ctx.save_for_backward(*given, output[-1])


def _backward(ctx: Any, gradients: list[Tensor | None]) -> tuple[Any, ...]:
    *given, token = ctx.saved_tensors
    wanted, incoming = list(ctx.needs_input_grad[0]), list(gradients[:-1])
    if not any(wanted) or all(g is None for g in incoming):
        return [None] * len(wanted), None, None, None
    found = iter(torch.ops.ffo.adjoint(given, ctx.present, token, incoming, wanted, ctx.layer))
    return [next(found) if w else None for w in wanted], None, None, None


_solve.register_autograd(_backward, setup_context=_setup)
