"""Records of forward passes for their derivatives, by number.

A traced program can pass arrays from a solve to its derivative, but no Python objects. So a solve returns a token, two
integers, and its record is kept here under it. A record that is gone (this table is bounded, and a program may be
loaded from a file or in another process) is computed again: that costs time, but does not change the answer.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from ffo.engine.call import LayerCall, LayerRecord

Array = np.ndarray
#: the token of a solve that is not differentiated, or did not happen; and of one that has to be repeated
NOTHING = np.zeros(2, dtype=np.uint32)
AGAIN = np.array([0, 1], dtype=np.uint32)
#: records that wait for their derivative (a loop over many solves leaves one each): the number always kept, the largest
#: number, and the bytes that limit it in between
FEWEST, MOST, MOST_BYTES = 8, 256, 2**30


@dataclass(frozen=True)
class SolvedCall:
    """A call, and what its derivatives need."""

    call: LayerCall
    record: LayerRecord

    def is_of(self, values: Sequence[Array], samples: Array) -> bool:
        """Whether it was solved for these values, which have its shapes, at least for the given samples."""
        pairs = zip(values, self.record.values, self.call.batched, strict=True)
        return all(
            np.array_equal(v[samples].reshape(-1, k.shape[-1]), k[samples], equal_nan=True)
            if batched
            else np.array_equal(v.ravel(), k.ravel(), equal_nan=True)
            for v, k, batched in pairs
        )


class Records:
    """Records of one layer. Safe to share between threads; copies start empty, with their own tokens.

    Once a derivative has been taken, its record is kept only until the next one is used: training keeps one, and a
    second pass through the same derivative finds it.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[int, SolvedCall] = OrderedDict()
        self._used: tuple[int, SolvedCall] | None = None
        self._lock = Lock()
        self._origin = int.from_bytes(os.urandom(4), "little") or 1
        self._count = 0

    def __reduce__(self) -> tuple[type[Records], tuple[()]]:
        return Records, ()

    def __len__(self) -> int:
        return len(self._open) + (self._used is not None)

    def keep(self, solved: SolvedCall) -> Array:
        """The token of a record."""
        with self._lock:
            self._count = (self._count + 1) % 2**32
            self._open[self._count] = solved
            if len(self._open) > FEWEST:
                room = min(max(MOST_BYTES // max(array_bytes(solved.record), 1), FEWEST), MOST)
                while len(self._open) > room:
                    self._open.popitem(last=False)
            return np.array([self._origin, self._count], dtype=np.uint32)

    def find(self, token: Array) -> SolvedCall | None:
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
