"""Random mixes of all cones around a known point of a chosen face."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
from tests.catalogue import Family

Array = np.ndarray
Random = np.random.Generator

TOUCHING = "cones, touching"
MIXES = ("cones", "cones, weak", "cones, linear", TOUCHING)


@dataclass(frozen=True, kw_only=True)
class Touching(Family):
    """Programs min 1/2 x'Px + q'x subject to cones and redundant constraints whose boundaries touch theirs. All have
    the same solution; each q has other forces.

    Attributes:
        P: (n, n).
        at: (n,) the solution.
        normals: (blocks, n) gradients of the cones' boundary functions there.
        curvatures: (blocks, n, n) their Hessians.
    """

    P: Array
    at: Array
    normals: Array
    curvatures: Array

    def moves(self, q: Array, dq: Array) -> Array:
        """(n,) derivative of the solution along a change of q: the redundant constraints do not matter, since the
        solution moves within the cones."""
        pull, J = self.P @ self.at + q, self.normals
        forces = np.linalg.lstsq(J.T, pull, rcond=None)[0]
        if np.abs(J.T @ forces - pull).max() > 1e-10 * np.abs(pull).max() or forces.min() <= 0:
            raise ValueError("not a solution")
        H = self.P - np.einsum("i,ijk->jk", forces, self.curvatures)
        K = np.block([[H, J.T], [J, np.zeros((len(J), len(J)))]])
        return np.linalg.solve(K, np.append(-dq, np.zeros(len(J))))[: len(q)]


def mix(rng: Random, kind: str) -> Family:
    """A random program whose blocks s = b - Ax lie on chosen faces; each draw has its own faces, x and multipliers."""
    n = int(rng.integers(2, 5))
    makers = [BLOCKS[i] for i in rng.choice(len(BLOCKS), size=int(rng.integers(1, 4)))]
    makers = [*makers, nonneg] if n > 2 else makers
    sizes = [len(make(rng, "interior")[0]) for make in makers]
    m = sum(sizes)
    rank = 0 if kind.endswith("linear") else n
    R, A = rng.normal(size=(rank, n)), rng.normal(size=(m, n))
    q, b, x = cp.Parameter(n), cp.Parameter(m), cp.Variable(n)
    cost = q @ x + (0.5 * cp.sum_squares(R @ x) if rank else 0.0)
    faces = ("interior", "boundary", "weak") if kind.endswith("weak") else ("interior", "boundary", "boundary")
    parts = np.split(np.arange(m), np.cumsum(sizes)[:-1])
    rows = [make.constraint((b - A @ x)[part]) for make, part in zip(makers, parts, strict=True)]

    def draw(rng: Random) -> list[Array]:
        pairs = [make(rng, str(rng.choice(faces))) for make in makers]
        slack, force = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
        at = rng.normal(size=n)
        return [-(R.T @ (R @ at) + A.T @ force), A @ at + slack]

    return Family(cp.Problem(cp.Minimize(cost), rows), [q, b], [x], draw)


def mix_touching(rng: Random, copies: float = 0.3) -> Touching:
    """Curved blocks on their boundaries, and redundant constraints that touch them; a fraction `copies` of these are
    the same cones in other units."""
    n = int(rng.integers(3, 6))
    blocks = [BLOCKS[i] for i in rng.choice(range(1, len(BLOCKS)), size=int(rng.integers(1, 3)))]
    R, at, q, x = rng.normal(size=(n, n)), rng.normal(size=n), cp.Parameter(n), cp.Variable(n)
    As, pairs = [rng.normal(size=(3, n)) for _ in blocks], [block(rng, "boundary") for block in blocks]
    rows, normals, curvatures = [], [], []
    for block, A, (s, y) in zip(blocks, As, pairs, strict=True):
        slack = A @ (at - x) + s
        rows += [block.constraint(slack), *redundant(rng, block, slack, y, copies)]
        g, H = block.bend(s)
        normals.append(-A.T @ g)
        curvatures.append(A.T @ H @ A)

    def draw(rng: Random) -> list[Array]:
        return [-R.T @ (R @ at) - sum(rng.uniform(0.3, 2) * A.T @ y for A, (_, y) in zip(As, pairs, strict=True))]

    problem = cp.Problem(cp.Minimize(q @ x + 0.5 * cp.sum_squares(R @ x)), rows)
    bent = {"normals": np.array(normals), "curvatures": np.array(curvatures)}
    return Touching(problem, [q], [x], draw, P=R.T @ R, at=at, **bent)


def redundant(rng: Random, block: Block, s: cp.Expression, y: Array, copies: float) -> list[cp.Constraint]:
    """Constraints whose boundaries touch that of a cone at points with the multiplier y: half-spaces, and the cone
    itself in other units."""
    units = 10.0 ** rng.integers(-2, 3, size=int(rng.integers(1, 3)))
    return [block.constraint(k * s) if rng.random() < copies else k * (y @ s) >= 0 for k in units]


@dataclass(frozen=True)
class Block:
    """A cone: its constraint, a way to draw s on its boundary with a multiplier and a step inside, and gradient and
    Hessian of a function of s that is zero on the boundary and positive inside."""

    constraint: Callable[[cp.Expression], cp.Constraint]
    draw: Callable[[Random], tuple[Array, Array, Array]]
    bend: Callable[[Array], tuple[Array, Array]]

    def __call__(self, rng: Random, face: str) -> tuple[Array, Array]:
        """(slack, multiplier) on a face."""
        s, y, inside = self.draw(rng)
        return (s + inside, 0 * y) if face == "interior" else (s, y if face == "boundary" else 0 * y)


def draw_nonneg(rng: Random) -> tuple[Array, Array, Array]:
    return np.zeros(2), rng.uniform(0.3, 2, 2), rng.uniform(0.3, 2, 2)


def draw_second_order(rng: Random) -> tuple[Array, Array, Array]:
    u = rng.normal(size=2)
    u /= np.linalg.norm(u)
    return rng.uniform(0.3, 2) * np.r_[1, u], rng.uniform(0.3, 2) * np.r_[1, -u], np.r_[rng.uniform(0.3, 1), 0, 0]


def bend_second_order(s: Array) -> tuple[Array, Array]:
    """Of s0^2 - |s1|^2."""
    J = np.diag([1.0, -1.0, -1.0])
    return 2 * J @ s, 2 * J


def draw_exponential(rng: Random) -> tuple[Array, Array, Array]:
    r, a, m = rng.uniform(-1, 1), rng.uniform(0.3, 2), rng.uniform(0.3, 2)
    return a * np.array([r, 1, np.exp(r)]), m * np.array([-1, r - 1, np.exp(-r)]), np.array([0, 0, rng.uniform(0.3, 1)])


def bend_exponential(s: Array) -> tuple[Array, Array]:
    """Of z - y exp(x/y)."""
    x, y, _ = s
    r, v = x / y, np.array([1.0, -x / y, 0.0])
    return np.exp(r) * np.array([-1.0, r - 1.0, np.exp(-r)]), -np.exp(r) / y * np.outer(v, v)


def draw_power(rng: Random) -> tuple[Array, Array, Array]:
    x, y = rng.uniform(0.3, 2, 2)
    z = x**0.4 * y**0.6
    return np.array([x, y, z]), rng.uniform(0.3, 2) * np.array([0.4 * z / x, 0.6 * z / y, -1]), np.array([0.5, 0.5, 0])


def bend_power(s: Array) -> tuple[Array, Array]:
    """Of x^0.4 y^0.6 - z, where z > 0."""
    x, y, _ = s
    v, mean = np.array([1 / x, -1 / y, 0.0]), x**0.4 * y**0.6
    return np.array([0.4 * mean / x, 0.6 * mean / y, -1.0]), -0.24 * mean * np.outer(v, v)


def draw_semidefinite(rng: Random) -> tuple[Array, Array, Array]:
    t = rng.uniform(0, np.pi)
    c, d = np.cos(t), np.sin(t)
    s, y = rng.uniform(0.3, 2) * np.array([c * c, c * d, d * d]), rng.uniform(0.3, 2) * np.array([d * d, -c * d, c * c])
    return s, y * np.array([1, 2, 1]), np.array([0.5, 0, 0.5])


def bend_semidefinite(s: Array) -> tuple[Array, Array]:
    """Of the determinant s0 s2 - s1^2."""
    return np.array([s[2], -2 * s[1], s[0]]), np.array([[0.0, 0.0, 1.0], [0.0, -2.0, 0.0], [1.0, 0.0, 0.0]])


def flat(s: Array) -> tuple[Array, Array]:
    raise TypeError("its boundary is not curved")


nonneg = Block(lambda s: s >= 0, draw_nonneg, flat)
BLOCKS = (
    nonneg,
    Block(lambda s: cp.SOC(s[0], s[1:]), draw_second_order, bend_second_order),
    Block(lambda s: cp.ExpCone(s[0], s[1], s[2]), draw_exponential, bend_exponential),
    Block(lambda s: cp.PowCone3D(s[0], s[1], s[2], 0.4), draw_power, bend_power),
    Block(lambda s: cp.bmat([[s[0], s[1]], [s[1], s[2]]]) >> 0, draw_semidefinite, bend_semidefinite),
)
