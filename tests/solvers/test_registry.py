"""Solvers by name, and the default for a problem."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from solver_problems import known_program, simple

from ffo.cones import Nonneg
from ffo.errors import InputError, MissingSolverError
from ffo.solvers import available, choose, get_solver, known
from ffo.solvers import registry as registry_module


def test_names_in_any_case_and_instances() -> None:
    solver = get_solver("Clarabel")
    assert solver.name == "CLARABEL"
    assert get_solver(solver) is solver
    with pytest.raises(InputError, match="configured solver"):
        get_solver(solver, {"eps": 1e-3})
    with pytest.raises(InputError, match="must be a name"):
        get_solver(3)  # type: ignore[arg-type]


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(InputError, match=r"NoSuch.*CLARABEL.*PIQP"):
        get_solver("NoSuch")
    assert {"CLARABEL", "PIQP"} <= set(available())


def test_cvxpys_other_solvers_come_through_the_generic_adapter() -> None:
    assert get_solver("ecos").name == "ECOS"
    with pytest.raises(MissingSolverError, match=r"CVXOPT.*install"):
        get_solver("CVXOPT")


def test_solvers_of_qpsolvers_come_by_their_prefix() -> None:
    pytest.importorskip("qpsolvers", reason="qpsolvers is an extra")
    assert get_solver("QPsolvers:Clarabel").name == "qpsolvers:clarabel"
    assert "qpsolvers:clarabel" in available()
    with pytest.raises(InputError, match=r"qpsolvers knows no solver 'nosuch'.*qpsolvers:clarabel"):
        get_solver("qpsolvers:nosuch")
    with pytest.raises(MissingSolverError, match=r"pip install 'qpsolvers\[qpoases\]'"):
        get_solver("qpsolvers:qpoases")
    with pytest.raises(InputError, match="say 'qpsolvers:qpoases'"):
        get_solver("qpOASES")


def test_without_qpsolvers_its_prefix_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *a: None)
    with pytest.raises(MissingSolverError, match=r"qpsolvers.*pip install qpsolvers .*ffo\[qpsolvers\]"):
        get_solver("qpsolvers:quadprog")
    assert not any(name.startswith("qpsolvers:") for name in available())


@pytest.mark.parametrize("name", known())
def test_a_missing_package_is_named_with_the_pip_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *a: None)
    package = registry_module.adapter(name).capabilities.package
    with pytest.raises(MissingSolverError, match=f"pip install {package}"):
        get_solver(name)


def test_the_default_follows_class_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose(known_program("qp").program) == "DAQP"
    assert choose(known_program("lp").program) == "CLARABEL"
    assert choose(known_program("sdp").program) == "CLARABEL"
    n = 101
    large = simple(np.eye(n), np.ones(n), np.eye(n), np.ones(n), [(Nonneg(), n)])
    assert choose(large) == "PIQP"
    assert choose(simple(np.zeros((n, n)), np.ones(n), np.eye(n), np.ones(n), [(Nonneg(), n)])) == "HIGHS"
    monkeypatch.setattr(importlib.util, "find_spec", lambda *a: None)
    assert choose(large) == "CLARABEL"
