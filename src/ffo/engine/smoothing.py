"""Constraint smoothing: perturbed copies of a batch."""

from __future__ import annotations

import numpy as np

from ffo.cones.nonneg import Nonneg
from ffo.cones.soc import SecondOrder
from ffo.engine.options import Smoothing
from ffo.program.cone import ConeProgram

Array = np.ndarray


class Sampler:
    """Draws of the right-hand sides, reproducible from the seed."""

    def __init__(self, smoothing: Smoothing) -> None:
        self.smoothing = smoothing
        self._random = np.random.default_rng(smoothing.seed)

    def perturb(self, program: ConeProgram) -> ConeProgram:
        """Every sample `draws` times, one after the other, each with its own perturbed b."""
        repeated = program.repeat(self.smoothing.draws)
        rows = perturbed_rows(program)
        radius = self.smoothing.radius
        b = repeated.b.copy()
        b[:, rows] += self._random.uniform(-radius, radius, size=(len(b), len(rows)))
        return repeated.with_vectors(b=b)


def perturbed_rows(program: ConeProgram) -> Array:
    """Right-hand sides of scalar inequalities and radii of second-order cones."""
    rows = []
    for group in program.cones.groups:
        if isinstance(group.cone, Nonneg):
            rows.append(group.index.ravel())
        elif isinstance(group.cone, SecondOrder):
            rows.append(group.index[:, 0])
    return np.concatenate(rows) if rows else np.zeros(0, dtype=int)
