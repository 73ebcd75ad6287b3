"""The packages that are compared. Each contender turns a case into a training step that can be timed.

A contender is a function `(case) -> Step`. If it cannot run it raises, and its row contains the reason.
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
        """Leaf tensors; those to differentiate require a gradient."""
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
    return _layer_step(case, FFOLayer(problem, parameters, [variable], gp=case.gp, **options))


def cvxpylayers(case: Case, **options: Any) -> Step:
    """cvxpylayers with its default solver."""
    from cvxpylayers.torch import CvxpyLayer

    problem, parameters, variable = case.parametrised()
    return _layer_step(case, CvxpyLayer(problem, parameters, [variable], gp=case.gp, **options))


def cvxpylayers_lean(case: Case) -> Step:
    """cvxpylayers with a patch that lets it build large layers; its steps are not changed.

    While building, CVXPY multiplies a sparse matrix with (variables x parameters) columns, nearly all of them empty,
    for which SciPy allocates more than 24 GB at n=800. With the patch, only the columns that are not empty are
    multiplied. The resulting layers are the same, entry by entry.
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
    """Moreau's interior-point method on the CPU, called directly on the sparse values of the decision QP."""
    import moreau as mo
    from moreau.torch import Solver

    Q, G = sp.csr_array(case.shared["Q"]), sp.csr_array(case.shared["G"])
    if not case.name.startswith("QP"):
        raise NotImplementedError("only the decision QP is implemented")
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


def quadratic_blocks(t: Tensors) -> Tensors:
    """Q, p, G, h, A, b, lb of a case; the decision QP gives its costs as -q."""
    return {**{k: v for k, v in t.items() if k != "q"}, **({"p": -t["q"]} if "q" in t else {})}


def ffo_qp(case: Case, **options: Any) -> Step:
    """FFOQPLayer on the dense values."""
    from ffo.torch import FFOQPLayer

    layer = FFOQPLayer(**options)
    return Step(lambda t: layer(**quadratic_blocks(t)), case.differentiate)


def cvxpylayers_moreau(case: Case) -> Step:
    """cvxpylayers with Moreau as its solver, on the CPU."""
    return cvxpylayers(case, solver="MOREAU")


def qpth(case: Case) -> Step:
    """qpth's QPFunction on the dense values (`make bench-peers` installs it), with bounds as rows of G.

    Its gradients of shared blocks are means over the batch. Here they are converted to sums.
    """
    from qpth.qp import QPFunction

    solve = QPFunction(verbose=-1)
    none = torch.zeros(0, dtype=torch.float64)
    batch = len(next(iter(case.draw(0).values())))

    def forward(t: Tensors) -> torch.Tensor:
        d = quadratic_blocks({k: _times_in_backward(v, batch) if k in case.shared else v for k, v in t.items()})
        G, h = d.get("G", none), d.get("h", none)
        if "lb" in d:
            G, h = -torch.eye(len(d["lb"]), dtype=torch.float64), -d["lb"]
        return solve(d["Q"], d["p"], G, h, d.get("A", none), d.get("b", none))

    return Step(forward, case.differentiate)


def _times_in_backward(v: torch.Tensor, factor: float) -> torch.Tensor:
    """v itself, whose gradient is multiplied by `factor`."""
    return v * factor - (v * (factor - 1)).detach() if v.requires_grad else v


def qplayer(case: Case) -> Step:
    """ProxSuite's QPLayer on the dense values, with bounds as rows of G. It runs in parallel, on half of the CPUs, if
    the installed build supports that."""
    import proxsuite
    from proxsuite.torch.qplayer import QPFunction

    none = torch.zeros(0, dtype=torch.float64)
    parallel = hasattr(proxsuite.proxqp.dense, "solve_in_parallel")

    def forward(t: Tensors) -> torch.Tensor:
        d = quadratic_blocks(t)
        if "lb" in d:
            G, lower = torch.eye(len(d["lb"]), dtype=torch.float64), d["lb"]
            upper = torch.full_like(lower, 1e20)
        else:
            G, lower, upper = d["G"], torch.full_like(d["h"], -1e20), d["h"]
        solve = QPFunction(structural_feasibility=True, omp_parallel=parallel)
        return solve(d["Q"], d["p"], d.get("A", none), d.get("b", none), G, lower, upper)[0]

    return Step(forward, case.differentiate)
