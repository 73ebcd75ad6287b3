"""The stages of a call: each processes the samples of a `Batch` that are still open or failed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ffo.cones import Nonneg, Zero
from ffo.engine.auxiliary import relaxed, steepest_ray, with_curvature
from ffo.engine.batch import ACCEPT, OPEN, Batch, are_finite
from ffo.engine.blame import NOT_FINITE
from ffo.engine.checks import buried, contradictions, rows_hold
from ffo.engine.proof import Proof, find_proofs, part, starts_somewhere
from ffo.errors import SOLVED, Status
from ffo.ghost.direct import Direct, from_nothing
from ffo.ghost.oracle import Linearization, Way
from ffo.kernels.deadline import current, expired
from ffo.kernels.point import VANISHING
from ffo.program.cone import ConeProgram, Solution
from ffo.program.convexity import NOT_CONVEX
from ffo.program.presolve import Triple
from ffo.program.sparse import SymmetricBatch, all_finite
from ffo.solvers.base import Solver
from ffo.solvers.forward import default_tolerance, describe, solve_guarded
from ffo.solvers.registry import choose, further, get_solver
from ffo.solvers.verdict import ROUGH, judge, one_of, refuted

if TYPE_CHECKING:
    from ffo.engine.attempt import Attempt

Array = np.ndarray

#: name under which solutions of Newton's method from zero are reported
NEWTON = "Newton"
_LOST = Status.INACCURATE, Status.ITERATION_LIMIT, Status.NUMERICAL, Status.INFEASIBLE, Status.UNBOUNDED
#: tables by status: failures whose point may still be near the solution; failures for which a proof that there is no
#: solution is worth looking for; and verdicts that there is none
REPAIRABLE, UNDECIDED = one_of(*_LOST, Status.TIME_LIMIT), one_of(*_LOST)
VERDICTS = one_of(Status.INFEASIBLE, Status.UNBOUNDED)
#: natural residual of a point above which a verdict of infeasibility or unboundedness is not questioned (that of a
#: certificate of either is 1); below, a solution found by Newton's method refutes it
FAR = 0.5
#: size of the entries of a point, in a scaled program, above which it may have diverged
DISTANT = 1e6
#: factors of its eps with which a solver is asked again for answers that it called solved and that do not hold. It
#: compares an error with the largest terms of all rows: a right-hand side of 1e4 hides 1e4 eps in a row with terms of 1
#: (nearer to 1, many answers take further solves; much smaller, first-order solvers run into their iteration limit)
TIGHTER = (1e-2, 1e-4)


def reject_bad_data(batch: Batch, indefinite: Callable[[SymmetricBatch], dict[int, float]] | None) -> None:
    """Reject samples that cannot be solved; `indefinite` finds P that are not convex; None: all are known to be."""
    if not batch.program.all_finite:
        bad = np.flatnonzero(~batch.program.finite)
        batch.status[bad] = Status.INVALID_INPUT
        batch.detail.update({int(k): NOT_FINITE for k in bad})
    if (wrong := contradictions(batch.program)) is not None:
        mine = batch.open[wrong[batch.open].any(axis=1)]
        multipliers = np.where(wrong[mine], -np.sign(batch.program.b[mine]), 0.0)
        batch.prove(mine, {k: Proof(Status.INFEASIBLE, y) for k, y in enumerate(multipliers)})
    if indefinite is not None:
        reject_indefinite(batch, indefinite, batch.open)


def reject_indefinite(batch: Batch, indefinite: Callable[[SymmetricBatch], dict[int, float]], samples: Array) -> None:
    """Reject those of some samples whose P is not convex."""
    P = batch.program.P
    for k, value in indefinite(P.take(samples)).items() if len(samples) else ():
        mine = samples if P.shared else samples[k : k + 1]
        batch.withdraw(mine[batch.status[mine] == SOLVED], Status.INVALID_INPUT)
        batch.status[mine] = Status.INVALID_INPUT
        batch.detail.update(dict.fromkeys(mine.tolist(), NOT_CONVEX.format(value)))


def from_memory(batch: Batch, way: Way, known: Array, point: Triple) -> None:
    """Newton's method from remembered or guessed solutions of some samples; results that are solutions are kept."""
    fresh = batch.status[known] == OPEN
    known, x, y, s = (v if fresh.all() else v[fresh] for v in (known, *point))
    if not (len(known) and way.polishes):
        return
    with np.errstate(all="ignore"):
        found = batch.linearized(known, unsolved(x, y, s), way)
        good = (found.certificate.natural_residual <= ACCEPT) & ~found.certificate.unsettled
        hit = accept(batch, known, found, good)
        batch.reopen(known[~hit])  # a guess proves nothing
    batch.iterations[known[hit]], batch.hits = 0, int(hit.sum())


def solve_from_nothing(batch: Batch) -> None:
    """Newton's method without a solver; results that are solutions are kept."""
    todo = batch.open
    start = time.perf_counter()
    found = from_nothing(batch.part(todo))
    batch.solve_time += time.perf_counter() - start
    good = found.certificate.good & (found.certificate.natural_residual <= ACCEPT)
    good = accept(batch, todo, found, good)
    batch.iterations[todo[good]], batch.solver[todo[good]] = found.steps[good], NEWTON


def ask(
    batch: Batch, solvers: Iterable[Solver], way: Way, first: Attempt | None = None, coarse: float | None = None
) -> None:
    """Call solvers in order. A sample that one fails on, or whose answer is not verified, goes on to the next alone.

    So does one whose answer is coarse after polishing, with a natural residual above `coarse` (default: ACCEPT), if
    there is another solver: the better answer is kept, unless it stays coarse and some solver says that there is no
    solution. A proof that there is none needs no second opinion. `first`: what the first solver has answered for all
    samples already.
    """
    coarse = ACCEPT if coarse is None else coarse
    todo = fresh = batch.open
    if not len(todo) or expired():
        return
    denied = batch.status.copy()  # of those that are open
    for place, solver in enumerate(solvers):
        if place:
            fresh = todo[batch.status[todo] != SOLVED]
            batch.retried[fresh] = True
        if len(fresh):
            if first is not None and not place:
                batch.polish_time += first.polish_time
                _use(batch, solver, way, fresh, first.answer, first.found)
            else:
                _ask_one(batch, solver, way, fresh)
            if batch.finished(coarse if way.polishes else np.inf):
                return
            _note_verdicts(denied, fresh, batch.status[fresh])
        if len(fresh) < len(todo) and not (solver.capabilities.slow_quadratic and batch.program.P.nnz):
            others = np.setdiff1d(todo, fresh)
            _note_verdicts(denied, others, _ask_again(batch, solver, way, others))
        left = batch.status[todo] != SOLVED
        if way.polishes:
            left |= batch.residual[todo] > coarse
        if batch.proofs:
            left &= ~batch.proven[todo]
        if solver.capabilities.convexity:
            left &= batch.status[todo] != Status.INVALID_INPUT
        todo = todo[left]
        if not len(todo):
            return
        if expired():
            break
    if way.polishes:
        _sharpen(batch, solver, way, todo)
    doubted = todo[(batch.status[todo] == SOLVED) & (batch.residual[todo] > ACCEPT) & (denied[todo] != OPEN)]
    batch.withdraw(doubted, denied[doubted])


def _sharpen(batch: Batch, solver: Solver, way: Way, samples: Array) -> None:
    """Ask a solver again, with a smaller eps, for coarse or rejected answers to programs with curved cones: a slack and
    a multiplier that are both about the square root of eps leave the face open (`engine.face` is for scalar rows)."""
    if batch.program.cones.kinds <= {Zero, Nonneg}:
        return
    for sharper in solver.tighter(TIGHTER):
        status, coarse = batch.status[samples], batch.residual[samples] > ACCEPT
        samples = samples[((status == SOLVED) & coarse) | (status == Status.INACCURATE)]
        if not len(samples) or expired():
            return
        _ask_again(batch, sharper, way, samples)


def _note_verdicts(denied: Array, samples: Array, status: Array) -> None:
    if not np.count_nonzero(status):
        return
    verdict = VERDICTS[status]
    denied[samples[verdict]] = status[verdict]


def _ask_again(batch: Batch, solver: Solver, way: Way, samples: Array) -> Array:
    """Call another solver on samples whose answer, if they have one, is kept unless the new one is better; its
    statuses."""
    other = Batch.of(batch.part(samples))
    _ask_one(other, solver, way, np.arange(len(samples)))
    failed = batch.status[samples] != SOLVED
    better = (other.status == SOLVED) & (failed | (other.residual < batch.residual[samples]))
    other.retried[:] = True
    status = other.status.copy()
    batch.put(samples, other.only(better | other.proven), final_only=True)
    return status


def _ask_one(batch: Batch, solver: Solver, way: Way, samples: Array) -> None:
    """Call one solver on some samples; a few at a time if time is limited, so that these are polished too."""
    deadline = current()
    if deadline is None:
        _ask_some(batch, solver, way, samples)
        return
    while len(samples) and not deadline.passed:
        start, count = deadline.left, deadline.pace.samples(deadline.left)
        _ask_some(batch, solver, way, samples[:count])
        deadline.pace.record(start - deadline.left, len(samples[:count]))
        samples = samples[count:]


def _ask_some(batch: Batch, solver: Solver, way: Way, samples: Array) -> None:
    """Call one solver on some samples. Where nothing is polished, samples whose answer it calls solved, but does not
    hold, are solved again with a smaller eps and judged as before."""
    for asked in (solver, *solver.tighter(TIGHTER)):
        batch.retried[samples] |= asked is not solver
        answer = solve_guarded(asked, batch.part(samples))
        _use(batch, solver, way, samples, answer)
        samples = samples[answer.solved & (batch.status[samples] == Status.INACCURATE)]
        if way.polishes or not len(samples) or expired():
            return


def _use(
    batch: Batch, solver: Solver, way: Way, samples: Array, answer: Solution, found: Linearization | None = None
) -> None:
    """Verify a solver's answers for some samples; `found`: all of them polished already."""
    tolerance = default_tolerance(solver)
    batch.setup_time += answer.setup_time
    batch.solve_time += answer.solve_time
    if np.count_nonzero(answer.status) or not all_finite(answer.x):
        failed = ~(answer.solved & np.isfinite(answer.x).all(axis=1))
        failed[failed] = ~_give_up(batch, solver, samples, answer, failed.nonzero()[0], tolerance)
        if np.count_nonzero(failed) == len(failed):
            return
        samples, answer, found = samples[~failed], answer.take(~failed), None
    if len(samples):
        _verify(batch, samples, answer, found or batch.linearized(samples, answer, way), solver, way, tolerance)


def _give_up(
    batch: Batch, solver: Solver, samples: Array, answer: Solution, at: Array, tolerance: float,
    residual: Array | None = None,
) -> Array:  # fmt: skip
    """Handle answers `at` some places that are not solutions: proofs that there is none, or failures.

    A failure does not replace an earlier one; a verdict that there is no solution does. Returns those (places,) that
    are solutions although the solver does not say so; none if their natural residuals are known already.
    """
    mine, words, said = samples[at], answer.detail or {}, answer
    if len(at) < len(answer.x):
        said = replace(answer.take(at), detail={i: words[k] for i, k in enumerate(at.tolist()) if k in words})
    proofs, _ = proofs_at(batch.part(mine), said.x, said.y)
    status, measured = said.status.copy(), np.full(len(at), np.nan)
    if len(proofs) < len(at):
        left = np.array([k for k in range(len(at)) if k not in proofs])
        known = None if residual is None else residual[at[left]]
        measured[left], status[left] = judge(said.take(left), batch.part(mine[left]), tolerance, known)
    if residual is not None:
        status[status == SOLVED] = Status.INACCURATE
    status[list(proofs)] = [proof.status for proof in proofs.values()]
    solved = status == SOLVED
    first = (batch.solver[mine] == "") | (VERDICTS[status] & ~VERDICTS[batch.status[mine]])
    found = ~solved & (first | (are_finite(said.x, said.y, said.s) & ~are_finite(*(v[mine] for v in batch.point))))
    batch.put_point(mine[found], (said.x[found], said.y[found], said.s[found]))  # it may be near the solution
    new = (first & ~solved).nonzero()[0]
    rows = mine[new]
    batch.status[rows], batch.residual[rows] = status[new], measured[new]
    batch.solver[rows], batch.iterations[rows] = solver.name, said.iterations[new]
    batch.detail.update({int(mine[k]): text for k in new.tolist() if (text := describe(said, k, status, measured))})
    batch.prove(mine, proofs)
    return np.asarray(solved)


def proofs_at(program: ConeProgram, x: Array, y: Array) -> tuple[dict[int, Proof], Array]:
    """`find_proofs`, with a feasible starting point for every ray. If there provably is none, that proof replaces the
    ray; if neither is found, there is no proof."""
    found, doubted = find_proofs(program, x, y)
    mine = np.array([k for k, proof in found.items() if proof.status is Status.UNBOUNDED], dtype=int)
    if len(mine):
        mine = mine[~starts_somewhere(np.array([found[k].vector for k in mine.tolist()]), x[mine], part(program, mine))]
    if len(mine):
        batch = by_own_choice(with_curvature(part(program, mine)))
        for i, k in enumerate(mine.tolist()):
            if batch.status[i] != SOLVED:
                del found[k]
        found |= {int(mine[i]): proof for i, proof in batch.proofs.items()}
    return found, doubted


def by_own_choice(program: ConeProgram, coarse: float | None = None) -> Batch:
    """Solve an auxiliary program by the solvers that suit it best; `coarse`: as for `ask`."""
    batch = Batch.of(program)
    ask(batch, _own_choice(program), Direct(), coarse=coarse)
    return batch


def _own_choice(program: ConeProgram) -> Iterator[Solver]:
    """Without those whose method is slow on quadratic programs (on LISWET11, with 10,002 variables: 24 s)."""
    yield get_solver(first := choose(program))
    for solver in map(get_solver, further(program, first)):
        if not (solver.capabilities.slow_quadratic and program.P.nnz):
            yield solver


def _steepest(program: ConeProgram) -> dict[int, Proof]:
    """A proof that the objective of one sample is unbounded below, from its steepest ray."""
    steepest = by_own_choice(steepest_ray(program))
    return proofs_at(program, steepest.point[0], np.zeros((1, program.m)))[0]


def seek_proofs(batch: Batch) -> None:
    """Look for proofs that failed samples have no solution, if no solver's point led to one. Verdicts refuted by a
    feasible point of the program, or of its dual, are withdrawn."""
    for k in np.flatnonzero(UNDECIDED[batch.status] & ~batch.proven).tolist():
        if expired():
            return
        samples = np.array([k])
        program = batch.part(samples)
        feasible = by_own_choice(with_curvature(program))
        if feasible.status[0] == SOLVED:
            if proofs := _steepest(program):
                batch.prove(samples, proofs)
            elif batch.status[k] == Status.INFEASIBLE and feasible.residual[0] <= ACCEPT:
                batch.status[k], batch.detail[k] = Status.INACCURATE, "called infeasible, but there is a feasible point"
            elif batch.status[k] == Status.UNBOUNDED:
                bounded = by_own_choice(relaxed(program))
                if bounded.status[0] == SOLVED and bounded.residual[0] <= ACCEPT:
                    batch.status[k], batch.detail[k] = Status.INACCURATE, "called unbounded, but its dual is feasible"
        else:
            batch.prove(samples, feasible.proofs)


def _verify(
    batch: Batch, samples: Array, answer: Solution, found: Linearization, solver: Solver, way: Way, tolerance: float
) -> None:
    """Check the answers that a solver calls solved, which have been polished, in the units of every row.

    If Newton's method does not converge, the solver's own point is kept if it holds to its tolerance; the certificate
    says so. The residual of an answer may be the square root of the tolerance (a slack and a multiplier of that size:
    solvers measure their product). An answer with a larger residual is rejected, even if Newton's method converges from
    it. Where the way does not polish, the point keeps the solver's errors, which may be larger by 1 / VANISHING in the
    units of small rows.
    """
    natural, start = found.certificate.natural_residual, found.start_residual
    if way.polishes:
        good = (natural <= tolerance) & (start <= math.sqrt(tolerance))
        if np.count_nonzero(coarse := good & (natural > ACCEPT)):
            good[coarse] = rows_hold(found.x[coarse], found.s[coarse], batch.part(samples[coarse]))
    else:
        good = (natural <= min(tolerance / VANISHING, FAR)) & (start <= tolerance)
    done = accept(batch, samples, found, good)
    if np.count_nonzero(done) < len(done):
        done |= batch.proven[samples]
        batch.answered_by(solver.name, samples[done], answer.iterations[done])
        if not done.all():
            _give_up(batch, solver, samples, answer, np.flatnonzero(~done), tolerance, np.fmax(natural, start))
        return
    batch.answered_by(solver.name, samples, answer.iterations)


def accept(batch: Batch, samples: Array, found: Linearization, good: Array) -> Array:
    """Store the good ones of some samples' solutions, unless they prove, or nearly prove, that there is none: as points
    diverge, the terms of the conditions grow with them, and any error becomes relatively small. Returns those
    (samples,) that were stored."""
    x, y, rough = found.x, found.y, good & (found.certificate.natural_residual > ROUGH)
    asked, hidden = rough, good & buried(batch.part(samples), x)
    for k in hidden.nonzero()[0].tolist():
        mine = samples[k : k + 1]
        proofs = _steepest(batch.part(mine))
        good[k] = not proofs
        batch.prove(mine, proofs)
    # not by np.vdot, whose threads spin for 20 ms (n = 200, batch 512 on 16 cores: 112 ms a step instead of 21)
    if any(np.einsum("ij,ij->", v, v) > DISTANT**2 for v in (x, y)):
        largest = np.maximum(np.abs(x).max(axis=1, initial=0.0), np.abs(y).max(axis=1, initial=0.0))
        asked = rough | (good & (largest > DISTANT))
    if np.count_nonzero(asked):
        at = np.flatnonzero(asked)
        proofs, doubted = proofs_at(batch.part(samples[at]), x[at], y[at])
        good[at[list(proofs)]] = False
        batch.prove(samples[at], proofs)
        at = at[doubted & good[at] & rough[at]]
        if len(at):
            good[at] = ~refuted(x[at], y[at], batch.part(samples[at]))
    batch.accept(samples, found, good)
    return good


def rescue(batch: Batch, way: Way) -> None:
    """Newton's method from the points of failed samples."""
    if not way.polishes or expired():
        return
    settled = batch.proven | (VERDICTS[batch.status] & ~(batch.residual < FAR))
    failed = np.flatnonzero(REPAIRABLE[batch.status] & are_finite(*batch.point) & ~settled)
    if not len(failed):
        return
    with np.errstate(all="ignore"):
        found = batch.linearized(failed, unsolved(*(v[failed] for v in batch.point)), way)
        saved = accept(batch, failed, found, found.certificate.natural_residual <= ACCEPT)
    batch.rescued[failed[saved]] = True


def unsolved(x: Array, y: Array, s: Array) -> Solution:
    """Points without a solver's claim that they are solutions."""
    unknown = np.full(len(x), OPEN)
    return Solution(x, y, s, unknown, unknown)
