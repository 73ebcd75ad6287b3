"""`backward="resolve"` of the layers: which solver re-solves, how accurately, and how often."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import zoo
from front_ends import FRONT_ENDS
from layers import gradients, make_layer

from ffo.program.cone import ConeProgram, Solution
from ffo.solvers.base import Solver
from ffo.solvers.scs import SCSSolver
from ffo.torch import FFOQPLayer

CASES = ["general_qp", "sparsemax", "ball_constrained", "projection_on_semidefinite", "softmax"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, float, int]]]:
    """Name, accuracy and batch of every solve."""
    found: list[tuple[str, float, int]] = []
    original = Solver.solve

    def solve(self: Solver, program: ConeProgram) -> Solution:
        found.append((self.name, self.eps, program.batch))
        return original(self, program)

    monkeypatch.setattr(Solver, "solve", solve)
    return found


def qp_gradient(**options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """z (8, 5) of a box QP, and the gradient in p."""
    rng = np.random.default_rng(0)
    M, p = torch.tensor(rng.normal(size=(5, 5))), torch.tensor(rng.normal(size=(8, 5)), requires_grad=True)
    one = torch.ones(5, dtype=torch.float64)
    z = FFOQPLayer(backward="resolve", **options)(M @ M.T + torch.eye(5), p, lb=-0.1 * one, ub=0.2 * one)
    (z * torch.linspace(-1, 1, 5, dtype=torch.float64)).sum().backward()
    assert p.grad is not None
    return z.detach(), p.grad


@pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")
def test_a_single_re_solve_of_the_batch(asked: list[tuple[str, float, int]]) -> None:
    _, exact = qp_gradient()
    asked.clear()
    _, found = qp_gradient(solver="SCS", solver_args={"eps": 1e-7}, backward_eps=1e-5)
    assert asked == [("SCS", 1e-7, 8), ("SCS", 1e-5, 8)]
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-4)
    assert not torch.allclose(found, exact, rtol=0, atol=1e-9)


def test_another_solver_for_the_backward_pass(asked: list[tuple[str, float, int]]) -> None:
    _, exact = qp_gradient()
    asked.clear()
    _, found = qp_gradient(solver="CLARABEL", solver_args={"eps": 1e-9}, backward_solver="SCS")
    assert asked[0] == ("CLARABEL", 1e-9, 8)
    assert {(name, eps) for name, eps, _ in asked[1:]} == {("SCS", 1e-9)}
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-9)


@pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")
def test_a_configured_solver_keeps_its_settings(asked: list[tuple[str, float, int]]) -> None:
    given = SCSSolver({"eps": 1e-9, "alpha": 1.3})
    qp_gradient(backward_solver=given, backward_eps=1e-4)
    assert asked[-1][:2] == ("SCS", 1e-4)
    assert given.eps == 1e-9
    other = given.at(1e-4)
    assert (other.settings["alpha"], other.settings["eps_abs"], other.settings["eps_rel"]) == (1.3, 1e-4, 1e-4)
    assert given.settings["eps_abs"] == 1e-9
    assert given.at(None) is given


@pytest.mark.parametrize(("solver", "eps"), [("SCS", 1e-4), ("CLARABEL", 1e-6)])
@pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")
def test_a_solver_whose_own_measure_is_too_forgiving_is_asked_for_more(
    asked: list[tuple[str, float, int]], solver: str, eps: float
) -> None:
    """An error below eps of the largest right-hand side, the budget, is too large for rows with terms of 1; so is a
    product of eps of a slack and its multiplier."""
    n, p = 50, torch.tensor(np.random.default_rng(0).normal(size=(8, 50)))
    unit = torch.eye(n, dtype=torch.float64)
    one = unit.sum(dim=0)
    rows, sides = torch.cat([unit, -unit, one[None]]), torch.cat([one, 0 * one, 0.5 * one.sum()[None]])
    expected = FFOQPLayer()(unit, p, rows, sides)
    asked.clear()
    layer = FFOQPLayer(backward="resolve", solver=solver, solver_args={"eps": eps}, backward_eps=1e-6, retry=[])
    z = layer(unit, p, rows, sides)
    assert layer.info is not None
    retried = int(layer.info.retried.sum())
    assert 0 < retried < 8
    assert asked == [(solver, eps, 8), (solver, pytest.approx(0.01 * eps), retried)]
    assert set(layer.info.solver) == {solver}
    assert float((z - expected)[layer.info.retried].abs().max()) <= 1e-4


def test_a_solver_is_asked_for_more_only_as_far_as_it_can_answer() -> None:
    given = SCSSolver({"eps_abs": 1e-6, "eps_rel": 1e-11})
    found = [solver.settings for solver in given.tighter((1e-2, 1e-4))]
    assert [each["eps_abs"] for each in found] == pytest.approx([1e-8, 1e-10], rel=1e-12)
    assert [each["eps_rel"] for each in found] == [1e-12, 1e-12]
    assert given.settings["eps_abs"] == 1e-6
    assert not list(SCSSolver({"eps": 1e-12}).tighter((1e-2, 1e-4)))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")
def test_algorithm_one_with_scs_on_ordinary_problems(name: str) -> None:
    """SCS forward and backward, two solves: as accurate as its tolerance."""
    case = zoo.build(name)
    expected = gradients(make_layer(case), case.values)
    options = {"solver": "SCS", "solver_args": {"eps": 1e-9}, "backward": "resolve", "backward_eps": 1e-9}
    found = gradients(make_layer(case, **options), case.values)
    size = max(float(np.abs(e).max()) for e in expected)
    for f, e in zip(found, expected, strict=True):
        assert float(np.abs(np.asarray(f) - np.asarray(e)).max()) <= 1e-4 * size


@pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")
def test_every_front_end_has_the_options() -> None:
    case = zoo.build(CASES[0])
    options = {"solver": "SCS", "backward": "resolve", "backward_eps": 1e-6, "backward_solver": "CLARABEL"}
    values = case.batch(2, np.random.default_rng(0))
    found = {name: run(case, values, **options)[1] for name, run in FRONT_ENDS.items()}
    for mine, other in zip(*found.values(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-12)
