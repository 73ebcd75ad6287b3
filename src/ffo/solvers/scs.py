"""SCS: operator splitting for all cones of this package."""

from __future__ import annotations

from typing import Any

import numpy as np

from ffo.cones import PSD, Exponential, Nonneg, Power, SecondOrder, Zero
from ffo.errors import Status
from ffo.program.cone import ConeProgram
from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.feed import SparseFeed
from ffo.solvers.ordering import ORDER, Ordering
from ffo.solvers.workspace import Point, Workspace

_STATUS = {
    1: Status.SOLVED,
    2: Status.INACCURATE,
    -1: Status.UNBOUNDED,
    -2: Status.INFEASIBLE,
    -6: Status.UNBOUNDED,
    -7: Status.INFEASIBLE,
}
_INTERRUPTED = -5


class SCSSolver(Solver):
    """SCS. Its MKL back end starts its own threads, so QDLDL is the default (`linear_solver`)."""

    name = "SCS"
    capabilities = Capabilities(
        frozenset(ORDER), quadratic=True, module="scs", package="scs", extra="scs", threads=True
    )
    native_settings = frozenset(
        """use_indirect linear_solver mkl gpu normalize scale adaptive_scale rho_x max_iters eps_abs eps_rel
        eps_infeas alpha time_limit_secs acceleration_lookback acceleration_interval write_data_filename
        log_csv_filename""".split()
    )
    tolerances = ("eps_abs", "eps_rel")
    iteration_limit = "max_iters"
    time_limit = "time_limit_secs"
    defaults = {"linear_solver": "qdldl"}

    def workspace(self, program: ConeProgram) -> Workspace:
        return _SCSWorkspace(self, program)


class _SCSWorkspace(Workspace):
    def __init__(self, solver: SCSSolver, program: ConeProgram) -> None:
        super().__init__(program)
        import scs

        self._new = scs.SCS
        self.settings = {**solver.settings, "verbose": solver.verbose}
        self.order = Ordering(program, ORDER, lower_psd=True)
        self.empty = program.m == 0
        self.cone = _cone(self.order)
        self.P, self.A = SparseFeed(program.P), SparseFeed(self.order.program.A)
        self.b = self.order.program.b
        self.rescaled = False

    def start(self, sample: int) -> None:
        A, b, cone = self.A(sample), self.b[sample], self.cone
        if self.empty:  # SCS needs a constraint: 0'x <= 1
            A, b, cone = type(A)((1, self.program.n)), np.ones(1), {"l": 1}
        data = {"P": self.P(sample), "A": A, "b": b, "c": self.program.q[sample]}
        self.solver = self._new(data, cone, **self.settings)

    def update(self, sample: int) -> None:
        # SCS keeps the scale that it has adapted to the last sample, from where the next one takes two to four times as
        # many iterations: more than the factorization that a fresh start needs
        if self.program.shared_matrices and not self.rescaled:
            self.solver.update(b=None if self.empty else self.b[sample], c=self.program.q[sample])
        else:
            self.start(sample)

    def run(self, sample: int) -> Point:
        result = self.solver.solve(warm_start=False)
        info = result["info"]
        if info["status_val"] == _INTERRUPTED:  # SCS does not pass Ctrl-C on
            raise KeyboardInterrupt
        status, self.rescaled = _status(info), info["scale_updates"] > 0
        m = self.program.m
        y, s = self.order.back(result["y"][:m]), self.order.back(result["s"][:m])
        return Point(result["x"], y, s, status, info["iter"], "" if status.ok else info["status"])


def _status(info: dict[str, Any]) -> Status:
    status = _STATUS.get(info["status_val"], Status.NUMERICAL)
    if status is Status.INACCURATE:  # SCS gives the reason only as text
        words = info["status"]
        if "max_iters" in words:
            return Status.ITERATION_LIMIT
        if "time" in words:
            return Status.TIME_LIMIT
    return status


def _cone(order: Ordering) -> dict[str, Any]:
    cone = {
        "z": order.count(Zero),
        "l": order.count(Nonneg),
        "q": [c.dim for c in order.each(SecondOrder)],
        "s": [c.order for c in order.each(PSD)],
        "ep": order.count(Exponential),
        "p": [c.alpha for c in order.each(Power)],
    }
    return {name: value for name, value in cone.items() if value}
