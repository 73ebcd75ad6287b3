"""Records of forward passes for their derivatives, by number.

A traced program can pass arrays from a solve to its derivative, but no Python objects. So a solve returns a token, two
integers, and its record is kept here under it. A record that is gone (this table is bounded, and a program may be
loaded from a file or in another process) is computed again: that costs time, but does not change the answer.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from threading import Lock
from typing import Any, Generic, TypeVar

import numpy as np

Array = np.ndarray
Record = TypeVar("Record")
#: the token of a solve that is not differentiated, or did not happen
NOTHING = np.zeros(2, dtype=np.uint32)
#: records that wait for their derivative (a loop over many solves leaves one each): the number always kept, the largest
#: number, and the bytes that limit it in between
FEWEST, MOST, MOST_BYTES = 8, 256, 2**30
GONE = (
    "the draws of this smoothed call are gone, and their derivative with them: take derivatives before other calls of "
    "the layer, at most a few hundred later"
)


class Records(Generic[Record]):
    """Records of one layer. Safe to share between threads; copies start empty, with their own tokens.

    Once a derivative has been taken, its record is kept only until the next one is used: training keeps one, and a
    second pass through the same derivative finds it.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[int, Record] = OrderedDict()
        self._used: tuple[int, Record] | None = None
        self._lock = Lock()
        self._origin = int.from_bytes(os.urandom(4), "little") or 1
        self._count = 0

    def __reduce__(self) -> tuple[type[Records[Record]], tuple[()]]:
        return Records, ()

    def __len__(self) -> int:
        return len(self._open) + (self._used is not None)

    def keep(self, record: Record, held: object) -> Array:
        """The token of a record; `held`: the object whose arrays it keeps in memory."""
        with self._lock:
            self._count = (self._count + 1) % 2**32
            self._open[self._count] = record
            if len(self._open) > FEWEST:
                room = min(max(MOST_BYTES // max(array_bytes(held), 1), FEWEST), MOST)
                while len(self._open) > room:
                    self._open.popitem(last=False)
            return np.array([self._origin, self._count], dtype=np.uint32)

    def find(self, token: Array) -> Record | None:
        """The record of a token; None if it is gone or unknown."""
        origin, number = token.tolist()
        if origin != self._origin:
            return None
        with self._lock:
            if number in self._open:
                self._used = number, self._open.pop(number)
            return self._used[1] if self._used is not None and self._used[0] == number else None


def array_bytes(root: object) -> int:
    """Bytes of the arrays that an object holds, each counted once."""
    seen: set[int] = set()
    total, todo = 0, [root]
    while todo:
        each: Any = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, np.ndarray):
            owner = each if each.base is None else each.base
            if id(owner) not in seen or owner is each:
                seen.add(id(owner))
                total += getattr(owner, "nbytes", each.nbytes)
        elif isinstance(each, (list, tuple)):
            todo.extend(each)
        elif isinstance(each, dict):
            todo.extend(each.values())
        elif type(each).__module__.startswith("ffo."):
            todo.extend(getattr(each, "__dict__", {}).values())
    return total
