"""The native adapters by name; a module is imported when its adapter is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ffo.solvers.base import Solver

#: CVXPY's name of each solver with an adapter of its own: module and class.
NATIVE = {
    "INTERIOR": ("interior", "InteriorSolver"),
    "DENSE": ("dense", "DenseSolver"),
    "SEPARABLE": ("dense", "SeparableSolver"),
    "CLARABEL": ("clarabel", "ClarabelSolver"),
    "PIQP": ("piqp", "PIQPSolver"),
    "SCS": ("scs", "SCSSolver"),
    "OSQP": ("osqp", "OSQPSolver"),
    "QOCO": ("qoco", "QOCOSolver"),
    "PROXQP": ("proxqp", "ProxQPSolver"),
    "HIGHS": ("highs", "HiGHSSolver"),
    "DAQP": ("daqp", "DAQPSolver"),
    "MOREAU": ("moreau", "MoreauSolver"),
}


def adapter(name: str) -> type[Solver]:
    """The adapter class of a native solver."""
    module, cls = NATIVE[name]
    return getattr(importlib.import_module(f"ffo.solvers.{module}"), cls)


def adapters() -> dict[str, type[Solver]]:
    """All native adapters by name, installed or not (this imports no solver package)."""
    return {name: adapter(name) for name in NATIVE}


def known() -> tuple[str, ...]:
    """Names of the solvers with an adapter of their own, installed or not."""
    return tuple(NATIVE)
