"""Cone programs in the form of the kernels: one plan per structure, and the values of a batch."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from ffo.cones import PSD, Exponential, Power, Product, SecondOrder, Zero
from ffo.kernels import kkt
from ffo.kernels.values import Values, ready

if TYPE_CHECKING:
    from ffo.kernels.batch import KernelPlan
    from ffo.program.cone import ConeProgram
    from ffo.program.pattern import Pattern
    from ffo.program.sparse import SparseBatch

Array = np.ndarray

#: cached plans; they are made once per sparsity pattern, and never change
KEPT = 32


def plan_of(program: ConeProgram) -> KernelPlan:
    """The plan of a program's structure, made on first use."""
    found: KernelPlan | None = program.__dict__.get("_plan")
    if found is None:
        found = program.__dict__["_plan"] = structure_plan(program.cones, program.P.pattern, program.A.pattern)
    return found


@lru_cache(maxsize=KEPT)
def structure_plan(cones: Product, P: Pattern, A: Pattern) -> KernelPlan:
    """The plan of a structure."""
    from ffo.kernels.batch import KernelPlan  # loads compiled code

    return KernelPlan(partial(_build, cones, P, A), curved=any(cone.dim > 1 for cone, _ in cones.blocks))


def _build(cones: Product, P: Pattern, A: Pattern, factors: bool) -> kkt.Structure:
    from ffo.program.fill import check_memory

    check_memory(cones, P, A, factors)
    m, n = A.shape
    return kkt.build((P.rows, P.columns), (A.rows, A.columns), n, m, blocks_of(cones), factors)


def values_of(program: ConeProgram) -> Values:
    """The data of a program in the kernels' layout, cached."""
    found: Values | None = program.__dict__.get("_values")
    if found is None:
        P, A = _matrix_values(program.P), _matrix_values(program.A)
        found = program.__dict__["_values"] = Values(P, program.q, A, program.b)
    return found


def _matrix_values(M: SparseBatch) -> Array:
    """The values of matrices in the kernels' layout, cached."""
    found: Array | None = M.__dict__.get("_ready")
    if found is None:
        found = M.__dict__["_ready"] = ready(M.values)
    return found


def blocks_of(cones: Product) -> kkt.ConeBlocks:
    """Kinds, dimensions and exponents of the blocks; runs of scalar cones are one block."""
    kind: list[int] = []
    dim: list[int] = []
    alpha: list[float] = []
    for cone, count in cones.blocks:
        repeat = 1
        if isinstance(cone, Zero):
            code, size = kkt.ZERO, count
        elif cone.dim == 1:  # nonnegative rays, and cones of size 1
            code, size = kkt.NONNEG, count
        else:
            size, repeat = cone.dim, count
            if isinstance(cone, SecondOrder):
                code = kkt.SECOND_ORDER
            else:
                code = {PSD: kkt.SEMIDEFINITE, Exponential: kkt.EXPONENTIAL, Power: kkt.POWER}[type(cone)]
        kind += [code] * repeat
        dim += [size] * repeat
        alpha += [cone.alpha if isinstance(cone, Power) else 0.0] * repeat
    return kkt.ConeBlocks(np.array(kind, np.int64), np.array(dim, np.int64), np.array(alpha))
