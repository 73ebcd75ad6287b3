"""FFOQPLayer: quadratic programs by their matrices (FFOQP of the paper)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from ffo.engine import Options, Smoothing
from ffo.errors import InputError
from ffo.ghost.problem import Way
from ffo.program.canonical import CanonicalProblem
from ffo.program.quadratic import MatrixPattern, Name, Structure, quadratic_problem
from ffo.solvers.base import Solver
from ffo.torch.base import OptimizationLayer
from ffo.torch.function import check_tensors

#: structures whose canonical form is kept
STRUCTURES = 16
#: the value of a side that is not there
_INFINITE: dict[Name, float] = {"h": np.inf, "ub": np.inf, "lower": -np.inf, "lb": -np.inf}


class QPSolution(NamedTuple):
    """A solution with its multipliers.

    z (*batch, n); nu (*batch, p) of Az = b; lam (*batch, m) of lower <= Gz <= h and mu (*batch, n) of
    lb <= z <= ub, both negative where the lower side is active: Qz + p + A'nu + G'lam + mu = 0.
    """

    z: torch.Tensor
    nu: torch.Tensor
    lam: torch.Tensor
    mu: torch.Tensor


class FFOQPLayer(OptimizationLayer):
    """Solves  minimize 1/2 z'Qz + p'z  subject to  Az = b, lower <= Gz <= h, lb <= z <= ub.

    Arguments of a call stand in qpth's order. Gradients of blocks that the batch shares are sums over
    the batch; qpth returns means, as `reduction="mean"` does here.

    Args:
        duals: whether to return a `QPSolution` instead of z alone; multipliers are differentiable.
        reduction: "sum" or "mean", for gradients of blocks without a batch dimension.
        solver, solver_args, backward, delta, on_fail, warm_start, retry, smoothing, verbose: as in
            `FFOLayer`.

    Example:
        >>> import torch
        >>> qp = FFOQPLayer()
        >>> Q, p = torch.eye(3), torch.randn(8, 3, requires_grad=True)
        >>> z = qp(Q, p, lb=torch.zeros(3))  # (8, 3), projections onto z >= 0
        >>> z.sum().backward()
    """

    def __init__(
        self,
        *,
        duals: bool = False,
        reduction: Literal["sum", "mean"] = "sum",
        solver: str | Solver | None = None,
        solver_args: Mapping[str, Any] | None = None,
        backward: str | Way = "auto",
        delta: float | None = None,
        on_fail: Literal["raise", "nan"] = "raise",
        warm_start: bool = False,
        retry: Sequence[str | Solver] = (),
        smoothing: float | Smoothing | None = None,
        verbose: bool = False,
    ) -> None:
        if reduction not in ("sum", "mean"):
            raise InputError(f"reduction must be 'sum' or 'mean', not {reduction!r}")
        options = Options(
            solver=solver,
            solver_args=dict(solver_args or {}),
            backward=backward,
            delta=delta,
            on_fail=on_fail,
            warm_start=warm_start,
            retry=tuple(retry) if not isinstance(retry, str) else retry,
            smoothing=smoothing,  # type: ignore[arg-type]
            verbose=verbose,
        )
        super().__init__(options)
        self.duals = duals
        self.reduction = reduction
        self._canonical: OrderedDict[object, CanonicalProblem] = OrderedDict()

    def forward(
        self,
        Q: torch.Tensor | None,
        p: torch.Tensor,
        G: torch.Tensor | None = None,
        h: torch.Tensor | None = None,
        A: torch.Tensor | None = None,
        b: torch.Tensor | None = None,
        *,
        lb: torch.Tensor | None = None,
        ub: torch.Tensor | None = None,
        lower: torch.Tensor | None = None,
        solver_args: Mapping[str, Any] | None = None,
        keys: Sequence[Hashable] | torch.Tensor | None = None,
        warm_start: bool | None = None,
    ) -> torch.Tensor | QPSolution:
        """Solve for the given blocks, each with or without a batch dimension in front.

        Args:
            Q: (n, n) positive semidefinite, its symmetric part is used; None: a linear program.
            p: (n,).
            G, h: (m, n) and (m,); A, b: (p, n) and (p,); None or empty tensors where absent.
            lb, ub: (n,) bounds; lower: (m,) lower sides of the rows of G. Infinite entries are no
                constraint.
            solver_args, keys, warm_start: as in `FFOLayer`.

        Matrices may be sparse tensors (COO, CSR, CSC); their gradients then live on the nonzeros.

        Returns:
            z (*batch, n), or a `QPSolution` if the layer was made with `duals=True`.
        """
        given = {"Q": Q, "p": p, "G": G, "h": h, "A": A, "b": b, "lb": lb, "ub": ub, "lower": lower}
        blocks = read_blocks(given)
        canonical = self._canonical_problem(blocks.structure)
        names = blocks.structure.parameters
        values = [blocks.values[name] for name in names]
        batched = tuple(v.ndim == 2 for v in values)
        found = self._run(canonical, values, batched, blocks.batch, solver_args, keys, warm_start)
        return QPSolution(*found) if self.duals else found[0]

    def _canonical_problem(self, structure: Structure) -> CanonicalProblem:
        key = structure.key
        if key not in self._canonical:
            self._canonical[key] = quadratic_problem(structure, self.duals)
        self._canonical.move_to_end(key)
        while len(self._canonical) > STRUCTURES:
            self._canonical.popitem(last=False)
        return self._canonical[key]


@dataclass(frozen=True)
class Blocks:
    """The blocks of a call: their structure, values (nonzeros,) or (batch, nonzeros), and the batch
    size (None: unbatched)."""

    structure: Structure
    values: dict[Name, torch.Tensor]
    batch: int | None


def read_blocks(given: Mapping[str, torch.Tensor | None]) -> Blocks:
    """Check the blocks of a call and take them apart."""
    present: dict[Name, torch.Tensor] = {
        name: t  # type: ignore[misc]
        for name, t in given.items()
        if t is not None and not (isinstance(t, torch.Tensor) and t.numel() == 0 and t.layout is torch.strided)
    }
    if "p" not in present:
        raise InputError("p, the linear term, is needed (a vector of zeros if there is none)")
    _check_pairs(present)
    n = present["p"].shape[-1]
    matrices: dict[Name, MatrixPattern] = {}
    values: dict[Name, torch.Tensor] = {}
    for name in ("Q", "G", "A"):
        if name in present:
            values[name], matrices[name] = _matrix(name, present[name], n)  # type: ignore[index]
    _check_square(matrices, n)
    for name, length in _lengths(matrices, n).items():
        if name in present:
            values[name] = _vector(name, present[name], length)
    check_tensors(list(values.values()))
    sides = {name: _finite(name, values[name]) for name in _INFINITE if name in values}
    sizes = {name: v.shape[0] for name, v in values.items() if v.ndim == 2}
    if len(set(sizes.values())) > 1:
        raise InputError(f"Inconsistent batch sizes: {', '.join(f'{k}: {s}' for k, s in sizes.items())}")
    if 0 in sizes.values():
        raise InputError("The batch is empty. Skip empty batches before the layer.")
    return Blocks(Structure(n, matrices, sides), values, next(iter(sizes.values()), None))


def _check_pairs(present: Mapping[Name, torch.Tensor]) -> None:
    for name, t in present.items():
        if not isinstance(t, torch.Tensor):
            raise InputError(f"{name} must be a torch tensor, got {type(t).__name__}")
    for matrix, vectors in (("G", ("h", "lower")), ("A", ("b",))):
        has = [v for v in vectors if v in present]
        if matrix in present and not has:
            raise InputError(f"{matrix} needs a right-hand side: give {' or '.join(vectors)}")
        if has and matrix not in present:
            raise InputError(f"{has[0]} was given without {matrix}")


def _check_square(matrices: Mapping[Name, MatrixPattern], n: int) -> None:
    if "Q" in matrices and matrices["Q"].shape != (n, n):
        raise InputError(f"Q must be ({n}, {n}) like p has {n} entries, got {matrices['Q'].shape}")


def _lengths(matrices: Mapping[Name, MatrixPattern], n: int) -> dict[Name, int]:
    lengths: dict[Name, int] = {"p": n, "lb": n, "ub": n}
    if "G" in matrices:
        lengths["h"] = lengths["lower"] = matrices["G"].shape[0]
    if "A" in matrices:
        lengths["b"] = matrices["A"].shape[0]
    return lengths


def _vector(name: str, t: torch.Tensor, length: int) -> torch.Tensor:
    if t.ndim not in (1, 2) or t.shape[-1] != length:
        raise InputError(f"{name} must be ({length},) or (batch, {length}), got {tuple(t.shape)}")
    return t


def _matrix(name: str, t: torch.Tensor, n: int) -> tuple[torch.Tensor, MatrixPattern]:
    """Values (nonzeros,) or (batch, nonzeros) of a matrix, and their pattern."""
    if t.ndim not in (2, 3) or t.shape[-1] != n:
        raise InputError(f"{name} must be (rows, {n}) or (batch, rows, {n}), got {tuple(t.shape)}")
    rows = t.shape[-2]
    if t.layout is torch.strided:
        return t.reshape(*t.shape[:-2], rows * n), MatrixPattern.full(rows, n)
    if t.layout is not torch.sparse_coo:
        t = t.to_sparse_coo()
    t = t.coalesce()
    index, values = t.indices().cpu().numpy(), t.values()
    if t.ndim == 2:
        return values, MatrixPattern(index[0], index[1], (rows, n))
    # Samples may have patterns of their own: their union, with zeros where a sample has no entry.
    places, entry = np.unique(index[1] * n + index[2], return_inverse=True)
    where = (torch.from_numpy(index[0]).to(t.device), torch.from_numpy(entry).to(t.device))
    full = values.new_zeros(t.shape[0], len(places)).index_put(where, values)
    return full, MatrixPattern(places // n, places % n, (rows, n))


def _finite(name: Name, t: torch.Tensor) -> np.ndarray:
    """Which entries of a side are constraints: those that are not infinite."""
    absent = (t.detach() == _INFINITE[name]).cpu().numpy()
    if absent.ndim == 2:
        if (absent.any(axis=0) != absent.all(axis=0)).any():
            raise InputError(
                f"{name} is infinite at an entry for some samples of the batch and finite for others; "
                "use a large finite value there, or call the layer once per group of samples"
            )
        absent = np.asarray(absent.all(axis=0))
    return ~absent
