"""The judge of the dense path: what it must accept as a solution, and what not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from ffo.torch.dense.program import DensePoint, DenseProgram
from ffo.torch.dense.verify import judge

BATCH, N, EQUALITIES, ROWS = 3, 6, 1, 5
SIDES = np.array([1, 1, -1, 0, 0])  # of the rows: an equality, upper, lower, two inactive ones
BOUNDS = np.array([1, -1, 0, 0, 0, 0])


def known(bounded: bool = True) -> tuple[DenseProgram, DensePoint]:
    """A program around a solution that is chosen first, multipliers and slacks of moderate size."""
    rng = np.random.default_rng(0)
    size = lambda *shape: rng.uniform(0.5, 1.0, size=(BATCH, *shape))  # noqa: E731
    M, R = rng.normal(size=(BATCH, N, N)), rng.normal(size=(BATCH, ROWS, N))
    Q, z = M @ M.transpose(0, 2, 1) / N + 0.1 * np.eye(N), rng.normal(size=(BATCH, N))
    lam = SIDES * size(ROWS)
    mu = BOUNDS * size(N) if bounded else np.zeros((BATCH, N))
    value = np.einsum("bij,bj->bi", R, z)
    upp, below = value + np.where(SIDES > 0, 0.0, size(ROWS)), value - np.where(SIDES < 0, 0.0, size(ROWS))
    below[:, :EQUALITIES] = upp[:, :EQUALITIES]
    below[:, 1] = -np.inf
    p = -(np.einsum("bij,bj->bi", Q, z) + np.einsum("bij,bi->bj", R, lam) + mu)
    wide = np.full((BATCH, N), np.inf)
    ub = z + np.where(BOUNDS > 0, 0.0, size(N)) if bounded else wide
    lb = z - np.where(BOUNDS < 0, 0.0, size(N)) if bounded else -wide
    t = torch.tensor
    program = DenseProgram(t(Q), t(p), t(R), t(below), t(upp), t(lb), t(ub), EQUALITIES, bounded)
    return program, DensePoint(t(z), t(lam), t(mu))


@pytest.mark.parametrize("bounded", [True, False], ids=["bounds", "no bounds"])
def test_a_solution_and_its_active_set(bounded: bool) -> None:
    verdict = judge(*known(bounded))
    assert verdict.natural.max() < 1e-14
    assert verdict.rows.tolist() == [SIDES.tolist()] * BATCH
    assert verdict.bounds.tolist() == [(BOUNDS if bounded else 0 * BOUNDS).tolist()] * BATCH
    assert verdict.margin.min() > 1e-2


@pytest.mark.parametrize("bounded", [True, False], ids=["bounds", "no bounds"])
def test_the_margin_is_that_of_the_weakest(bounded: bool) -> None:
    program, point = known(bounded)
    upp, lam = program.upp.clone(), point.lam.clone()
    upp[1, 4] = program.rows(point.z)[1, 4] + 1e-8  # nearly active
    lam[2, 1] = 1e-8  # active, with a tiny multiplier
    p = program.p - program.pull(lam - point.lam)
    verdict = judge(dataclasses.replace(program, upp=upp, p=p), dataclasses.replace(point, lam=lam))
    assert verdict.natural.max() < 1e-14
    assert verdict.margin[0] > 1e-2
    assert verdict.margin[1:].max() < 1e-7


@pytest.mark.parametrize("units", [(1e5, 1.0, 1.0), (1.0, 1e-4, 1.0), (1.0, 1.0, 1e6)], ids=["rows", "z", "costs"])
def test_units_do_not_matter(units: tuple[float, float, float]) -> None:
    rows, length, costs = units
    program, point = known()
    scaled = DenseProgram(
        costs / length**2 * program.Q,
        costs / length * program.p,
        rows / length * program.R,
        *(rows * side for side in (program.low, program.upp)),
        *(length * side for side in (program.lb, program.ub)),
        EQUALITIES,
    )
    moved = DensePoint(length * (point.z + 1e-3), costs / rows * point.lam, costs / length * point.mu)
    expected = judge(program, DensePoint(point.z + 1e-3, point.lam, point.mu))
    found = judge(scaled, moved)
    torch.testing.assert_close(found.natural, expected.natural, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.margin, expected.margin, rtol=1e-6, atol=0)


def test_a_multiplier_beside_a_slack_is_no_solution() -> None:
    program, point = known(bounded=False)
    lam = point.lam.clone()
    lam[:, 3] = 0.1  # stationary and feasible as before, but not complementary
    p = program.p - 0.1 * program.R[:, 3]
    assert judge(dataclasses.replace(program, p=p), dataclasses.replace(point, lam=lam)).natural.min() > 1e-3


def test_a_multiplier_of_the_wrong_sign_is_no_solution() -> None:
    program, point = known(bounded=False)
    lam = point.lam.clone()
    lam[:, 1] *= -1
    p = program.p - program.pull(lam - point.lam)
    assert judge(dataclasses.replace(program, p=p), dataclasses.replace(point, lam=lam)).natural.min() > 1e-3


def test_sides_that_cross_have_no_solution() -> None:
    program, point = known(bounded=False)
    low = program.low.clone()
    low[:, 1] = program.upp[:, 1] + 0.3  # the point is at the upper bound
    assert judge(dataclasses.replace(program, low=low), point).natural.min() > 1e-2


@pytest.mark.parametrize("name", ["Q", "p", "R", "upp"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_no_solution(name: str, value: float) -> None:
    program, point = known()
    if name == "upp" and value == np.inf:
        pytest.skip("no constraint")
    block = getattr(program, name).clone()
    block[1].reshape(-1)[1] = value
    natural = judge(dataclasses.replace(program, **{name: block}), point).natural
    assert not natural[1] <= 1e-10
    assert natural[0] <= 1e-10
