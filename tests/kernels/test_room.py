"""The memory of factors is reused, but never while a batch needs it."""

from __future__ import annotations

import numpy as np

from ffo.cones import Nonneg, Product
from ffo.kernels.batch import State
from ffo.program.cone import ConeProgram
from ffo.program.plan import plan_of


def test_factors_are_used_again_when_their_batch_is_gone() -> None:
    program = ConeProgram.from_matrices(np.eye(2), np.ones(2), np.eye(2), np.ones(2), Product([(Nonneg(), 2)]))
    structure = plan_of(program).structure
    one, other = State(structure, 3), State(structure, 3)
    assert not any(np.shares_memory(a, b) for a in one.factors for b in other.factors)
    first = one.factors
    del one
    assert State(structure, 3).factors is first
    larger = State(structure, 4)
    assert all(len(v) == 4 for v in larger.factors)
    assert not any(np.shares_memory(a, b) for a in larger.factors for b in other.factors)
