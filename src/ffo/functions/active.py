"""Which inequalities are active: slacks and multipliers compared in natural units.

Inequality i is active if its slack s_i = -h_i is smaller than tau_i lam_i, with

    tau_i = |a_i|^2 l / f,   l = max(|y|, |s_i| / |a_i|),   f = max(|grad g|, |H| l, lam_i |a_i|).

The norms |a_i| of the rows of the Jacobian, which is never formed, are estimated from products with
random vectors, E (J z)_i^2 = |a_i|^2: only their order of magnitude matters. |H| is the size of H z for
random signs z: the change of the gradient over a unit length, which gives a scale where gradients vanish.
All this is measured in units of the variables (`units`): y stands for y / d, gradients and rows for d times these.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ffo.functions.problem import Tensor
from ffo.functions.products import Constraints
from ffo.kernels.point import FAR
from ffo.probes import PROBE

PROBES = 8
#: least assumed size of the solution, relative to that of all slacks
VANISHING = 1e-3
#: length of a Newton step from y = 0 that may be due to rounding errors of a gradient that vanishes
NOTHING = 1e-12


@dataclass(frozen=True)
class Scale:
    """Natural units: rows (batch, k) norms of the Jacobian's rows, primal l and dual f (batch,), all measured in units
    (batch, n) of the variables."""

    rows: Tensor
    primal: Tensor
    dual: Tensor
    units: Tensor

    @property
    def tau(self) -> Tensor:
        """(batch, k)."""
        return self.rows**2 * (self.primal / self.dual).unsqueeze(1)


def generator(like: Tensor) -> torch.Generator:
    """The same random numbers at every call."""
    return torch.Generator(device=like.device).manual_seed(PROBE)


def row_norms(constraints: Constraints, y: Tensor, units: Tensor | None = None) -> Tensor:
    """(batch, k) estimates of the norms of the rows of the Jacobian; 1 for rows of zeros. Units are those of variables,
    (batch, n)."""
    source = generator(y)
    squared = torch.zeros_like(constraints.value)
    if not squared.shape[1]:
        return squared
    for _ in range(PROBES):
        z = torch.randn(y.shape, generator=source, dtype=y.dtype, device=y.device)
        squared += constraints.push(z if units is None else units * z) ** 2 / PROBES
    positive = squared > 0
    typical = torch.where(positive, squared, 0.0).sum(1) / positive.sum(1).clamp_min(1)
    typical = torch.where(typical > 0, typical, torch.ones_like(typical))
    return torch.where(positive, squared, typical.unsqueeze(1)).sqrt()


def scale(
    y: Tensor, gradient: Tensor, constraints: Constraints, multipliers: Tensor, curvature: Tensor, units: Tensor
) -> Scale:
    """Sizes at a point; `gradient` of the objective (batch, n), `curvature` |DHD| (batch,), units d (batch, n).

    Where y vanishes, slacks replace it, up to the length of a Newton step, or FAR times y if there is none: a single
    distant constraint must not set the scale. Where these vanish too, it is the step itself, unless that is rounding.
    """
    rows = row_norms(constraints, y, units)
    y, gradient = y / units, gradient * units
    slack, length = VANISHING * largest(constraints.value / rows), largest(y)
    step = largest(gradient) / curvature
    reach = torch.where(step > 0, step, FAR * length)
    primal = torch.maximum(length, torch.where(reach > 0, torch.minimum(slack, reach), slack))
    primal = torch.where(primal > 0, primal, torch.where(step > NOTHING, step, 1.0))
    dual = torch.maximum(largest(gradient), largest(multipliers * rows))
    dual = torch.maximum(dual, curvature * primal)
    return Scale(rows, primal, torch.where(dual > 0, dual, torch.ones_like(dual)), units)


def largest(v: Tensor) -> Tensor:
    """(batch,) largest magnitude of each row; 0 for empty rows."""
    return v.abs().amax(1) if v.shape[1] else v.new_zeros(len(v))


@dataclass(frozen=True)
class ActiveSet:
    """Constraints held as equalities at a point.

    Attributes:
        held: (batch, k) equalities and active inequalities.
        multipliers: (batch, k) zero except on held rows, nonnegative on inequalities.
        margin: (batch,) distance of the nearest inequality to a change of classification, relative to its size.
    """

    held: Tensor
    multipliers: Tensor
    margin: Tensor


def active_set(value: Tensor, multipliers: Tensor, inequalities: int, sizes: Scale) -> ActiveSet:
    """Classify at constraint values c and multipliers (batch, k)."""
    m = inequalities
    tau = sizes.tau[:, :m]
    distance = -value[:, :m] - tau * multipliers[:, :m]  # w = s - tau lam
    active = distance < 0
    held = torch.ones_like(value, dtype=torch.bool)
    held[:, :m] = active
    cleaned = multipliers.clone()
    cleaned[:, :m] = torch.where(active, -distance / tau, torch.zeros_like(tau))
    relative = distance.abs() / (sizes.rows[:, :m] * sizes.primal.unsqueeze(1))
    margin = relative.amin(1) if m else torch.full_like(sizes.primal, torch.inf)
    return ActiveSet(held, cleaned, margin)
