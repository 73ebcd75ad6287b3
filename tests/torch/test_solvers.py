"""Any solver behind the layer: solver x problem, and solver settings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
import zoo
from front_ends import FRONT_ENDS, with_torch
from layers import gradients, make_layer, relative_error, tensors

from ffo.errors import InputError, SettingWarning, UnknownSettingError, UnsupportedProblemError
from ffo.solvers import get_solver
from ffo.solvers.table import adapters

QP = ["constrained_least_squares", "general_qp", "linear_program"]
SOCP = ["ball_constrained", "group_lasso"]
CURVED = ["smallest_eigenvalue", "log_sum_exp", "power_penalty"]


@dataclass(frozen=True)
class Entry:
    """A solver, the problems to try it on, and the expected accuracy of gradients."""

    name: str
    problems: list[str]
    accuracy: float = 1e-6


SOLVERS = [
    Entry("CLARABEL", QP + SOCP + CURVED),
    Entry("SCS", QP + SOCP + CURVED, accuracy=1e-5),
    Entry("OSQP", QP),
    Entry("PIQP", QP),
    Entry("PROXQP", QP),
    Entry("QOCO", QP + SOCP),
    Entry("HIGHS", ["constrained_least_squares", "linear_program"]),  # some QPs it answers with NaN
    Entry("DAQP", QP),
    Entry("INTERIOR", QP),
    Entry("DENSE", QP),
    Entry("SEPARABLE", ["equality_only"]),
    Entry("MOREAU", QP + SOCP + CURVED),
    Entry("GUROBI", [*QP, "ball_constrained"]),
    Entry("ECOS", [*QP, *SOCP, "log_sum_exp"], accuracy=1e-4),
    Entry("MOSEK", QP + SOCP + CURVED),
]
PAIRS = [(entry, problem) for entry in SOLVERS for problem in entry.problems]


def test_every_native_solver_is_in_the_list() -> None:
    assert set(adapters()) <= {entry.name for entry in SOLVERS}


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize(("entry", "problem"), PAIRS, ids=[f"{e.name}-{p}" for e, p in PAIRS])
def test_gradients_do_not_depend_on_the_solver(entry: Entry, problem: str, front_end: str) -> None:
    case = zoo.build(problem)
    _, found, info = FRONT_ENDS[front_end](case, case.batch(2, np.random.default_rng(0)), solver=entry.name)
    assert info.solver == (entry.name,) * 2
    for f, e in zip(found, _expected(problem), strict=True):
        assert relative_error(f, e) < entry.accuracy


@cache
def _expected(problem: str) -> list[np.ndarray]:
    case = zoo.build(problem)
    return with_torch(case, case.batch(2, np.random.default_rng(0)), solver_args={"eps": 1e-10})[1]


@pytest.mark.parametrize("entry", [e for e in SOLVERS if "general_qp" in e.problems], ids=lambda e: e.name)
def test_any_parameter_may_be_the_only_batched_one(entry: Entry) -> None:
    """Adapters pass only what changes between samples; each block in turn does."""
    case = zoo.build("general_qp")
    layer, around = make_layer(case, solver=entry.name), case.batch(3, np.random.default_rng(3))
    for which, values in enumerate(around):
        mixed = [values if i == which else v for i, v in enumerate(case.values)]
        (x, *_) = layer(*tensors(mixed, requires_grad=False))
        for k in range(3):
            alone = [values[k] if i == which else v for i, v in enumerate(case.values)]
            (expected, *_) = make_layer(case)(*tensors(alone))
            torch.testing.assert_close(x[k], expected.detach(), rtol=0, atol=1e-3)


def test_idle_settings_are_warned_of_once() -> None:
    case = zoo.build("constrained_least_squares")
    with pytest.warns(SettingWarning, match="mode"):
        layer = make_layer(case, solver="CLARABEL", solver_args={"mode": "lsqr"})
    layer(*tensors(case.values))  # a second warning would be an error here


def test_a_solver_object_and_any_spelling_will_do() -> None:
    case = zoo.build("constrained_least_squares")
    expected = gradients(make_layer(case), case.values)
    for solver in ("clarabel", "Clarabel", get_solver("OSQP", {"eps": 1e-9})):
        layer = make_layer(case, solver=solver)
        for f, e in zip(gradients(layer, case.values), expected, strict=True):
            assert relative_error(f, e) < 1e-6


def test_a_solver_object_takes_no_more_settings() -> None:
    case = zoo.build("constrained_least_squares")
    layer = make_layer(case, solver=get_solver("OSQP"))
    with pytest.raises(InputError, match="give them when making that solver"):
        layer(*tensors(case.values), solver_args={"eps": 1e-4})
    with pytest.raises(InputError, match="give them when making that solver"):
        make_layer(case, solver=get_solver("OSQP"), solver_args={"eps": 1e-4})


def test_a_problem_beyond_the_solver_is_refused() -> None:
    case = zoo.build("softmax")
    with pytest.raises(UnsupportedProblemError, match="OSQP does not support the cones of this problem: exp"):
        make_layer(case, solver="OSQP")(*tensors(case.values))


def test_calls_override_the_layer() -> None:
    case = zoo.build("log_sum_exp")
    layer = make_layer(case, solver="SCS", solver_args={"eps": 1e-3})
    params = tensors(case.values, requires_grad=False)
    iterations = []
    for args in (None, {"eps": 1e-9}, {"eps_abs": 1e-9, "eps_rel": 1e-9}, None):
        layer(*params, solver_args=args)
        iterations.append(int(layer.info.iterations[0]))
    assert min(iterations[1:3]) > iterations[0]
    assert iterations[3] == iterations[0]  # overrides are for one call


@pytest.mark.parametrize(
    ("solver", "settings"),
    [
        ("CLARABEL", {"tol_gap_abs": 1e-9, "max_iter": 50}),
        ("SCS", {"acceleration_lookback": 0, "eps_abs": 1e-9, "eps_rel": 1e-9}),
        ("OSQP", {"rho": 0.5, "polishing": True}),
        ("PIQP", {"eps_abs": 1e-9, "max_iter": 100}),
    ],
)
def test_own_names_pass_through(solver: str, settings: dict[str, object]) -> None:
    case = zoo.build("constrained_least_squares")
    layer = make_layer(case, solver=solver)
    (x,) = layer(*tensors(case.values), solver_args=settings)
    configured = get_solver(solver, settings)
    assert all(configured.settings[k] == v for k, v in settings.items())
    torch.testing.assert_close(x, make_layer(case)(*tensors(case.values))[0], rtol=0, atol=1e-6)


def test_own_names_of_clarabel_are_heard() -> None:
    case = zoo.build("log_sum_exp")
    layer = make_layer(case, solver="CLARABEL")
    with torch.no_grad():
        layer(*tensors(case.values), solver_args={"tol_gap_abs": 1e-2, "tol_gap_rel": 1e-2, "tol_feas": 1e-2})
        loose = layer.info.iterations[0]
        layer(*tensors(case.values))
    assert loose < layer.info.iterations[0]


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    case = zoo.build("constrained_least_squares")
    layer = make_layer(case, solver="OSQP")
    with pytest.raises(UnknownSettingError, match=r"no solver has a setting 'max_itres'; did you mean 'max_iter") as e:
        layer(*tensors(case.values), solver_args={"max_itres": 10})
    assert "eps" in str(e.value)
    assert "rho" in str(e.value)
    with pytest.raises(UnknownSettingError, match="colour"):  # the default solver, chosen at the call
        make_layer(case)(*tensors(case.values), solver_args={"colour": "blue"})


@pytest.mark.parametrize(
    "settings", [{"acceleration_lookback": 0}, {"warm_starts": None}, {"n_jobs_forward": 2}, {"mode": "lsqr"}]
)
def test_names_of_others_are_accepted_with_a_warning(settings: dict[str, object]) -> None:
    """The settings of cvxpylayers' users, whose default solver was another."""
    case = zoo.build("constrained_least_squares")
    layer = make_layer(case)
    with pytest.warns(SettingWarning, match=f"setting '{next(iter(settings))}' has no effect"):
        (x,) = layer(*tensors(case.values), solver_args={"eps": 1e-9, "max_iters": 10000, **settings})
    torch.testing.assert_close(x, make_layer(case)(*tensors(case.values))[0])


def test_nothing_is_printed(capfd: pytest.CaptureFixture) -> None:
    case = zoo.build("ball_constrained")
    gradients(make_layer(case), case.values)
    assert capfd.readouterr() == ("", "")


def test_verbose_lets_the_solver_speak(capfd: pytest.CaptureFixture) -> None:
    case = zoo.build("ball_constrained")
    make_layer(case, solver="CLARABEL", verbose=True)(*tensors(case.values))
    assert "clarabel" in capfd.readouterr().out.lower()


@pytest.mark.parametrize("backend", ["COO", "SCIPY", "CPP"])
def test_canonicalisation_backends_agree(backend: str) -> None:
    case = zoo.build("general_qp")
    expected = gradients(make_layer(case), case.values)
    for f, e in zip(gradients(make_layer(case, canon_backend=backend), case.values), expected, strict=True):
        assert relative_error(f, e) < 1e-7
