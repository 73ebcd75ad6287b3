"""What is remembered between calls: solutions by sample, the matrices used last, and what was worth trying."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from threading import Lock

import numpy as np

from ffo.engine.convexity import indefinite
from ffo.program.cone import ConeProgram
from ffo.program.sparse import SymmetricBatch

Array = np.ndarray

#: memory given to remembered solutions
MAX_BYTES = 256 * 2**20
#: calls after which everything is tried again
LONGEST_PAUSE = 64


class Memory:
    """The last solution of each key; the least recently used are forgotten beyond `max_bytes`.

    Threads may share it.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._rows: OrderedDict[Hashable, Array] = OrderedDict()
        self._shape: tuple[int, int] | None = None
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._rows)

    def recall(self, keys: Sequence[Hashable], n: int, m: int) -> tuple[Array, Array, Array, Array]:
        """Positions that are known, and their x, y, s."""
        with self._lock:
            if self._shape != (n, m):
                self._rows.clear()
                self._shape = (n, m)
            known = np.array([i for i, k in enumerate(keys) if k in self._rows], dtype=int)
            rows = np.array([self._rows[keys[i]] for i in known]).reshape(len(known), n + 2 * m)
            for i in known:
                self._rows.move_to_end(keys[i])
        return known, rows[:, :n], rows[:, n : n + m], rows[:, n + m :]

    def remember(self, keys: Sequence[Hashable], x: Array, y: Array, s: Array) -> None:
        """Keep the solutions; rows are copied."""
        rows = np.concatenate([x, y, s], axis=1)
        limit = max(int(self.max_bytes // max(rows.shape[1] * 8, 1)), 1)
        with self._lock:
            for key, row in zip(keys, rows, strict=True):
                self._rows[key] = row.copy()
                self._rows.move_to_end(key)
            while len(self._rows) > limit:
                self._rows.popitem(last=False)


class Matrices:
    """The matrices used last: where a program has equal ones, those stand in for them.

    What was derived from them (products, norms, patterns by rows) then need not be derived again. Values
    are compared, not trusted: matrices may have been changed in place.
    """

    def __init__(self) -> None:
        self._last: ConeProgram | None = None
        self._judged: tuple[SymmetricBatch, dict[int, float]] | None = None

    def indefinite(self, P: SymmetricBatch) -> dict[int, float]:
        """`convexity.indefinite`, asked once of a matrix that is recognized."""
        judged = self._judged
        if judged is None or judged[0] is not P:
            judged = self._judged = P, indefinite(P)
        return judged[1]

    def recognized(self, program: ConeProgram) -> ConeProgram:
        """The program, with the matrices used last if they are equal."""
        last, P, A = self._last, program.P, program.A
        if P.shared:
            P = last.P if last is not None and last.P.same(P) else P.copy()
        if A.shared:
            A = last.A if last is not None and last.A.same(A) else A.copy()
        found = program.with_matrices(P, A)
        if program.shared_matrices:
            self._last = found
        return found


class Attempts:
    """Whether something that may fail is tried in this call: where it did not pay, not in the next one, nor, if
    it fails again, in the next two, four, eight, up to `LONGEST_PAUSE`."""

    def __init__(self) -> None:
        self._pause = self._left = 0

    def due(self) -> bool:
        """Whether to try; each call is one of the layer's."""
        self._left -= 1
        return self._left < 0

    def record(self, paid: bool) -> None:
        """What came of the last attempt."""
        self._pause = 0 if paid else min(2 * self._pause or 1, LONGEST_PAUSE)
        self._left = self._pause
