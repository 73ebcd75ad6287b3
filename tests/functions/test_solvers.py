"""Forward solvers: all built-in ones, a user's function, and recovered multipliers."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from function_problems import D, distance, gradients, quadratic, quadratic_layer, relative, tensor

from ffo.errors import InputError, MissingSolverError, Status, UnknownSettingError
from ffo.functions.augmented import Answer
from ffo.functions.problem import Functions, Problem
from ffo.functions.solvers import AugmentedLagrangian, Ipopt, Scipy, choose, get_solver
from ffo.torch import FFOFunctionLayer, FFOQPLayer

HAS_IPOPT = importlib.util.find_spec("cyipopt") is not None
ipopt = pytest.mark.skipif(not HAS_IPOPT, reason="cyipopt has no wheel for this platform and is not installed")
every_solver = pytest.mark.parametrize(
    "solver", ["AUGLAG", "SLSQP", "TRUST-CONSTR", pytest.param("IPOPT", marks=ipopt)]
)


@every_solver
def test_all_solvers_lead_to_the_same_solution_and_gradient(solver: str) -> None:
    values = quadratic()
    values[1] = torch.stack([values[1], -values[1]])
    layer, reference = quadratic_layer(solver=solver), quadratic_layer(solver="SLSQP", hvp="autograd")
    with torch.no_grad():
        assert relative(layer(*values), reference(*values)) <= 1e-5  # the solver's own answer
    found, expected = gradients(layer, values), gradients(reference, values)
    for f, e in zip(found, expected, strict=True):
        assert relative(f, e) <= 1e-7
    assert set(layer.info.solver) == {solver}
    assert layer.info.residual.max() <= 1e-10


def circle(y: torch.Tensor) -> torch.Tensor:
    return (y.square().sum() - 1).reshape(1)


def projected_gradient(g: Callable, h: Callable | None, e: Callable | None, y0: torch.Tensor) -> torch.Tensor:
    """Projection onto the unit ball; returns no multiplier."""
    assert e is None
    y = y0.clone().requires_grad_()
    for _ in range(200):
        (slope,) = torch.autograd.grad(g(y), y)
        with torch.no_grad():
            y = y - 0.3 * slope
            y = (y / y.norm().clamp_min(1.0)).requires_grad_()
    assert float(h(y.detach())) <= 1e-12
    return y


@pytest.mark.parametrize("answer", ["y", "multipliers", "numpy"])
def test_a_users_solver(answer: str) -> None:
    calls = []

    def solve(g: Callable, h: Callable | None, e: Callable | None, y0: torch.Tensor) -> object:
        calls.append(tuple(y0.shape))
        y = projected_gradient(g, h, e, y0)
        if answer == "multipliers":
            norm = float(distances[len(calls) - 1])
            return y, tensor([max(norm - 1, 0.0) / 2]), None
        return y.detach().numpy() if answer == "numpy" else y

    a = tensor([[3.0, 4.0], [0.1, 0.2], [0.0, -2.0]])
    distances = a.norm(dim=1)
    layer = FFOFunctionLayer(distance, lambda a, y: circle(y), shape=2, dims=(1,), solver=solve)
    (found,) = gradients(layer, [a])
    (expected,) = gradients(FFOFunctionLayer(distance, lambda a, y: circle(y), shape=2, dims=(1,)), [a])
    assert calls == [(2,)] * 3
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)
    assert layer.info.solver == ("solve",) * 3
    assert layer.info.certificate.good.all()


def test_a_users_solver_is_not_taken_at_its_word() -> None:
    layer = FFOFunctionLayer(
        lambda a, y: (y - a).pow(4).sum() + (y - a).square().sum(),
        lambda a, y: torch.cat([y - 1, -y]),
        shape=2,
        dims=(1,),
        solver=lambda g, h, e, y0: y0 + 50.0,
        on_fail="nan",
    )
    y = layer(tensor([[0.5, 0.5]]))
    # Newton steps may still find the solution from there, but 50 must not be returned.
    assert y.isnan().all() or torch.allclose(y, tensor([[0.5, 0.5]]), atol=1e-6)


def test_what_a_users_solver_may_not_return() -> None:
    def make(solve: Callable) -> FFOFunctionLayer:
        return FFOFunctionLayer(distance, shape=2, dims=(1,), solver=solve)

    with pytest.raises(InputError, match="returned y of 3 entries; expected 2"):
        make(lambda g, h, e, y0: torch.zeros(3))(torch.zeros(2))
    with pytest.raises(InputError, match="must return y or \\(y, lam, nu\\), not a tuple of 2"):
        make(lambda g, h, e, y0: (y0, None))(torch.zeros(2))


def test_multipliers_are_recovered_where_more_constraints_are_met_than_active() -> None:
    """Three lines through the solution in the plane, two of them active: least squares must drop the third."""
    normals = tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    layer = FFOFunctionLayer(
        distance, lambda a, y: normals @ y - tensor([1.0, 1.0, 2.0 + 1e-6]), shape=2, dims=(1,), solver=_at_corner
    )
    (found,) = gradients(layer, [tensor([3.0, 2.0])])
    torch.testing.assert_close(found, torch.zeros(2, dtype=D), rtol=0, atol=1e-9)
    assert layer.info.ok.all()


def _at_corner(g: Callable, h: Callable, e: Callable | None, y0: torch.Tensor) -> torch.Tensor:
    return torch.ones(2, dtype=D) - 1e-8


@every_solver
def test_settings(solver: str) -> None:
    layer = quadratic_layer(solver=solver, solver_args={"max_iters": 500, "eps": 1e-9})
    assert layer(*quadratic()).isfinite().all()
    if solver != "IPOPT":  # passes everything on
        with pytest.raises(UnknownSettingError, match="has no setting speed"):
            quadratic_layer(solver=solver, solver_args={"speed": 11})


def test_solvers_by_name() -> None:
    assert get_solver("trust_constr", {}).name == "TRUST-CONSTR"
    with pytest.raises(InputError, match=r"no solver 'CLARABEL' for problems given by functions: use one of AUGLAG"):
        quadratic_layer(solver="CLARABEL")
    with pytest.raises(UnknownSettingError, match="bind them"):
        quadratic_layer(solver=_at_corner, solver_args={"eps": 1})
    assert isinstance(pickle.loads(pickle.dumps(get_solver("SLSQP", {"eps": 1e-9}))), Scipy)


@pytest.mark.skipif(HAS_IPOPT, reason="cyipopt is installed")
def test_a_missing_ipopt_says_how_to_get_it() -> None:
    with pytest.raises(MissingSolverError, match=r"pip install 'ffo\[ipopt\]'"):
        quadratic_layer(solver="IPOPT")


@ipopt
def test_ipopt_survives_pickling() -> None:
    again = pickle.loads(pickle.dumps(Ipopt(max_iters=7)))
    assert again.options["max_iter"] == 7


def test_the_default_is_chosen_by_size() -> None:
    def problem(batch: int) -> Problem:
        return Problem(Functions(distance), (), (), {}, batch, (1,))

    assert choose(problem(1), torch.zeros(1, 50), 10) == "SLSQP"
    assert choose(problem(64), torch.zeros(64, 50), 10) == "AUGLAG"
    assert choose(problem(1), torch.zeros(1, 5000), 10) == "AUGLAG"
    assert choose(problem(1), torch.zeros(1, 50), 1000) == "AUGLAG"
    assert choose(problem(1), torch.zeros(1, 50, device="meta"), 10) == "AUGLAG"


def test_another_solver_is_asked_about_what_the_first_one_failed_on() -> None:
    def gives_up(g: Callable, h: Callable | None, e: Callable | None, y0: torch.Tensor) -> torch.Tensor:
        return torch.full_like(y0, torch.nan)

    layer = FFOFunctionLayer(
        lambda a, y: (y - a).cosh().sum(), shape=2, dims=(1,), solver=gives_up, retry=["AUGLAG"], on_fail="nan"
    )
    a = tensor([[3.0, 4.0], [-2.0, 1.0]])
    torch.testing.assert_close(layer(a), a, rtol=1e-8, atol=1e-8)
    assert layer.info.ok.all()


def test_linear_programs_have_no_curvature_and_are_solved_all_the_same() -> None:
    """Vertices, and their derivatives in right-hand sides, as FFOQPLayer finds them."""
    source = torch.Generator().manual_seed(0)
    c, A = (torch.randn(*s, generator=source, dtype=D) for s in ((6, 5), (6, 8, 5)))
    b = 0.3 * A.abs().sum(2)
    layer = FFOFunctionLayer(
        lambda c, A, b, y: c @ y,
        lambda c, A, b, y: torch.cat([A @ y - b, y - 1, -1 - y]),
        shape=5,
        dims=(1, 2, 1),
        solver="AUGLAG",
    )
    box = {"lb": -torch.ones(5, dtype=D), "ub": torch.ones(5, dtype=D)}
    found, expected = b.clone().requires_grad_(), b.clone().requires_grad_()
    y, z = layer(c, A, found), FFOQPLayer()(None, c, A, expected, **box)
    torch.testing.assert_close(y, z, rtol=1e-9, atol=1e-9)
    for solution in (y, z):
        solution[:, 0].sum().backward()
    torch.testing.assert_close(found.grad, expected.grad, rtol=1e-8, atol=1e-9)


def test_a_point_where_every_constraint_is_weakly_active_is_still_a_solution() -> None:
    source = torch.Generator().manual_seed(1)
    C, a = (torch.randn(*s, generator=source, dtype=D) for s in ((7, 5), (6, 5)))
    layer = FFOFunctionLayer(
        lambda a, y: distance(a, y) + (y - a).pow(4).sum(),
        lambda a, y: C @ (y - a),
        shape=5,
        dims=(1,),
        solver="AUGLAG",
    )
    torch.testing.assert_close(layer(a), a, rtol=1e-7, atol=1e-7)


def test_a_large_sparse_problem() -> None:
    """n = 10,000, thousands of active bounds: no Gram matrix, and a solution exact to rounding."""
    n = 10_000
    source = torch.Generator().manual_seed(0)
    a = torch.randn(n, generator=source, dtype=D).cumsum(0) / 30

    def chain(a: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 0.5 * (y - a).square().sum() + 0.5 * (y[1:] - y[:-1]).square().sum()

    layer = FFOFunctionLayer(chain, lambda a, y: torch.cat([y - 0.8, -0.8 - y]), shape=n, dims=(1,))
    a.requires_grad_()
    y = layer(a)
    assert layer.info.status == [Status.SOLVED]
    assert layer.info.residual[0] <= 1e-10
    free = (y.detach().abs() < 0.8 - 1e-9).numpy()
    assert 500 < free.sum() < 9500
    y.square().sum().backward()
    # On the free variables the chain is a tridiagonal system.
    import scipy.sparse as sp
    from scipy.sparse.linalg import spsolve

    ends = np.full(n, 3.0)
    ends[[0, -1]] = 2.0
    H = sp.diags([np.full(n - 1, -1.0), ends, np.full(n - 1, -1.0)], [-1, 0, 1]).tocsc()[free][:, free]
    expected = np.zeros(n)
    expected[free] = spsolve(H, 2 * y.detach().numpy()[free])
    assert np.linalg.norm(a.grad.numpy() - expected) <= 1e-7 * np.linalg.norm(expected)
    assert layer.info.certificate.good.all()


def small_objective(a: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """SLSQP stops at once: it compares changes of the objective with 1e-14."""
    return 1e-9 * (y.pow(3) + y - a).square().sum()


def test_samples_that_the_default_solver_fails_on_go_to_the_other_one_alone() -> None:
    layer = FFOFunctionLayer(small_objective, shape=2, dims=(1,))
    y = torch.tensor([[0.0, 0.0], [0.4, -1.2], [0.9, 0.3]], dtype=torch.float64)
    found = layer(y.pow(3) + y)
    torch.testing.assert_close(found, y, rtol=0, atol=1e-9)
    assert layer.info.solver == ("SLSQP", "AUGLAG", "AUGLAG")
    assert layer.info.retried.tolist() == [False, True, True]


@pytest.mark.parametrize("options", [{"solver": "SLSQP"}, {"retry": []}, {"solver_args": {"max_iters": 100}}])
def test_no_other_solver_is_tried_where_the_user_decides(options: dict[str, object]) -> None:
    layer = FFOFunctionLayer(small_objective, shape=2, dims=(1,), on_fail="nan", **options)
    assert layer(torch.tensor([[0.464, -2.928]], dtype=torch.float64)).isnan().all()
    assert not layer.info.retried.any()


@pytest.mark.parametrize("raises", [True, False])
def test_a_second_failure_does_not_hide_the_first(monkeypatch: pytest.MonkeyPatch, raises: bool) -> None:
    def fails(self: AugmentedLagrangian, problem: Problem, y: torch.Tensor, exact: bool) -> Answer:
        if raises:
            raise RuntimeError("no")
        return Answer(y, None, [Status.ITERATION_LIMIT], torch.tensor([7]))

    monkeypatch.setattr(AugmentedLagrangian, "solve", fails)
    layer = FFOFunctionLayer(small_objective, shape=2, dims=(1,), on_fail="nan")
    assert layer(torch.tensor([[0.464, -2.928]], dtype=torch.float64)).isnan().all()
    assert layer.info.status == [Status.INACCURATE]
    assert layer.info.solver == ("SLSQP",)
    assert layer.info.retried.all()
