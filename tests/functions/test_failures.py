"""Samples that cannot be solved, or gradients that cannot be trusted: named, isolated, flagged."""

from __future__ import annotations

import pytest
import torch
from function_problems import D, distance, leaves, tensor

from ffo.errors import GradientWarning, InfeasibleError, InvalidDataError, IterationLimitError, Status, UnboundedError
from ffo.torch import FFOFunctionLayer

solvers = pytest.mark.parametrize("solver", ["AUGLAG", "SLSQP"])
doubtful = pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")


def between(low: torch.Tensor, high: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([low - y, y - high])


def box(**options: object) -> FFOFunctionLayer:
    """The projection of 2 onto [low, high]; empty where low > high."""
    return FFOFunctionLayer(
        lambda low, high, y: (y - 2).square().sum(),
        lambda low, high, y: between(low, high, y),
        shape=1,
        dims=(1, 1),
        **options,
    )


@solvers
def test_infeasible_samples_are_named(solver: str) -> None:
    low, high = tensor([[0.0], [1.0], [0.0]]), tensor([[1.0], [0.0], [3.0]])
    with pytest.raises(InfeasibleError, match="for sample 1 of the batch") as caught:
        box(solver=solver)(low, high)
    assert caught.value.samples == (1,)


@solvers
def test_failed_samples_are_isolated(solver: str) -> None:
    layer = box(solver=solver, on_fail="nan")
    low, high = leaves(tensor([[0.0], [1.0], [0.0], [torch.nan]]), tensor([[1.0], [0.0], [3.0], [1.0]]))
    y = layer(low, high)
    assert y[1].isnan().all()
    assert y[3].isnan().all()
    torch.testing.assert_close(y.detach()[[0, 2], 0], tensor([1.0, 2.0]))
    y[[0, 2]].sum().backward()
    torch.testing.assert_close(high.grad[:, 0], tensor([1.0, 0.0, 0.0, 0.0]), rtol=0, atol=1e-9)
    assert layer.info.status == [Status.SOLVED, Status.INFEASIBLE, Status.SOLVED, Status.INVALID_INPUT]
    assert "NaN" in layer.info.detail[3]
    assert layer.info.certificate.reasons(1) == ["the sample was not solved"]


@solvers
@pytest.mark.parametrize("backward", ["auto", "resolve"])
def test_bounds_that_contradict_each_other_a_little_are_infeasible(solver: str, backward: str) -> None:
    layer = box(solver=solver, on_fail="nan", backward=backward)
    low, high = leaves(tensor([[1.0 + 1e-9], [1.0], [1.0 - 1e-9]]), tensor([[1.0], [1.0], [1.0]]))
    y = layer(low, high)
    assert layer.info.status == [Status.INFEASIBLE, Status.SOLVED, Status.SOLVED]
    assert y[0].isnan().all()
    with torch.no_grad():
        layer(low, high)
    assert layer.info.status == [Status.INFEASIBLE, Status.SOLVED, Status.SOLVED]


def test_a_shared_theta_of_a_failed_sample_gets_no_nan() -> None:
    layer = FFOFunctionLayer(
        lambda a, s, y: distance(a + 2, y) * s,
        lambda a, s, y: between(a, s.expand(1), y),
        shape=1,
        dims=(1, 0),
        on_fail="nan",
    )
    a, s = leaves(tensor([[0.0], [5.0]]), tensor(1.0))
    y = layer(a, s)
    y.nansum().backward()
    assert y[1].isnan().all()
    assert float(s.grad) == pytest.approx(1.0)  # y = s in the first sample
    assert a.grad.isfinite().all()


@solvers
def test_unbounded_problems(solver: str) -> None:
    layer = FFOFunctionLayer(lambda c, y: c @ y, lambda c, y: y - 1, shape=2, dims=(1,), solver=solver)
    with pytest.raises(UnboundedError):
        layer(tensor([1.0, 1.0]))
    torch.testing.assert_close(layer(tensor([-1.0, -1.0])), tensor([1.0, 1.0]))


def test_a_start_outside_the_domain() -> None:
    layer = FFOFunctionLayer(lambda a, y: (a * y).sum() - y.log().sum(), shape=2, dims=(1,))
    with pytest.raises(InvalidDataError, match="pass y0= inside their domain"):
        layer(tensor([1.0, 2.0]))
    y = layer(tensor([1.0, 2.0]), y0=tensor([0.1, 5.0]))
    torch.testing.assert_close(y, tensor([1.0, 0.5]))


def test_the_iteration_limit() -> None:
    layer = FFOFunctionLayer(
        lambda a, y: (1 - y[0]) ** 2 + 1000 * (y[1] - y[0] ** 2) ** 2 + 0 * a.sum(),
        lambda a, y: (y.sum() - 1.5).reshape(1),
        shape=2,
        dims=(1,),
        solver="AUGLAG",
        solver_args={"max_iters": 3},
    )
    with pytest.raises(IterationLimitError, match="raise max_iters"):
        layer(tensor([0.0]), y0=tensor([-1.5, 2.0]))


# Points where the gradient is not unique or does not exist


def doubts(layer: FFOFunctionLayer, theta: torch.Tensor, **call: object) -> list[str]:
    """The certificate's reasons after a backward pass, which must have warned."""
    (moving,) = leaves(theta)
    y = layer(moving, **call)
    with pytest.warns(GradientWarning, match="in doubt"):
        y[..., 0].sum().backward()
    assert not layer.info.certificate.good[0]
    return layer.info.certificate.reasons(0)


@solvers
def test_a_weakly_active_constraint_is_flagged(solver: str) -> None:
    """The paper's example at its kink: minimize 1/2 (y - a)^2 subject to y <= a x, at x = 1."""
    layer = FFOFunctionLayer(
        lambda x, y: 0.5 * (y - 100).square().sum(), lambda x, y: y - 100 * x, shape=1, dims=(0,), solver=solver
    )
    assert any("weakly active" in text for text in doubts(layer, tensor(1.0)))
    for x, slope in ((0.9999, 100.0), (1.0001, 0.0)):
        (moving,) = leaves(tensor(x))
        layer(moving).sum().backward()
        assert float(moving.grad) == pytest.approx(slope, abs=1e-6)
        assert layer.info.certificate.good.all()


@solvers
def test_a_solution_that_is_not_unique_is_flagged(solver: str) -> None:
    layer = FFOFunctionLayer(
        lambda c, y: c @ y,
        lambda c, y: torch.cat([-y, y.sum().reshape(1) - 1]),
        shape=2,
        dims=(1,),
        solver=solver,
    )
    assert any("not unique" in text for text in doubts(layer, tensor([-1.0, -1.0])))


def test_a_saddle_point_is_flagged() -> None:
    layer = FFOFunctionLayer(
        lambda a, y: y[1] ** 2 - (y[0] - a[0]) ** 2, lambda a, y: torch.cat([y - 1, -1 - y]), shape=2, dims=(1,)
    )
    reasons = doubts(layer, tensor([0.25]), y0=tensor([0.25, 0.5]))
    assert any("curves downwards" in text for text in reasons)


def test_dependent_constraints_are_flagged_and_their_solution_is_differentiated() -> None:
    layer = FFOFunctionLayer(distance, lambda a, y: torch.cat([y - 0.5, y - 0.5]), shape=2, dims=(1,))
    (a,) = leaves(tensor([1.0, -1.0]))
    y = layer(a)
    with pytest.warns(GradientWarning, match="depend on each other"):
        y.sum().backward()
    torch.testing.assert_close(a.grad, tensor([0.0, 1.0]), rtol=0, atol=1e-8)


@doubtful
@pytest.mark.parametrize(("angle", "side"), [(2.7e-6, 0.5), (1e-8, 0.5), (2.7e-6, -0.2), (0.0, 0.5)])
def test_equalities_that_are_nearly_dependent_are_flagged(angle: float, side: float) -> None:
    """y1 = side was ignored, and its derivative called good: the other equality is parallel up to a small angle."""

    def equality(t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack([y[0] + y[2] - 1.0, y[0] + y[2] + angle * y[1] - 1.0 - angle * side])

    layer = FFOFunctionLayer(lambda t, y: 0.5 * ((y - t) ** 2).sum(), equality=equality, shape=3, dims=(1,))
    t = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    layer(t).sum().backward()
    assert bool(layer.info.certificate.good[0]) == (angle == 0.0)


@pytest.mark.parametrize("hvp", ["autograd", "difference"])
def test_coefficients_of_dependent_equalities_are_flagged_and_sides_are_not(hvp: str) -> None:
    """2y = b twice: y follows b, and there is no y once the coefficients differ."""
    layer = FFOFunctionLayer(
        lambda a, b, y: (y - 1).square().sum(),
        equality=lambda a, b, y: a * y - b,
        shape=1,
        dims=(1, 1),
        hvp=hvp,
    )
    a, b = tensor([2.0, 2.0]), tensor([1.0, 1.0])
    (side,) = leaves(b)
    layer(a, side).sum().backward()
    torch.testing.assert_close(side.grad.sum(), tensor(0.5), rtol=0, atol=1e-8)
    assert layer.info.certificate.good.all()
    (coefficients,) = leaves(a)
    y = layer(coefficients, b)
    with pytest.warns(GradientWarning, match="depend on each other"):
        y.sum().backward()


def test_coefficients_that_move_dependent_equalities_together_are_not_flagged() -> None:
    layer = FFOFunctionLayer(
        lambda a, y: (y - 1).square().sum(), equality=lambda a, y: torch.stack([a @ y - 1, 2 * (a @ y) - 2]), shape=2,
        dims=(1,),
    )  # fmt: skip
    (a,) = leaves(tensor([2.0, 1.0]))
    layer(a).sum().backward()
    assert layer.info.certificate.good.all()


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("units", [1e-4, 1e4])
@solvers
def test_the_active_set_does_not_depend_on_units(size: float, units: float, solver: str) -> None:
    """Lengths, objective and constraints in other units: the derivative of a projection stays the same."""
    layer = FFOFunctionLayer(
        lambda a, y: distance(a, y) / units,
        lambda a, y: units * torch.cat([(y.sum() - size).reshape(1), -y]),
        shape=4,
        dims=(1,),
        solver=solver,
    )
    (a,) = leaves(size * tensor([0.7, 0.5, 0.3, -0.6]))
    y = layer(a)
    torch.testing.assert_close(y.detach() / size, tensor([8 / 15, 1 / 3, 2 / 15, 0.0]), rtol=1e-7, atol=1e-7)
    y[0].backward()
    torch.testing.assert_close(a.grad, tensor([2 / 3, -1 / 3, -1 / 3, 0.0]), rtol=1e-6, atol=1e-6)
    assert layer.info.certificate.good.all()


@doubtful
def test_gradients_at_the_edge_of_the_paper_example() -> None:
    """At x = 1 the solution of h = x^2 + y^2 - 1 is y = 0, where the constraint's gradient vanishes."""
    layer = FFOFunctionLayer(
        lambda x, y: (y - 2).square().sum(), lambda x, y: x**2 + y**2 - 1, shape=1, dims=(0,), on_fail="nan"
    )
    (x,) = leaves(tensor(1.0))
    y = layer(x)
    if layer.info.ok.all():
        y.sum().backward()
        assert not layer.info.certificate.good.all()
    assert y.dtype == D


def test_a_claim_that_there_is_no_feasible_point_is_refuted_by_the_start() -> None:
    """The slope of a root is infinite at zero, where SLSQP gives up."""
    layer = FFOFunctionLayer(
        lambda a, y: (y - a).square().sum(), lambda a, y: y.abs().sqrt() - 1, shape=1, dims=(1,), on_fail="nan"
    )
    layer(torch.tensor([[0.5], [2.0]], dtype=torch.float64))
    assert Status.INFEASIBLE not in layer.info.status


@pytest.mark.parametrize("solver", [None, "AUGLAG", "SLSQP"])
def test_solutions_that_are_zero(solver: str | None) -> None:
    """Solvers leave rounding errors, beside which no multiplier, slack or residual is small."""
    theta = leaves(1.5 * torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))[0]
    layer = FFOFunctionLayer(
        lambda a, y: (y - a).exp().sum() + y.square().sum(), lambda a, y: -y, shape=3, dims=(1,), solver=solver
    )
    y = layer(theta)
    assert not y.detach().abs().max() > 1e-12
    y.sum().backward()
    assert not theta.grad.any()
    assert layer.info.certificate.good.all()
