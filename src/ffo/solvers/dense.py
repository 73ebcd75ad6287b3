"""Quadratic programs with dense blocks by compiled kernels: dual pivoting, and Newton's method on the dual.

Both solve a whole batch: kernels process one sample after another, with chunks of the batch on threads. Like those of
active-set methods, the answers are exact (verified to rounding in natural units) and contain the active set: slacks
are zero where multipliers are not.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ffo.cones import Nonneg, Product, Zero
from ffo.errors import SOLVED, Status, UnsupportedProblemError
from ffo.kernels.deadline import current
from ffo.kernels.pool import one_blas_thread, run_samples
from ffo.kernels.sides import MEETING, QPAnswer, SideRows
from ffo.kernels.triplets import Triplets
from ffo.program.cone import ConeProgram, Solution
from ffo.program.convexity import NOT_CONVEX, indefinite
from ffo.program.pattern import Pattern
from ffo.program.plan import KEPT, structure_plan, values_of
from ffo.program.sparse import SymmetricBatch, plain
from ffo.solvers.base import Capabilities, Solver
from ffo.solvers.pool import NOT_FINITE
from ffo.solvers.split import Sides, find_rows, rows_by_kind
from ffo.solvers.workspace import failed, gather, leave_out

Array = np.ndarray

#: Thresholds of `suits`: most variables; most variables at which sparsity does not matter; above that, the work of a
#: sparse factorization relative to a dense one; fewest variables at which a singular P is worth its proximal steps.
LARGEST, ANY_DENSITY, FILLED, SINGULAR_FROM = 400, 30, 0.02, 60
#: Most equalities at which `suits_separable` ignores the density, and the density it requires above that.
FEW_EQUALITIES, DENSITY = 50, 0.05

#: Status and text for the codes of `kernels.pivoting`.
_STATUS = np.array([Status.SOLVED, Status.NUMERICAL, Status.INFEASIBLE, Status.UNBOUNDED, Status.INVALID_INPUT])
_STALLED, _INFEASIBLE, _INDEFINITE = 1, 2, 4
_WORDS = ("", "not verified", "infeasible", "unbounded", "not convex")


class _CompiledSolver(Solver, ABC):
    """A solver implemented by a kernel of this package. Subclasses implement `_run`."""

    capabilities = Capabilities(
        frozenset({Zero, Nonneg}), quadratic=True, module="numba", package="numba", threads=True
    )
    native_settings = frozenset({"eps", "max_iters"})
    tolerances = ("eps",)
    iteration_limit = "max_iters"

    def solve(self, program: ConeProgram) -> Solution:
        """Solve every sample of the batch. Samples with non-finite data get no answer."""
        self.check(program)
        if not program.all_finite:
            return self._solve_finite(program, np.flatnonzero(np.broadcast_to(program.finite, (program.batch,))))
        start = time.perf_counter()
        found = _empty_answer(program)
        left = self._run(program, Sides.of(program), found)
        if left:
            for v in found:
                v[left] = 0
            found.code[left] = _STALLED
        if np.count_nonzero(found.meets):
            _share_between_sides(program, found)
        unconvex = _reject_indefinite(program.P, found) if np.count_nonzero(found.rho) else {}
        verified, detail = found.residual <= self.settings["eps"], {}
        status = found.code  # 0 means solved in both
        if np.count_nonzero(status) or np.count_nonzero(verified) < len(verified):
            status = _STATUS[found.code]
            status[(status == SOLVED) & ~verified] = Status.INACCURATE
            limited = (found.code == _STALLED) & (found.steps >= self.settings["max_iters"])
            status[limited] = Status.ITERATION_LIMIT
            detail = {k: _WORDS[found.code[k]] or "not verified" for k in np.flatnonzero(status).tolist()}
            detail |= dict.fromkeys(np.flatnonzero(limited).tolist(), "iteration limit") | unconvex
            leave_out(np.array(left, int), (found.x, found.y, found.s), status, found.steps, detail)
        seconds = time.perf_counter() - start
        return Solution(found.x, found.y, found.s, status, found.steps, 0.0, seconds, detail)

    @abstractmethod
    def _run(self, program: ConeProgram, sides: Sides, out: QPAnswer) -> list[int]:
        """Solve a batch of finite data; returns samples that were left out (see `kernels.pool.run_samples`)."""

    def _solve_finite(self, program: ConeProgram, samples: Array) -> Solution:
        """The answers of these samples; the others get none."""
        whole = gather([failed(program, Status.INVALID_INPUT, NOT_FINITE)] * program.batch, program)
        if not len(samples):
            return whole
        part = self.solve(program.take(samples))
        for name in ("x", "y", "s", "status", "iterations"):
            getattr(whole, name)[samples] = getattr(part, name)
        detail = dict.fromkeys(np.setdiff1d(np.arange(program.batch), samples).tolist(), NOT_FINITE)
        detail |= {int(samples[k]): text for k, text in (part.detail or {}).items()}
        return replace(whole, solve_time=part.solve_time, detail=detail)


class DenseSolver(_CompiledSolver):
    """Block principal pivoting on the dual, for dense programs; see `kernels.pivoting` and `suits`."""

    name = "DENSE"
    capabilities = replace(_CompiledSolver.capabilities, convexity=True)
    defaults = {"max_iters": 5000}

    def _run(self, program: ConeProgram, sides: Sides, out: QPAnswer) -> list[int]:
        _, q, _, b = values_of(program).arrays
        made = program.A.kept(("dense", program.cones), lambda: _DenseArguments.of(program, sides), program.P)
        batch, limit = len(program.q), int(self.settings["max_iters"])
        arguments = (made.P, q, made.A, b, made.rows, made.me, limit, made.known, out)
        return _over_threads(made.kernel, batch, batch * made.seconds, made.blas, *arguments)


class _DenseArguments(NamedTuple):
    """What the matrices of a program determine about a call of the kernel: its arguments, whether it calls BLAS, and
    the seconds for a sample."""

    kernel: Callable[..., None]
    P: Triplets
    A: Triplets
    rows: SideRows
    me: int
    known: Any
    blas: bool
    seconds: float

    @classmethod
    def of(cls, program: ConeProgram, sides: Sides) -> _DenseArguments:
        from ffo.kernels.blas import SMALL
        from ffo.kernels.pivoting import solve_chunk

        n, (P, _, A, _), pattern = program.n, values_of(program).arrays, program.P.pattern
        upper, general = Triplets(pattern.rows, pattern.columns, P), _rows(sides, A)
        seconds = 1e-5 + 1e-9 * n**2 * (n + len(sides.rows))
        known = _loaded(program, sides, upper, general)
        return cls(
            solve_chunk, upper, general, sides.for_kernels, len(sides.equal), known, n >= SMALL, seconds
        )  # fmt: skip


class SeparableSolver(_CompiledSolver):
    """Newton's method on the dual of programs with diagonal P > 0, equalities and bounds; see `kernels.separable`."""

    name = "SEPARABLE"
    defaults = {"max_iters": 50}

    def check(self, program: ConeProgram) -> None:
        super().check(program)
        if not separable(program):
            raise UnsupportedProblemError(
                f"{self.name} solves only programs whose P is diagonal and positive and whose inequalities are bounds "
                "(rows with a single entry)"
            )

    def _run(self, program: ConeProgram, sides: Sides, out: QPAnswer) -> list[int]:
        _, p, _, b = values_of(program).arrays
        made = program.A.kept(("separable", program.cones), lambda: _SeparableArguments.of(program, sides), program.P)
        arguments = made.q, p, made.A, b, made.rows, made.known, int(self.settings["max_iters"]), out
        return _over_threads(made.kernel, program.batch, program.batch * made.seconds, made.blas, *arguments)


class _SeparableArguments(NamedTuple):
    """What SEPARABLE passes to its kernel, kept with the matrices (one sample: 0.05 ms instead of 0.06)."""

    kernel: Callable[..., None]
    q: Array
    A: Triplets
    rows: SideRows
    known: Any
    blas: bool
    seconds: float

    @classmethod
    def of(cls, program: ConeProgram, sides: Sides) -> _SeparableArguments:
        from ffo.kernels.blas import SMALL
        from ffo.kernels.separable import solve_chunk

        n, r = program.n, len(sides.equal)
        q, rows = plain(program.P.diagonal), _rows(sides, values_of(program).arrays[2])
        known = _shared(program, q, rows, r)
        return cls(solve_chunk, q, rows, sides.for_kernels, known, r >= SMALL, 1e-5 + 2e-9 * r**2 * n)


def _empty_answer(program: ConeProgram) -> QPAnswer:
    (batch, n), m = program.q.shape, program.b.shape[1]
    code, steps = np.empty(batch, np.int64), np.empty(batch, np.int64)
    x, y, s, meets = np.empty((batch, n)), np.empty((batch, m)), np.empty((batch, m)), np.empty(batch, np.bool_)
    return QPAnswer(x, y, s, code, steps, np.empty(batch), np.empty(batch), meets)


def _share_between_sides(program: ConeProgram, found: QPAnswer) -> None:
    """Split the multiplier between two bounds that coincide (lb = ub, or rows a'x <= b and -a'x <= -b), in place.

    Any split is a solution. A bound with a zero multiplier would look weakly active; an interior point method gives
    both a positive one.
    """
    y, b = found.y, program.b
    weak = (y == 0.0) & (found.s <= MEETING * np.abs(b)) & (found.code == 0)[:, None]
    weak[:, rows_by_kind(program).equal] = False
    samples, rows = weak.nonzero()
    if not len(samples):
        return
    some = np.unique(samples)
    probe = np.cos(np.arange(1.0, program.n + 1.0) ** 2)  # opposite rows give exactly opposite numbers
    value = program.take(some).A.dot(np.broadcast_to(probe, (len(some), program.n)))
    for k, i in zip(samples.tolist(), rows.tolist(), strict=True):
        mine = value[np.searchsorted(some, k)]
        other = np.flatnonzero((mine == -mine[i]) & (b[k] == -b[k, i]) & (y[k] > 0.0))
        if len(other):
            y[k, i] = y[k, other[0]]
            y[k, other[0]] *= 2.0


def separable(program: ConeProgram) -> bool:
    """Whether P is diagonal and positive, and all inequalities are bounds."""
    return program.A.kept(("is separable", program.cones), lambda: _is_separable(program), program.P)


def _is_separable(program: ConeProgram) -> bool:
    P, rows = program.P, rows_by_kind(program)
    if P.nnz != program.n or not P.pattern.diagonal or not program.cones.kinds <= {Zero, Nonneg} or not rows.bounds:
        return False
    return bool((P.values > 0).all()) and bool((program.A.values[..., rows.entry] != 0).all())


def suits(program: ConeProgram) -> bool:
    """Whether DENSE is faster than DAQP and PIQP on programs of these shapes and density.

    Measured factors over the faster of the two, one thread, time per sample (n = 10, 30, 60, 100, 200):
    dense P, n/2 inequalities 2.2, 1.9, 2.0, 3.3, 4.7; a tenth to a third of the entries 2.3, 2.2, 2.8, 4.6, 5.1;
    diagonal P, n inequalities 1.7, 1.1, 1.3, 1.2, 1.7; dense P, bounds on both sides 1.9, 1.5, 1.6, 1.5, 1.1; lasso as
    CVXPY writes it (n = 100, singular P) 1.4. It is not faster with more inequalities than variables, where pivoting
    cycles (2n: 0.9, 0.7, 0.8, 1.1, 1.0), nor for small singular P (max-min, n = 21: 0.5).

    Whether DENSE suits a sparse program depends on the fill-in. Measured factors over INTERIOR: diagonal P and
    random rows with five entries (2 to 7 % of the dense work) 1.9 to 2.2, 2.9 to 3.2 and 3.8 at n = 100, 200, 350;
    with three entries (0.2 to 0.8 %) 0.6 to 1.4, with two 0.3 to 1.0.
    """
    return program.cones.kinds <= {Zero, Nonneg} and _suits(program.cones, program.P.pattern, program.A.pattern)


@lru_cache(maxsize=KEPT)
def _suits(cones: Product, P: Pattern, A: Pattern) -> bool:
    from ffo.kernels.batch import FLOP

    m, n = A.shape
    if not 0 < n <= LARGEST or P.nnz == 0:
        return False
    rows = find_rows(cones, A)
    if not rows.bounds and len(rows.unequal) > n:
        return False
    if n < SINGULAR_FROM and np.count_nonzero(P.on_diagonal) < n:
        return False
    general = m - int(np.count_nonzero(A.row_counts == 1))
    return n <= ANY_DENSITY or structure_plan(cones, P, A).seconds >= FILLED * FLOP * n**2 * (n + general)


def suits_separable(program: ConeProgram) -> bool:
    """Whether SEPARABLE is faster than DAQP and PIQP on a program: it is on all `separable` programs, unless their
    equalities are many and sparse.

    Measured factors over the faster of the two, one thread: Sudoku (n = 729, 249 dense equalities, batch 8) 17;
    quadratic transport 10 x 10 (20 sparse equalities, batch 64) 2.3, 5 x 5 2.0.
    """
    if not separable(program):
        return False
    equalities = len(rows_by_kind(program).equal)
    return equalities <= FEW_EQUALITIES or program.A.nnz >= DENSITY * equalities * program.n


def _reject_indefinite(P: SymmetricBatch, answer: QPAnswer) -> dict[int, str]:
    """Mark samples whose P is not positive semidefinite up to rounding, in place; return a text for each.

    Only samples without a Cholesky factor are checked. Those whose P turns out semidefinite are marked as unsolved.
    """
    code, rho = answer.code, answer.rho
    found = P.kept("indefinite", lambda: indefinite(P)) if P.shared else {}
    if P.shared and not found and not np.count_nonzero(code == _INDEFINITE):
        return {}
    bad = dict.fromkeys(range(len(rho)), found[0]) if found else {}
    if not P.shared:
        some = np.flatnonzero(rho)
        bad = {int(some[k]): value for k, value in indefinite(P.take(some)).items()}
    code[code == _INDEFINITE] = _STALLED
    code[[*bad]], answer.x[[*bad]] = _INDEFINITE, np.nan
    return {k: NOT_CONVEX.format(value) for k, value in bad.items()}


def _over_threads(kernel: Callable[..., None], batch: int, seconds: float, blas: bool, *arguments: Any) -> list[int]:
    """`run_samples` with a kernel; BLAS, if the kernel calls it, is limited to one thread."""
    if not blas:
        return run_samples(kernel, batch, seconds, *arguments, deadline=current())
    with one_blas_thread():
        return run_samples(kernel, batch, seconds, *arguments, deadline=current())


def _rows(sides: Sides, values: Array) -> Triplets:
    """The rows that are not bounds, for kernels; values: (batch or 1, nnz)."""
    return Triplets(sides.places, sides.A.columns, values)


def _shared(program: ConeProgram, q: Array, A: Triplets, r: int) -> Any:
    """What all samples of a batch with shared matrices have in common; else nothing."""
    from ffo.kernels.blas import SMALL
    from ffo.kernels.separable import Shared

    if not program.shared_matrices:
        return Shared(np.empty(0), np.empty(0), np.empty((0, 0)), np.empty((0, 0)), np.empty((0, 0)))

    with one_blas_thread() if r >= SMALL else nullcontext():
        return _prepared(q, A, r, program.n)


def _loaded(program: ConeProgram, sides: Sides, P: Triplets, A: Triplets) -> Any:
    """The same for DENSE (n = 200, one sample: 0.42 ms instead of 0.60)."""
    from ffo.kernels.blas import SMALL
    from ffo.kernels.dual import Loaded
    from ffo.kernels.pivoting import load_shared

    if not program.shared_matrices:
        return Loaded(np.empty((0, 0)), np.empty((0, 0)), *(np.empty(0),) * 2, np.empty((0, 0)), np.empty(0))
    n, r = program.n, len(sides.rows)
    rows = r + 2 * n if len(sides.single) else r
    L, rho = np.empty((n, n)), np.empty(1)
    found = Loaded(np.empty((n, n)), np.empty((r, n)), np.empty(n), np.empty(rows), L, rho)
    with one_blas_thread() if n >= SMALL else nullcontext():
        load_shared(P, A, found)
    return found


def _prepared(q: Array, A: Triplets, r: int, n: int) -> Any:
    from ffo.kernels.separable import Shared, prepare

    dense = np.zeros((r, n))
    held = A.rows >= 0
    dense[A.rows[held], A.cols[held]] = A.values[0, held]
    shared = Shared(np.empty(n), np.empty(r), np.empty((n, r)), np.empty((r, r)), np.empty((r, r)))
    prepare(q[0], dense, *shared)
    return shared
