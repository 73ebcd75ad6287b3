"""Decisions with integers are optimal, not optimal up to a solver's gap: compared with enumeration."""

from __future__ import annotations

import itertools
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo.errors import InvalidDataError
from ffo.torch.decision import FixedRegion, regret
from ffo.torch.decision.integers import EXACT, MixedInteger

D = torch.float64
INSTALLED = [name for name in EXACT if name in cp.installed_solvers()]
WEIGHTS = np.random.default_rng(0).integers(1, 30, size=14)
ALL = np.array(list(itertools.product([0, 1], repeat=14)), dtype=float)
FEASIBLE = ALL[ALL @ WEIGHTS <= 70]


def knapsack(**options: Any) -> FixedRegion:
    z = cp.Variable(14, boolean=True)
    return FixedRegion(z, [WEIGHTS @ z <= 70], maximize=True, **options)


def gains(samples: int) -> np.ndarray:
    """Nearly proportional to the weights, so that many decisions are optimal up to 1e-4."""
    return (10 + 1e-3 * np.random.default_rng(1).normal(size=(samples, 14))) * WEIGHTS / 10


def relative_gap(region: FixedRegion, values: np.ndarray) -> float:
    found = region(torch.tensor(values)).numpy()
    best = (values @ FEASIBLE.T).max(axis=1)
    return float(((best - (values * found).sum(axis=1)) / best).max())


@pytest.mark.parametrize("solver", [None, *INSTALLED])
def test_decisions_are_those_of_enumeration(solver: str | None) -> None:
    assert relative_gap(knapsack(solver=solver), gains(40)) < 1e-9


@pytest.mark.parametrize("solver", [None, *INSTALLED])
@pytest.mark.parametrize("scale", [1e-11, 1e-7, 1e9])
def test_units_of_costs_do_not_matter(scale: float, solver: str | None) -> None:
    values = scale * np.random.default_rng(2).uniform(0.5, 2.0, size=(3, 14))
    values[1] *= 1e-3  # every sample has its own unit
    assert relative_gap(knapsack(solver=solver), values) < 1e-12


def test_regrets_are_not_negative() -> None:
    true = torch.tensor(gains(20))
    predicted = true + 1e-4 * torch.tensor(np.random.default_rng(3).normal(size=true.shape))
    assert regret(knapsack(), predicted, true).min() >= -1e-12


def test_settings_of_the_user_come_first() -> None:
    for given in ({"mip_rel_gap": 0.2}, {"highs_options": {"mip_rel_gap": 0.2}}):
        region = knapsack(solver_args=given)
        assert region.inner.settings == {"mip_abs_gap": 0.0, **given}
        assert relative_gap(region, gains(2)) < 0.2
    grouped = knapsack(solver="SCIPY", solver_args={"scipy_options": {"presolve": False}})
    assert grouped.inner.settings == {"scipy_options": {"mip_rel_gap": 0.0, "presolve": False}}
    assert relative_gap(grouped, gains(2)) < 1e-12
    assert EXACT["SCIPY"] == {"scipy_options": {"mip_rel_gap": 0.0}}


def test_the_default_is_highs_where_it_applies() -> None:
    x = cp.Variable(2, boolean=True)
    linear, curved = knapsack().inner, FixedRegion(x, [cp.norm(x) <= 1.2]).inner
    assert isinstance(linear, MixedInteger)
    assert isinstance(curved, MixedInteger)
    assert linear.solver == "HIGHS"
    assert curved.solver != "HIGHS"


@pytest.mark.parametrize("boolean", [False, True])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_costs_that_are_not_finite_name_the_sample(wrong: float, boolean: bool) -> None:
    x = cp.Variable(2, boolean=boolean)
    region = FixedRegion(x, [x >= 0, cp.sum(x) <= 1])
    with pytest.raises(InvalidDataError, match="sample 1 of the batch") as caught:
        region(torch.tensor([[1.0, 2.0], [wrong, 1.0], [0.0, 0.0]], dtype=D))
    assert caught.value.samples == (1,)


def test_some_integer_entries() -> None:
    x = cp.Variable(3, integer=[(0, 2)])
    region = FixedRegion(x, [x >= 0, x <= 1.5, cp.sum(x) <= 2.75])
    found = region(torch.tensor([[-3.0, -2.0, -1.0], [0.0, 0.0, 0.0]], dtype=D))
    torch.testing.assert_close(found[0], torch.tensor([1.0, 1.5, 0.0], dtype=D))
