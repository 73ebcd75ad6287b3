"""Every kind of problem: solutions are CVXPY's, gradients are those of finite differences."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
import zoo
from layers import finite_difference, gradients, loss_of, make_layer, relative_error, tensors

WAYS = ["direct", "iterative", "resolve"]


@pytest.mark.parametrize("name", zoo.CASES)
def test_solution_is_that_of_cvxpy(name: str) -> None:
    case = zoo.build(name)
    layer = make_layer(case)
    expected = case.solve_with_cvxpy()
    for derivative in (True, False):
        outputs = layer(*tensors(case.values, requires_grad=derivative))
        assert len(outputs) == len(case.variables)
        for out, value, variable in zip(outputs, expected, case.variables, strict=True):
            assert out.shape == variable.shape
            assert out.requires_grad == derivative
            # without a derivative nothing is polished, and curved cones are good to about sqrt(eps)
            np.testing.assert_allclose(out.detach().numpy(), value, atol=5e-6 if derivative else 2e-4)


@pytest.mark.parametrize("name", zoo.CASES)
def test_gradient_is_that_of_finite_differences(name: str) -> None:
    case = zoo.build(name)
    directions = case.directions(np.random.default_rng(1))
    found = gradients(make_layer(case), case.values)
    along = np.array([(g * d).sum() for g, d in zip(found, directions, strict=True)])
    assert relative_error(along, finite_difference(case, case.values, directions)) < 1e-6


@pytest.mark.parametrize("name", zoo.CASES)
def test_a_batch_is_its_samples(name: str) -> None:
    """Values and gradients of a batch are those of one call per sample."""
    case, size = zoo.build(name), 3
    layer = make_layer(case)
    values = case.batch(size, np.random.default_rng(2))
    params = tensors(values)
    outputs = layer(*params)
    loss_of(outputs, batched=True).sum().backward()
    for k in range(size):
        alone = tensors([v[k] for v in values])
        single = layer(*alone)
        loss_of(single).backward()
        for out, one, variable in zip(outputs, single, case.variables, strict=True):
            assert out.shape == (size, *variable.shape)
            torch.testing.assert_close(out[k], one, rtol=1e-8, atol=1e-8)
        for p, one in zip(params, alone, strict=True):
            torch.testing.assert_close(p.grad[k], one.grad, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", zoo.CASES)
def test_unbatched_gradients_are_sums(name: str) -> None:
    """Each parameter in turn is the only batched one; the others are shared by three samples."""
    case, size = zoo.build(name), 3
    layer = make_layer(case)
    around = case.batch(size, np.random.default_rng(3))
    for i in range(len(case.values)):
        mixed = tensors([a if i == j else v for j, (a, v) in enumerate(zip(around, case.values, strict=True))])
        full = tensors(
            [a if i == j else np.stack([v] * size) for j, (a, v) in enumerate(zip(around, case.values, strict=True))]
        )
        for params in (mixed, full):
            loss_of(layer(*params), batched=True).sum().backward()
        for j, (shared, each) in enumerate(zip(mixed, full, strict=True)):
            expected = each.grad if i == j else each.grad.sum(0)
            torch.testing.assert_close(shared.grad, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", zoo.CASES)
def test_ways_agree(name: str, way: str) -> None:
    case = zoo.build(name)
    expected = gradients(make_layer(case), case.values)
    found = gradients(make_layer(case, backward=way), case.values)
    accuracy = 1e-5 if way == "resolve" else 1e-6  # a black box is as good as its eps
    for f, e in zip(found, expected, strict=True):
        assert relative_error(f, e) < accuracy


@pytest.mark.parametrize("name", zoo.tagged("peer"))
@pytest.mark.filterwarnings("ignore")  # issued by cvxpylayers
def test_agrees_with_cvxpylayers(name: str) -> None:
    if importlib.util.find_spec("cvxpylayers") is None:
        pytest.skip("cvxpylayers is not installed")
    from cvxpylayers.torch import CvxpyLayer

    case = zoo.build(name)
    peer = CvxpyLayer(case.problem, case.parameters, case.variables, gp=case.gp)
    ours, theirs = tensors(case.values), tensors(case.values)
    outputs = make_layer(case)(*ours)
    expected = peer(*theirs)
    for out, value in zip(outputs, expected, strict=True):
        torch.testing.assert_close(out, value, rtol=0, atol=1e-4)
    loss_of(outputs).backward()
    loss_of(expected).backward()
    for p, mine, other in zip(case.parameters, ours, theirs, strict=True):
        symmetric = p.is_symmetric() and mine.ndim == 2  # cvxpylayers reads one triangle, this package both
        value = (other.grad + other.grad.T) / 2 if symmetric else other.grad
        torch.testing.assert_close(mine.grad, value, rtol=1e-2, atol=5e-3)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("relu", torch.relu),
        ("sigmoid", torch.sigmoid),
        ("softmax", lambda x: torch.softmax(x, 0)),
    ],
)
def test_closed_forms(name: str, formula: object) -> None:
    case = zoo.build(name)
    (x,), (y,) = tensors(case.values), tensors(case.values)
    (found,), expected = make_layer(case)(x), formula(y)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    loss_of([found]).backward()
    loss_of([expected]).backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-8, atol=1e-9)


def test_a_layer_shared_by_two_problems_adds_gradients() -> None:
    """One tensor through two layers: autograd adds their gradients."""
    case, other = zoo.build("least_squares"), zoo.build("constrained_least_squares")
    first, second = make_layer(case), make_layer(other)
    A = torch.tensor(other.values[0], requires_grad=True)
    b = torch.tensor(other.values[1])
    long = torch.cat([A, A])[:8]
    total = loss_of(second(A, b)) + loss_of(first(long, torch.tensor(case.values[1])))
    (joint,) = torch.autograd.grad(total, A)
    (one,) = torch.autograd.grad(loss_of(second(A, b)), A)
    (two,) = torch.autograd.grad(loss_of(first(torch.cat([A, A])[:8], torch.tensor(case.values[1]))), A)
    torch.testing.assert_close(joint, one + two)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0)])
def test_parameters_come_in_any_order(order: tuple[int, ...]) -> None:
    case = zoo.build("box_volume")
    expected = make_layer(case)(*tensors(case.values))
    moved = zoo.Case(case.problem, [case.parameters[i] for i in order], case.variables, [], gp=True)
    found = make_layer(moved)(*tensors([case.values[i] for i in order]))
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e)


@pytest.mark.parametrize("order", [2, 3, 4, 6, 10])
def test_semidefinite_gradients_of_every_order(order: int) -> None:
    """Random SDPs, the default settings; other packages fail from order 4 on."""
    import cvxpy as cp

    rng = np.random.default_rng(order)
    X, C = cp.Variable((order, order), symmetric=True), cp.Parameter((order, order), symmetric=True)
    a = rng.normal(size=(2, order, order))
    rows = [cp.trace((M + M.T) @ X) == float(np.trace(M + M.T)) for M in a]
    problem = cp.Problem(cp.Minimize(cp.trace(C @ X)), [X >> 0, cp.trace(X) == order, *rows])
    C_v = rng.normal(size=(order, order))
    case = zoo.Case(problem, [C], [X], [C_v + C_v.T])
    directions = case.directions(rng)
    found = gradients(make_layer(case), case.values)
    along = np.array([(found[0] * directions[0]).sum()])
    assert relative_error(along, finite_difference(case, case.values, directions, step=1e-5)) < 1e-5
