"""What is remembered between calls: solutions by sample, the matrices used last, and what was worth trying."""

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

#: memory given to remembered solutions
MAX_BYTES = 256 * 2**20
#: calls after which everything is tried again
LONGEST_PAUSE = 64
_ALIKE = SharedMatrices()


class Memory:
    """What was last known of each key, some vectors in one row of one array; the least recently used are
    forgotten beyond `max_bytes`. Threads may share it; copies of it start empty, and so do those of a forked process,
    where what another thread was changing stays half changed, and its lock locked.
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
        """Positions that are known, and their vectors, which have these lengths: (known, width) each."""
        with self._lock:
            self._fit(widths)
            known = [i for i, key in enumerate(keys) if key in self._places]
            for i in known:
                self._places.move_to_end(keys[i])
            rows = self._rows[np.array([self._places[keys[i]] for i in known], dtype=int)]
        return np.array(known, dtype=int), *(rows[:, part] for part in _parts(widths))

    def remember(self, keys: Sequence[Hashable], *vectors: Array) -> None:
        """Keep vectors (len(keys), width) each; they are copied."""
        widths = tuple(v.shape[1] for v in vectors)
        with self._lock:
            self._fit(widths)
            places = [self._place(key) for key in keys]  # of places that are taken twice, the last is right
            if len(self._places) > len(self._rows):
                more = min(max(2 * len(self._rows), len(self._places)), self._limit) - len(self._rows)
                self._rows = np.concatenate([self._rows, np.empty((more, sum(widths)), self.dtype)])
            for part, v in zip(_parts(widths), vectors, strict=True):
                self._rows[places, part] = v

    @property
    def _limit(self) -> int:
        """Keys that there is memory for."""
        return max(int(self.max_bytes // max(self._rows.shape[1] * self._rows.itemsize, 1)), 1)

    def _fit(self, widths: tuple[int, ...]) -> None:
        """Forget vectors of other lengths."""
        if self._widths != widths:
            self._places.clear()
            self._rows, self._widths = np.empty((0, sum(widths)), self.dtype), widths

    def _place(self, key: Hashable) -> int:
        """The row of a key, a new one or that of the least recently used."""
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
    """The matrices used last: where a program has equal ones, those stand in for them.

    What was derived from them (products, norms, patterns by rows) then need not be derived again. Values
    are compared, not trusted: matrices may have been changed in place.
    """

    def __init__(self) -> None:
        self._last: ConeProgram | None = None
        self._made: tuple[AffineMap, Made] | None = None
        self._judged: tuple[SymmetricBatch, dict[int, float]] | None = None
        self._facts: dict[Callable[[ConeProgram], Any], tuple[ConeProgram, Any]] = {}

    def program(self, affine: AffineMap, values: Sequence[Array]) -> ConeProgram:
        """The program of these parameters; blocks whose parameters are those of the last call are not made again."""
        made = self._made
        if made is None or made[0] is not affine:
            made = self._made = affine, {}
        return affine.apply(values, made[1])

    def indefinite(self, P: SymmetricBatch) -> dict[int, float]:
        """`convexity.indefinite`, asked once of a matrix that is recognized."""
        judged = self._judged
        if judged is None or judged[0] is not P:
            judged = self._judged = P, indefinite(P)
        return judged[1]

    def once(self, find: Callable[[ConeProgram], Fact], program: ConeProgram) -> Fact:
        """find(program), which depends on matrices and cones alone: asked once of matrices that are recognized."""
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
        program = _ALIKE.apply(program.pruned())
        P, A = program.P, program.A
        if P.shared:
            P = last.P if last is not None and last.P.same(P) else P.owned()
        if A.shared:
            A = last.A if last is not None and last.A.same(A) else A.owned()
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
