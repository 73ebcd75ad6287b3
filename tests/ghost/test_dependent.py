"""Dependent active rows: found in every cone, and cheap to rule out where there are none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from problems import Known, known_program, random_semidefinite, with_pair

from ffo.cones import Product
from ffo.ghost.direct import Compiled, newton
from ffo.kernels.evidence import PIVOT
from ffo.kernels.system import SMALL_PIVOT
from ffo.program.sparse import SparseBatch

N = 24
CURVED = [("soc7", "boundary"), ("psd3", "rank 1"), ("exp", "surface"), ("pow.2", "surface")]
each_cone = pytest.mark.parametrize(("cone", "case"), CURVED, ids=[name for name, _ in CURVED])


def program(cone: str, case: str, seed: int = 0) -> Known:
    """Active rows of all kinds; P without most of its curvature, so that pivots are small."""
    blocks = [(cone, case), ("nonneg", "vertex"), ("zero", "vertex"), ("nonneg", "vertex"), ("nonneg", "interior")]
    known = known_program(blocks, N, batch=3, rank=0, seed=seed)
    P = random_semidefinite(N, N - 2, None, np.random.default_rng(seed))
    return with_pair(replace(known, program=replace(known.program, P=P)), known.s, known.y)


def repeated(known: Known, rows: slice, noise: float, seed: int = 1) -> Known:
    """Some rows, or whole blocks of a cone, repeated up to noise."""
    p = known.program
    A = p.A.matrix().toarray()
    copy = A[rows] + noise * np.random.default_rng(seed).normal(size=A[rows].shape)
    s, y = (np.hstack([v, v[:, rows]]) for v in (known.s, known.y))
    block, start = [], 0
    for cone, count in p.cones.blocks:
        for _ in range(count):
            block += [(cone, 1)] if rows.start <= start < rows.stop else []
            start += cone.dim
    cones = Product([*p.cones.blocks, *block])
    twice = replace(p, A=SparseBatch.from_matrix(np.vstack([A, copy])), b=np.zeros_like(s), cones=cones)
    return with_pair(Known(twice, known.x, y, s), s, y)


def polished(known: Known) -> Compiled:
    return newton(known.program, known.x, known.y, known.s)


@each_cone
def test_independent_rows_are_not_flagged_where_pivots_are_small(cone: str, case: str) -> None:
    done = polished(program(cone, case))
    assert not done.dependent.any()
    assert (done.state.evidence[:, PIVOT] <= SMALL_PIVOT).any()


@each_cone
@pytest.mark.parametrize("which", ["inequality", "curved"])
def test_rows_given_twice_are_found(cone: str, case: str, which: str) -> None:
    known = program(cone, case)
    dim = known.program.cones.blocks[0][0].dim
    done = polished(repeated(known, slice(0, dim) if which == "curved" else slice(dim, dim + 1), noise=0.0))
    assert done.dependent.all()
    assert not done.certificate.after_backward(np.zeros(3), done.dependent).good.any()


@each_cone
@pytest.mark.parametrize("noise", [1e-5, 1e-3, 1e-1])
def test_rows_that_differ_are_not_flagged(cone: str, case: str, noise: float) -> None:
    for seed in range(3):
        known = program(cone, case, seed)
        dim = known.program.cones.blocks[0][0].dim
        assert not polished(repeated(known, slice(dim, dim + 1), noise)).dependent.any()
