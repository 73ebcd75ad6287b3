"""First way: Newton's method and both derivatives by compiled kernels, one sample at a time.

The ghost system of a sample is factorized as a sparse LDL' on a pattern that all active sets share (`ffo.kernels`);
the factors of the last Newton step serve the backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ffo.ghost.certificate import WEAK, Certificate
from ffo.ghost.oracle import Linearization, Sensitivity, Way
from ffo.kernels import newton as columns
from ffo.kernels.batch import FACTORS, KernelPlan, State
from ffo.kernels.kkt import Full
from ffo.program.cone import ConeProgram, Solution
from ffo.program.plan import plan_of, values_of

Array = np.ndarray

#: Newton steps from a solver's answer, and from nothing
POLISHING, FROM_NOTHING = 10, 25


@dataclass(frozen=True)
class Direct(Way):
    """Factorize the ghost system."""

    @property
    def factorizes(self) -> bool:
        return True

    def linearize(self, program: ConeProgram, solution: Solution) -> Compiled:
        return newton(program, solution.x, solution.y, solution.s)


@dataclass(frozen=True)
class Compiled(Linearization):
    """Solutions with the faces and factors that Newton's method left."""

    plan: KernelPlan
    state: State

    @property
    def steps(self) -> Array:
        """(batch,) Newton steps taken."""
        return self.state.evidence[:, columns.STEPS].astype(int)

    @property
    def start_residual(self) -> Array:
        return self.state.evidence[:, columns.START_RESIDUAL]

    @property
    def margin(self) -> Array:
        """(batch,) smallest relative distance of a block to a change of structure."""
        return self.state.face[5].min(axis=1, initial=np.inf)

    def sensitivity(self, r_x: Array, r_s: Array, samples: Array | None = None) -> Sensitivity:
        mine = self.state.samples if samples is None else samples
        return Sensitivity(*self.plan.sensitivity(self.state, mine, r_x, r_s))

    @cached_property
    def dependent(self) -> Array:
        return self.plan.dependent(self.state)


def newton(
    program: ConeProgram, x: Array, y: Array, s: Array, steps: int = POLISHING, full: Full = FACTORS
) -> Compiled:
    """Newton steps from points of every sample; `s` is the solver's own slack, `full` how to solve ghost systems."""
    plan = plan_of(program)
    state = State(plan.pattern if full.iterations else plan.structure, program.batch, full)
    x, y, s = (np.array(v, dtype=float, order="C") for v in (x, y, s))
    plan.newton(values_of(program), x, y, s, state, steps)
    return Compiled(program, x, y, s, _certificate(state), plan, state)


def from_nothing(program: ConeProgram) -> Compiled:
    """Newton steps from x = 0, y = 0: a primal-dual active-set method."""
    s = program.cones.project(np.ascontiguousarray(program.b))
    return newton(program, np.zeros(program.q.shape), np.zeros(s.shape), s, FROM_NOTHING)


def _certificate(state: State) -> Certificate:
    evidence = state.evidence
    return Certificate.before_backward(
        unsettled=evidence[:, columns.IS_SETTLED] == 0,
        margin_ratio=evidence[:, columns.RATIO],
        weakly_active=evidence[:, columns.NEAREST] <= WEAK,
        error=evidence[:, columns.ERROR],
        natural_residual=evidence[:, columns.RESIDUAL],
    )
