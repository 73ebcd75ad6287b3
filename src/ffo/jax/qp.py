"""FFOQPLayer: quadratic programs given by matrices (FFOQP of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from ffo.engine import Options, Smoothing
from ffo.engine.options import OnFail, check_relaxed, from_qpth
from ffo.ghost.oracle import Way
from ffo.jax.base import CallReport, LayerBase, as_array, dtype_of
from ffo.program.blocks import Blocks, split_blocks
from ffo.program.quadratic import Name, QPSolution, quadratic_problem
from ffo.solvers.base import Solver

Found = jax.Array | QPSolution[jax.Array]


@jax.tree_util.register_static
class FFOQPLayer(LayerBase):
    """Solves  minimize 1/2 z'Qz + p'z  subject to  Az = b, lower <= Gz <= h, lb <= z <= ub.

    The argument order of a call is qpth's. Gradients of blocks shared by the batch are sums over the batch.

    Args:
        duals: whether to return a `QPSolution` instead of z alone; multipliers are differentiable.
        solver, solver_args, backward, delta, backward_eps, backward_solver, on_fail, warm_start, retry, smoothing,
            verbose, time_limit: as in `FFOLayer`.
        eps, maxIter, notImprovedLim, check_Q_spd: arguments of qpth's `QPFunction`, as in `ffo.torch.FFOQPLayer`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> qp = FFOQPLayer()
        >>> Q, p = jnp.eye(3), jnp.arange(24.0).reshape(8, 3)
        >>> z = qp(Q, p, lb=jnp.zeros(3))  # (8, 3)
        >>> jax.grad(lambda p: qp(Q, p, lb=jnp.zeros(3)).sum())(p)
    """

    def __init__(
        self,
        *,
        duals: bool = False,
        solver: str | Solver | Enum | None = None,
        solver_args: Mapping[str, Any] | None = None,
        backward: str | Way = "auto",
        delta: float | None = None,
        backward_eps: float | None = None,
        backward_solver: str | Solver | None = None,
        on_fail: OnFail = "raise",
        warm_start: bool = False,
        retry: Sequence[str | Solver] | None = None,
        smoothing: float | Smoothing | None = None,
        verbose: bool | int = False,
        time_limit: float | None = None,
        eps: float | None = None,
        maxIter: int | None = None,
        notImprovedLim: int | None = None,
        check_Q_spd: bool = True,
    ) -> None:
        options = Options(
            **from_qpth(solver, solver_args, eps, verbose),
            backward=backward,
            delta=delta,
            backward_eps=backward_eps,
            backward_solver=backward_solver,
            on_fail=on_fail,
            warm_start=warm_start,
            retry=retry,
            smoothing=smoothing,  # type: ignore[arg-type]
            time_limit=time_limit,
        )
        check_relaxed(options.relax)
        super().__init__(options)
        self.duals = duals

    def __call__(
        self,
        Q: Any,
        p: Any,
        G: Any = None,
        h: Any = None,
        A: Any = None,
        b: Any = None,
        *,
        lb: Any = None,
        ub: Any = None,
        lower: Any = None,
        solver_args: Mapping[str, Any] | None = None,
        keys: Any = None,
        warm_start: bool | None = None,
    ) -> Found:
        """Solve for the given blocks, each with or without a leading batch dimension.

        Args:
            Q: (n, n) positive semidefinite; its symmetric part is used. None: a linear program.
            p: (n,).
            G, h: (m, n) and (m,); A, b: (p, n) and (p,); None or empty arrays where absent.
            lb, ub: (n,) bounds; lower: (m,) lower bounds of the rows of G. Infinite bounds are ignored; they may
                differ between samples.
            solver_args, keys, warm_start: as in `FFOLayer`.

        Returns:
            z (*batch, n), or a `QPSolution` if the layer was made with `duals=True`.
        """
        given = named_blocks(Q, p, G, h, A, b, lb=lb, ub=ub, lower=lower)
        return self._solve(given, solver_args, keys, warm_start, report=False)[0]

    def call(
        self,
        *blocks: Any,
        solver_args: Mapping[str, Any] | None = None,
        keys: Any = None,
        warm_start: bool | None = None,
        **bounds: Any,
    ) -> tuple[Found, CallReport]:
        """The layer's output for these arguments, and the report on this call."""
        found, report = self._solve(named_blocks(*blocks, **bounds), solver_args, keys, warm_start, report=True)
        assert report is not None
        return found, report

    def _solve(
        self,
        given: Mapping[str, Any],
        solver_args: Mapping[str, Any] | None,
        keys: Any,
        warm_start: bool | None,
        report: bool,
    ) -> tuple[Found, CallReport | None]:
        blocks = read_blocks(given)
        canonical = quadratic_problem(blocks.structure, self.duals)
        values = [blocks.values[name] for name in blocks.structure.parameters]
        found, reported = self._run(canonical, values, solver_args, keys, warm_start, report, dtype_of(values))
        return QPSolution(*found) if self.duals else found[0], reported

    def __repr__(self) -> str:
        return f"FFOQPLayer(duals={self.duals}, solver={self.engine.options.solver or 'auto'})"


def named_blocks(
    Q: Any,
    p: Any,
    G: Any = None,
    h: Any = None,
    A: Any = None,
    b: Any = None,
    *,
    lb: Any = None,
    ub: Any = None,
    lower: Any = None,
) -> dict[str, Any]:
    """The blocks of a call by name."""
    return {"Q": Q, "p": p, "G": G, "h": h, "A": A, "b": b, "lb": lb, "ub": ub, "lower": lower}


def read_blocks(given: Mapping[str, Any]) -> Blocks[jax.Array]:
    """Check the blocks of a call, and split them into values and patterns."""
    arrays: dict[Name, jax.Array] = {k: as_array(v, k) for k, v in given.items() if v is not None}  # type: ignore[misc]
    return split_blocks({name: (a, a.shape, None) for name, a in arrays.items()}, _equal)


def _equal(values: jax.Array, number: float) -> np.ndarray:
    if isinstance(values, jax.core.Tracer):  # values are not accessible here; the engine checks them
        return np.zeros(values.shape, dtype=bool)
    return np.asarray(values) == number


def solve_qp(
    Q: Any,
    p: Any,
    G: Any = None,
    h: Any = None,
    A: Any = None,
    b: Any = None,
    *,
    lb: Any = None,
    ub: Any = None,
    lower: Any = None,
    duals: bool = False,
    solver: str | Solver | None = None,
    solver_args: Mapping[str, Any] | None = None,
    on_fail: OnFail = "raise",
) -> Found:
    """The solution z of a quadratic program, or a `QPSolution` with `duals=True`: `FFOQPLayer` as a function."""
    layer = _layer(duals, solver, on_fail)
    return layer(Q, p, G, h, A, b, lb=lb, ub=ub, lower=lower, solver_args=solver_args)


@lru_cache(maxsize=16)
def _layer(duals: bool, solver: str | Solver | None, on_fail: OnFail) -> FFOQPLayer:
    return FFOQPLayer(duals=duals, solver=solver, on_fail=on_fail)
