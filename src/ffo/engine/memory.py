"""Memory between calls: solutions by sample, the matrices used last, and a backoff for methods that failed."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate, pairwise
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakSet

import numpy as np

from ffo.program.affine import AffineMap, Made
from ffo.program.cone import ConeProgram
from ffo.program.convexity import indefinite
from ffo.program.presolve import SharedMatrices
from ffo.program.sparse import SymmetricBatch

Array = np.ndarray
Fact = TypeVar("Fact")

#: most memory for remembered solutions
MAX_BYTES = 256 * 2**20
#: most calls that a failed method is skipped
LONGEST_PAUSE = 64
_ALIKE = SharedMatrices()


class Memory:
    """The last vectors of each key, in one row of one array; the least recently used keys are dropped beyond
    `max_bytes`. Safe to share between threads. Copies start empty, and so does a forked process, where another thread
    may have been in the middle of a change with the lock held.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, dtype: type[np.generic] = np.float64) -> None:
        self.max_bytes, self.dtype = max_bytes, dtype
        self._places: OrderedDict[Hashable, int] = OrderedDict()
        self._widths: tuple[int, ...] | None = None
        self._rows = np.empty((0, 0), dtype)
        self._lock = Lock()
        _MEMORIES.add(self)

    def __reduce__(self) -> tuple[type[Memory], tuple[int, type[np.generic]]]:
        return Memory, (self.max_bytes, self.dtype)

    def __len__(self) -> int:
        return len(self._places)

    def recall(self, keys: Sequence[Hashable], *widths: int) -> tuple[Array, ...]:
        """Positions of known keys, and their vectors of these lengths: (known, width) each."""
        with self._lock:
            self._fit(widths)
            known = [i for i, key in enumerate(keys) if key in self._places]
            for i in known:
                self._places.move_to_end(keys[i])
            rows = self._rows[np.array([self._places[keys[i]] for i in known], dtype=int)]
        return np.array(known, dtype=int), *(rows[:, part] for part in _parts(widths))

    def remember(self, keys: Sequence[Hashable], *vectors: Array) -> None:
        """Store vectors (len(keys), width) each; they are copied."""
        widths = tuple(v.shape[1] for v in vectors)
        with self._lock:
            self._fit(widths)
            places = [self._place(key) for key in keys]  # if a row is used twice, the last one is right
            if len(self._places) > len(self._rows):
                more = min(max(2 * len(self._rows), len(self._places)), self._limit) - len(self._rows)
                self._rows = np.concatenate([self._rows, np.empty((more, sum(widths)), self.dtype)])
            for part, v in zip(_parts(widths), vectors, strict=True):
                self._rows[places, part] = v

    @property
    def _limit(self) -> int:
        """The number of keys that fit into memory."""
        return max(int(self.max_bytes // max(self._rows.shape[1] * self._rows.itemsize, 1)), 1)

    def _fit(self, widths: tuple[int, ...]) -> None:
        """Drop vectors of other lengths."""
        if self._widths != widths:
            self._places.clear()
            self._rows, self._widths = np.empty((0, sum(widths)), self.dtype), widths

    def _place(self, key: Hashable) -> int:
        """The row of a key: its own, a new one, or that of the least recently used."""
        place = self._places.pop(key, None)
        if place is None:
            full = len(self._places) >= self._limit
            place = self._places.popitem(last=False)[1] if full else len(self._places)
        self._places[key] = place
        return place


_MEMORIES: WeakSet[Memory] = WeakSet()


def _start_empty() -> None:
    for memory in list(_MEMORIES):
        memory.__init__(memory.max_bytes, memory.dtype)  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_empty)


def _parts(widths: Sequence[int]) -> list[slice]:
    ends = list(accumulate(widths, initial=0))
    return [slice(a, b) for a, b in pairwise(ends)]


class Matrices:
    """The matrices used last, which replace equal ones in a program.

    What was derived from them (products, norms, patterns by rows) is then reused. Values are always compared, because
    matrices may have been changed in place.
    """

    def __init__(self) -> None:
        self._last: ConeProgram | None = None
        self._made: tuple[AffineMap, Made] | None = None
        self._judged: tuple[SymmetricBatch, dict[int, float]] | None = None
        self._facts: dict[Callable[[ConeProgram], Any], tuple[ConeProgram, Any]] = {}

    def program(self, affine: AffineMap, values: Sequence[Array]) -> ConeProgram:
        """The program of these parameters; blocks whose parameters equal those of the last call are reused."""
        made = self._made
        if made is None or made[0] is not affine:
            made = self._made = affine, {}
        return affine.apply(values, made[1])

    def indefinite(self, P: SymmetricBatch) -> dict[int, float]:
        """`convexity.indefinite`, cached for a recognized matrix."""
        judged = self._judged
        if judged is None or judged[0] is not P:
            judged = self._judged = P, indefinite(P)
        return judged[1]

    def once(self, find: Callable[[ConeProgram], Fact], program: ConeProgram) -> Fact:
        """find(program), which depends only on matrices and cones; cached for recognized matrices."""
        known = self._facts.get(find)
        if known is not None:
            last = known[0]
            same = last.P is program.P and last.A is program.A
            if same and (last.cones is program.cones or last.cones == program.cones):
                return known[1]  # type: ignore[no-any-return]
        found = find(program)
        if program.shared_matrices and program.P.own and program.A.own:
            self._facts[find] = program, found
        return found

    def recognized(self, program: ConeProgram) -> ConeProgram:
        """The program without entries that are zero in all samples, with the matrices used last if they are equal."""
        last = self._last
        if last is not None and last.P is program.P and last.A is program.A:
            return program
        program = program.pruned()
        if not program.shared_matrices:
            program = _ALIKE.apply(program)
        P, A = program.P, program.A
        if P.shared and not P.own:  # the map makes new ones only for other parameters
            P = last.P if last is not None and last.P.same(P) else P.owned()
        if A.shared and not A.own:
            A = last.A if last is not None and last.A.same(A) else A.owned()
        found = program.with_matrices(P, A)
        if program.shared_matrices:
            self._last = found
        return found


class Backoff:
    """Skips a method that failed, for exponentially more calls: the next one, two, four, up to `LONGEST_PAUSE`."""

    def __init__(self) -> None:
        self._pause = self._left = 0

    def due(self) -> bool:
        """Whether to try; called once per call of the layer."""
        self._left -= 1
        return self._left < 0

    def record(self, paid: bool) -> None:
        """Record whether the last attempt was worthwhile."""
        self._pause = 0 if paid else min(2 * self._pause or 1, LONGEST_PAUSE)
        self._left = self._pause
