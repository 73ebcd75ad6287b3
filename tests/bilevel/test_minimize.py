"""minimize, on problems whose Goldstein stationary points are known."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from bilevel_problems import A, D, above, kink_by_autograd, kink_by_qp, kink_layer

import ffo.torch
from ffo.bilevel import Reason, Window, minimize
from ffo.errors import GradientWarning, InfeasibleError, InputError, NotFiniteError
from ffo.torch import FFOLayer, FFOQPLayer


def start(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=D)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def kink_by_function() -> Callable[..., Any]:
    if not hasattr(ffo.torch, "FFOFunctionLayer"):
        pytest.skip("FFOFunctionLayer is not part of this build")
    layer = ffo.torch.FFOFunctionLayer(
        objective=lambda x, y: 0.5 * ((y - A) ** 2).sum(), inequality=lambda x, y: y - A * x.reshape(1)
    )
    return lambda x: layer(x, y0=torch.zeros(1, dtype=D))[..., 0]


LAYERS: dict[str, Callable[[], Callable[..., Any]]] = {
    "FFOLayer": kink_layer,
    "FFOQPLayer": kink_by_qp,
    "FFOFunctionLayer": kink_by_function,
    "autograd": lambda: kink_by_autograd,
}


@pytest.mark.parametrize("name", LAYERS)
def test_finds_the_kink_with_any_layer(name: str) -> None:
    """F(x) = |x - 1| - 1 is stationary within delta of 1 and nowhere else."""
    layer = LAYERS[name]()
    found = minimize(above, layer, start(0.2)[0], delta=0.2, epsilon=0.2, budget=500, generator=generator())
    assert found.converged
    assert found.reason is Reason.STATIONARY
    assert found.stationarity <= 0.2
    assert found.radius <= found.delta
    assert abs(float(found.x) - 1) <= found.radius
    assert found.value == pytest.approx(abs(float(found.x) - 1) - 1, abs=1e-6)
    assert float(found.y) == pytest.approx(min(A, A * float(found.x)), abs=1e-6)
    assert found.lipschitz == pytest.approx(1.0, abs=1e-5)


def test_history_has_every_window() -> None:
    seen: list[Window] = []
    found = minimize(
        above, kink_by_autograd, start(-1.0)[0], delta=0.1, epsilon=0.05, budget=10_000, callback=seen.append
    )
    history = found.history
    assert history.stationarity == [w.stationarity for w in seen]
    assert history.values == [w.value for w in seen]
    assert found.stationarity == min(history.stationarity)
    assert history.calls == sorted(history.calls)
    assert history.calls[-1] == found.calls
    assert all(a <= b for a, b in zip(history.seconds, history.seconds[1:], strict=False))
    assert min(history.epsilon) >= 0.05
    assert history.values[0] > history.values[-1]
    assert {len(column) for column in vars(history).values()} == {len(seen)}


def polytope() -> tuple[FFOLayer, torch.Tensor]:
    """y(x), the projection of x on {y >= 0, sum y <= 1}."""
    y, x = cp.Variable(3), cp.Parameter(3)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(y - x)), [y >= 0, cp.sum(y) <= 1]), [x], [y])
    return layer, start(0.7, 0.6, -0.4)


def test_projection_to_a_target_on_a_face() -> None:
    """|y - t|^2 / 2 with t on the face sum y = 1, y_3 = 0: zero exactly where y(x) = t."""
    layer, x0 = polytope()
    target = start(0.35, 0.65, 0.0)
    found = minimize(
        lambda x, y: 0.5 * ((y - target) ** 2).sum(), layer, x0, delta=0.02, epsilon=0.01, budget=1500,
        generator=generator(),
    )  # fmt: skip
    assert found.converged
    # on the face |grad F| = |y - t|; one window's points lie within delta of each other
    assert float((found.y - target).norm()) <= found.stationarity + found.radius


def test_several_inputs_and_several_outputs() -> None:
    """x = (u, v): y = min(u, v) and the multiplier of y <= u, by one layer with two outputs."""
    y, u, v = cp.Variable(), cp.Parameter(), cp.Parameter()
    rows = [y <= u, y <= v]
    layer = FFOLayer(cp.Problem(cp.Minimize(0.5 * cp.square(y - 3)), rows), [u, v], [y, rows[0].dual_variables[0]])

    def upper(x: tuple[torch.Tensor, torch.Tensor], y: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        assert len(x) == len(y) == 2
        return (y[0] - 1) ** 2 + 0.1 * (x[0] - x[1]) ** 2

    found = minimize(
        upper, layer, [start(0.2)[0], start(0.3)[0]], delta=0.05, epsilon=0.05, budget=800, generator=generator()
    )
    assert found.converged
    assert isinstance(found.x, tuple)
    assert float(torch.minimum(*found.x)) == pytest.approx(1.0, abs=0.1)
    assert [tuple(t.shape) for t in found.y] == [(), ()]


def test_a_batch_of_problems_under_one_objective() -> None:
    qp = FFOQPLayer()
    eye, targets = torch.eye(2, dtype=D), start(0.5, 3.0, -1.0, 0.2).reshape(2, 2)
    clipped = targets.clamp(0, 1)

    def layer(x: torch.Tensor) -> torch.Tensor:  # (2, 2) points, each projected on the unit box
        return qp(eye, -x, lb=torch.zeros(2, dtype=D), ub=torch.ones(2, dtype=D))

    found = minimize(
        lambda x, y: (y - clipped).square().sum(), layer, targets.new_full((2, 2), 0.4), delta=0.05, epsilon=0.05,
        budget=1500, generator=generator(),
    )  # fmt: skip
    assert found.converged
    torch.testing.assert_close(found.y, clipped, atol=0.08, rtol=0)


def test_budget() -> None:
    found = minimize(above, kink_by_autograd, start(-50.0)[0], delta=0.1, epsilon=1e-3, budget=57)
    assert (found.reason, found.calls, found.converged) == (Reason.BUDGET, 57, False)
    assert found.history.calls[-1] == 57  # the unfinished window counts too
    assert found.stationarity == pytest.approx(1.0)


def test_callback_stops() -> None:
    found = minimize(
        above,
        kink_by_autograd,
        start(-50.0)[0],
        delta=0.1,
        epsilon=1e-3,
        budget=10_000,
        callback=lambda w: w.index == 3,
    )
    assert found.reason is Reason.CALLBACK
    assert len(found.history.calls) == 4


def test_reproducible_through_the_generator() -> None:
    def run(seed: int) -> tuple[float, ...]:
        found = minimize(
            above, kink_by_autograd, start(0.3)[0], delta=0.3, epsilon=0.05, budget=500, generator=generator(seed)
        )
        return (float(found.x), *found.history.values)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_x0_is_left_alone() -> None:
    x0 = start(0.3)[0].requires_grad_()
    minimize(above, kink_by_autograd, x0, delta=0.3, epsilon=0.1, budget=50)
    assert float(x0.detach()) == 0.3
    assert x0.grad is None


def test_a_given_lipschitz_constant_is_kept_unless_refuted() -> None:
    options: dict[str, Any] = {"delta": 0.3, "epsilon": 0.3, "budget": 500}
    assert minimize(above, kink_by_autograd, start(0.3)[0], lipschitz=4.0, **options).lipschitz == 4.0
    assert minimize(above, kink_by_autograd, start(0.3)[0], lipschitz=0.5, **options).lipschitz == pytest.approx(1.0)


def test_calls_stay_within_a_constant_of_the_theory() -> None:
    """gap L^2 / (delta epsilon^3), on the slope of epsilon that takes the most windows."""
    delta, epsilon = 0.5, 0.2

    def valley(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (1 - 1.3 * epsilon) * x[0].abs() - 1.3 * epsilon * torch.minimum(x[1], start(1 / (1.3 * epsilon))[0])

    found = minimize(
        valley, lambda x: x, start(0.0, 0.0), delta=delta, epsilon=epsilon, budget=200_000, generator=generator()
    )
    assert found.converged
    assert float(found.x[1]) >= 1 / (1.3 * epsilon) - delta
    assert found.calls <= 2 * 27 / (delta * epsilon**3)


def test_random_gradients_are_not_believed_in_short_windows() -> None:
    """F(x) = 0.3 x with gradients 0.3 +- 1: short windows may be small by chance, the true mean never is."""
    noise = np.random.default_rng(0)

    def upper(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (0.3 + noise.choice([-1.0, 1.0])) * x

    def found(stochastic: bool) -> Reason:
        run = minimize(
            upper, lambda x: x, start(0.0)[0], delta=0.1, epsilon=0.15, budget=3000, stochastic=stochastic,
            generator=generator(),
        )  # fmt: skip
        return run.reason

    assert found(stochastic=False) is Reason.STATIONARY
    assert found(stochastic=True) is Reason.BUDGET


def test_random_gradients_without_a_slope_are_found_stationary() -> None:
    noise = np.random.default_rng(0)
    found = minimize(
        lambda x, y: noise.choice([-1.0, 1.0]) * x + 0.5 * x**2, lambda x: x, start(1.0)[0], delta=0.2, epsilon=0.2,
        budget=5000, stochastic=True, generator=generator(),
    )  # fmt: skip
    assert found.converged
    assert abs(float(found.x)) <= 0.2 + 0.2 + 3 * 0.2 / 3  # stationary at 0; delta, epsilon, three standard errors
    windows = np.diff([0, *found.history.calls])
    assert windows[-1] >= 9 / 0.2**2


def test_objective_that_is_not_finite_ends_the_run_with_what_was_found() -> None:
    def upper(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y if x > 0.9 else y + torch.log(x - 0.9)

    found = minimize(upper, kink_by_autograd, start(2.0)[0] * 0.5, delta=0.5, epsilon=0.01, budget=500)
    assert found.reason is Reason.NOT_FINITE
    assert float(found.x) > 0.9
    with pytest.raises(NotFiniteError, match="x0"):
        minimize(upper, kink_by_autograd, start(0.5)[0], delta=0.5, epsilon=0.01, budget=500)


def test_a_solve_that_fails_is_the_layers_own_error() -> None:
    y, x = cp.Variable(), cp.Parameter()
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.square(y)), [y >= x, y <= 1]), [x], [y])
    with pytest.raises(InfeasibleError):
        minimize(lambda x, y: -y, layer, start(0.7)[0], delta=0.2, epsilon=0.01, budget=500)


def test_doubted_gradients_are_counted_and_other_warnings_pass() -> None:
    def layer(x: torch.Tensor) -> torch.Tensor:
        warnings.warn("near a kink", GradientWarning, stacklevel=1)
        return kink_by_autograd(x)

    found = minimize(above, layer, start(0.3)[0], delta=0.3, epsilon=0.3, budget=100)
    assert found.doubtful == found.calls

    def loud(x: torch.Tensor) -> torch.Tensor:
        warnings.warn("something else", UserWarning, stacklevel=1)
        return kink_by_autograd(x)

    with pytest.warns(UserWarning, match="something else"):
        assert minimize(above, loud, start(0.3)[0], delta=0.3, epsilon=0.3, budget=100).doubtful == 0


def test_progress_goes_to_the_error_stream(capfd: pytest.CaptureFixture[str]) -> None:
    minimize(above, kink_by_autograd, start(0.3)[0], delta=0.3, epsilon=0.3, budget=100, progress=True)
    shown = capfd.readouterr()
    assert "|g|" in shown.err
    assert shown.out == ""
    minimize(above, kink_by_autograd, start(0.3)[0], delta=0.3, epsilon=0.3, budget=100)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        ({"delta": 0.0}, "delta"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"budget": 0}, "budget"),
        ({"x0": torch.tensor(3)}, "x0"),
        ({"x0": []}, "x0"),
        ({"upper": lambda x, y: torch.stack([x, y])}, "one element"),
        ({"upper": lambda x, y: 3.0}, "float"),
        ({"upper": lambda x, y: y.detach()}, "does not depend on x"),
        ({"smoothing": 0.1}, "around one"),
    ],
)
def test_nonsense_is_named(bad: dict[str, Any], word: str) -> None:
    given = {"upper": above, "layer": kink_by_autograd, "x0": start(0.3)[0], "delta": 1.0, "epsilon": 1.0, "budget": 9}
    with pytest.raises(InputError, match=word):
        minimize(**given | bad)
