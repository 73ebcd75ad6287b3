"""Programs that are solved to find out whether another one has a solution."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from ffo.cones import Product, Zero
from ffo.program.cone import ConeProgram
from ffo.program.magnitudes import unit
from ffo.program.relaxation import Relaxation
from ffo.program.sparse import SymmetricBatch

#: weight of a quadratic term that determines one of many rays, relative to the largest entry of P
PROXIMAL = 1e-8


def with_curvature(program: ConeProgram) -> ConeProgram:
    """The program with |q| I in place of P: it has a solution if any point is feasible."""
    n = program.n
    P = SymmetricBatch(np.arange(n + 1, dtype=np.int32), np.arange(n, dtype=np.int32), np.ones(n), (n, n))
    return ConeProgram(P, unit(program.q), program.A, program.b, program.cones)


def relaxed(program: ConeProgram) -> ConeProgram:
    """The program with slack on all rows, at a quadratic cost: it has a solution if the dual has a feasible point."""
    return Relaxation(np.arange(program.m), 1.0).apply(program)


def steepest_ray(program: ConeProgram) -> ConeProgram:
    """The program of one sample whose solution is near the shortest ray with q'd = -1, if there is one."""
    P, rows = program.P.full(), sp.vstack([program.q, program.A.matrix()])
    small = PROXIMAL * program.P.largest[0] or 1.0
    sides = np.concatenate([-np.ones((1, 1)), np.zeros_like(program.b)], axis=1)
    cones = Product([(Zero(), 1), *program.cones.blocks])
    return ConeProgram.from_matrices(P / small + sp.eye_array(program.n), np.zeros_like(program.q), rows, sides, cones)
