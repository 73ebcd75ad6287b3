"""Who takes part: each contender turns a case into a step that can be timed.

A contender is a function `(case) -> Step`. One that cannot run raises, and its row says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from benchmarks.problems import Case

Array = np.ndarray
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Step:
    """One training step: `forward(tensors)` gives the solutions, (batch, ...)."""

    forward: Callable[[Tensors], torch.Tensor]
    differentiate: tuple[str, ...]

    def tensors(self, data: Mapping[str, Array]) -> Tensors:
        """Leaves of the graph, with gradients where the case asks for them."""
        return {k: torch.tensor(v, dtype=torch.float64, requires_grad=k in self.differentiate) for k, v in data.items()}

    def backward(self, tensors: Tensors, solution: torch.Tensor, weights: torch.Tensor) -> Tensors:
        """Gradients of the linear loss <weights, solution>."""
        gradients = torch.autograd.grad((solution * weights).sum(), [tensors[k] for k in self.differentiate])
        return dict(zip(self.differentiate, gradients, strict=True))


Contender = Callable[[Case], Step]


def _layer_step(case: Case, layer: Callable[..., tuple[torch.Tensor, ...]]) -> Step:
    return Step(lambda tensors: layer(*tensors.values())[0], case.differentiate)


def ffo(case: Case, **options: Any) -> Step:
    """This package."""
    from ffo.torch import FFOLayer

    problem, parameters, variable = case.parametrised()
    return _layer_step(case, FFOLayer(problem, parameters=parameters, variables=[variable], **options))


def cvxpylayers(case: Case, **options: Any) -> Step:
    """cvxpylayers with its default solver."""
    from cvxpylayers.torch import CvxpyLayer

    problem, parameters, variable = case.parametrised()
    return _layer_step(case, CvxpyLayer(problem, parameters=parameters, variables=[variable], **options))


def cvxpylayers_lean(case: Case) -> Step:
    """cvxpylayers, helped through its build; its steps are its own.

    While building, CVXPY multiplies a sparse matrix with (variables x parameters) columns, nearly all of
    them empty, for which SciPy takes more than 24 GB of scratch at n=800. Here the product is taken over
    the occupied columns alone. The layers that come out are the same, entry by entry.
    """
    from cvxpy.reductions.solvers.conic_solvers import conic_solver

    original = conic_solver.LinearOperator.__init__

    def lean(self: Any, operator: Any, shape: tuple[int, ...]) -> None:
        original(self, operator, shape)
        if sp.issparse(operator):
            self._matmul = lambda X: _occupied_product(operator, X)

    conic_solver.LinearOperator.__init__ = lean
    try:
        return cvxpylayers(case)
    finally:
        conic_solver.LinearOperator.__init__ = original


def _occupied_product(M: Any, X: Any) -> sp.coo_array:
    X = sp.coo_array(X)
    columns, place = np.unique(X.col, return_inverse=True)
    small = sp.csr_array((X.data, (X.row, place)), shape=(X.shape[0], len(columns)))
    Y = sp.coo_array(sp.csr_array(M) @ small)
    where = (Y.row.astype(np.int64), columns[Y.col].astype(np.int64))
    return sp.coo_array((Y.data, where), shape=(M.shape[0], X.shape[1]))


def moreau(case: Case) -> Step:
    """Moreau called directly on the sparse values of the decision QP, interior point, CPU."""
    import moreau as mo
    from moreau.torch import Solver

    Q, G = sp.csr_array(case.shared["Q"]), sp.csr_array(case.shared["G"])
    if not case.name.startswith("QP"):
        raise NotImplementedError("written for the QP only")
    m, n = G.shape
    batch = len(case.draw(0)["q"])
    settings = mo.Settings(solver="ipm", device="cpu", batch_size=batch, enable_grad=True)
    index = lambda a: torch.as_tensor(a, dtype=torch.int64)  # noqa: E731
    structure = [index(a) for a in (Q.indptr, Q.indices, G.indptr, G.indices)]
    solver = Solver(n, m, *structure, cones=mo.Cones(num_nonneg_cones=m), settings=settings)
    P_values, A_values = torch.tensor(Q.data), torch.tensor(G.data)

    def forward(tensors: Tensors) -> torch.Tensor:
        h = tensors["h"].expand(batch, m).contiguous()
        return solver.solve(P_values, A_values, -tensors["q"], h).x

    return Step(forward, case.differentiate)


def qpth(case: Case) -> Step:
    """qpth's QPFunction on the dense values (`make bench-peers` installs it)."""
    from qpth.qp import QPFunction

    solve = QPFunction(verbose=-1)
    none = torch.zeros(0, dtype=torch.float64)

    def forward(t: Tensors) -> torch.Tensor:
        return solve(t["Q"], -t["q"], t["G"], t["h"], none, none)

    return Step(forward, case.differentiate)


def qplayer(case: Case) -> Step:
    """ProxSuite's QPLayer on the dense values."""
    from proxsuite.torch.qplayer import QPFunction

    none = torch.zeros(0, dtype=torch.float64)

    def forward(t: Tensors) -> torch.Tensor:
        lower = torch.full_like(t["h"], -1e20)
        return QPFunction(structural_feasibility=True)(t["Q"], -t["q"], none, none, t["G"], lower, t["h"])[0]

    return Step(forward, case.differentiate)
