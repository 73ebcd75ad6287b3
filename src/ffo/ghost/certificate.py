"""How far to trust a gradient, sample by sample.

Duality gap and feasibility say nothing about the error of a gradient; Newton's method on the natural
residual does. The evidence: did the active structure settle under a Newton step, how large is the
error that is left, could an error of that size still move a block to another face, and did the
backward solve itself succeed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffo.kernels.point import MARGIN_RATIO

Array = np.ndarray

#: estimated relative error above which the gradient is not called good
ERROR = 1e-5
#: relative residual or error of the ghost solve above which the gradient is not called good
RESIDUAL = 1e-6


@dataclass(frozen=True)
class Certificate:
    """Evidence about the gradient of each sample; (batch,) arrays.

    Attributes:
        unsettled: the active set kept changing under Newton steps.
        margin_ratio: estimated remaining error over the distance to a change of structure.
        weakly_active: some constraint is active with (numerically) no multiplier, or met without
            being active, and the derivative depends on which it is: it jumps there, and a one-sided one is returned.
            Before any derivative is taken: that there is such a constraint.
        error: estimate of the relative error of the solution, and so of the gradient.
        natural_residual: relative residual of the optimality conditions of the returned solution.
        ghost_residual: relative residual of the last backward (ghost) solve, or its relative error
            where that is larger (estimated by the direct way); NaN before any. Large where the
            solution is not unique, or nearly so, and the loss sees it: then the gradient is a least-squares one.
        ambiguous: the solution is not unique, and the gradient depends on which one was taken.
        dependent: active constraints depend on each other, a parameter moves them apart, and the loss sees that: the
            derivative is one-sided, or the solution jumps. Right-hand sides of dependent equalities are taken
            to move so that the equalities agree.
        relaxed: the sample is infeasible, and the solution and its gradient are those of the nearest feasible problem
            (`on_fail="relax"`); that is no reason for doubt.
        indefinite: a direction of negative curvature was met on the active constraints: the point is
            stationary but no minimum (problems given by functions need not be convex).
    """

    unsettled: Array
    margin_ratio: Array
    weakly_active: Array
    error: Array
    natural_residual: Array
    ghost_residual: Array
    ambiguous: Array
    dependent: Array
    indefinite: Array
    relaxed: Array

    @classmethod
    def before_backward(
        cls,
        *,
        unsettled: Array,
        margin_ratio: Array,
        weakly_active: Array,
        error: Array,
        natural_residual: Array,
        dependent: Array | None = None,
        indefinite: Array | None = None,
    ) -> Certificate:
        """What a forward pass found out; nothing is held against a gradient of which nobody looked for it."""
        nothing, unknown = np.zeros(len(unsettled), dtype=bool), np.empty(len(unsettled))
        unknown.fill(np.nan)
        return cls(
            unsettled=unsettled,
            margin_ratio=margin_ratio,
            weakly_active=weakly_active,
            error=error,
            natural_residual=natural_residual,
            ghost_residual=unknown,
            ambiguous=nothing,
            dependent=nothing.copy() if dependent is None else dependent,
            indefinite=nothing.copy() if indefinite is None else indefinite,
            relaxed=nothing.copy(),
        )

    @classmethod
    def unsolved(cls, batch: int) -> Certificate:
        """That of samples without a solution."""
        infinite = np.full(batch, np.inf)
        return cls.before_backward(
            unsettled=np.ones(batch, dtype=bool),
            margin_ratio=infinite,
            weakly_active=np.zeros(batch, dtype=bool),
            error=infinite.copy(),
            natural_residual=np.full(batch, np.nan),
        )

    @property
    def all_good(self) -> bool:
        """`good.all()`, in less time."""
        flags = self.unsettled, self.weakly_active, self.indefinite, self.ambiguous, self.dependent
        if any(map(np.count_nonzero, flags)) or np.count_nonzero(self.ghost_residual > RESIDUAL):
            return False
        right = (self.margin_ratio <= MARGIN_RATIO) & (self.error <= ERROR)
        return bool(np.count_nonzero(right) == len(right))

    @property
    def good(self) -> Array:
        """(batch,) true where nothing speaks against the gradient.

        Whether the solution is unique shows only when a derivative is taken: read this after backward.
        """
        bad = self.unsettled | self.weakly_active | self.indefinite | self.ambiguous | self.dependent
        bad |= self.ghost_residual > RESIDUAL  # not before any backward, where it is NaN
        return (self.margin_ratio <= MARGIN_RATIO) & (self.error <= ERROR) & ~bad

    def after_backward(
        self, residual: Array, dependent: Array | None = None, ambiguous: Array | None = None,
        kinked: Array | None = None,
    ) -> Certificate:  # fmt: skip
        """The same after another pass through the derivative: with the residual of its ghost solve (NaN: none), and
        what speaks against it; `kinked`: which weakly active samples stay so. The worst of all passes stays."""
        known = {**vars(self), "ghost_residual": np.fmax(self.ghost_residual, residual)}
        if dependent is not None:
            known["dependent"] = self.dependent | dependent
        if ambiguous is not None:
            known["ambiguous"] = self.ambiguous | ambiguous
        if kinked is not None and (np.count_nonzero(kinked) or np.count_nonzero(self.weakly_active)):
            if not np.isnan(self.ghost_residual).all():
                kinked = kinked | self.weakly_active
            known["weakly_active"] = kinked
            # what is nearer than its error to another face has been looked at
            known["margin_ratio"] = np.where(self.weakly_active & ~kinked, 0.0, self.margin_ratio)
        return Certificate(**known)

    def put(self, samples: Array, other: Certificate) -> Certificate:
        """This one with some samples (by number) replaced."""
        found = {name: value.copy() for name, value in vars(self).items()}
        for name, value in found.items():
            value[samples] = getattr(other, name)
        return Certificate(**found)

    def reasons(self, sample: int) -> list[str]:
        """Why the gradient of a sample is not called good; empty if it is."""
        k, found = sample, []
        if np.isnan(self.natural_residual[k]):
            return ["the sample was not solved"]
        if self.weakly_active[k]:
            found.append(
                "a constraint is weakly active: the derivative is one-sided there (smoothing= averages it "
                "where it is an inequality or a norm)"
            )
        elif self.unsettled[k] or self.margin_ratio[k] > MARGIN_RATIO:
            found.append("the active set is not settled at this accuracy: solve with a smaller eps")
        elif self.error[k] > ERROR:
            found.append("the solution is inaccurate: solve with a smaller eps")
        if self.indefinite[k]:
            found.append("the objective curves downwards along the active constraints: the point is no minimum")
        if self.dependent[k]:
            found.append(
                "active constraints depend on each other: in their right-hand sides and coefficients the "
                "derivative is one-sided (drop redundant ones, or smoothing= averages it)"
            )
        if self.ambiguous[k]:
            found.append(
                "the solution is not unique, and its derivative depends on which one is taken (a small quadratic "
                "term makes it unique)"
            )
        if self.ghost_residual[k] > RESIDUAL and not (self.ambiguous[k] or self.dependent[k]):
            found.append(
                "the ghost system is inconsistent or nearly singular: the solution is not unique, the "
                "gradient is a least-squares one (a small quadratic term makes it unique)"
            )
        return found
