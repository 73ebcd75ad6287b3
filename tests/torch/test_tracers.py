"""Tracers of tensors (make_fx, linearize, FakeTensorMode) do not see NumPy: a solve is an operator there."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ffo.errors import InputError
from ffo.torch import FFOFunctionLayer, FFOLayer, FFOQPLayer
from ffo.torch.decision import FixedRegion

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning:torch")
D = torch.float64
HERE, THERE = torch.tensor([1.0, 2.0], dtype=D), torch.tensor([10.0, -3.0], dtype=D)
WORDS = "cannot be part of a graph"
Model = Callable[[torch.Tensor], torch.Tensor]


def projection(kind: str) -> tuple[torch.nn.Module, Model]:
    """The layer, and a -> min(a, 5) by it."""
    if kind == "FFOLayer":
        x, b = cp.Variable(2), cp.Parameter(2)
        layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - b)), [x <= 5]), [b], [x])
        return layer, lambda a: layer(a)[0]
    if kind == "FFOQPLayer":
        qp = FFOQPLayer()
        return qp, lambda a: qp(torch.eye(2, dtype=D), -a, ub=torch.full((2,), 5.0, dtype=D))
    function = FFOFunctionLayer(lambda a, y: (y - a).square().sum(), lambda a, y: y - 5, shape=2, dims=(1,))
    return function, function


def slope(model: Model) -> Model:
    def gradient(a: torch.Tensor) -> torch.Tensor:
        at = a.detach().requires_grad_()
        return torch.autograd.grad(model(at).square().sum(), at)[0]

    return gradient


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("kind", ["FFOLayer", "FFOQPLayer"])
def test_traced_models_solve_and_differentiate(kind: str, mode: str) -> None:
    layer, model = projection(kind)  # graphs do not keep the layer alive
    traced, gradient = make_fx(model, tracing_mode=mode)(HERE), make_fx(slope(model), tracing_mode=mode)(HERE)
    torch.testing.assert_close(traced(THERE), THERE.clamp(max=5))
    torch.testing.assert_close(gradient(THERE), slope(model)(THERE))
    at = THERE.clone().requires_grad_()
    traced(at).sum().backward()
    torch.testing.assert_close(at.grad, torch.tensor([0.0, 1.0], dtype=D))
    assert layer.info.ok.all()


@pytest.mark.parametrize("kind", ["FFOLayer", "FFOQPLayer"])
def test_fake_tensors_have_the_shapes_of_outputs_and_gradients(kind: str) -> None:
    _, model = projection(kind)
    with FakeTensorMode():
        a = torch.ones(2, dtype=D, requires_grad=True)
        y = model(a)
        y.sum().backward()
    assert y.shape == a.grad.shape == (2,)


@pytest.mark.parametrize("kind", ["FFOLayer", "FFOQPLayer", "FFOFunctionLayer"])
def test_what_cannot_be_traced_is_refused(kind: str) -> None:
    _, model = projection(kind)
    with pytest.raises(InputError, match=WORDS if kind == "FFOFunctionLayer" else r"torch\.func\.jvp, vjp, jacfwd"):
        torch.func.linearize(model, HERE)
    transformed = [torch.func.grad(lambda a: model(a).sum()), torch.func.jacrev(model)]
    for function, a in [*((f, HERE) for f in transformed), (torch.func.vmap(model), HERE.expand(2, 2))]:
        with pytest.raises(InputError, match=WORDS):
            make_fx(function)(a)
    torch.testing.assert_close(model(THERE).detach(), THERE.clamp(max=5))  # the layer still works


def test_arguments_that_graphs_do_not_have() -> None:
    layer, _ = projection("FFOLayer")
    with pytest.raises(InputError, match=WORDS):
        make_fx(lambda a: layer(a, keys=["a"])[0])(HERE)


def test_functions_are_refused_in_all_tracers() -> None:
    _, model = projection("FFOFunctionLayer")
    with pytest.raises(InputError, match=WORDS):
        make_fx(model)(HERE)
    with FakeTensorMode(), pytest.raises(InputError, match=WORDS):
        model(torch.ones(2, dtype=D))


@pytest.mark.parametrize("boolean", [False, True])
def test_decisions(boolean: bool) -> None:
    x = cp.Variable(2, boolean=boolean)
    region = FixedRegion(x, [cp.sum(x) == 1, x >= 0])
    if boolean:
        with pytest.raises(InputError, match="integers cannot be part of a graph"):
            make_fx(region)(HERE)
        return
    torch.testing.assert_close(make_fx(region)(HERE)(THERE), torch.tensor([0.0, 1.0], dtype=D))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_programs_without_some_blocks_have_gradients(backend: str) -> None:
    """Autograd does not look for tensors in a list that contains None."""
    torch.compiler.reset()
    _, model = projection("FFOQPLayer")
    a = HERE.clone().requires_grad_()
    compiled = torch.compile(lambda a: 2 * model(1.0 * a).square().sum(), backend=backend, fullgraph=True)
    compiled(a).backward()
    torch.testing.assert_close(a.grad, 4 * HERE)
    torch.compiler.reset()


def test_other_modes_are_ordinary_calls() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    layer, model = projection("FFOLayer")
    with FlopCounterMode(display=False):
        torch.testing.assert_close(model(THERE), THERE.clamp(max=5))
    assert layer.info.ok.all()
