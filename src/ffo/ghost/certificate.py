"""How far to trust a gradient, sample by sample.

The duality gap and feasibility say nothing about the error of a gradient; Newton's method on the natural
residual does. The evidence: whether the active set is unchanged by a Newton step, how large the remaining
error is, whether an error of that size could still move a block to another face, and whether the backward
solve itself succeeded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ffo.kernels.point import MARGIN_RATIO

Array = np.ndarray

#: estimated relative error above which the gradient is not good
ERROR = 1e-5
#: relative residual or error of the ghost solve above which the gradient is not good
RESIDUAL = 1e-6


@dataclass(frozen=True)
class Certificate:
    """Evidence about the gradient of each sample; (batch,) arrays.

    Attributes:
        unsettled: the active set kept changing under Newton steps.
        margin_ratio: estimated remaining error over the distance to a change of structure.
        weakly_active: the multiplier and the slack of some constraint are both (numerically) zero, and the
            derivative depends on whether it counts as active: it jumps there, and a one-sided one is returned.
            Before any derivative is taken: whether there is such a constraint.
        error: estimated relative error of the solution, and therefore of the gradient. For problems given by functions
            it is at least the distance within which the curvature changes along the last Newton step: at a flat minimum
            no residual tells the points within it apart.
        natural_residual: relative residual of the optimality conditions of the returned solution.
        ghost_residual: relative residual of the last backward (ghost) solve, or its relative error
            if that is larger (estimated by `backward="direct"`); NaN before any backward pass. Large if the
            solution is not unique, or nearly so, and the loss depends on it: the gradient is then a least-squares one.
        ambiguous: the solution is not unique, and the gradient depends on which solution was taken.
        dependent: active constraints depend on each other, a parameter makes them inconsistent, and the loss
            depends on it: the derivative is one-sided, or the solution jumps. Right-hand sides of dependent equalities
            are assumed to move so that the equalities stay consistent.
        relaxed: the sample is infeasible, and the solution and its gradient are those of the nearest feasible problem
            (`on_fail="relax"`); this is no reason for doubt.
        indefinite: a direction of negative curvature was found on the active constraints: the point is
            stationary but not a minimum (problems given by functions need not be convex).
        irregular: an expression of parameters (docs/parameters.md) has no derivative at their values: it has a kink
            (abs at zero), a jump, or an infinite slope (sqrt at zero), and the derivative goes through it. Before any
            derivative is taken: whether there is such an expression.
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
    irregular: Array

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
        """The evidence of a forward pass; what was not checked yet is treated as good."""
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
            irregular=nothing.copy(),
        )

    @classmethod
    def unsolved(cls, batch: int) -> Certificate:
        """The certificate of samples without a solution."""
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
        """Whether there is no reason to doubt any gradient."""
        return bool(self.good.all())

    @property
    def good(self) -> Array:
        """(batch,) true where there is no reason to doubt the gradient.

        Read this after the backward pass: only a derivative shows whether the solution is unique.
        """
        bad = self.unsettled | self.weakly_active | self.indefinite | self.ambiguous | self.dependent | self.irregular
        bad |= self.ghost_residual > RESIDUAL  # NaN, and so false, before any backward pass
        return (self.margin_ratio <= MARGIN_RATIO) & (self.error <= ERROR) & ~bad

    def after_backward(
        self, residual: Array, dependent: Array | None = None, ambiguous: Array | None = None,
        kinked: Array | None = None,
    ) -> Certificate:  # fmt: skip
        """The certificate after another backward or forward-mode pass, keeping the worst verdict of all passes.

        `residual` is that of the pass's ghost solve (NaN: none); `kinked` says which weakly active samples remain so.
        """
        known = {**vars(self), "ghost_residual": np.fmax(self.ghost_residual, residual)}
        if dependent is not None:
            known["dependent"] = self.dependent | dependent
        if ambiguous is not None:
            known["ambiguous"] = self.ambiguous | ambiguous
        if kinked is not None and (np.count_nonzero(kinked) or np.count_nonzero(self.weakly_active)):
            if self.differentiated:
                kinked = kinked | self.weakly_active
            known["weakly_active"] = kinked
            # these are nearer to another face than their error, but that face gives the same derivative
            known["margin_ratio"] = np.where(self.weakly_active & ~kinked, 0.0, self.margin_ratio)
        return Certificate(**known)

    @property
    def differentiated(self) -> bool:
        """Whether any derivative has been taken."""
        return not np.isnan(self.ghost_residual).all()

    def put(self, samples: Array, other: Certificate) -> Certificate:
        """A copy with some samples (by number) replaced."""
        found = {name: value.copy() for name, value in vars(self).items()}
        for name, value in found.items():
            value[samples] = getattr(other, name)
        return Certificate(**found)

    def reasons(self, sample: int) -> list[str]:
        """Why the gradient of a sample is not good; empty if it is."""
        k, found = sample, []
        if np.isnan(self.natural_residual[k]):
            return ["the sample was not solved"]
        if self.weakly_active[k]:
            found.append(
                "a constraint is weakly active: the derivative is one-sided (if it is an inequality or a norm, "
                "smoothing= averages over both sides)"
            )
        elif self.unsettled[k] or self.margin_ratio[k] > MARGIN_RATIO:
            found.append("the active set is not settled at this accuracy: solve with a smaller eps")
        elif self.error[k] > ERROR:
            found.append(
                "the solution is inaccurate: solve with a smaller eps (at a flat minimum given by functions, like "
                "that of y^4, a small quadratic term helps)"
            )
        if self.indefinite[k]:
            found.append("the objective curves downwards along the active constraints: the point is not a minimum")
        if self.dependent[k]:
            found.append(
                "active constraints depend on each other: the derivative with respect to their right-hand sides and "
                "coefficients is one-sided (drop redundant constraints, or average with smoothing=)"
            )
        if self.ambiguous[k]:
            found.append(
                "the solution is not unique, and the derivative depends on which one is taken (a small quadratic "
                "term makes it unique)"
            )
        if self.ghost_residual[k] > RESIDUAL and not (self.ambiguous[k] or self.dependent[k]):
            found.append(
                "the ghost problem was not solved accurately: the solution is not unique, or nearly so, and the "
                "gradient is a least-squares one (a small quadratic term makes the solution unique); or "
                "backward='resolve' was used with a large backward_eps or delta"
            )
        if self.irregular[k]:
            found.append(
                "an expression of parameters has no derivative at their values (a kink, a jump, an infinite slope, or "
                "an intermediate overflow; info.detail names it)"
            )
        return found
