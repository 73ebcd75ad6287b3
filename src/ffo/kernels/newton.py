"""The Newton loop: identify the face, factor, step, verify; and the two derivatives from its factors.

At the cleaned pair (s, y) of a point one step solves the ghost system

    K [dx; dt] = [-(Px + q + A'y); T(b - Ax - s)],     x += dx,   y += T'dt.

Close to a solution this is polishing: one or two steps take an interior-point answer to rounding. From far away it is a
primal-dual active-set method. A sample is settled when a step does not change its face and moves no curved block far
enough to change its curvature; the backward pass uses the factors of that step, with refinement.
"""

from __future__ import annotations

import numpy as np

from ffo.kernels import minres, singular, system
from ffo.kernels.bundle import refer
from ffo.kernels.direction import ROUNDING, damped, direction, gather, scatter
from ffo.kernels.evidence import ERROR, IS_SETTLED, NEAREST, PENDING, PIVOT, RATIO, RESIDUAL, START_RESIDUAL, STEPS
from ffo.kernels.iterate import (
    Iterate,
    arrive,
    as_it_is,
    blank,
    copied,
    copy_face,
    copy_point,
    cut_off,
    go_back,
    is_rough,
    judge_in,
    let_go,
    merit_of,
    move,
    onto_bounds,
    set_out,
    shorten,
    through_rays,
    to_zero,
)  # fmt: skip
from ffo.kernels.jit import inner_kernel
from ffo.kernels.kkt import (
    DIM,
    INV,
    KIND,
    NONNEG,
    START,
    ZERO,
    Face,
    Full,
    Structure,
    assemble,
    part,
)
from ffo.kernels.point import FAR, MARGIN_RATIO, WEAK, Sizes, row_norms, sizes
from ffo.kernels.residuals import Data
from ffo.kernels.system import UNKNOWN, Factors
from ffo.kernels.vectors import copy, fill

Array = np.ndarray

#: relative step below which the curvature at the previous point is used at the new one; relative step of rounding
SETTLED, STILL = 1e-7, 1e-14
#: natural residual that Newton's method reaches unless the face is wrong or its equations have no solution; with 1e-8,
#: three lines of the plane that do not meet in a point count as a vertex
CONVERGED = 1e-10
#: residual that a settled step may leave although it was smaller before (matrices of order 5 leave up to 4e-13, by
#: chance 1e-13)
NOISE = 1e-12
#: largest fraction of the residual that a step should leave; if it leaves more, shorter ones are tried
FALLING = 0.9
#: fraction of the residual above which a step may converge to a ray; if ten times smaller, ordinary steps are included
SLOW = 0.05
#: residual of the cleaned start below which that of the given point is not computed (isotonic regression: polish 5 %
#: faster); answers of solvers with the default accuracy may have a thousand times as much
NEAR = 1e-7
#: with curved cones, consecutive steps without a new best merit after which to give up, as a fraction of those allowed.
#: Without them, steps that exchange active rows need not lower it (a box and a budget, n = 2000, answers of PIQP with
#: an eps of 1e-6: 11 of 32 were given up, and went to other solvers)
PATIENCE = 0.4


@inner_kernel
def _weights(S: Structure, row: Array, tau: Array, unit: Array) -> None:
    """Natural units of residuals in K's order (see `system.Factors`)."""
    inv = part(S.wide, INV)
    fill(unit, 1.0)
    for i in range(S.m):
        unit[inv[S.n + i]] = row[i] / tau[i]


@inner_kernel
def _same(S: Structure, a: Face, b: Face) -> bool:
    """Whether two faces have the same structure."""
    kinds, starts, dims = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM)
    for k in range(S.blocks):
        if kinds[k] > NONNEG:
            if a.case[k] != b.case[k]:
                return False
        else:
            for i in range(starts[k], starts[k] + dims[k]):
                if a.on[i] != b.on[i]:
                    return False
    return True


@inner_kernel
def _alike(S: Structure, z: Sizes, a: Face, b: Face, w: Array, near: float) -> bool:
    """Whether two faces differ only in blocks that close to another face; `w` belongs to b."""
    kinds, starts, dims = part(S.wide, KIND), part(S.wide, START), part(S.wide, DIM)
    for k in range(S.blocks):
        if kinds[k] > NONNEG:
            if a.case[k] != b.case[k] and b.margin[k] > near:
                return False
        elif b.margin[k] > near or kinds[k] == ZERO:
            for i in range(starts[k], starts[k] + dims[k]):
                if a.on[i] != b.on[i]:
                    return False
        else:
            for i in range(starts[k], starts[k] + dims[k]):
                if a.on[i] != b.on[i] and abs(w[i]) > near * z.row[i] * z.primal:
                    return False
    return True


@inner_kernel
def _measure(
    S: Structure, z: Sizes, before: Face, after: Face, w: Array, dx: Array, dy: Array, unsolved: float, old: float,
    new: float, evidence: Array,
) -> bool:  # fmt: skip
    """Record the evidence of a step; returns whether the sample is settled.

    The error of an old curvature is about the step over the size of its block; scalar cones have none. A step solved to
    a relative residual is wrong by that fraction of itself. Weakly active blocks may alternate at a solution; whether
    that matters is decided when a derivative is taken.
    """
    kinds = part(S.wide, KIND)
    longest = strongest = 0.0
    for j in range(S.n):
        longest = max(longest, abs(dx[j]))
    for i in range(S.m):
        strongest = max(strongest, abs(dy[i]) * z.row[i])
    moved = max(longest / z.primal, strongest / z.dual)
    nearest, bend, weak = np.inf, np.inf, max(WEAK, new / MARGIN_RATIO)
    for k in range(S.blocks):
        nearest = min(nearest, after.margin[k])
        if kinds[k] > NONNEG and after.margin[k] > weak:
            bend = min(bend, after.margin[k])
    stale = moved / max(bend, 1e-30)
    unsolved *= moved
    evidence[RESIDUAL] = new
    evidence[ERROR] = max(stale, new, unsolved)
    evidence[RATIO] = max(stale, max(new, unsolved) / max(nearest, 1e-30))
    evidence[NEAREST] = nearest
    still = (stale <= SETTLED or moved <= STILL) and unsolved <= SETTLED
    same = _same(S, before, after) or (new <= ROUNDING and _alike(S, z, before, after, w, weak))
    settled = still and same and new <= min(max(old, NOISE), CONVERGED)
    evidence[IS_SETTLED] = 1.0 if settled else 0.0
    return settled


@inner_kernel
def newton(
    S: Structure, D: Data, x: Array, y: Array, s: Array, face: Face, F: Factors, evidence: Array, allowed: Array,
    full: Full | None,
) -> None:  # fmt: skip
    """Polish (x, y, s) of one sample in place; leaves its face, K at it, factors of a K nearby, and the evidence.

    `allowed` (1,) is the number of steps, negative once time is up: the current step is then the last one, and
    samples not begun have no evidence. Without steps the point, or its cleaned pair if that is better, is only judged:
    there are no factors. `full` None leaves out curved cones and singular systems; a point that needs them is left
    unchanged, after UNKNOWN steps.

    Multipliers of rows that depend on each other may diverge together, and steps of least norm leave them as they are:
    smaller ones, with the largest cut off, are tried too, and kept if they settle.
    """
    steps, start = allowed[0], 0.0
    if steps < 0:
        fill(evidence, np.nan)
        return
    own = np.empty(S.n + 2 * S.m)
    here = Iterate(x, own[: S.m], y, s, own[S.m : S.m + S.n], own[S.m + S.n :])
    first = given = copied(S, x, y, s)
    row = row_norms(S, D.Av)
    for turn in range(3):
        z = sizes(S, D, row, x, y, s)
        _weights(S, z.row, z.tau, F.unit)
        _polish(S, D, z, given, here, face, F, evidence, steps, allowed, full)
        if turn == 0:
            if not (z.dual > FAR * z.implied_dual and steps > 0 and evidence[STEPS] != UNKNOWN):
                return
            start = evidence[START_RESIDUAL]
            cut_off(S, z, FAR * z.implied_dual, y)
            given = copied(S, x, y, s)
        elif turn == 1 and evidence[IS_SETTLED] == 0.0:
            copy_point(first, here)
            given = first
        else:
            break
    evidence[START_RESIDUAL] = start


@inner_kernel
def _polish(
    S: Structure, D: Data, z: Sizes, given: Iterate, here: Iterate, face: Face, F: Factors, evidence: Array,
    steps: int, allowed: Array, full: Full | None,
) -> None:  # fmt: skip
    """Clean the given point. At a solution to rounding, such as active-set methods find, a step would be rounding too:
    it is judged once, and no workspace for other points is made."""
    z, given, here = refer(z), refer(given), refer(here)
    fill(evidence, np.inf)
    evidence[STEPS], evidence[IS_SETTLED] = 0.0, 0.0
    set_out(S, D, z, given, here)
    cleaned = arrive(S, D, z, here, face, full)
    evidence[START_RESIDUAL] = merit_of(S, z, here)
    if cleaned <= ROUNDING:
        dx, dy = np.zeros(S.n), np.zeros(S.m)
        settled = _measure(S, z, face, face, here.w, dx, dy, 0.0, cleaned, cleaned, evidence)
        if settled and not (steps > 0 and is_rough(S, D, here, face)):
            _finish(S, D, z.row, here, face, F, evidence, np.inf, 0.0, True, steps > 0, full)
            return
    other = Face(face.on.copy(), face.delta.copy(), face.u.copy(), face.R.copy(), face.case.copy(), face.margin.copy())
    _newton(S, D, z, given, blank(S), here, blank(S), face, other, F, evidence, cleaned, steps, allowed, full)


@inner_kernel
def _newton(
    S: Structure, D: Data, z: Sizes, given: Iterate, best: Iterate, here: Iterate, there: Iterate, face: Face,
    other: Face, F: Factors, evidence: Array, old: float, steps: int, allowed: Array,
    full: Full | None,
) -> None:  # fmt: skip
    """Iterate from `here`, the current point, to `there`, whose face is `other`; `old`: natural residual here."""
    best, there, other = refer(best), refer(there), refer(other)
    merit = least = evidence[START_RESIDUAL]
    if steps <= 0 or not merit <= NEAR:
        as_given = as_it_is(S, D, z, given, here.s, there)
        evidence[START_RESIDUAL] = as_given if as_given < merit else merit
    lowest, borrowed, waited, pivot, known, spare = old, steps < 0, 0, np.inf, 0.0, True
    copy_point(here, best)
    dx, dy, tangent, chord, slow = np.zeros(S.n), np.zeros(S.m), np.empty(face.delta.size), False, False
    patience = PATIENCE if S.aux + S.rotation else 1.0
    for step in range(steps):
        if not np.isfinite(old) or allowed[0] < 0:
            break
        copy(tangent, face.delta)
        chord = full is not None and slow and through_rays(S, face, here)
        assemble(S, D.Pv, D.Av, face, face.u, np.zeros(S.aux), F.Kx)
        copy(face.delta, tangent)
        unsolved, new_pivot, fresh = direction(S, F, face, here.r_x, here.r_s, old, borrowed, dx, dy, full)
        if full is None and unsolved == UNKNOWN:
            copy_point(given, here)
            evidence[STEPS] = UNKNOWN
            return
        pivot = new_pivot if fresh else pivot
        new = arrive(S, D, z, there, other, full) if move(S, D, z, here, dx, dy, 1.0, there) else np.inf
        evidence[STEPS], evidence[IS_SETTLED] = step + 1.0, 0.0
        if _measure(S, z, face, other, there.w, dx, dy, unsolved, old, new, evidence):
            evidence[IS_SETTLED] = 1.0
        elif old > ROUNDING and not (new < np.inf and (chord or merit_of(S, z, there) <= FALLING * merit)):
            freed = new < np.inf and _same(S, face, other) and let_go(S, D, z, F.scale, there, other)
            held = not freed and pivot <= system.SMALL_PIVOT
            held = held and _hold_multipliers(S, D, z, F, merit, here, face, dx, dy, there, other, full)
            if not freed and not held and not shorten(S, D, z, here, dx, dy, new < np.inf, there, other, full):
                break
            new = arrive(S, D, z, there, other, full)
        borrowed = _same(S, face, other) and not chord
        copy_point(there, here)
        copy_face(other, face)
        before, old, last, merit = old, new, merit, merit_of(S, z, here)
        slow = not chord and merit > SLOW * last
        waited, least = (0 if merit < 0.99 * least else waited + 1), min(least, merit)
        if new <= lowest or evidence[IS_SETTLED] > 0.0:
            lowest = new
            copy_point(here, best)
        going, settled = new > ROUNDING and new <= 0.1 * before, evidence[IS_SETTLED] > 0.0
        if settled and spare and not going:
            going, spare = is_rough(S, D, here, face), False
        if (settled and not going) or waited > patience * steps:
            break
    if evidence[IS_SETTLED] == 0.0:  # the best point, at its own face
        copy_point(best, here)
        arrive(S, D, z, here, face, full)
        known = go_back(S, D, z, given, here, face, there, other, full)
    _finish(S, D, z.row, here, face, F, evidence, pivot, known, borrowed, steps > 0, full)


@inner_kernel
def _hold_multipliers(
    S: Structure, D: Data, z: Sizes, F: Factors, merit: float, here: Iterate, face: Face, dx: Array, dy: Array,
    there: Iterate, other: Face, full: Full | None,
) -> bool:  # fmt: skip
    """Move to `there` by a step that keeps multipliers where K nearly vanishes; returns whether it is good: else, and
    where there are no factors, `there` is again where the step dx, dy leads.

    Boundaries that touch at the solution have normals that nearly depend on each other at a point close to it. An exact
    step moves their multipliers by an error over an angle, from the centre of those that are possible to their edge or
    beyond.
    """
    if full is None or full.iterations > 0:
        return False
    du, dv = np.zeros(S.n), np.zeros(S.m)
    damped(S, F, face, here.r_x, here.r_s, du, dv)
    good = move(S, D, z, here, du, dv, 1.0, there)
    if good:
        arrive(S, D, z, there, other, full)
        good = merit_of(S, z, there) <= FALLING * merit
    if not good and move(S, D, z, here, dx, dy, 1.0, there):
        arrive(S, D, z, there, other, full)
    return bool(good)


@inner_kernel
def _finish(
    S: Structure, D: Data, row: Array, here: Iterate, face: Face, F: Factors, evidence: Array, pivot: float,
    known: float, same: bool, derivative: bool, full: Full | None,
) -> None:  # fmt: skip
    """Put variables on the bounds that hold them, and judge the answer in its own sizes (those of a distant start would
    excuse anything); K at the final face.

    `known`: the residual of complementarity, if the point was not cleaned; `same`: whether the last step did not change
    the face; `derivative`: whether there may be one. It makes the factors, if those of the last step are others.
    """
    settled, still = evidence[IS_SETTLED] > 0.0, evidence[STEPS] == 0.0
    anew = still or not settled or not same
    given = here.x.copy()
    held = settled and derivative and onto_bounds(S, D, here, face)
    vanished = settled and to_zero(S, D, row, here)
    if held or vanished or not (settled and still):
        z = sizes(S, D, row, here.x, here.y, here.s)
        residual = max(judge_in(S, D, z, here), known)
        if held and not residual <= max(evidence[RESIDUAL], ROUNDING):
            copy(here.x, given)
            residual = max(judge_in(S, D, z, here), known)
        evidence[ERROR] = max(evidence[ERROR], residual)
        evidence[RESIDUAL] = residual
        _weights(S, z.row, z.tau, F.unit)
    # else K has not changed, because there is no curvature, or it is not needed
    if (derivative and (full is not None or anew)) or (full is not None and full.iterations > 0):
        assemble(S, D.Pv, D.Av, face, face.u, np.zeros(S.aux), F.Kx)
    if full is not None and full.iterations > 0:
        minres.equilibrate(S, F)
        pivot = 0.0  # rows may depend on each other
    elif derivative and anew:
        pivot = PENDING
    evidence[PIVOT] = pivot


@inner_kernel
def sensitivity(
    S: Structure, F: Factors, face: Face, r_x: Array, r_s: Array, u: Array, w: Array, full: Full | None
) -> float:
    """Solve the ghost system: K [u; t] = [r_x; T r_s], w = T't; returns the relative residual or error.

    hypergradient (loss gradients c)   r_x = -c_x + A'c_s,         r_s = -c_y
    tangent (dP, dq, dA, db)           r_x = -(dP x + dq + dA'y),  r_s = db - dA x
    """
    rhs, z = np.zeros(S.sign.size), np.empty(S.sign.size)
    gather(S, face, r_x, r_s, rhs)
    doubt = _solve(S, F, rhs, z, full)
    scatter(S, face, z, u, w)
    return doubt


@inner_kernel
def _solve(S: Structure, F: Factors, rhs: Array, z: Array, full: Full | None) -> float:
    if full is not None and full.iterations > 0:
        return minres.solve_in_parts(S, F, rhs, z, full)
    return singular.solve(S, F, rhs, z, full)
