"""The problems of cvxpylayers' example notebooks and of OptNet's models, against solutions by other means.

References use no code of this package: special methods, or Clarabel at its tightest tolerances, and differences of
these; for quadratic programs linear algebra on the active set.
"""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
from benchmarks import notebooks, peers, qp_layers
from benchmarks.accuracy import compare, probes, tight_solution
from benchmarks.notebooks import control, decisions
from benchmarks.problems import Case

from ffo.errors import ZeroGradientWarning
from ffo.torch import FFOLayer

#: largest error of a gradient beyond that of its reference, and largest uncertainty of a reference
ERROR, UNCERTAINTY = 1e-7, 1e-5


def test_there_are_enough_of_them() -> None:
    assert len({build().name for build in notebooks.NOTEBOOKS}) == 21
    assert len({build().name for build in notebooks.MODELS}) == 10


@pytest.mark.parametrize("build", notebooks.NOTEBOOKS, ids=lambda build: build.__name__)
def test_notebook(build: Callable[..., Case]) -> None:
    case = build(2)
    problem, _, _ = case.parametrised()
    assert problem.is_dgp(dpp=True) if case.gp else problem.is_dcp(dpp=True)
    data, step = case.data(0), peers.ffo(case)
    found = step.forward(step.tensors(data)).detach().numpy()
    for k in range(2):
        np.testing.assert_allclose(found[k], tight_solution(case, case.sample(data, k)), atol=1e-6)
    gradient = compare("ffo", peers.ffo, case, probes(case, samples=1, directions=2))
    assert not gradient.reason
    assert gradient.uncertainty < UNCERTAINTY
    assert gradient.error < ERROR + 3 * gradient.uncertainty


@pytest.mark.parametrize("build", notebooks.MODELS, ids=lambda build: build.__name__)
def test_model(build: Callable[..., Case]) -> None:
    case = build(3)
    data, step = case.data(qp_layers.SEED), peers.ffo_qp(case)
    found = step.forward(step.tensors(data)).detach().numpy()
    for k in range(3):
        np.testing.assert_allclose(found[k], tight_solution(case, case.sample(data, k)), atol=1e-6)
    reference = qp_layers.reference_gradients(case, 3)
    assert qp_layers.difference(qp_layers.gradients(peers.ffo_qp, case), reference) < ERROR


def test_the_dual_of_the_risk_budget_is_its_price() -> None:
    """The derivative of the best return in the budget is the multiplier, both as outputs of one layer."""
    case = decisions.batched_portfolio(8)
    problem, parameters, weights = case.parametrised()
    layer = FFOLayer(problem, parameters, [weights, problem.constraints[0].dual_variables[0]])
    data = case.data(0)
    mu, sigma = torch.tensor(data["mu"]), torch.tensor(data["sigma"], requires_grad=True)
    w, price = layer(mu, sigma)
    (slope,) = torch.autograd.grad((mu * w).sum(), sigma)
    torch.testing.assert_close(slope, price.detach().reshape(8), rtol=1e-7, atol=0)
    assert (slope > 0).all()


def test_gradients_through_a_closed_loop() -> None:
    """Ten steps of the policy, as in the notebook one unbatched state per call, against differences."""
    case = control.approximate_dynamic_programming()
    policy, direction = peers.ffo(case), np.random.default_rng(1).standard_normal((3, 1))
    start = case.sample(case.data(3), 0)
    dynamics, inputs = np.array([[1.0, 0.1], [0.0, 1.0]]), np.random.default_rng(2).standard_normal((2, 3)) / 3

    def exact_cost(q: np.ndarray) -> float:
        x, total = start["x"], 0.0
        for _ in range(10):
            u = case.exact({**start, "x": x, "q": q})
            x = dynamics @ x + inputs @ u
            total += float(np.sum(x**2) + np.sum(u**2))
        return total

    q = torch.tensor(start["q"], requires_grad=True)
    x, total = torch.tensor(start["x"]), torch.zeros((), dtype=torch.float64)
    for _ in range(10):
        u = policy.forward({"x": x, "P": torch.tensor(start["P"]), "M": torch.tensor(start["M"]), "q": q})
        x = torch.tensor(dynamics) @ x + torch.tensor(inputs) @ u
        total = total + x.square().sum() + u.square().sum()
    assert total.item() == pytest.approx(exact_cost(start["q"]), rel=1e-9)
    total.backward()
    step = 1e-5
    slope = (exact_cost(start["q"] + step * direction) - exact_cost(start["q"] - step * direction)) / (2 * step)
    assert np.vdot(q.grad.numpy(), direction) == pytest.approx(slope, rel=1e-6)


def test_positive_costs_buy_nothing() -> None:
    """The notebook's linear program: the solution is zero for all costs, and so is the gradient, with a notice."""
    x, c = cp.Variable(5), cp.Parameter(5)
    layer = FFOLayer(cp.Problem(cp.Minimize(c @ x), [np.ones((3, 5)) @ x <= 3, x >= 0]), [c], [x])
    costs = torch.rand(5, dtype=torch.float64).add(0.1).requires_grad_()
    (found,) = layer(costs)
    torch.testing.assert_close(found, torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-9)
    with pytest.warns(ZeroGradientWarning):
        found.sum().backward()
    assert costs.grad.abs().max() < 1e-12
