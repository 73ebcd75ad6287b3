"""Verdicts on answers, from the exact truth about a program."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from fractions import Fraction
from functools import cached_property
from itertools import product

import numpy as np

from fuzz import exact
from fuzz.exact import BOUNDS, MATRICES, QP, Answer, Weights
from fuzz.routes import Found

Array = np.ndarray
Direction = Mapping[str, Array]

#: relative error of a solution or a derivative that must be excused, in double and in single precision
SOLUTION, GRADIENT = {False: 1e-6, True: 1e-4}, {False: 1e-5, True: 1e-3}
#: a change of the data, in the units of each row, whose effect on the solution excuses errors of that size; and the
#: one that excuses a warning
EXCUSE, NEAR = 1e-9, 1e-8
#: the same for derivatives, in double and in single precision, and for smoothed ones
EXCUSE_GRADIENT = (1e-12, 1e-7, 1e-9)
SIDES = {"b", *BOUNDS}
#: number of random changes, each in both directions, and the multiple of their effect that is excused
DRAWS, GRANTED = 3, 10.0
#: difference quotient over a step of 2^-160 above which the solution jumps
JUMP = 2**60
#: height of a jump, relative to the loss, up to which at most one double lies between both sides
UNSEEN = Fraction(1, 2**52)
#: a change of matrices that is rounding, and how close two solutions must be, relative to their size, to belong to
#: programs that differ by it
ROUNDED, ALIKE = Fraction(1, 2**51), 1e-3
#: reported residual above which a solution is declared coarse
COARSE = 1e-8
#: note on a solution that is not the exact one, but one after changes of the data that are excused
EXCUSED = "small changes of the data move the solution that far"
#: derivatives along a direction as large as the data, relative to the solution, that count as zero
NOTHING = 1e-4


class Outcome(Enum):
    RIGHT = "right"
    REFUSED = "refused"
    COARSE = "coarse"  # an inaccurate solution whose reported residual says so
    VAGUE = "vague"  # rightly refused, but for the wrong reason
    FALSE_REFUSAL = "false refusal"
    FLAGGED = "flagged"
    FALSE_ALARM = "false alarm"
    UNJUDGED = "unjudged"
    WRONG_SOLUTION = "WRONG solution"
    WRONG_GRADIENT = "WRONG gradient"
    ERROR = "raw error"

    @property
    def wrong(self) -> bool:
        return self in (Outcome.WRONG_SOLUTION, Outcome.WRONG_GRADIENT, Outcome.ERROR)


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    note: str = ""


#: facts about a program that do not depend on the loss
_OF_THE_PROGRAM = ("answer", "z", "strict", "many", "units", "costs")


class Truth:
    """The exact truth about one sample: a loss c'z, plus weighted multipliers if there are weights, and its one-sided
    derivatives."""

    def __init__(self, qp: QP, c: Array, seed: int, weights: Weights | None = None) -> None:
        self.qp, self.c, self.seed, self.weights = qp, c, seed, weights

    def with_loss(self, c: Array, weights: Weights | None) -> Truth:
        """The truth about another loss."""
        other = Truth(self.qp, c, self.seed, weights)
        other.__dict__.update({name: v for name, v in vars(self).items() if name in _OF_THE_PROGRAM})
        return other

    @cached_property
    def answer(self) -> Answer:
        if not self.qp.finite:  # coefficients of rows without bounds may be refused or ignored
            return Answer("unjudged" if self.qp.bounded.finite else "invalid_input")
        semidefinite, _ = exact.definite(exact.quadratic(self.qp))
        if semidefinite:
            return exact.solve(self.qp)
        Q = np.asarray(self.qp.Q, dtype=float)
        clear = np.linalg.eigvalsh((Q + Q.T) / 2).min() < -1e-6 * np.abs(Q).max()
        return Answer("invalid_input" if clear else "unjudged")

    @cached_property
    def z(self) -> Array:
        return self.answer.z.astype(float)

    @cached_property
    def strict(self) -> bool:
        """Whether the objective is strictly convex, so that Q may be differentiated."""
        return self.answer.status == "solved" and exact.definite(exact.quadratic(self.qp))[1]

    @cached_property
    def many(self) -> bool:
        """Whether there are other solutions."""
        return any(exact.spread(self.qp, self.answer, e) > 0 for e in np.eye(self.qp.n))

    @cached_property
    def units(self) -> Direction:
        """The size of the terms of each row: the unit for small changes of its entries."""
        qp = self.qp
        solved = self.answer.status == "solved"
        z = np.abs(self.z) if solved else np.ones(qp.n)
        units = {}
        forces = np.abs(qp.p)
        if qp.Q is not None:
            forces = forces + np.abs(qp.Q) @ z
            units["Q"] = np.abs(qp.Q)
        if solved and qp.A is not None:
            forces = forces + np.abs(qp.A).T @ np.abs(self.answer.nu.astype(float))
        if solved:
            rows = exact.constraints(qp)
            forces = forces + np.abs(rows.R.astype(float)).T @ np.abs(self.answer.y.astype(float))
        units["p"] = np.where(forces > 0, forces, 1.0)
        for name, matrix in (("b", qp.A), ("h", qp.G), ("lower", qp.G), ("ub", np.eye(qp.n)), ("lb", np.eye(qp.n))):
            side = getattr(qp, name)
            if side is not None:
                own = np.where(np.isinf(side), 0.0, np.abs(side)) + np.abs(matrix) @ z
                units[name] = np.where(own > 0, own, np.abs(matrix).max(axis=1, initial=0.0) + 1e-300)
        for name in ("G", "A"):
            if getattr(qp, name) is not None:
                units[name] = np.abs(getattr(qp, name))
        return units

    @cached_property
    def costs(self) -> Array:
        """The size of p and Qz. Forces that cancel each other may be 1e16 times as large if two rows differ by
        rounding, and rounding in a derivative is not small along a direction of that size."""
        qp = self.qp
        z = np.abs(self.z) if self.answer.status == "solved" else np.ones(qp.n)
        own = np.abs(qp.p) if qp.Q is None else np.abs(qp.p) + np.abs(qp.Q) @ z
        return np.where(own > 0, own, self.units["p"])

    def direction(self, wanted: Sequence[str], seed: int, masked: bool = False) -> Direction:
        """A random direction in some blocks, in the units of each row; `masked`: zeros of matrices stay."""
        rng = np.random.default_rng([self.seed, seed])
        found = {}
        for name in sorted(wanted):
            unit = self.units[name] if name != "p" else self.costs
            if name in MATRICES and not masked:
                unit = np.maximum(unit, 0.1 * unit.max(axis=-1, keepdims=True, initial=0.0))
            d = unit * (rng.integers(-64, 65, unit.shape) / 64)
            found[name] = (d + d.T) / 2 if name == "Q" else d
        return found

    def nearby(self, size: float, seed: int) -> Truth:
        """The program after a small random change of its vectors."""
        names = [name for name in self.qp.blocks if name not in MATRICES]
        change = self.direction(names, 1000 + seed)
        if self.qp.lb is not None and self.qp.ub is not None:  # equal bounds stay equal
            change = {**change, "lb": np.where(self.qp.lb == self.qp.ub, change["ub"], change["lb"])}
        return Truth(self.qp.moved(change, Fraction(size)), self.c, self.seed, self.weights)

    def sides(self, direction: Direction) -> tuple[Fraction | None, Fraction | None]:
        """The derivatives of c'z from the right and from the left."""
        steps = (exact.STEP, -exact.STEP)
        right, left = (exact.slope(self.qp, direction, self.c, self.answer, t, self.weights) for t in steps)
        return right, left

    @cached_property
    def spread(self) -> Fraction | float:
        """The range of the loss over all solutions and their multipliers."""
        return exact.spread(self.qp, self.answer, self.c) + self.dual_spread

    @cached_property
    def dual_spread(self) -> Fraction | float:
        return Fraction(0) if self.weights is None else exact.dual_spread(self.qp, self.answer, self.weights)

    @cached_property
    def size(self) -> float:
        """The size of the terms of the loss."""
        found = float(np.abs(self.c).max()) * float(np.abs(self.z).max() or 1.0)
        if self.weights is not None:
            rows = exact.constraints(self.qp)
            largest = np.abs(np.vstack([rows.R, rows.E]).astype(float)).max(axis=1, initial=0.0)
            weights = np.abs(np.concatenate(self.weights.of(rows)).astype(float))
            found += float(self.units["p"].max() * np.max(weights / np.where(largest > 0, largest, 1.0), initial=0.0))
        return found

    def moves(self, size: float) -> float:
        """How far the solution moves under small changes of the data."""
        far = 0.0
        for step, k in product((size, -size), range(DRAWS)):
            other = exact.solve(self.nearby(step, k).qp)
            if other.status != "solved":
                return math.inf
            far = max(far, float(np.abs((other.z - self.answer.z).astype(float)).max()))
        return far

    def solves_rounded(self, z: Array, smoothed: bool) -> bool:
        """Whether a point is the solution after a change of the rows by rounding; or, if it is smoothed, a mean over
        other bounds, whether there is one. (With two rows at an angle of 1e-9 the last bit of an entry decides whether
        there is a solution, and no sum of products in doubles shows it.)"""
        rows = [name for name in ("A", "G") if getattr(self.qp, name) is not None]
        for step, k in product((ROUNDED, -ROUNDED), range(DRAWS)):
            other = exact.solve(self.qp.moved(self.direction(rows, 2000 + k, masked=True), step))
            if other.status == "solved":
                error = float(np.abs(other.z.astype(float) - z).max())
                if smoothed or error <= ALIKE * float(np.abs(z).max()):
                    return True
        return False

    def reach(self, size: float, radius: float) -> float:
        """How far it moves if every entry of the vectors changes by that much (bounds: at least by a radius), in the
        worst directions that leave a solution."""
        total, names = np.zeros(self.qp.n), [name for name in self.qp.blocks if name not in MATRICES]
        for name in names:
            unit = self.units[name] if name != "p" else self.costs
            unit = np.maximum(unit, radius / size) if name in BOUNDS else unit
            for i in np.flatnonzero(np.isfinite(getattr(self.qp, name))):
                change = {name: np.where(np.arange(len(unit)) == i, unit, 0.0)}
                ends = [exact.solve(self.qp.moved(change, Fraction(step))) for step in (size, -size)]
                far = [np.abs((end.z - self.answer.z).astype(float)) for end in ends if end.status == "solved"]
                total += np.max([np.zeros(self.qp.n), *far], axis=0)
        return float(total.max())

    def turns(self, size: float, direction: Direction, slope: float, edge: bool = False) -> float:
        """How far the derivative moves under small changes of the data; `edge`: only where it exists."""
        far, lost = 0.0, 0.0 if edge else math.inf
        for step, k in product((size, -size), range(DRAWS)):
            other = self.nearby(step, k)
            other.answer = exact.solve(other.qp)
            sides = other.sides(direction) if other.answer.status == "solved" else (None,)
            for side in sides:
                far = max(far, lost if side is None else abs(float(side) - slope))
        return far


def judge(
    found: Found, truth: Truth, wanted: Sequence[str], direction: Direction, single: bool, radius: float = 0.0
) -> Verdict:
    """The verdict on a route's answer for a sample; `wanted`: the differentiated blocks; `radius`: of smoothing."""
    status, smoothed = truth.answer.status, radius > 0
    if status == "unjudged":
        return Verdict(Outcome.UNJUDGED)
    if found.status != "solved":
        verdict = _refused(found, truth)
        excused = smoothed and verdict.outcome is Outcome.FALSE_REFUSAL
        return Verdict(Outcome.UNJUDGED, "a draw may have no solution") if excused else verdict
    if status == "infeasible" and _nearly_feasible(truth.qp, found.z, SOLUTION[single]):
        return Verdict(Outcome.UNJUDGED, "feasible within the tolerance")
    if status == "unbounded" and exact.nearly_bounded(truth.qp, NEAR):
        return Verdict(Outcome.UNJUDGED, "bounded within the tolerance")
    if status == "unbounded" and truth.solves_rounded(found.z, smoothed):
        return Verdict(Outcome.UNJUDGED, "bounded after rounding")
    off = Outcome.COARSE if found.residual > COARSE else Outcome.WRONG_SOLUTION
    if status != "solved":
        return Verdict(off, f"solved, but {status}: violation {_violation(truth.qp, found.z):.1e}")
    verdict = _solution(found, truth, single, radius, off)
    judged = verdict.outcome is Outcome.RIGHT and found.duals and not smoothed  # smoothed ones belong to other bounds
    # a point that is excused by the forces at the exact one is measured by these
    forces = truth.costs if verdict.note == EXCUSED else np.zeros(truth.qp.n)
    if judged and (error := _imbalance(truth.qp, found, forces)) > SOLUTION[single]:
        return Verdict(off, f"multipliers off by {error:.1e}")
    if verdict.outcome is not Outcome.RIGHT or found.good is None:
        return verdict
    of_derivatives = _gradient if found.jacobian is None else _jacobian
    of_gradient = of_derivatives(found, truth, wanted, direction, single, smoothed)
    if verdict.note == EXCUSED and of_gradient.outcome is Outcome.WRONG_GRADIENT:  # it is judged at another point
        return Verdict(Outcome.UNJUDGED, EXCUSED)
    return of_gradient


def _jacobian(
    found: Found, truth: Truth, wanted: Sequence[str], direction: Direction, single: bool, smoothed: bool
) -> Verdict:
    """Each row separately: all must be right to be called good; one in doubt is enough for a warning."""
    assert found.jacobian is not None
    verdicts = []
    for i, e in enumerate(np.eye(truth.qp.n)):
        row = replace(found, gradient={name: J[i] for name, J in found.jacobian.items()}, jacobian=None)
        verdicts.append(_gradient(row, truth.with_loss(e, None), wanted, direction, single, smoothed))
    order = (Outcome.WRONG_GRADIENT, Outcome.FLAGGED, Outcome.UNJUDGED, Outcome.FALSE_ALARM, Outcome.RIGHT)
    return min(verdicts, key=lambda v: order.index(v.outcome))


def _refused(found: Found, truth: Truth) -> Verdict:
    status = truth.answer.status
    if not np.isnan(found.z).all() or any(np.any(g) for g in found.gradient.values()):
        return Verdict(Outcome.WRONG_SOLUTION, f"{found.status}, but there are outputs")
    if status == "solved":
        return Verdict(Outcome.FALSE_REFUSAL, found.status)
    return Verdict(Outcome.REFUSED if status == found.status else Outcome.VAGUE, f"{found.status}, {status}")


def _nearly_feasible(qp: QP, z: Array, tolerance: float) -> bool:
    """Whether a point violates no row by more than the tolerance in the units of the row's terms; or by no more than is
    excused in the units of the whole point, if moving the bounds by as much gives a feasible point. (Bounds of zero
    have no terms: relative to them, a violation of 1e-9 at a solution of 1 is arbitrarily large.) A point of zero is as
    large as the one that the costs pull to."""
    near = GRANTED * EXCUSE
    if not np.isfinite(z).all():
        return False
    whole = np.maximum(np.abs(z), _pull(qp))
    return _violation(qp, z) <= tolerance or (
        _violation(qp, z, 1.0, float(whole.max())) <= near and exact.nearly_feasible(qp, near, whole)
    )


def _pull(qp: QP) -> float:
    """The size of the point without constraints, if there is one, but at most that of the most distant bound."""
    if qp.Q is None or not exact.definite(exact.quadratic(qp))[1]:
        return 0.0
    rows = exact.constraints(qp)
    R, r = np.vstack([rows.R, rows.E]).astype(float), np.concatenate([rows.r, rows.e]).astype(float)
    size = np.abs(R).max(axis=1, initial=0.0)
    distance = float(np.max(np.abs(r[size > 0]) / size[size > 0], initial=0.0))
    return min(float(np.abs(np.linalg.solve((qp.Q + qp.Q.T) / 2, qp.p)).max()), distance)


def _violation(qp: QP, z: Array, share: float = 1e-6, whole: float = 0.0) -> float:
    """The largest violation of a row, in units of its own terms plus `share` of the largest terms; `whole`: least size
    of the point for the latter."""
    worst, largest = 0.0, max(float(np.abs(z).max()), whole)
    for name, matrix, sign in (("b", qp.A, 0), ("h", qp.G, 1), ("lower", qp.G, -1), ("ub", None, 1), ("lb", None, -1)):
        side = getattr(qp, name)
        if side is not None and len(side):
            rows = np.eye(qp.n) if matrix is None else matrix
            over = np.where(np.isinf(side), 0.0, rows @ z - np.where(np.isinf(side), 0.0, side))
            over = np.abs(over) if sign == 0 else np.maximum(sign * over, 0.0)
            own = np.abs(rows) @ (np.abs(z) + share * largest) + np.where(np.isinf(side), 0.0, np.abs(side))
            worst = max(worst, float(np.max(over / (own + 1e-300))))
    return worst


def _imbalance(qp: QP, found: Found, forces: Array) -> float:
    """The residual of Qz + p + A'nu + G'lam + mu = 0, row by row in units of its terms, at least of `forces` (n,), and
    the size of multipliers of inactive rows."""
    nu, lam, mu = found.duals
    if not all(np.isfinite(v).all() for v in found.duals):
        return math.inf
    z, eye, none = found.z, np.eye(qp.n), np.zeros((0, qp.n))
    parts = [(qp.p, eye), (z, qp.Q), (nu, qp.A), (lam, qp.G), (mu, eye)]
    terms = [(v, none if M is None else M if M is not qp.Q else (M + M.T) / 2) for v, M in parts if M is not None]
    left, own = sum(M.T @ v for v, M in terms), sum(np.abs(M).T @ np.abs(v) for v, M in terms)
    own = np.maximum(own, forces)
    # without costs, forces are rounding, in units of the matrices
    sizes = [np.abs(v).max(initial=0.0) for v in (qp.p, qp.Q, qp.G, qp.A) if v is not None]
    costs = next((size for size in sizes if size > 0), 1.0)
    own = own + 1e-6 * max(own.max(), costs)
    worst = float(np.max(np.abs(left) / (own + 1e-300)))
    for y, M, sides in ((lam, qp.G, (qp.h, qp.lower)), (mu, eye, (qp.ub, qp.lb))):
        for sign, side in zip((1, -1), sides, strict=True):
            if side is not None and M is not None and len(side):
                slack = np.where(np.isinf(side), np.inf, sign * (np.where(np.isinf(side), 0.0, side) - M @ z))
                # as a violation is, one of a bound of zero is measured by the whole point
                slack[np.abs(slack) <= GRANTED * EXCUSE * np.abs(M).sum(axis=1) * np.abs(z).max()] = 0.0
                size = (
                    np.abs(M) @ np.abs(z) + np.where(np.isinf(side), 0.0, np.abs(side)) + 1e-6 * np.abs(M).sum(axis=1)
                )
                force = np.maximum(sign * y, 0.0)[:, None] * np.abs(M) / (own + 1e-300)
                both = np.minimum(np.abs(slack) / (size + 1e-300), force.max(axis=1))
                worst = max(worst, float(both.max()) * 1e-1)  # a slack and a force of that size count as zero
    return worst


def _solution(found: Found, truth: Truth, single: bool, radius: float, off: Outcome) -> Verdict:
    if not np.isfinite(found.z).all():
        return Verdict(Outcome.WRONG_SOLUTION, "solved, but not finite")
    tolerance = SOLUTION[single]
    error, size = float(np.abs(found.z - truth.z).max()), float(np.abs(truth.z).max())
    if error <= tolerance * size or (not truth.strict and _is_solution(truth, found.z, tolerance) and truth.many):
        return Verdict(Outcome.RIGHT)
    excuse = EXCUSE if not single else 1e-6
    if error <= GRANTED * truth.moves(excuse) or error <= GRANTED * truth.reach(excuse, radius):
        return Verdict(Outcome.RIGHT, EXCUSED)
    return Verdict(off, f"off by {error:.1e} of {size:.1e}")


def _is_solution(truth: Truth, z: Array, tolerance: float) -> bool:
    """Whether a point is one of many solutions, in the units of constraints and objective."""
    qp, z = truth.qp, np.asarray(z, dtype=float)
    Q = qp.Q if qp.Q is not None else np.zeros((qp.n, qp.n))
    best, value = truth.answer.z.astype(float), lambda v: 0.5 * v @ Q @ v + qp.p @ v
    own = 0.5 * np.abs(z) @ np.abs(Q) @ np.abs(z) + np.abs(qp.p) @ np.abs(z)
    gap = value(z) - value(best)
    return _violation(qp, z) <= tolerance and abs(gap) <= tolerance * (own + abs(value(best)))


def _gradient(
    found: Found, truth: Truth, wanted: Sequence[str], direction: Direction, single: bool, smoothed: bool
) -> Verdict:
    """Judge a derivative where the loss has one. At the edge of the data that have a solution (two bounds that
    coincide, an empty row with bound zero) it is the one from the feasible side, which may be flagged or not."""
    along = {name: direction[name] for name in wanted if name in direction}
    if not along:
        return Verdict(Outcome.UNJUDGED)
    right, left = truth.sides(along)
    if right is None and left is None and SIDES & set(along) and found.slope is None:
        # sides of dependent equalities, or of bounds that coincide, move so that there is no solution
        along = {name: d for name, d in along.items() if name not in SIDES}
        right, left = truth.sides(along) if along else (None, None)
    terms = [found.slope] if found.slope is not None else [found.gradient[name] * d for name, d in along.items()]
    value, size = sum(float(t.sum()) for t in terms), sum(float(np.abs(t).sum()) for t in terms)
    if not math.isfinite(size):
        return Verdict(Outcome.WRONG_GRADIENT if found.good else Outcome.FLAGGED, "a gradient that is not finite")
    if right is None and left is None and ("A" not in along or SIDES & set(along)):
        return Verdict(Outcome.UNJUDGED, "no derivative in inconsistent directions")
    size += NOTHING * truth.size
    edge = (right is None) != (left is None)
    if edge:
        right = left = left if right is None else right
    reason = "multipliers that are not unique" if truth.dual_spread > 0 else _kink(right, left, size, single)
    if reason and not truth.strict and truth.spread == 0 and truth.many:
        return Verdict(Outcome.UNJUDGED, "not unique, but the loss does not see it")  # as the certificate's text says
    if reason and smoothed:
        return Verdict(Outcome.UNJUDGED, "smoothing takes a mean there")
    if reason == "a jump" and max(abs(right), abs(left)) * exact.STEP <= UNSEEN * Fraction(truth.size):  # type: ignore[arg-type]
        return Verdict(Outcome.UNJUDGED, "a jump between values that doubles do not tell apart")
    if reason:
        return Verdict(Outcome.WRONG_GRADIENT if found.good else Outcome.FLAGGED, f"{reason}, called good")
    slope = float(right)  # type: ignore[arg-type]
    error = abs(value - slope)
    close = error <= GRADIENT[single] * (size + abs(slope))
    if found.good:
        excuse = EXCUSE_GRADIENT[1 if single else 2 if smoothed else 0]
        if close or error <= GRANTED * truth.turns(excuse, along, slope, edge):
            return Verdict(Outcome.RIGHT)
        return Verdict(Outcome.WRONG_GRADIENT, f"{value:.6g} called good, exact {slope:.6g}")
    if not close or edge or _doubtful(truth, wanted, along, slope, size, found.slope is not None):
        return Verdict(Outcome.FLAGGED)
    return Verdict(Outcome.FALSE_ALARM, "; ".join(found.reasons))


def _kink(right: Fraction | None, left: Fraction | None, size: float, single: bool) -> str:
    """Why there is no derivative; empty if there is one."""
    if right is None or left is None:
        return "no solution nearby"
    if max(abs(right), abs(left)) > JUMP * max(Fraction(size), Fraction(1, 2**60)):
        return "a jump"
    if abs(right - left) > GRADIENT[single] * (abs(right) + abs(left) + Fraction(size)):
        return f"a kink ({float(left):.6g}, {float(right):.6g})"
    return ""


def _doubtful(truth: Truth, wanted: Sequence[str], along: Direction, slope: float, size: float, forward: bool) -> bool:
    """Whether a warning about a correct derivative is justified: what the loss sees is not unique, or there is a kink
    in another direction, or one so close that rounding could cross it."""
    if truth.spread > 0:
        return True
    if truth.turns(NEAR, along, slope) > 1e-3 * (size + abs(slope)):
        return True
    return not forward and any(_kink(*truth.sides(truth.direction(wanted, k)), size, False) for k in range(2, 8))
