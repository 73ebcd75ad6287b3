"""Settings: translated, passed through, warned about, refused."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ffo.errors import InputError, SettingWarning, UnknownSettingError
from ffo.solvers import get_solver, known
from ffo.solvers.table import adapters


@pytest.mark.parametrize("name", known())
def test_eps_and_max_iters_reach_the_solvers_own_names(name: str) -> None:
    cls = adapters()[name]
    solver = get_solver(name, {"eps": 1e-5, "max_iters": 77})
    assert {solver.settings[t] for t in cls.tolerances} == {1e-5}
    assert solver.settings[cls.iteration_limit] == 77
    assert solver.eps == 1e-5
    assert cls.iteration_limit in cls.native_settings
    assert set(cls.tolerances) <= cls.native_settings


@pytest.mark.parametrize("name", known())
def test_defaults_are_settings_of_the_solver(name: str) -> None:
    cls = adapters()[name]
    assert set(cls.defaults) <= cls.native_settings
    assert get_solver(name).eps == 1e-8


def test_own_names_pass_through_and_win() -> None:
    solver = get_solver("clarabel", {"eps": 1e-6, "tol_feas": 1e-4, "equilibrate_enable": False})
    assert solver.settings["tol_feas"] == 1e-4
    assert solver.settings["tol_gap_abs"] == 1e-6
    assert solver.settings["equilibrate_enable"] is False
    assert solver.eps == 1e-4  # the loosest accuracy requested


@pytest.mark.parametrize("foreign", ["solve_method", "n_jobs_forward", "mode", "acceleration_lookback", "warm_start"])
def test_names_of_others_are_accepted_with_a_warning(foreign: str) -> None:
    with pytest.warns(SettingWarning, match=foreign):
        solver = get_solver("PIQP", {foreign: 1})
    assert foreign not in solver.settings


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownSettingError, match=r"max_itres.*did you mean 'max_iters'.*eps_abs"):
        get_solver("PIQP", {"max_itres": 3})


@pytest.mark.parametrize("bad", [{"eps": 0}, {"eps": "tight"}, {"max_iters": -1}])
def test_senseless_values_are_refused(bad: dict) -> None:
    with pytest.raises(InputError, match=next(iter(bad))):
        get_solver("PIQP", bad)


@pytest.mark.parametrize("name", ["PIQP", "CLARABEL", "PROXQP", "HIGHS", "MOREAU", "DAQP", "OSQP"])
def test_a_value_the_solver_refuses_is_the_users_error(name: str) -> None:
    from solver_problems import known_program

    cls = adapters()[name]
    solver = get_solver(name, {cls.iteration_limit: "many"})
    with pytest.raises(InputError, match=name):
        solver.solve(known_program("qp").program)


@pytest.mark.parametrize("name", ["ECOS", "GUROBI", "qpsolvers:ecos", "qpsolvers:quadprog"])
def test_a_name_that_a_solver_without_adapter_refuses_is_the_users_error(name: str) -> None:
    from solver_problems import known_program

    solver = get_solver(name, {"epz": 1e-3})
    with pytest.raises(UnknownSettingError, match=f"{name} does not accept epz"):
        solver.solve(known_program("qp").program)


def test_names_of_others_for_a_solver_without_adapter() -> None:
    """Accuracies are translated, and settings of layer packages ignored with a warning."""
    solver = get_solver("ECOS", {"tol": 1e-4, "max_iter": 77})
    assert {solver.settings[k] for k in ("abstol", "reltol", "feastol")} == {1e-4}
    assert solver.settings["max_iters"] == 77
    for name in ("warm_starts", "n_jobs_forward", "mode"):
        with pytest.warns(SettingWarning, match=name):
            assert name not in get_solver("ECOS", {name: 1}).settings


def test_diffcp_stands_for_the_solver_that_it_calls() -> None:
    solver = get_solver("DIFFCP", {"eps": 1e-6, "acceleration_lookback": 0})
    assert (solver.name, solver.eps, solver.settings["acceleration_lookback"]) == ("SCS", 1e-6, 0)
    with pytest.raises(UnknownSettingError, match="did you mean 'eps'"):
        get_solver("DIFFCP", {"epz": 1e-3})


def test_settings_of_moreau_as_for_cvxpylayers() -> None:
    solver = get_solver("MOREAU", {"ipm_settings": {"tol_feas": 1e-4, "max_step_fraction": 0.9}, "max_iter": 7})
    assert (solver.settings["tol_feas"], solver.settings["max_step_fraction"]) == (1e-4, 0.9)
    assert solver.settings["max_iter"] == 7
    with pytest.raises(InputError, match="ipm_settings must be a dictionary, not int"):
        get_solver("MOREAU", {"ipm_settings": 3})


def test_looking_names_up_imports_no_solver_package() -> None:
    code = (
        "import sys, warnings; warnings.simplefilter('ignore')\n"
        "import ffo.solvers as s; s.get_solver('PIQP', {'solve_method': 1, 'acceleration_lookback': 2})\n"
        "names = 'clarabel piqp scs osqp qoco proxsuite highspy daqp moreau cvxpy torch gurobipy'.split()\n"
        "loaded = [n for n in names if n in sys.modules]\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
