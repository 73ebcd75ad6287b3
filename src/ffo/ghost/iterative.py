"""Second way: the same Newton loop with MINRES, for problems whose factors would not fit.

Nothing is factorized: memory does not grow with fill-in. See `ffo.kernels.minres`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ffo.ghost.direct import POLISHING, Compiled, newton
from ffo.ghost.oracle import Way
from ffo.kernels.kkt import Full
from ffo.program.cone import ConeProgram, Solution


@dataclass(frozen=True)
class Iterative(Way):
    """MINRES with a diagonal preconditioner.

    Attributes:
        rtol: relative residual at which a sample is done; 1e-6 would leave an error of 1e-3 in the gradient.
        max_iters: iterations per restart; None: ten times the unknowns of a sample.
        restarts: number of restarts from the true residual.
    """

    rtol: float = 1e-12
    max_iters: int | None = None
    restarts: int = 4

    def full(self, program: ConeProgram) -> Full:
        """The settings as the kernels take them."""
        return Full(self.max_iters or 10 * max(program.n + program.m, 20), float(self.rtol), self.restarts)

    def linearize(self, program: ConeProgram, solution: Solution) -> Compiled:
        return newton(program, solution.x, solution.y, solution.s, POLISHING, self.full(program))
