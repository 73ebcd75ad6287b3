"""QOCO: an interior-point method for quadratic programs over second-order cones."""

from __future__ import annotations

from typing import Any

import numpy as np

from ffo.cones import Nonneg, SecondOrder, Zero
from ffo.errors import InputError, Status
from ffo.program.cone import ConeProgram
from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.feed import SparseFeed
from ffo.solvers.ordering import Ordering
from ffo.solvers.split import pick_rows
from ffo.solvers.workspace import Point, Workspace

_STATUS = {
    "QOCO_SOLVED": Status.SOLVED,
    "QOCO_SOLVED_INACCURATE": Status.INACCURATE,
    "QOCO_MAX_ITER": Status.ITERATION_LIMIT,
}


class QOCOSolver(Solver):
    """QOCO does not detect infeasible or unbounded problems: it ends at its iteration limit or breaks down."""

    name = "QOCO"
    capabilities = Capabilities(
        frozenset({Zero, Nonneg, SecondOrder}),
        quadratic=True,
        module="qoco",
        package="qoco",
        extra="qoco",
        threads=True,
    )
    native_settings = frozenset(
        """max_iters bisect_iters ruiz_iters max_ir_iters ir_tol abstol reltol abstol_inacc reltol_inacc
        kkt_static_reg_P kkt_static_reg_A kkt_static_reg_G kkt_dynamic_reg algebra""".split()
    )
    tolerances = ("abstol", "reltol")
    iteration_limit = "max_iters"

    def workspace(self, program: ConeProgram) -> Workspace:
        return _QOCOWorkspace(self, program)


class _QOCOWorkspace(Workspace):
    """min 1/2 x'Px + q'x  s.t.  Ex = e, Gx <= h in the product of the nonnegative and second-order cones."""

    def __init__(self, solver: QOCOSolver, program: ConeProgram) -> None:
        super().__init__(program)
        import qoco

        settings = dict(solver.settings)
        self.algebra = settings.pop("algebra", "builtin")
        self._new = qoco.QOCO
        self.settings = {**settings, "verbose": int(solver.verbose)}
        self.order = order = Ordering(program, (Zero, Nonneg, SecondOrder))
        self.p = p = order.count(Zero)
        rows = np.arange(program.m)
        A, b = order.program.A, order.program.b
        self.P = SparseFeed(program.P) if program.P.nnz else None
        self.E = SparseFeed(pick_rows(A, rows[:p])) if p else None
        self.G = SparseFeed(pick_rows(A, rows[p:])) if p < program.m else None
        self.e, self.h = np.ascontiguousarray(b[:, :p]), np.ascontiguousarray(b[:, p:])
        sizes = np.array([c.dim for c in order.each(SecondOrder)], dtype=np.int32)
        self.cone = {"l": order.count(Nonneg), "nsoc": len(sizes), "q": sizes}

    def start(self, sample: int) -> None:
        program = self.program
        self.solver = self._new(algebra=self.algebra)
        try:
            self.solver.setup(
                program.n, program.m - self.p, self.p, _at(self.P, sample), program.q[sample], _at(self.E, sample),
                self.e[sample] if self.p else None, _at(self.G, sample), self.h[sample] if self.G else None,
                **self.cone, **self.settings,
            )  # fmt: skip
        except TypeError as error:
            raise InputError(f"QOCO does not accept these settings: {error}") from error

    def update(self, sample: int) -> None:
        changed = [f if f is not None and not f.shared else None for f in (self.P, self.E, self.G)]
        if any(f is not None for f in changed):
            P, E, G = (None if f is None else f.values(sample) for f in changed)
            self.solver.update_matrix_data(P=P, A=E, G=G)
        vectors: dict[str, Any] = {"c": self.program.q[sample]}
        if self.p:
            vectors["b"] = self.e[sample]
        if self.G:
            vectors["h"] = self.h[sample]
        self.solver.update_vector_data(**vectors)

    def run(self, sample: int) -> Point:
        result = self.solver.solve()
        status = _STATUS.get(result.status, Status.NUMERICAL)
        y = self.order.back(np.concatenate([np.ravel(result.y), np.ravel(result.z)]))
        s = self.order.back(np.concatenate([np.zeros(self.p), np.ravel(result.s)]))
        return Point(np.array(result.x), y, s, status, result.iters, "" if status.ok else result.status)


def _at(feed: SparseFeed | None, sample: int) -> Any:
    return None if feed is None else feed(sample)
