"""The error of Algorithm 1's hypergradient, against delta and against gradient evaluations.

Algorithm 1 taken literally, with only first-order solves, on a lower level that is not quadratic
(the ghost of a quadratic one is linear in delta, and has no truncation error):

    g(x, y) = y'Qy / 2 - (Bx)'y + sum exp(y - Cx),    lower <= y <= u + Ex

so that about half of the constraints are active. Both solves are projected gradient descent, which
converges linearly; multipliers are recovered from the gradient at its answer. The reference is the implicit
function theorem (the linear-constrained lemma) at a solution by Newton's method.

On layers, `backward="resolve"` is the same algorithm on a cone program: its ghost is already linearised,
so its error does not depend on delta; `Resolve(target="original")` perturbs the problem itself and takes
central differences, with an error like delta squared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.problems import entropy
from ffo.ghost.resolve import Resolve
from ffo.solvers.registry import get_solver
from ffo.torch import FFOLayer

Array = np.ndarray
DELTAS = np.geomspace(1e-7, 1e-1, 25)
#: relative accuracy of the inner solves
TOLERANCES = (1e-14, 1e-9, 1e-6)
SEEDS = tuple(range(5))
#: errors below this are rounding: a difference of gradients divided by the root of the machine's precision
ROUNDING = 3e-7
#: budgets of gradient evaluations of one inner solve
BUDGETS = tuple(range(10, 401, 15))


@dataclass(frozen=True)
class Lower:
    """The lower level, and an upper level |y - t|^2 / 2."""

    Q: Array
    B: Array
    C: Array
    E: Array
    u: Array
    lower: Array
    t: Array

    @classmethod
    def draw(cls, seed: int, n: int = 30, d: int = 6) -> Lower:
        rng = np.random.default_rng(seed)
        V = np.linalg.qr(rng.standard_normal((n, n)))[0]
        Q = (V * np.geomspace(1.0, 20.0, n)) @ V.T
        B, C, E = (0.5 * rng.standard_normal((n, d)) for _ in range(3))
        return cls(Q, 10 * B, C, 0.2 * E, np.full(n, 0.3), np.full(n, -0.6), rng.standard_normal(n))

    def gradient_y(self, x: Array, y: Array) -> Array:
        return self.Q @ y - self.B @ x + np.exp(y - self.C @ x)

    def gradient_x(self, x: Array, y: Array) -> Array:
        return -self.B.T @ y - self.C.T @ np.exp(y - self.C @ x)

    def hessian_y(self, x: Array, y: Array) -> Array:
        return self.Q + np.diag(np.exp(y - self.C @ x))

    def step(self, x: Array) -> float:
        """One over a bound on the Hessian's norm within the bounds on y."""
        return 1.0 / (20.0 + float(np.exp(self.u + self.E @ x - self.C @ x).max()))


def project_and_descend(
    problem: Lower, x: Array, free: Array | None, linear: Array, y: Array, evaluations: int, tolerance: float | None
) -> tuple[Array, int]:
    """Projected gradient descent on g + linear'y; with `free`, over these coordinates, the others fixed.

    Stops at a gradient of size `tolerance`; without one, after all evaluations.

    Returns the point and the gradient evaluations it took.
    """
    step, low, high = problem.step(x), problem.lower, problem.u + problem.E @ x
    for k in range(evaluations):
        moved = y - step * (problem.gradient_y(x, y) + linear)
        moved = np.clip(moved, low, high) if free is None else np.where(free, moved, y)
        done = tolerance is not None and np.abs(moved - y).max() <= tolerance * step
        y = moved
        if done:
            return y, k + 1
    return y, evaluations


def algorithm_one(
    problem: Lower, x: Array, delta: float | None, evaluations: int = 3000, tolerance: float | None = None
) -> tuple[Array, int]:
    """The hypergradient's second term v_x (equation for v_x of the paper), and gradient evaluations.

    delta None takes the square root of the inner accuracy, as the proof of the theorem does.
    """
    n = len(problem.u)
    none = np.zeros(n)
    y, used = project_and_descend(problem, x, None, none, np.zeros(n), evaluations, tolerance)
    gradient = problem.gradient_y(x, y)
    high = problem.u + problem.E @ x
    at_high, at_low = (y >= high) & (gradient < 0), (y <= problem.lower) & (gradient > 0)
    free = ~(at_high | at_low)
    multiplier = np.where(free, 0.0, -gradient)  # frozen in the ghost objective: grad g + h' lambda = 0
    if delta is None:
        delta = float(np.sqrt(max(np.linalg.norm(gradient[free]), 1e-15)))
    c = y - problem.t
    perturbed, more = project_and_descend(problem, x, free, delta * c, y, evaluations, tolerance)
    # multipliers of the ghost's constraints, from the stationarity of its Lagrangian
    ghost = np.where(free, 0.0, -(problem.gradient_y(x, perturbed) + multiplier + delta * c))
    moved = problem.gradient_x(x, perturbed) - problem.gradient_x(x, y)
    return (moved - problem.E.T @ np.where(at_high, ghost, 0.0)) / delta, used + more + 3


def reference(problem: Lower, x: Array) -> Array:
    """(dy/dx)' c by the implicit function theorem, at a point solved by Newton's method."""
    n = len(problem.u)
    y, _ = project_and_descend(problem, x, None, np.zeros(n), np.zeros(n), 3000, 1e-14)
    gradient, high = problem.gradient_y(x, y), problem.u + problem.E @ x
    at_high, at_low = (y >= high) & (gradient < 0), (y <= problem.lower) & (gradient > 0)
    free = ~(at_high | at_low)
    for _ in range(3):
        y[free] -= np.linalg.solve(problem.hessian_y(x, y)[np.ix_(free, free)], problem.gradient_y(x, y)[free])
    jacobian = np.zeros((n, len(x)))
    jacobian[at_high] = problem.E[at_high]
    mixed = -problem.B - np.exp(y - problem.C @ x)[:, None] * problem.C
    H = problem.hessian_y(x, y)
    right = mixed[free] + H[np.ix_(free, ~free)] @ jacobian[~free]
    jacobian[free] = -np.linalg.solve(H[np.ix_(free, free)], right)
    return jacobian.T @ (y - problem.t)


def relative(found: Array, expected: Array) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@dataclass(frozen=True)
class Errors:
    """Relative errors of the hypergradient.

    Attributes:
        by_delta: accuracy of the inner solves -> (seeds, deltas).
        calls, by_calls: gradient evaluations and errors, (seeds, budgets) each.
        on_layers: target of the perturbation -> (every second delta,), on the entropy problem by a layer.
    """

    by_delta: dict[float, Array]
    calls: Array
    by_calls: Array
    on_layers: dict[str, Array]

    @property
    def exponent(self) -> float:
        """Exponent of delta where truncation dominates."""
        rows = np.median(self.by_delta[min(TOLERANCES)], axis=0)
        rules = DELTAS >= 1e-5
        return float(np.polyfit(np.log(DELTAS[rules]), np.log(rows[rules]), 1)[0])

    @property
    def linearity(self) -> float:
        """The smallest R^2, over seeds, of a line through log error against calls, down to rounding."""
        pairs = ((c[e > ROUNDING], np.log(e[e > ROUNDING])) for c, e in zip(self.calls, self.by_calls, strict=True))
        return min(float(np.corrcoef(c, e)[0, 1] ** 2) for c, e in pairs)


def measure() -> Errors:
    return Errors(against_delta(), *against_calls(), on_layers())


def against_delta() -> dict[float, Array]:
    """Tolerance of the inner solves -> errors (seeds, deltas)."""
    errors: dict[float, list[list[float]]] = {tolerance: [] for tolerance in TOLERANCES}
    for seed in SEEDS:
        problem, x = instance(seed)
        expected = reference(problem, x)
        for tolerance in TOLERANCES:
            solved = [algorithm_one(problem, x, float(d), tolerance=tolerance)[0] for d in DELTAS]
            errors[tolerance].append([relative(v, expected) for v in solved])
    return {tolerance: np.array(rows) for tolerance, rows in errors.items()}


def against_calls() -> tuple[Array, Array]:
    """Gradient evaluations and errors, (seeds, budgets) each."""
    calls, errors = [], []
    for seed in SEEDS:
        problem, x = instance(seed)
        expected = reference(problem, x)
        found = [algorithm_one(problem, x, None, evaluations=budget) for budget in BUDGETS]
        calls.append([used for _, used in found])
        errors.append([relative(v, expected) for v, _ in found])
    return np.array(calls), np.array(errors)


def on_layers(deltas: Sequence[float] = tuple(DELTAS[::2])) -> dict[str, Array]:
    """The same on the entropy problem with a layer: target of the perturbation -> errors (deltas,)."""
    expected = _layer_gradient(backward="direct")
    solver = get_solver("CLARABEL", {"eps": 1e-11})
    errors = {}
    for target in ("ghost", "original"):
        ways = [Resolve(solver.solve, target=target, delta=float(d)) for d in deltas]  # type: ignore[arg-type]
        errors[target] = np.array([relative(_layer_gradient(backward=way), expected) for way in ways])
    return errors


def _layer_gradient(**options: Any) -> Array:
    """Gradient of a linear loss of the entropy problem's solution, in all of its parameters."""
    case = entropy()
    problem, parameters, variable = case.parametrised()
    layer = FFOLayer(problem, parameters, [variable], solver="CLARABEL", solver_args={"eps": 1e-11}, **options)
    values = case.data(0)
    tensors = [torch.tensor(values[p.name()], dtype=torch.float64, requires_grad=True) for p in parameters]
    (y,) = layer(*tensors)
    (y * torch.linspace(-1, 1, y.shape[-1], dtype=torch.float64)).sum().backward()
    return np.concatenate([t.grad.numpy().ravel() for t in tensors])


def instance(seed: int) -> tuple[Lower, Array]:
    return Lower.draw(seed), 0.5 * np.random.default_rng(100 + seed).standard_normal(6)
