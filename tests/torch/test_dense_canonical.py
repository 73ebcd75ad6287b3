"""FFOLayer on a device: solutions, duals and gradients are those of the core, for CVXPY problems of many forms."""

from __future__ import annotations

import copy
import gc
import pickle
from collections import OrderedDict

import cvxpy as cp
import numpy as np
import pytest
import torch
import zoo
from layers import loss_of, make_layer, tensors

from ffo.errors import GradientWarning, InfeasibleError, InvalidDataError
from ffo.torch import FFOLayer
from ffo.torch import layer as layer_module
from ffo.torch.dense import answer, canonical, interior

D = torch.float64
GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"))
device = pytest.mark.parametrize("device", ["cpu", GPU])
BATCH = 5


@pytest.fixture(autouse=True)
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU tensors are treated like device tensors."""
    monkeypatch.setattr(layer_module, "worthwhile", lambda canonical, batch, device: True)


def core_only(layer: FFOLayer) -> FFOLayer:
    """The same layer, solved by the core."""
    other = copy.copy(layer)
    other._suited = False
    return other


def step(layer: FFOLayer, values: list[torch.Tensor], place: str = "cpu", **call: object) -> list[torch.Tensor]:
    """Outputs, and the gradients of a fixed loss in all parameters."""
    leaves = [v.to(place, copy=True).requires_grad_() for v in values]
    outputs = layer(*leaves, **call)
    loss_of(outputs, batched=True).sum().backward()
    found = [*(v.detach() for v in outputs), *(v.grad for v in leaves)]
    assert all(v is not None and v.device.type == place for v in found)
    return [v.cpu() for v in found if v is not None]


def same(found: list[torch.Tensor], expected: list[torch.Tensor], tolerance: float = 1e-10) -> None:
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=tolerance, atol=tolerance)


def by_batched_algebra(layer: FFOLayer) -> list[bool]:
    assert layer.info is not None
    return [name.startswith("batched") for name in layer.info.solver]


#: left to the core: every sample has dependent rows at a vertex of |Ax - b|_1; the others have power cones
LEFT = {"least_absolute_values", "power_penalty", "three_norm"}
PROBLEMS = [*zoo.tagged("qp"), *zoo.tagged("lp"), *zoo.tagged("socp"), "power_penalty", "three_norm"]


@device
@pytest.mark.parametrize("shared", [False, True], ids=["all batched", "first shared"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_of_the_zoo(name: str, shared: bool, device: str) -> None:
    case = zoo.build(name)
    if shared and len(case.parameters) == 1:
        pytest.skip("one parameter")
    layer = make_layer(case)
    values = tensors(case.batch(BATCH, np.random.default_rng(0)), requires_grad=False)
    if shared:
        values[0] = values[0][0]
    expected = step(core_only(layer), values)
    same(step(layer, values, device), expected)
    assert all(by_batched_algebra(layer)) or name in LEFT


def budget(n: int = 12) -> tuple[FFOLayer, list[torch.Tensor]]:
    """The decision-focused problem of the paper: dense matrix parameters with sparse values, q batched; its duals."""
    y, Q, q = cp.Variable(n), cp.Parameter((n, n), PSD=True), cp.Parameter(n)
    G, h = cp.Parameter((2 * n + 1, n)), cp.Parameter(2 * n + 1)
    rows = G @ y <= h
    problem = cp.Problem(cp.Minimize(0.5 * cp.quad_form(y, Q, assume_PSD=True) - q @ y), [rows])
    eye = torch.eye(n, dtype=D)
    side = torch.cat([torch.ones(n, dtype=D), torch.zeros(n, dtype=D), torch.tensor([0.2 * n], dtype=D)])
    values = [eye, torch.randn(BATCH, n, dtype=D, generator=torch.manual_seed(0))]
    values += [torch.cat([eye, -eye, torch.ones(1, n, dtype=D)]), side]
    return FFOLayer(problem, [Q, q, G, h], [y, rows.dual_variables[0]]), values


@device
def test_diagonals_and_bounds_are_recognised_in_dense_parameters(device: str) -> None:
    layer, values = budget()
    expected = step(core_only(layer), values)
    same(step(layer, values, device), expected)
    assert layer.info is not None
    assert set(layer.info.solver) == {"batched dual Newton"}
    assert layer.info.certificate is not None
    assert layer.info.certificate.good.all()


def ball(n: int = 12, radius: float = 1.0) -> tuple[FFOLayer, list[torch.Tensor]]:
    """The same problem inside a ball, with the multipliers of all constraints."""
    y, Q, q = cp.Variable(n), cp.Parameter((n, n), PSD=True), cp.Parameter(n)
    G, h = cp.Parameter((2 * n + 1, n)), cp.Parameter(2 * n + 1)
    rows, cone = G @ y <= h, cp.SOC(cp.Constant(radius), y)
    problem = cp.Problem(cp.Minimize(0.5 * cp.quad_form(y, Q, assume_PSD=True) - q @ y), [rows, cone])
    values = budget(n)[1]
    values[3][-1] = 0.5 * n**0.5
    return FFOLayer(problem, [Q, q, G, h], [y, rows.dual_variables[0], *cone.dual_variables]), values


@device
@pytest.mark.parametrize("few", [True, False], ids=["few rows", "full matrix"])
@pytest.mark.parametrize("radius", [1.0, 50.0], ids=["active", "inactive"])
def test_second_order_cones(radius: float, few: bool, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "_recognised", OrderedDict())  # an earlier problem may have had the same address
    if not few:
        monkeypatch.setattr(answer, "FEW", 0.0)
    layer, values = ball(radius=radius)
    expected = step(core_only(layer), values)
    seen = []
    original = interior.prepare
    monkeypatch.setattr(interior, "prepare", lambda p: seen.append(p.diagonal) or original(p))
    same(step(layer, values, device), expected)
    assert set(seen) == {few}
    assert layer.info is not None
    assert set(layer.info.solver) == {"batched interior point"}
    assert layer.info.certificate is not None
    assert layer.info.certificate.good.all()


def test_a_cone_in_doubt_is_left_to_the_core() -> None:
    """The second sample touches the boundary of its cone without a force, the third is at its apex."""
    x, a, t = cp.Variable(2), cp.Parameter(2), cp.Parameter(nonneg=True)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - a)), [cp.SOC(t, x)]), [a, t], [x])
    given = torch.tensor([[0.3, 2.0], [0.6, 0.8], [1.0, 0.1], [0.1, 0.2]], dtype=D)
    radius = torch.tensor([1.0, 1.0, 0.0, 1.0], dtype=D)
    with pytest.warns(GradientWarning):
        found = step(layer, [given, radius])
    with pytest.warns(GradientWarning):
        expected = step(core_only(layer), [given, radius])
    assert by_batched_algebra(layer)[:2] == [True, False]
    assert by_batched_algebra(layer)[3]
    assert layer.info is not None
    assert layer.info.certificate is not None
    assert not layer.info.certificate.good[1]
    same(found[:1], expected[:1])
    same([v[[0, 3]] for v in found], [v[[0, 3]] for v in expected])


def test_an_infeasible_cone_is_named() -> None:
    x, a, t = cp.Variable(2), cp.Parameter(2), cp.Parameter()
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - a)), [cp.norm(x) <= t])
    values = [torch.ones(3, 2, dtype=D), torch.tensor([1.0, -1.0, 0.5], dtype=D)]
    layer = FFOLayer(problem, [a, t], [x], on_fail="nan")
    (found,) = layer(*values)
    assert found.isnan().any(dim=1).tolist() == [False, True, False]
    assert layer.info is not None
    assert list(layer.info.proofs) == [1]


def test_bounds_are_recognised_beside_batched_rows() -> None:
    n, x = 6, cp.Variable(6)
    A, c = cp.Parameter((2, n)), cp.Parameter(n)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x) + c @ x), [A @ x <= 1, x >= -0.3, 2 * x <= 1])
    layer = FFOLayer(problem, [A, c], [x])
    values = [torch.randn(BATCH, *s, dtype=D, generator=torch.manual_seed(k)) for k, s in enumerate([(2, n), (n,)])]
    same(step(layer, values), step(core_only(layer), values))
    assert set(layer.info.solver) == {"batched dual Newton"}  # type: ignore[union-attr]


def test_float32_in_and_out() -> None:
    layer, values = budget()
    found = step(layer, [v.float() for v in values])
    assert all(v.dtype is torch.float32 for v in found)
    same(found, [v.float() for v in step(layer, [v.float().double() for v in values])], 1e-5)


def test_a_single_sample() -> None:
    layer, values = budget()
    values[1] = values[1][0]
    leaves = [v.clone().requires_grad_() for v in values]
    (x, y), (x0, y0) = layer(*leaves), core_only(layer)(*values)
    assert by_batched_algebra(layer) == [True]
    same([x.detach(), y.detach()], [x0, y0])
    (x.sum() + y.square().sum()).backward()
    assert [v.grad.shape for v in leaves if v.grad is not None] == [v.shape for v in values]


def test_a_sample_in_doubt_is_left_to_the_core() -> None:
    x, a, b = cp.Variable(2), cp.Parameter(2), cp.Parameter(2)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - a)), [x <= b]), [a, b], [x])
    at_kink = [1.0, 0.1]
    values = [torch.tensor([[0.3, 2.0], at_kink, [5.0, 0.0]], dtype=D), torch.ones(2, dtype=D)]
    with pytest.warns(GradientWarning):
        found = step(layer, values)
    with pytest.warns(GradientWarning):
        expected = step(core_only(layer), values)
    same(found, expected)
    assert by_batched_algebra(layer) == [True, False, True]
    assert layer.info is not None
    assert layer.info.certificate is not None
    assert layer.info.certificate.good.tolist() == [True, False, True]


def test_a_problem_that_is_mostly_left_to_the_core_is_not_tried_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    original = layer_module.solve_on_device
    monkeypatch.setattr(layer_module, "solve_on_device", lambda *a: tries.append(1) or original(*a))
    x, a = cp.Variable(2), cp.Parameter(2)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - a)), [x <= 1]), [a], [x])
    for _ in range(8):
        layer(torch.ones(4, 2, dtype=D, requires_grad=True))  # all at a kink
    assert 0 < len(tries) < 8
    before = len(tries)
    for _ in range(40):
        layer(torch.zeros(4, 2, dtype=D))
    assert len(tries) > before
    assert all(by_batched_algebra(layer))


def test_failures_are_named_as_by_the_core() -> None:
    x, a, b = cp.Variable(2, name="x"), cp.Parameter(2), cp.Parameter()
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - a)), [x >= 0, cp.sum(x) <= b])
    values = [torch.tensor([[0.3, 2.0], [1.0, 0.1], [5.0, 0.0]], dtype=D), torch.tensor([1.0, 1.0, -1.0], dtype=D)]
    with pytest.raises(InfeasibleError, match="sample 2"):
        FFOLayer(problem, [a, b], [x])(*values)
    layer = FFOLayer(problem, [a, b], [x], on_fail="nan")
    (found,) = layer(*values)
    assert found.isnan().any(dim=1).tolist() == [False, False, True]
    assert by_batched_algebra(layer) == [True, True, False]
    assert layer.info is not None
    (expected,) = core_only(layer)(*values)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10, equal_nan=True)
    assert list(layer.info.proofs) == [2]


@pytest.mark.parametrize(
    ("attribute", "good", "bad"),
    [
        ({"nonneg": True}, 1.0, -1.0),
        ({"nonpos": True}, -1.0, 1.0),
        ({"bounds": [-1.0, 1.0]}, 0.5, 2.0),
    ],
)
def test_what_breaks_a_declaration_is_refused(attribute: dict, good: float, bad: float) -> None:
    x, a = cp.Variable(2), cp.Parameter(2, **attribute)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - a))), [a], [x])
    value = torch.full((3, 2), good, dtype=D)
    layer(value)
    assert all(by_batched_algebra(layer))
    value[1, 0] = bad
    with pytest.raises(InvalidDataError, match="declared"):
        layer(value)


@pytest.mark.parametrize("attribute", ["symmetric", "PSD", "NSD", "diag"])
def test_matrices_that_break_a_declaration_are_refused(attribute: str) -> None:
    x, S, c = cp.Variable(2), cp.Parameter((2, 2), **{attribute: True}), cp.Parameter(2)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - c) + cp.sum(S @ x))), [S, c], [x])
    good = (-1.0 if attribute == "NSD" else 1.0) * torch.eye(2, dtype=D).repeat(3, 1, 1)
    c_v = torch.ones(3, 2, dtype=D)
    layer(good, c_v)
    assert all(by_batched_algebra(layer))
    wrong = good.clone()
    wrong[1] = torch.tensor([[0.0, 1.0], [0.0 if attribute == "symmetric" else 1.0, 0.0]], dtype=D)
    with pytest.raises(InvalidDataError, match="declared"):
        layer(wrong, c_v)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_values_that_are_not_finite_are_refused(which: int, value: float) -> None:
    layer, values = budget()
    values[which] = values[which].clone()
    values[which].reshape(-1)[0] = value
    with pytest.raises(InvalidDataError) as expected:
        core_only(layer)(*values)
    with pytest.raises(InvalidDataError) as found:
        layer(*values)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize(
    "options",
    [
        {"solver": "CLARABEL"},
        {"backward": "resolve"},
        {"backward": "iterative"},
        {"smoothing": 0.01},
        {"verbose": True},
        {"solver_args": {"max_iters": 100}},
    ],
    ids=lambda options: str(*options.items()),
)
def test_options_of_the_core_are_left_to_it(options: dict) -> None:
    case = zoo.build("constrained_least_squares")
    layer = make_layer(case, **options)
    layer(*tensors(case.batch(2, np.random.default_rng(0))))
    assert not any(by_batched_algebra(layer))


def test_settings_of_a_call_are_left_to_the_core() -> None:
    layer, values = budget()
    layer(*values, solver_args={"eps": 1e-10})
    assert not any(by_batched_algebra(layer))


def test_cones_and_geometric_programs_are_left_to_the_core() -> None:
    for name in ("softmax", "box_volume", "nuclear_norm"):
        case = zoo.build(name)
        layer = make_layer(case)
        layer(*tensors(case.batch(2, np.random.default_rng(0))))
        assert not any(by_batched_algebra(layer))


def test_expressions_of_parameters() -> None:
    """Parameters that enter through a function of them."""
    x, a, b = cp.Variable(3), cp.Parameter(3), cp.Parameter(pos=True)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - cp.exp(a)) / b + a @ x), [x <= b * cp.sum(a), cp.sum(x) <= 2])
    layer = FFOLayer(problem, [a, b], [x])
    values = [torch.rand(BATCH, 3, dtype=D, generator=torch.manual_seed(0)) + 0.2, torch.tensor(1.5, dtype=D)]
    same(step(layer, values), step(core_only(layer), values))
    assert all(by_batched_algebra(layer))


def test_remembered_active_sets() -> None:
    layer, values = budget()
    expected = step(core_only(layer), values)
    for hits in (0, BATCH):
        same(step(layer, values, keys=range(BATCH)), expected)
        assert layer.info is not None
        assert layer.info.warm_hits == hits


def test_layers_with_equal_shapes_have_their_own_maps() -> None:
    values = [torch.ones(BATCH, 2, dtype=D), torch.ones(BATCH, dtype=D)]
    for sign in (1.0, -2.0):
        x, a, b = cp.Variable(2), cp.Parameter(2), cp.Parameter()
        layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - sign * a)), [cp.sum(x) <= sign * b]), [a, b], [x])
        same(step(layer, values), step(core_only(layer), values))


@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))], ids=["copy", "pickle"]
)
def test_layers_that_were_called_can_be_copied(twin: object) -> None:
    layer, values = budget()
    expected = step(layer, values)
    same(step(twin(layer), values), expected)  # type: ignore[operator]


def test_maps_are_freed_with_their_layers() -> None:
    from ffo.torch.dense import canonical

    layer, values = budget()
    step(layer, values)
    gc.collect()
    before = len(canonical._maps)
    del layer
    gc.collect()
    assert len(canonical._maps) == before - 1


def test_few_samples_are_solved_by_the_core() -> None:
    """A GPU takes nearly the same time for one sample as for a hundred."""
    x, c, there = cp.Variable(3), cp.Parameter(3), torch.device("cuda")
    direct = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x) - c @ x), [x >= 0]), [c], [x]).canonical
    linear = FFOLayer(cp.Problem(cp.Minimize(c @ x), [x >= 0, cp.sum(x) == 1]), [c], [x]).canonical
    assert [canonical.worthwhile(direct, b, there) for b in (None, 15, 16)] == [False, False, True]
    assert [canonical.worthwhile(linear, b, there) for b in (16, 127, 128)] == [False, False, True]
    assert not canonical.worthwhile(direct, 1000, torch.device("cpu"))
