"""The evidence of Newton's method about a sample: numbers, and the flags that follow from them."""

from __future__ import annotations

import numpy as np

from ffo.kernels.jit import inner_kernel
from ffo.kernels.point import MARGIN_RATIO, WEAK

Array = np.ndarray

#: columns of the evidence; the start is measured as solvers do, in the largest terms of the program; GHOST is the
#: residual of a derivative, NaN before any
RESIDUAL, ERROR, RATIO, NEAREST, PIVOT, STEPS, IS_SETTLED, START_RESIDUAL, SINGULAR, GHOST = range(10)
EVIDENCE = 10
#: columns of the flags; the others are set by derivatives, in the order of `ghost.certificate`
UNSETTLED, WEAKLY_ACTIVE = range(2)
FLAGS = 7


@inner_kernel
def conclude(evidence: Array, flags: Array) -> None:
    """The flags of a sample, before any derivative; NaN raises none."""
    residual, nearest = evidence[RESIDUAL], evidence[NEAREST]
    evidence[SINGULAR] = evidence[GHOST] = np.nan
    for k in range(FLAGS):
        flags[k] = False
    flags[UNSETTLED] = evidence[IS_SETTLED] == 0.0
    flags[WEAKLY_ACTIVE] = (nearest <= WEAK and residual >= 0.0) or nearest <= residual / MARGIN_RATIO
