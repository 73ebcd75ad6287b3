"""Where this package differs from others on purpose: every row of docs/differences.md, run in both packages."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo.errors import (
    InfeasibleError,
    InputError,
    InvalidDataError,
    IterationLimitError,
    SettingWarning,
    SolverError,
    ZeroGradientWarning,
)
from ffo.torch import FFOLayer, FFOQPLayer
from ffo.torch.decision import FixedRegion, normalized_regret, regret

Tensor = torch.Tensor


def f64(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture
def quiet() -> Iterator[None]:
    """The other packages warn of their own dependencies."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# cvxpylayers


@pytest.fixture
def peer(quiet: None) -> type:
    return pytest.importorskip("cvxpylayers.torch", reason="cvxpylayers is not installed").CvxpyLayer


def projection() -> tuple[cp.Problem, list[cp.Parameter], list[cp.Variable]]:
    """The projection of a onto the simplex, whose size is s."""
    x, a, s = cp.Variable(3), cp.Parameter(3, name="a"), cp.Parameter(name="s")
    return cp.Problem(cp.Minimize(cp.sum_squares(x - a)), [cp.sum(x) == s, x >= 0]), [a, s], [x]


POINT = f64(0.5, 1.0, -2.0)
PROJECTED, ONE = f64(0.25, 0.75, 0.0), torch.ones((), dtype=torch.float64)


def test_dtype_of_results(peer: type) -> None:
    theirs, ours = peer(*projection()), FFOLayer(*projection())
    for a, s, dtype in (
        (POINT.float(), ONE.float(), torch.float32),
        (POINT.float(), ONE, torch.float64),
        (POINT.float(), ONE.int(), torch.float32),
        (POINT.int(), ONE.int(), torch.get_default_dtype()),
    ):
        assert theirs(a, s)[0].dtype == torch.float64
        assert ours(a, s)[0].dtype == dtype
    assert ours(POINT.float().double(), ONE)[0].dtype == torch.float64


def nearest(**attribute: bool) -> tuple[cp.Problem, list[cp.Parameter], list[cp.Variable]]:
    X, P = cp.Variable((2, 2), symmetric=True), cp.Parameter((2, 2), name="P", **attribute)
    return cp.Problem(cp.Minimize(cp.sum_squares(X - P))), [P], [X]


def matrix_and_gradient(layer: Callable[..., Any], value: Tensor) -> tuple[Tensor, Tensor]:
    P = value.clone().requires_grad_()
    (X,) = layer(P)
    (X * f64([1.0, 2.0], [3.0, 4.0])).sum().backward()
    return X.detach(), P.grad


def test_psd_parameters_that_are_not_symmetric(peer: type) -> None:
    value = f64([2.0, 1.0], [0.0, 3.0])
    upper = value.triu() + value.triu(1).mT
    theirs, their_gradient = matrix_and_gradient(peer(*nearest(PSD=True)), value)
    torch.testing.assert_close(theirs, upper, rtol=0, atol=1e-5)
    torch.testing.assert_close(their_gradient, f64([1.0, 5.0], [0.0, 4.0]), rtol=0, atol=1e-5)
    ours, gradient = matrix_and_gradient(FFOLayer(*nearest(PSD=True)), value)
    torch.testing.assert_close(ours, (value + value.mT) / 2)
    torch.testing.assert_close(gradient, f64([1.0, 2.5], [2.5, 4.0]))
    torch.testing.assert_close(matrix_and_gradient(FFOLayer(*nearest(PSD=True)), upper)[0], upper)


def test_symmetric_parameters_that_are_not_symmetric(peer: type) -> None:
    value = f64([2.0, 1.0], [0.0, 3.0])
    upper = value.triu() + value.triu(1).mT
    theirs, _ = matrix_and_gradient(peer(*nearest(symmetric=True)), value)
    torch.testing.assert_close(theirs, upper, rtol=0, atol=1e-5)
    layer = FFOLayer(*nearest(symmetric=True))
    with pytest.raises(InvalidDataError, match=r"parameter 0 \(P\) was declared symmetric but differs by 1 from its"):
        layer(value)
    for almost in (upper, upper + f64([0.0, 1e-6], [0.0, 0.0])):
        torch.testing.assert_close(layer(almost)[0], upper, rtol=0, atol=1e-5)


def test_values_that_break_a_declared_attribute(peer: type) -> None:
    def least(**attribute: bool) -> tuple[cp.Problem, list[cp.Parameter], list[cp.Variable]]:
        x, t = cp.Variable(2), cp.Parameter(name="t", **attribute)
        return cp.Problem(cp.Minimize(cp.sum_squares(x)), [cp.sum(x) >= t]), [t], [x]

    torch.testing.assert_close(peer(*least(nonneg=True))(-ONE)[0], f64(0.0, 0.0), rtol=0, atol=1e-5)
    with pytest.raises(InvalidDataError, match=r"sample 1 .*parameter 0 \(t\) was declared nonneg"):
        FFOLayer(*least(nonneg=True))(f64(1.0, -1.0))
    torch.testing.assert_close(FFOLayer(*least())(-ONE)[0], f64(0.0, 0.0))


def test_nan_in_a_parameter(peer: type) -> None:
    with pytest.raises(ValueError, match="ScsWork"):  # nothing of the parameter
        peer(*projection())(POINT * torch.nan, ONE)
    with pytest.raises(InvalidDataError, match=r"sample 1 .*Parameter 1 \(s\) has NaN entries"):
        FFOLayer(*projection())(POINT, f64(1.0, torch.nan))


def test_one_iteration(peer: type) -> None:
    (theirs,) = peer(*projection())(POINT, ONE, solver_args={"max_iters": 1})
    assert (theirs - PROJECTED).abs().max() > 0.1
    (ours,) = FFOLayer(*projection(), solver="SCS")(POINT, ONE, solver_args={"max_iters": 1})
    torch.testing.assert_close(ours, PROJECTED)
    x, b = cp.Variable(20), cp.Parameter(30)
    A = np.random.default_rng(0).normal(size=(30, 20))
    hard = cp.Problem(cp.Minimize(cp.norm1(A @ x - b) + cp.norm(x)), [x >= -0.1, cp.sum(x) == 0])
    with pytest.raises(IterationLimitError):
        FFOLayer(hard, [b], [x], solver="SCS", solver_args={"max_iters": 1})(torch.ones(30))


def test_one_infeasible_sample(peer: type) -> None:
    import diffcp

    sizes = f64(1.0, -1.0)
    with pytest.raises(diffcp.SolverError, match="infeasible"):
        peer(*projection())(POINT, sizes)
    with pytest.raises(InfeasibleError, match="sample 1") as error:
        FFOLayer(*projection())(POINT, sizes)
    assert isinstance(error.value, SolverError)
    (kept,) = FFOLayer(*projection(), on_fail="nan")(POINT, sizes)
    torch.testing.assert_close(kept[0], PROJECTED)
    assert kept[1].isnan().all()


def test_settings_of_another_solver(peer: type) -> None:
    for settings in ({"tol_gap_abs": 1e-8}, {"equilibrate_enable": True}):  # Clarabel's
        with pytest.raises(TypeError, match=next(iter(settings))):
            peer(*projection())(POINT, ONE, solver_args=settings)
    with warnings.catch_warnings(action="error"):
        (x,) = FFOLayer(*projection(), solver="SCS")(POINT, ONE, solver_args={"tol_gap_abs": 1e-8})
    torch.testing.assert_close(x, PROJECTED)
    with pytest.warns(SettingWarning, match="'equilibrate_enable' has no effect on SCS"):
        FFOLayer(*projection(), solver="SCS")(POINT, ONE, solver_args={"equilibrate_enable": True})


def test_gradients_in_the_costs_of_a_linear_program(peer: type) -> None:
    def gradient(layer: Callable[..., Any]) -> Tensor:
        c = f64(0.5, 0.1, 0.7).requires_grad_()
        layer(c)[0][0].backward()
        return c.grad

    x, c = cp.Variable(3), cp.Parameter(3)
    program = cp.Problem(cp.Minimize(c @ x), [cp.sum(x) == 1, x >= 0])
    assert 1e-14 < gradient(peer(program, [c], [x])).abs().max() < 1e-4
    with pytest.warns(ZeroGradientWarning):
        assert gradient(FFOLayer(program, [c], [x])).abs().max() < 1e-14


def test_constraints_that_are_active_without_force(peer: type) -> None:
    x, a = cp.Variable(1), cp.Parameter(1)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x - a)), [x >= 0])
    value = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    peer(problem, [a], [x])(value)[0].sum().backward()
    assert 0.1 < value.grad < 0.9
    layer, value.grad = FFOLayer(problem, [a], [x]), None
    layer(value)[0].sum().backward()
    assert min(value.grad.abs(), (value.grad - 1).abs()) < 1e-8
    assert not layer.info.certificate.good.any()
    smooth, value.grad = FFOLayer(problem, [a], [x], smoothing=0.1), None
    smooth(value)[0].sum().backward()
    assert 0.1 < value.grad < 0.9


def test_sums_over_the_batch_and_their_accuracy(peer: type) -> None:
    def error(layer: Callable[..., Any]) -> Tensor:
        a = POINT.clone().requires_grad_()
        layer(a, torch.ones(4, dtype=torch.float64))[0][:, 0].sum().backward()
        return (a.grad - 4 * f64(0.5, -0.5, 0.0)).abs().max()

    assert 1e-10 < error(peer(*projection())) < 1e-2
    assert error(FFOLayer(*projection())) < 1e-12


def test_problems_that_are_not_dpp(peer: type) -> None:
    x, q = cp.Variable(2), cp.Parameter()
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x)), [q * q * cp.sum(x) >= 1])
    with pytest.raises(ValueError, match="must be DPP"):
        peer(problem, [q], [x])
    torch.testing.assert_close(FFOLayer(problem, [q], [x])(2 * ONE)[0], f64(0.125, 0.125))


def test_solvers_of_ones_own(peer: type) -> None:
    from cvxpylayers.interfaces.base import SolverInterface

    class Own(SolverInterface):
        def solve_numpy(self, *data: Any) -> Any:
            raise NotImplementedError

        def derivative_numpy(self, *data: Any) -> Any:
            raise NotImplementedError

    with pytest.raises(InputError, match="solver must be a name or an ffo Solver, not Own"):
        FFOLayer(*projection(), solver=object.__new__(Own))


# qpth


@pytest.fixture
def function(quiet: None) -> Callable[..., Any]:
    return pytest.importorskip("qpth.qp", reason="qpth is not installed (make bench-peers)").QPFunction


Q, G, H, NONE = torch.eye(2).double(), torch.eye(2).double(), torch.ones(2).double(), torch.Tensor()
P = f64([1.0, -3.0], [1.0, -3.0])
SOLVED = f64([-1.0, 1.0], [-1.0, 1.0])


def test_gradients_of_shared_blocks(function: Callable[..., Any]) -> None:
    def gradient(layer: Callable[..., Tensor]) -> Tensor:
        h = H.clone().requires_grad_()
        layer(Q, P, G, h, NONE, NONE).sum().backward()
        return h.grad

    torch.testing.assert_close(gradient(function(verbose=-1)), f64(0.0, 1.0), rtol=0, atol=1e-6)
    torch.testing.assert_close(gradient(FFOQPLayer(verbose=-1)), f64(0.0, 2.0))
    torch.testing.assert_close(gradient(FFOQPLayer(verbose=-1, reduction="mean")), f64(0.0, 1.0))


def test_without_a_batch_dimension(function: Callable[..., Any]) -> None:
    assert function(verbose=-1)(Q, P[0], G, H, NONE, NONE).shape == (1, 2)
    assert FFOQPLayer()(Q, P[0], G, H, NONE, NONE).shape == (2,)


def test_what_qpth_refuses(function: Callable[..., Any]) -> None:
    singular = torch.diag(f64(1.0, 0.0))
    for blocks, error, expected in (
        ((singular, P, G, H, NONE, NONE), RuntimeError, SOLVED),
        ((Q, P, NONE, NONE, NONE, NONE), ValueError, -P),
        ((Q.float(), P, G, H, NONE, NONE), RuntimeError, SOLVED),
    ):
        with pytest.raises(error):
            function(verbose=-1)(*blocks)
        torch.testing.assert_close(FFOQPLayer()(*blocks), expected)
    linear = FFOQPLayer()(None, f64(-1.0, -1.0), G, H)
    torch.testing.assert_close(linear, H)


def test_q_that_is_not_symmetric(function: Callable[..., Any]) -> None:
    skewed, far = f64([2.0, 1.0], [0.0, 2.0]), 10 * H
    theirs = function(verbose=-1)(skewed, P, G, far, NONE, NONE)
    torch.testing.assert_close(theirs @ skewed.mT, -P, rtol=0, atol=1e-5)
    ours = FFOQPLayer()(skewed, P, G, far)
    torch.testing.assert_close(ours @ (skewed + skewed.mT) / 2, -P)


def test_infeasible_quadratic_programs(function: Callable[..., Any], capsys: pytest.CaptureFixture) -> None:
    blocks = (Q, P, torch.cat([G, -G]), -torch.ones(4).double(), NONE, NONE)
    assert function(verbose=-1)(*blocks).isfinite().all()
    assert capsys.readouterr().out == ""
    assert function()(*blocks).isfinite().all()
    assert "warning" in capsys.readouterr().out.lower()
    with pytest.raises(InfeasibleError, match="samples 0, 1"):
        FFOQPLayer(verbose=-1)(*blocks)
    assert FFOQPLayer(on_fail="nan")(*blocks).isnan().all()
    assert capsys.readouterr().out == ""


def test_limits_of_iterations(function: Callable[..., Any]) -> None:
    early = function(verbose=-1, maxIter=1)(Q, P, G, H, NONE, NONE)
    assert (early - SOLVED).abs().max() > 0.1
    torch.testing.assert_close(FFOQPLayer(maxIter=1, notImprovedLim=1)(Q, P, G, H, NONE, NONE), SOLVED)


def test_rows_that_are_active_without_force(function: Callable[..., Any]) -> None:
    p = f64([-1.0, -3.0]).requires_grad_()
    theirs = function(verbose=-1)(Q, p, G, H, NONE, NONE)
    assert (theirs @ G.mT - H).max() > 0.5
    layer = FFOQPLayer()
    ours = layer(Q, p, G, H, NONE, NONE)
    torch.testing.assert_close(ours, f64([1.0, 1.0]))
    ours[0, 0].backward()
    one_sided = float(p.grad[0, 0])
    assert min(abs(one_sided), abs(one_sided + 1)) < 1e-8
    assert not layer.info.certificate.good.any()


# qpax


@pytest.fixture
def qpax(quiet: None) -> Any:
    return pytest.importorskip("qpax", reason="qpax is not installed")


def test_qpax(qpax: Any) -> None:
    import jax
    import jax.numpy as jnp

    from ffo.jax import solve_qp

    q, eye, ones = jnp.array([1.0, -3.0]), jnp.eye(2), jnp.ones(2)
    equalities = jnp.zeros((0, 2)), jnp.zeros(0)

    def theirs(h: Any, **options: Any) -> Any:
        return qpax.solve_qp_primal(eye, q, *equalities, eye, h, **options)

    def ours(h: Any) -> Any:
        return solve_qp(eye, q, eye, h, *equalities)

    np.testing.assert_allclose(theirs(ones), [-1.0, 1.0], atol=1e-4)
    np.testing.assert_allclose(ours(ones), [-1.0, 1.0], atol=1e-7)
    smoothed, sharper, exact = (
        np.asarray(jax.grad(lambda h, f=f: f(h).sum())(ones))
        for f in (theirs, lambda h: theirs(h, target_kappa=1e-8), ours)
    )
    assert 1e-4 < np.abs(smoothed - exact).max() < 1e-2
    assert np.abs(sharper - exact).max() < 1e-5
    np.testing.assert_allclose(exact, [0.0, 1.0], atol=1e-7)

    both, low = jnp.concatenate([eye, -eye]), -jnp.ones(4)
    found = np.asarray(qpax.solve_qp_primal(eye, q, *equalities, both, low))
    assert np.isnan(found).all() or np.isfinite(found).all()  # no exception
    with pytest.raises(InfeasibleError):
        solve_qp(eye, q, both, low)
    assert np.isnan(solve_qp(eye, q, both, low, on_fail="nan")).all()


def test_qpax_solves_in_the_precision_of_its_arrays(qpax: Any) -> None:
    """Q has a condition number of two million, and the solution is (1, -1), far from the bounds."""
    import jax.numpy as jnp

    from ffo.jax import solve_qp

    small = 2.0**-20
    numbers = ([[1.0, 1.0 - small], [1.0 - small, 1.0]], [-small, small], np.eye(2), np.full(2, 100.0))
    Q32, q, bound, far, A, b = (jnp.asarray(v, dtype=jnp.float32) for v in (*numbers, np.zeros((0, 2)), np.zeros(0)))
    ours, theirs = solve_qp(Q32, q, bound, far), qpax.solve_qp_primal(Q32, q, A, b, bound, far)
    assert ours.dtype == theirs.dtype == jnp.float32
    np.testing.assert_allclose(ours, [1.0, -1.0], rtol=1e-6)
    assert not np.allclose(theirs, [1.0, -1.0], rtol=1e-5)


# PyEPO


def test_regret_and_shapes_of_costs() -> None:
    pyepo = pytest.importorskip("pyepo", reason="PyEPO is not installed")
    from ffo.torch.decision.pyepo import RegionModel

    x = cp.Variable((2, 2))
    region = FixedRegion(x, [x >= 0, cp.sum(x) <= 1])
    generator = torch.Generator().manual_seed(0)
    costs, features = -torch.rand(8, 2, 2, generator=generator), torch.randn(8, 3, generator=generator)
    predictor = torch.nn.Linear(3, 4)
    model = RegionModel(region)
    dataset = pyepo.data.dataset.optDataset(model, features.numpy(), costs.flatten(1).numpy())
    theirs = pyepo.metric.regret(predictor, model, torch.utils.data.DataLoader(dataset, batch_size=4))
    predicted = predictor(features).reshape(8, 2, 2)
    assert model.num_cost == 4
    assert regret(region, predicted, costs).shape == (8,)
    assert float(normalized_regret(region, predicted, costs)) == pytest.approx(theirs, abs=1e-5)


def test_plain_decisions_as_a_layer() -> None:
    x = cp.Variable(3)
    costs = f64(0.5, 0.1, 0.7).requires_grad_()
    with pytest.warns(ZeroGradientWarning):
        FixedRegion(x, [x >= 0, cp.sum(x) == 1])(costs)[0].backward()
    assert costs.grad.abs().max() < 1e-14
