"""A solve whose answers are judged as the engine judges them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ffo.program.cone import ConeProgram, Solution
from ffo.solvers import Solver
from ffo.solvers.forward import default_tolerance, describe, solve_guarded
from ffo.solvers.verdict import judge


def solve_checked(solver: Solver, program: ConeProgram, tolerance: float | None = None) -> tuple[Solution, np.ndarray]:
    """The solution, with measured statuses and their reasons, and natural residuals (batch,)."""
    answer = solve_guarded(solver, program)
    residual, status = judge(answer, program, default_tolerance(solver) if tolerance is None else tolerance)
    detail = {k: describe(answer, k, status, residual) for k in np.flatnonzero(status).tolist()}
    return replace(answer, status=status, detail=detail), residual
