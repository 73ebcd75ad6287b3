"""Proofs that there is no solution.

    y in K*, A'y = 0, b'y < 0:              no point is feasible                        (Farkas)
    Pd = 0, -Ad in K, q'd < 0:              from any feasible point, the objective decreases along d without bound

If there is no solution, solvers end near such a vector: as their answer, or because their iterates diverge along it.
It holds to their tolerance. The nearest one that holds to rounding is the solution of a projection, which Newton's
method finds from there, for every cone:

    minimize 1/2 |w|^2       subject to  Au + s - w = -y,  s in K;    its multiplier is the projection of y
    minimize 1/2 |u - d|^2   subject to  Pu = 0,  Au + s = 0,  s in K

The rows of a singular P are dependent. Therefore u'Pu / eps is added to the objective instead of Pu = 0, and the
projection is repeated from its result. A proof is judged on its own, each sum relative to its own terms, whatever its
origin. It is final.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from ffo.cones import Nonneg, Zero
from ffo.engine.auxiliary import PROXIMAL
from ffo.errors import Status
from ffo.ghost.direct import newton
from ffo.kernels import proof as kernel
from ffo.kernels.proof import EXACT, NEAR, ROUNDING, SEARCHED, SUPPORTS, TRIMMED
from ffo.program.cone import ConeProgram
from ffo.program.magnitudes import inner, largest, unit
from ffo.program.names import Names, parts
from ffo.program.plan import plan_of, values_of
from ffo.program.presolve import MissingRows, Presolve, Triple
from ffo.program.relaxation import Relaxation
from ffo.program.sparse import SymmetricBatch
from ffo.solvers.registry import choose, get_solver

Array = np.ndarray

#: most projections of a ray
PROJECTIONS = 6
#: seconds of one factorization above which no proof is repaired
PATIENCE = 10.0
#: most constraints or variables named in a message
NAMED = 6
#: multiplier of an inequality, relative to the largest, below which a proof without it is looked for
MINOR = 1e-2
#: components of a ray's move, relative to their terms, above which it leads away from a constraint
AWAY = 1e-9
#: cones of which proofs are compiled, and how many of the repairs
_SCALAR, COMPILED = {Zero, Nonneg}, 3


@dataclass(frozen=True)
class Proof:
    """A proof that a sample has no solution.

    Attributes:
        status: INFEASIBLE or UNBOUNDED.
        vector: multipliers y (m,) of constraints that contradict each other, or a ray d (n,).
        program: the program of this sample.
        names: the user's names of its constraints and variables.
    """

    status: Status
    vector: Array
    program: ConeProgram | None = None
    names: Names | None = None

    @cached_property
    def parts(self) -> list[tuple[str, float]]:
        """Its components, the largest first: constraints that contradict each other, by the user's names, with their
        multipliers (as few as were found); or entries of variables with their components of the ray."""
        if self.program is None or self.names is None:
            return []
        if self.status is Status.UNBOUNDED:
            return parts(self.names.variables, self.vector, _column_sizes(self.program)[0])
        few = _without_small(_fewer(self.vector, self.program), self.program)
        return parts(self.names.constraints, few, self.program.A.row_sizes[0])

    def __str__(self) -> str:
        if not self.parts:
            return ""
        more = f" and {len(self.parts) - NAMED} more" if len(self.parts) > NAMED else ""
        if self.status is Status.UNBOUNDED:
            return "along the ray " + ", ".join(f"{name} = {v:+.3g}" for name, v in self.parts[:NAMED]) + more
        return "these contradict each other: " + "; ".join(name for name, _ in self.parts[:NAMED]) + more

    def undo(self, presolve: Presolve, program: ConeProgram) -> Proof:
        """The proof for a program, from that for its presolved form. Both vectors are changes of a point that no
        constraint resists: solutions of the ghost system with a zero right-hand side."""
        mine = self.vector[None]
        (n, m), ray = (program.n, program.m), self.status is Status.UNBOUNDED
        u, w = presolve.solve(
            lambda r_x, r_s: (mine, np.zeros_like(r_s)) if ray else (np.zeros_like(r_x), mine),
            np.zeros((1, n)), np.zeros((1, m)),
        )  # fmt: skip
        found, sizes = (u, _column_sizes(program)) if ray else (w, program.A.row_sizes)
        return Proof(self.status, _clean(found, sizes)[0])

    def named(self, program: ConeProgram, names: Names) -> Proof:
        """The proof of a sample of a program, with the user's names."""
        return replace(self, program=program, names=names)


def find_proofs(program: ConeProgram, x: Array, y: Array) -> tuple[dict[int, Proof], Array]:
    """Proofs found at, or by repairing, points x (batch, n), y (batch, m), by sample; and (batch,) whether a point is
    nearly a proof, repaired or not."""
    found: dict[int, Proof] = {}
    left, doubted = np.arange(program.batch), np.zeros(program.batch, dtype=bool)
    with np.errstate(all="ignore"):
        for status, points in ((Status.INFEASIBLE, y), (Status.UNBOUNDED, x)):
            mine = points if len(left) == program.batch else points[left]
            v, near, proven = _nearest_proofs(status, mine, part(program, left))
            doubted[left] |= near
            found |= {int(left[k]): Proof(status, v[k]) for k in proven.nonzero()[0].tolist()}
            left = left[~proven]
            if not len(left):
                break
    return found, doubted


def _nearest_proofs(status: Status, points: Array, program: ConeProgram) -> tuple[Array, Array, Array]:
    """Points scaled to a largest component of 1, replaced by proofs where one was found; (batch,) whether they were
    nearly proofs, worth repairing, and whether they now are. Repairs with only scalar cones are compiled, but for the
    last ones (n = 10, 20 rows, an unbounded objective: 0.04 ms instead of 0.28)."""
    ray = status is Status.UNBOUNDED
    weigh, attempts = (_weigh_ray, _RAYS) if ray else (_weigh_multipliers, _MULTIPLIERS)
    if program.cones.kinds <= _SCALAR:
        P, A = program.P.pattern, program.A.pattern
        entries = kernel.Entries(P.rows, P.columns, A.rows, A.columns, program.cones.equalities)
        v, verdicts = kernel.search(entries, values_of(program), ray, points)
        near, proven, attempts = verdicts >= kernel.NEARLY, verdicts == kernel.PROVEN, attempts[COMPILED:]
    else:
        v = unit(points if ray else program.cones.project_dual(points))
        near, proven = weigh(v, program)
    for attempt in attempts:
        some = np.flatnonzero(near & ~proven)
        if not len(some):
            break
        tried = attempt(v[some], few := part(program, some))
        if (tried != v[some]).any():
            proven[some] = good = weigh(tried, few)[1]
            v[some[good]] = tried[good]
    return v, near, proven


def refutes(y: Array, program: ConeProgram) -> Array:
    """(batch,) whether multipliers y (batch, m) prove that no point is feasible."""
    return _weigh_multipliers(y, program)[1]


def recedes(d: Array, program: ConeProgram) -> Array:
    """(batch,) whether the objective decreases along rays d (batch, n) without bound, and no constraint ends them."""
    return _weigh_ray(d, program)[1]


def _weigh_multipliers(y: Array, program: ConeProgram) -> tuple[Array, Array]:
    """(batch,) whether multipliers are nearly a proof, worth repairing, and whether they are one."""
    size, sides = np.abs(y), np.where(y != 0.0, program.b, 0.0)
    gain = -inner(sides, y)
    if not (gain > 0.0).any():
        return _nowhere(gain)
    left, terms = program.A.tdot(y), inner(np.abs(sides), size)
    parts = [
        (left, program.A.magnitudes.tdot(size)),
        (y - program.cones.project_dual(y), program.cones.block_means(size)),
    ]
    near, proven = _weigh(parts, gain, terms)
    counts = np.abs(sides) * size >= kernel.SHARE * terms[:, None]
    distance = np.where(counts, np.abs(sides) / program.cones.block_means(program.A.row_sizes), 0.0).max(axis=1)
    return near, proven & (gain >= kernel.DISTANT * distance * np.abs(left).sum(axis=1))


def _weigh_ray(d: Array, program: ConeProgram) -> tuple[Array, Array]:
    """The same for rays."""
    gain = -inner(program.q, d)
    if not (gain > 0.0).any():
        return _nowhere(gain)
    move, size = -program.A.dot(d), np.abs(d)
    parts = [
        (move - program.cones.project(move), _terms(program, d)),
        (program.P.dot(d), program.P.magnitudes.dot(size)),
    ]
    return _weigh(parts, gain, inner(np.abs(program.q), size))


def starts_somewhere(d: Array, x: Array, program: ConeProgram) -> Array:
    """(batch,) whether a feasible starting point for rays d (batch, n) is easily found: the origin, whose slacks are
    the right-hand sides; any point, if all constraints hold far enough along the ray; or x (batch, n), which must be
    feasible despite rounding."""
    cones = program.cones
    known = (program.b == cones.project(program.b)).all(axis=1)
    free = cones.scalar_rows & ~cones.equalities
    for v, sides, rounding in ((d, 0.0, AWAY), (x, program.b, ROUNDING)):
        if not known.all():
            inside = sides - program.A.dot(v) - rounding * (_terms(program, v) + np.abs(sides))
            known |= (free & (inside > 0.0)).all(axis=1)
    return np.asarray(known)


def _without_small(y: Array, program: ConeProgram) -> Array:
    """Multipliers (m,) that prove the same without the inequalities with small ones, if there are any."""
    force = np.abs(y) * program.A.row_sizes[0]
    step = MissingRows((force > MINOR * force.max()) | program.cones.equalities | ~program.cones.scalar_rows)
    if step.present.all():
        return y
    with np.errstate(all="ignore"):
        reduced = step.apply(program)
        found = _nearest_multipliers(y[None, step.rows], reduced)
        found = _clean(step.restore(y, found, y, y)[1], program.A.row_sizes)
        return found[0] if refutes(found, program)[0] else y


def _fewer(y: Array, program: ConeProgram) -> Array:
    """Multipliers (m,) that prove the same with fewer scalar rows: a vertex of the set of proofs, by the simplex
    method; unchanged if there are too many rows to search."""
    A, b, scalar = program.A.matrix().T, program.b[0], program.cones.scalar_rows
    used, equal = np.flatnonzero(scalar & (y != 0.0)), program.cones.equalities
    if len(used) * program.n > SEARCHED:
        return y
    units = np.where(equal[used], np.sign(y[used]), 1.0) / program.A.row_sizes[0, used]
    rest = np.where(scalar, 0.0, y)  # blocks of curved cones are kept
    sides = np.append(b[used] * units, b @ rest)
    sides /= np.abs(sides).max()
    rows = sp.vstack([sp.hstack([A[:, used] * units, sp.csc_array((A @ rest)[:, None])]), sides[None]])
    finite, goal = np.isfinite(rows.data).all(), np.append(np.zeros(program.n), -1.0)
    found = linprog(np.append(np.ones(len(used)), 0.0), A_eq=rows, b_eq=goal) if finite else None
    if found is None or found.x is None:
        return y
    fewer = rest * found.x[-1]
    fewer[used] = units * found.x[:-1]
    return fewer


def _trimmed(v: Array, program: ConeProgram, level: float) -> Array:
    """Vectors without their small entries."""
    return np.where(np.abs(v) > level, v, 0.0)


def _on_support(y: Array, program: ConeProgram, level: float) -> Array:
    """The nearest multipliers (batch, m) on only the rows with large ones, whatever their signs, by least squares.

    Tried before Newton's method: n = 30, 60 rows, two of which contradict each other: 4 ms instead of 28.
    """
    found = _trimmed(y, program, level)
    for k, mine in enumerate(found):
        rows = np.flatnonzero(mine)
        if len(rows) * program.n <= SEARCHED:
            A = program.A.dense_rows(rows, k)
            mine[rows] -= A @ np.linalg.lstsq(A, mine[rows], rcond=None)[0]
    return unit(found)


def _along_support(d: Array, program: ConeProgram, level: float) -> Array:
    """The nearest rays (batch, n) along all scalar rows that the given ones hardly leave, by least squares.

    Tried before Newton's method: n = 10, 20 rows: 0.1 ms instead of 0.8, with a singular P instead of 3.1.
    """
    held = (np.abs(program.A.dot(d)) <= level * _terms(program, d)) & program.cones.scalar_rows
    d, sizes = d.copy(), np.broadcast_to(program.A.row_sizes, held.shape)
    for k, mine in enumerate(d):
        rows = np.flatnonzero(held[k])
        if (len(rows) + program.n) * program.n <= SEARCHED:
            M = program.A.dense_rows(rows, k) / sizes[k, rows, None]
            if (top := np.abs(program.P.of(k)).max(initial=0.0)) > 0:
                upper = program.P.dense_rows(np.arange(program.n), k)
                M = np.concatenate([M, (upper + np.triu(upper, 1).T) / top])
            mine -= np.linalg.lstsq(M, M @ mine, rcond=None)[0]
    return _clean(d, np.ones((1, program.n)))


def _nearest_multipliers(y: Array, program: ConeProgram, by_solver: bool = False) -> Array:
    """The nearest y (batch, m) in K* with A'y = 0."""
    y, n, m, none = _trimmed(y, program, TRIMMED), program.n, program.m, np.zeros_like(program.q)
    P = SymmetricBatch(np.zeros(n + 1, dtype=np.int32), np.zeros(0, dtype=np.int32), np.zeros(0), (n, n))
    slack = Relaxation(np.arange(m), 1.0)
    nearest = slack.apply(ConeProgram(P, none, program.A, -y, program.cones))
    found = _projection(nearest, slack.inward(none, y, np.zeros_like(y)), by_solver)
    return _clean(program.cones.project_dual(found[1]), np.ones((1, m)))


def _nearest_rays(d: Array, program: ConeProgram, by_solver: bool) -> Array:
    """`_nearest_ray` for each of some rays (batch, n)."""
    each = (np.array([k]) for k in range(program.batch))
    return np.concatenate([_nearest_ray(d[k], program.take(k), by_solver) for k in each])


def _nearest_ray(d: Array, program: ConeProgram, by_solver: bool) -> Array:
    """A d (1, n) near the given one with Pd = 0, -Ad in K: the limit of projections."""
    d, P, n, sides = _trimmed(d, program, TRIMMED), program.P.full(), program.n, np.zeros_like(program.b)
    small = PROXIMAL * program.P.largest[0] or 1.0
    nearest = ConeProgram.from_matrices(
        P + small * sp.eye_array(n), -small * d, program.A.matrix(), sides, program.cones
    )
    point = d, sides, program.cones.project(-program.A.dot(d))
    for _ in range(PROJECTIONS if program.P.nnz else 1):
        point = _projection(nearest.with_vectors(q=-small * point[0]), point, by_solver)
        if recedes(d := _clean(point[0], np.ones((1, n))), program)[0]:
            break
    return d


def _projection(program: ConeProgram, start: Triple, by_solver: bool) -> Triple:
    """The solution of a projection, by Newton's method from a point near it, or from that of a solver."""
    if plan_of(program).seconds > PATIENCE:
        return start
    if by_solver:
        answer = get_solver(choose(program)).solve(program)
        start = answer.x, answer.y, answer.s
    found = newton(program, *start)
    return found.x, found.y, found.s


def _terms(program: ConeProgram, d: Array) -> Array:
    """(batch, m) sizes of the terms of Ad, row by row, or block by block of curved cones."""
    return program.cones.block_means(program.A.magnitudes.dot(np.abs(d)))


def _weigh(parts: list[tuple[Array, Array]], gain: Array, terms: Array) -> tuple[Array, Array]:
    """(batch,) whether sums that should cancel do, and the one that should not does not: nearly, so that the vector is
    worth repairing, and by far more than the errors.

    Args:
        parts: sums that should be zero and the sizes of their terms, (batch, ·) each.
        gain, terms: (batch,) the sum that should be positive.
    """
    near = gain > EXACT * terms
    proven, allowed = near.copy(), np.minimum(EXACT, kernel.SHARP * gain / np.where(terms > 0, terms, 1.0))[:, None]
    for v, of in parts:
        size = np.abs(v)
        near &= size.max(axis=1, initial=0.0) <= NEAR * of.max(axis=1, initial=0.0)
        proven &= (size <= allowed * of).all(axis=1)
    return near, proven


def _nowhere(v: Array) -> tuple[Array, Array]:
    return np.zeros(len(v), dtype=bool), np.zeros(len(v), dtype=bool)


def part(program: ConeProgram, samples: Array) -> ConeProgram:
    """The program of some samples."""
    return program if len(samples) == program.batch else program.take(samples)


def _clean(v: Array, sizes: Array) -> Array:
    """Rows scaled to a largest component of 1 in units of these sizes, without entries that are rounding."""
    force = np.abs(v) * sizes
    return unit(np.where(force > ROUNDING * largest(force), v, 0.0))


def _column_sizes(program: ConeProgram) -> Array:
    """(batch or 1, n) largest entries of the columns of P and A, 1 where there are none."""
    sizes = np.maximum(program.A.largest_of_columns, program.P.sizes)
    return np.where(sizes > 0, sizes, 1.0)


#: ways to repair vectors (batch, ·) that are nearly proofs, the cheapest first
_MULTIPLIERS = (
    partial(_trimmed, level=TRIMMED),
    *(partial(_on_support, level=level) for level in SUPPORTS),
    *(partial(_nearest_multipliers, by_solver=by_solver) for by_solver in (False, True)),
)
_RAYS = (
    partial(_trimmed, level=TRIMMED),
    *(partial(_along_support, level=level) for level in reversed(SUPPORTS)),
    *(partial(_nearest_rays, by_solver=by_solver) for by_solver in (False, True)),
)
