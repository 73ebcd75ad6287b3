"""Constraint smoothing, on the paper's example whose solution has a kink."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
import zoo
from layers import loss_of, make_layer, tensors

from ffo.errors import InfeasibleError, InputError
from ffo.torch import FFOFunctionLayer, FFOLayer, Smoothing

A = 1.0  # the paper's a > 0


def kink(**options: object) -> FFOLayer:
    """min 1/2 (y - a)^2 subject to y - a x <= 0: y = a min(x, 1), with a kink at x = 1."""
    y, x = cp.Variable(), cp.Parameter()
    return FFOLayer(cp.Problem(cp.Minimize(0.5 * cp.square(y - A)), [y - A * x <= 0]), [x], [y], **options)


def smoothed(radius: float, draws: int, seed: int = 0, at: float = 1.0) -> tuple[float, float]:
    layer = kink(smoothing=Smoothing(radius, draws=draws, seed=seed))
    x = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    (y,) = layer(x)
    y.backward()
    return float(y.detach()), float(x.grad)


@pytest.mark.parametrize("radius", [0.1, 0.5])
@pytest.mark.parametrize("at", [0.7, 1.0, 1.2])
def test_converges_to_the_derivative_of_the_smoothed_solution(radius: float, at: float) -> None:
    """y(x) = E min(a, a x + xi), xi ~ U(-radius, radius); dy/dx = a P(a x + xi < a)."""
    draws = 4000
    value, slope = smoothed(radius, draws, at=at)
    room = np.clip((A - A * at) / radius, -1.0, 1.0)  # xi below room * radius leaves the constraint active
    probability = (room + 1) / 2
    grid = np.linspace(-radius, radius, 200_001)
    expected = np.minimum(A, A * at + grid).mean()
    deviation = 4 * np.sqrt(probability * (1 - probability) / draws) + 1e-9
    assert abs(slope - A * probability) <= A * deviation
    assert abs(value - expected) <= 4 * radius / np.sqrt(draws)


def test_more_draws_are_closer() -> None:
    errors = [np.mean([abs(smoothed(0.2, draws, seed)[1] - 0.5 * A) for seed in range(12)]) for draws in (4, 64, 1024)]
    assert errors[0] > errors[1] > errors[2]


def test_reproducible_by_seed() -> None:
    assert smoothed(0.2, 32, seed=3) == smoothed(0.2, 32, seed=3)
    assert smoothed(0.2, 32, seed=3) != smoothed(0.2, 32, seed=4)


def test_draws_go_on_from_call_to_call() -> None:
    layers = [kink(smoothing=Smoothing(0.2, draws=8, seed=1)) for _ in range(2)]
    x = torch.tensor(1.0, dtype=torch.float64)
    runs = [[float(layer(x)[0]) for _ in range(3)] for layer in layers]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 3


def test_without_a_kink_smoothing_changes_little() -> None:
    case = zoo.build("constrained_least_squares")
    values = case.batch(3, np.random.default_rng(0))
    results = []
    for options in ({}, {"smoothing": 1e-6}):
        params = tensors(values)
        (x,) = make_layer(case, **options)(*params)
        loss_of([x], batched=True).sum().backward()
        results.append([x.detach(), *(p.grad for p in params)])
    for plain, smooth in zip(*results, strict=True):
        assert plain.shape == smooth.shape
        torch.testing.assert_close(plain, smooth, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batched", [False, True])
def test_gradient_is_that_of_the_mean_of_the_same_draws(batched: bool) -> None:
    """Finite differences of the smoothed output with the same seed."""
    case = zoo.build("general_qp")
    values = case.batch(2, np.random.default_rng(0)) if batched else case.values

    def run(values: list[np.ndarray]) -> tuple[list[torch.Tensor], torch.Tensor]:
        layer = make_layer(case, smoothing=Smoothing(0.01, draws=3, seed=0), solver_args={"eps": 1e-11})
        params = tensors(values)
        outputs = layer(*params)
        return params, loss_of(outputs, batched=True).sum() if batched else loss_of(outputs)

    params, loss = run(values)
    loss.backward()
    directions = [d * np.ones_like(v) for d, v in zip(case.directions(np.random.default_rng(1)), values, strict=True)]
    step = 1e-6
    plus, minus = (
        run([v + sign * step * d for v, d in zip(values, directions, strict=True)])[1].item() for sign in (1, -1)
    )
    along = sum(float((p.grad.numpy() * d).sum()) for p, d in zip(params, directions, strict=True))
    assert along == pytest.approx((plus - minus) / (2 * step), rel=1e-5, abs=1e-6)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # of forward mode
def test_forward_mode_averages_too() -> None:
    x = torch.tensor(1.0, dtype=torch.float64)
    layer = kink(smoothing=Smoothing(0.2, draws=32, seed=3))
    _, slope = torch.func.jvp(lambda x: layer(x)[0], (x,), (torch.ones_like(x),))
    assert float(slope) == pytest.approx(smoothed(0.2, 32, seed=3)[1])


def narrow(**options: object) -> FFOLayer:
    """x >= 0 and sum(x) <= u: perturbed by more than u, some draws are infeasible."""
    x, u = cp.Variable(2), cp.Parameter()
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - 1)), [x >= 0, cp.sum(x) <= u])
    return FFOLayer(problem, [u], [x], **options)


def test_a_draw_that_fails_is_named_by_its_sample() -> None:
    u = torch.tensor([5.0, 0.01], dtype=torch.float64)
    with pytest.raises(InfeasibleError) as caught:
        narrow(smoothing=Smoothing(0.5, draws=16))(u)
    assert caught.value.samples == (1,)


def test_a_draw_that_fails_takes_its_sample_only() -> None:
    layer = narrow(smoothing=Smoothing(0.5, draws=16), on_fail="nan")
    u = torch.tensor([1.0, 0.01], dtype=torch.float64, requires_grad=True)
    (x,) = layer(u)
    assert x[1].isnan().all()
    assert x[0].isfinite().all()
    x.nan_to_num().sum().backward()
    assert u.grad[1] == 0
    assert u.grad[0] != 0
    assert len(layer.info.status) == 2 * 16


def test_smoothing_and_keys_together() -> None:
    layer = kink(smoothing=Smoothing(0.1, draws=4))
    x = torch.tensor([0.5, 2.0], dtype=torch.float64)
    layer(x, keys=["a", "b"])
    layer(x.flip(0), keys=["b", "a"])
    assert layer.info.warm_hits == 8


def test_semidefinite_constraints_are_refused() -> None:
    """Alone, and beside an inequality: its perturbation would leave the kinks of the matrix as they are."""
    X, C = cp.Variable((2, 2), symmetric=True), cp.Parameter((2, 2))
    for more in ([], [cp.trace(X) <= 1]):
        problem = cp.Problem(cp.Minimize(cp.sum_squares(X - C)), [X >> 0, *more])
        with pytest.raises(InputError, match="semidefinite constraints, whose kinks would remain"):
            FFOLayer(problem, [C], [X], smoothing=0.1)(torch.eye(2))
        FFOLayer(problem, [C], [X], smoothing=Smoothing(costs=0.1, draws=2))(torch.eye(2))


def test_functions_without_inequalities_are_refused() -> None:
    def objective(a: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (y - a).square().sum()

    layer = FFOFunctionLayer(objective, None, lambda a, y: y.sum() - 1, shape=2, dims=(1,), smoothing=0.1)
    with pytest.raises(InputError, match="of which this problem has none"):
        layer(torch.ones(2))


def test_rows_are_not_normalised() -> None:
    """A constraint written ten times larger is perturbed ten times less, as documented."""
    y, x = cp.Variable(), cp.Parameter()
    at = torch.tensor(1.0, dtype=torch.float64)
    spread = []
    for factor in (1.0, 10.0):
        problem = cp.Problem(cp.Minimize(0.5 * cp.square(y - 2.0)), [factor * y <= factor * x])
        layer = FFOLayer(problem, [x], [y], smoothing=Smoothing(0.5, draws=64, average=False))
        spread.append(float(layer(at)[0].std()))
    assert spread[0] == pytest.approx(10 * spread[1], rel=1e-6)
