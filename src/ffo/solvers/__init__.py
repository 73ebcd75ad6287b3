"""The forward solve, with any solver. Importing this package imports no solver package."""

from ffo.solvers.base import Capabilities, Point, Solver, Workspace
from ffo.solvers.forward import solve_checked
from ffo.solvers.registry import available, choose, get_solver, known

__all__ = [
    "Capabilities",
    "Point",
    "Solver",
    "Workspace",
    "available",
    "choose",
    "get_solver",
    "known",
    "solve_checked",
]
