"""Expressions in parameters, compiled to steps (see the package's docstring)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.wraps import Wrap
from cvxpy.atoms.elementwise.huber import huber
from cvxpy.atoms.elementwise.power import Power
from cvxpy.atoms.gmatmul import gmatmul

from ffo.errors import UnsupportedProblemError
from ffo.program.expressions import edges, elementwise, reductions, structure
from ffo.program.expressions.namespace import HostNamespace
from ffo.program.expressions.structure import Function

Array = np.ndarray

TABLE = structure.RULES | elementwise.RULES | reductions.RULES


@dataclass(frozen=True)
class AtomStep:
    """One atom: a function of the values of earlier steps, or of parameters, or a constant.

    Attributes:
        edge: where the atom has no derivative (see `edges`); None: it has one everywhere.
    """

    function: Function | None
    sources: tuple[int, ...]
    constant: Array | None = None
    edge: edges.Test | None = None

    def value(self, xp: Any, values: Sequence[Any]) -> Any:
        """From the values of the parameters and the steps before."""
        if self.function is None:
            return xp.asarray(self.constant)
        return self.function(xp, *[values[k] for k in self.sources])


@dataclass(frozen=True)
class Expressions:
    """Values of some expressions for values of the parameters.

    Attributes:
        shapes: of the parameters.
        steps: in order; the parameters count as the first ones.
        results: which steps are the values of the expressions; texts: how these are written.
        depends: for each expression, the parameters that occur in it.
    """

    shapes: tuple[tuple[int, ...], ...]
    steps: tuple[AtomStep, ...]
    results: tuple[int, ...]
    texts: tuple[str, ...]
    depends: tuple[frozenset[int], ...]

    def __call__(self, xp: Any, parameters: Sequence[Any]) -> list[Any]:
        """Arrays of the parameters, each with or without a batch dimension -> arrays of the expressions.

        An expression has a batch dimension if one of its parameters has.
        """
        values = list(parameters)
        for step in self.steps:
            values.append(step.value(xp, values))
        return [values[k] for k in self.results]

    def batched(self, batched: Sequence[bool]) -> tuple[bool, ...]:
        """Which expressions have a batch dimension, told by which parameters have."""
        return tuple(any(batched[k] for k in own) for own in self.depends)

    @cached_property
    def groups(self) -> tuple[tuple[tuple[int, ...], Expressions], ...]:
        """Expressions that contain the same parameters: their numbers, and a function for them alone."""
        numbers: dict[frozenset[int], list[int]] = {}
        for k, own in enumerate(self.depends):
            numbers.setdefault(own, []).append(k)
        return tuple((tuple(some), self._some(some)) for some in numbers.values())

    def irregular(self, parameters: Sequence[Array], precision: Any) -> dict[int, Array]:
        """Expressions that have no derivative in some samples, and in which: (batch,), or () if no parameter of the
        expression has a batch dimension.

        Args:
            precision: the dtype in which the front end computes.
        """
        if not self._edges:
            return {}
        count, xp = len(self.shapes), HostNamespace(precision)
        values: list[Any] = [p.astype(precision, copy=False) for p in parameters]
        batched = [p.ndim > len(shape) for p, shape in zip(parameters, self.shapes, strict=True)]
        found: dict[int, Array] = {}
        with np.errstate(all="ignore"):
            for k, step in enumerate(self.steps, count):
                batched.append(any(batched[i] for i in step.sources))
                values.append(step.value(xp, values) if k in self._tested else None)
                if k not in self._edges:
                    continue
                at = step.edge(*[values[i] for i in step.sources])  # type: ignore[misc]
                samples = np.asarray(at.reshape(len(at), -1).any(axis=1) if batched[k] else at.any())
                if samples.any():
                    found |= {e: np.asarray(samples | found.get(e, False)) for e in self._edges[k]}
        return found

    def _some(self, numbers: Sequence[int]) -> Expressions:
        count, ends = len(self.shapes), [self.results[k] for k in numbers]
        needed = sorted(self._needed(ends))
        place = {i: i for i in range(count)} | {old: new for new, old in enumerate(needed, count)}
        own = [self.steps[i - count] for i in needed]
        steps = tuple(replace(step, sources=tuple(place[i] for i in step.sources)) for step in own)
        texts, depends = tuple(self.texts[k] for k in numbers), tuple(self.depends[k] for k in numbers)
        return Expressions(self.shapes, steps, tuple(place[k] for k in ends), texts, depends)

    def _needed(self, ends: Sequence[int]) -> frozenset[int]:
        """The steps that some values are computed from, with those of the values themselves."""
        found, todo = set[int](), [*ends]
        while todo:
            k = todo.pop()
            if k >= len(self.shapes) and k not in found:
                found.add(k)
                todo += self.steps[k - len(self.shapes)].sources
        return frozenset(found)

    @cached_property
    def _edges(self) -> dict[int, list[int]]:
        """Steps that may have no derivative, and the expressions that contain them."""
        whole = [self._needed([result]) for result in self.results]
        steps = [k for k, step in enumerate(self.steps, len(self.shapes)) if step.edge is not None]
        return {k: [e for e, own in enumerate(whole) if k in own] for k in steps}

    @cached_property
    def _tested(self) -> frozenset[int]:
        """The steps whose values decide on that."""
        return self._needed([i for k in self._edges for i in self.steps[k - len(self.shapes)].sources])


def sources_of(atom: Any) -> list[Any]:
    """The arguments of an atom, and what CVXPY keeps beside them: exponents, bounds, matrices."""
    if isinstance(atom, Power):
        return [*atom.args, atom.p] if atom.p.parameters() else list(atom.args)
    if isinstance(atom, huber):
        return [*atom.args, atom.M]
    if isinstance(atom, gmatmul):
        return [*atom.args, atom.A]
    return structure.operands(atom)


def compiled(
    expressions: Sequence[cp.Expression], parameters: Sequence[cp.Parameter], texts: Sequence[str]
) -> Expressions:
    """The steps that evaluate some expressions in parameters."""
    compiler = _Compiler(parameters)
    results = [compiler.place(e) for e in expressions]
    at = {p.id: k for k, p in enumerate(parameters)}
    depends = [frozenset(at[p.id] for p in e.parameters()) for e in expressions]
    shapes = tuple(tuple(p.shape) for p in parameters)
    return Expressions(shapes, tuple(compiler.steps), tuple(results), tuple(texts), tuple(depends))


class _Compiler:
    """Equal subexpressions become one step."""

    def __init__(self, parameters: Sequence[cp.Parameter]) -> None:
        self.count = len(parameters)
        self.steps: list[AtomStep] = []
        self.signatures = Signatures()
        self.known = {self.signatures.of(p): k for k, p in enumerate(parameters)}

    def place(self, e: Any) -> int:
        """The number of the step that is the value of an expression."""
        key = self.signatures.of(e)
        if key not in self.known:
            step = self._step(e)
            if step.function is structure.same:
                self.known[key] = step.sources[0]
            else:
                self.known[key] = self.count + len(self.steps)
                self.steps.append(step)
        return self.known[key]

    def _step(self, e: Any) -> AtomStep:
        if not e.parameters():
            value = e.value
            dense = value.toarray() if sp.issparse(value) else np.asarray(value)
            if np.iscomplexobj(dense) and dense.imag.any():
                raise UnsupportedProblemError(f"{e} is complex: write the problem in real and imaginary parts.")
            return AtomStep(None, (), np.asarray(dense.real, dtype=float).reshape(e.shape))
        kind = type(e)
        rule = TABLE.get(kind) or (TABLE[Wrap] if isinstance(e, Wrap) else None)
        if rule is None:
            raise UnsupportedProblemError(
                f"The parameter expression {e} contains {kind.__name__}, which has no translation: compute it outside "
                "of the layer and pass its value as a parameter."
            )
        return AtomStep(rule(e), tuple(self.place(source) for source in sources_of(e)), edge=_edge(e))


def _edge(e: Any) -> edges.Test | None:
    rule = edges.RULES.get(type(e))
    test = None if rule is None else rule(e)
    last = sources_of(e)[-1]
    if getattr(test, "func", test) in edges.INFINITE and (isinstance(last, cp.Parameter) or not last.parameters()):
        return None  # it is as infinite as the user made it
    return test


class Signatures:
    """Numbers that are equal for expressions that are written in the same way."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._seen: dict[int, tuple[Any, int]] = {}

    def of(self, e: Any) -> int:
        if id(e) not in self._seen:
            key = self._key(e)
            self._seen[id(e)] = e, self._numbers.setdefault(key, len(self._numbers))
        return self._seen[id(e)][1]

    def _key(self, e: Any) -> Any:
        if isinstance(e, cp.Parameter | cp.Variable):
            return ("leaf", e.id)
        if isinstance(e, cp.Constant):
            return ("constant", *_array(e.value.toarray() if sp.issparse(e.value) else np.asarray(e.value)))
        data = () if e.get_data() is None else tuple(map(self._frozen, e.get_data()))
        return (type(e), data, *map(self.of, e.args))

    def _frozen(self, data: Any) -> Any:
        if isinstance(data, cp.Expression):
            return self.of(data)
        if isinstance(data, np.ndarray):
            return _array(data)
        if isinstance(data, list | tuple):
            return tuple(map(self._frozen, data))
        return repr(data)


def _array(value: Array) -> Any:
    return value.shape, str(value.dtype), hashlib.sha256(value.tobytes()).digest()
