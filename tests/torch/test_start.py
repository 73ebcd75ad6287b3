"""A user's own initial guess (`start=`): a good one saves the solver, a bad one does no harm."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
import zoo
from layers import loss_of, make_layer, tensors
from qps import same as same_qp

from ffo.errors import InputError
from ffo.torch import FFOLayer, FFOQPLayer, QPSolution, Smoothing, qp

SIZE = 4
#: auxiliary variables of power atoms are nested in equalities, which a guess does not resolve
UNRESOLVED = {"power_penalty", "three_norm"}
Found = tuple[list[torch.Tensor], list[torch.Tensor]]


def answers(layer: FFOLayer, values: list[np.ndarray], **call: object) -> Found:
    params = tensors(values)
    outputs = layer(*params, **call)
    loss_of(outputs, batched=True).sum().backward()
    return [o.detach() for o in outputs], [p.grad for p in params]


def same(found: Found, expected: Found) -> None:
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", zoo.CASES)
def test_the_solution_of_a_nearby_problem_saves_the_solver(name: str) -> None:
    case = zoo.build(name)
    layer, values = make_layer(case), case.batch(SIZE, np.random.default_rng(0))
    guess = [o.float() for o in answers(layer, values)[0]]
    moved = [v * (1 + 1e-4) for v in values]
    expected = answers(layer, moved)
    same(answers(layer, moved, start=guess), expected)
    assert layer.info.warm_hits == SIZE or name in UNRESOLVED


@pytest.mark.parametrize("name", ["general_qp", "huber_regression", "smallest_eigenvalue", "softmax", "power_duals"])
def test_a_wrong_guess_changes_nothing(name: str) -> None:
    case = zoo.build(name)
    rng = np.random.default_rng(0)
    layer, values = make_layer(case), case.batch(SIZE, rng)
    expected = answers(layer, values)
    for scale in (0.0, 1.0, 1e8):
        guess = [torch.tensor(scale * rng.standard_normal(o.shape)) for o in expected[0]]
        same(answers(layer, values, start=guess), expected)


def test_a_guess_may_be_shared_partial_or_missing_for_some_samples() -> None:
    case = zoo.build("general_qp")
    layer, values = (
        make_layer(case, solver="SCS", solver_args={"eps": 1e-8}),
        case.batch(SIZE, np.random.default_rng(0)),
    )
    outputs, _ = answers(layer, values)
    layer(*tensors(values), start=[outputs[0], None, None])
    assert layer.info.solver == ("",) * SIZE
    some = outputs[0].clone()
    some[1] = torch.nan
    layer(*tensors(values), start=[some, None, None])
    assert layer.info.solver == ("", "SCS", "", "")
    layer(*tensors([v[:1].repeat(SIZE, 0) for v in values]), start=[o[0] for o in outputs])  # one for all samples
    assert layer.info.warm_hits == SIZE
    layer(*tensors(values), start=[None, None, None])
    assert layer.info.warm_hits == 0


def test_one_variable_needs_no_list_and_no_gradient_flows_into_a_guess() -> None:
    case = zoo.build("constrained_least_squares")
    layer = make_layer(case)
    (x,) = layer(*tensors(case.values))
    guess = x.detach().requires_grad_()
    (again,) = layer(*tensors(case.values), start=guess)
    assert layer.info.warm_hits == 1
    again.sum().backward()
    assert guess.grad is None


def test_the_answer_to_a_guess_is_remembered_and_goes_before_what_is_remembered() -> None:
    case = zoo.build("constrained_least_squares")
    layer, values = make_layer(case), case.batch(SIZE, np.random.default_rng(0))
    outputs, _ = answers(make_layer(case), values)
    some = outputs[0].clone()
    some[2:] = torch.nan
    layer(*tensors(values), start=some, keys=[7, 8, 9, 10])
    assert layer.info.warm_hits == 2
    order = [3, 0, 1, 2]
    layer(*tensors([v[order] for v in values]), start=some[order], keys=[10, 7, 8, 9])
    assert layer.info.warm_hits == SIZE


def test_maxima_of_minima_and_nested_expressions_are_resolved() -> None:
    x, a, b = cp.Variable(5), cp.Parameter(5), cp.Parameter(5)
    nested = cp.pos(cp.norm1(x - a) - 0.3) + cp.sum(cp.pos(x - b))
    problem = cp.Problem(cp.Maximize(cp.min(x + a) - nested - 0.1 * cp.sum_squares(x)), [cp.norm(x, 2) <= 2])
    layer = FFOLayer(problem, [a, b], [x])
    values = [torch.randn(SIZE, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(k)) for k in (0, 1)]
    (expected,) = layer(*values)
    (found,) = layer(*values, start=expected)
    assert layer.info.warm_hits == SIZE
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


def test_every_draw_of_a_smoothed_layer_starts_from_the_guess() -> None:
    case = zoo.build("constrained_least_squares")
    (x,) = make_layer(case)(*tensors(case.values))
    layers = [make_layer(case, smoothing=Smoothing(1e-4, draws=3)) for _ in range(2)]
    (expected,), (found,) = layers[0](*tensors(case.values)), layers[1](*tensors(case.values), start=x)
    assert layers[1].info.warm_hits == 3
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ([torch.zeros(4), torch.zeros(4)], r"one guess per output: got 2, expected 1"),
        (torch.zeros(5), r"guess 0 in start= must have the shape \(4,\) or \(2, 4\), got \(5,\)"),
        (torch.zeros(3, 4), r"must have the shape \(4,\) or \(2, 4\), got \(3, 4\)"),
        ([np.zeros(4)], r"start= takes torch tensors shaped like the outputs, got ndarray"),
    ],
)
def test_bad_guesses_are_refused(start: object, message: str) -> None:
    case = zoo.build("constrained_least_squares")
    with pytest.raises(InputError, match=message):
        make_layer(case)(*tensors(case.batch(2, np.random.default_rng(0))), start=start)


def test_vmap_refuses_a_guess() -> None:
    case = zoo.build("constrained_least_squares")
    layer, values = make_layer(case), tensors(case.batch(2, np.random.default_rng(0)), requires_grad=False)
    for start in (lambda A: A[0], lambda A: torch.zeros(4)):
        with pytest.raises(InputError, match="pass a batch instead"):
            torch.func.vmap(lambda A, b, start=start: layer(A, b, start=start(A))[0])(*values)


def program(seed: int = 0, batch: int = SIZE, n: int = 12) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    normal = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
    M, G, A = normal(batch, n, n), normal(batch, 6, n), normal(2, n)
    return {
        "Q": M @ M.mT / n + 0.1 * torch.eye(n, dtype=torch.float64),
        "p": 2 * normal(batch, n),
        "G": G,
        "h": torch.full((6,), 0.5, dtype=torch.float64),
        "lower": torch.full((6,), -0.5, dtype=torch.float64),
        "A": A,
        "b": torch.zeros(2, dtype=torch.float64),
        "lb": torch.full((n,), -0.6, dtype=torch.float64),
        "ub": torch.full((n,), 0.6, dtype=torch.float64),
    }


@pytest.mark.parametrize("device", [False, True], ids=["core", "device"])
@pytest.mark.parametrize("duals", [False, True])
def test_quadratic_programs(monkeypatch: pytest.MonkeyPatch, device: bool, duals: bool) -> None:
    if device:  # CPU tensors are treated like device tensors
        monkeypatch.setattr(qp, "worthwhile", lambda given: True)
    blocks = program()
    solution = FFOQPLayer(duals=True)(**blocks)
    layer = FFOQPLayer(duals=duals)
    blocks["p"] = (blocks["p"] * (1 + 1e-5)).requires_grad_()
    cold = FFOQPLayer(duals=duals)(**blocks)
    for start in (solution, solution.z, solution.z[0]):
        found = layer(**blocks, start=start)
        same_qp(found if duals else (found,), cold if duals else (cold,))
        if start.ndim == 2 if isinstance(start, torch.Tensor) else True:
            assert layer.info.warm_hits == SIZE
    (expected,) = torch.autograd.grad((cold.z if duals else cold).square().sum(), [blocks["p"]])
    (gradient,) = torch.autograd.grad((found.z if duals else found).square().sum(), [blocks["p"]])
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-9)
    with pytest.raises(InputError, match=r"start= must be z of shape \(12,\) or \(batch, 12\)"):
        layer(**blocks, start=torch.zeros(3))
    with pytest.raises(InputError, match="got NoneType"):
        layer(**blocks, start=QPSolution(None, None, None, None))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["general_qp", "huber_regression", "smallest_eigenvalue", "softmax", "power_duals"])
def test_a_guess_that_is_nowhere_finite_is_ignored(name: str, bad: float) -> None:
    """Such as the outputs of a call in which every sample failed."""
    case = zoo.build(name)
    layer, values = make_layer(case), case.batch(SIZE, np.random.default_rng(0))
    expected = answers(layer, values)
    same(answers(layer, values, start=[torch.full_like(o, bad) for o in expected[0]]), expected)
