"""The usual course of a call: the first solver's answers on all samples, polished and verified together.

Nearly every call ends here, with every sample solved to rounding: then nothing is recorded sample by sample, and the
report is made when it is read. (One quadratic program with ten variables: a forward pass of 0.42 ms instead of 0.54.)
Otherwise the stages continue with the same answers.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np

from ffo.engine.batch import polished
from ffo.engine.face import fine
from ffo.engine.info import Times
from ffo.engine.outcome import Outcome, SolvedPart
from ffo.engine.report import EngineReport, Findings
from ffo.engine.stages import DISTANT
from ffo.ghost.certificate import ERROR
from ffo.ghost.direct import Compiled, Direct
from ffo.kernels.batch import State
from ffo.kernels.evidence import DOUBTED, UNDOUBTED, verdict
from ffo.kernels.point import MARGIN_RATIO
from ffo.program.cone import ConeProgram, Solution
from ffo.program.epigraph import Epigraphs
from ffo.program.plan import plan_of
from ffo.program.presolve import MissingRows, Presolve
from ffo.program.scaling import Scaling
from ffo.program.substitution import Substitution
from ffo.solvers.base import Solver
from ffo.solvers.forward import default_tolerance, solve_guarded
from ffo.solvers.verdict import ROUGH

Array = np.ndarray


class Reduction(NamedTuple):
    """The steps of a program's presolve: the first one, the program that it leaves, and the others.

    Attributes:
        groups: the samples by the rows they lack; None where no sample lacks any.
    """

    first: Substitution | None
    program: ConeProgram
    units: Scaling | None
    groups: list[tuple[Array, MissingRows]] | None
    epigraph_rows: Epigraphs | None

    @property
    def whole(self) -> ConeProgram:
        """The reduced program, if no sample lacks rows."""
        program = self.program if self.units is None else self.units.apply(self.program)
        return program if self.epigraph_rows is None else self.epigraph_rows.apply(program)

    @property
    def presolve(self) -> Presolve:
        """All steps, if no sample lacks rows."""
        return Presolve.of(self.first, self.units, self.epigraph_rows)


def what_decides(program: ConeProgram, check_convexity: bool) -> tuple[object, ...]:
    """What decides which solver is called first. The values of P do if they may not be convex, or if SEPARABLE may be
    suitable; those of a shared A do not, since none of them is zero."""
    P = program.P if check_convexity or program.P.pattern.diagonal else program.P.pattern
    return P, program.A.pattern, program.cones, check_convexity, program.shared_matrices


class Attempt(NamedTuple):
    """A solver's answers on all samples of a program.

    Attributes:
        verified: whether all answers are beyond doubt; undoubted: and all gradients too, before they are computed.
        found: the polished answers; None if the solver did not solve all samples.
        polish_time: seconds.
    """

    solver: Solver
    answer: Solution
    verified: bool = False
    undoubted: bool = False
    found: Compiled | None = None
    polish_time: float = 0.0

    @classmethod
    def of(cls, program: ConeProgram, solver: Solver, way: Direct) -> Attempt:
        plan_of(program)  # so that its kernels may be compiled ahead (`kernels.ahead`) of the solver's
        answer = solve_guarded(solver, program)
        if np.count_nonzero(answer.status):
            return cls(solver, answer)
        found, seconds = polished(program, answer, way)
        assert isinstance(found, Compiled)
        clear = _verdict(found.state, default_tolerance(solver), fine(program))
        return cls(solver, answer, clear != DOUBTED, clear == UNDOUBTED, found, seconds)

    def outcome(self, given: ConeProgram, presolve: Presolve, begun: float) -> Outcome:
        """The outcome of a call that began then, if the answers are verified."""
        answer, found = self.answer, self.found
        assert found is not None
        point, state = presolve.outward(found.x, found.y, found.s), found.state
        times = Times(answer.setup_time, answer.solve_time, self.polish_time, time.perf_counter() - begun)
        findings = Findings(self.solver.name, answer.iterations, state.evidence, state.flags, times, self.undoubted)
        return Outcome(given, *point, [SolvedPart(state.samples, presolve, found)], EngineReport(findings), None)


def _verdict(state: State, tolerance: float, fine: float) -> int:
    """ACCEPTED if all of a solver's polished answers are accepted without a closer look, by the rules of
    `engine.stages`, and not refined (`fine`: natural residual from which on they are); UNDOUBTED if nothing speaks
    against their gradients either."""
    limits = min(tolerance, fine, ROUGH), math.sqrt(tolerance), DISTANT, ERROR, MARGIN_RATIO
    return verdict(state.evidence, state.flags, *limits)
