"""An interior-point method on the KKT pattern of the ghost system, several samples at once: zero, nonnegative,
second-order, semidefinite and exponential cones.

Mehrotra's predictor-corrector method: every inequality row takes part, with the weight delta_i = s_i / y_i, so that

    [ P  A'     ] [dx]   [ -(Px + q + A'y)      ]
    [ A  -s / y ] [dy] = [ b - Ax - s - rc / y  ]        ds = b - Ax - s - A dx,

where rc is the residual of complementarity: sigma mu - s y - ds dy. Curved cones have a scaling instead of weights
(`scaling`). Near the solution this tends to the ghost system of the face, so that one Newton step remains.

Four samples are iterated at once (`lanes`); one that has ended waits for the others. Between iterations only the
weights change in K. Steps are refined only after a step has left larger residuals than it should: the next iteration
corrects the errors of the one before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ffo.kernels import scaling
from ffo.kernels.cones.psd import order_of
from ffo.kernels.group import Samples, assemble, error, factor, residuals, solve
from ffo.kernels.jit import inner_kernel
from ffo.kernels.kkt import (
    ACOL,
    AROW,
    DIAGONAL,
    DIM,
    EXPONENTIAL,
    INV,
    KIND,
    NONNEG,
    SECOND_ORDER,
    START,
    ZERO,
    Structure,
    part,
)
from ffo.kernels.lanes import LANES, choose, clear, largest, load, spread, store

Array = np.ndarray

#: fraction of the residuals, in excess of what a shorter step leaves, above which steps are refined
SLACK = 0.1
#: relative complementarity below which steps of programs with curved cones are refined: the regularisation then affects
#: weights along the normals of their boundaries, which the residuals do not show
CLOSE = 1e-3
#: fraction of the distance to the boundary that a step takes, for scalar cones only, and if some are curved: with the
#: same fraction there, twice as many samples of robust least squares get stuck near the boundary
BACK_OFF, CURVED_BACK_OFF = 0.995, 0.98
#: fraction of the first complementarity that counts as zero if the terms of the gap vanish too (x = 0)
VANISHED = 1e-20
#: so many consecutive steps shorter than this mean that the method is stuck (as on infeasible problems)
SHORT, STUCK = 1e-3, 5
#: if the terms of the gap are so many times larger than at the smallest point so far, while more than this fraction of
#: its squared residuals is left, points diverge and there is no solution (n = 10, unbounded: 9 iterations instead of
#: 35; no Maros-Meszaros problem that would be solved ends this way)
GROWN, UNMET = 1e4, 1e-3
#: rows of the array of numbers that control each sample
DOT, UNIT, LEFT, BEFORE, ALPHA, EXPECTED, WORST, FIRST, RUNNING, REACHED, LEAST, LEFT_THERE = range(12)
#: number of inequalities above which some are likely so close to weakly active that the tolerance does not decide: a
#: sample that is at the tolerance, but not at FEW / inequalities of it, takes one more step (with 1,601 of them: 1.4
#: Newton steps per sample instead of 2.0, both methods together 13 % faster)
FEW = 100.0
#: the same for programs with exponential cones, where a small gap says less about the boundaries
STEEP = 1e3


@inner_kernel
def _weigh(S: Structure, G: Samples, curved: bool | None) -> None:
    """The weights s / y on the diagonal of K, and the scalings of curved blocks."""
    kinds, starts, dims = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM)
    diagonals, inv = part(S.wide, DIAGONAL), part(S.wide, INV)
    for k in range(S.blocks):
        if kinds[k] == NONNEG:
            for i in range(starts[k], starts[k] + dims[k]):
                scale = load(G.scale, inv[S.n + i])
                store(G.Kx, diagonals[S.n + i], 0.0 - load(G.s, i) / load(G.y, i) * scale * scale)
    if curved is not None:
        scaling.scale(S, G)


@inner_kernel
def _start(S: Structure, G: Samples, curved: bool | None) -> None:
    """The least-squares point, with slacks and multipliers moved into the interior along the cones' unit elements."""
    kinds, starts, dims = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM)
    assemble(S, G)
    factor(S, G, curved)
    for j in range(S.n):
        store(G.dx, j, 0.0 - load(G.q, j))
    for i in range(S.m):
        store(G.dy, i, load(G.b, i))
    solve(S, G, False)
    low, high = spread(-np.inf), spread(-np.inf)
    for k in range(S.blocks):
        if kinds[k] == NONNEG:
            for i in range(starts[k], starts[k] + dims[k]):
                v = load(G.dy, i)
                low, high = largest(low, 0.0 - v), largest(high, v)
        elif kinds[k] != ZERO and curved is not None:
            least, most = scaling.spectrum(kinds[k], G.dy, starts[k], starts[k] + dims[k])
            low, high = largest(low, 0.0 - least), largest(high, most)
    size = largest(spread(1e-3), largest(low, high))
    up, down = choose(high, -1e-8 * size, 0.0, high + size), choose(low, -1e-8 * size, 0.0, low + size)
    for j in range(S.n):
        store(G.x, j, load(G.dx, j))
    for k in range(S.blocks):
        for r in range(dims[k]):
            i = starts[k] + r
            v = load(G.dy, i)
            unit = scaling.unit(kinds[k], r)
            store(G.s, i, spread(0.0) if kinds[k] == ZERO else unit * up - v)
            store(G.y, i, v + unit * down)


@inner_kernel
def _boundary(S: Structure, G: Samples, curved: bool | None) -> Any:
    """1 / the largest step that keeps s and y in their cones; 0 if every step does."""
    kinds, starts, dims = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM)
    rate = spread(0.0)
    for k in range(S.blocks):
        if kinds[k] == NONNEG:
            for i in range(starts[k], starts[k] + dims[k]):
                rate = largest(rate, 0.0 - load(G.ds, i) / load(G.s, i))
                rate = largest(rate, 0.0 - load(G.dy, i) / load(G.y, i))
    if curved is not None:
        rate = scaling.boundary(S, G, rate)
    return rate


@inner_kernel
def _direction(S: Structure, G: Samples, share: Any, target: Any, careful: bool, curved: bool | None) -> None:
    """dx, dy, ds of the system whose complementarity aims at target - ds dy (of the current direction), and which
    reduces the residuals to a fraction `share`."""
    kinds, starts, dims = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM)
    Arow, Acol = part(S.wide, AROW), part(S.wide, ACOL)
    if curved is not None:
        scaling.aim(S, G, target)
    for j in range(S.n):
        store(G.dx, j, (1.0 - share) * load(G.r_x, j))
    for k in range(S.blocks):
        for i in range(starts[k], starts[k] + dims[k]):
            r = (1.0 - share) * load(G.r_s, i)
            if kinds[k] == NONNEG:
                r += load(G.s, i) - (target - load(G.ds, i) * load(G.dy, i)) / load(G.y, i)
            elif kinds[k] != ZERO:
                r += load(G.s, i) - load(G.dy, i)
            store(G.dy, i, r)
    if curved is not None:
        scaling.onto(S, G, G.dy, False)
    solve(S, G, careful)
    if curved is not None:
        scaling.onto(S, G, G.dy, True)
    for i in range(S.m):
        store(G.ds, i, (1.0 - share) * load(G.r_s, i))
    for t in range(Arow.size):
        i = Arow[t]
        store(G.ds, i, load(G.ds, i) - load(G.Av, t) * load(G.dx, Acol[t]))
    for k in range(S.blocks):
        if kinds[k] == ZERO:
            for i in range(starts[k], starts[k] + dims[k]):
                store(G.ds, i, spread(0.0))


@inner_kernel
def _step(S: Structure, G: Samples, numbers: Array, degree: float, careful: bool, curved: bool | None) -> None:
    """Predictor and corrector; moves the running samples, and records their step lengths."""
    dot = load(numbers, DOT)
    mu = dot / degree
    clear(G.ds)
    clear(G.dy)
    _direction(S, G, spread(0.0), spread(0.0), careful, curved)
    rate = _boundary(S, G, curved)
    alpha = choose(1.0, rate, 1.0 / rate, 1.0)
    after = spread(0.0)
    for i in range(S.m):
        after += (load(G.s, i) + alpha * load(G.ds, i)) * (load(G.y, i) + alpha * load(G.dy, i))
    share = largest(choose(0.0, dot, after / dot, 0.0), spread(0.0))
    share = choose(share, 1.0, share, 1.0)
    share = share * share * share
    target = share * mu
    if curved is None:  # full steps then remove residuals exactly, also at solutions that are zero
        share = spread(0.0)
    _direction(S, G, share, target, careful, curved)
    rate = _boundary(S, G, curved)
    back = BACK_OFF if curved is None else CURVED_BACK_OFF
    alpha = choose(back, rate, back / rate, 1.0) * load(numbers, RUNNING)
    for j in range(S.n):
        x = load(G.x, j)
        store(G.x, j, choose(0.0, alpha, x + alpha * load(G.dx, j), x))
    for i in range(S.m):
        y, s = load(G.y, i), load(G.s, i)
        store(G.y, i, choose(0.0, alpha, y + alpha * load(G.dy, i), y))
        store(G.s, i, choose(0.0, alpha, s + alpha * load(G.ds, i), s))
    store(numbers, ALPHA, alpha)
    store(numbers, EXPECTED, 1.0 - alpha * (1.0 - share))


@inner_kernel
def _degree(S: Structure) -> int:
    """Degree of the cones: the number of spectral values of their points, at least 1."""
    kinds, dims, total = part(S.wide, KIND), part(S.wide, DIM), 0
    for k in range(S.blocks):
        if kinds[k] == NONNEG:
            total += dims[k]
        elif kinds[k] != ZERO:
            total += 1 if kinds[k] == SECOND_ORDER else 3 if kinds[k] == EXPONENTIAL else order_of(dims[k])
    return max(total, 1)


@inner_kernel
def interior(
    S: Structure, G: Samples, eps: float, limit: int, allowed: Array, iterations: Array, curved: bool | None
) -> None:
    """Solve a group without a starting point; writes x, y, s, and the iterations (LANES,), negative where it failed.

    `allowed` (1,) is negative once time is up. `curved` None leaves out the code of curved cones.
    """
    numbers, stuck = np.zeros((LEFT_THERE + 1, LANES)), np.zeros(LANES, np.int64)
    _start(S, G, curved)
    for lane in range(LANES):
        iterations[lane], numbers[RUNNING, lane] = -limit, 1.0
    careful, degree = False, 1.0 * _degree(S)
    steeper = max(degree / FEW, STEEP if np.any(part(S.wide, KIND) == EXPONENTIAL) else 1.0)
    for turn in range(limit):
        dot, unit, left = residuals(S, G)
        store(numbers, DOT, dot)
        store(numbers, UNIT, unit)
        store(numbers, LEFT, left)
        if _ended(S, G, numbers, steeper, eps, turn, stuck, iterations) or allowed[0] < 0:
            return
        for lane in range(LANES):
            expected = numbers[EXPECTED, lane] ** 2 + SLACK**2
            if numbers[LEFT, lane] > expected * numbers[BEFORE, lane] and turn > 0:
                careful = True
            if curved is not None and numbers[DOT, lane] <= CLOSE * numbers[UNIT, lane]:
                careful = True
            numbers[BEFORE, lane] = numbers[LEFT, lane]
        _weigh(S, G, curved)
        factor(S, G, curved)
        _step(S, G, numbers, degree, careful, curved)


@inner_kernel
def _ended(
    S: Structure, G: Samples, numbers: Array, steeper: float, eps: float, turn: int, stuck: Array, iterations: Array
) -> bool:  # fmt: skip
    """Update the state of every running sample: solved, failed or running; returns whether none is running."""
    store(numbers, WORST, spread(np.inf))
    for lane in range(LANES):
        dot, first = numbers[DOT, lane], max(numbers[FIRST, lane], numbers[DOT, lane])
        numbers[FIRST, lane] = first
        unit = numbers[UNIT, lane]
        if turn == 0 or max(dot, unit) < numbers[LEAST, lane]:
            numbers[LEAST, lane], numbers[LEFT_THERE, lane] = max(dot, unit), numbers[LEFT, lane]
        if numbers[RUNNING, lane] > 0.0 and (dot <= eps * unit or max(dot, unit) <= VANISHED * first):
            numbers[WORST, lane] = 0.0
    if np.any(numbers[WORST] == 0.0):
        store(numbers, WORST, load(numbers, WORST) + error(S, G))
    running = False
    for lane in range(LANES):
        if numbers[RUNNING, lane] > 0.0:
            stuck[lane] = stuck[lane] + 1 if numbers[ALPHA, lane] < SHORT and turn > 0 else 0
            if numbers[UNIT, lane] > GROWN * numbers[LEAST, lane]:
                stuck[lane] = STUCK if numbers[LEFT, lane] > UNMET * numbers[LEFT_THERE, lane] else stuck[lane]
            met = numbers[WORST, lane] <= eps
            sharp = numbers[DOT, lane] * steeper <= eps * numbers[UNIT, lane]
            solved = met and (sharp or numbers[REACHED, lane] > 0.0)
            numbers[REACHED, lane] = 1.0 if met else numbers[REACHED, lane]
            lost = not np.isfinite(numbers[DOT, lane] + numbers[LEFT, lane])
            if solved or lost or stuck[lane] >= STUCK:
                iterations[lane] = turn if solved else -turn - 1
                numbers[RUNNING, lane] = 0.0
            else:
                running = True
    return not running
