"""How forces are divided among constraints whose boundaries touch.

A ball in a half-space whose boundary it touches: only the sum of both forces is determined. The curvature of the ball
in the ghost system is proportional to its own force, so the derivative may depend on the division. To see whether it
does, the multipliers are moved a little along a null vector of the ghost system K, which gives K', and the change of
the solution (u, w) is solved for:

    K'[d; e] = r - K'[u; w],    K[u; w] = r.

The right-hand side is not zero only in blocks whose multipliers moved. So what a loss sees elsewhere, however large,
does not enter, as it would in the difference of two solutions. Errors are measured in each connected component of the
program by itself, for the same reason.
"""

from __future__ import annotations

import numpy as np

from ffo.cones import Product, SecondOrder
from ffo.kernels.batch import KernelPlan, State
from ffo.program.components import Components
from ffo.program.cone import ConeProgram
from ffo.program.magnitudes import largest

Array = np.ndarray

#: fraction of the forces of rows that depend on each other by which they are divided otherwise; with much more, a block
#: could change its face
DIVIDED = 1e-2
#: step out of a cone, relative to the slack, that shows the normal
OUTSIDE = 1e-4
#: cosine from which on a direction lengthens the multipliers of a block; slight forces, relative to the largest
PARALLEL, SLIGHT = 0.99, 1e-5
#: relative size of rounding in solutions of ghost systems, and in changes of them, relative to those of multipliers; of
#: their errors, in units of their relative residuals
NOISE, ROUNDING, ERRORS = 1e-12, 1e-11, 30.0
#: weight delta of a row, equilibrated, from which on its multiplier is small, and delta t is known from the row itself
WEIGHTY = 0.1


def with_forces(program: ConeProgram, y: Array, s: Array, free: Array, share: float) -> Array:
    """(samples, m) multipliers y with small forces along the normals of the blocks in `free` (samples, m), whose slacks
    s are on the boundary: a share of the largest force of the sample."""
    cones, size = program.cones, program.cones.block_means(program.A.row_sizes)
    outside = s - OUTSIDE * np.sqrt(cones.block_means(s * s)) * cones.interior
    normal = np.where(free, cones.project(outside) - outside, 0.0)
    force, moved = (size * np.sqrt(cones.block_means(v * v)) for v in (y, normal))
    return np.asarray(y + np.where(moved > 0, share * largest(force) / np.where(moved > 0, moved, 1.0), 0.0) * normal)


def divided_otherwise(cones: Product, size: Array, y: Array, along: Array) -> Array:
    """(samples, m) multipliers a little further along a null vector; `size`: (samples or 1, m) of the rows."""
    return y + DIVIDED * _largest_step(cones, size, y, along)


def _largest_step(cones: Product, size: Array, y: Array, along: Array) -> Array:
    """(samples, m) the longest step along a direction, or against it, until the first large force of multipliers y
    vanishes; about so for semidefinite blocks. Zero if none does."""
    force, moved = (size * np.sqrt(cones.block_means(v * v)) for v in (y, along))
    grows = size**2 * cones.block_means(y * along) / np.where(force * moved > 0, force * moved, 1.0)
    large = force > SLIGHT * largest(np.where(moved > 0, force, 0.0))  # others may vanish: they are not needed
    lasts = np.divide(force, moved, out=np.full(y.shape, np.inf), where=large & (moved > 0) & ~cones.equalities)
    ahead, back = (
        np.where(sign * grows > PARALLEL, np.inf, lasts).min(axis=1, keepdims=True, initial=np.inf) for sign in (1, -1)
    )
    ahead, back = np.where(ahead < np.inf, ahead, back), np.where(back < np.inf, back, ahead)
    return np.where(ahead < np.inf, np.where(ahead > back, ahead, -back), 0.0) * along


def change_of_system(
    program: ConeProgram, plan: KernelPlan, here: State, samples: Array, there: State, along: Array, r_s: Array,
    u: Array, w: Array, residual: Array, parts: Components,
) -> tuple[Array, Array]:  # fmt: skip
    """r - K'[u; w] for some samples of `here`, which are all samples of `there`, where multipliers have moved along a
    null vector: (samples, n), (samples, m), the latter before T is applied.

    It is A'(w - T't) and r_s - Au + T'(delta t) with T, delta and t of `there`. If the face `here` is the same, then
    w = T't, and Au - r_s along its rows is T'(delta t) of `here`.
    """
    cones, everyone = program.cones, np.arange(len(samples))
    touched = cones.block_means(1.0 * (along != 0)) > 0
    _, scale = plan.scales(here, samples)
    delta, rows = here.face[1][samples], program.A.dot(u) - r_s
    bent = delta * _coordinates(cones, plan, here, samples, w, True)
    bent = np.where(delta * scale**2 > WEIGHTY, _coordinates(cones, plan, here, samples, rows, False), bent)
    t = _coordinates(cones, plan, there, everyone, w, True)
    changed = cones.block_means(1.0 * (here.face[0][samples] != there.face[0])[:, : program.m]) > 0
    left = np.where(changed, rows, plan.from_face(here, samples, np.where(delta > 0, bent, 0.0)))
    found = np.where(touched, plan.from_face(there, everyone, there.face[1] * t) - left, 0.0)
    size = parts.largest(np.zeros_like(u), np.where(touched, w / scale, 0.0))[:, parts.rows]
    rounding = DIVIDED * np.maximum(NOISE, ERRORS * residual)[:, None] * size
    held = np.where(touched & changed, w - plan.from_face(there, everyone, t), 0.0)
    return program.A.tdot(held), np.where(np.abs(found) * scale > rounding, found, 0.0)


def errors(
    program: ConeProgram, plan: KernelPlan, state: State, scales: tuple[Array, Array], r_x: Array, r_s: Array,
    d: Array, e: Array, parts: Components,
) -> tuple[Array, Array]:  # fmt: skip
    """(samples, components) relative residuals of solutions d, e of ghost systems, and errors of d, in units of these
    scales: rounding in proportion to e, and the residuals in proportion to d and to the multipliers along curved
    boundaries. (Those along normals may contain any multiple of a null vector.)"""
    samples, delta, (scale_u, scale_w) = np.arange(len(d)), state.face[1], scales
    rest_x = r_x - program.P.dot(d) - program.A.tdot(e)
    t = _coordinates(program.cones, plan, state, samples, e, True)
    rest_t = _coordinates(program.cones, plan, state, samples, r_s - program.A.dot(d), False) + delta * t
    given = parts.largest(r_x * scale_u, r_s * scale_w)
    residual = parts.largest(rest_x * scale_u, rest_t * scale_w) / np.where(given > 0.0, given, 1.0)
    size = parts.largest(d / scale_u, np.where(delta > 0, t, 0.0) / scale_w)
    rounding = ROUNDING * parts.largest(np.zeros_like(d), e / scale_w)
    return residual, rounding + ERRORS * residual * size


def _coordinates(cones: Product, plan: KernelPlan, state: State, samples: Array, v: Array, multiplier: bool) -> Array:
    """t of multipliers v = T't, or else T v, (samples, m).

    In the sparse form of second-order blocks (see `kernels.cones.soc`), row 0 of T is (1, -u), and the component of the
    others along u means nothing: it is left out.
    """
    on, turn, t = state.face[0][samples], state.face[2][samples], plan.onto_face(state, samples, v)
    for g in cones.groups:
        if isinstance(g.cone, SecondOrder):
            first, rest = g.index[:, 0], g.index[:, 1:]
            u = turn[:, rest]  # (samples, count, d - 1)
            t[:, rest] -= on[:, rest] * u * (u * t[:, rest]).sum(axis=2, keepdims=True)
            if multiplier:
                t[:, first] *= np.where(u.any(axis=2), 0.5, 1.0)
    return t
