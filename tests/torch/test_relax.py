"""on_fail="relax": the nearest feasible problem of infeasible samples, with its derivative."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo import solve_qp_batch
from ffo.errors import InfeasibleError, InputError, Status, UnboundedError
from ffo.torch import FFOFunctionLayer, FFOLayer, FFOQPLayer, Relax

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")

Array = np.ndarray
WEIGHT = 50.0


@dataclass(frozen=True)
class Kind:
    """A problem in x with a parameter p, and the same with explicit slack variables."""

    problem: cp.Problem
    relaxed: cp.Problem
    p: cp.Parameter
    x: cp.Variable
    infeasible: Array
    feasible: Array

    def layer(self, **options: object) -> FFOLayer:
        return FFOLayer(self.problem, [self.p], [self.x], on_fail=Relax(weight=WEIGHT), **options)

    def reference(self, p: Array) -> Array:
        self.p.value = p
        tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-11)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the last digits are not always reached
            self.relaxed.solve(solver="CLARABEL", **tight)
        return np.array(self.x.value)


def kind(
    x: cp.Variable,
    p: cp.Parameter,
    cost: cp.Expression,
    constraints: Callable[..., list],
    sizes: list,
    bad: list,
    good: list,
) -> Kind:
    """`constraints` of slacks of these shapes, in the order of the constraints (zeros: the problem itself)."""
    slacks = [cp.Variable(s, symmetric=True) if np.ndim(s) and len(s) == 2 else cp.Variable(s) for s in sizes]
    penalty = WEIGHT / 2 * sum(cp.sum_squares(r) for r in slacks)
    plain, written = constraints(*(np.zeros(s) for s in sizes)), constraints(*slacks)
    problems = cp.Problem(cp.Minimize(cost), plain), cp.Problem(cp.Minimize(cost + penalty), written)
    return Kind(*problems, p, x, np.array(bad), np.array(good))


def linear() -> Kind:
    x, p = cp.Variable(3), cp.Parameter(3)
    cost = cp.sum_squares(x - np.array([0.3, 0.1, -0.4]))
    return kind(x, p, cost, lambda r, t: [x <= p + r, cp.sum(x) >= 1.0 - t], [3, ()], [0.1, 0.3, -0.2], [1.0, 1.0, 1.0])


def equalities() -> Kind:
    x, p = cp.Variable(3), cp.Parameter(2)
    A = np.array([[1.0, 2.0, -1.0], [0.5, -1.0, 2.0]])
    cost = cp.sum_squares(x) + x[0]
    return kind(x, p, cost, lambda r, t: [A @ x == p + r, cp.abs(x) <= 1.0 + t], [2, 3], [6.0, 1.0], [0.5, 0.2])


def norms() -> Kind:
    x, p = cp.Variable(3), cp.Parameter(2)
    cost = cp.sum_squares(x - 1) + x[2] + x[0]
    return kind(x, p, cost, lambda r, t: [cp.norm(x) <= p[0] + r, x[0] >= p[1] - t], [(), ()], [1.0, 2.0], [3.0, 1.0])


def cones() -> Kind:
    x, p = cp.Variable(3), cp.Parameter(2)
    a = np.array([1.0, 1.0, -0.5])
    return kind(
        x, p, cp.sum_squares(x - 1), lambda r, u, t: [cp.SOC(p[0] + r, x + u), a @ x >= p[1] - t], [(), 3, ()],
        [0.5, 2.0], [4.0, 1.0],
    )  # fmt: skip


def semidefinite() -> Kind:
    x, p = cp.Variable((2, 2), symmetric=True), cp.Parameter(2)
    C = np.array([[1.0, 0.6], [0.6, 0.2]])
    return kind(
        x, p, cp.sum_squares(x - C), lambda R, t: [x - C / 4 + R >> 0, cp.trace(x) + p[1] * x[0, 1] <= p[0] + t],
        [(2, 2), ()], [-0.5, 0.3], [2.0, 0.3],
    )  # fmt: skip


def exponential() -> Kind:
    x, p = cp.Variable(2), cp.Parameter(2)
    cost = cp.sum_squares(x) + x[1]
    return kind(
        x, p, cost, lambda r, t: [cp.exp(x[0]) + x[1] <= p[0] + r, x >= p[1] - t], [(), 2], [0.5, 0.4], [3.0, 0.4]
    )


def power() -> Kind:
    x, p = cp.Variable(3), cp.Parameter(2)

    def rows(a: object, b: object, c: object, t: object) -> list:
        return [cp.PowCone3D(x[0] + a, x[1] + b, x[2] + c, 0.3), x[:2] <= p[0] + t[:2], x[2] >= p[1] - t[2]]

    cost = cp.sum_squares(x - np.array([0.2, 0.4, 1.0]))
    return kind(x, p, cost, rows, [(), (), (), 3], [0.5, 1.5], [2.0, 0.5])


KINDS = (linear, equalities, norms, cones, semidefinite, exponential, power)


def batch(k: Kind) -> Array:
    """An infeasible sample between two feasible ones, and another infeasible one."""
    return np.stack([k.feasible, k.infeasible, k.feasible * 1.1, k.infeasible * 0.9])


def solve(
    k: Kind, dtype: torch.dtype = torch.float64, **options: object
) -> tuple[FFOLayer, torch.Tensor, torch.Tensor]:
    layer, p = k.layer(**options), torch.tensor(batch(k), dtype=dtype, requires_grad=True)
    (x,) = layer(p)
    return layer, p, x


def loss(k: Kind, x: Array) -> float:
    return float((x * np.arange(1.0, x.size + 1).reshape(x.shape)).sum())


@pytest.mark.parametrize("make", KINDS)
def test_solutions_and_gradients_are_those_of_the_relaxed_problem(make: Callable[[], Kind]) -> None:
    k = make()
    layer, p, x = solve(k)
    assert layer.info is not None
    assert layer.info.status == [Status.SOLVED, Status.RELAXED] * 2
    assert (layer.info.violation[1::2] > 0.01).all()
    assert (layer.info.violation[::2] == 0).all()
    (x * torch.arange(1.0, x[0].numel() + 1, dtype=x.dtype).reshape(x.shape[1:])).sum().backward()
    assert layer.info.certificate is not None
    assert layer.info.certificate.good.all()
    assert layer.info.certificate.relaxed.tolist() == [False, True] * 2
    for sample in (1, 3):
        np.testing.assert_allclose(x[sample].detach(), k.reference(batch(k)[sample]), atol=2e-6)
        for j in range(p.shape[1]):
            slope = [central(k, batch(k)[sample], t * np.eye(p.shape[1])[j]) / t for t in (0.01, 0.02)]
            np.testing.assert_allclose(p.grad[sample, j], (4 * slope[0] - slope[1]) / 3, rtol=2e-4, atol=2e-4)


def central(k: Kind, p: Array, step: Array) -> float:
    return (loss(k, k.reference(p + step)) - loss(k, k.reference(p - step))) / 2


@pytest.mark.parametrize("make", KINDS)
def test_samples_with_a_feasible_point_are_not_touched(make: Callable[[], Kind]) -> None:
    k = make()
    _, p, x = solve(k)
    plain = FFOLayer(k.problem, [k.p], [k.x], on_fail="nan")
    q = torch.tensor(batch(k), requires_grad=True)
    (z,) = plain(q)
    assert torch.equal(x[::2], z[::2])
    assert z[1::2].isnan().all()
    x.sum().backward()
    z[::2].sum().backward()
    assert torch.equal(p.grad[::2], q.grad[::2])


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("backward", ["iterative", "resolve"])
def test_other_ways_agree(make: Callable[[], Kind], backward: str) -> None:
    grads = []
    for way in ("direct", backward):
        _, p, x = solve(make(), backward=way)
        (x**2).sum().backward()
        grads.append(p.grad)
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", KINDS)
def test_forward_mode_and_no_gradients(make: Callable[[], Kind]) -> None:
    k = make()
    _, p, x = solve(k)
    direction = torch.linspace(-1.0, 1.0, p.numel(), dtype=p.dtype).reshape(p.shape)
    _, tangent = torch.func.jvp(lambda v: k.layer()(v)[0], (p.detach(),), (direction,))
    weights = torch.linspace(1.0, 2.0, x.numel(), dtype=x.dtype).reshape(x.shape)
    (x * weights).sum().backward()
    torch.testing.assert_close((tangent * weights).sum(), (p.grad * direction).sum(), rtol=1e-8, atol=1e-8)
    with torch.no_grad():
        (again,) = k.layer()(p)
    assert torch.equal(again, x)


def test_single_precision() -> None:
    layer, p, x = solve(linear(), torch.float32)
    _, q, z = solve(linear())
    assert x.dtype == torch.float32
    torch.testing.assert_close(x, z.float(), rtol=1e-5, atol=1e-5)
    x.sum().backward()
    z.sum().backward()
    assert layer.info is not None
    assert layer.info.status[1] is Status.RELAXED
    torch.testing.assert_close(p.grad, q.grad.float(), rtol=1e-4, atol=1e-4)


def test_only_the_named_constraints_are_violated() -> None:
    x, p = cp.Variable(2, nonneg=True), cp.Parameter(2)
    upper, total = x <= p, cp.sum(x) >= 1
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x)), [upper, total])
    layer = FFOLayer(problem, [p], [x], on_fail=Relax([upper]))
    layer = pickle.loads(pickle.dumps(layer))
    (z,) = layer(torch.tensor([0.2, 0.4]))
    assert layer.info is not None
    torch.testing.assert_close(z.sum(), torch.tensor(1.0))
    names = dict(layer.info.violations[0].parts)
    assert set(names) == {f"constraint 0 ({upper}), entry [{i}]" for i in range(2)}
    with pytest.raises(InfeasibleError, match="even with slack"):
        FFOLayer(problem, [p], [x], on_fail=Relax([total]))(torch.tensor([-1.0, 2.0]))
    last = FFOLayer(problem, [p], [x], on_fail=Relax([1], rest="nan"))
    (z,) = last(torch.tensor([-1.0, 2.0]))
    assert z.isnan().all()
    assert last.info is not None
    assert last.info.status == [Status.INFEASIBLE]
    with pytest.raises(InputError, match="is not one of the problem's constraints"):
        FFOLayer(problem, [p], [x], on_fail=Relax([x <= 1]))


def test_violations_are_what_the_constraints_say() -> None:
    x, p = cp.Variable(2), cp.Parameter()
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x)), [cp.sum(x) == p, x <= 1, x[0] - x[1] == 0.5])
    layer = FFOLayer(problem, [p], [x], on_fail="relax")
    (z,) = layer(torch.tensor(4.0, dtype=torch.float64))
    assert layer.info is not None
    r = layer.info.violations[0]
    expected = [z.sum() - 4, (z[0] - 1).clamp(min=0), (z[1] - 1).clamp(min=0), z[0] - z[1] - 0.5]
    np.testing.assert_allclose(np.abs([v for _, v in r.parts]), sorted(map(abs, map(float, expected)), reverse=True))
    np.testing.assert_allclose(layer.info.violation, [np.linalg.norm(expected)])


def qp_blocks() -> dict[str, torch.Tensor]:
    blocks = {
        "Q": np.diag([1.0, 2.0, 3.0]),
        "p": np.array([0.3, -0.2, 0.1]),
        "G": np.array([[1.0, 1.0, 0.0], [0.0, 1.0, -1.0]]),
        "h": np.array([[1.0, 0.5], [4.0, 1.0], [1.0, np.inf]]),
        "A": np.array([[1.0, 0.0, 1.0]]),
        "b": np.array([2.0]),
        "lb": np.array([1.1, 1.2, 0.0]),
    }
    return {name: torch.tensor(v, requires_grad=True) for name, v in blocks.items()}


@pytest.mark.parametrize("constraints", [None, ["h"], ["lb", "h"]])
def test_quadratic_programs(constraints: list[str] | None) -> None:
    layer = FFOQPLayer(on_fail=Relax(constraints, weight=WEIGHT))
    given = qp_blocks()
    z = layer(**given)
    assert layer.info is not None
    assert layer.info.status == [Status.RELAXED, Status.SOLVED, Status.RELAXED]
    (z**2).sum().backward()
    x, r = cp.Variable(3), cp.Variable(2 + 3 + 1)
    values = {name: v.detach().numpy() for name, v in given.items()}
    mask = np.array([constraints is None or s in constraints for s in ("h", "h", "lb", "lb", "lb", "b")])

    def reference(sample: int, change: tuple[str, int, float] | None = None) -> Array:
        v = {name: np.array(a) for name, a in values.items()}
        v["h"] = v["h"][sample]
        if change is not None:
            v[change[0]].flat[change[1]] += change[2]
        rows = [x >= v["lb"] - r[2:5], v["A"] @ x == v["b"] + r[5:], r[~mask if sample != 1 else slice(None)] == 0]
        rows += [v["G"][i] @ x <= v["h"][i] + r[i] for i in range(2) if np.isfinite(v["h"][i])]
        cost = cp.quad_form(x, v["Q"], assume_PSD=True) / 2 + v["p"] @ x + WEIGHT / 2 * cp.sum_squares(r)
        tight = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-12)
        cp.Problem(cp.Minimize(cost), rows).solve(solver="CLARABEL", **tight)
        return np.array(x.value)

    for sample in (0, 2):
        np.testing.assert_allclose(z[sample].detach(), reference(sample), atol=1e-7)
    for name, entry in (("lb", 0), ("G", 1), ("b", 0), ("A", 2)):
        differences = 0.0
        for sample in range(3):
            ahead, behind = ((reference(sample, (name, entry, t)) ** 2).sum() for t in (1e-4, -1e-4))
            differences += (ahead - behind) / 2e-4
        np.testing.assert_allclose(given[name].grad.flatten()[entry], differences, rtol=1e-4, atol=1e-5)


def test_large_weights_lead_to_the_least_violation() -> None:
    """x <= p, 1'x >= 1: the slacks share the violation, 0.8, equally."""
    x, p = cp.Variable(3), cp.Parameter(3)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x)), [x <= p, cp.sum(x) >= 1])
    sizes = []
    for weight in (1e2, 1e4, 1e6):
        layer = FFOLayer(problem, [p], [x], on_fail=Relax(weight=weight))
        layer(torch.tensor([0.1, 0.3, -0.2], dtype=torch.float64))
        assert layer.info is not None
        sizes.append(layer.info.violation[0])
    excess = np.array(sizes) - 0.4
    assert (np.abs(excess) < [1e-3, 1e-7, 1e-11]).all()


def test_other_failures_are_not_relaxed() -> None:
    qp = FFOQPLayer(on_fail="relax")
    with pytest.raises(UnboundedError):
        qp(torch.zeros(2, 2), torch.tensor([-1.0, 0.0]), lb=torch.zeros(2))
    some = FFOQPLayer(on_fail=Relax(rest="nan"))
    z = some(torch.zeros(2, 2), torch.tensor([[-1.0, 0.0], [1.0, 1.0]]), lb=torch.zeros(2))
    assert some.info is not None
    assert some.info.status == [Status.UNBOUNDED, Status.SOLVED]
    assert np.isnan(some.info.violation[0])
    assert z[0].isnan().all()


def test_without_gradients() -> None:
    found = solve_qp_batch(np.eye(2), np.zeros(2), [[1.0, 1.0]], [[-1.0], [1.0]], lb=np.zeros(2), on_fail="relax")
    assert found.status == [Status.RELAXED, Status.SOLVED]
    np.testing.assert_allclose(found.z[0], [-1 / 3, -1 / 3], atol=1e-4)


def test_bad_options_are_refused() -> None:
    with pytest.raises(InputError, match="named b, h"):
        FFOQPLayer(on_fail=Relax(["G"]))
    with pytest.raises(InputError, match="weight"):
        Relax(weight=0.0)
    with pytest.raises(InputError, match="must be a list"):
        Relax("h")
    with pytest.raises(InputError, match="rest"):
        Relax(rest="relax")
    with pytest.raises(InputError, match="relax"):
        FFOQPLayer(on_fail="ignore")
    with pytest.raises(InputError, match="convex problems"):
        FFOFunctionLayer(lambda a, y: (y - a).square().sum(), shape=2, dims=(1,), on_fail="relax")
