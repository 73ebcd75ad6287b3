"""The forward solve, with any solver. Importing this package imports no solver package."""

from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.registry import available, choose, get_solver
from ffo.solvers.table import known
from ffo.solvers.workspace import Point, Workspace

__all__ = ["Capabilities", "Point", "Solver", "Workspace", "available", "choose", "get_solver", "known"]
