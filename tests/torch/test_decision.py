"""Decisions with predicted costs: fixed regions, regret, and losses that need only solutions, by known formulas."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo.errors import InfeasibleError, InputError, UnboundedError, UnsupportedProblemError, ZeroGradientWarning
from ffo.torch import FFOLayer, FFOQPLayer, Smoothing
from ffo.torch.decision import FixedRegion, PerturbedFenchelYoung, SPOPlus, normalized_regret, regret

D = torch.float64
N, CHOSEN, BATCH = 6, 3, 5
#: every choice of CHOSEN out of N: the vertices of {x in [0, 1]^N : sum x = CHOSEN}
POINTS = torch.tensor(
    [[float(k in chosen) for k in range(N)] for chosen in itertools.combinations(range(N), CHOSEN)]
).to(D)
KINDS = ["continuous", "integer"]
SENSES = [False, True]
kind = pytest.mark.parametrize("kind", KINDS)
sense = pytest.mark.parametrize("maximize", SENSES, ids=["minimize", "maximize"])


def region(kind: str, maximize: bool = False, **options: object) -> FixedRegion:
    x = cp.Variable(N, boolean=kind == "integer")
    return FixedRegion(x, [cp.sum(x) == CHOSEN, x >= 0, x <= 1], maximize=maximize, **options)


def costs(seed: int, batch: int = BATCH) -> torch.Tensor:
    return torch.randn(batch, N, dtype=D, generator=torch.Generator().manual_seed(seed))


def best(c: torch.Tensor, maximize: bool) -> torch.Tensor:
    """By enumeration."""
    values = c @ POINTS.mT
    return POINTS[values.argmax(dim=1) if maximize else values.argmin(dim=1)]


@kind
@sense
def test_decisions_are_those_of_an_enumeration(kind: str, maximize: bool) -> None:
    c = costs(0)
    found = region(kind, maximize)(c)
    torch.testing.assert_close(found, best(c, maximize), rtol=0, atol=1e-9)
    torch.testing.assert_close(region(kind, maximize)(c[0]), found[0], rtol=0, atol=1e-9)
    assert region(kind)(c.float()).dtype == torch.float32


def test_a_knapsack_with_other_variables_and_a_matrix_of_decisions() -> None:
    """Assign 3 jobs to 2 machines of capacity 2; opening a machine is another variable."""
    x, used = cp.Variable((3, 2), boolean=True), cp.Variable(2, boolean=True)
    layer = FixedRegion(x, [cp.sum(x, axis=1) == 1, cp.sum(x, axis=0) <= 2 * used, cp.sum(used) <= 2])
    c = torch.tensor([[[1.0, 5.0], [1.0, 4.0], [1.0, 3.0]]])
    assert layer(c).tolist() == [[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]]


@kind
@sense
def test_regret(kind: str, maximize: bool) -> None:
    c, guess = costs(0), costs(1)
    layer = region(kind, maximize)
    sign = -1.0 if maximize else 1.0
    expected = sign * ((c * best(guess, maximize)).sum(1) - (c * best(c, maximize)).sum(1))
    found = regret(layer, guess, c)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)
    assert (found > -1e-9).all()
    torch.testing.assert_close(regret(layer, guess[0], c[0]), expected[0], rtol=0, atol=1e-8)
    total = (c * best(c, maximize)).sum(1).abs().sum()
    torch.testing.assert_close(normalized_regret(layer, guess, c), expected.sum() / total, rtol=0, atol=1e-8)


@kind
@sense
def test_spo_plus_has_the_value_and_the_subgradient_of_its_definition(kind: str, maximize: bool) -> None:
    c, guess = costs(0), costs(1).requires_grad_()
    layer, sign = region(kind, maximize), -1.0 if maximize else 1.0
    x = best(c, maximize)
    twice = (2 * guess - c).detach()
    largest = (-sign * twice @ POINTS.mT).amax(dim=1)
    expected = largest + sign * (2 * (guess.detach() * x).sum(1) - (c * x).sum(1))
    each = SPOPlus(layer, reduction="none")(guess, c)
    torch.testing.assert_close(each.detach(), expected, rtol=0, atol=1e-8)
    assert (each.detach() >= regret(layer, guess, c) - 1e-8).all()  # an upper bound of the regret
    weights = torch.arange(1.0, BATCH + 1, dtype=D)
    (gradient,) = torch.autograd.grad((weights * each).sum(), [guess])
    subgradient = 2 * sign * (x - best(twice, maximize))
    torch.testing.assert_close(gradient, weights.unsqueeze(1) * subgradient, rtol=0, atol=1e-8)
    for reduction, value in (("mean", expected.mean()), ("sum", expected.sum())):
        torch.testing.assert_close(SPOPlus(layer, reduction)(guess, c, x).detach(), value, rtol=0, atol=1e-8)
    one = SPOPlus(layer, "none")(guess[0], c[0])
    torch.testing.assert_close(one.detach(), expected[0], rtol=0, atol=1e-8)


@kind
@sense
def test_fenchel_young_has_the_value_and_the_gradient_of_its_definition(kind: str, maximize: bool) -> None:
    x, guess = best(costs(0), maximize), costs(1).requires_grad_()
    sign, size, draws = -1.0 if maximize else 1.0, 0.5, 7
    loss = PerturbedFenchelYoung(region(kind, maximize), size, draws, seed=3, reduction="none")
    noise = torch.from_numpy(np.random.default_rng(3).normal(size=(BATCH, draws, N)))
    shifted = guess.detach().unsqueeze(1) + size * noise
    lowest = (sign * shifted @ POINTS.mT).amin(dim=2).mean(dim=1)
    found = loss(guess, x)
    torch.testing.assert_close(found.detach(), sign * (guess.detach() * x).sum(1) - lowest, rtol=0, atol=1e-8)
    (gradient,) = torch.autograd.grad(found.sum(), [guess])
    mean = best(shifted.flatten(0, 1), maximize).reshape(BATCH, draws, N).mean(1)
    torch.testing.assert_close(gradient, sign * (x - mean), rtol=0, atol=1e-8)


@sense
def test_gradients_of_losses_are_those_of_differences(maximize: bool) -> None:
    c, guess, layer = costs(0), costs(1).requires_grad_(), region("continuous", maximize)
    direction = costs(2)

    def losses(p: torch.Tensor) -> torch.Tensor:
        return torch.stack([SPOPlus(layer)(p, c), PerturbedFenchelYoung(layer, seed=1)(p, best(c, maximize))])

    for k in range(2):
        (gradient,) = torch.autograd.grad(losses(guess)[k], [guess])
        with torch.no_grad():
            change = (losses(guess + 1e-6 * direction) - losses(guess - 1e-6 * direction))[k] / 2e-6
        torch.testing.assert_close((gradient * direction).sum(), change, rtol=1e-6, atol=1e-6)


@kind
def test_smoothed_decisions_have_the_derivative_of_their_mean(kind: str) -> None:
    """The mean decision of a choice of one out of two, x_0 = Phi((c_1 - c_0) / (s sqrt 2)), in closed form."""
    x = cp.Variable(2, boolean=kind == "integer")
    size, draws = 0.7, 4000 if kind == "continuous" else 1500
    layer = FixedRegion(x, [cp.sum(x) == 1, x >= 0, x <= 1], smoothing=Smoothing(costs=size, draws=draws, seed=1))
    c = torch.tensor([[0.3, 0.6]], dtype=D, requires_grad=True)
    found = layer(c)
    normal = torch.distributions.Normal(0.0, 1.0)
    gap = torch.tensor(0.3 / (size * 2**0.5))
    assert abs(found[0, 0].item() - normal.cdf(gap).item()) < 4 * 0.5 / draws**0.5
    (gradient,) = torch.autograd.grad(found[0, 0], [c])
    density = normal.log_prob(gap).exp().item() / (size * 2**0.5)
    expected = torch.tensor([[-density, density]], dtype=D)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=4 / (size * draws**0.5))
    torch.testing.assert_close(layer(c[0]).sum().detach(), torch.tensor(1.0, dtype=D), rtol=0, atol=1e-9)


@kind
def test_training_on_spo_plus_finds_the_right_decisions(kind: str) -> None:
    """Costs are linear in features; the loss sees decisions only, and their regret falls to zero."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(40, 3, dtype=D, generator=generator)
    c = features @ torch.randn(3, N, dtype=D, generator=generator) + 1
    layer = region(kind)
    model = torch.nn.Linear(3, N, dtype=D)
    torch.nn.init.zeros_(model.weight)
    loss, optimizer = SPOPlus(layer), torch.optim.Adam(model.parameters(), lr=0.1)
    x = layer.solve(c)
    before = normalized_regret(layer, model(features), c, x)
    for _ in range(40):
        optimizer.zero_grad()
        loss(model(features), c, x).backward()
        optimizer.step()
    assert normalized_regret(layer, model(features), c, x) < 0.05 * before


def test_copies_and_pickles_decide_alike() -> None:
    c = costs(0)
    for kind in KINDS:
        layer = region(kind)
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            torch.testing.assert_close(other(c), layer(c), rtol=0, atol=1e-9)


# What cannot be right is said


def test_failures_name_the_sample_and_the_reason() -> None:
    x = cp.Variable(2, integer=True)
    with pytest.raises(InfeasibleError, match="sample 0"):
        FixedRegion(x, [x >= 1, x <= 0])(torch.ones(3, 2))
    with pytest.raises(UnboundedError, match="sample 1"):
        FixedRegion(x, [x >= 0, x[0] <= 3])(torch.tensor([[1.0, 1.0], [1.0, -1.0]]))


def test_bad_arguments_are_refused() -> None:
    x, p = cp.Variable(2, boolean=True), cp.Parameter(name="capacity")
    with pytest.raises(InputError, match="a fixed region has no parameters, but its constraints have capacity"):
        FixedRegion(x, [cp.sum(x) <= p])
    with pytest.raises(InputError, match="the decision must be a CVXPY variable, not"):
        FixedRegion(x + 1, [])
    with pytest.raises(InputError, match="perturbed costs only"):
        FixedRegion(x, [], smoothing=Smoothing(0.1))
    with pytest.raises(UnsupportedProblemError, match="no solver for this problem with integers"):
        FixedRegion(x, [], solver="CLARABEL")
    layer = FixedRegion(x, [])
    with pytest.raises(InputError, match="Expected: \\(2,\\), Got: \\(3,\\)"):
        layer(torch.ones(3))
    with pytest.raises(InputError, match="costs must be a torch tensor"):
        layer([1.0, 2.0])
    with pytest.raises(InputError, match=r"predictions are \(3, 2\), but their targets \(2, 2\)"):
        SPOPlus(layer)(torch.ones(3, 2), torch.ones(2, 2))
    with pytest.raises(InputError, match="reduction must be"):
        SPOPlus(layer, "median")
    with pytest.raises(InputError, match="size must be positive"):
        PerturbedFenchelYoung(layer, 0.0)
    with pytest.raises(InputError, match="draws must be a positive integer"):
        PerturbedFenchelYoung(layer, draws=0)


# The gradient of a vertex


@kind
def test_a_zero_gradient_is_noticed_once(kind: str) -> None:
    layer, c = region(kind), costs(0).requires_grad_()
    with pytest.warns(ZeroGradientWarning, match="Smoothing\\(costs="):
        layer(c).square().sum().backward()
    assert c.grad.abs().max() < 1e-12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(c).square().sum().backward()


def test_the_notice_of_the_other_layers() -> None:
    p, G, h = torch.tensor([-0.9, -1.0, -0.6], requires_grad=True), torch.ones(1, 3), torch.ones(1, requires_grad=True)
    lb = torch.zeros(3)
    with pytest.warns(ZeroGradientWarning, match="does not move when the costs change"):
        FFOQPLayer()(None, p, G, h, lb=lb)[0].backward()
    x, c = cp.Variable(3), cp.Parameter(3)
    layer = FFOLayer(cp.Problem(cp.Maximize(c @ x), [x >= 0, cp.sum(x) <= 1]), [c], [x])
    with pytest.warns(ZeroGradientWarning):
        layer(-p)[0][1].backward()


def test_the_notice_of_layers_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors are treated like device tensors."""
    monkeypatch.setattr("ffo.torch.qp.worthwhile", lambda given: True)
    monkeypatch.setattr("ffo.torch.layer.worthwhile", lambda canonical, batch, device: True)
    p = -torch.tensor([[0.9, 1.0, 0.6], [0.2, 0.1, 0.7]], dtype=torch.float64).requires_grad_()
    x, c = cp.Variable(3), cp.Parameter(3)
    written = FFOLayer(cp.Problem(cp.Minimize(c @ x), [x >= 0, cp.sum(x) <= 1]), [c], [x])
    matrices, one = FFOQPLayer(), torch.ones(1, dtype=torch.float64, requires_grad=True)

    def by_matrices(costs: torch.Tensor) -> torch.Tensor:
        return matrices(None, costs, torch.ones(1, 3).double(), one, lb=torch.zeros(3).double())

    for layer, solve in ((matrices, by_matrices), (written, lambda costs: written(costs)[0])):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if layer is matrices:
                solve(p.detach()).sum().backward()  # the right-hand side has a gradient
        with pytest.warns(ZeroGradientWarning, match="once per layer"):
            solve(p).square().sum().backward()
        assert all("batched" in name for name in layer.info.solver)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            solve(p).square().sum().backward()


def test_no_notice_where_the_gradient_is_of_use() -> None:
    p, G, h = torch.tensor([-0.9, -1.0, -0.6], requires_grad=True), torch.ones(1, 3), torch.ones(1, requires_grad=True)
    lb = torch.zeros(3)
    FFOQPLayer()(None, p.detach(), G, h, lb=lb)[1].backward()  # right-hand sides do move a vertex
    FFOQPLayer(smoothing=Smoothing(costs=0.3, draws=4))(None, p, G, h, lb=lb)[0].backward()
    FFOQPLayer()(0.5 * torch.eye(3), p, G, h, lb=lb)[0].backward()
    (0.0 * FFOQPLayer()(None, p, G, h, lb=lb)).sum().backward()  # the loss does not see the solution
    FFOQPLayer(duals=True)(None, p, G, h, lb=lb).lam.sum().backward()  # multipliers do move with the costs
