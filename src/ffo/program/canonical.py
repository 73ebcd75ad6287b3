"""A user's problem in canonical form: how parameters enter and how solutions are mapped back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from ffo.program.affine import AffineMap
from ffo.program.compact import eliminated
from ffo.program.declared import Declaration
from ffo.program.names import Names
from ffo.program.recovery import Recovery

if TYPE_CHECKING:  # it loads CVXPY
    from ffo.program.expressions.evaluate import Expressions


@dataclass(frozen=True)
class CanonicalProblem:
    """A parametrised cone program.

    Attributes:
        map: parameters -> cone program data.
        recovery: cone program solution -> requested quantities.
        shapes: shape of each parameter, in the user's order.
        labels: what each parameter is called in messages.
        open_sides: whether +inf as the right-hand side of an inequality means no constraint.
        declared: declared attributes of the parameters.
        names: the user's names of constraints and variables.
        lifted: expressions of the user's parameters, whose values are the last parameters of the map; None without.
    """

    map: AffineMap
    recovery: Recovery
    shapes: tuple[tuple[int, ...], ...]
    labels: tuple[str, ...]
    open_sides: bool = False
    declared: tuple[Declaration, ...] = ()
    names: Names = field(default_factory=lambda: Names((), ()))
    lifted: Expressions | None = None

    @property
    def given(self) -> int:
        """How many parameters the user gives; the others are `lifted`."""
        return len(self.shapes) - (len(self.lifted.results) if self.lifted else 0)

    @cached_property
    def compact(self) -> CanonicalProblem:
        """The problem without the auxiliary variables that can be eliminated once and for all; made on first use."""
        found = eliminated(self.map, self.recovery, self.names)
        return self if found is None else replace(self, map=found[0], recovery=found[1], names=found[2])
