"""Reading the blocks Q, p, G, h, A, b, lb, ub, lower of a call, for arrays of any framework.

A front end splits its arrays into values and patterns. The checks of their shapes, and the construction of a
`QuadraticStructure`, are the same for all front ends and are done here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from ffo.errors import InputError
from ffo.program.quadratic import NAMES, MatrixPattern, Name, QuadraticStructure

Array = np.ndarray
T = TypeVar("T")

MATRICES: tuple[Name, ...] = ("Q", "G", "A")
#: bounds, with the value that means no constraint
SIDES: dict[Name, float] = {"h": np.inf, "ub": np.inf, "lower": -np.inf, "lb": -np.inf}


@dataclass(frozen=True)
class Blocks(Generic[T]):
    """The blocks of a call: their structure, values (nonzeros,) or (batch, nonzeros), and the batch
    size (None: unbatched)."""

    structure: QuadraticStructure
    values: dict[Name, T]
    batch: int | None


def is_absent(name: Name, shape: tuple[int, ...]) -> bool:
    """Whether a block of this shape is absent, because it has no rows. (An empty batch is not absent.)"""
    own = 2 if name in MATRICES else 1
    return 0 in shape[-own:] if len(shape) >= own else 0 in shape


def check_shapes(shapes: Mapping[Name, tuple[int, ...]]) -> int | None:
    """Check the shapes of the blocks that are present; returns the batch size, None if unbatched."""
    if "p" not in shapes:
        raise InputError("p, the linear term, is required (pass a vector of zeros if there is none)")
    for matrix, vectors in (("G", ("h", "lower")), ("A", ("b",))):
        has = [v for v in vectors if v in shapes]
        if matrix in shapes and not has:
            raise InputError(f"{matrix} needs a right-hand side: give {' or '.join(vectors)}")
        if has and matrix not in shapes:
            raise InputError(f"{has[0]} was given without {matrix}")
    if len(shapes["p"]) not in (1, 2):
        raise InputError(f"p must be (n,) or (batch, n), got {shapes['p']}")
    n = shapes["p"][-1]
    lengths: dict[Name, int] = {"p": n, "lb": n, "ub": n}
    for name in (name for name in MATRICES if name in shapes):
        shape, rows = shapes[name], str(n) if name == "Q" else "rows"
        if len(shape) not in (2, 3) or shape[-1] != n or (name == "Q" and shape[-2] != n):
            hint = f" (p has {n} entries)" if len(shape) in (2, 3) else ""
            raise InputError(f"{name} must be ({rows}, {n}) or (batch, {rows}, {n}), got {shape}{hint}")
    if "G" in shapes:
        lengths["h"] = lengths["lower"] = shapes["G"][-2]
    if "A" in shapes:
        lengths["b"] = shapes["A"][-2]
    for name, length in lengths.items():
        if name in shapes and (len(shapes[name]) not in (1, 2) or shapes[name][-1] != length):
            raise InputError(f"{name} must be ({length},) or (batch, {length}), got {shapes[name]}")
    return _batch_size(shapes)


def _batch_size(shapes: Mapping[Name, tuple[int, ...]]) -> int | None:
    sizes = {k: s[0] for k, s in shapes.items() if len(s) == (3 if k in MATRICES else 2)}
    if 0 in sizes.values():
        raise InputError("The batch is empty. Skip empty batches before the layer.")
    if len(set(sizes.values())) > 1:
        raise InputError(f"Inconsistent batch sizes: {', '.join(f'{k}: {s}' for k, s in sizes.items())}")
    return next(iter(sizes.values()), None)


def split_blocks(
    given: Mapping[Name, tuple[Any, tuple[int, ...], MatrixPattern | None]], missing: Callable[[Any, float], Array]
) -> Blocks[Any]:
    """The blocks of a call, each with its shape and, if it is sparse, its pattern. Their shapes are checked."""
    present = {name: parts for name, parts in given.items() if not is_absent(name, parts[1])}
    batch = check_shapes({name: shape for name, (_, shape, _) in present.items()})
    values: dict[Name, Any] = {}
    patterns: dict[Name, MatrixPattern] = {}
    for name, (value, shape, pattern) in present.items():
        if name in MATRICES:
            patterns[name] = pattern or MatrixPattern.full(*shape[-2:])
            value = value if pattern else value.reshape(*shape[:-2], -1)
        values[name] = value
    return make_blocks(values, patterns, present["p"][1][-1], batch, missing)


def make_blocks(
    values: Mapping[Name, T],
    patterns: Mapping[Name, MatrixPattern],
    n: int,
    batch: int | None,
    missing: Callable[[T, float], Array],
) -> Blocks[T]:
    """The blocks from their parts.

    Args:
        missing: (values of a bound, its infinity) -> where they are equal; (entries,) or (batch, entries).
    """
    ordered = {name: values[name] for name in NAMES if name in values}
    sides = {}
    for name, infinity in SIDES.items():
        if name in ordered:
            open_ended = missing(ordered[name], infinity)
            if np.count_nonzero(open_ended):
                sides[name] = np.asarray(~np.atleast_2d(open_ended).all(axis=0))
            else:
                sides[name] = np.ones(open_ended.shape[-1], dtype=bool)
    return Blocks(QuadraticStructure(n, dict(patterns), sides), ordered, batch)


def union_pattern(rows: Array, cols: Array, shape: tuple[int, int]) -> tuple[MatrixPattern, Array]:
    """The pattern of entries that may be repeated (by several samples), and the position of each in it."""
    places, entry = np.unique(rows.astype(np.int64) * shape[1] + cols, return_inverse=True)
    return MatrixPattern(places // shape[1], places % shape[1], shape), entry
