"""Solvers by name, loaded when first asked for, and the default for a problem."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

from ffo.cones import Nonneg, Zero
from ffo.errors import InputError
from ffo.program.cone import ConeProgram
from ffo.solvers.base import Solver
from ffo.solvers.fill import elimination_work

#: CVXPY's name of each solver with an adapter of its own: module and class.
_NATIVE = {
    "CLARABEL": ("clarabel", "ClarabelSolver"),
    "PIQP": ("piqp", "PIQPSolver"),
    "SCS": ("scs", "SCSSolver"),
    "OSQP": ("osqp", "OSQPSolver"),
    "QOCO": ("qoco", "QOCOSolver"),
    "PROXQP": ("proxqp", "ProxQPSolver"),
    "HIGHS": ("highs", "HiGHSSolver"),
    "DAQP": ("daqp", "DAQPSolver"),
    "MOREAU": ("moreau", "MoreauSolver"),
    "DENSE": ("dense", "DenseSolver"),
    "SEPARABLE": ("dense", "SeparableSolver"),
}

#: Variables up to which DAQP is the default for QPs, and Clarabel for LPs.
SMALL_QP, SMALL_LP = 60, 100
#: Variables from which the pattern of a QP is looked at, and the work of its elimination from which Clarabel,
#: which factorizes block by block, is the default.
LARGE_QP, HEAVY = 4000, 2.5e10


def adapter(name: str) -> type[Solver]:
    """The adapter class of a native solver."""
    module, cls = _NATIVE[name]
    return getattr(importlib.import_module(f"ffo.solvers.{module}"), cls)


def adapters() -> dict[str, type[Solver]]:
    """All native adapters by name, installed or not (this imports no solver package)."""
    return {name: adapter(name) for name in _NATIVE}


def known() -> tuple[str, ...]:
    """Names of the solvers with an adapter of their own, installed or not."""
    return tuple(_NATIVE)


def available() -> tuple[str, ...]:
    """Names of all solvers that can be used here: native ones, then those of CVXPY and of qpsolvers.

    Asking these makes them import the solver packages they find.
    """
    from ffo.solvers.qpsolvers_any import installed

    native = [name for name, cls in adapters().items() if cls.installed()]
    others: list[str] = []
    if importlib.util.find_spec("cvxpy") is not None:
        import cvxpy

        others = sorted(set(cvxpy.installed_solvers()) - set(_NATIVE))
    return (*native, *others, *installed())


def get_solver(solver: str | Solver, settings: Mapping[str, Any] | None = None, verbose: bool = False) -> Solver:
    """A configured solver.

    Args:
        solver: a name in CVXPY's spelling (any case), "qpsolvers:NAME" for a solver of the qpsolvers
            package, or a `Solver`, which is returned as it is.
        settings: `eps`, `max_iters` and the solver's own settings.

    Raises:
        InputError: for an unknown name, or settings given beside a configured solver.
        MissingSolverError: when the solver's package is not installed.
        UnknownSettingError: for a setting that no solver knows.
    """
    if isinstance(solver, Solver):
        if settings:
            raise InputError(
                f"solver settings were given together with the configured solver {solver!r}: "
                "give them when making that solver, or pass the solver by name"
            )
        return solver
    if not isinstance(solver, str):
        raise InputError(f"solver must be a name or an ffo Solver, not {type(solver).__name__}")
    name = solver.upper()
    if name in _NATIVE:
        return adapter(name)(settings, verbose=verbose)
    from ffo.solvers import qpsolvers_any

    if solver.lower().startswith(qpsolvers_any.PREFIX):
        return qpsolvers_any.QpsolversSolver(solver, settings, verbose=verbose)
    if importlib.util.find_spec("cvxpy") is not None:
        from ffo.solvers.cvxpy_any import CvxpySolver, cvxpy_names

        if name in cvxpy_names():
            return CvxpySolver(name, settings, verbose=verbose)
    hint = (
        f" (qpsolvers knows it: say {qpsolvers_any.PREFIX + solver.lower()!r})" if qpsolvers_any.known(solver) else ""
    )
    raise InputError(f"unknown solver {solver!r}{hint}; available here: {', '.join(available())}")


def choose(program: ConeProgram) -> str:
    """Name of the default solver for a program, from measurements of time, accuracy and failures.

    Small QPs: DAQP (exact; 45 us at n = 30, PIQP 85 us), whose active-set steps
    lose beyond about 60 variables. Other QPs: PIQP (0.4 ms on the sparse QP with n = 500, Clarabel 2 ms), and
    Clarabel where elimination fills the matrix (CVXQP2_L, n = 10,000: 4 s, PIQP 40 s).
    Both solved all of 1200 random QPs (n < 60; singular P, rows scaled from 1e-4 to 1e4, repeated rows).
    LPs: Clarabel, and HiGHS beyond 100 variables, where it is as fast or much faster; both solved all of
    400 random LPs, PIQP failed on 7. A non-unique LP gets the centre of its solutions from Clarabel, a
    vertex from HiGHS. Curved cones: Clarabel (for what the engine leaves of second-order cone programs).
    """
    if not program.cones.kinds <= {Zero, Nonneg}:
        return "CLARABEL"
    if program.P.nnz == 0:
        order: tuple[str, ...] = () if program.n <= SMALL_LP else ("HIGHS",)
    else:
        order = ("DAQP", "PIQP") if program.n <= SMALL_QP else ("PIQP",)
        if program.n >= LARGE_QP and elimination_work(program) >= HEAVY:
            order = ()
    return next((name for name in order if adapter(name).installed()), "CLARABEL")


def second_choice(program: ConeProgram, first: str) -> str | None:
    """Name of the solver to ask where the default one failed; None where there is no other as good.

    Of the Maros-Meszaros collection PIQP fails on problems that Clarabel solves, and the other way round.
    """
    if first != "CLARABEL":
        return "CLARABEL"
    flat = program.cones.kinds <= {Zero, Nonneg}
    order = () if not flat else ("PIQP",) if program.P.nnz else ("HIGHS",)
    return next((name for name in order if adapter(name).installed()), None)
