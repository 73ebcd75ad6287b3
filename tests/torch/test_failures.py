"""Samples that cannot be solved: the right exception naming them, or NaN in these samples only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo.cones import Nonneg, Zero
from ffo.engine.batch import Batch
from ffo.errors import (
    FFOError,
    InaccurateError,
    InfeasibleError,
    InvalidDataError,
    IterationLimitError,
    SolverError,
    Status,
    UnboundedError,
)
from ffo.program.cone import ConeProgram, Solution
from ffo.solvers import Capabilities, Solver, get_solver
from ffo.torch import FFOLayer


def qp_layer(**options: object) -> FFOLayer:
    """min 1/2 x'Qx + q'x, x >= l, sum(x) <= u."""
    x = cp.Variable(2)
    Q, q, low, u = cp.Parameter((2, 2), PSD=True), cp.Parameter(2), cp.Parameter(), cp.Parameter()
    problem = cp.Problem(cp.Minimize(0.5 * cp.quad_form(x, Q) + q @ x), [x >= low, cp.sum(x) <= u])
    return FFOLayer(problem, [Q, q, low, u], [x], **options)


def qp_batch(size: int = 4) -> list[torch.Tensor]:
    """Solvable values, all batched."""
    rng = np.random.default_rng(0)
    Q = np.stack([np.diag(rng.uniform(1, 2, size=2)) + 0.1 for _ in range(size)])
    return [torch.tensor(v) for v in (Q, rng.normal(size=(size, 2)), np.zeros(size), np.ones(size))]


def infeasible(params: list[torch.Tensor], k: int) -> None:
    params[3][k] = -1.0


def not_a_number(params: list[torch.Tensor], k: int) -> None:
    params[1][k, 1] = torch.nan


def infinite(params: list[torch.Tensor], k: int) -> None:
    params[2][k] = torch.inf


def indefinite(params: list[torch.Tensor], k: int) -> None:
    params[0][k] = torch.tensor([[1.0, 2.0], [2.0, 1.0]])


FAILURES: list[tuple[Callable[[list[torch.Tensor], int], None], type[SolverError], str]] = [
    (infeasible, InfeasibleError, "infeasible for sample 2 of the batch; no point satisfies"),
    (not_a_number, InvalidDataError, "sample 2 .*NaN or infinite entries"),
    (infinite, InvalidDataError, "sample 2 .*NaN or infinite entries"),
    (indefinite, InvalidDataError, "sample 2 .*not positive semidefinite: smallest eigenvalue -1"),
]


@pytest.mark.parametrize(("spoil", "error", "text"), FAILURES, ids=lambda v: getattr(v, "__name__", ""))
@pytest.mark.parametrize("derivative", [True, False], ids=["grad", "no grad"])
def test_a_bad_sample_is_named(
    spoil: Callable[[list[torch.Tensor], int], None], error: type[SolverError], text: str, derivative: bool
) -> None:
    params = qp_batch()
    spoil(params, 2)
    with pytest.raises(error, match=text) as caught:
        qp_layer()(*(p.requires_grad_(derivative) for p in params))
    assert caught.value.samples == (2,)
    assert isinstance(caught.value, FFOError)


@pytest.mark.parametrize(("spoil", "error", "text"), FAILURES, ids=lambda v: getattr(v, "__name__", ""))
def test_nan_isolates_a_bad_sample(
    spoil: Callable[[list[torch.Tensor], int], None], error: type[SolverError], text: str
) -> None:
    """The rest of the batch is as if the sample had not been there; the sample itself gives zeros."""
    layer, params = qp_layer(on_fail="nan"), qp_batch()
    spoil(params, 2)
    shared = torch.eye(2, dtype=torch.float64).requires_grad_()  # an unbatched parameter sums the rest
    given = [p.requires_grad_() for p in params]
    (x,) = layer(given[0] @ shared, *given[1:])
    info = layer.info
    assert [s.ok for s in info.status] == [True, True, False, True]
    assert info.status[2] is error.status
    assert info.detail.keys() == {2}
    assert x[2].isnan().all()
    assert x[[0, 1, 3]].isfinite().all()
    x.nan_to_num().square().sum().backward()

    rest = [p.detach()[[0, 1, 3]].requires_grad_() for p in params]
    alone = torch.eye(2, dtype=torch.float64).requires_grad_()
    (y,) = qp_layer()(rest[0] @ alone, *rest[1:])
    y.square().sum().backward()
    torch.testing.assert_close(x[[0, 1, 3]], y)
    torch.testing.assert_close(shared.grad, alone.grad)
    for p, r in zip(given, rest, strict=True):
        assert (p.grad[2] == 0).all()
        torch.testing.assert_close(p.grad[[0, 1, 3]], r.grad)


def test_a_loss_that_keeps_the_nan_has_clean_gradients_in_the_others() -> None:
    """NaN output gradients of the failed sample do not reach shared parameters."""
    layer, params = qp_layer(on_fail="nan"), qp_batch()
    infeasible(params, 1)
    Q = params[0][0].clone().requires_grad_()  # shared
    (x,) = layer(Q, *params[1:])
    x.square().sum(1).backward(torch.tensor([1.0, float("nan"), 1.0, 1.0], dtype=torch.float64))
    assert Q.grad.isfinite().all()
    assert Q.grad.abs().sum() > 0


def test_a_whole_batch_that_fails() -> None:
    layer, params = qp_layer(on_fail="nan"), qp_batch()
    for k in range(4):
        infeasible(params, k)
    q = params[1].requires_grad_()
    (x,) = layer(*params)
    assert x.isnan().all()
    x.nan_to_num().sum().backward()
    assert (q.grad == 0).all()


@pytest.mark.parametrize("solver", [None, "CLARABEL", "OSQP", "PIQP"])
def test_unbounded(solver: str | None) -> None:
    x, c = cp.Variable(2), cp.Parameter(2)
    layer = FFOLayer(cp.Problem(cp.Minimize(c @ x), [x >= 0]), [c], [x], solver=solver)
    with pytest.raises(UnboundedError, match="decreases without bound"):
        layer(torch.tensor([[1.0, 1.0], [-1.0, 1.0]]))


def test_several_kinds_of_failure_name_the_first_kind() -> None:
    params = qp_batch()
    indefinite(params, 3)
    infeasible(params, 1)
    infeasible(params, 2)
    with pytest.raises(InfeasibleError) as caught:
        qp_layer()(*params)
    assert caught.value.samples == (1, 2)
    layer = qp_layer(on_fail="nan")
    layer(*params)
    assert layer.info.status == [Status.SOLVED, Status.INFEASIBLE, Status.INFEASIBLE, Status.INVALID_INPUT]


def test_a_shared_indefinite_matrix_fails_every_sample() -> None:
    params = qp_batch()
    params[0] = torch.tensor([[1.0, 2.0], [2.0, 1.0]], dtype=torch.float64)
    with pytest.raises(InvalidDataError, match="smallest eigenvalue -1") as caught:
        qp_layer()(*params)
    assert caught.value.samples == (0, 1, 2, 3)


def hard_layer(**options: object) -> tuple[FFOLayer, torch.Tensor]:
    """A program that no solver solves in one iteration, nor Newton's method from there."""
    rng = np.random.default_rng(3)
    x, a = cp.Variable(30), cp.Parameter(30)
    rows = rng.normal(size=(90, 30))
    problem = cp.Problem(cp.Minimize(a @ x), [rows @ x <= rng.uniform(0.5, 1.5, size=90), cp.norm(x) <= 3])
    return FFOLayer(problem, [a], [x], **options), torch.tensor(rng.normal(size=30))


@pytest.mark.parametrize("solver", ["CLARABEL", "SCS", "QOCO", "ECOS"])
def test_iteration_limits(solver: str) -> None:
    layer, a = hard_layer(solver=solver)
    with pytest.raises(IterationLimitError, match="raise max_iters or loosen eps") as caught:
        layer(a, solver_args={"max_iters": 1})
    assert caught.value.samples == (0,)
    (x,) = layer(a)  # the next call is not affected
    assert x.isfinite().all()


def test_newton_rescues_a_point_that_is_near() -> None:
    """Stopped early, OSQP has the right active set; the sample is solved, and this is reported."""
    params = qp_batch()
    expected = qp_layer()(*params)[0]
    layer = qp_layer(solver="OSQP", solver_args={"max_iters": 3, "polishing": False})
    (x,) = layer(*(p.requires_grad_() for p in params))
    assert layer.info.rescued.any()
    assert all(s.ok for s in layer.info.status)
    assert layer.info.residual.max() < 1e-10
    torch.testing.assert_close(x, expected, atol=1e-6, rtol=0)


# Solvers with wrong claims


class Liar(Solver):
    """Returns something other than the solution and calls it solved."""

    name = "LIAR"
    capabilities = Capabilities(frozenset({Zero, Nonneg}), quadratic=True, module="numpy", package="numpy")

    def __init__(self, lie: Callable[[Solution], Solution], samples: tuple[int, ...] = (1,)) -> None:
        super().__init__()
        self.lie, self.samples, self.asked = lie, samples, 0

    def workspace(self, program: ConeProgram) -> None:
        raise NotImplementedError

    def solve(self, program: ConeProgram) -> Solution:
        self.asked += 1
        good = get_solver("CLARABEL").solve(program)
        bad = self.lie(good)
        mask = np.isin(np.arange(program.batch), self.samples)[:, None]
        pairs = ((good.x, bad.x), (good.y, bad.y), (good.s, bad.s))
        x, y, s = (np.where(mask, b, g) for g, b in pairs)
        return Solution(x, y, s, np.zeros(program.batch, dtype=int), good.iterations)


def far_away(s: Solution) -> Solution:
    return Solution(s.x + 7.0, s.y + 3.0, s.s * 0 + 1.0, s.status, s.iterations)


def diverged(s: Solution) -> Solution:
    """As from interior-point methods: huge multipliers, no slack; relative to these the residual is small."""
    return Solution(s.x - 0.1, np.full_like(s.y, 1e17), np.zeros_like(s.s), s.status, s.iterations)


def all_nan(s: Solution) -> Solution:
    nan = np.full_like(s.x, np.nan)
    return Solution(nan, s.y, s.s, s.status, s.iterations)


def test_a_lie_without_a_way_back_is_an_error() -> None:
    with pytest.raises(InaccurateError, match=r"LIAR: .* for sample 1 of the batch.*claimed success"):
        qp_layer(solver=Liar(all_nan))(*qp_batch())


@pytest.mark.parametrize("lie", [far_away, diverged, all_nan])
def test_a_lie_is_never_passed_on(lie: Callable[[Solution], Solution]) -> None:
    params = qp_batch()
    expected = qp_layer()(*params)[0]
    layer = qp_layer(solver=Liar(lie), on_fail="nan")
    (x,) = layer(*params)
    if layer.info.status[1].ok:  # then Newton's method found the way back, and says so
        assert layer.info.rescued.tolist() == [False, True, False, False]
        torch.testing.assert_close(x[1], expected[1], atol=1e-8, rtol=0)
    else:
        assert x[1].isnan().all()
    torch.testing.assert_close(x[[0, 2, 3]], expected[[0, 2, 3]], atol=1e-6, rtol=0)


class Denier(Liar):
    """Calls a problem infeasible although it has a point near the solution."""

    def solve(self, program: ConeProgram) -> Solution:
        found = super().solve(program)
        status = np.where(np.isin(np.arange(program.batch), self.samples), Status.INFEASIBLE, found.status)
        return Solution(found.x, found.y, found.s, status, found.iterations)


def test_a_verdict_of_infeasibility_is_refuted_by_a_solution() -> None:
    params = qp_batch()
    near = lambda s: Solution(s.x + 1e-4, s.y, s.s, s.status, s.iterations)  # noqa: E731
    layer = qp_layer(solver=Denier(near))
    (x,) = layer(*params)
    assert layer.info.rescued.tolist() == [False, True, False, False]
    torch.testing.assert_close(x, qp_layer()(*params)[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("solver", ["CLARABEL", "SCS", "ECOS", None])
def test_a_certificate_of_infeasibility_is_not_disputed(monkeypatch: pytest.MonkeyPatch, solver: str | None) -> None:
    """A point from which Newton's method does not converge, and takes long."""
    tried: list[np.ndarray] = []
    original = Batch.linearized
    monkeypatch.setattr(
        Batch, "linearized", lambda batch, samples, *a: tried.append(samples) or original(batch, samples, *a)
    )
    x, radius = cp.Variable(30), cp.Parameter()
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x)), [cp.norm(x) <= radius, cp.sum(x) >= 100, x <= 5])
    layer = FFOLayer(problem, [radius], [x], solver=solver, on_fail="nan")
    (found,) = layer(torch.tensor([20.0, 1.0, 2.0], dtype=torch.float64))
    assert layer.info.status == [Status.SOLVED, Status.INFEASIBLE, Status.INFEASIBLE]
    assert found[0].isfinite().all()
    assert tried or solver is None
    assert not any({1, 2} & set(samples.tolist()) for samples in tried)


@pytest.mark.parametrize("lie", [far_away, all_nan])
def test_retry_is_used_and_announced(lie: Callable[[Solution], Solution]) -> None:
    params = qp_batch()
    expected = qp_layer()(*params)[0]
    layer = qp_layer(solver=Liar(lie), retry=["CLARABEL"])
    (x,) = layer(*params)
    assert layer.info.retried.tolist() == [False, True, False, False]
    assert layer.info.solver == ("LIAR", "CLARABEL", "LIAR", "LIAR")
    torch.testing.assert_close(x, expected, atol=1e-6, rtol=0)


def test_retry_goes_down_the_list() -> None:
    first, second = Liar(all_nan, (0, 1)), Liar(all_nan, (0,))
    layer = qp_layer(solver=first, retry=[second, "PIQP"])
    layer(*qp_batch())
    assert layer.info.solver == ("PIQP", "LIAR", "LIAR", "LIAR")
    assert (first.asked, second.asked) == (1, 1)


def test_retry_rests_when_all_is_well() -> None:
    other = Liar(far_away)
    layer = qp_layer(solver="CLARABEL", retry=[other])
    layer(*qp_batch())
    assert other.asked == 0
    assert not layer.info.retried.any()


def fails(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a solver, which solves whole batches, fail on every second sample."""
    from ffo.solvers.table import adapter

    solver = adapter(name)
    original = solver.solve

    def solve(self: object, program: ConeProgram) -> Solution:
        answer = original(self, program)
        broken = np.arange(program.batch) % 2 == 1
        x, y, s = (np.where(broken[:, None], np.nan, v) for v in (answer.x, answer.y, answer.s))
        status = np.where(broken, int(Status.NUMERICAL), answer.status)
        return replace(answer, x=x, y=y, s=s, status=status, detail=dict.fromkeys(np.flatnonzero(broken), "broke"))

    monkeypatch.setattr(solver, "solve", solve)


def test_where_the_default_fails_another_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    params = qp_batch()
    expected = qp_layer()(*params)[0]
    layer = qp_layer()
    layer(*params)
    assert not layer.info.retried.any()
    (first,) = set(layer.info.solver)
    fails(first, monkeypatch)
    layer = qp_layer()
    (x,) = layer(*params)
    assert layer.info.retried.tolist() == [False, True, False, True]
    assert [name == first for name in layer.info.solver] == [True, False, True, False]
    torch.testing.assert_close(x, expected, atol=1e-6, rtol=0)
    tight = qp_layer(solver_args={"eps": 1e-9})
    tight(*params)
    assert tight.info.ok.all()


def test_what_the_user_says_about_solvers_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    params = qp_batch()
    plain = qp_layer()
    plain(*params)
    first = plain.info.solver[0]
    fails(first, monkeypatch)
    for options in ({"solver": first}, {"retry": []}, {"solver_args": {"max_iters": 1000}}):
        layer = qp_layer(on_fail="nan", **options)
        layer(*params)
        assert layer.info.ok.tolist() == [True, False, True, False], options
        assert not layer.info.retried.any()
    layer = qp_layer(on_fail="nan")
    layer(*params, solver_args={"max_iters": 1000})
    assert layer.info.ok.tolist() == [True, False, True, False]


def test_a_solver_that_raises_costs_its_sample_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from ffo.solvers.table import adapter

    workspace = type(adapter("CLARABEL")().workspace(_program()))
    original = workspace.run

    def run(self: object, sample: int) -> object:
        if sample == 2:
            raise ZeroDivisionError("inside the solver")
        return original(self, sample)

    monkeypatch.setattr(workspace, "run", run)
    layer = qp_layer(solver="CLARABEL", on_fail="nan")
    layer(*qp_batch())
    assert [s.ok for s in layer.info.status] == [True, True, False, True]
    assert "ZeroDivisionError: inside the solver" in layer.info.detail[2]


def _program() -> ConeProgram:
    from ffo.cones import Product

    return ConeProgram.from_matrices(np.eye(1), np.ones(1), -np.eye(1), np.zeros(1), Product([(Nonneg(), 1)]))
