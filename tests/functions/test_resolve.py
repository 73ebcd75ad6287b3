"""`FFOFunctionLayer(backward="resolve")`: the literal nonlinear ghost, the user's solver, the paper's difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.nonlinear import FunctionCase, cases
from function_problems import D, gradients, quadratic, quadratic_layer, relative

from ffo.errors import GradientWarning, InputError, UnknownSettingError
from ffo.torch import FFOFunctionLayer

pytestmark = pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")
Function = Callable[[torch.Tensor], torch.Tensor]


def nonlinear(**options: object) -> FFOFunctionLayer:
    """Curved objective and constraints; theta a (5,), b (5,)."""
    return FFOFunctionLayer(
        lambda a, b, y: 0.5 * (y - a).square().sum() + (y * b).exp().sum(),
        lambda a, b, y: torch.stack([y.square().sum() - 1.0, y[0] + b[0] * y[1] - 0.3]),
        lambda a, b, y: (y.sum() - 0.1 * b.sum()).reshape(1),
        shape=5,
        dims=(1, 1),
        **options,
    )


def theta(batch: int = 6) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    return [s * torch.randn(batch, 5, generator=source, dtype=D) for s in (2.0, 1.0)]


@pytest.mark.parametrize("solver", ["AUGLAG", "SLSQP", "TRUST-CONSTR"])
def test_agrees_with_the_linear_ghost(solver: str) -> None:
    expected = gradients(nonlinear(hvp="autograd"), theta())
    layer = nonlinear(backward="resolve", solver=solver)
    for found, exact in zip(gradients(layer, theta()), expected, strict=True):
        assert relative(found, exact) <= 1e-3


@pytest.mark.parametrize("case", cases(condition=100.0, n=12), ids=lambda case: case.name)
def test_the_ten_problems(case: FunctionCase) -> None:
    def run(**options: object) -> list[torch.Tensor]:
        functions = case.objective, case.inequality, case.equality
        layer = FFOFunctionLayer(*functions, dims=case.dims, modules=case.modules, **options)
        return gradients(layer, case.theta, y0=case.start)

    found, expected = run(backward="resolve", solver="AUGLAG", delta=1e-5), run(hvp="autograd")
    size = max(float(e.norm()) for e in expected)
    for f, e in zip(found, expected, strict=True):
        assert float((f - e).norm()) <= 1e-3 * size


def test_the_error_is_proportional_to_delta() -> None:
    """The paper's O(delta), down to the accuracy of the solver over delta."""
    expected = gradients(nonlinear(hvp="autograd"), theta())
    deltas = [1e-1, 1e-2, 1e-3, 1e-4, 1e-5]
    errors = []
    for delta in deltas:
        found = gradients(nonlinear(backward="resolve", solver="AUGLAG", delta=delta), theta())
        errors.append(max(relative(f, e) for f, e in zip(found, expected, strict=True)))
    slope = np.polyfit(np.log(deltas), np.log(errors), 1)[0]
    assert 0.95 <= slope <= 1.05


def descent(calls: list[int], tolerance: float) -> Callable[..., Any]:
    """A first-order solver of the user: projected gradient descent, which knows that its inequalities are bounds
    low <= y <= high, written as (y - high, low - y), and that its equalities are affine. It counts its gradients."""

    def solve(g: Function, h: Function | None, e: Function | None, y: torch.Tensor) -> torch.Tensor:
        zero, n = torch.zeros_like(y), len(y)
        B = torch.autograd.functional.jacobian(e, zero) if e is not None else zero.new_zeros(0, n)
        onto = torch.eye(n, dtype=D) - torch.linalg.pinv(B) @ B
        sides = h(zero) if h is not None else None

        def move(at: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            moved = at - onto @ step
            return moved if sides is None else moved.clamp(sides[n:], -sides[:n])

        for _ in range(10_000):
            at = y.detach().requires_grad_()
            (slope,) = torch.autograd.grad(g(at), at)
            calls[0] += 1
            before, y = y, move(y, slope / 25.0).detach()
            if float((y - before).abs().max()) <= tolerance / 25.0:
                break
        return y

    return solve


def test_calls_are_logarithmic_in_the_error() -> None:
    """O(log 1/epsilon) gradient evaluations, counted in a solver that converges linearly: both solves of a step."""
    n = 8
    source = torch.Generator().manual_seed(1)
    V, _ = torch.linalg.qr(torch.randn(n, n, generator=source, dtype=D))
    Q = (V * torch.logspace(0, 1, n, dtype=D)) @ V.T
    x = [2.0 * torch.randn(n, generator=source, dtype=D)]

    def layer(**options: Any) -> FFOFunctionLayer:
        return FFOFunctionLayer(
            lambda x, y: 0.5 * y @ Q @ y - x @ y + (y - 0.3 * x).exp().sum(),
            lambda x, y: torch.cat([y - 0.2 - 0.1 * x, -1.0 - y]),
            shape=n,
            dims=(1,),
            **options,
        )

    (expected,) = gradients(layer(hvp="autograd"), x)
    calls, errors = [], []
    for exponent in (7, 8, 9, 10, 11, 12, 13):
        count, accuracy = [0], 10.0**-exponent
        solver = descent(count, accuracy)
        (found,) = gradients(layer(backward="resolve", solver=solver, delta=accuracy**0.5), x)
        calls.append(count[0])
        errors.append(relative(found, expected))
    assert errors[-1] <= 1e-2 * errors[0]
    assert np.corrcoef(calls, np.log(errors))[0, 1] ** 2 >= 0.97
    assert max(np.diff(calls)) <= 2 * min(np.diff(calls))  # equally many for each digit


def test_one_more_solve_per_sample_of_the_ghost_problem() -> None:
    """The solver gets the ghost with equalities only, and the same functions as the user's otherwise."""
    asked = []

    def solve(g: Function, h: Function | None, e: Function | None, y0: torch.Tensor) -> torch.Tensor:
        asked.append((h is not None, e is not None))
        with torch.no_grad():
            return y0 if asked[-1] == (False, True) else torch.full_like(y0, 0.5)

    layer = FFOFunctionLayer(
        lambda a, y: 0.5 * (y - a).square().sum(),
        lambda a, y: y - 0.5,
        shape=2,
        dims=(1,),
        solver=solve,
        backward="resolve",
    )
    gradients(layer, [torch.full((3, 2), 2.0, dtype=D)])
    assert asked == [(True, False)] * 3 + [(False, True)] * 3


def test_answers_are_not_polished() -> None:
    rough = 0.5 + 1e-7

    def solve(g: Function, h: Function | None, e: Function | None, y0: torch.Tensor) -> torch.Tensor:
        return torch.full_like(y0, rough)

    layer = FFOFunctionLayer(lambda a, y: 0.5 * (y - a).square().sum(), shape=1, dims=(1,), solver=solve)
    other = FFOFunctionLayer(
        lambda a, y: 0.5 * (y - a).square().sum(), shape=1, dims=(1,), solver=solve, backward="resolve"
    )
    a = torch.full((1,), 0.5, dtype=D, requires_grad=True)
    assert layer(a).item() != rough
    assert other(a).item() == rough


def test_a_one_sided_difference_is_not_called_good() -> None:
    layer = nonlinear(backward="resolve", solver="AUGLAG")
    with pytest.warns(GradientWarning, match="in doubt"):
        gradients(layer, theta())
    assert not layer.info.certificate.good.any()
    assert (layer.info.certificate.ghost_residual >= 1e-5).all()


def test_a_ghost_without_an_answer_gives_no_gradient_and_says_so() -> None:
    def fails(g: Function, h: Function | None, e: Function | None, y0: torch.Tensor) -> torch.Tensor:
        return torch.full_like(y0, torch.nan)

    layer = nonlinear(backward="resolve", solver="SLSQP", backward_solver=fails)
    for found in gradients(layer, theta(2)):
        assert not found.any()
    assert not layer.info.certificate.good.any()


def test_accuracy_and_solver_of_the_backward_pass() -> None:
    values = quadratic()
    expected = gradients(quadratic_layer(hvp="autograd"), values)
    # SLSQP leaves residuals of 1e-9, and so errors of 1e-4, just above or below it depending on the machine
    options = {"solver": "TRUST-CONSTR", "solver_args": {"eps": 1e-12}, "backward_solver": "AUGLAG"}
    layer = quadratic_layer(backward="resolve", backward_eps=1e-10, **options)
    for found, exact in list(zip(gradients(layer, values), expected, strict=True))[1:]:
        assert relative(found, exact) <= 1e-4


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"backward": "direct"}, InputError, "backward must be one of auto, resolve"),
        ({"backward_eps": 1e-6}, InputError, "backward_eps is for backward='resolve'"),
        ({"backward": "resolve", "backward_solver": "NOBODY"}, InputError, "no solver 'NOBODY'"),
        ({"backward": "resolve", "solver": lambda g, h, e, y0: y0, "backward_eps": 1e-6}, UnknownSettingError, "bind"),
    ],
    ids=["unknown way", "accuracy without re-solves", "unknown solver", "accuracy of a function"],
)
def test_wrong_options(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        nonlinear(**options)
