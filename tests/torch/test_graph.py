"""Layers in graphs: torch.compile and torch.export contain the solve, or say in words why they cannot."""

from __future__ import annotations

import copy
import gc
import io
import subprocess
import sys
from collections.abc import Callable, Iterator

import cvxpy as cp
import numpy as np
import pytest
import torch
import zoo
from layers import make_layer, tensors
from qps import around, call, gradients, known_qp, loss_of
from qps import tensors as qp_tensors

from ffo.engine import records
from ffo.errors import DerivativeError, InfeasibleError, InputError
from ffo.torch import FFOFunctionLayer, FFOLayer, FFOQPLayer, Smoothing

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning:torch", "ignore::FutureWarning:torch"
)
WORDS = "This call of an ffo layer cannot be part of a graph"
BACKENDS = ["eager", "aot_eager"]
NAMES = ["constrained_least_squares", "general_qp", "smallest_eigenvalue", "box_volume"]


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def whole(model: Callable[..., object], backend: str = "aot_eager", **options: object) -> Callable[..., object]:
    return torch.compile(model, backend=backend, fullgraph=True, **options)


def weighted(outputs: object) -> torch.Tensor:
    return sum((torch.linspace(1, 2, o.numel(), dtype=o.dtype).reshape(o.shape) * o).sum() for o in outputs)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_model_is_one_graph(name: str, backend: str) -> None:
    case = zoo.build(name)
    layer, values = make_layer(case), case.batch(3, np.random.default_rng(0))

    def model(*params: torch.Tensor) -> torch.Tensor:
        return 2 * weighted(layer(*[1.0 * p for p in params]))

    plain, compiled = tensors(values), tensors(values)
    expected, found = model(*plain), whole(model, backend)(*compiled)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    expected.backward()
    found.backward()
    for p, c in zip(plain, compiled, strict=True):
        torch.testing.assert_close(c.grad, p.grad, rtol=0, atol=0)
    assert layer.info.certificate.good.all()


def test_inductor_and_a_batch_of_another_size() -> None:
    case = zoo.build("constrained_least_squares")
    layer = make_layer(case)
    compiled = whole(lambda *params: layer(*params)[0] + 1, "inductor", dynamic=True)
    for batch in (3, 5):
        values = tensors(case.batch(batch, np.random.default_rng(batch)), requires_grad=False)
        torch.testing.assert_close(compiled(*values), layer(*values)[0] + 1)


@pytest.mark.parametrize("duals", [False, True])
def test_quadratic_programs(duals: bool) -> None:
    layer, blocks = FFOQPLayer(duals=duals), around(known_qp(4, lower=True, bounds=True), 3)
    _, expected = gradients(layer, blocks)

    def model(*values: torch.Tensor) -> torch.Tensor:
        return 2.0 * loss_of(call(layer, {name: 1.0 * v for name, v in zip(blocks, values, strict=True)}))

    params = qp_tensors(blocks)
    whole(model)(*params.values()).backward()
    for name, p in params.items():
        torch.testing.assert_close(p.grad, 2.0 * torch.from_numpy(expected[name]), msg=name)


def test_parameters_and_integers_that_need_no_gradient() -> None:
    case = zoo.build("constrained_least_squares")
    layer, A = make_layer(case), torch.tensor(case.values[0], requires_grad=True)
    counts = torch.arange(6)
    (expected,) = torch.autograd.grad(layer(A, counts)[0].sum(), [A])
    (found,) = torch.autograd.grad(whole(lambda A, b: layer(A, b)[0].sum())(A, counts), [A])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    with torch.no_grad():
        assert whole(lambda A, b: layer(A.float(), b)[0])(A, counts).dtype == torch.float32


def test_expressions_of_parameters_are_differentiated() -> None:
    x, a = cp.Variable(3), cp.Parameter(3)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - cp.exp(a))), [x <= a @ a]), [a], [x])
    value = torch.tensor([0.1, -0.3, 0.7], requires_grad=True)
    (expected,) = torch.autograd.grad(layer(value)[0].sum(), [value])
    (found,) = torch.autograd.grad(whole(lambda a: layer(a)[0].sum())(value), [value])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs_solve(strict: bool) -> None:
    case = zoo.build("constrained_least_squares")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = make_layer(case)

        def forward(self, A: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return self.layer(A, b)[0] + 1

    model, (A, b) = Model(), tensors(case.batch(3, np.random.default_rng(0)), requires_grad=False)
    sizes = {"A": {0: torch.export.Dim("batch")}, "b": {0: torch.export.Dim("batch")}}
    program = torch.export.export(model, (A, b), dynamic_shapes=sizes, strict=strict).module()
    for count in (3, 2):
        torch.testing.assert_close(program(A[:count], b[:count]), model(A[:count], b[:count]), rtol=0, atol=0)
    del model
    gc.collect()
    with pytest.raises(InputError, match="a layer that does not exist in this process, or no longer"):
        program(A, b)


def test_an_exported_program_says_that_its_layer_is_in_another_process() -> None:
    layer = FFOQPLayer()

    class Model(torch.nn.Module):
        def forward(self, p: torch.Tensor) -> torch.Tensor:
            return layer(None, p, lb=torch.zeros(2), ub=torch.ones(2))

    buffer = io.BytesIO()
    torch.export.save(torch.export.export(Model(), (torch.ones(2),)), buffer)
    code = (
        "import io, sys, torch, ffo.torch\n"
        "program = torch.export.load(io.BytesIO(sys.stdin.buffer.read())).module()\n"
        "try: program(torch.ones(2))\n"
        "except ffo.errors.InputError as error: print(error)"
    )
    found = subprocess.run([sys.executable, "-c", code], input=buffer.getvalue(), capture_output=True, check=True)
    assert b"does not exist in this process" in found.stdout


def test_a_copy_is_another_layer_in_graphs() -> None:
    case = zoo.build("constrained_least_squares")
    layer, values = make_layer(case), tensors(case.values, requires_grad=False)
    for other in (copy.copy(layer), copy.deepcopy(layer), layer.smoothed(Smoothing(1e-3, draws=2))):
        found = whole(lambda *v, other=other: other(*v)[0])(*values)
        assert len(other.info.status) == (2 if other.smooths else 1)
        torch.testing.assert_close(found, layer(*values)[0], rtol=0, atol=0 if not other.smooths else 0.1)
        torch.compiler.reset()


@pytest.mark.parametrize("smoothed", [False, True])
def test_a_record_that_is_gone_is_computed_again(monkeypatch: pytest.MonkeyPatch, smoothed: bool) -> None:
    monkeypatch.setattr(records, "FEWEST", 1)
    monkeypatch.setattr(records, "MOST", 1)
    case = zoo.build("constrained_least_squares")
    layer = make_layer(case, smoothing=Smoothing(0.1, draws=2) if smoothed else None)
    model = whole(lambda *v: layer(*v)[0].sum())
    params = tensors(case.values)
    first = model(*params)
    model(*params)
    if smoothed:
        with pytest.raises(DerivativeError, match="draws of this smoothed call are gone"):
            first.backward()
        return
    first.backward()
    expected = tensors(case.values)
    layer(*expected)[0].sum().backward()
    for p, e in zip(params, expected, strict=True):
        torch.testing.assert_close(p.grad, e.grad)


def test_failures_inside_a_graph_are_those_of_the_layer() -> None:
    x, b = cp.Variable(2), cp.Parameter()
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x)), [x >= 1, cp.sum(x) <= b]), [b], [x])
    model = whole(lambda b: layer(b)[0])
    model(torch.tensor([3.0, 4.0]))
    with pytest.raises(InfeasibleError, match="sample 1"):
        model(torch.tensor([3.0, 1.0]))


REFUSED = {
    "settings": lambda layer, p: layer(None, p, lb=-p.abs(), ub=p.abs(), solver_args={"eps": 1e-9}),
    "keys": lambda layer, p: layer(None, p, lb=-p.abs(), ub=p.abs(), keys=[1, 2]),
    "warm_start": lambda layer, p: layer(None, p, lb=-p.abs(), ub=p.abs(), warm_start=True),
    "start": lambda layer, p: layer(None, p, lb=-p.abs(), ub=p.abs(), start=p),
    "vmap": lambda layer, p: torch.func.vmap(lambda v: layer(None, v, lb=-v.abs(), ub=v.abs()))(p),
    "grad": lambda layer, p: torch.func.grad(lambda v: layer(torch.eye(3), v).sum())(p),
}


@pytest.mark.parametrize("how", REFUSED)
def test_other_calls_break_the_graph_and_say_so_where_it_must_be_whole(how: str) -> None:
    layer, p = FFOQPLayer(), torch.tensor([[1.0, -2.0, 3.0], [0.5, 1.5, -2.0]])

    def model(p: torch.Tensor) -> torch.Tensor:
        return REFUSED[how](layer, p) + 1

    with pytest.raises(Exception, match=WORDS):
        whole(model, "eager")(p)
    torch.compiler.reset()
    if how != "grad":  # torch itself fails on a broken graph inside torch.func.grad
        torch.testing.assert_close(torch.compile(model, backend="eager")(p), model(p))


def test_function_layers_break_the_graph_and_say_so() -> None:
    layer = FFOFunctionLayer(lambda a, y: (y - a).square().sum(), lambda a, y: -y, shape=3, dims=(1,))
    a = torch.tensor([[1.0, -2.0, 3.0]])
    with pytest.raises(Exception, match=WORDS):
        whole(lambda a: layer(a) + 1, "eager")(a)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(lambda a: layer(a) + 1, backend="eager")(a), layer(a) + 1)
    with pytest.raises(Exception, match="cannot be part of a graph"):
        torch.export.export(_Exported(layer), (a,), strict=True)


class _Exported(torch.nn.Module):
    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return self.layer(a)


def test_a_failed_export_leaves_nothing_behind() -> None:
    """Tensors without values are not remembered for the next call of the same shape."""
    layer, blocks = FFOQPLayer(), around(known_qp(3, n=6, rows=13, equalities=0), 3)

    class Model(torch.nn.Module):
        def forward(self, *values: torch.Tensor) -> object:
            return layer(**dict(zip(blocks, values, strict=True)), solver_args={"eps": 1e-9})

    with pytest.raises(Exception, match="cannot be part of a graph"):
        torch.export.export(Model(), tuple(qp_tensors(blocks, requires_grad=False).values()), strict=False)
    own, _ = gradients(layer, blocks)
    core, _ = gradients(FFOQPLayer(solver_args={"eps": 1e-10}), blocks)
    torch.testing.assert_close(own, core, rtol=1e-7, atol=1e-8)


def test_empty_blocks_of_qpth() -> None:
    layer, p = FFOQPLayer(duals=True), torch.tensor([1.0, -2.0])
    found = whole(lambda p: tuple(layer(torch.eye(2), p, torch.Tensor(), torch.Tensor())), "eager")(p)
    for f, e in zip(found, layer(torch.eye(2), p), strict=True):
        torch.testing.assert_close(f, e)
