"""Checks of the declared attributes of parameters, since the convexity of a problem may depend on them.

CVXPY infers curvature from the declared sign of a parameter, and from declared semidefiniteness. A value that breaks
the declaration gives a different problem, which may not be convex.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from ffo.program.convexity import has_factor

if TYPE_CHECKING:
    import cvxpy as cp

Array = np.ndarray

#: what counts as rounding, relative to the largest entry; asymmetry may also come from steps of finite differences
TOLERANCE, ASYMMETRY = 1e-9, 1e-5


@dataclass(frozen=True)
class Declaration:
    """The declared attributes of one parameter.

    Attributes:
        parameter: its position in the user's list; name: as in the problem; shape: its shape.
        signs: whether entries must be nonnegative (+1) or nonpositive (-1), and the name of that attribute.
        bounds: lower and upper bounds of the entries, or None.
        entries: numbers of the entries that must be 0 or 1 ("boolean"), whole ("integer"), or zero, being outside the
            declared pattern ("sparse"), by that word.
        symmetric, diagonal: whether it must be.
        definite: +1 if it must be positive semidefinite, -1 if negative, 0 if neither, or if that is checked elsewhere.
            For asymmetric values the symmetric part is checked.
        positive: whether it must be positive, because its logarithm is taken.
        derived: whether it is an expression of the user's parameters, named by its text, in which case CVXPY concluded
            what was said.
    """

    parameter: int
    name: str
    shape: tuple[int, ...]
    signs: tuple[tuple[int, str], ...]
    bounds: tuple[Any, Any] | None
    symmetric: bool
    diagonal: bool
    definite: int
    entries: tuple[tuple[str, Array], ...] = ()
    positive: bool = False
    derived: bool = False

    def refused(self, value: Array) -> dict[int, str]:
        """Samples whose value (batch, size) breaks the declaration, and why; 0 if all samples share the value."""
        found: dict[int, str] = {}
        matrix = self.symmetric or self.diagonal or self.definite
        wrong = [(s, word) for s, word in self.signs if np.count_nonzero(value < 0.0 if s > 0 else value > 0.0)]
        if self.positive:
            for k in np.flatnonzero(~(value > 0.0).all(axis=1)):
                found[int(k)] = self._not_positive(value[k])
            wrong = []
        if not (wrong or matrix or self.entries or self.bounds is not None):
            return found
        size = np.abs(value).max(axis=1, initial=0.0)
        least = -TOLERANCE * size
        for sign, word in wrong:
            extreme = (sign * value).min(axis=1, initial=np.inf)
            for k in np.flatnonzero(extreme < least):
                found[int(k)] = self._text(word, f"has the entry {sign * extreme[k]:.4g}")
        if self.bounds is not None:
            low, high = (np.broadcast_to(v, self.shape).ravel() for v in self.bounds)
            beyond = np.maximum(low - value, value - high).max(axis=1, initial=-np.inf)
            for k in np.flatnonzero(beyond > -least):
                found[int(k)] = self._text("bounded", f"is outside its bounds by {beyond[k]:.4g}")
        for word, which in self.entries:
            self._refuse_entries(word, value[:, which], size, found)
        if matrix:
            self._refuse_matrices(value.reshape(-1, *self.shape[-2:]), size, found)
        return found

    def _refuse_entries(self, word: str, value: Array, size: Array, found: dict[int, str]) -> None:
        where = " outside its pattern" if word == "sparse" else ""
        with np.errstate(invalid="ignore"):  # infinite entries are refused elsewhere
            distance = np.abs(value - nearest(word, value))
            wrong = distance > (TOLERANCE * unit(word, size))[:, None]
        for k in np.flatnonzero(wrong.any(axis=1)):
            worst = value[k, np.nanargmax(distance[k])]
            found[int(k)] = self._text(word, f"has the entry {worst:.4g}{where}")

    def _refuse_matrices(self, value: Array, size: Array, found: dict[int, str]) -> None:
        off = value[:, ~np.eye(value.shape[1], dtype=bool)] if self.diagonal else np.zeros((len(value), 0))
        for k in np.flatnonzero(np.abs(off).max(axis=1, initial=0.0) > TOLERANCE * size):
            found[int(k)] = self._text("diag", f"has the entry {np.abs(off[k]).max():.4g} off its diagonal")
        if self.symmetric:
            with np.errstate(invalid="ignore"):  # infinite entries are refused elsewhere
                asymmetry = np.abs(value - value.swapaxes(1, 2)).max(axis=(1, 2))
            for k in np.flatnonzero(asymmetry > ASYMMETRY * size):
                found[int(k)] = self._text("symmetric", f"differs by {asymmetry[k]:.4g} from its transpose")
        if self.definite:
            finite = np.flatnonzero(np.isfinite(size))
            both = 0.5 * self.definite * (value[finite] + value[finite].swapaxes(1, 2))
            least = TOLERANCE * size[finite] * value.shape[1]
            if has_factor(both + least[:, None, None] * np.eye(value.shape[1])):  # a tenth of the time of eigenvalues
                return
            for k, smallest, bound in zip(finite, np.linalg.eigvalsh(both)[:, 0], least, strict=True):
                if smallest < -bound:
                    word = "PSD" if self.definite > 0 else "NSD"
                    found[int(k)] = self._text(word, f"has the eigenvalue {self.definite * smallest:.4g}")

    def _not_positive(self, value: Array) -> str:
        worst = value[~(value > 0.0)][0]
        what = f"parameter expression {self.name}" if self.derived else f"parameter {self.parameter} ({self.name})"
        return f"the {what} of a geometric program must be positive, but has the entry {worst:.4g}"

    def _text(self, declared: str, fact: str) -> str:
        if self.derived:
            return f"the parameter expression {self.name} must be {declared} for the problem to be convex, but {fact}"
        return f"parameter {self.parameter} ({self.name}) was declared {declared} but {fact}"


def nearest(word: str, value: Array) -> Array:
    """The nearest values that are declared with this word (see `Declaration.entries`)."""
    if word == "sparse":
        return np.zeros_like(value)
    whole = np.round(value)
    return np.clip(whole, 0.0, 1.0) if word == "boolean" else whole


def unit(word: str, size: Array) -> Array:
    """What tolerances of entries are relative to: whole numbers are at least 1 apart, however small the values are."""
    return size if word == "sparse" else np.maximum(size, 1.0)


def declarations(
    parameters: Sequence[cp.Parameter], only_in_P: Sequence[bool], logged: Collection[int], given: int
) -> tuple[Declaration, ...]:
    """What is to be checked.

    Args:
        only_in_P: parameters of the quadratic term alone, whose convexity is checked anyway.
        logged: numbers of the parameters whose logarithm is taken.
        given: how many of the parameters are the user's.
    """
    found = []
    for i, (parameter, quadratic) in enumerate(zip(parameters, only_in_P, strict=True)):
        said = parameter.attributes
        signs = tuple(
            (s, w) for s, words in ((1, ("nonneg", "pos")), (-1, ("nonpos", "neg"))) for w in words if said[w]
        )
        definite = 0 if quadratic else int(bool(said["PSD"])) - int(bool(said["NSD"]))
        one = Declaration(
            i, parameter.name(), parameter.shape, signs, _bounds(parameter), bool(said["symmetric"]),
            bool(said["diag"]), definite, _entries(parameter), i in logged, i >= given,
        )  # fmt: skip
        stated = one.positive or signs or one.bounds is not None or one.entries
        if stated or one.symmetric or one.diagonal or definite:
            found.append(one)
    return tuple(found)


def _bounds(parameter: cp.Parameter) -> tuple[Array, Array] | None:
    given = parameter.attributes.get("bounds")
    if given is None:
        return None
    low, high = (v.toarray() if sparse.issparse(v) else np.asarray(v) for v in given)
    return low, high


def _entries(parameter: cp.Parameter) -> tuple[tuple[str, Array], ...]:
    said, shape = parameter.attributes, parameter.shape
    found = [
        (word, numbers_of(said[word], index, shape))
        for word, index in (("boolean", parameter.boolean_idx), ("integer", parameter.integer_idx))
        if said[word] is not False
    ]
    if said.get("sparsity"):
        inside = numbers_of(said["sparsity"], parameter.sparse_idx, shape)
        found.append(("sparse", np.setdiff1d(np.arange(math.prod(shape)), inside)))
    return tuple(found)


def numbers_of(declared: Any, index: Any, shape: tuple[int, ...]) -> Array:
    """Numbers of the declared entries of a parameter or variable, by rows.

    CVXPY's solvers read `index` as one sequence of coordinates per dimension. What cannot be read that way is taken as
    a list of entries, which CVXPY accepts for parameters.
    """
    every = np.arange(math.prod(shape)).reshape(shape)
    if declared is True:
        return every.ravel()
    try:
        if len(index) == len(shape):
            return every[tuple(np.asarray(one, dtype=int) for one in index)].ravel()
    except (IndexError, TypeError, ValueError):
        pass
    return np.array([every[one] for one in index]).ravel()


def refused(declared: Sequence[Declaration], values: Sequence[Array], batch: int) -> dict[int, str]:
    """Samples with a parameter that breaks its declaration; values are (size,) or (batch, size)."""
    found: dict[int, str] = {}
    for one in declared:
        value = values[one.parameter]
        bad = one.refused(np.atleast_2d(value))
        mine = bad if value.ndim == 2 else dict.fromkeys(range(batch), bad[0]) if bad else {}
        found = mine | found  # what is wrong with a parameter, rather than with expressions of it
    return found
