"""FFOLayer: any CVXPY problem as a JAX layer (FFOCP of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cvxpy as cp
import jax

from ffo.engine import Options, Smoothing
from ffo.engine.call import read_batch
from ffo.engine.options import OnFail, numbered_relaxation
from ffo.ghost.oracle import Way
from ffo.jax.base import CallReport, LayerBase, as_array, dtype_of
from ffo.jax.expressions import with_expressions
from ffo.program.cvxpy import canonicalize
from ffo.solvers.base import Solver


@jax.tree_util.register_static
class FFOLayer(LayerBase):
    """A parametrized convex problem whose solution is differentiable with respect to its parameters.

    Drop-in replacement for `cvxpylayers.jax.CvxpyLayer`: the same arguments, shapes and exceptions. It works under
    `jax.jit`, `vmap`, `grad`, `jacrev`, `jacfwd`, `jvp`, `checkpoint`, `lax.scan` and `shard_map`, with any solver; a
    second derivative raises a `DerivativeError`. The layer itself is a pytree without leaves.

    The arguments are those of `ffo.torch.FFOLayer`.

    After a call, `layer.info` holds statuses, residuals, times and the gradient certificate.

    Example:
        >>> import cvxpy as cp, jax, jax.numpy as jnp
        >>> x, A, b = cp.Variable(2), cp.Parameter((3, 2)), cp.Parameter(3)
        >>> problem = cp.Problem(cp.Minimize(cp.sum_squares(A @ x - b)), [x >= 0])
        >>> layer = FFOLayer(problem, parameters=[A, b], variables=[x])
        >>> loss = jax.jit(lambda A, b: layer(A, b)[0].sum())
        >>> jax.grad(loss, argnums=(0, 1))(jnp.ones((8, 3, 2)), jnp.ones(3))
    """

    def __init__(
        self,
        problem: cp.Problem,
        parameters: Sequence[cp.Parameter],
        variables: Sequence[cp.Variable],
        solver: str | Solver | None = None,
        gp: bool = False,
        verbose: bool = False,
        canon_backend: str | None = None,
        solver_args: Mapping[str, Any] | None = None,
        *,
        backward: str | Way = "auto",
        delta: float | None = None,
        backward_eps: float | None = None,
        backward_solver: str | Solver | None = None,
        on_fail: OnFail = "raise",
        warm_start: bool = False,
        retry: Sequence[str | Solver] | None = None,
        smoothing: float | Smoothing | None = None,
        time_limit: float | None = None,
    ) -> None:
        options = Options(
            solver=solver,
            solver_args=dict(solver_args or {}),
            backward=backward,
            delta=delta,
            backward_eps=backward_eps,
            backward_solver=backward_solver,
            on_fail=on_fail,
            warm_start=warm_start,
            retry=retry,
            smoothing=smoothing,  # type: ignore[arg-type]
            verbose=verbose,
            time_limit=time_limit,
        )
        canonical = canonicalize(problem, parameters, variables, gp, canon_backend, options.power_cones)
        super().__init__(numbered_relaxation(options, canonical.names, problem.constraints))
        self.canonical = canonical

    def __call__(
        self,
        *params: Any,
        solver_args: Mapping[str, Any] | None = None,
        keys: Any = None,
        warm_start: bool | None = None,
    ) -> tuple[jax.Array, ...]:
        """Solve for the given parameter values.

        Args:
            params: one array per parameter, each of the parameter's shape or with a leading batch
                dimension; batched and unbatched arrays may be mixed.
            solver_args: settings for this call, in addition to the layer's; a compiled call has those of its trace.
            keys: one integer per sample (say, its index in the data set), by which its solution is remembered
                between calls whatever the order of batches; an array, traced or not.
            warm_start: as in the constructor, for this call.

        Returns:
            One array per variable, (*batch, *variable.shape), in the dtype that JAX promotes the parameters to.
        """
        return self._solve(params, solver_args, keys, warm_start, report=False)[0]

    def call(
        self,
        *params: Any,
        solver_args: Mapping[str, Any] | None = None,
        keys: Any = None,
        warm_start: bool | None = None,
    ) -> tuple[tuple[jax.Array, ...], CallReport]:
        """The layer's outputs for these arguments, and the report on this call."""
        outputs, report = self._solve(params, solver_args, keys, warm_start, report=True)
        assert report is not None
        return outputs, report

    def _solve(
        self,
        params: Sequence[Any],
        solver_args: Mapping[str, Any] | None,
        keys: Any,
        warm_start: bool | None,
        report: bool,
    ) -> tuple[tuple[jax.Array, ...], CallReport | None]:
        given = self.canonical.given
        shapes, labels = self.canonical.shapes[:given], self.canonical.labels[:given]
        names = [*labels, *(f"Argument {i}" for i in range(len(labels), len(params)))]
        values = [as_array(p, name) for p, name in zip(params, names, strict=False)]
        read_batch([v.shape for v in values], shapes, labels)
        dtype = dtype_of(values)
        if self.canonical.lifted is not None:
            values = with_expressions(self.canonical, values)
        outputs, reported = self._run(self.canonical, values, solver_args, keys, warm_start, report, dtype)
        return tuple(outputs), reported

    def __repr__(self) -> str:
        m = self.canonical.map
        solver = self.engine.options.solver or "auto"
        return f"FFOLayer(n={m.P.shape[0]}, m={m.A.shape[0]}, cones={m.cones!r}, solver={solver})"
