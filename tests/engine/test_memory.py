"""Memory: the last solution of each key, within bounds."""

from __future__ import annotations

import threading

import numpy as np

from ffo.engine.memory import Memory

N, M = 2, 3


def rows(*numbers: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, y, s filled with each number."""
    column = np.array(numbers)[:, None]
    return np.tile(column, N), np.tile(column + 0.1, M), np.tile(column + 0.2, M)


def test_recalls_by_key_in_any_order() -> None:
    memory = Memory()
    memory.recall([], N, M)
    memory.remember(["a", "b", "c"], *rows(1, 2, 3))
    known, x, y, s = memory.recall(["c", "?", "a"], N, M)
    assert known.tolist() == [0, 2]
    np.testing.assert_array_equal(x, rows(3, 1)[0])
    np.testing.assert_array_equal(y, rows(3, 1)[1])
    np.testing.assert_array_equal(s, rows(3, 1)[2])


def test_knows_nothing_at_first() -> None:
    known, x, y, s = Memory().recall([1, 2], N, M)
    assert known.shape == (0,)
    assert (x.shape, y.shape, s.shape) == ((0, N), (0, M), (0, M))


def test_keeps_the_last_and_copies_it() -> None:
    memory = Memory()
    memory.recall([], N, M)
    x, y, s = rows(1)
    memory.remember(["a"], x, y, s)
    memory.remember(["a"], *rows(2))
    x[:] = 99
    assert memory.recall(["a"], N, M)[1][0, 0] == 2
    assert len(memory) == 1


def test_forgets_the_least_recently_used() -> None:
    memory = Memory(max_bytes=3 * 8 * (N + 2 * M))
    memory.recall([], N, M)
    memory.remember(["a", "b", "c"], *rows(1, 2, 3))
    memory.recall(["a"], N, M)  # "b" is now the oldest
    memory.remember(["d"], *rows(4))
    assert len(memory) == 3
    assert memory.recall(["a", "b", "c", "d"], N, M)[0].tolist() == [0, 2, 3]


def test_keeps_at_least_one() -> None:
    memory = Memory(max_bytes=1)
    memory.recall([], N, M)
    memory.remember(["a", "b"], *rows(1, 2))
    assert memory.recall(["a", "b"], N, M)[0].tolist() == [1]


def test_another_size_of_problem_clears_it() -> None:
    memory = Memory()
    memory.recall([], N, M)
    memory.remember(["a"], *rows(1))
    assert len(memory.recall(["a"], N + 1, M)[0]) == 0
    assert len(memory) == 0


def test_threads_may_share_it() -> None:
    memory = Memory(max_bytes=4 * 8 * (N + 2 * M))
    memory.recall([], N, M)
    errors = []

    def work(first: int) -> None:
        try:
            for k in range(300):
                keys = [(first + k + i) % 9 for i in range(3)]
                memory.remember(keys, *rows(*keys))
                known, x, _, _ = memory.recall(keys, N, M)
                assert [keys[i] for i in known] == x[:, 0].tolist()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert errors == []
