"""Singular ghost systems and weakly active rows: flagged if, and only if, the loss or a parameter sees them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import cvxpy as cp
import pytest
import torch

from ffo.torch import FFOLayer, FFOQPLayer

EACH_WAY = pytest.mark.parametrize("backward", ["direct", "iterative"])


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_default_dtype(before)


def verdict(layer: Any, loss: Callable[..., torch.Tensor], *values: torch.Tensor, **options: Any) -> bool:
    """Whether all gradients of a loss of the layer's outputs are called good."""
    outputs = layer(*values, **options)
    loss(*outputs if isinstance(outputs, tuple) else [outputs]).backward()
    return bool(layer.info.certificate.good.all())


def differences(f: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor, h: float = 1e-6) -> torch.Tensor:
    """Central differences of a scalar function."""
    grid = torch.eye(at.numel()).reshape(-1, *at.shape) * h
    with torch.no_grad():
        return torch.stack([(f(at + e) - f(at - e)) / (2 * h) for e in grid]).reshape(at.shape)


@EACH_WAY
@pytest.mark.parametrize("kind", ["pos and neg", "maximum"])
def test_rows_that_depend_on_each_other_but_move_together(kind: str, backward: str) -> None:
    """At a kink of the cost all its epigraph rows are active; the parameter moves them together."""
    x, q = cp.Variable(3), cp.Parameter(3)
    cost = (
        0.3 * cp.pos(x - q) + 0.7 * cp.neg(x - q) if kind == "pos and neg" else cp.maximum(0.3 * (x - q), 0.7 * (q - x))
    )
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum(cost) + 0.1 * cp.sum_squares(x))), [q], [x], backward=backward)
    torch.manual_seed(0)
    t = torch.randn(20, 3).requires_grad_()
    weights = torch.randn(20, 3)
    assert verdict(layer, lambda z: (weights * z).sum(), t)
    expected = differences(lambda v: (weights * layer(v)[0]).sum(), t.detach())
    torch.testing.assert_close(t.grad, expected, atol=1e-6, rtol=0)


@EACH_WAY
@pytest.mark.parametrize("learnt", ["A", "b", "p"])
def test_dependent_equalities(learnt: str, backward: str) -> None:
    """z jumps when a coefficient changes; right-hand sides are assumed to move together; costs change nothing."""
    data = {"A": torch.ones(2, 2), "b": torch.ones(2), "p": torch.tensor([0.0, -1.0])}
    data[learnt].requires_grad_()
    layer = FFOQPLayer(backward=backward)
    blocks = (torch.eye(2), data["p"], torch.zeros(0, 2), torch.zeros(0), data["A"], data["b"])
    assert verdict(layer, lambda z: z.flatten()[0], *blocks) == (learnt != "A")


@EACH_WAY
@pytest.mark.parametrize(("seen", "tied", "good"), [(True, False, False), (True, True, True), (False, False, True)])
def test_a_row_given_twice(seen: bool, tied: bool, good: bool, backward: str) -> None:
    """x0 <= b0, x0 <= b1 with b0 = b1: the derivative in one of them alone is one-sided."""
    x, q, b = cp.Variable(2), cp.Parameter(2), cp.Parameter(2)
    rows = [x[0] <= b[0], x[0] <= (b[0] if tied else b[1]), x[1] <= b[1] + 3]
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - q)), rows), [q, b], [x], backward=backward)
    sides = torch.ones(2).requires_grad_()
    assert verdict(layer, lambda z: z[0 if seen else 1], torch.tensor([2.0, 0.5]), sides) == good


@EACH_WAY
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize(("learnt", "good"), [("G", False), ("h", True), ("p", True)])
def test_opposite_rows_that_the_loss_does_not_see(learnt: str, good: bool, more: bool, backward: str) -> None:
    """y - x <= 2 and x - y <= -2 are an equality in disguise, and y = 2 is a bound: other coefficients leave no
    solution, or one far away. Also beside a third row that depends on them."""
    data = {"G": torch.tensor([[-2.0, 2.0], [20.0, -20.0], [-1.0, 1.0]]), "h": torch.tensor([4.0, -40.0, 2.0])}
    data = {name: v if more else v[:2] for name, v in data.items()} | {"p": torch.tensor([-40.0, -2000.0])}
    data[learnt].requires_grad_()
    layer, ub = FFOQPLayer(backward=backward), torch.tensor([torch.inf, 2.0])
    assert verdict(layer, lambda z: z[1], None, data["p"], data["G"], data["h"], ub=ub) == good


@EACH_WAY
def test_a_weakly_active_row_that_the_loss_does_not_see(backward: str) -> None:
    x, q = cp.Variable(2), cp.Parameter(2)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - q)), [x >= 0]), [q], [x], backward=backward)
    at = torch.tensor([[1.0, 0.0], [1.0, 2.0]]).requires_grad_()
    outputs, report = layer.call(at)
    outputs[0][:, 0].sum().backward(retain_graph=True)
    assert report.certificate.good.tolist() == [True, True]
    outputs[0][:, 1].sum().backward(retain_graph=True)
    assert report.certificate.good.tolist() == [False, True]
    assert "weakly active" in report.certificate.reasons(0)[0]
    outputs[0][:, 0].sum().backward()
    assert report.certificate.good.tolist() == [False, True]  # the worst of all passes is kept


@pytest.mark.parametrize("cone", ["norm", "norm1", "norm_inf"])
def test_a_weakly_active_block_that_the_loss_does_not_see(cone: str) -> None:
    ball = {"norm": lambda v: cp.norm(v, 2), "norm1": cp.norm1, "norm_inf": cp.norm_inf}[cone]
    x, z, q, p = cp.Variable(3), cp.Variable(2), cp.Parameter(3), cp.Parameter(2)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - q) + cp.sum_squares(z - p)), [ball(x) <= 1, z >= 0.2])
    layer = FFOLayer(problem, [q, p], [x, z])
    at, other = torch.tensor([0.6, 0.0, 0.8]), torch.tensor([1.0, -1.0])
    at = at / {"norm": 1.0, "norm1": 1.4, "norm_inf": 0.8}[cone]  # on the sphere, with a zero multiplier
    at.requires_grad_()
    other.requires_grad_()
    assert verdict(layer, lambda x, z: z.sum(), at, other)
    assert not verdict(layer, lambda x, z: x.sum(), at, other)


def test_epigraphs_at_a_vertex_are_no_reason_for_doubt() -> None:
    x, q = cp.Variable(5), cp.Parameter(5)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - q)), [cp.abs(x) <= 1]), [q], [x])
    torch.manual_seed(0)
    at = (2 * torch.randn(40, 5)).requires_grad_()
    assert verdict(layer, lambda z: z.sum(), at)
    torch.testing.assert_close(at.grad, (at.detach().abs() < 1).double(), atol=1e-9, rtol=0)


@pytest.mark.parametrize("far", [1e4, 1e9, 1e12, 1e14])
@pytest.mark.parametrize("row", ["bound", "norm"])
def test_distant_rows_change_nothing(row: str, far: float) -> None:
    x, q = cp.Variable(3), cp.Parameter(3)
    rows = [x >= 0, x <= far] if row == "bound" else [x >= 0, cp.norm(x, 2) <= far]
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - q)), rows), [q], [x])
    at = torch.tensor([1.0, -2.0, 0.5])
    with torch.no_grad():
        torch.testing.assert_close(layer(at)[0], at.clamp_min(0), atol=1e-8, rtol=0)
    assert verdict(layer, lambda z: z.sum(), at.requires_grad_())
    torch.testing.assert_close(at.grad, torch.tensor([1.0, 0.0, 1.0]), atol=1e-8, rtol=0)


def test_a_weakly_active_row_on_the_face() -> None:
    """Its multiplier is positive, but only rounding: found by the fuzzer."""
    Q, p = torch.tensor([[161002.63962247022]]), torch.tensor([6728.044679318079])
    G = torch.tensor([[59.150418750984976], [51.50252376506167], [-19.708165610306313], [-149.84954044656445]])
    h = torch.tensor([-2.4718020840538992, -0.6996367139338351, 1.15870384003356, 8.199714590425069])
    assert not verdict(FFOQPLayer(), lambda z: -z.sum(), Q, p.requires_grad_(), G, h)


def not_unique(outputs: str) -> FFOLayer:
    """minimize (x0 + x1 - q)^2 + c'x in a box: of x0 and x1 only the sum is determined."""
    x, q, c = cp.Variable(2), cp.Parameter(), cp.Parameter(2)
    total = cp.Variable()
    rows = [total == cp.sum(x), total >= q + 1, cp.abs(x) <= 5]
    problem = cp.Problem(cp.Minimize(cp.square(total - q) + c @ x), rows)
    shown = {"x": x, "sum": total, "multiplier": rows[1].dual_variables[0]}[outputs]
    return FFOLayer(problem, [q, c], [shown], solver="CLARABEL")


@pytest.mark.parametrize(("outputs", "good"), [("x", False), ("sum", True), ("multiplier", True)])
def test_solutions_that_are_not_unique_in_both_modes(outputs: str, good: bool) -> None:
    """Whether the loss, or the output, sees it; the parameter q moves all solutions alike."""
    layer = not_unique(outputs)
    q, c = torch.tensor(0.3, requires_grad=True), torch.zeros(2)
    assert verdict(layer, lambda v: v.flatten()[0], q, c) == good
    torch.func.jvp(lambda v: layer(v, c)[0], (torch.tensor(0.3),), (torch.tensor(1.0),))
    assert bool(layer.info.certificate.good.all()) == good


@pytest.mark.parametrize("outputs", ["sum", "multiplier"])
def test_costs_that_choose_among_solutions(outputs: str) -> None:
    """c distinguishes x0 from x1: what all solutions have in common has a kink in c."""
    c = torch.zeros(2, requires_grad=True)
    if outputs == "sum":  # determined by its row, whatever the cost
        assert verdict(not_unique(outputs), lambda v: v, torch.tensor(0.3), c)
    else:
        assert not verdict(not_unique(outputs), lambda v: v, torch.tensor(0.3), c)


@pytest.mark.parametrize("penalty", [cp.abs, cp.norm1])
def test_the_weight_of_a_penalty_that_is_zero(penalty: Callable[[cp.Variable], cp.Expression]) -> None:
    """Without a weight the epigraph variable of the penalty is anywhere above it; with any weight it meets x."""
    x, weight = cp.Variable(), cp.Parameter(nonneg=True)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.square(x - 1) + weight * penalty(x))), [weight], [x])
    assert not verdict(layer, lambda v: v, torch.tensor(0.0, requires_grad=True))
    assert verdict(layer, lambda v: v, torch.tensor(1e-3, requires_grad=True))


def test_each_row_of_a_jacobian_counts() -> None:
    x, q = cp.Variable(3), cp.Parameter(2)
    cost = cp.square(x[0] - q[0]) + cp.square(x[1] + x[2] - q[1])
    layer = FFOLayer(cp.Problem(cp.Minimize(cost), [cp.abs(x) <= 5]), [q], [x])
    torch.func.jacrev(lambda v: layer(v)[0])(torch.tensor([0.3, 0.4]))
    assert not layer.info.certificate.good.any()


RELATIVE_ENTROPIES = {"kl_div(x, p)": lambda x, p: cp.kl_div(x, p), "rel_entr(x, p)": lambda x, p: cp.rel_entr(x, p)}


@pytest.mark.parametrize("backward", ["direct", "iterative", "resolve"])
@pytest.mark.parametrize("entropy", RELATIVE_ENTROPIES)
def test_a_prior_of_zero_moves_its_exponential_cone_off_the_face(entropy: str, backward: str) -> None:
    """x = p / sum(p): the derivative in a p of zero is one-sided, and the row of p, which has no variable, is that of a
    cone whose other rows the loss sees."""
    x, p = cp.Variable(3), cp.Parameter(3, nonneg=True)
    problem = cp.Problem(cp.Minimize(cp.sum(RELATIVE_ENTROPIES[entropy](x, p))), [cp.sum(x) == 1])
    layer = FFOLayer(problem, [p], [x], backward=backward)
    weights = torch.tensor([1.0, 2.0, -1.0])
    for least, good in ((0.0, False), (1e-4, True)):
        values = torch.tensor([least, 0.5, 0.3], requires_grad=True)
        assert verdict(layer, lambda v: v @ weights, values) == good
        (gradient,) = torch.autograd.grad((values / values.sum()) @ weights, values)
        torch.testing.assert_close(values.grad[1:], gradient[1:], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("backward", ["direct", "iterative"])
@pytest.mark.parametrize("entropy", [cp.kl_div, lambda r, y: cp.rel_entr(r, y) + y])
def test_a_first_argument_of_zero_of_a_relative_entropy(entropy: Callable[..., cp.Expression], backward: str) -> None:
    """The multiplier of r grows without bound as r tends to zero, and the derivative there was zero and called good."""
    y, r, s = cp.Variable(), cp.Parameter(nonneg=True), cp.Parameter()
    layer = FFOLayer(cp.Problem(cp.Minimize(entropy(r, y) + cp.square(y - s))), [r, s], [y], backward=backward)
    target = torch.linspace(0.6, 3.0, 8)
    assert not verdict(layer, lambda v: v.sum(), torch.zeros(8, requires_grad=True), target)
    assert not layer.info.certificate.good.any()
    fixed = target.clone().requires_grad_()
    assert verdict(layer, lambda v: v.sum(), torch.zeros(8), fixed)  # nobody asks for the derivative in r
    torch.testing.assert_close(fixed.grad, torch.ones(8), rtol=1e-6, atol=1e-6)
    assert verdict(layer, lambda v: v.sum(), torch.full((8,), 1e-3, requires_grad=True), target)


def test_slacks_that_dwarf_the_constant_of_a_logarithm() -> None:
    """The middle row of the exponential cone of log(x) is 1, which is no first argument of zero if x is 1e17. Samples
    that are solved in several groups have derivatives of their own."""
    c, b, x = cp.Parameter(2, nonneg=True), cp.Parameter(), cp.Variable(2)
    layer = FFOLayer(cp.Problem(cp.Maximize(cp.sum(cp.log(x))), [c @ x <= b]), [c, b], [x], on_fail="nan")
    costs = torch.tensor([[1.0, 2.0], [1e-12, 1e-6]], requires_grad=True)
    for sample in range(2):
        (solution,) = layer(costs, torch.tensor([1.0, 1e6]))
        (found,) = torch.autograd.grad(solution[sample, 0], costs)
        expected = torch.tensor([[-1.0, 0.0], [0.0, 0.0]]).roll(sample, 0)
        torch.testing.assert_close(found * costs.detach() / solution.detach()[:, :1], expected, rtol=1e-9, atol=1e-9)
        assert layer.info.certificate.good.all()


@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-3])
def test_losses_of_what_constraints_alone_determine(size: float) -> None:
    """The costs have no part in the derivative: what they get is zero, and not doubtful because it is rounding."""
    x, q, b = cp.Variable(3), cp.Parameter(3, nonneg=True), cp.Parameter(nonneg=True)
    problem = cp.Problem(cp.Maximize(q @ cp.log(x)), [cp.sum(x) <= b, x[0] == 0.1 * b])
    torch.manual_seed(0)
    costs, budgets = 10 ** (2 * torch.rand(40, 3) - 1), size * 10 ** (2 * torch.rand(40) - 1)
    costs, budgets = costs.requires_grad_(), budgets.requires_grad_()
    assert verdict(FFOLayer(problem, [q, b], [x]), lambda z: z[:, 0].sum(), costs, budgets)
    torch.testing.assert_close(costs.grad, torch.zeros(40, 3))
    torch.testing.assert_close(budgets.grad, torch.full((40,), 0.1))


@pytest.mark.parametrize(("growth", "horizon"), [(1.3, 30), (1.5, 20)])
def test_an_unstable_system_with_inputs_at_their_bounds(growth: float, horizon: int) -> None:
    """States of 1e4 follow from the first one alone."""
    n, b = 2 * horizon, torch.zeros(horizon)
    A = torch.zeros(horizon, n)
    for i in range(horizon):
        A[i, 2 * i], A[i, 2 * i + 1] = 1.0, -1.0
        if i:
            A[i, 2 * i - 2] = -growth
    b[0] = 10 * growth
    b.requires_grad_()
    bounds = torch.tensor([torch.inf, 0.5] * horizon)
    p, Q = torch.zeros(n, requires_grad=True), torch.diag(torch.tensor([1.0, 0.1] * horizon))
    layer = FFOQPLayer()
    assert verdict(layer, lambda z: z[-2], Q, p, None, None, A, b, lb=-bounds, ub=bounds)
    torch.testing.assert_close(b.grad, growth ** torch.arange(horizon - 1.0, -1.0, -1.0), rtol=1e-12, atol=0)
    torch.testing.assert_close(p.grad, torch.zeros(n))


@pytest.mark.parametrize("size", [1.0, 0.1, 0.01])
def test_a_budget_written_twice_in_any_units(size: float) -> None:
    """Null vectors had rounding errors in rows of strongly curved blocks, which looked like rows that depend on
    others."""
    x, q, b = cp.Variable(3), cp.Parameter(3, nonneg=True), cp.Parameter(nonneg=True)
    rows = [x >= 0, cp.sum(x) == b, 2 * cp.sum(x) == 2 * b]
    layer = FFOLayer(cp.Problem(cp.Maximize(cp.sum(cp.log(q + x))), rows), [q, b], [x])
    torch.manual_seed(1)
    levels, budgets = size * 10 ** (2 * torch.rand(40, 3) - 1), size * 10 ** (2 * torch.rand(40) - 1)
    levels, budgets = levels.requires_grad_(), budgets.requires_grad_()
    weights = torch.randn(3)
    assert verdict(layer, lambda z: (z @ weights).sum(), levels, budgets)
    filled = layer(levels, budgets)[0] > 1e-8 * size
    expected = (filled * weights).sum(1) / filled.sum(1)
    torch.testing.assert_close(budgets.grad, expected, rtol=1e-8, atol=1e-8)
