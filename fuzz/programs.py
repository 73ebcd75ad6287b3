"""Random quadratic programs of every degenerate kind.

A program is made around a point with chosen slacks and multipliers, then passed through modifiers, each of which makes
it difficult in one way. A kind is a recipe: options of the first step, and modifiers. Modifiers promise nothing about
the solution; the judge determines it. Samples of a batch have equal shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fuzz.exact import QP

Array = np.ndarray
Random = np.random.Generator
#: a program, random numbers, and the point the program was made around (where variables still have the same units)
Modifier = Callable[[QP, Random, Array], QP]


@dataclass(frozen=True)
class Shape:
    """Sizes of a program: variables, inequalities, equalities; which blocks of bounds it has; rank of Q (-1: no Q)."""

    n: int
    m: int
    me: int
    bounds: frozenset[str]
    rank: int
    dyadic: bool

    def numbers(self, rng: Random, *size: int) -> Array:
        """Multiples of 1/4 (so that sums and products are exact, and points exactly degenerate), or normal numbers."""
        return rng.integers(-8, 9, size) / 4 if self.dyadic else rng.normal(size=size)


@dataclass(frozen=True)
class Kind:
    """How programs of a kind are made."""

    modifiers: tuple[Modifier, ...] = ()
    rank: str = "full"  # "full", "low" or "none"
    weak: int = 0  # rows that are active with a zero multiplier
    origin: bool = False  # the solution and all bounds are zero
    uneven: bool = False  # multipliers differ in size, by factors up to 1e9


def draw_shape(rng: Random, kind: Kind, largest: int = 5) -> Shape:
    n = int(rng.integers(1, largest + 1))
    rank = {"full": n, "low": int(rng.integers(0, n)), "none": -1}[kind.rank]
    names = [name for name in ("lb", "ub", "lower") if rng.random() < 0.3]
    return Shape(n, int(rng.integers(0, n + 4)), int(rng.integers(0, n)), frozenset(names), rank, rng.random() < 0.7)


def draw_program(rng: Random, kind: Kind, shape: Shape) -> tuple[QP, Array]:
    """A program with a known solution, before its modifiers, and that solution."""
    n, numbers = shape.n, shape.numbers
    z = 0.0 * numbers(rng, n) if kind.origin else numbers(rng, n)
    blocks: dict[str, Array] = {}
    p = np.zeros(n)
    if shape.rank >= 0:
        root = (numbers if shape.rank == n else replace(shape, dyadic=True).numbers)(rng, shape.rank, n)  # exact rank
        blocks["Q"] = root.T @ root + (np.eye(n) / 4 if shape.rank == n else 0.0)
        p -= blocks["Q"] @ z
    if shape.me:
        blocks["A"] = numbers(rng, shape.me, n)
        blocks["b"] = blocks["A"] @ z
        p -= blocks["A"].T @ numbers(rng, shape.me)
    weak = kind.weak
    if shape.m:
        G = blocks["G"] = numbers(rng, shape.m, n)
        for name, sign in (("h", 1.0), ("lower", -1.0)):
            if name == "h" or name in shape.bounds:
                slack, force = _pairs(rng, shape, shape.m, weak, kind)
                blocks[name] = G @ z + sign * slack
                p -= sign * (G.T @ force)
    for name, sign in (("ub", 1.0), ("lb", -1.0)):
        if name in shape.bounds:
            slack, force = _pairs(rng, shape, n, weak, kind)
            side = z + sign * slack
            blocks[name] = np.where(rng.random(n) < 0.2, sign * np.inf, side)
            p -= np.where(np.isinf(blocks[name]), 0.0, sign * force)
    return QP(p=p, **blocks), z


def _pairs(rng: Random, shape: Shape, count: int, weak: int, kind: Kind) -> tuple[Array, Array]:
    """Slacks and multipliers of some rows, about a third of them active."""
    slack, force = np.abs(shape.numbers(rng, count)) + 0.25, np.abs(shape.numbers(rng, count)) + 0.25
    active = rng.random(count) < 0.35
    slack[active], force[~active] = 0.0, 0.0
    some = rng.permutation(count)[:weak]
    slack[some], force[some] = 0.0, 0.0
    if kind.uneven:
        force *= 10.0 ** -rng.uniform(0, 9, count)
    return (0.0 * slack if kind.origin else slack), force


# Modifiers


def with_rows(qp: QP, G: Array, h: Array) -> QP:
    """The program with further inequalities."""
    if qp.G is None:
        return replace(qp, G=G, h=h)
    lower = qp.lower if qp.lower is None else np.concatenate([qp.lower, np.full(len(h), -np.inf)])
    return replace(qp, G=np.vstack([qp.G, G]), h=np.concatenate([qp.h, h]), lower=lower)


def duplicate_rows(qp: QP, rng: Random, z: Array) -> QP:
    """Two more inequalities that are multiples or sums of others."""
    if qp.G is None:
        return qp
    k = rng.integers(0, len(qp.G), 2)
    factor = float(rng.choice([1.0, 2.0, 0.5, 3.0]))
    G, h = np.stack([factor * qp.G[k[0]], qp.G[k].sum(axis=0)]), np.array([factor * qp.h[k[0]], qp.h[k].sum()])
    return with_rows(qp, G, h)


def pair_of_rows(qp: QP, rng: Random, z: Array) -> QP:
    """An inequality and its opposite: an equality in disguise."""
    if qp.G is None:
        return qp
    k = rng.integers(len(qp.G))
    factor = float(rng.choice([1.0, 2.0, 1e3]))
    return with_rows(qp, -factor * qp.G[[k]], -factor * qp.h[[k]])


def dependent_equalities(qp: QP, rng: Random, z: Array) -> QP:
    if qp.A is None:
        return qp
    w = rng.integers(-2, 3, len(qp.A)).astype(float)
    return replace(qp, A=np.vstack([qp.A, w @ qp.A]), b=np.append(qp.b, w @ qp.b))


def distant_rows(qp: QP, rng: Random, z: Array) -> QP:
    """Two inequalities with bounds between 1e4 and 1e14, and a distant bound of a variable."""
    M = 10.0 ** rng.uniform(4, 14, 2)
    qp = with_rows(qp, rng.integers(-8, 9, (2, qp.n)) / 4, M)
    return qp if qp.ub is None else replace(qp, ub=np.where(np.isinf(qp.ub), 10.0 ** rng.uniform(4, 14), qp.ub))


def scaled_rows(qp: QP, rng: Random, z: Array) -> QP:
    new = {}
    for matrix, sides in (("G", ("h", "lower")), ("A", ("b",))):
        if getattr(qp, matrix) is not None:
            factor = 10.0 ** rng.uniform(-8, 8, len(getattr(qp, matrix)))
            new[matrix] = factor[:, None] * getattr(qp, matrix)
            new |= {side: factor * getattr(qp, side) for side in sides if getattr(qp, side) is not None}
    return replace(qp, **new)


def scaled_columns(qp: QP, rng: Random, z: Array) -> QP:
    """Variables in other units, the same or different ones; powers of two keep a singular Q exactly singular."""
    power = rng.choice([6, 13, 26])
    d = 2.0 ** rng.integers(-power, power + 1, qp.n if rng.random() < 0.7 else 1) * np.ones(qp.n)
    new = {"p": d * qp.p}
    new |= {name: d * getattr(qp, name) for name in ("G", "A") if getattr(qp, name) is not None}
    new |= {name: getattr(qp, name) / d for name in ("lb", "ub") if getattr(qp, name) is not None}
    if qp.Q is not None:
        new["Q"] = d[:, None] * qp.Q * d
    return replace(qp, **new)


def scaled_costs(qp: QP, rng: Random, z: Array) -> QP:
    factor = 2.0 ** rng.integers(-26, 27)
    return replace(qp, p=factor * qp.p, Q=None if qp.Q is None else factor * qp.Q)


def stiff(qp: QP, rng: Random, z: Array) -> QP:
    """Curvatures that differ by up to ten orders of magnitude."""
    v = rng.integers(-8, 9, qp.n) / 4
    small = 10.0 ** rng.uniform(-10, -2)
    return replace(qp, Q=np.outer(v, v) + small * np.eye(qp.n))


def nearly_parallel(qp: QP, rng: Random, z: Array) -> QP:
    """Two opposite active rows at a small angle, with large multipliers."""
    angle, force = 10.0 ** rng.uniform(-9, -2), 10.0 ** rng.uniform(0, 8)
    g, e = rng.integers(-8, 9, (2, qp.n)) / 4
    G = np.stack([g, -g - angle * e])
    return replace(with_rows(qp, G, G @ z), p=qp.p - force * (G[0] + G[1]))


def contradiction(qp: QP, rng: Random, z: Array) -> QP:
    """Two rows that contradict each other by 1 to 1e-12, or just do not."""
    g = rng.integers(-8, 9, qp.n) / 4
    gap = rng.choice([-1.0, 1.0]) * 10.0 ** rng.choice([0, -2, -4, -6, -8, -10, -12])
    at = float(g @ z)
    factor = float(rng.choice([1.0, 1.0, 2.0, 1e4]))
    return with_rows(qp, np.stack([g, -factor * g]), np.array([at, -factor * (at + gap)]))


def open_direction(qp: QP, rng: Random, z: Array) -> QP:
    """A direction without curvature, along which the objective may decrease."""
    j = rng.integers(qp.n)
    Q, p = qp.Q, qp.p.copy()
    if Q is not None:
        Q = Q.copy()
        Q[j], Q[:, j] = 0.0, 0.0
    p[j] = float(rng.choice([-1.0, 1.0, 1e-6, 0.0]))
    return replace(qp, Q=Q, p=p)


def empty_rows(qp: QP, rng: Random, z: Array) -> QP:
    """A row of zeros, and a variable in no row."""
    side = float(rng.choice([0.0, 1.0, 1e9, 0.0, -1.0], p=[0.4, 0.2, 0.2, 0.1, 0.1]))
    qp = with_rows(qp, np.zeros((1, qp.n)), np.array([side]))
    G = qp.G.copy()
    G[:, rng.integers(qp.n)] = 0.0
    return replace(qp, G=G)


def no_rows(qp: QP, rng: Random, z: Array) -> QP:
    """Blocks with no rows at all, as tensors."""
    n = qp.n
    return replace(qp, G=np.zeros((0, n)), h=np.zeros(0), A=np.zeros((0, n)), b=np.zeros(0), lower=None)


def equal_bounds(qp: QP, rng: Random, z: Array) -> QP:
    """Variables fixed by their bounds; some bounds cross."""
    width = rng.choice([0.0, 1.0, -1e-9, -1.0], size=qp.n, p=[0.5, 0.46, 0.02, 0.02])
    return replace(qp, lb=z, ub=z + width)


def not_a_number(qp: QP, rng: Random, z: Array) -> QP:
    name = str(rng.choice(sorted(qp.blocks)))
    block = getattr(qp, name).copy()
    if block.size:
        block.flat[rng.integers(block.size)] = rng.choice([np.nan, np.inf, -np.inf])
    return replace(qp, **{name: block})


def indefinite(qp: QP, rng: Random, z: Array) -> QP:
    return qp if qp.Q is None else replace(qp, Q=qp.Q - (np.abs(qp.Q).sum() + 1.0) * np.eye(qp.n))


def no_solution(qp: QP, rng: Random, z: Array) -> QP:
    """Remove the solution without changing the shape: crossed bounds, opposite rows, or an unbounded direction."""
    if qp.lb is not None and qp.ub is not None and rng.random() < 0.5:
        return replace(qp, lb=qp.ub + 1.0)
    if qp.G is not None and len(qp.G) > 1:
        G, h = qp.G.copy(), qp.h.copy()
        G[1], h[1] = -G[0], -h[0] - 1.0
        return replace(qp, G=G, h=h)
    return qp if qp.Q is None else replace(qp, Q=0.0 * qp.Q)


KINDS: dict[str, Kind] = {
    "ordinary": Kind(),
    "linear": Kind(rank="none"),
    "singular": Kind(rank="low"),
    "weak": Kind(weak=1),
    "weak, singular": Kind(weak=2, rank="low"),
    "vertex": Kind(rank="none", weak=2),
    "origin": Kind(origin=True, weak=1),
    "duplicate rows": Kind((duplicate_rows,)),
    "pairs of rows": Kind((pair_of_rows,)),
    "pairs, linear": Kind((pair_of_rows, duplicate_rows), rank="none"),
    "dependent equalities": Kind((dependent_equalities,)),
    "distant rows": Kind((distant_rows,)),
    "distant rows, linear": Kind((distant_rows,), rank="none"),
    "scaled rows": Kind((scaled_rows,)),
    "scaled columns": Kind((scaled_columns,)),
    "scaled costs": Kind((scaled_costs,)),
    "scaled rows, linear": Kind((scaled_rows, scaled_costs), rank="none"),
    "scaled all": Kind((scaled_rows, scaled_columns, scaled_costs), rank="low"),
    "stiff": Kind((stiff,)),
    "uneven forces": Kind(rank="low", uneven=True),
    "uneven forces, linear": Kind((distant_rows,), rank="none", uneven=True),
    "large forces": Kind((nearly_parallel,)),
    "large forces, scaled": Kind((nearly_parallel, scaled_rows), rank="low"),
    "contradiction": Kind((contradiction,)),
    "contradiction, linear": Kind((contradiction, scaled_rows), rank="none"),
    "open direction": Kind((open_direction,), rank="low"),
    "empty rows": Kind((empty_rows,)),
    "no rows": Kind((no_rows,)),
    "equal bounds": Kind((equal_bounds,)),
    "not a number": Kind((not_a_number,)),
    "indefinite": Kind((indefinite,)),
}
#: modifiers for a single sample of a batch
SPOILERS: tuple[Modifier, ...] = (not_a_number, indefinite, no_solution)
_MIXED = (duplicate_rows, pair_of_rows, distant_rows, scaled_rows, scaled_columns, scaled_costs, contradiction)


def draw_kind(rng: Random, name: str) -> Kind:
    if name != "mixed":
        return KINDS[name]
    chosen = rng.choice(len(_MIXED), size=2, replace=False)
    rank = str(rng.choice(["full", "low", "none"]))
    return Kind(tuple(_MIXED[i] for i in chosen), rank, int(rng.integers(2)))


def draw_batch(rng: Random, name: str, largest: int = 5) -> list[QP]:
    """A batch of one kind: its samples may share matrices, and one may be spoiled."""
    kind = draw_kind(rng, name)
    shape = draw_shape(rng, kind, largest)
    count = int(rng.choice([1, 3, 4], p=[0.3, 0.4, 0.3]))
    samples = []
    for _ in range(count):
        qp, z = draw_program(rng, kind, shape)
        for modifier in kind.modifiers:
            qp = modifier(qp, rng, z)
        samples.append(qp)
    if count > 1 and rng.random() < 0.3:  # share matrices, but not costs and bounds
        first = samples[0]
        samples = [replace(qp, Q=first.Q, G=first.G, A=first.A, b=first.b) for qp in samples]
    if count > 1 and rng.random() < 0.3:
        k = rng.integers(count)
        samples[k] = SPOILERS[rng.integers(len(SPOILERS))](samples[k], rng, np.zeros(shape.n))
    return samples
