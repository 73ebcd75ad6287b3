"""The parts of the method on their own: products, projections, ghost systems, L-BFGS, active sets, Newton steps."""

from __future__ import annotations

import pytest
import torch
from function_problems import D, distance, tensor

import ffo.functions.projection as projection_module
from ffo.functions.active import row_norms
from ffo.functions.feasibility import contradicting, infeasible
from ffo.functions.ghost import GhostSystem, Local
from ffo.functions.lbfgs import minimize
from ffo.functions.multipliers import recover
from ffo.functions.polish import polish
from ffo.functions.problem import Functions, Problem, Tensor
from ffo.functions.products import Constraints, Differences, Exact
from ffo.functions.projection import Projection
from ffo.functions.units import probe

BATCH, N = 3, 7


def problem(batch: int = BATCH) -> Problem:
    """A curved objective, three curved inequalities and an equality, different for each sample."""
    source = torch.Generator().manual_seed(0)
    a, C = torch.randn(batch, N, generator=source, dtype=D), torch.randn(3, N, generator=source, dtype=D)
    functions = Functions(
        lambda a, y: torch.logsumexp(y - a, 0) + 0.5 * (y - a).square().sum(),
        lambda a, y: (C @ y).square() + 0.3 * C @ y - 0.1,
        lambda a, y: (y[0] * y[1] + y.sum() - a[0]).reshape(1),
    )
    return Problem(functions, (a,), (True,), {}, batch, (N,), 3)


@pytest.fixture
def point() -> tuple[Problem, Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    p = problem()
    return p, torch.randn(BATCH, N, generator=source, dtype=D), torch.rand(BATCH, 4, generator=source, dtype=D)


def jacobians(p: Problem, y: Tensor) -> Tensor:
    """(batch, k, n), sample by sample."""
    one = lambda k: p.take(torch.tensor([k]))  # noqa: E731
    return torch.stack([Constraints(one(k), y[k : k + 1]).jacobian() for k in range(len(y))])


def hessians(p: Problem, y: Tensor, multipliers: Tensor) -> Tensor:
    """(batch, n, n) from products with unit vectors."""
    H = Exact(p, y, multipliers)
    return torch.stack([H(e.expand(len(y), -1)) for e in torch.eye(y.shape[1], dtype=D)], dim=2)


def test_products_with_the_jacobian(point: tuple[Problem, Tensor, Tensor]) -> None:
    p, y, multipliers = point
    J, c = jacobians(p, y), Constraints(p, y)
    v = torch.randn(BATCH, N, dtype=D)
    torch.testing.assert_close(c.pull(multipliers), torch.einsum("bkn,bk->bn", J, multipliers))
    torch.testing.assert_close(c.push(v), torch.einsum("bkn,bn->bk", J, v))
    eps = 1e-6
    slope = (p.constraints(y + eps * v) - p.constraints(y - eps * v)) / (2 * eps)
    torch.testing.assert_close(c.push(v), slope, rtol=1e-6, atol=1e-7)
    sizes = row_norms(c, y) / J.norm(dim=2)
    assert ((sizes > 0.3) & (sizes < 3)).all()


def test_differences_are_second_derivatives(point: tuple[Problem, Tensor, Tensor]) -> None:
    p, y, multipliers = point
    v = torch.randn(BATCH, N, dtype=D)
    exact, differences = Exact(p, y, multipliers), Differences(p, y, multipliers, torch.ones_like(y))
    torch.testing.assert_close(differences(v), exact(v), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(differences(1e9 * v), exact(1e9 * v), rtol=1e-7, atol=1e2)


def test_differences_stay_inside_the_domain() -> None:
    p = Problem(Functions(lambda y: -y.log().sum()), (), (), {}, 1, (2,))
    y = tensor([[1e-9, 1.0]])
    found = Differences(p, y, torch.zeros(1, 0, dtype=D), torch.ones_like(y))(tensor([[1.0, 1.0]]))
    torch.testing.assert_close(found, tensor([[1e18, 1.0]]), rtol=0.05, atol=0.0)


@pytest.mark.parametrize("way", ["gram", "iterative"])
def test_projections(point: tuple[Problem, Tensor, Tensor], way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against dense algebra, in a metric, with different rows held in every sample."""
    if way == "iterative":
        monkeypatch.setattr(projection_module, "FEW", 0)
        monkeypatch.setattr(projection_module, "PER_UNKNOWN", 0)
    p, y, _ = point
    c, J = Constraints(p, y), jacobians(p, y)
    held = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1]], dtype=torch.bool)
    inverse = 0.5 + torch.rand(BATCH, N, dtype=D)
    found = Projection(c, held, inverse, row_norms(c, y))
    assert type(found._factors).__name__ == {"gram": "_Gram", "iterative": "_Iterative"}[way]
    r, b = torch.randn(BATCH, N, dtype=D), torch.randn(BATCH, 4, dtype=D)
    reduced, t = found.reduce(r)
    start = found.particular(torch.where(held, b, 0.0))
    for k in range(BATCH):
        B, W = J[k][held[k]], torch.diag(inverse[k])
        expected = torch.linalg.solve(B @ W @ B.T, B @ W @ r[k])
        torch.testing.assert_close(t[k][held[k]], expected, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(reduced[k], r[k] - B.T @ expected, rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(B @ start[k], b[k][held[k]], rtol=1e-9, atol=1e-9)
    assert (t[~held] == 0).all()
    assert not found.dependent.any()


def test_dependent_rows_are_noticed_and_least_squares() -> None:
    p = Problem(
        Functions(distance, lambda a, y: torch.cat([y, 2 * y])), (torch.zeros(2, dtype=D),), (False,), {}, 1, (2,), 4
    )
    c = Constraints(p, torch.zeros(1, 2, dtype=D))
    found = Projection(c, torch.ones(1, 4, dtype=torch.bool), torch.ones(1, 2, dtype=D), torch.ones(1, 4, dtype=D))
    assert found.dependent.all()
    reduced, _ = found.reduce(tensor([[3.0, -4.0]]))
    torch.testing.assert_close(reduced, torch.zeros(1, 2, dtype=D), rtol=0, atol=1e-12)


@pytest.mark.parametrize("angle", [1e-3, 1e-4, 1e-5, 1e-6])
def test_more_rows_than_dimensions_are_dependent_however_close_two_are(angle: float) -> None:
    rows = tensor([[-1.75, 1.0, 0.75], [1.75, -1.0, -0.75 + angle], [0.75, -1.0, 0.75], [1.0, 0.5, 1.25]])
    p = Problem(Functions(distance, lambda a, y: rows @ y), (torch.zeros(3, dtype=D),), (False,), {}, 1, (3,), 4)
    c, ones = Constraints(p, torch.zeros(1, 3, dtype=D)), torch.ones(1, 4, dtype=D)
    for held, dependent in (([True] * 4, True), ([False, True, True, True], False)):
        found = Projection(c, torch.tensor([held]), torch.ones(1, 3, dtype=D), ones)
        assert found.dependent.tolist() == [dependent]


@pytest.mark.parametrize("exact", [True, False])
def test_ghost_systems_are_solved(point: tuple[Problem, Tensor, Tensor], exact: bool) -> None:
    p, y, multipliers = point
    local = Local(p, y, multipliers, exact)
    system = GhostSystem(local)
    r, b = torch.randn(BATCH, N, dtype=D), torch.randn(BATCH, 4, dtype=D)
    step = system.solve(r, torch.where(local.active.held, b, 0.0))
    H, J = hessians(p, y, local.active.multipliers), jacobians(p, y)
    for k in range(BATCH):
        held = local.active.held[k]
        B = J[k][held]
        K = torch.cat([torch.cat([H[k], B.T], 1), torch.cat([B, B.new_zeros(len(B), len(B))], 1)])
        expected = torch.linalg.solve(K, torch.cat([r[k], b[k][held]]))
        torch.testing.assert_close(torch.cat([step.u[k], step.t[k][held]]), expected, rtol=1e-6, atol=1e-7)
    assert (step.residual <= (1e-12 if exact else 1e-8)).all()


def test_a_separable_hessian_gives_its_diagonal_and_a_dense_one_nothing() -> None:
    y = torch.rand(1, 50, dtype=D)
    none = torch.zeros(1, 0, dtype=D)
    separable = Problem(Functions(lambda y: torch.special.xlogy(y, y).sum()), (), (), {}, 1, (50,))
    _, diagonal = probe(y, Exact(separable, y, none))
    torch.testing.assert_close(diagonal, 1 / y)
    Q = torch.randn(50, 50, dtype=D)
    dense = Problem(Functions(lambda y: (Q @ y).square().sum()), (), (), {}, 1, (50,))
    _, diagonal = probe(y, Exact(dense, y, none))
    torch.testing.assert_close(diagonal, torch.ones_like(y))


def test_lbfgs_on_a_batch_of_valleys() -> None:
    """Rosenbrock's function with three steepnesses and starts."""
    steep = tensor([1.0, 100.0, 1e4])

    def objective(y: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            at = y.detach().requires_grad_()
            value = (1 - at[:, 0]) ** 2 + steep * (at[:, 1] - at[:, 0] ** 2) ** 2
            (slope,) = torch.autograd.grad(value.sum(), at)
        return value.detach(), slope

    start = tensor([[-1.2, 1.0], [-1.2, 1.0], [0.5, 2.0]])
    found = minimize(objective, start, torch.full((3,), 1e-9, dtype=D), 2000, torch.ones_like(start))
    torch.testing.assert_close(found.y, torch.ones(3, 2, dtype=D), rtol=1e-6, atol=1e-6)
    assert not found.runaway.any()


def test_lbfgs_notices_that_values_fall_without_end() -> None:
    found = minimize(
        lambda y: (y.sum(1), torch.ones_like(y)),
        torch.zeros(2, 3, dtype=D),
        torch.full((2,), 1e-9, dtype=D),
        1000,
        torch.ones(2, 3, dtype=D),
    )
    assert found.runaway.all()


def test_newton_steps_repair_a_rough_point_with_a_wrong_active_set() -> None:
    """The projection of (2, -1, 0.3) onto the box [0, 1]^3, from a point whose multipliers are nonsense."""
    p = Problem(
        Functions(distance, lambda a, y: torch.cat([y - 1, -y])), (tensor([2.0, -1.0, 0.3]),), (False,), {}, 1, (3,), 6
    )
    rough = tensor([[0.9, 0.2, 0.5]])
    found = polish(p, rough, tensor([[0.0, 0.5, 0.5, 0.0, 0.0, 0.0]]), exact=False)
    torch.testing.assert_close(found.y, tensor([[1.0, 0.0, 0.3]]), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.multipliers, tensor([[1.0, 0, 0, 0, 1.0, 0]]), rtol=1e-8, atol=1e-8)
    assert found.settled.all()


def test_multipliers_are_recovered() -> None:
    p = Problem(
        Functions(distance, lambda a, y: torch.cat([y - 1, -y]), lambda a, y: (y[2] - 0.25).reshape(1)),
        (tensor([2.0, -1.0, 0.3]),),
        (False,),
        {},
        1,
        (3,),
        6,
    )
    found = recover(p, tensor([[1.0, 0.0, 0.25]]))
    torch.testing.assert_close(found, tensor([[1.0, 0, 0, 0, 1.0, 0, 0.05]]), rtol=1e-9, atol=1e-9)


def test_infeasibility_is_told_from_difficulty() -> None:
    functions = Functions(distance, lambda a, y: torch.cat([y - a, 1 - y]))
    p = Problem(functions, (tensor([[2.0], [0.5]]),), (True,), {}, 2, (1,), 2)
    assert infeasible(p, tensor([[7.0], [7.0]])).tolist() == [False, True]


def test_a_proof_of_infeasibility_needs_more_than_a_violated_constraint() -> None:
    """y1 + y2 <= 2 + a, twice, y1 >= 1 and y2 >= 1 - b contradict each other if a + b < 0."""

    def rows(a: Tensor, b: Tensor, y: Tensor) -> Tensor:
        total = y.sum() - 2 - a[0]
        return torch.stack([total, 1 - y[0], 1 - b[0] - y[1], 2 * total])

    functions = Functions(lambda a, b, y: y.square().sum(), rows)
    a, b = tensor([[-1e-9], [0.0], [1e-9], [-1e-9]]), tensor([[0.0], [0.0], [0.0], [2e-9]])
    problem = Problem(functions, (a, b), (True, True), {}, 4, (2,), 4)
    y = tensor([[1.0 - 3e-10, 1.0 - 4e-10]]).expand(4, 2)
    local = Local(problem, y, torch.ones(4, 4, dtype=D))
    assert local.active.held.all()
    assert contradicting(local).tolist() == [True, False, False, False]
