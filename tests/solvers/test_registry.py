"""Solvers by name, and the default for a problem."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import scipy.sparse as sp
from solver_problems import known_program, simple

from ffo.cones import Nonneg, Product, Zero
from ffo.errors import InputError, MissingSolverError
from ffo.program.cone import ConeProgram
from ffo.program.fill import elimination_work
from ffo.solvers import available, choose, get_solver, known
from ffo.solvers import registry as registry_module
from ffo.solvers.registry import further


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
    with pytest.raises(InputError, match=r"qpsolvers has no solver 'nosuch'.*qpsolvers:clarabel"):
        get_solver("qpsolvers:nosuch")
    with pytest.raises(MissingSolverError, match=r"pip install 'qpsolvers\[qpoases\]'"):
        get_solver("qpsolvers:qpoases")
    with pytest.raises(InputError, match="use 'qpsolvers:qpoases'"):
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


def test_the_default_follows_class_and_size() -> None:
    assert choose(known_program("qp").program) in ("DENSE", "INTERIOR")
    assert choose(known_program("lp").program) == "INTERIOR"
    assert choose(known_program("sdp").program) == "INTERIOR"
    assert choose(known_program("socp").program) == "INTERIOR"
    assert choose(known_program("exp").program) == "INTERIOR"
    n = 101
    square = np.random.default_rng(0).normal(size=(n, n))
    full = square @ square.T
    assert choose(simple(full, np.ones(n), np.eye(n), np.ones(n), [(Nonneg(), n)])) == "DENSE"
    band = sp.diags_array([np.ones(n - 1), 3.0 * np.ones(n), np.ones(n - 1)], offsets=[-1, 0, 1]).toarray()
    assert choose(simple(band, np.ones(n), np.eye(n), np.ones(n), [(Nonneg(), n)])) == "INTERIOR"
    assert choose(simple(np.zeros((n, n)), np.ones(n), np.eye(n), np.ones(n), [(Nonneg(), n)])) == "INTERIOR"


def test_where_elimination_fills_the_matrix_solvers_with_blocks_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    heavy = coupled(scattered(3000))
    assert choose(heavy) == "PIQP"
    monkeypatch.setattr(importlib.util, "find_spec", lambda *a: None)
    assert choose(heavy) == "CLARABEL"


def coupled(rows: sp.csr_array, full_row: bool = False) -> ConeProgram:
    """A QP with P = I whose variables are coupled by equalities of a given pattern."""
    n = rows.shape[1]
    A = sp.vstack([rows, np.ones((1, n))]) if full_row else rows
    cones = Product([(Zero(), A.shape[0])])
    return ConeProgram.from_matrices(sp.eye_array(n), np.ones(n), sp.csc_array(A), np.zeros(A.shape[0]), cones)


def chain(n: int) -> sp.csr_array:
    return sp.csr_array(sp.diags_array([np.ones(n - 1), -np.ones(n - 1)], offsets=[0, 1], shape=(n - 1, n)))


def scattered(n: int) -> sp.csr_array:
    """Four random variables per row."""
    rng = np.random.default_rng(0)
    places = (np.repeat(np.arange(n // 2), 4), rng.integers(0, n, 4 * (n // 2)))
    return sp.csr_array((rng.normal(size=len(places[0])), places), shape=(n // 2, n))


def test_work_is_told_from_the_pattern() -> None:
    assert elimination_work(coupled(chain(2000))) <= 8 * 4000
    heavy = elimination_work(coupled(scattered(2000)))
    assert heavy >= 1e8
    assert elimination_work(coupled(scattered(2000), full_row=True)) == heavy
    assert elimination_work(coupled(chain(2000), full_row=True)) <= 8 * 4000
    apart = sp.csr_array(sp.block_diag([scattered(40)] * 50))
    assert elimination_work(coupled(apart)) <= 1e5  # that of the largest piece
    assert elimination_work(coupled(sp.csr_array((0, 3)))) == 1.0


def test_large_qps_that_fill_in_go_to_clarabel() -> None:
    assert choose(coupled(chain(9000))) == "INTERIOR"
    assert choose(coupled(chain(9000), full_row=True)) == "INTERIOR"
    assert choose(coupled(scattered(9000))) == "CLARABEL"


def test_others_are_asked_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    qp, lp, sdp = (known_program(kind).program for kind in ("qp", "lp", "sdp"))
    assert further(qp, "DENSE") == ("INTERIOR", "CLARABEL", "PIQP")
    assert further(qp, "INTERIOR") == ("CLARABEL", "PIQP", "DENSE")
    assert further(qp, "CLARABEL") == ("PIQP", "DENSE")
    assert further(lp, "INTERIOR") == ("CLARABEL", "HIGHS", "DENSE")
    assert further(coupled(chain(500)), "INTERIOR") == ("CLARABEL", "PIQP", "HIGHS")
    assert further(sdp, "INTERIOR") == ("CLARABEL",)
    assert further(sdp, "CLARABEL") == ()
    monkeypatch.setattr(importlib.util, "find_spec", lambda *a: None)
    assert further(lp, "CLARABEL") == ()
