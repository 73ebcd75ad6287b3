"""The evidence of Newton's method about a sample: numbers, and the flags that follow from them."""

from __future__ import annotations

import numpy as np

from ffo.kernels.jit import inner_kernel, kernel
from ffo.kernels.kkt import DIM, EXPONENTIAL, KIND, POWER, SECOND_ORDER, SEMIDEFINITE, START, Structure, part
from ffo.kernels.point import MARGIN_RATIO, VANISHING, WEAK
from ffo.kernels.residuals import Data

Array = np.ndarray

#: columns of the evidence; the start is measured as solvers do, in the largest terms of the program; REACH is that of
#: `reach`; PIVOT the smallest one of the factors, or PENDING; SINGULAR whether the ghost system may be, AMPLIFIED the
#: size of its solution for a random right-hand side of unit size, equilibrated; GHOST is the residual of a derivative;
#: the last three are NaN before any
RESIDUAL, START_RESIDUAL, REACH, ERROR, RATIO, NEAREST, PIVOT, STEPS, IS_SETTLED, AMPLIFIED, SINGULAR, GHOST = range(12)
EVIDENCE = 12
#: instead of the smallest pivot: the factors are made with the first derivative
PENDING = -1.0
#: columns of the flags; the others are set by derivatives, in the order of `ghost.certificate`
UNSETTLED, WEAKLY_ACTIVE = range(2)
FLAGS = 7
#: answers of `verdict`
DOUBTED, ACCEPTED, UNDOUBTED = range(3)
#: costs, beside the terms of Px, that no residual shows; forces beside which rounding hides the costs (`engine.face`)
BURIED, DROWNING = 1e-12, 1e4
#: ratio of coordinates of a block below which the smaller one has too few digits, or counts for too little when the
#: block is judged (see `program.balance`); the same for exponentials, of which few problems need the digits beside 1
SKEWED, FADING = 1e-6, 1e-9


@inner_kernel
def reach(D: Data, x: Array, y: Array) -> float:
    """The largest entry of x and y; infinite if one is not finite, or if the costs q may be rounding beside the terms
    of Px, which are at most max |P| |x|_1, or both beside multipliers (`engine.face` also on costs of zero)."""
    cost = curvature = length = force = largest = 0.0
    for j in range(x.size):
        cost = max(cost, abs(D.q[j]))
        length += abs(x[j])
        largest = max(largest, abs(x[j]))
    for i in range(y.size):
        force += abs(y[i])
        largest = max(largest, abs(y[i]))
    for t in range(D.Pv.size):
        curvature = max(curvature, abs(D.Pv[t]))
    bent = curvature * length
    known = length + force < np.inf and not 0.0 < cost <= BURIED * bent
    if cost == 0.0:
        cost = VANISHING * (curvature if curvature > 0.0 else 1.0)
    known &= not DROWNING * (cost + bent) < force
    return largest if known else np.inf


@inner_kernel
def is_skewed(S: Structure, k: int, y: Array, s: Array, share: float) -> bool:
    """Whether the coordinates of a block with a force differ by orders of magnitude: the sum and the difference of the
    largest two of a second-order cone, the first two of a power cone, an exponential and its scale, or diagonal entries
    of a matrix."""
    kind, first, d = part(S.wide, KIND)[k], part(S.wide, START)[k], part(S.wide, DIM)[k]
    least, most, ratio, force = np.inf, 0.0, SKEWED, 0.0
    if kind == SECOND_ORDER:
        for i in range(first + 1, first + d):
            most = max(most, abs(s[i]))
        least, most = s[first] - most, s[first] + most
    elif kind == POWER:
        least, most = min(s[first], s[first + 1]), max(s[first], s[first + 1])
    elif kind == EXPONENTIAL:
        least, most, ratio = s[first + 2], s[first + 1], FADING
    elif kind == SEMIDEFINITE:
        i, column = first, 1
        while i < first + d:  # columns of the upper triangle
            least, most = min(least, s[i]), max(most, s[i])
            column += 1
            i += column
    if not least <= share * ratio * most:
        return False
    for i in range(first, first + d):
        force = max(force, abs(y[i]))
    return force > 0.0


@inner_kernel
def any_skewed(S: Structure, y: Array, s: Array) -> bool:
    """Whether any block is."""
    found = False
    for k in range(S.blocks):
        found |= is_skewed(S, k, y, s, 1.0)
    return found


@kernel
def skewed_rows(S: Structure, y: Array, s: Array, share: float, found: Array) -> None:
    """(batch, m) the rows of skewed blocks."""
    for sample in range(found.shape[0]):
        for k in range(S.blocks):
            first, d = part(S.wide, START)[k], part(S.wide, DIM)[k]
            skewed = is_skewed(S, k, y[sample], s[sample], share)
            for i in range(first, first + d):
                found[sample, i] = skewed


@inner_kernel
def conclude(evidence: Array, flags: Array) -> None:
    """The flags of a sample, before any derivative; NaN raises none."""
    residual, nearest = evidence[RESIDUAL], evidence[NEAREST]
    evidence[AMPLIFIED] = evidence[SINGULAR] = evidence[GHOST] = np.nan
    for k in range(FLAGS):
        flags[k] = False
    flags[UNSETTLED] = evidence[IS_SETTLED] == 0.0
    flags[WEAKLY_ACTIVE] = (nearest <= WEAK and residual >= 0.0) or nearest <= residual / MARGIN_RATIO


@kernel
def verdict(
    evidence: Array, flags: Array, residual: float, start: float, reach: float, error: float, ratio: float
) -> int:
    """ACCEPTED if the evidence on all samples of a batch is within the first three limits, UNDOUBTED if it is within
    all of them, and no flag is raised; else DOUBTED."""
    found = UNDOUBTED
    for k in range(evidence.shape[0]):
        e = evidence[k]
        if not (e[RESIDUAL] <= residual and e[START_RESIDUAL] <= start and e[REACH] <= reach):
            return DOUBTED
        if not (e[ERROR] <= error and e[RATIO] <= ratio) or flags[k].any():
            found = ACCEPTED
    return found
