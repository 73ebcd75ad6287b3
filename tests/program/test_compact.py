"""Auxiliary variables that are eliminated once: answers and gradients are the same, and what users see stays."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo.errors import InputError, SolverError
from ffo.program.cvxpy import canonicalize
from ffo.torch import FFOLayer, Relax

Array = np.ndarray
N, R = 4, 6
F = np.random.default_rng(0).normal(size=(R, N))


def fitted(p: cp.Parameter) -> tuple[cp.Problem, list[cp.Variable]]:
    """|Fx - p|^2 on the simplex, with the dual of its equality."""
    x = cp.Variable(N, name="x")
    total = cp.sum(x) == 1
    problem = cp.Problem(cp.Minimize(cp.sum_squares(F @ x - p) + 0.1 * cp.sum(x)), [total, x >= 0])
    return problem, [x, total.dual_variables[0]]


def tracked(p: cp.Parameter) -> tuple[cp.Problem, list[cp.Variable]]:
    """A user's own definition of the residuals, beside CVXPY's."""
    x, r = cp.Variable(N, name="x"), cp.Variable(R, name="r")
    cost = cp.sum_squares(r) + cp.sum_squares(cp.multiply(0.5, x[:2] - p[:2])) + cp.norm1(x)
    return cp.Problem(cp.Minimize(cost), [r == F @ x - p, x <= 0.3]), [x, r]


def scaled(p: cp.Parameter) -> tuple[cp.Problem, list[cp.Variable]]:
    """A parameter in the matrix of other rows, and in the linear cost."""
    x = cp.Variable(N, name="x")
    cost = cp.sum_squares(F @ x - 1.0) + p[:N] @ x
    return cp.Problem(cp.Minimize(cost), [cp.multiply(1.0 + p[2:], x) <= 0.2, x >= -1]), [x]


problems = pytest.mark.parametrize("formulate", [fitted, tracked, scaled])
Formulate = Callable[[cp.Parameter], tuple[cp.Problem, list[cp.Variable]]]


@problems
def test_answers_and_gradients_are_those_of_the_whole_program(formulate: Formulate) -> None:
    p = cp.Parameter(R)
    problem, variables = formulate(p)
    layer = FFOLayer(problem, [p], variables)
    whole = FFOLayer(problem, [p], variables)
    compact = layer.canonical.compact
    assert compact.map.P.shape[0] < layer.canonical.map.P.shape[0]
    vars(whole.canonical)["compact"] = whole.canonical
    found = []
    for each in (layer, whole):
        given = torch.tensor(np.random.default_rng(1).uniform(0.1, 1.0, (3, R)), requires_grad=True)
        outputs = each(given)
        loss = sum((out * torch.arange(1.0, 1.0 + out[0].numel()).reshape(out[0].shape)).sum() for out in outputs)
        found.append([*outputs, *torch.autograd.grad(loss, given)])
        assert each.info.certificate.all_good
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


def test_what_users_see_stays() -> None:
    p = cp.Parameter(R)
    problem, variables = tracked(p)
    canonical = canonicalize(problem, [p], variables)
    compact = canonical.compact
    assert compact.compact is compact
    assert [c.name for c in canonical.names.constraints] == [c.name for c in compact.names.constraints]
    rows, columns = compact.names.rows(), np.concatenate([v.places.ravel() for v in compact.names.variables])
    assert len(rows) == len(canonical.names.rows())
    assert len(np.unique(columns)) == N + R
    assert rows.max() < compact.map.A.shape[0]
    assert columns.max() < compact.map.P.shape[0]


def test_problems_without_auxiliary_variables_are_unchanged() -> None:
    x, p = cp.Variable(N), cp.Parameter(N)
    canonical = canonicalize(cp.Problem(cp.Minimize(p @ x), [x >= 0, x <= 1]), [p], [x])
    assert canonical.compact is canonical


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_bad_parameters_are_named(value: float) -> None:
    p = cp.Parameter(R, name="target")
    problem, variables = fitted(p)
    given = torch.ones(R, dtype=torch.float64)
    given[2] = value
    with pytest.raises((SolverError, InputError), match="target"):
        FFOLayer(problem, [p], variables)(given)


def test_parameters_that_cancel_are_still_checked() -> None:
    x, p = cp.Variable(N), cp.Parameter(N, name="centre")
    cost = cp.sum_squares(x - p) + cp.sum_squares(x + p)
    layer = FFOLayer(cp.Problem(cp.Minimize(cost), [x >= 1]), [p], [x])
    torch.testing.assert_close(layer(torch.ones(N, dtype=torch.float64))[0], torch.ones(N, dtype=torch.float64))
    with pytest.raises((SolverError, InputError), match="centre"):
        layer(torch.full((N,), torch.nan, dtype=torch.float64))


def test_infeasible_samples_are_relaxed() -> None:
    x, p = cp.Variable(N), cp.Parameter(N)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - 0.5)), [x >= p, x <= 0])
    layer = FFOLayer(problem, [p], [x], on_fail=Relax(weight=1e4))
    (found,) = layer(torch.full((2, N), 1.0, dtype=torch.float64))
    torch.testing.assert_close(found, torch.full_like(found, 0.5), atol=1e-2, rtol=0.0)


def test_smoothing_perturbs_the_program_as_it_was_given() -> None:
    p = cp.Parameter(R)
    problem, variables = fitted(p)
    layer = FFOLayer(problem, [p], variables[:1], smoothing=0.01)
    layer(torch.ones(R, dtype=torch.float64))
    assert "compact" not in vars(layer.canonical)
