"""Sudoku puzzles with exactly one solution, made and checked by a bitmask backtracking solver."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Grid:
    """A board of `order`**2 rows; its units are rows, columns and boxes.

    Attributes:
        units: units[cell] = (row, column, box), numbered from 0 to 3 * size - 1.
    """

    order: int
    units: tuple[tuple[int, int, int], ...]

    @property
    def size(self) -> int:
        return self.order**2


@cache
def grid(size: int) -> Grid:
    """The board with `size` digits: 4 or 9 (or any square)."""
    order = int(np.sqrt(size))
    if order**2 != size:
        raise ValueError(f"a Sudoku board has a square number of rows, not {size}")
    place = lambda r, c: (r, size + c, 2 * size + r // order * order + c // order)  # noqa: E731
    return Grid(order, tuple(place(r, c) for r in range(size) for c in range(size)))


def solutions(puzzle: Array, limit: int = 2, rng: np.random.Generator | None = None) -> list[Array]:
    """Up to `limit` solutions of a puzzle: (cells,) digits from 1, 0 where empty.

    Depth-first over the empty cell with the fewest candidates; digits are tried in order, or in a
    random order if `rng` is given.
    """
    board = grid(int(np.sqrt(len(puzzle))))
    cells = [int(d) for d in puzzle]
    free = [(1 << board.size) - 1] * (3 * board.size)
    for cell, digit in enumerate(cells):
        if digit:
            bit = 1 << digit - 1
            for unit in board.units[cell]:
                if not free[unit] & bit:
                    return []
                free[unit] ^= bit
    found: list[Array] = []
    _search(board, cells, free, [k for k, d in enumerate(cells) if not d], found, limit, rng)
    return found


def _search(
    board: Grid,
    cells: list[int],
    free: list[int],
    empty: list[int],
    found: list[Array],
    limit: int,
    rng: np.random.Generator | None,
) -> None:
    if not empty:
        found.append(np.array(cells))
        return
    units, fewest, at, best = board.units, board.size + 1, 0, 0
    for k, cell in enumerate(empty):
        row, column, box = units[cell]
        mask = free[row] & free[column] & free[box]
        count = mask.bit_count()
        if count < fewest:
            fewest, at, best = count, k, mask
            if count < 2:
                break
    cell = empty[at]
    empty[at] = empty[-1]
    empty.pop()
    digits = [d for d in range(board.size) if best >> d & 1]
    if rng is not None:
        rng.shuffle(digits)
    for digit in digits:
        cells[cell] = digit + 1
        for unit in units[cell]:
            free[unit] ^= 1 << digit
        _search(board, cells, free, empty, found, limit, rng)
        for unit in units[cell]:
            free[unit] ^= 1 << digit
        if len(found) >= limit:
            break
    cells[cell] = 0
    empty.append(cell)
    empty[at], empty[-1] = empty[-1], empty[at]


def generate(size: int, count: int, givens: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """`count` puzzles and their solutions, each (count, cells): a solved board, then cells are taken out
    in random order as long as the solution stays unique, down to `givens` if possible."""
    puzzles, solved = np.zeros((2, count, size**2), dtype=np.int64)
    for k in range(count):
        (full,) = solutions(np.zeros(size**2, dtype=np.int64), limit=1, rng=rng)
        puzzle, left = full.copy(), size**2
        for cell in rng.permutation(size**2):
            if left <= givens:
                break
            digit, puzzle[cell] = puzzle[cell], 0
            if len(solutions(puzzle)) == 1:
                left -= 1
            else:
                puzzle[cell] = digit
        puzzles[k], solved[k] = puzzle, full
    return puzzles, solved


def one_hot(boards: Array, size: int) -> Array:
    """(count, cells) -> (count, cells * size) indicators; zeros where a cell is empty."""
    return (boards[..., None] == np.arange(1, size + 1)).reshape(len(boards), -1).astype(float)
