"""Moreau: an interior-point method that solves a whole batch natively, on CPU or GPU."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ffo.cones import PSD, Exponential, Nonneg, Power, SecondOrder, Zero
from ffo.errors import InputError, Status
from ffo.kernels.deadline import current
from ffo.program.cone import ConeProgram, Solution
from ffo.program.sparse import SparseBatch
from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.clarabel import STATUS
from ffo.solvers.feed import mirrored, transposed
from ffo.solvers.ordering import ORDER, Ordering

_TOP = frozenset({"solver", "device", "device_id", "auto_tune", "max_iter", "time_limit"})


class MoreauSolver(Solver):
    """Moreau with its interior-point method: its automatic choice has returned wrong solutions for small QPs.

    Settings of the interior-point method may be given as such, or as a dictionary `ipm_settings`, as for cvxpylayers.
    """

    name = "MOREAU"
    capabilities = Capabilities(frozenset(ORDER), quadratic=True, module="moreau", package="moreau", extra="moreau")
    native_settings = _TOP | frozenset(
        """ipm_settings tol_gap_abs tol_gap_rel tol_feas tol_infeas_abs tol_infeas_rel tol_ktratio max_step_fraction
        equilibrate_enable direct_solve_method cudss_ir_steps cudss_pivot_enable max_lu_nnz reduced_tol_gap_abs
        reduced_tol_gap_rel reduced_tol_feas reduced_tol_infeas_abs reduced_tol_infeas_rel reduced_tol_ktratio
        chordal_decomposition_enable chordal_decomposition_merge_method""".split()
    )
    tolerances = ("tol_gap_abs", "tol_gap_rel", "tol_feas")
    iteration_limit = "max_iter"
    time_limit = "time_limit"
    defaults = {"solver": "ipm", "device": "cpu"}

    def __init__(self, settings: Mapping[str, Any] | None = None, *, verbose: bool = False) -> None:
        given = dict(settings or {})
        inner = given.pop("ipm_settings", None)
        if inner is not None and not isinstance(inner, Mapping):
            raise InputError(f"ipm_settings must be a dictionary, not {type(inner).__name__}")
        super().__init__({**given, **(inner or {})}, verbose=verbose)

    def solve(self, program: ConeProgram) -> Solution:
        """Solve every sample of the batch in one native call."""
        self.check(program)
        start = time.perf_counter()
        order = Ordering(program, ORDER)
        P, A = mirrored(program.P), transposed(order.program.A)  # CSR arrays
        compiled = self.in_time(current())._compile(order, P, A)
        if P.shared == A.shared:
            compiled.setup(P.values, A.values)
        else:  # Moreau shares both matrices or neither
            compiled.setup(_batched(P, program.batch), _batched(A, program.batch))
        ready = time.perf_counter()
        q, b = np.ascontiguousarray(program.q), np.ascontiguousarray(order.program.b)
        answer, info = compiled.solve(q, b), compiled.info  # one bad sample fails the whole batch: see `forward`
        said = [status.name for status in info.status]
        status = np.array([STATUS.get(word, Status.NUMERICAL) for word in said], dtype=int)
        return Solution(
            x=np.array(answer.x),
            y=order.back(np.asarray(answer.z)),
            s=order.back(np.asarray(answer.s)),
            status=status,
            iterations=np.array(np.broadcast_to(info.iterations, (program.batch,)), dtype=int),
            setup_time=ready - start,
            solve_time=time.perf_counter() - ready,
            detail={k: word for k, word in enumerate(said) if status[k] != Status.SOLVED},
        )

    def _compile(self, order: Ordering, P: SparseBatch, A: SparseBatch) -> Any:
        import moreau

        top = {k: v for k, v in self.settings.items() if k in _TOP}
        inner = {k: v for k, v in self.settings.items() if k not in _TOP}
        try:
            settings = moreau.Settings(
                batch_size=order.program.batch, verbose=self.verbose, ipm_settings=moreau.IPMSettings(**inner), **top
            )
        except (ValueError, TypeError) as error:
            raise InputError(f"MOREAU does not accept these settings: {error}") from error
        cones = moreau.Cones(
            num_zero_cones=order.count(Zero),
            num_nonneg_cones=order.count(Nonneg),
            so_cone_dims=[c.dim for c in order.each(SecondOrder)],
            psd_dims=[c.order for c in order.each(PSD)],
            num_exp_cones=order.count(Exponential),
            power_alphas=[c.alpha for c in order.each(Power)],
        )
        n, m = order.program.n, order.program.m
        return moreau.CompiledSolver(n, m, P.indptr, P.indices, A.indptr, A.indices, cones=cones, settings=settings)


def _batched(M: SparseBatch, batch: int) -> np.ndarray:
    return np.ascontiguousarray(np.broadcast_to(M.values, (batch, M.nnz)))
