"""Common parts of the faces of all cones: codes of the cases, the weight of a row, exact scaling of a block."""

from __future__ import annotations

import math

import numpy as np

from ffo.kernels.jit import inner_kernel
from ffo.kernels.vectors import fill

Array = np.ndarray

#: Codes of the cases every cone shares (cones with flat faces or rays add their own; PSD uses the rank).
INTERIOR, VERTEX, BOUNDARY = 0, 1, 2

#: Largest s-to-tau*y ratio that a weight may express; see `weight`. If ten times smaller, a direction that is free
#: to rounding gets a visible curvature; above 1/eps, the weights only spread the pivots of the ghost system.
MAX_RATIO = 1e16


@inner_kernel
def weight(numerator: float, denominator: float, tau: float) -> float:
    """delta = 1/h = tau * numerator / denominator, finite.

    The ratio is that of a size of s to one of tau*y, two numbers of one unit, so the bound on it does
    not depend on how a problem is scaled. It enters the derivative of the projection as 1/(1 + ratio):
    beyond 1e16 it cannot be told from a free direction, and y, known to eps|w|, does not determine it.
    h = 0 therefore gives delta = 1e16 tau, and h = inf gives delta = 0, a normal row.
    """
    if numerator / MAX_RATIO < denominator:  # the product could overflow
        return tau * (numerator / denominator)
    return tau * MAX_RATIO


@inner_kernel
def clear(on: Array, delta: Array, R: Array) -> None:
    """No rows."""
    fill(on, 0)
    fill(delta, 0.0)
    fill(R, 0.0)


@inner_kernel
def hold(i: int, on: Array, R: Array) -> None:
    """Row i is the normal row e_i."""
    on[i] = 1
    R[i * on.size + i] = 1.0


@inner_kernel
def is_finite(w: Array) -> bool:
    for i in range(w.size):  # noqa: SIM110 - generators do not compile
        if not np.isfinite(w[i]):
            return False
    return True


@inner_kernel
def unit_scale(w: Array) -> float:
    """The power of two that brings the largest entry of w / scale to [1/2, 1); 1 for w = 0.

    Cones are positively homogeneous and a power of two divides without rounding, so what follows may
    square and exponentiate freely.
    """
    top = 0.0
    for i in range(w.size):
        top = max(top, abs(w[i]))
    exponent = math.frexp(top)[1]
    return math.ldexp(1.0, min(max(exponent, -1000), 1000))  # 2^-e and 2^e both representable
