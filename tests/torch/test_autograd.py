"""The layer in autograd: no unnecessary work, dtypes, views, repeated backward, copies."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
import weakref

import cvxpy as cp
import numpy as np
import pytest
import torch
import zoo
from layers import gradients, loss_of, make_layer, tensors

import ffo.engine.batch as batch_module
from ffo.program.affine import AffineMap
from ffo.torch import FFOLayer


@pytest.fixture
def case() -> zoo.Case:
    return zoo.build("constrained_least_squares")


@pytest.fixture
def layer(case: zoo.Case) -> FFOLayer:
    return make_layer(case)


class Spy:
    """Counts the calls of a function and keeps their arguments."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.calls: list[tuple] = []
        original = getattr(owner, name)

        def spied(*args: object, **kwargs: object) -> object:
            self.calls.append(args)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, spied)


# No work for what is not requested


@pytest.mark.parametrize("name", zoo.CASES)
def test_outputs_are_the_same_without_gradients(name: str) -> None:
    """With a solver that is not accurate by itself."""
    case = zoo.build(name)
    options = {"solver": "SCS", "solver_args": {"eps": 1e-5}}
    watched = make_layer(case, **options)(*tensors(case.values))
    with torch.no_grad():
        alone = make_layer(case, **options)(*tensors(case.values))
    plain = make_layer(case, **options)(*tensors(case.values, requires_grad=False))
    for x, y, z in zip(watched, alone, plain, strict=True):
        assert not y.requires_grad
        assert not z.requires_grad
        torch.testing.assert_close(y, x.detach(), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(z, x.detach(), rtol=1e-9, atol=1e-9)


def test_inference_mode_reaches_the_outputs(layer: FFOLayer, case: zoo.Case) -> None:
    with torch.inference_mode():
        (x,) = layer(*tensors(case.values))
    assert x.is_inference()
    torch.testing.assert_close(x, layer(*tensors(case.values))[0].detach(), rtol=1e-9, atol=1e-9)


def test_a_backward_costs_one_factorization(layer: FFOLayer, case: zoo.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = Spy(monkeypatch, batch_module, "linearize")
    (x,) = layer(*tensors(case.values))
    assert len(spy.calls) == 1
    x.sum().backward()
    assert len(spy.calls) == 1


@pytest.mark.parametrize("which", [0, 1])
def test_parameters_without_requires_grad_cost_nothing(
    which: int, layer: FFOLayer, case: zoo.Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = gradients(layer, case.values)[which]
    spy = Spy(monkeypatch, AffineMap, "adjoint")
    params = tensors(case.values, requires_grad=False)
    params[which].requires_grad_()
    loss_of(layer(*params)).backward()
    ((_, _, _, wanted),) = spy.calls
    assert [bool(w) for w in wanted] == [i == which for i in range(2)]
    assert params[1 - which].grad is None
    np.testing.assert_allclose(params[which].grad, expected, rtol=1e-12)


def test_unwanted_outputs_have_no_gradient_to_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss in one of three outputs; the others' gradients stay None and are not solved for."""
    case = zoo.build("general_qp")
    layer, params = make_layer(case), tensors(case.values)
    _, below, _ = layer(*params)
    below.sum().backward()
    again = tensors(case.values)
    outputs = layer(*again)
    (outputs[1].sum() + 0.0 * outputs[0].sum()).backward()
    for p, q in zip(params, again, strict=True):
        torch.testing.assert_close(p.grad, q.grad)


# dtypes, devices and views


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtype_is_kept_and_numbers_are_solved_in_double(dtype: torch.dtype, case: zoo.Case, layer: FFOLayer) -> None:
    params = tensors(case.values, dtype=dtype)
    exact = [p.detach().double().requires_grad_() for p in params]
    (x,), (expected,) = layer(*params), layer(*exact)
    assert x.dtype == dtype
    torch.testing.assert_close(x, expected.to(dtype), rtol=0, atol=0)
    x.sum().backward()
    expected.sum().backward()
    for p, e in zip(params, exact, strict=True):
        assert p.grad.dtype == dtype
        torch.testing.assert_close(p.grad, e.grad.to(dtype), rtol=0, atol=0)


def test_default_dtype_does_not_matter(layer: FFOLayer, case: zoo.Case) -> None:
    before = torch.get_default_dtype()
    (expected,) = layer(*tensors(case.values))
    try:
        torch.set_default_dtype(torch.float16)
        (x,) = layer(*tensors(case.values))
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(x, expected)


def test_views_strides_and_non_leaves(layer: FFOLayer, case: zoo.Case) -> None:
    A, b = case.values
    expected = gradients(layer, case.values)
    base_A = torch.tensor(A.T.copy(), requires_grad=True)  # read through a transposed view
    base_b = torch.tensor(np.stack([b, b], axis=1).ravel(), requires_grad=True)  # every other entry
    view = base_b[::2]
    assert not base_A.T.is_contiguous()
    assert not view.is_contiguous()
    loss_of(layer(base_A.T * 1.0, view)).backward()
    np.testing.assert_allclose(base_A.grad.T, expected[0], rtol=1e-10)
    np.testing.assert_allclose(base_b.grad[::2], expected[1], rtol=1e-10)
    assert (base_b.grad[1::2] == 0).all()


def test_expanded_batches(layer: FFOLayer, case: zoo.Case) -> None:
    """expand() makes a batch of zero stride; its gradient is the sum again."""
    expected = gradients(layer, case.values)
    A, b = tensors(case.values)
    loss_of(layer(A.expand(3, *A.shape), b), batched=True).sum().backward()
    for found, one in zip((A.grad, b.grad), expected, strict=True):
        np.testing.assert_allclose(found, 3 * one, rtol=1e-9, atol=1e-18)  # some entries are rounding


def test_inputs_and_outputs_are_not_touched(layer: FFOLayer, case: zoo.Case) -> None:
    params = tensors(case.values)
    (x,) = layer(*params)
    kept = x.detach().clone()
    x.sum().backward()
    with torch.no_grad():
        x.mul_(2.0)  # the caller may change it
    (again,) = layer(*params)
    assert torch.equal(again, kept)
    for p, v in zip(params, case.values, strict=True):
        np.testing.assert_array_equal(p.detach(), v)


def test_a_parameter_changed_in_place_before_backward_is_noticed(case: zoo.Case, layer: FFOLayer) -> None:
    params = tensors(case.values)
    (x,) = layer(*params)
    with torch.no_grad():
        params[0].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        x.sum().backward()


# Repeated, interleaved and concurrent use


def test_repeated_backward_is_identical(layer: FFOLayer, case: zoo.Case) -> None:
    params = tensors(case.values)
    loss = loss_of(layer(*params))
    first = torch.autograd.grad(loss, params, retain_graph=True)
    second = torch.autograd.grad(loss, params, retain_graph=True)
    for f, s in zip(first, second, strict=True):
        assert torch.equal(f, s)


@pytest.mark.parametrize("batch", [(), (3,)], ids=["one sample", "batch"])
def test_gradients_of_two_parameters_are_two_arrays(batch: tuple[int, ...]) -> None:
    """Both enter the costs entry by entry; clipping the gradient of one must not clip the other's."""
    x, a, b = cp.Variable(4), cp.Parameter(4), cp.Parameter(4)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x) + (a + b) @ x), [x >= -1])
    layer = FFOLayer(problem, parameters=[a, b], variables=[x])
    values = [torch.linspace(-0.3, 0.3, 4, dtype=torch.float64).expand(*batch, 4).clone() for _ in range(2)]
    for v in values:
        v.requires_grad_()
    layer(*values)[0].sum().backward()
    first, second = (v.grad for v in values)
    first.zero_()
    torch.testing.assert_close(second, torch.full_like(second, -0.5))


def test_two_forwards_before_backward_do_not_mix(layer: FFOLayer, case: zoo.Case) -> None:
    rng = np.random.default_rng(0)
    one, two = ([v + 0.1 * rng.normal(size=v.shape) for v in case.values] for _ in range(2))
    expected = gradients(layer, one), gradients(layer, two)
    first, second = tensors(one), tensors(two)
    loss_one, loss_two = loss_of(layer(*first)), loss_of(layer(*second))
    loss_one.backward()
    loss_two.backward()
    for params, grads in zip((first, second), expected, strict=True):
        for p, g in zip(params, grads, strict=True):
            np.testing.assert_array_equal(p.grad, g)


def test_a_layer_twice_in_one_graph(layer: FFOLayer, case: zoo.Case) -> None:
    """The output of one call feeds the next."""
    A, b = tensors(case.values)
    (x,) = layer(A, b)
    pad = torch.zeros(2, dtype=torch.float64)
    loss_of(layer(A, torch.cat([x, pad]) + b)).backward()
    step = 1e-6
    d = torch.cos(torch.arange(6, dtype=torch.float64))

    def value(b: torch.Tensor) -> float:
        with torch.no_grad():
            (x,) = layer(A, b, solver_args={"eps": 1e-12})
            return float(loss_of(layer(A, torch.cat([x, pad]) + b, solver_args={"eps": 1e-12})))

    difference = (value(b + step * d) - value(b - step * d)) / (2 * step)
    assert float(b.grad @ d) == pytest.approx(difference, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("warm_start", [False, True])
def test_threads_may_share_a_layer(warm_start: bool, case: zoo.Case) -> None:
    layer = make_layer(case, warm_start=warm_start)
    batches = [case.batch(4, np.random.default_rng(k)) for k in range(4)]
    expected = [gradients_of_batch(make_layer(case), b) for b in batches]
    found: list[object] = [None] * len(batches)

    def work(k: int) -> None:
        for _ in range(5):
            found[k] = gradients_of_batch(layer, batches[k])

    workers = [threading.Thread(target=work, args=(k,)) for k in range(len(batches))]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    for f, e in zip(found, expected, strict=True):
        for g, h in zip(f, e, strict=True):
            np.testing.assert_allclose(g, h, rtol=1e-7, atol=1e-9)


def gradients_of_batch(layer: FFOLayer, values: list[np.ndarray]) -> list[np.ndarray]:
    params = tensors(values)
    loss_of(layer(*params), batched=True).sum().backward()
    return [p.grad.numpy() for p in params]


def test_a_graph_that_is_dropped_frees_its_factors(layer: FFOLayer, case: zoo.Case) -> None:
    (x,) = layer(*tensors(case.values))
    record = weakref.ref(x.grad_fn.slot.record.outcome)
    layer._last = None
    del x
    gc.collect()
    assert record() is None


# Copies


def _saved(layer: FFOLayer) -> FFOLayer:
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("name", ["constrained_least_squares", "box_volume", "smallest_eigenvalue"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer)), _saved],
    ids=["copy", "deepcopy", "pickle", "torch.save"],
)
def test_copies_give_the_same_gradients(copied: object, when: str, name: str) -> None:
    case = zoo.build(name)
    layer = make_layer(case, warm_start=True, on_fail="nan", backward="direct")
    if when == "after":
        gradients(layer, case.values)
    other = copied(layer)
    assert other.engine.options == layer.engine.options
    for f, e in zip(gradients(other, case.values), gradients(layer, case.values), strict=True):
        np.testing.assert_allclose(f, e, rtol=1e-8, atol=1e-10)


def test_a_copy_has_memory_of_its_own(case: zoo.Case) -> None:
    layer = make_layer(case, warm_start=True)
    layer(*tensors(case.values))
    other = copy.deepcopy(layer)
    other(*tensors(case.values))
    assert other.info.warm_hits == 0
    layer(*tensors(case.values))
    assert layer.info.warm_hits == 1


def test_a_layer_in_a_model(case: zoo.Case, layer: FFOLayer) -> None:
    """No parameters or buffers of its own: state dicts, .to() and .train() pass through it."""

    class Model(torch.nn.Module):
        def __init__(self, layer: FFOLayer) -> None:
            super().__init__()
            self.net = torch.nn.Linear(3, 6)
            self.layer = layer

        def forward(self, A: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
            return self.layer(A, self.net(z))[0]

    model, other = Model(layer), Model(make_layer(case))
    assert list(model.state_dict()) == ["net.weight", "net.bias"]
    other.load_state_dict(model.state_dict())
    assert list(layer.parameters()) == []
    A = torch.tensor(case.values[0])
    z = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model.double().eval(), other.double().train()
    torch.testing.assert_close(model(A, z), other(A, z))
    assert "solver=auto" in repr(model)


def test_a_problem_without_parameters() -> None:
    import cvxpy as cp

    x = cp.Variable(2)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - np.array([1.0, -2.0]))), [x >= 0]), [], [x])
    (value,) = layer()
    torch.testing.assert_close(value, torch.tensor([1.0, 0.0]), atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # of forward mode
def test_gradcheck(case: zoo.Case) -> None:
    """PyTorch's own judge, forward mode included."""
    layer = make_layer(case, solver_args={"eps": 1e-11})
    assert torch.autograd.gradcheck(layer, tensors(case.values), check_forward_ad=True, atol=1e-5)
