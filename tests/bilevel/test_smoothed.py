"""The theorem of the appendix: F(x) = E f(x, y_eta(x)), eta ~ U(-rho, rho), on the paper's example."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bilevel_problems import A, D, kink_by_qp, kink_layer

from ffo.bilevel import Result, minimize
from ffo.errors import InputError, NotCalledError
from ffo.torch import FFOFunctionLayer, FFOQPLayer, Smoothing

RHO = 0.3


def upper(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Not linear in y: the mean of f is not f of the mean."""
    return x**2 + y**3 / 3 - 2.5 * y


def exact(x: float, rho: float = RHO) -> tuple[float, float]:
    """F and its derivative, y = min(a, a x + eta): F' = 2 x + a E[(y^2 - 5/2); eta < a - a x]."""
    cut = float(np.clip(A - A * x, -rho, rho))
    low, high = A * x - rho, A * x + cut  # y where the constraint is active

    def integral(power: int) -> float:  # of y^power over the active part, by its density 1 / (2 rho)
        return (high ** (power + 1) - low ** (power + 1)) / ((power + 1) * 2 * rho)

    free = (rho - cut) / (2 * rho)
    value = x**2 + integral(3) / 3 - 2.5 * integral(1) + free * (A**3 / 3 - 2.5 * A)
    return value, 2 * x + A * (integral(2) - 2.5 * integral(0))


def estimate(draws: int, seed: int, x: float = 1.0) -> tuple[float, float]:
    layer = kink_layer(smoothing=Smoothing(RHO, draws=draws, seed=seed, average=False))
    at = torch.tensor(x, dtype=D, requires_grad=True)
    (y,) = layer(at)
    assert y.shape == (draws,)
    value = upper(at, y).mean()
    value.backward()
    return float(value.detach()), float(at.grad)


def test_the_closed_form_is_the_derivative_of_its_own_value() -> None:
    for x in (0.8, 0.95, 1.0, 1.1, 1.3):
        difference = (exact(x + 1e-6)[0] - exact(x - 1e-6)[0]) / 2e-6
        assert exact(x)[1] == pytest.approx(difference, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("x", [0.9, 1.0, 1.1])
def test_many_draws_give_the_derivative_of_the_smoothed_objective(x: float) -> None:
    draws = 4000
    value, slope = estimate(draws, 0, x)
    expected = exact(x)
    assert slope == pytest.approx(expected[1], abs=4 * 3.0 * A / np.sqrt(draws))  # |y^2 - 5/2| <= 3
    assert value == pytest.approx(expected[0], abs=4 * RHO * 3.0 / np.sqrt(draws))


def test_the_error_falls_like_one_over_the_root_of_the_draws() -> None:
    counts = np.array([4, 16, 64, 256])
    errors = [
        np.sqrt(np.mean([(estimate(int(k), seed)[1] - exact(1.0)[1]) ** 2 for seed in range(100, 130)])) for k in counts
    ]
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.1)


def test_every_draw_is_returned_in_front_of_the_batch() -> None:
    """Same draws, averaged by the layer or by us; gradients too."""
    x = torch.tensor([0.8, 1.0, 1.4], dtype=D)
    found = []
    for average in (True, False):
        at = x.clone().requires_grad_()
        (y,) = kink_layer(smoothing=Smoothing(RHO, draws=5, seed=4, average=average))(at)
        assert y.shape == ((3,) if average else (5, 3))
        mean = y if average else y.mean(0)
        (mean * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
        found.append((mean.detach(), at.grad))
    torch.testing.assert_close(found[0], found[1])


def test_draws_of_a_qp_by_its_matrices() -> None:
    """The same draws as through CVXPY, in its sign of the right-hand side, for outputs of any rank."""
    x = torch.tensor(1.0, dtype=D, requires_grad=True)
    y = kink_by_qp(smoothing=Smoothing(RHO, draws=7, seed=1, average=False))(x)
    assert y.shape == (7,)
    assert float(y.detach().min()) >= A - RHO
    assert len(set(y.tolist())) > 2
    qp = FFOQPLayer(smoothing=Smoothing(RHO, draws=7, average=False), duals=True)
    eye, ones = torch.eye(2, dtype=D), torch.ones(4, 2, dtype=D)
    found = qp(eye, -ones, lb=torch.zeros(2, dtype=D))
    assert found.z.shape == (7, 4, 2)
    assert found.nu.shape == (7, 4, 0)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # of forward mode
def test_forward_mode_keeps_the_draws() -> None:
    x = torch.tensor(1.0, dtype=D)
    layer = kink_layer(smoothing=Smoothing(RHO, draws=6, seed=2, average=False))
    y, slope = torch.func.jvp(lambda x: layer(x)[0], (x,), (torch.ones_like(x),))
    torch.testing.assert_close(slope, torch.where(y < A - 1e-9, A, 0.0).to(D))


def test_draws_of_functions() -> None:
    """FFOFunctionLayer: the same draws averaged by the layer or by us, and minimize with smoothing."""

    def layer(average: bool) -> FFOFunctionLayer:
        return FFOFunctionLayer(
            lambda x, y: 0.5 * ((y - A) ** 2).sum(),
            lambda x, y: y - A * x,
            shape=1,
            dims=(1,),
            smoothing=Smoothing(RHO, draws=5, seed=4, average=average),
        )

    found = []
    for average in (True, False):
        at = torch.tensor([[0.8], [1.0], [1.4]], dtype=D, requires_grad=True)
        y = layer(average)(at)
        assert y.shape == ((3, 1) if average else (5, 3, 1))
        mean = y if average else y.mean(0)
        (mean[:, 0] * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
        found.append((mean.detach(), at.grad))
    torch.testing.assert_close(found[0], found[1])
    plain = layer(True).smoothed(None)
    result = minimize(
        lambda x, y: upper(x, y).sum(), plain, torch.tensor([0.9], dtype=D), delta=0.1, epsilon=0.3, budget=60,
        smoothing=Smoothing(RHO, draws=4), generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert result.y.shape == (4, 1)
    with pytest.raises(NotCalledError):
        plain.info  # noqa: B018


def test_a_generator_may_be_shared() -> None:
    shared = np.random.default_rng(7)
    runs = [kink_layer(smoothing=Smoothing(RHO, draws=3, seed=shared, average=False)) for _ in range(2)]
    x = torch.tensor(0.9, dtype=D)
    first, second = (layer(x)[0] for layer in runs)
    assert not torch.equal(first, second)
    alone = kink_layer(smoothing=Smoothing(RHO, draws=3, seed=np.random.default_rng(7), average=False))
    assert torch.equal(alone(x)[0], first)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="average"):
        Smoothing(0.1, costs=0.1, average=False)
    layer = kink_layer(smoothing=Smoothing(RHO, draws=3, average=False))
    with pytest.raises(InputError, match="vmap"):
        torch.func.vmap(lambda x: layer(x)[0])(torch.ones(2, dtype=D))


def test_a_layer_smoothed_later() -> None:
    plain = kink_layer()
    other = plain.smoothed(RHO)
    x = torch.tensor(1.0, dtype=D)
    assert float(plain(x)[0]) == pytest.approx(A)
    assert A - RHO < float(other(x)[0]) < A - 1e-3
    assert plain.engine.options.smoothing is None
    assert float(other.smoothed(None)(x)[0]) == pytest.approx(A)
    assert len(other.info.status) == 16
    assert len(plain.info.status) == 1


def run(seed: int, epsilon: float, budget: int) -> Result:
    return minimize(
        upper, kink_layer(), torch.tensor(0.6, dtype=D), delta=0.1, epsilon=epsilon, budget=budget,
        smoothing=Smoothing(RHO, draws=4), generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip


def test_minimize_finds_a_stationary_point_of_the_smoothed_objective() -> None:
    """By the derivative of the closed form."""
    epsilon = 0.35
    assert abs(exact(0.6)[1]) > 2 * epsilon
    found = run(0, epsilon, 600)
    assert found.converged
    assert found.y.shape == (4,)
    x = float(found.x)
    slopes = [exact(t)[1] for t in np.linspace(x - found.radius, x + found.radius, 101)]
    assert min(abs(s) for s in slopes) <= epsilon + 2 * epsilon / 3  # two standard errors


def test_minimize_is_reproducible_with_its_draws() -> None:
    values = [run(seed, 0.01, 50).history.values for seed in (3, 3, 4)]
    assert values[0] == values[1]
    assert values[0] != values[2]
