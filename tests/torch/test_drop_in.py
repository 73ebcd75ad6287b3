"""What users of cvxpylayers and qpth write works after changing the import."""

from __future__ import annotations

from enum import Enum

import cvxpy as cp
import pytest
import torch
import zoo
from layers import make_layer, tensors

from ffo.errors import InputError, SettingWarning
from ffo.solvers import get_solver
from ffo.torch import FFOQPLayer


class QPSolvers(Enum):
    """As in qpth."""

    PDIPM_BATCHED = 1
    CVXPY = 2


CASE = "constrained_least_squares"


@pytest.mark.parametrize("key", ["solver", "solve_method"])
@pytest.mark.parametrize("first", [None, cp.DIFFCP])
@pytest.mark.parametrize("name", ["SCS", "ECOS", "Clarabel"])
def test_settings_may_name_the_solver(key: str, first: str | None, name: str) -> None:
    case = zoo.build(CASE)
    expected = make_layer(case)(*tensors(case.values))[0]
    layer = make_layer(case, solver=first, solver_args={key: name, "eps": 1e-7})
    (x,) = layer(*tensors(case.values))
    assert layer.info.solver == (name.upper(),)
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-6)
    layer = make_layer(case, solver=first)
    layer(*tensors(case.values), solver_args={key: name})
    assert layer.info.solver == (name.upper(),)


@pytest.mark.parametrize(
    "settings",
    [
        {"eps": 1e-8, "max_iters": 10000},
        {"eps_abs": 1e-8, "eps_rel": 1e-8},
        {"tol": 1e-8},
        {"abstol": 1e-8, "reltol": 1e-8, "feastol": 1e-8, "max_iter": 10000},
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("solver", [cp.DIFFCP, "SCS", "ECOS", "CLARABEL", "MOREAU", None], ids=str)
def test_settings_that_users_of_cvxpylayers_write(solver: str | None, settings: dict[str, float]) -> None:
    case = zoo.build(CASE)
    (expected,) = make_layer(case)(*tensors(case.values))
    (x,) = make_layer(case, solver=solver, solver_args=settings)(*tensors(case.values))
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-6)
    (x,) = make_layer(case, solver=solver)(*tensors(case.values), solver_args=settings)
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-6)


def test_settings_that_cvxpylayers_recommends() -> None:
    """They are for SCS, which diffcp calls."""
    case, settings = zoo.build(CASE), {"eps": 1e-8, "max_iters": 10000, "acceleration_lookback": 0}
    (expected,) = make_layer(case)(*tensors(case.values))
    (x,) = make_layer(case, solver=cp.DIFFCP)(*tensors(case.values), solver_args=settings)
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-6)
    with pytest.warns(SettingWarning, match="'acceleration_lookback' has no effect on"):
        (x,) = make_layer(case)(*tensors(case.values), solver_args=settings)
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("solver", [cp.DIFFCP, "ECOS", None], ids=str)
@pytest.mark.parametrize("name", ["warm_starts", "n_jobs_forward", "n_jobs_backward", "mode", "derivative_kwargs"])
def test_settings_of_diffcps_own_machinery_are_ignored_with_a_warning(solver: str | None, name: str) -> None:
    case = zoo.build(CASE)
    (expected,) = make_layer(case)(*tensors(case.values))
    with pytest.warns(SettingWarning, match=f"'{name}' has no effect"):
        (x,) = make_layer(case, solver=solver)(*tensors(case.values), solver_args={name: None})
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-6)


def test_backends_that_cvxpylayers_documents() -> None:
    case = zoo.build(CASE)
    for name in ("diffcp", "cuclarabel"):
        make_layer(case, canon_backend=name)
    with pytest.raises(InputError, match="canon_backend must be one of COO, CPP, SCIPY, not 'NUMPY'"):
        make_layer(case, canon_backend="NUMPY")


def test_a_solver_named_in_settings_is_checked_when_the_layer_is_made() -> None:
    with pytest.raises(InputError, match=r"unknown solver 'CLARABLE'; did you mean CLARABEL\?"):
        make_layer(zoo.build(CASE), solver_args={"solve_method": "CLARABLE"})


def test_a_named_solver_stays() -> None:
    case = zoo.build(CASE)
    with pytest.warns(SettingWarning, match="'solve_method' has no effect on OSQP"):
        layer = make_layer(case, solver="OSQP", solver_args={"solve_method": "SCS"})
    layer(*tensors(case.values))
    assert layer.info.solver == ("OSQP",)


@pytest.mark.parametrize(
    ("settings", "eps"),
    [({"tol": 1e-4}, 1e-4), ({"eps_abs": 1e-5, "eps_rel": 1e-6}, 1e-6), ({"tol_gap_abs": 1e-3}, 1e-3)],
)
def test_accuracy_in_the_words_of_another_solver(settings: dict[str, float], eps: float) -> None:
    assert get_solver("INTERIOR", settings).eps == eps


def test_eps_wins_over_the_words_of_another_solver() -> None:
    with pytest.warns(SettingWarning, match="'eps_abs' has no effect on INTERIOR"):
        assert get_solver("INTERIOR", {"eps": 1e-9, "eps_abs": 1e-3}).eps == 1e-9


def test_iteration_limits_in_the_words_of_another_solver() -> None:
    assert get_solver("SCS", {"max_iter": 77}).settings["max_iters"] == 77
    with pytest.raises(InputError, match="max_iter must be a positive number"):
        get_solver("SCS", {"max_iter": "many"})


def test_arguments_of_qpth(capfd: pytest.CaptureFixture) -> None:
    Q, p, G, h = torch.eye(3), torch.randn(5, 3, requires_grad=True), torch.ones(1, 3), torch.ones(1)
    expected = FFOQPLayer()(Q, p, G, h)
    for solver in QPSolvers:
        function = FFOQPLayer(eps=1e-12, verbose=-1, notImprovedLim=3, maxIter=20, solver=solver, check_Q_spd=False)
        z = function(Q, p, G, h, torch.Tensor(), torch.Tensor())
        torch.testing.assert_close(z, expected)
        assert function.engine.options.solver_args == {"eps": 1e-12}
    z.sum().backward()
    assert capfd.readouterr() == ("", "")


def test_other_enumerations_are_refused() -> None:
    with pytest.raises(InputError, match="solver must be a name or an ffo Solver, not Colour"):
        FFOQPLayer(solver=Enum("Colour", "RED").RED)


def test_dtypes_are_promoted_as_by_torch() -> None:
    """cvxpylayers returns float64 for anything."""
    case = zoo.build(CASE)
    A, b = (t.detach() for t in tensors(case.values))
    layer = make_layer(case)
    narrow, wide = A.float().requires_grad_(), b.clone().requires_grad_()
    (x,) = layer(narrow, wide)
    assert x.dtype == torch.float64
    x.square().sum().backward()
    assert (narrow.grad.dtype, wide.grad.dtype) == (torch.float32, torch.float64)
    expected = A.float().double().requires_grad_()
    layer(expected, b)[0].square().sum().backward()
    torch.testing.assert_close(narrow.grad, expected.grad.float())
    counts = torch.arange(6)
    assert layer(A.float(), counts)[0].dtype == torch.float32
    torch.testing.assert_close(layer(A, counts)[0], layer(A, counts.double())[0])
    assert layer(torch.ones(6, 4, dtype=torch.int64), counts > 2)[0].dtype == torch.get_default_dtype()


def test_dtypes_of_blocks_are_promoted_as_by_torch() -> None:
    p = torch.tensor([1.0, -3.0], dtype=torch.float64, requires_grad=True)
    h = torch.ones(1, dtype=torch.float32, requires_grad=True)
    G = torch.ones(1, 2, dtype=torch.int64)
    z = FFOQPLayer()(torch.eye(2, dtype=torch.int32), p, G, h, torch.Tensor(), torch.Tensor())
    assert z.dtype == torch.float64
    z[0].backward()
    assert (p.grad.dtype, h.grad.dtype) == (torch.float64, torch.float32)
    sparse = FFOQPLayer()(torch.eye(2), p.detach(), G.to_sparse(), h.detach())
    torch.testing.assert_close(sparse, z.detach())
    half = FFOQPLayer()(torch.eye(2).half(), p.detach().half(), None, None, torch.Tensor(), torch.Tensor())
    assert half.dtype == torch.float16
