"""Memory: the last solution of each key, within bounds; matrices that are recognised."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import ffo.engine.memory as memory_module
from ffo.cones import Nonneg, Product
from ffo.engine.memory import Matrices, Memory
from ffo.program.cone import ConeProgram
from ffo.program.sparse import SymmetricBatch

N, M = 2, 3


def rows(*numbers: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, y, s filled with each number."""
    column = np.array(numbers)[:, None]
    return np.tile(column, N), np.tile(column + 0.1, M), np.tile(column + 0.2, M)


def test_recalls_by_key_in_any_order() -> None:
    memory = Memory()
    memory.recall([], N, M, M)
    memory.remember(["a", "b", "c"], *rows(1, 2, 3))
    known, x, y, s = memory.recall(["c", "?", "a"], N, M, M)
    assert known.tolist() == [0, 2]
    np.testing.assert_array_equal(x, rows(3, 1)[0])
    np.testing.assert_array_equal(y, rows(3, 1)[1])
    np.testing.assert_array_equal(s, rows(3, 1)[2])


def test_knows_nothing_at_first() -> None:
    known, x, y, s = Memory().recall([1, 2], N, M, M)
    assert known.shape == (0,)
    assert (x.shape, y.shape, s.shape) == ((0, N), (0, M), (0, M))


def test_keeps_the_last_and_copies_it() -> None:
    memory = Memory()
    memory.recall([], N, M, M)
    x, y, s = rows(1)
    memory.remember(["a"], x, y, s)
    memory.remember(["a"], *rows(2))
    x[:] = 99
    assert memory.recall(["a"], N, M, M)[1][0, 0] == 2
    assert len(memory) == 1


def test_forgets_the_least_recently_used() -> None:
    memory = Memory(max_bytes=3 * 8 * (N + 2 * M))
    memory.recall([], N, M, M)
    memory.remember(["a", "b", "c"], *rows(1, 2, 3))
    memory.recall(["a"], N, M, M)  # "b" is now the oldest
    memory.remember(["d"], *rows(4))
    assert len(memory) == 3
    assert memory.recall(["a", "b", "c", "d"], N, M, M)[0].tolist() == [0, 2, 3]


def test_keeps_at_least_one() -> None:
    memory = Memory(max_bytes=1)
    memory.recall([], N, M, M)
    memory.remember(["a", "b"], *rows(1, 2))
    assert memory.recall(["a", "b"], N, M, M)[0].tolist() == [1]


def test_another_size_of_problem_clears_it() -> None:
    memory = Memory()
    memory.recall([], N, M, M)
    memory.remember(["a"], *rows(1))
    assert len(memory.recall(["a"], N + 1, M, M)[0]) == 0
    assert len(memory) == 0


def test_threads_may_share_it() -> None:
    memory = Memory(max_bytes=4 * 8 * (N + 2 * M))
    memory.recall([], N, M, M)
    errors = []

    def work(first: int) -> None:
        try:
            for k in range(300):
                keys = [(first + k + i) % 9 for i in range(3)]
                memory.remember(keys, *rows(*keys))
                known, x, _, _ = memory.recall(keys, N, M, M)
                assert [keys[i] for i in known] == x[:, 0].tolist()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []


def quadratic(scale: float = 1.0) -> ConeProgram:
    return ConeProgram.from_matrices(
        scale * np.eye(2), np.ones((3, 2)), -np.eye(2), np.zeros(2), Product([(Nonneg(), 2)])
    )


def test_equal_matrices_are_recognized() -> None:
    matrices = Matrices()
    first = matrices.recognized(quadratic())
    again = matrices.recognized(quadratic())
    assert again.P is first.P
    assert again.A is first.A
    other = matrices.recognized(quadratic(2.0))
    assert other.P is not first.P
    assert other.A is first.A


def test_matrices_changed_in_place_are_noticed() -> None:
    matrices, program = Matrices(), quadratic()
    first = matrices.recognized(program)
    program.P.values[0] = 5.0
    program.A.values[1] = -3.0
    changed = matrices.recognized(program)
    np.testing.assert_array_equal(first.P.values, [1.0, 1.0])  # a copy
    np.testing.assert_array_equal(changed.P.values, [5.0, 1.0])
    np.testing.assert_array_equal(changed.A.values, [-1.0, -3.0])


def test_matrices_of_samples_are_left_as_they_are() -> None:
    matrices, program = Matrices(), quadratic()
    P = SymmetricBatch(program.P.indptr, program.P.indices, np.arange(1.0, 7.0).reshape(3, 2), program.P.shape)
    batched = program.with_matrices(P, program.A)
    assert matrices.recognized(batched).P is P


def test_convexity_is_asked_once_of_a_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[SymmetricBatch] = []
    original = memory_module.indefinite
    monkeypatch.setattr(memory_module, "indefinite", lambda P: asked.append(P) or original(P))
    matrices = Matrices()
    for scale in (1.0, 1.0, -1.0, -1.0, 1.0):
        found = matrices.indefinite(matrices.recognized(quadratic(scale)).P)
        assert found == ({} if scale > 0 else {0: -1.0})
    assert len(asked) == 3
