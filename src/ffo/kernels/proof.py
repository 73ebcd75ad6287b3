"""Proofs that linear and quadratic programs have no solution (see `ffo.engine.proof`), sample by sample.

Multipliers or a ray from a solver hold to its tolerance. Vectors near them may hold to rounding: those without the
small entries; or, by least squares, multipliers on only the rows with large ones, or a ray along all rows that the
given one hardly leaves. Least squares are projections onto the complement of some vectors, found by the Gram-Schmidt
process with pivoting (300 vectors of size 300: 8 ms, as LAPACK; 12 of size 10: 4 us instead of 20).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ffo.kernels.bundle import refer
from ffo.kernels.jit import inner_kernel, inner_reducing_kernel, kernel
from ffo.kernels.pool import run_samples
from ffo.kernels.residuals import Data
from ffo.kernels.values import Values
from ffo.kernels.vectors import copy

Array = np.ndarray

#: size of a sum, relative to its terms, that counts as zero
EXACT = 1e-12
#: largest relative error of a proof: with a larger one, there could still be a distant solution
SHARP = 1e-3
#: multipliers prove nothing about points this many times as far away as the rows that contradict each other are from
#: the origin, or farther; share of the contradiction that a row must have to count among these
DISTANT, SHARE = 1e7, 1e-3
#: size of a sum, relative to its terms, below which its vector is worth repairing
NEAR = 1e-2
#: entries of a vector, relative to its largest, that are dropped from a proof
TRIMMED = 1e-8
#: multipliers, relative to the largest, above which rows are candidates for the ones that contradict each other
SUPPORTS = (1e-2, 1e-4)
#: entries of a repaired vector, relative to its largest, that count as rounding
ROUNDING = 1e-14
#: most entries in the rows of a proof for which another proof is looked for
SEARCHED = 100_000
#: length of a unit vector's component across others below which it depends on them. If ten times smaller, rounding
#: errors of singular P count as rows; if ten times larger, sums that are left may exceed EXACT
DEPENDENT = 1e-13
#: squared length of what is left of a unit vector below which it is measured again, not updated
SHORT = 1e-2
#: approximate seconds for one multiplication
FLOP = 3e-10
#: verdicts
NOTHING, NEARLY, PROVEN = range(3)


class Sums(NamedTuple):
    """Room for sums and the magnitudes of their terms, (n + m,) each."""

    value: Array
    terms: Array


class Entries(NamedTuple):
    """Rows and columns of the entries of P (upper triangle) and A, and which rows of A are equalities."""

    Prow: Array
    Pcol: Array
    Arow: Array
    Acol: Array
    equal: Array


def search(entries: Entries, values: Values, ray: bool, points: Array) -> tuple[Array, Array]:
    """Proofs at or near some points, rays (batch, n) or multipliers (batch, m), and (batch,) verdicts.

    Points are scaled to a largest component of 1. One that is nearly a proof is returned if no proof is found near it.
    """
    v, verdicts = np.array(points, dtype=float, order="C"), np.zeros(len(points), np.int64)
    n, m = values.arrays[1].shape[1], len(entries.equal)
    size = min(SEARCHED, (m + n) * n)
    seconds = FLOP * (size * min(n, size**0.5) + 10 * (len(entries.Arow) + len(entries.Prow)))
    run_samples(_search_chunk, len(v), len(v) * seconds, *entries, *values.arrays, ray, v, verdicts)
    return v, verdicts


@kernel
def _search_chunk(
    start: int, stop: int, Prow: Array, Pcol: Array, Arow: Array, Acol: Array, equal: Array, Pv: Array, q: Array,
    Av: Array, b: Array, ray: bool, v: Array, verdicts: Array,
) -> None:  # fmt: skip
    E, room = refer(Entries(Prow, Pcol, Arow, Acol, equal)), q.shape[1] + b.shape[1]
    Z = Sums(np.empty(room), np.empty(room))
    for k in range(start, stop):
        D = refer(Data(_row(Pv, k), _row(q, k), _row(Av, k), _row(b, k)))
        verdicts[k] = _search(E, D, Z, ray, v[k])


@inner_kernel
def _row(v: Array, k: int) -> Array:
    return v[k if v.shape[0] > 1 else 0]


@inner_kernel
def _search(E: Entries, D: Data, Z: Sums, ray: bool, v: Array) -> int:
    """The verdict on a vector; a proof near it replaces it."""
    Z = refer(Z)
    if not ray:
        for i in range(v.size):
            if v[i] < 0.0 and not E.equal[i]:
                v[i] = 0.0
    if not _to_unit(v, 0.0):
        return NOTHING
    verdict = _weigh(E, D, Z, ray, v)
    if verdict != NEARLY:
        return verdict
    near = np.empty(v.size)
    for attempt in range(3):
        if attempt == 0:
            changed = _trim(v, TRIMMED, near)
        elif ray:
            changed = _along_support(E, D, Z, v, SUPPORTS[1] if attempt == 1 else SUPPORTS[0], near)
        else:
            changed = _on_support(E, D, v, SUPPORTS[0] if attempt == 1 else SUPPORTS[1], near)
        if changed and _weigh(E, D, Z, ray, near) == PROVEN:
            copy(v, near)
            return PROVEN
    return NEARLY


@inner_kernel
def _to_unit(v: Array, rounding: float) -> bool:
    """Scale to a largest component of 1, without those up to `rounding`; whether that is possible."""
    largest = 0.0
    for i in range(v.size):
        if not abs(v[i]) < np.inf:
            return False
        largest = max(largest, abs(v[i]))
    for i in range(v.size):
        v[i] = v[i] / largest if abs(v[i]) > rounding * largest else 0.0
    return largest > 0.0


@inner_kernel
def _trim(v: Array, level: float, out: Array) -> bool:
    """Drop small entries; whether there are any."""
    changed = False
    for i in range(v.size):
        out[i] = v[i] if abs(v[i]) > level else 0.0
        changed |= out[i] != v[i]
    return changed


@inner_kernel
def _weigh(E: Entries, D: Data, Z: Sums, ray: bool, v: Array) -> int:
    """Whether sums that should cancel do, and the one that should not does not: nearly, so that the vector is worth
    repairing, and by far more than the errors."""
    gain, terms = 0.0, 0.0
    for i in range(v.size):
        if v[i] != 0.0:
            term = D.q[i] * v[i] if ray else D.b[i] * v[i]
            gain -= term
            terms += abs(term)
    if not (gain > EXACT * terms and terms < np.inf):
        return NOTHING
    allowed = min(EXACT, SHARP * gain / terms)
    if ray:
        _multiply(E.Arow, E.Acol, D.Av, v, D.b.size, Z)
        for i in range(D.b.size):
            if Z.value[i] < 0.0 and not E.equal[i]:
                Z.value[i] = 0.0
        held = _cancelled(Z, D.b.size, allowed)
        return held if D.Pv.size == 0 else min(held, _straight(E, D, Z, v, allowed))
    _multiply(E.Acol, E.Arow, D.Av, v, D.q.size, Z)
    verdict, wrong = _cancelled(Z, D.q.size, allowed), 0.0
    if verdict == PROVEN and gain < DISTANT * _total(Z, D.q.size) * _distance(E, D, Z, v, SHARE * terms):
        verdict = NEARLY
    for i in range(v.size):
        if not E.equal[i]:
            wrong = max(wrong, -v[i])
    return verdict if wrong == 0.0 else min(verdict, NEARLY) if wrong <= NEAR else NOTHING


@inner_kernel
def _total(Z: Sums, count: int) -> float:
    total = 0.0
    for i in range(count):
        total += abs(Z.value[i])
    return total


@inner_kernel
def _distance(E: Entries, D: Data, Z: Sums, y: Array, share: float) -> float:
    """The largest distance from the origin of rows with such a share in b'y."""
    sizes, distance = Z.terms, 0.0
    for i in range(y.size):
        sizes[i] = 0.0
    for t in range(D.Av.size):
        sizes[E.Arow[t]] = max(sizes[E.Arow[t]], abs(D.Av[t]))
    for i in range(y.size):
        if sizes[i] > 0.0 and abs(D.b[i] * y[i]) >= share:
            distance = max(distance, abs(D.b[i]) / sizes[i])
    return distance


@inner_kernel
def _straight(E: Entries, D: Data, Z: Sums, d: Array, allowed: float) -> int:
    """Whether Pd = 0."""
    _multiply(E.Prow, E.Pcol, D.Pv, d, d.size, Z)
    Prow, Pcol, Pv, value, terms = E.Prow, E.Pcol, D.Pv, Z.value, Z.terms
    for t in range(Pv.size):
        i, j = Prow[t], Pcol[t]
        if i != j:
            value[j] += Pv[t] * d[i]
            terms[j] += abs(Pv[t] * d[i])
    return _cancelled(Z, d.size, allowed)


@inner_kernel
def _multiply(to: Array, of: Array, values: Array, v: Array, count: int, Z: Sums) -> None:
    """Z := the product of a matrix of `count` rows with v."""
    value, terms = Z.value, Z.terms
    for i in range(count):
        value[i] = terms[i] = 0.0
    for t in range(values.size):
        term = values[t] * v[of[t]]
        value[to[t]] += term
        terms[to[t]] += abs(term)


@inner_kernel
def _cancelled(Z: Sums, count: int, allowed: float) -> int:
    """Whether sums are zero beside their terms: all together nearly, or each of them."""
    worst, largest, exact = 0.0, 0.0, True
    value, terms = Z.value, Z.terms
    for i in range(count):
        if not terms[i] < np.inf:
            return NOTHING
        worst, largest = max(worst, abs(value[i])), max(largest, terms[i])
        exact &= abs(value[i]) <= allowed * terms[i]
    if not worst <= NEAR * largest:
        return NOTHING
    return PROVEN if exact else NEARLY


@inner_kernel
def _on_support(E: Entries, D: Data, y: Array, level: float, out: Array) -> bool:
    """The nearest multipliers on only the rows with large ones, whatever their signs; whether there may be any."""
    place, count = np.empty(y.size, np.int64), 0
    for i in range(y.size):
        place[i] = count if abs(y[i]) > level else -1
        count += abs(y[i]) > level
    if count * D.q.size > SEARCHED:
        return False
    columns, mine = np.zeros((D.q.size, count)), np.empty(count)
    for t in range(D.Av.size):
        if place[E.Arow[t]] >= 0:
            columns[E.Acol[t], place[E.Arow[t]]] = D.Av[t]
    for i in range(y.size):
        if place[i] >= 0:
            mine[place[i]] = y[i]
    _remove(columns, D.q.size, mine)
    for i in range(y.size):
        out[i] = mine[place[i]] if place[i] >= 0 else 0.0
    return _to_unit(out, ROUNDING)


@inner_kernel
def _along_support(E: Entries, D: Data, Z: Sums, d: Array, level: float, out: Array) -> bool:
    """The nearest ray along all rows that the given one hardly leaves, and with Pd = 0; whether there may be any."""
    n, m = d.size, D.b.size
    place, count = np.empty(m, np.int64), 0
    _multiply(E.Arow, E.Acol, D.Av, d, m, Z)
    for i in range(m):
        held = abs(Z.value[i]) <= level * Z.terms[i]
        place[i] = count if held else -1
        count += held
    if (count + n) * n > SEARCHED:
        return False
    rows = np.zeros((count + n, n))
    Prow, Pcol, Arow, Acol = E.Prow, E.Pcol, E.Arow, E.Acol
    for t in range(D.Av.size):
        if place[Arow[t]] >= 0:
            rows[place[Arow[t]], Acol[t]] = D.Av[t]
    for t in range(D.Pv.size):
        i, j = Prow[t], Pcol[t]
        rows[count + i, j] = rows[count + j, i] = D.Pv[t]
    copy(out, d)
    _remove(rows, count + n if D.Pv.size else count, out)
    return _to_unit(out, ROUNDING)


@inner_kernel
def _remove(vectors: Array, count: int, v: Array) -> None:
    """Project v onto the complement of the first rows of `vectors`, which become an orthonormal basis of their span."""
    rank, lengths = 0, np.empty(count)
    for k in range(count):
        length = np.sqrt(_dot(vectors[k], vectors[k]))
        _divide(vectors[k], length)
        lengths[k] = 1.0 if length > 0.0 else 0.0
    while rank < min(count, v.size):
        best = rank
        for k in range(rank, count):
            if lengths[k] < SHORT:
                lengths[k] = _dot(vectors[k], vectors[k])
            if lengths[k] > lengths[best]:
                best = k
        for j in range(v.size):
            vectors[rank, j], vectors[best, j] = vectors[best, j], vectors[rank, j]
        lengths[best], unit = lengths[rank], vectors[rank]
        for k in range(rank):  # once more: what is left may be short
            _subtract(vectors[k], unit)
        length = np.sqrt(_dot(unit, unit))
        if not length > DEPENDENT:
            break
        _divide(unit, length)
        rank += 1
        for k in range(rank, count):
            along = _subtract(unit, vectors[k])
            lengths[k] -= along * along
    for _ in range(2):
        for k in range(rank):
            _subtract(vectors[k], v)


@inner_kernel
def _divide(v: Array, length: float) -> None:
    """Divide a vector by its length, if it has one."""
    for j in range(v.size if length > 0.0 else 0):
        v[j] /= length


@inner_kernel
def _subtract(unit: Array, v: Array) -> float:
    """Remove the component along a unit vector, and return it."""
    along = _dot(unit, v)
    for j in range(v.size):
        v[j] -= along * unit[j]
    return along


@inner_reducing_kernel
def _dot(u: Array, v: Array) -> float:
    total = 0.0
    for j in range(v.size):
        total += u[j] * v[j]
    return total
