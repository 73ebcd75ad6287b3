"""Units of variables that differ in scale by orders of magnitude: a diagonal d that makes them alike.

With y = d x, the Hessian of the Lagrangian in x is D H D and the rows of the Jacobian, each divided by its norm, are
E J D. Units are chosen such that every variable has a row of about unit norm in D H D or, if it has no curvature, in
D J'E: it is then as large as its constraints allow. Neither matrix is formed: norms of rows are those of products with
random vectors (Bradley and Murray, "Matrix-free approximate equilibration", 2011), and only their order of magnitude
matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ffo.functions.active import generator, largest, row_norms
from ffo.functions.problem import Tensor
from ffo.functions.products import Constraints, Curvature

#: agreement of two probes of the diagonal of H above which it is trusted as a preconditioner
AGREED = 0.3
#: ratio of the smallest row of H to the largest above which variables count as alike; if ten times smaller, residuals
#: that are ten times too large pass unnoticed
ALIKE = 1e-2
#: each round halves the logarithm of the error of the units
ROUNDS = 8


@dataclass(frozen=True)
class Metric:
    """How the Lagrangian curves at a point.

    Attributes:
        size, given: (batch,) |DHD| and |H|, the change of the gradient over a unit length.
        diagonal: (batch, n) positive diagonal close to H, for use as a preconditioner.
        units: (batch, n) of the variables: ones if they are alike.
        unlike: (batch,) whether they are not.
    """

    size: Tensor
    given: Tensor
    diagonal: Tensor
    units: Tensor
    unlike: Tensor


def metric(y: Tensor, constraints: Constraints, curvature: Callable[[Tensor], Curvature]) -> Metric:
    """The metric at y (batch, n); `curvature` gives products with H, by differences whose lengths are measured in the
    diagonal metric it gets."""
    ones = torch.ones_like(y)
    rows, diagonal = probe(y, curvature(ones))
    size, smallest = largest(rows), rows.amin(1)
    unlike = ~(smallest >= ALIKE * size) & (size > 0)
    if not bool(unlike.any()):
        return Metric(size, size, diagonal, ones, unlike)
    chosen = unlike.unsqueeze(1)
    units = torch.where(chosen, balance(y, constraints, curvature), 1.0)
    scaled = units * curvature(units**-2)(units * signs(y, generator(y)))
    within = torch.where(unlike, largest(scaled), size)
    return Metric(within, size, torch.where(chosen, units**-2, diagonal), units, unlike)


def probe(y: Tensor, H: Curvature) -> tuple[Tensor, Tensor]:
    """Magnitudes of H z for random signs z, and the diagonal of H where two probes of it agree, else ones; (batch, n).

    For random signs z, z * Hz = diag H + noise of the size of the off-diagonal entries.
    """
    source = generator(y)
    z = [signs(y, source) for _ in range(2)]
    found = [v * H(v) for v in z]
    rows = torch.maximum(found[0].abs(), found[1].abs())
    size = largest(rows)
    mean = 0.5 * (found[0] + found[1])
    spread = 0.5 * (found[0] - found[1]).norm(dim=1)
    low = (1e-8 * size).unsqueeze(1)
    trusted = (spread <= AGREED * mean.norm(dim=1)) & (size > 0) & (mean > -low).all(1)
    return rows, torch.where(trusted.unsqueeze(1), torch.maximum(mean, low), torch.ones_like(mean))


def signs(like: Tensor, source: torch.Generator) -> Tensor:
    """Random signs (batch, n)."""
    return torch.randint(0, 2, like.shape, generator=source, device=like.device).to(like.dtype) * 2 - 1


def balance(y: Tensor, constraints: Constraints, curvature: Callable[[Tensor], Curvature]) -> Tensor:
    """Units d (batch, n) at y (batch, n); `curvature` as in `metric`.

    Every round divides a unit by the square root of the norm of its row, which halves the logarithm of its error
    (Ruiz). The mean over rounds replaces one over many random vectors.
    """
    source, units = generator(y), torch.ones_like(y)
    for _ in range(ROUNDS):
        z = torch.randn(y.shape, generator=source, dtype=y.dtype, device=y.device)
        norms = units * curvature(units**-2)(units * z).abs()
        if not bool((norms > 0).all()):
            norms = torch.where(norms > 0, norms, units * _columns(y, constraints, units, source))
        units = units / torch.where(norms.isfinite() & (norms > 0), norms, 1.0).sqrt()
    return units


def _columns(y: Tensor, constraints: Constraints, units: Tensor, source: torch.Generator) -> Tensor:
    """(batch, n) estimates of the norms of the columns of the Jacobian, whose rows are divided by theirs."""
    rows = row_norms(constraints, y, units)
    w = torch.randn(rows.shape, generator=source, dtype=y.dtype, device=y.device)
    return constraints.pull(w / rows).abs()
