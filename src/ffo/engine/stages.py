"""The stages of a call: each looks at the samples of a `Batch` that are still open or failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ffo.engine.batch import OPEN, Batch
from ffo.errors import Status
from ffo.ghost.direct import from_nothing
from ffo.ghost.oracle import Way
from ffo.program.presolve import Triple
from ffo.program.sparse import SymmetricBatch
from ffo.solvers.base import Solver
from ffo.solvers.forward import default_tolerance, solve_claimed

Array = np.ndarray

#: name under which solutions of Newton's method from nothing are reported
NEWTON = "Newton"
#: failures whose point, if there is one, may still be near the solution
REPAIRABLE = (
    Status.INACCURATE,
    Status.ITERATION_LIMIT,
    Status.TIME_LIMIT,
    Status.NUMERICAL,
    Status.INFEASIBLE,
    Status.UNBOUNDED,
)
#: there is no solution
VERDICTS = (Status.INFEASIBLE, Status.UNBOUNDED)
#: relative residual of a point from which a verdict of infeasibility or unboundedness is not disputed (that of a
#: certificate of either is 1); below, a solution found by Newton's method refutes it
FAR = 0.5


def reject_bad_data(batch: Batch, indefinite: Callable[[SymmetricBatch], dict[int, float]] | None) -> None:
    """Samples that cannot be solved; `indefinite` finds P that are not convex, None: they are known to be."""
    bad = np.flatnonzero(~batch.program.finite)
    batch.status[bad] = Status.INVALID_INPUT
    batch.detail.update({int(k): "the problem data has NaN or infinite entries" for k in bad})
    P, good = batch.program.P, batch.open
    if indefinite is None or not len(good):
        return
    for k, value in indefinite(P.take(good)).items():
        samples = good if P.shared else good[k : k + 1]
        batch.status[samples] = Status.INVALID_INPUT
        text = f"the quadratic term is not positive semidefinite: smallest eigenvalue {value:.3g}"
        batch.detail.update({int(i): text for i in samples})


def from_memory(batch: Batch, way: Way, known: Array, point: Triple) -> None:
    """Newton's method from remembered solutions of some samples; kept where it ends in a solution."""
    fresh = batch.status[known] == OPEN
    known, x, y, s = (v if fresh.all() else v[fresh] for v in (known, *point))
    if not len(known) or not way.polishes:
        return
    with np.errstate(all="ignore"):
        hit = batch.accept_solutions(known, batch.linearized(known, x, y, s, way))
    batch.iterations[known[hit]] = 0
    batch.hits = int(hit.sum())


def solve_from_nothing(batch: Batch) -> None:
    """Newton's method without a solver; kept where it ends in a solution."""
    todo = batch.open
    with batch.timed("solve"):
        found = from_nothing(batch.part(todo))
        good = batch.accept_solutions(todo, found, found.certificate.good)
    batch.iterations[todo[good]], batch.solver[todo[good]] = found.steps[good], NEWTON


def ask(batch: Batch, solvers: Sequence[Solver], way: Way) -> None:
    """Solvers in order: a sample that one fails on, or whose answer is not verified, goes on to the next alone."""
    todo = batch.open
    for solver in solvers:
        solver.check(batch.program)
    for place, solver in enumerate(solvers):
        if not len(todo):
            return
        batch.retried[todo] = place > 0
        _ask_one(batch, solver, way, todo)
        todo = todo[batch.status[todo] != Status.SOLVED]


def _ask_one(batch: Batch, solver: Solver, way: Way, samples: Array) -> None:
    """One solver about some samples. A failure replaces no earlier one; a verdict that there is no solution does."""
    answer, residual = solve_claimed(solver, batch.part(samples))
    times = batch.times
    batch.times = replace(times, setup=times.setup + answer.setup_time, solve=times.solve + answer.solve_time)
    undecided = ~np.isin(batch.status[samples], VERDICTS)
    first = (batch.solver[samples] == "") | (undecided & np.isin(answer.status, VERDICTS))
    keep = first | answer.solved
    rows = samples[keep]
    batch.x[rows], batch.y[rows], batch.s[rows] = answer.x[keep], answer.y[keep], answer.s[keep]
    batch.status[rows], batch.residual[rows] = answer.status[keep], residual[keep]
    batch.solver[rows], batch.iterations[rows] = solver.name, answer.iterations[keep]
    details = answer.detail or {}
    batch.detail.update({int(samples[k]): text for k, text in details.items() if first[k]})
    _verify(batch, samples[answer.solved], way, default_tolerance(solver))


def _verify(batch: Batch, samples: Array, way: Way, tolerance: float) -> None:
    """Polish the answers of a solver, and see whether they hold in the units of every row.

    Where Newton's method does not converge, the solver's own point stands if it holds to its tolerance: the
    certificate says so.
    """
    if not len(samples):
        return
    found = batch.linearized(samples, batch.x[samples], batch.y[samples], batch.s[samples], way)
    natural = found.certificate.natural_residual
    good = natural <= tolerance
    batch.accept(samples, found, good)
    for k in np.flatnonzero(~good).tolist():
        sample = int(samples[k])
        batch.status[sample] = Status.INACCURATE
        batch.detail[sample] = f"the solver's answer does not hold row by row: natural residual {natural[k]:.1e}"


def rescue(batch: Batch, way: Way) -> None:
    """Newton's method from the points of failed samples."""
    if (batch.status == Status.SOLVED).all() or not way.polishes:
        return
    finite = np.isfinite(np.concatenate([batch.x, batch.y, batch.s], axis=1)).all(axis=1)
    settled = np.isin(batch.status, VERDICTS) & ~(batch.residual < FAR)
    failed = np.flatnonzero(np.isin(batch.status, REPAIRABLE) & finite & ~settled)
    if not len(failed):
        return
    with np.errstate(all="ignore"):
        found = batch.linearized(failed, batch.x[failed], batch.y[failed], batch.s[failed], way)
        saved = batch.accept_solutions(failed, found)
    batch.rescued[failed[saved]] = True
