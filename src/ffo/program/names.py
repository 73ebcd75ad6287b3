"""Names of the user's constraints and variables behind the rows and columns of a program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ffo.errors import InputError

Array = np.ndarray

#: entries of a vector, relative to its largest, that are too small to be named
SMALL = 1e-7


@dataclass(frozen=True)
class Named:
    """A constraint or a variable: rows or columns of a program, and their names.

    Attributes:
        name: of the whole; the user may refer to it by this name.
        places: (entries, k) the rows or columns of each entry, -1 if it has none.
        shape: of the entries, in C order; () if it has no parts.
        form: format of an entry's name, with "{name}" and "{index}".
        relaxable: whether it may get slack.
    """

    name: str
    places: Array
    shape: tuple[int, ...]
    form: str = "{name}[{index}]"
    relaxable: bool = True

    def entry(self, k: int) -> str:
        """The name of entry k."""
        if not self.shape:
            return self.name
        index = ", ".join(str(int(i)) for i in np.unravel_index(k, self.shape))
        return self.form.format(name=self.name, index=index)


@dataclass(frozen=True)
class Names:
    """All constraints and variables of a problem that have a name."""

    constraints: tuple[Named, ...]
    variables: tuple[Named, ...]

    def rows(self, chosen: Sequence[int | str] | None = None) -> Array:
        """Rows of some constraints, by number or name, or of all that are relaxable, in ascending order."""
        mine = self.constraints
        if chosen is None:
            mine = tuple(c for c in mine if c.relaxable)
        else:
            mine = tuple(c for k, c in enumerate(mine) if k in chosen or c.name in chosen)
        rows = np.concatenate([np.zeros(0, dtype=int), *(c.places.ravel() for c in mine)])
        return np.unique(rows[rows >= 0])

    def numbers(self, chosen: Sequence[Any], given: Sequence[Any]) -> tuple[int, ...]:
        """Numbers of the constraints that a user chose, as objects among those given or by number."""
        places = {id(c): k for k, c in enumerate(given)}
        found = []
        for one in chosen:
            k = one if isinstance(one, int) and 0 <= one < len(given) else places.get(id(one))
            if k is None:
                raise InputError(
                    f"{one} is not one of the problem's constraints: pass the object itself, or its number"
                )
            if not self.constraints[k].places.size:
                raise InputError(f"{self.constraints[k].name} cannot be relaxed: it is rewritten as other constraints")
            found.append(k)
        return tuple(found)


def parts(named: Sequence[Named], v: Array, sizes: Array | None = None) -> list[tuple[str, float]]:
    """Names of the entries in which a vector of a program, y (m,) or x (n,), is not zero, the largest first, with the
    largest component of each; `sizes`: units in which components are compared."""
    found = [each for one in named for each in _parts(one, v, np.ones_like(v) if sizes is None else sizes)]
    largest = max((size for size, *_ in found), default=0.0)
    return [(name, value) for size, name, value in sorted(found, key=lambda each: -each[0]) if size > SMALL * largest]


def _parts(named: Named, v: Array, sizes: Array) -> Iterator[tuple[float, str, float]]:
    values = np.where(named.places >= 0, v[named.places], 0.0)
    weighed = np.abs(values) * sizes[named.places]
    for k in np.flatnonzero(values.any(axis=1)).tolist():
        first = weighed[k].argmax()
        yield float(weighed[k, first]), named.entry(k), float(values[k, first])
