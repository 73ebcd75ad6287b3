"""Nonsmooth constrained bilevel problems whose Goldstein stationary points are known.

Lower levels are quadratic programs and, of the disc, a second-order cone program, solved for a batch of x at once. All
hyperobjectives have the Lipschitz constant 1 (on the simplex: at most the distance of the start from the target).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import torch
from scipy.optimize import nnls

from ffo.torch import FFOLayer, FFOQPLayer, Smoothing

Array = np.ndarray
D = torch.float64
#: half width of the perturbation of right-hand sides in the smoothed problem
RHO = 0.5
#: slope of the valley's floor as a multiple of epsilon, and the total drop along it
FALL, DEPTH = 1.2, 0.5


@dataclass(frozen=True)
class BilevelProblem:
    """A bilevel problem. Each row of a batch has its own x and epsilon.

    Attributes:
        layer: x (batch, d), epsilon (batch,) -> y (batch, n), computed by a layer of this package.
        upper: x, y, epsilon -> values (batch,).
        distance: x (d,), delta, epsilon -> distance of 0 from the Goldstein subdifferential of radius delta at x,
            computed without a layer.
        start: a random starting point (d,).
        gap: upper bound on F(start) - inf F, over the points that are reached from there.
        family: whether the problem depends on epsilon.
        noisy: whether gradients are random (smoothing with one draw).
    """

    dimension: int
    delta: float
    lipschitz: float
    gap: float
    start: Callable[[np.random.Generator], Array]
    layer: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    upper: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    distance: Callable[[Array, float, float], float]
    family: bool = False
    noisy: bool = False

    def values(self, x: torch.Tensor, epsilon: torch.Tensor) -> torch.Tensor:
        """F of every row, differentiable in x."""
        return self.upper(x, self.layer(x, epsilon), epsilon)


def least_norm(gradients: Array) -> float:
    """Distance of 0 from the convex hull of the rows."""
    # Any weight of the row that wants the coefficients to sum to one gives multiples of the same coefficients.
    A = np.vstack([gradients.T, np.ones((1, len(gradients)))])
    weights, _ = nnls(A, np.concatenate([np.zeros(gradients.shape[1]), [1.0]]))
    return float(np.linalg.norm(gradients.T @ (weights / weights.sum())))


def distance_by_cells(
    cuts: Sequence[Sequence[float]], slopes: Sequence[Sequence[float]]
) -> Callable[[Array, float], float]:
    """Goldstein distance of a separable piecewise linear function.

    cuts[i] are the kinks of coordinate i, slopes[i] the slopes between them. The gradients within distance delta of x
    are those of the cells (products of intervals) within this distance.
    """
    edges = [np.concatenate([[-np.inf], c, [np.inf]]) for c in cuts]

    def distance(x: Array, delta: float) -> float:
        distances = [np.maximum(np.maximum(e[:-1] - t, t - e[1:]), 0.0) for e, t in zip(edges, x, strict=True)]
        near = [
            cell
            for cell in itertools.product(*(range(len(s)) for s in slopes))
            if sum(a[k] ** 2 for a, k in zip(distances, cell, strict=True)) <= delta**2
        ]
        return least_norm(np.array([[s[k] for s, k in zip(slopes, cell, strict=True)] for cell in near]))

    return distance


def _rows(values: float | Sequence[float], x: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(values, dtype=D).expand(len(x), -1)


def kink() -> BilevelProblem:
    """The paper's example g = (y - a)^2 / 2, h = y - a x, a = 2: F(x) = x - y = |x - 1| - 1."""
    qp, one = FFOQPLayer(), torch.ones(1, 1, dtype=D)
    known = distance_by_cells([[1.0]], [[-1.0, 1.0]])
    return BilevelProblem(
        dimension=1,
        delta=0.25,
        lipschitz=1.0,
        gap=1.2,
        start=lambda rng: 1 + rng.choice([-1, 1]) * rng.uniform(0.8, 1.2, 1),
        layer=lambda x, epsilon: qp(one, _rows([-2.0], x), one, 2 * x),
        upper=lambda x, y, epsilon: (x - y)[:, 0],
        distance=lambda x, delta, epsilon: known(x, delta),
    )


def corners() -> BilevelProblem:
    """y = x projected on the unit box: F(x) = w'(x - 2y), with a ridge at x_i = 0 and a valley at x_i = 1."""
    w = np.array([0.7, 0.5, 0.4, 0.3])
    w /= np.linalg.norm(w)
    weights, qp = torch.tensor(w, dtype=D), FFOQPLayer()
    eye = torch.eye(4, dtype=D)
    known = distance_by_cells([[0.0, 1.0]] * 4, [[v, -v, v] for v in w])
    return BilevelProblem(
        dimension=4,
        delta=0.25,
        lipschitz=1.0,
        gap=float(w.sum()) * 0.8,
        start=lambda rng: rng.uniform(0.3, 0.5, 4),
        layer=lambda x, epsilon: qp(eye, -x, lb=_rows([0.0] * 4, x), ub=_rows([1.0] * 4, x)),
        upper=lambda x, y, epsilon: (x - 2 * y) @ weights,
        distance=lambda x, delta, epsilon: known(x, delta),
    )


def simplex() -> BilevelProblem:
    """F(x) = |y - t|^2 / 2, y = x projected on {y >= 0, sum y <= 1}, t on a face: F = 0 where y(x) = t."""
    target = np.array([0.35, 0.65, 0.0])
    t, qp = torch.tensor(target, dtype=D), FFOQPLayer()
    eye, ones, one = torch.eye(3, dtype=D), torch.ones(1, 3, dtype=D), torch.ones(1, dtype=D)
    around = np.random.default_rng(0).standard_normal((4000, 3))
    around *= (np.random.default_rng(1).uniform(0, 1, (4000, 1)) ** (1 / 3)) / np.linalg.norm(around, axis=1)[:, None]

    def layer(x: torch.Tensor, epsilon: torch.Tensor) -> torch.Tensor:
        return qp(eye, -x, ones, one, lb=_rows([0.0] * 3, x))

    def distance(x: Array, delta: float, epsilon: float) -> float:
        """From the gradients at 4000 points of the ball: an upper bound, and a close one in three dimensions."""
        points = torch.tensor(x + delta * around, dtype=D, requires_grad=True)
        y = _simplex_by_hand(points)
        (g,) = torch.autograd.grad(0.5 * (y - t).square().sum(), points)
        return least_norm(g.numpy())

    return BilevelProblem(
        dimension=3,
        delta=0.1,
        lipschitz=1.0,
        gap=0.5,
        start=lambda rng: np.array([0.9, 0.15, 0.2]) + rng.uniform(-0.05, 0.05, 3),
        layer=layer,
        upper=lambda x, y, epsilon: 0.5 * (y - t).square().sum(1),
        distance=distance,
    )


def _simplex_by_hand(x: torch.Tensor) -> torch.Tensor:
    """Projection of each row on {y >= 0, sum y <= 1}, by sorting."""
    ordered = x.sort(dim=1, descending=True).values
    count = torch.arange(1, x.shape[1] + 1, dtype=D)
    shifts = (ordered.cumsum(1) - 1) / count
    positive = (ordered > shifts).sum(1, keepdim=True)
    on_face = (x - shifts.gather(1, positive - 1)).clamp(min=0)
    inside = x.clamp(min=0)
    return torch.where(inside.sum(1, keepdim=True) <= 1, inside, on_face)


def disc() -> BilevelProblem:
    """y = x projected on the unit disc, a = (1, 0): F(x) = a'(x - 2y), least at x = a on the half plane a'x >= 0.

    With x = r (cos t, sin t), F is -r cos t inside and (r - 2) cos t outside; its gradient is -a inside, and outside
    a - 2 (a - u u'a) / r with u = x / r, of norm at most one.
    """
    y, x = cp.Variable(2), cp.Parameter(2)
    project = FFOLayer(cp.Problem(cp.Minimize(0.5 * cp.sum_squares(y - x)), [cp.norm(y, 2) <= 1]), [x], [y])
    turns, radii = np.linspace(0, 2 * np.pi, 240, endpoint=False), np.linspace(0, 1, 41)
    circle = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    ball = (radii[:, None, None] * circle).reshape(-1, 2)

    def distance(x: Array, delta: float, epsilon: float) -> float:
        """From the gradients on a grid of the ball and, if the ball meets it, of the edge of the disc."""
        arc = circle[np.linalg.norm(circle - x, axis=1) <= delta]
        near = np.concatenate([x + delta * ball, arc])
        length = np.linalg.norm(near, axis=1)
        r, u = np.maximum(length, 1.0)[:, None], near / np.maximum(length, 1e-300)[:, None]
        a = np.array([[1.0, 0.0]])
        outside = (a - 2 * (a - u * u[:, :1]) / r)[length >= 1 - 1e-12]
        inside = -a if length.min() < 1 else np.zeros((0, 2))
        return least_norm(np.concatenate([outside, inside]))

    return BilevelProblem(
        dimension=2,
        delta=0.25,
        lipschitz=1.0,
        gap=1.0,
        start=lambda rng: np.array([rng.uniform(0.1, 0.3), rng.choice([-1, 1]) * rng.uniform(0.3, 0.5)]),
        layer=lambda x, epsilon: project(x)[0],
        upper=lambda x, y, epsilon: (x - 2 * y)[:, 0],
        distance=distance,
    )


def valley() -> BilevelProblem:
    """A worst case for the theory: a valley with walls of slope about 1, whose floor has the slope FALL epsilon.

    y = min(x, (0, R)) with R = DEPTH / (FALL epsilon): F(x) = c |x_1| - FALL epsilon min(x_2, R). The floor falls by
    DEPTH in total. No window on it is stationary, though only just, so that as many windows are needed as the theory
    allows.
    """
    qp, eye = FFOQPLayer(), torch.eye(2, dtype=D)

    def layer(x: torch.Tensor, epsilon: torch.Tensor) -> torch.Tensor:
        return qp(eye, -x, ub=torch.stack([torch.zeros_like(epsilon), DEPTH / (FALL * epsilon)], dim=1))

    def upper(x: torch.Tensor, y: torch.Tensor, epsilon: torch.Tensor) -> torch.Tensor:
        fall = FALL * epsilon
        return (1 - fall**2).sqrt() * (x[:, 0] - 2 * y[:, 0]) - fall * y[:, 1]

    def distance(x: Array, delta: float, epsilon: float) -> float:
        fall = FALL * epsilon
        wall = float(np.sqrt(1 - fall**2))
        return distance_by_cells([[0.0], [DEPTH / fall]], [[-wall, wall], [-fall, 0.0]])(x, delta)

    return BilevelProblem(
        dimension=2,
        delta=0.25,
        lipschitz=1.0,
        gap=DEPTH + 0.05,
        start=lambda rng: np.array([rng.uniform(-0.05, 0.05), 0.0]),
        layer=layer,
        upper=upper,
        distance=distance,
        family=True,
    )


def smoothed_kink() -> BilevelProblem:
    """The kink with its right-hand side perturbed by U(-RHO, RHO), one draw per call: F' = 2 (x - 1) / RHO."""
    qp = FFOQPLayer(smoothing=Smoothing(RHO, draws=1, seed=0))
    plain, one = kink(), torch.ones(1, 1, dtype=D)

    def distance(x: Array, delta: float, epsilon: float) -> float:
        return float(np.clip(2 * (abs(x[0] - 1) - delta) / RHO, 0.0, 1.0))

    return BilevelProblem(
        dimension=1,
        delta=0.05,
        lipschitz=1.0,
        gap=0.3,
        start=lambda rng: 1 + rng.choice([-1, 1]) * rng.uniform(0.25, 0.3, 1),
        layer=lambda x, epsilon: qp(one, _rows([-2.0], x), one, 2 * x),
        upper=plain.upper,
        distance=distance,
        noisy=True,
    )


#: by the name of their lower level in `ffo.lab.rows.LOWER_LEVELS`
PROBLEMS = {
    "kink": kink,
    "corners": corners,
    "simplex": simplex,
    "valley": valley,
    "smoothed": smoothed_kink,
    "disc": disc,
}
