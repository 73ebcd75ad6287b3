"""Gradients against central differences of tight solves.

The reference solves the problem for given values, by a special method if `benchmarks.exact` has one, else
with Clarabel at the tightest tolerances it reaches, and differentiates the loss with the five-point formula.
A difference is only as good as the smoothness of the loss over its stencil (an active set may change inside
it) and the accuracy of the solves. So each derivative is taken with several steps, and the one where two
neighbouring steps agree best is kept; their disagreement is reported as the uncertainty of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import torch

from benchmarks.peers import Contender, Step
from benchmarks.problems import Case

Array = np.ndarray
STEPS = (2e-2, 1e-2, 5e-3, 2.5e-3, 1.2e-3, 6e-4, 3e-4, 1.5e-4)
TOLERANCES = (1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8)


@dataclass(frozen=True)
class Accuracy:
    """Largest over the samples of |computed - reference| / |reference|, over the probed directions."""

    case: str
    label: str
    error: float = np.nan
    uncertainty: float = np.nan
    reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Probe:
    """Reference derivatives of one sample's loss along unit directions in parameter space."""

    sample: int
    directions: tuple[dict[str, Array], ...]
    derivatives: Array
    uncertainty: float


def probes(case: Case, seed: int = 0, samples: int = 3, directions: int = 4) -> list[Probe]:
    """Reference derivatives along random directions, half of them single coordinates."""
    rng = np.random.default_rng([seed, 2])
    data, weights = case.data(seed), case.weights(seed)
    found = []
    for k in range(min(samples, len(weights))):
        values = case.sample(data, k)
        chosen = tuple(_direction(case, values, rng, i % 2 == 0) for i in range(directions))
        results = [_derivative(case, values, d, weights[k]) for d in chosen]
        derivatives = np.array([r[0] for r in results])
        doubt = np.linalg.norm([r[1] for r in results])
        found.append(Probe(k, chosen, derivatives, _relative(doubt, derivatives)))
    return found


def compare(label: str, contender: Contender, case: Case, reference: list[Probe], seed: int = 0) -> Accuracy:
    """A contender's gradient, at its default settings, against the reference."""
    try:
        step = contender(case)
        errors = [_error(step, case, probe, seed) for probe in reference]
    except Exception as error:
        return Accuracy(case.name, label, reason=f"{type(error).__name__}: {error}".splitlines()[0][:160])
    return Accuracy(case.name, label, max(errors), max(p.uncertainty for p in reference))


def _error(step: Step, case: Case, probe: Probe, seed: int) -> float:
    tensors, weights = step.tensors(case.data(seed)), torch.tensor(case.weights(seed))
    if set(case.differentiate) & set(case.shared):  # their gradient is a sum: only this sample counts
        others = torch.arange(len(weights)) != probe.sample
        weights[others] = 0.0
    gradients = step.backward(tensors, step.forward(tensors), weights)
    own = {name: g if name in case.shared else g[probe.sample] for name, g in gradients.items()}
    computed = [
        sum(float(np.vdot(own[name].numpy(), d)) for name, d in direction.items()) for direction in probe.directions
    ]
    return _relative(np.linalg.norm(computed - probe.derivatives), probe.derivatives)


def _relative(error: float, derivatives: Array) -> float:
    """The error divided by the norm of the derivatives, which is zero at a vertex of a linear program."""
    return float(error / (np.linalg.norm(derivatives) or 1.0))


def _direction(case: Case, values: Mapping[str, Array], rng: np.random.Generator, dense: bool) -> dict[str, Array]:
    draw: Callable[[Array], Array] = rng.standard_normal if dense else lambda shape: _coordinate(rng, shape)
    direction = {name: np.asarray(draw(values[name].shape)) for name in case.differentiate}
    norm = np.sqrt(sum(np.sum(d**2) for d in direction.values()))
    return {name: d / norm for name, d in direction.items()}


def _coordinate(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    unit = np.zeros(shape)
    unit.flat[rng.integers(unit.size)] = 1.0
    return unit


def _derivative(
    case: Case, values: Mapping[str, Array], direction: Mapping[str, Array], weights: Array
) -> tuple[float, float]:
    """(derivative, disagreement of the two steps that agree best)."""

    def loss(t: float) -> float:
        moved = {k: v + t * direction.get(k, 0.0) for k, v in values.items()}
        return float(np.vdot(weights, tight_solution(case, moved)))

    def difference(h: float) -> float:
        return (8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h)

    best = (np.nan, np.inf)
    previous = difference(STEPS[0])
    for h in STEPS[1:]:
        current = difference(h)
        if abs(current - previous) < best[1]:
            best = (current, abs(current - previous))
        if best[1] <= 1e-8 * abs(best[0]):
            break
        previous = current
    return best


def tight_solution(case: Case, values: Mapping[str, Array]) -> Array:
    """The solution of one sample by the case's own method, or at the smallest tolerance that the solver reaches."""
    if case.exact:
        return case.exact(values)
    problem, variable = case.concrete(values)
    for tolerance in TOLERANCES:
        goals = {f"{prefix}tol_{k}": tolerance for prefix in ("", "reduced_") for k in ("gap_abs", "gap_rel", "feas")}
        try:
            problem.solve(solver="CLARABEL", iterative_refinement_max_iter=50, **goals)
        except cp.SolverError:
            continue
        if problem.status == cp.OPTIMAL:
            return variable.value
    raise RuntimeError(f"no tight solve of the reference problem ({problem.status})")
