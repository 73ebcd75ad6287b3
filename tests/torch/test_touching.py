"""Boundaries that touch: only the sum of the forces on them is determined, and the curvature depends on its division.

References are closed forms: the inner one of two sets determines the solution and its derivative.
"""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest
import torch
from fuzz.mixes import mix_touching

from ffo.errors import GradientWarning
from ffo.torch import FFOLayer

WAYS = [{}, {"solver": "CLARABEL"}, {"solver": "SCS"}, {"backward": "iterative"}, {"backward": "resolve"}]
x, q = cp.Variable(2), cp.Parameter(2)
X, X2, Q = cp.Variable((2, 2), symmetric=True), cp.Variable((2, 2)), cp.Parameter((2, 2))
DISTANCE, DISTANCES = 0.5 * cp.sum_squares(x - q), 0.5 * cp.sum_squares(X - Q)
ACROSS = [[0.0, 1.0], [1.0, 0.0]]


def problem(objective: cp.Expression, *constraints: cp.Constraint) -> cp.Problem:
    return cp.Problem(cp.Minimize(objective), list(constraints))


#: name -> problem, data, an output, a direction of the data in which it changes, and its rate
TOUCHING = {
    "ball and half-plane": (problem(DISTANCE, cp.norm(x) <= 1, x[0] <= 1), [2, 0], 1, [0, 1], 1 / 2),
    "ball beyond the origin": (problem(DISTANCE, x[0] <= 0, cp.norm(x - [-2, 0]) <= 2), [1, 0], 1, [0, 1], 2 / 3),
    "ball in a ball": (problem(DISTANCE, cp.norm(x) <= 1, cp.norm(x - [-1, 0]) <= 2), [2, 0], 1, [0, 1], 1 / 2),
    "kink and ball": (problem(cp.norm1(x) + DISTANCE, cp.norm(x - [-2, 1]) <= 2), [1, 2], 1, [0, 1], 1 / 2),
    "parabola": (problem(DISTANCE, cp.square(x[0]) <= x[1], x[1] >= 0), [0, -1], 0, [1, 0], 1 / 3),
    "exponential": (problem(DISTANCE, cp.exp(x[0]) <= x[1], 1 + x[0] <= x[1]), [1, 0], 0, [1, 1], 2 / 3),
    "objectives": (problem(DISTANCE + cp.maximum(cp.norm(x), x[0])), [2, 0], 1, [0, 1], 1 / 2),
    "eigenvalue": (problem(DISTANCES, cp.lambda_max(X) <= 1, X[0, 0] <= 1), np.diag([2, 0]), (0, 1), ACROSS, 1 / 2),
    "diagonal": (problem(DISTANCES, X >> 0, cp.diag(X) >= 0), np.diag([-1, 1]), (0, 1), ACROSS, 1 / 2),
}


#: two balls in half-planes, whose forces may be very different; half-planes in different units
PAIRS = [c for row in (0, 1) for c in (cp.norm(X2[row] - [-1, 0]) <= 1, X2[row, 0] <= 0)]
UNITS = [cp.norm(x - [-20, 0]) <= 20, 1e3 * x[0] <= 0, 1e-3 * x[0] <= 0]
TOUCHING |= {
    "pairs": (problem(0.5 * cp.sum_squares(X2 - Q), *PAIRS), [[1, 0], [0.01, 0]], (0, 1), [[0, 1], [0, 0]], 1 / 2),
    "units": (problem(DISTANCE, *UNITS), [0.4, 0], 1, [0, 1], 20 / 20.4),
    "weak curvature": (problem(DISTANCE, cp.norm(x - [-1e4, 0]) <= 1e4, x[0] <= 0), [1, 0], 1, [0, 1], 1e4 / 10001),
}


@pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own, in jvp
@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize("name", TOUCHING)
def test_a_derivative_that_depends_on_the_division_of_forces_is_flagged(name: str, options: dict[str, str]) -> None:
    made, values, output, direction, rate = TOUCHING[name]
    data, (variable,) = made.parameters()[0], made.variables()
    layer = FFOLayer(made, [data], [variable], **options)
    given, along = (torch.tensor(np.array(v), dtype=torch.float64) for v in (values, direction))
    (found,) = layer(given.requires_grad_())
    found[output].backward()
    assert given.grad is not None
    right = abs(float((given.grad * along).sum()) - rate) < 1e-6
    assert right or not layer.info.certificate.good[0]
    _, (tangent,) = torch.func.jvp(layer, (given.detach(),), (along,))
    right = abs(float(tangent[output]) - rate) < 1e-6
    assert right or not layer.info.certificate.good[0]


@pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")
@pytest.mark.parametrize("options", WAYS, ids=str)
@pytest.mark.parametrize(
    ("radius", "beyond", "cost", "loss"),
    [(1, 1, 1, 1e6), (1, 0.01, 1, 1e6), (100, 1, 1e4, 1e6), (0.01, 100, 1e3, 1e5), (100, 0.1, 1e4, 1e5)],
)
def test_a_large_loss_elsewhere_does_not_hide_it(
    radius: float, beyond: float, cost: float, loss: float, options: dict[str, str]
) -> None:
    """The derivative is that of the ball alone, radius / (radius + beyond)."""
    z, r = cp.Variable(), cp.Parameter()
    ball = cp.norm(x - [-radius, 0]) <= radius
    layer = FFOLayer(problem(cost * DISTANCE + 0.5 * (z - r) ** 2, ball, x[0] <= 0), [q, r], [x, z], **options)
    given = torch.tensor([beyond, 0.0], dtype=torch.float64, requires_grad=True)
    found, free = layer(given, torch.tensor(1.0, dtype=torch.float64, requires_grad=True))
    (found[1] + loss * free).backward()
    assert given.grad is not None
    right = abs(float(given.grad[1]) * (radius + beyond) / radius - 1) < 1e-6
    assert right or not layer.info.certificate.good.any()


@pytest.mark.parametrize("options", WAYS, ids=str)
def test_touching_boundaries_that_no_loss_sees_are_no_reason_for_doubt(options: dict[str, str]) -> None:
    z, r = cp.Variable(), cp.Parameter()
    coupled = 0.1 * cp.square(z - x[0])
    made = problem(DISTANCE + coupled + 0.5 * (z - r) ** 2, cp.norm(x - [-1, 0]) <= 1, 100 * x[0] <= 0)
    layer = FFOLayer(made, [q, r], [x, z], **options)
    given = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GradientWarning)
        _, free = layer(given, torch.tensor(1.0, dtype=torch.float64, requires_grad=True))
        (1e3 * free).backward()
    assert layer.info.certificate.good.all()
    torch.testing.assert_close(given.grad, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")
@pytest.mark.parametrize("options", WAYS, ids=str)
def test_groups_of_different_cones(options: dict[str, str]) -> None:
    """A system that cannot be solved with forces divided otherwise is a reason for doubt, too."""
    across, along, first = np.array([-np.sin(1), np.cos(1)]), np.array([np.cos(1), np.sin(1)]), np.eye(4)[0]
    z, r = cp.Variable(4), cp.Parameter(4)
    V = np.outer(across, across)
    constraints = [X >> 0, *(k * cp.sum(cp.multiply(V, X)) >= 0 for k in (1.0, 1e3, 0.01))]
    constraints += [cp.norm(z + 12 * first) <= 12, 28 * z[0] <= 0, 13 * cp.norm(z + 300 * first) <= 3900]
    layer = FFOLayer(problem(DISTANCES + 0.5 * cp.sum_squares(z - r), *constraints), [Q, r], [X, z], **options)
    given = torch.tensor(0.24 * np.outer(along, along) - 0.5 * V, requires_grad=True)
    found, _ = layer(given, torch.tensor(0.04 * first, requires_grad=True))
    turn = torch.tensor(np.outer(along, across) + np.outer(across, along))
    (found * turn).sum().backward()
    assert given.grad is not None
    right = abs(float((given.grad * turn).sum()) / 2 - 0.24 / 0.74) < 1e-6
    assert right or not layer.info.certificate.good[0]


@pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")
@pytest.mark.parametrize("force", [0.7597857978680639, 1.0, 1.1569502149378403])
def test_a_change_that_is_not_solved_for_accurately_tells_nothing(force: float) -> None:
    """MINRES leaves large multiples of null vectors in multipliers, beside which a change looked like rounding."""
    normal, slope = (
        np.array([0.9990695061702831, -0.04312912983896822]),
        np.array([0.09872750839104412, 2.286984305548014]),
    )
    radius, pull = 1 / 24.858129634955045, np.array([0.08640641385366013, -0.0037301042810318308])
    metric = np.array([[1.475236967536119, -0.5761647241329128], [-0.5761647241329128, 1.7728223914324344]])
    ball = cp.norm(x + radius * normal) <= radius
    cone = cp.geo_mean(cp.hstack([1 + slope @ x, 1.0])) >= normal @ x + 1 + 0.5 * (slope @ x)
    objective = 0.5 * cp.sum_squares(np.linalg.cholesky(metric).T @ x) - q @ x
    layer = FFOLayer(problem(objective, ball, ball, cone), [q], [x], backward="resolve")
    given, weights = (
        torch.tensor(force * pull, requires_grad=True),
        np.array([-0.05402031920257329, 0.7083199408757617]),
    )
    (layer(given)[0] @ torch.tensor(weights)).backward()
    along = np.array([-normal[1], normal[0]])
    rate = along * (along @ weights) / (along @ metric @ along + force * np.linalg.norm(pull) / radius)
    assert given.grad is not None
    right = np.abs(given.grad.numpy() - rate).max() < 1e-5 * np.abs(rate).max()
    assert right or not layer.info.certificate.good[0]


@pytest.mark.filterwarnings("ignore::ffo.errors.GradientWarning")
@pytest.mark.parametrize("options", WAYS, ids=str)
def test_another_group_with_a_large_loss_does_not_hide_it(options: dict[str, str]) -> None:
    """A cone twice, which does no harm, with a loss of 1e4, and a ball in another cone. The ball determines the
    derivative."""
    normal, slope = np.array([0.3292473748756108, 0.9442437006078034]), np.array([-33.71102823, 11.754664121])
    inward, radius = np.array([-0.7814119384724258, -0.4954397996511314, -0.3793873842583757]), 0.0009129503466162432
    turn, cost, force = np.array([1.9059982265, -1.0479579121, -5.6877542123]), 442.0, 1.1413537
    z, r = cp.Variable(3), cp.Parameter(3)
    twice = [cp.exp(slope @ x) <= 1 + slope @ x - normal @ x] * 2
    touching = [cp.norm(z + radius * inward) <= radius, cp.norm(cp.hstack([turn @ z, 1.0])) <= 1 - inward @ z]
    objective = cost / 2 * cp.sum_squares(cp.hstack([x, z])) - q @ x - r @ z
    layer = FFOLayer(problem(objective, *twice, *touching), [q, r], [x, z], **options)
    given = [torch.tensor(v, requires_grad=True) for v in (1.8366e-3 * normal, force * inward)]
    weights = np.array([0.8198482143682693, 0.007820706760794433, -1.3829451649145739])
    here, there = layer(*given)
    (here @ torch.tensor([9443.7, 7026.0], dtype=torch.float64) + there @ torch.tensor(weights)).backward()
    rate = (weights - inward * (inward @ weights)) / (cost + force / radius)
    assert given[1].grad is not None
    right = np.abs(given[1].grad.numpy() - rate).max() < 1e-5 * np.abs(rate).max()
    assert right or not layer.info.certificate.good[0]


def test_one_boundary_in_two_units_is_good() -> None:
    """Null vectors had rounding errors in variables, which counted as another solution."""
    z, r = cp.Variable(3), cp.Parameter(3)
    inside = [k * cp.log_sum_exp(z) <= k for k in (1.0, 10.0)]
    layer = FFOLayer(problem(50 * cp.sum_squares(z - r), *inside), [r], [z])
    given = torch.tensor(3 * np.random.default_rng(0).normal(size=(100, 3)), requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GradientWarning)
        (found,) = layer(given)
        found.square().sum().backward()
    assert layer.info.certificate.good.all()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("units", [0.01, 100.0])
def test_a_matrix_inequality_in_two_units_is_good(units: float, seed: int) -> None:
    """Forces may be divided so that one of the blocks has none, and no curvature."""
    rng = np.random.default_rng(seed)
    given = torch.tensor(rng.normal(size=(2, 2)) - 2 * np.eye(2), requires_grad=True)
    weights, found = torch.tensor(rng.normal(size=(2, 2))), []
    for constraints in ([X >> 0], [X >> 0, units * X >> 0]):
        layer = FFOLayer(problem(10 * DISTANCES, *constraints), [Q], [X], solver="CLARABEL")
        with warnings.catch_warnings():
            warnings.simplefilter("error", GradientWarning)
            (solution,) = layer(given)
            found += torch.autograd.grad((solution * weights).sum(), given)
        assert layer.info.certificate.good.all()
    torch.testing.assert_close(*found, rtol=0, atol=1e-9)


@pytest.mark.parametrize("seed", range(16))
def test_cones_in_several_units_are_good(seed: int) -> None:
    """The copy in large units has hardly any force, or none; which of its faces counts then depended on rounding."""
    rng = np.random.default_rng(seed)
    family = mix_touching(rng, copies=1.0)
    layer = FFOLayer(family.problem, family.parameters, family.variables)
    given = torch.tensor(np.stack([family.draw(rng)[0] for _ in range(4)]), requires_grad=True)
    weights = rng.normal(size=given.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GradientWarning)
        (found,) = layer(given)
        (gradient,) = torch.autograd.grad((found * torch.tensor(weights)).sum(), given)
    assert layer.info.certificate.good.all()
    # the derivative is symmetric
    expected = [family.moves(q, c) for q, c in zip(given.detach().numpy(), weights, strict=True)]
    torch.testing.assert_close(gradient, torch.tensor(np.stack(expected)), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("options", WAYS[:2], ids=str)
@pytest.mark.parametrize(
    ("constraints", "direction"),
    [
        ([cp.norm(x) <= 1, cp.norm(x) <= 1], [0.0, 1.0]),  # however forces are divided, the curvature is the same
        ([cp.norm(x) <= 1, x[0] <= 1], [1.0, 0.0]),  # nothing moves along the boundary
        ([cp.norm(x) <= 1, 2 * x[0] + 3 * x[1] <= 9], [0.0, 1.0]),  # the second one is inactive
    ],
    ids=["twice", "straight on", "apart"],
)
def test_a_derivative_that_does_not_depend_on_it_is_good(
    constraints: list[cp.Constraint], direction: list[float], options: dict[str, str]
) -> None:
    layer = FFOLayer(problem(DISTANCE, *constraints), [q], [x], **options)
    given = torch.tensor([2.0, 0.0], dtype=torch.float64, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", GradientWarning)
        (found,) = layer(given)
        (found @ torch.tensor(direction, dtype=torch.float64)).backward()
    assert layer.info.certificate.good.all()
    torch.testing.assert_close(given.grad, torch.tensor([0.0, 0.5 * direction[1]], dtype=torch.float64))
