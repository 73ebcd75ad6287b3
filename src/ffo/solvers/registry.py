"""Solvers by name, loaded on first use, and the default solver of a problem."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Mapping
from typing import Any

from ffo.cones import PSD, Exponential, Nonneg, SecondOrder, Zero
from ffo.errors import InputError
from ffo.program.cone import ConeProgram
from ffo.program.fill import elimination_work, fits
from ffo.program.plan import plan_of
from ffo.solvers.base import Solver
from ffo.solvers.dense import LARGEST, suits, suits_separable
from ffo.solvers.table import NATIVE, adapter, adapters

#: Fewest variables at which the pattern of a QP is examined, and the elimination work above which Clarabel, which
#: factorizes block by block, is the default.
LARGE_QP, HEAVY = 4000, 2.5e10
#: Seconds of one sparse factorization above which solvers with a block-wise one are faster
SLOW = 2e-2
#: the same with curved cones
SLOW_CURVED = 2e-3
#: The built-in solvers.
OWN = ("SEPARABLE", "DENSE", "INTERIOR")


def available() -> tuple[str, ...]:
    """Names of all solvers that can be used here: native ones, then those of CVXPY and of qpsolvers.

    This makes CVXPY and qpsolvers import every solver package they find.
    """
    from ffo.solvers.qpsolvers_any import installed

    native = [name for name, cls in adapters().items() if cls.installed()]
    others: list[str] = []
    if importlib.util.find_spec("cvxpy") is not None:
        import cvxpy

        others = sorted(set(cvxpy.installed_solvers()) - set(NATIVE))
    return (*native, *others, *installed())


def get_solver(solver: str | Solver, settings: Mapping[str, Any] | None = None, verbose: bool = False) -> Solver:
    """A configured solver.

    Args:
        solver: a name in CVXPY's spelling (any case), "qpsolvers:NAME" for a solver of the qpsolvers
            package, or a `Solver`, which is returned as it is. "DIFFCP" stands for SCS, the solver that diffcp calls.
        settings: `eps`, `max_iters` and the solver's own settings.

    Raises:
        InputError: for an unknown name, or settings given together with a configured solver.
        MissingSolverError: if the solver's package is not installed.
        UnknownSettingError: for a setting that no solver has.
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
    if name == _DIFFCP:
        name = _DIFFCP_CALLS
    if name in NATIVE:
        return adapter(name)(settings, verbose=verbose)
    from ffo.solvers import qpsolvers_any

    if solver.lower().startswith(qpsolvers_any.PREFIX):
        return qpsolvers_any.QpsolversSolver(solver, settings, verbose=verbose)
    if importlib.util.find_spec("cvxpy") is not None:
        from ffo.solvers.cvxpy_any import CvxpySolver, cvxpy_names

        if name in cvxpy_names():
            return CvxpySolver(name, settings, verbose=verbose)
    hint = f" (qpsolvers has it: use {qpsolvers_any.PREFIX + solver.lower()!r})" if qpsolvers_any.known(solver) else ""
    usable = available()
    close = difflib.get_close_matches(name, [n.upper() for n in usable], n=1)
    if close and not hint:
        hint = f"; did you mean {next(n for n in usable if n.upper() == close[0])}?"
    raise InputError(f"unknown solver {solver!r}{hint}; available here: {', '.join(usable)}")


#: diffcp differentiates, and calls another solver: this one, unless settings of these names say otherwise
_DIFFCP, _DIFFCP_CALLS, _DIFFCP_SETTINGS = "DIFFCP", "SCS", ("solver", "solve_method")


def named_in_settings(
    solver: str | Solver | None, settings: Mapping[str, Any]
) -> tuple[str | Solver | None, dict[str, Any]]:
    """The solver and its settings, where settings may name the solver as they do in cvxpylayers.

    `solver=cp.DIFFCP`, or no solver, with `{"solver": name}` or `{"solve_method": name}` stands for the solver of that
    name. With any other solver these settings have no effect.
    """
    rest = dict(settings)
    if solver is None or (isinstance(solver, str) and solver.upper() == _DIFFCP):
        names = [rest.pop(key) for key in _DIFFCP_SETTINGS if isinstance(rest.get(key), str)]
        if names:
            return names[0], rest
    return solver, rest


def choose(program: ConeProgram) -> str:
    """Name of the default solver for a program, from measurements of time, accuracy and failures.

    Linear and quadratic programs: the built-in compiled solvers, SEPARABLE or DENSE where they suit, else
    INTERIOR (0.07 ms at n = 10, 0.5 ms at n = 200, and multithreaded; DAQP takes 0.14 ms at n = 10, PIQP 0.4 ms at
    n = 500, neither multithreaded). With much fill-in: PIQP, whose dense form factorizes by blocks, and Clarabel for
    large problems (CVXQP2_L, n = 10,000: 4 s, PIQP 40 s). Second-order, semidefinite and exponential
    cones: INTERIOR too, unless blocks are large (sixteen families at batch 64, the solver alone against Clarabel:
    linear and quadratic ones 4 to 9 times faster, robust least squares 4.4, semidefinite of order 8 twice; logistic
    and entropy, the whole forward pass, 2.7 and 2.3). Power cones: Clarabel.
    """
    if not program.cones.kinds <= {Zero, Nonneg, SecondOrder, PSD, Exponential}:
        return "CLARABEL"
    if not fits(program):
        return "CLARABEL"
    if not program.cones.kinds <= {Zero, Nonneg}:
        return "INTERIOR" if plan_of(program).seconds <= SLOW_CURVED else "CLARABEL"
    if program.n >= LARGE_QP and elimination_work(program) >= HEAVY:
        return "CLARABEL"
    if program.P.nnz:
        if suits_separable(program):
            return "SEPARABLE"
        if suits(program):
            return "DENSE"
    if plan_of(program).seconds <= SLOW:
        return "INTERIOR"
    return "PIQP" if program.P.nnz and adapter("PIQP").installed() else "CLARABEL"


def further(program: ConeProgram, first: str) -> tuple[str, ...]:
    """Names of the solvers to try, in this order, if the default one failed.

    On the Maros-Meszaros collection PIQP fails on problems that Clarabel solves, and vice versa. Bounds of 1e11 that
    are never active may stop every interior-point method, but not the active-set method of DENSE; on LISWET8, which has
    10,002 variables, only that of HiGHS succeeds.
    """
    if not program.cones.kinds <= {Zero, Nonneg}:
        return ("CLARABEL",) if first == "INTERIOR" and adapter("CLARABEL").installed() else ()
    rest = ("INTERIOR", "CLARABEL") if first in OWN[:2] else ("CLARABEL",)
    last = ("PIQP",) if program.P.nnz else ("HIGHS",)
    active_set = "DENSE" if program.n <= LARGEST else "HIGHS"
    names = dict.fromkeys((*rest, *last, active_set))
    return tuple(name for name in names if name != first and adapter(name).installed())
