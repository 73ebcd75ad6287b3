"""Layouts: submatrices of one matrix, their factors made once, and changes of values noticed."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest
from ghost.test_flat import flat_program

import ffo.ghost.layout as layout_module
from ffo.ghost.direct import Direct
from ffo.ghost.factors import REGULARISATION
from ffo.ghost.layout import KEPT, SLIGHT, CutFactors, FactorMemory, Layout, Layouts, Owned
from ffo.ghost.oracle import linearize

Array = np.ndarray


def random_keep(layout: Layout, batch: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).random((batch, layout.K.shape[0])) < 0.6


def full(layout: Layout, sample: int) -> Array:
    """K, both triangles."""
    return layout.K.full(sample).toarray()


@pytest.mark.parametrize("batched", [False, True], ids=["shared", "batched"])
def test_the_matrix_is_that_of_the_rows_that_are_no_bounds(batched: bool) -> None:
    program = flat_program(batched=batched).program
    layout = Layout(program.P, program.A)
    A = [program.A.matrix(k).toarray() for k in range(program.batch)]
    general = np.flatnonzero((A[0] != 0).sum(axis=1) > 1)
    np.testing.assert_array_equal(np.arange(program.m)[layout.rows], general)
    for k in range(program.batch if batched else 1):
        zero = np.zeros((len(general), len(general)))
        P = program.P.full(k).toarray()
        np.testing.assert_allclose(full(layout, k), np.block([[P, A[k][general].T], [A[k][general], zero]]))
        for bounds in layout.bounds:
            columns, rows = np.arange(program.n)[bounds.columns], np.arange(program.m)[bounds.rows]
            coefficient = bounds.coefficient if bounds.coefficient.ndim == 1 else bounds.coefficient[k]
            np.testing.assert_array_equal(A[k][rows, columns], coefficient)
    found = sum(len(np.arange(program.m)[b.rows]) for b in layout.bounds)
    assert found + len(general) == program.m


@pytest.mark.parametrize("remember", [False, True])
@pytest.mark.parametrize("batched", [False, True], ids=["shared", "batched"])
def test_factors_invert_the_submatrices(batched: bool, remember: bool) -> None:
    program = flat_program(batched=batched).program
    layout = Layout(program.P, program.A)
    keep = random_keep(layout, program.batch)
    keep[1] = False  # nothing left to factorize
    factors = CutFactors(layout, keep, remember)
    rhs = np.random.default_rng(1).normal(size=keep.shape)
    z = factors.solve(rhs)
    assert (z[~keep] == 0).all()
    scale = np.broadcast_to(layout.scale, keep.shape)
    sign = np.where(np.arange(keep.shape[1]) < program.n, 1.0, -1.0) * (SLIGHT if layout.slight else REGULARISATION)
    for k in range(program.batch):
        inside = keep[k]
        matrix = full(layout, k if batched else 0) + np.diag(sign / scale[k] ** 2)
        np.testing.assert_allclose(matrix[np.ix_(inside, inside)] @ z[k, inside], rhs[k, inside], atol=1e-6)
    assert not factors.suspect[1]


def test_singular_submatrices_are_suspect() -> None:
    program = flat_program().program
    layout = Layout(program.P, program.A)
    n = program.n
    keep = np.zeros((3, layout.K.shape[0]), dtype=bool)
    keep[1, :n] = True  # no rows
    keep[2, n:] = True  # rows without variables
    for remember in (False, True):
        assert CutFactors(layout, keep, remember).suspect.tolist() == [False, False, True]


def test_small_pivots_ask_for_regularisation() -> None:
    program = flat_program().program
    layout = Layout(program.P, program.A)
    keep = np.zeros((2, layout.K.shape[0]), dtype=bool)
    keep[:, : program.n] = True
    assert not CutFactors(layout, keep, False).suspect.any()
    assert layout.slight
    keep[1] = ~keep[1]  # rows without variables
    assert CutFactors(layout, keep, False).suspect.tolist() == [False, True]
    assert not layout.slight
    layouts = Layouts()
    layouts.find(program.P, program.A).slight = False
    other = flat_program(seed=1).program
    assert not layouts.find(other.P, other.A).slight  # learned matrices keep their structure


def test_a_regularisation_that_rounding_swallows_gives_way_to_a_larger_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "SLIGHT", 0.0)
    program = flat_program().program
    layout = Layout(program.P, program.A)
    keep = np.zeros((1, layout.K.shape[0]), dtype=bool)
    keep[0, program.n :] = True  # rows without variables: exactly singular
    factors = CutFactors(layout, keep, False)
    assert factors.suspect.all()
    assert not layout.slight
    assert np.isfinite(factors.solve(np.ones(keep.shape))).all()


def test_an_acquittal_is_remembered() -> None:
    program = flat_program().program
    layout = Layout(program.P, program.A)
    keep = np.zeros((2, layout.K.shape[0]), dtype=bool)
    keep[:, program.n :] = True
    CutFactors(layout, keep, True).acquit(np.array([0]))
    assert CutFactors(layout, keep, True).suspect.tolist() == [False, False]
    assert CutFactors(layout, keep, False).suspect.tolist() == [True, True]


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Unknowns of each call of `factor_blocks`."""
    sizes: list[int] = []
    original = layout_module.factor_blocks
    monkeypatch.setattr(
        layout_module, "factor_blocks", lambda m, *a, **k: sizes.append(m.shape[0]) or original(m, *a, **k)
    )
    return sizes


def test_equal_sets_are_factorized_once_and_known_ones_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    program = flat_program(batch=4).program
    layout = Layout(program.P, program.A, slight=False)
    keep = random_keep(layout, 4)
    keep[2], keep[3] = keep[0], keep[0]
    sizes = counted(monkeypatch)
    first = CutFactors(layout, keep, True)
    assert sizes == [keep[0].sum() + keep[1].sum()]
    rhs = np.random.default_rng(1).normal(size=keep.shape)
    order = [3, 1, 0, 2]  # as a shuffled batch brings them
    again = CutFactors(layout, keep[order], True)
    assert len(sizes) == 1
    np.testing.assert_array_equal(again.solve(rhs[order]), first.solve(rhs)[order])
    assert len(layout.factors) == 2
    CutFactors(layout, keep, False)
    assert len(sizes) == 2  # nothing is remembered unless asked for
    assert len(layout.factors) == 2


def test_layouts_are_found_by_value() -> None:
    layouts = Layouts()
    program, other = flat_program().program, flat_program().program
    kept = layouts.find(program.P, program.A)
    assert layouts.find(other.P, other.A) is kept
    program.A.values[3] *= 1.5  # in place
    changed = layouts.find(program.P, program.A)
    assert changed is not kept
    np.testing.assert_array_equal(changed.A.values, program.A.values)
    assert layouts.find(other.P, other.A) is kept
    program.P.values[0] *= 2
    assert layouts.find(program.P, program.A) is not changed


def test_batched_matrices_are_not_kept() -> None:
    layouts = Layouts()
    program = flat_program(batched=True).program
    assert layouts.find(program.P, program.A) is not layouts.find(program.P, program.A)


def test_few_layouts_are_kept() -> None:
    layouts = Layouts()
    programs = [flat_program(seed=k).program for k in range(KEPT + 1)]
    kept = [layouts.find(p.P, p.A) for p in programs]
    assert [layouts.find(p.P, p.A) is k for p, k in zip(programs[1:], kept[1:], strict=True)] == [True] * KEPT
    assert layouts.find(programs[0].P, programs[0].A) is not kept[0]


def test_a_full_memory_forgets_the_layouts_before(monkeypatch: pytest.MonkeyPatch) -> None:
    layouts = Layouts()
    first, second = (flat_program(seed=k).program for k in (0, 1))
    kept = layouts.find(first.P, first.A)
    CutFactors(kept, random_keep(kept, 3), True)
    assert len(kept.factors) == 3
    layouts.find(second.P, second.A)
    assert len(kept.factors) == 3
    monkeypatch.setattr(layout_module, "MAX_BYTES", kept.factors.bytes - 1)
    layouts.find(second.P, second.A)
    assert len(kept.factors) == kept.factors.bytes == 0


def test_memory_of_factors_is_bounded() -> None:
    program = flat_program(batch=8).program
    layout = Layout(program.P, program.A)
    keep = random_keep(layout, 8)
    CutFactors(layout, keep[:1], True)
    one = layout.factors.bytes
    assert one > 0
    layout.factors.max_bytes = 4 * one
    CutFactors(layout, keep, True)
    assert layout.factors.bytes <= 4 * one
    assert 1 <= len(layout.factors) < 8
    last = np.packbits(keep, axis=1)[-1].tobytes()
    assert last in layout.factors.recall([last])  # the oldest went


def test_a_memory_too_small_keeps_one() -> None:
    memory = FactorMemory(max_bytes=0)
    memory.remember({b"a": Owned(None, False), b"b": Owned(None, False)})
    assert list(memory.recall([b"a", b"b"])) == [b"b"]


def test_copies_of_ways_start_empty() -> None:
    known = flat_program()
    way = Direct(remember=True)
    linearize(known.program, known.solution, way)
    assert len(way.layout(known.program).factors) == 0  # the matrices may be learned, and new every time
    linearize(known.program, known.solution, way)
    assert len(way.layout(known.program).factors) > 0
    for twin in (copy.deepcopy(way), pickle.loads(pickle.dumps(way))):
        assert twin == way
        assert len(twin.layout(known.program).factors) == 0


def test_threads_may_share_factors() -> None:
    known = flat_program(n=60, batch=8)
    way = Direct(remember=True)
    losses = np.random.default_rng(0).normal(size=(4, *known.x.shape))
    nothing = np.zeros_like(known.y)
    expected = [linearize(known.program, known.solution, Direct()).adjoint(c, nothing)[0].u for c in losses]
    failures: list[object] = []

    def work(k: int) -> None:
        try:
            for _ in range(20):
                found = linearize(known.program, known.solution, way).adjoint(losses[k], nothing)[0].u
                np.testing.assert_allclose(found, expected[k], atol=1e-9)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failures == []
