"""How far to trust a gradient, sample by sample.

Duality gap and feasibility say nothing about the error of a gradient; Newton's method on the natural
residual does. The evidence: did the active structure settle under a Newton step, how large is the
error that is left, could an error of that size still move a block to another face, and did the
backward solve itself succeed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray

#: remaining error relative to the distance to a change of structure above which to warn
MARGIN_RATIO = 0.5
#: relative distance to a change of structure below which a block counts as weakly active
WEAK = 1e-9
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
            being active: the derivative jumps there and a one-sided one is returned.
        error: estimate of the relative error of the solution, and so of the gradient.
        natural_residual: relative residual of the optimality conditions of the returned solution.
        ghost_residual: relative residual of the last backward (ghost) solve, or its relative error
            where that is larger (estimated by the direct way); NaN before any. Large where the
            solution is not unique, or nearly so: then the gradient is a least-squares one. It stays small
            where the loss sees only what all solutions share (multipliers, say, or some variables): then
            gradients in costs and matrices are one choice of many, and are not flagged.
        dependent: active constraints, not all of them equalities, depend on each other: the solution has
            one-sided derivatives in their right-hand sides and coefficients only. Derivatives in the
            objective are not touched: where only these are asked for, nobody looks.
        constraints: whether derivatives in constraints were asked for.
        indefinite: a direction of negative curvature was met on the active constraints: the point is
            stationary but no minimum (problems given by functions need not be convex).
    """

    unsettled: Array
    margin_ratio: Array
    weakly_active: Array
    error: Array
    natural_residual: Array
    ghost_residual: Array
    dependent: Array
    constraints: Array
    indefinite: Array

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
        nothing, unknown = np.zeros(len(unsettled), dtype=bool), np.full(len(unsettled), np.nan, dtype=float)
        return cls(
            unsettled=unsettled,
            margin_ratio=margin_ratio,
            weakly_active=weakly_active,
            error=error,
            natural_residual=natural_residual,
            ghost_residual=unknown,
            dependent=nothing if dependent is None else dependent,
            constraints=~nothing,
            indefinite=nothing.copy() if indefinite is None else indefinite,
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
    def good(self) -> Array:
        """(batch,) true where nothing speaks against the gradient.

        Whether the solution is unique shows only when a derivative is taken: read this after backward.
        """
        bad = self.unsettled | self.weakly_active | self.indefinite | (self.dependent & self.constraints)
        bad |= self.ghost_residual > RESIDUAL  # not before any backward, where it is NaN
        return (self.margin_ratio <= MARGIN_RATIO) & (self.error <= ERROR) & ~bad

    def after_backward(self, residual: Array, dependent: Array | None) -> Certificate:
        """The same after another pass through the derivative: with the residual of its ghost solve (NaN: none), and
        dependent constraints (None: derivatives in constraints were not asked for). The worst of all passes stays."""
        asked = dependent is not None
        if not np.isnan(self.ghost_residual).all():
            residual = np.fmax(self.ghost_residual, residual)
            asked = asked or bool(self.constraints.any())
        known = {**vars(self), "ghost_residual": residual, "constraints": np.full(len(self.unsettled), asked)}
        if dependent is not None:
            known["dependent"] = self.dependent | dependent
        return Certificate(**known)

    def reasons(self, sample: int) -> list[str]:
        """Why the gradient of a sample is not called good; empty if it is."""
        k, found = sample, []
        if np.isnan(self.natural_residual[k]):
            return ["the sample was not solved"]
        if self.weakly_active[k]:
            found.append("a constraint is weakly active: the derivative is one-sided there (smoothing= averages it)")
        elif self.unsettled[k] or self.margin_ratio[k] > MARGIN_RATIO:
            found.append("the active set is not settled at this accuracy: solve with a smaller eps")
        elif self.error[k] > ERROR:
            found.append("the solution is inaccurate: solve with a smaller eps")
        if self.indefinite[k]:
            found.append("the objective curves downwards along the active constraints: the point is no minimum")
        if self.dependent[k] and self.constraints[k]:
            found.append(
                "active constraints depend on each other: in their right-hand sides and coefficients the "
                "derivative is one-sided (drop redundant ones, or smoothing= averages it)"
            )
        if self.ghost_residual[k] > RESIDUAL:
            found.append(
                "the ghost system is inconsistent or nearly singular: the solution is not unique, the "
                "gradient is a least-squares one (a small quadratic term makes it unique)"
            )
        return found
