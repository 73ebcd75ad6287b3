"""Smoothing: perturbed copies of a batch, and the derivative of their mean in the perturbed data.

For xi normal with standard deviation c, d/dp E f(p + xi) = E[(f(p + xi) - baseline) xi] / c^2, whatever
f is; the baseline is the mean of the other draws, which keeps the estimate unbiased.
"""

from __future__ import annotations

import numpy as np

from ffo.cones.nonneg import Nonneg
from ffo.cones.psd import PSD
from ffo.cones.soc import SecondOrder
from ffo.engine.options import Smoothing
from ffo.errors import InputError
from ffo.program.cone import ConeProgram

Array = np.ndarray


class Sampler:
    """Random perturbations, reproducible from the seed."""

    def __init__(self, smoothing: Smoothing) -> None:
        self.smoothing = smoothing
        self._random = np.random.default_rng(smoothing.seed)

    def perturb(self, program: ConeProgram) -> tuple[ConeProgram, Array | None]:
        """Every sample `draws` times, consecutively, each perturbed independently; and the score
        xi / c^2 of each draw of the costs, (batch * draws, n)."""
        repeated = program.repeat(self.smoothing.draws)
        rows = perturbed_rows(program)
        radius, costs = self.smoothing.radius, self.smoothing.costs
        if radius:
            refuse_what_it_cannot_smooth(program, rows)
        b = repeated.b.copy()
        b[:, rows] += self._random.uniform(-radius, radius, size=(len(b), len(rows)))
        if not costs:
            return repeated.with_vectors(b=b), None
        noise = self._random.normal(size=repeated.q.shape)
        return repeated.with_vectors(q=repeated.q + costs * noise, b=b), noise / costs


def refuse_what_it_cannot_smooth(program: ConeProgram, rows: Array) -> None:
    """Raise if a perturbation of these rows would leave kinks as they are, or has nothing to act on."""
    if PSD in program.cones.kinds:
        raise InputError(
            "smoothing perturbs the right-hand sides of inequalities and the radii of norms; this problem has "
            "semidefinite constraints, whose kinks would remain: omit smoothing=, or perturb the costs with "
            "Smoothing(costs=...)"
        )
    if not len(rows):
        raise InputError(
            "smoothing perturbs the right-hand sides of inequalities and the radii of norms; this problem has "
            "neither: omit smoothing=, or perturb the costs with Smoothing(costs=...)"
        )


def centred(values: Array, draws: int) -> Array:
    """(batch * draws, ...) each minus the mean of the other draws of its sample."""
    by_draw = values.reshape(-1, draws, *values.shape[1:])
    return ((by_draw - by_draw.mean(axis=1, keepdims=True)) * (draws / (draws - 1))).reshape(values.shape)


def perturbed_rows(program: ConeProgram) -> Array:
    """Right-hand sides of scalar inequalities and radii of second-order cones."""
    rows = []
    for group in program.cones.groups:
        if isinstance(group.cone, Nonneg):
            rows.append(group.index.ravel())
        elif isinstance(group.cone, SecondOrder):
            rows.append(group.index[:, 0])
    return np.concatenate(rows) if rows else np.zeros(0, dtype=int)
