from __future__ import annotations

import numpy as np
import pytest

from ffo.lab.tasks.puzzles import generate, grid, one_hot, solutions


def is_solved(board: np.ndarray, size: int) -> bool:
    square = board.reshape(size, size)
    order = int(np.sqrt(size))
    boxes = square.reshape(order, order, order, order).swapaxes(1, 2).reshape(size, size)
    digits = set(range(1, size + 1))
    return all(set(unit) == digits for unit in (*square, *square.T, *boxes))


def count_by_force(puzzle: np.ndarray) -> int:
    """Solutions of a 4×4 puzzle: every filling of the empty cells is tried."""
    empty = np.flatnonzero(puzzle == 0)
    boards = np.tile(puzzle, (4 ** len(empty), 1))
    boards[:, empty] = np.stack(np.meshgrid(*[np.arange(1, 5)] * len(empty)), -1).reshape(-1, len(empty))
    return sum(is_solved(board, 4) for board in boards)


def test_all_boards_of_order_two_are_found() -> None:
    found = solutions(np.zeros(16, dtype=int), limit=1000)
    assert len(found) == 288  # a known number
    assert len({board.tobytes() for board in found}) == 288
    assert all(is_solved(board, 4) for board in found)


@pytest.mark.parametrize(("size", "givens"), [(4, 5), (9, 36)])
def test_puzzles_have_the_one_solution_they_come_with(size: int, givens: int) -> None:
    puzzles, solved = generate(size, 5, givens, np.random.default_rng(3))
    for puzzle, board in zip(puzzles, solved, strict=True):
        assert is_solved(board, size)
        (found,) = solutions(puzzle, limit=10)
        assert (found == board).all()
        assert ((puzzle == 0) | (puzzle == board)).all()
        assert givens <= (puzzle > 0).sum() < size**2


def test_uniqueness_agrees_with_looking_at_everything() -> None:
    rng = np.random.default_rng(0)
    counts = set()
    for _ in range(30):
        (board,) = solutions(np.zeros(16, dtype=int), limit=1, rng=rng)
        puzzle = np.where(rng.random(16) < 0.35, 0, board)
        by_force = count_by_force(puzzle)
        counts.add(min(by_force, 3))
        assert len(solutions(puzzle, limit=100)) == by_force
    assert len(counts) > 1  # puzzles with one and with several solutions were among them


def test_a_contradiction_has_no_solution() -> None:
    puzzle = np.zeros(16, dtype=int)
    puzzle[:2] = 3
    assert solutions(puzzle) == []
    with pytest.raises(ValueError, match="square number"):
        grid(5)


def test_indicators() -> None:
    hot = one_hot(np.array([[0, 2], [1, 4]]), 4)
    assert hot.tolist() == [[0, 0, 0, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0, 0, 1]]
