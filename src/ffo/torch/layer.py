"""FFOLayer: any CVXPY problem as a PyTorch layer (FFOCP of the paper)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import cvxpy as cp
import torch

from ffo.engine import Options, Smoothing
from ffo.engine.call import read_batch
from ffo.engine.keys import call_keys
from ffo.engine.memory import Backoff
from ffo.engine.options import OnFail, numbered_relaxation
from ffo.ghost.oracle import Way
from ffo.program.cvxpy import canonicalize
from ffo.solvers.base import Solver
from ffo.torch.base import Guesses, OptimizationLayer, reporting
from ffo.torch.dense.canonical import CanonicalFront, device_map, suited, worthwhile
from ffo.torch.dense.parts import solve_on_device
from ffo.torch.dense.warm import ActiveSets, Remembered
from ffo.torch.expressions import with_expressions
from ffo.torch.function import Kind, check_kinds, have_kinds, in_one_dtype, kinds_of
from ffo.torch.graph import fits_into_graphs, outside_graphs, solve_in_graph, traced


class FFOLayer(OptimizationLayer):
    """A parametrized convex problem whose solution is differentiable with respect to its parameters.

    Drop-in replacement for `cvxpylayers.torch.CvxpyLayer`: the same arguments, shapes and exceptions.

    Args:
        problem: a DCP problem of CVXPY (a DGP one with `gp=True`): convex for every value of its parameters. It need
            not be DPP: products and functions of parameters are allowed anywhere, and so is `quad_form(x, P)` with a
            PSD parameter or parameter expression P (docs/parameters.md).
        parameters: all CVXPY parameters of the problem, in the order tensors will be passed.
        variables: what to return: variables of the problem or dual variables of its constraints
            (`constraint.dual_variables[0]`), in this order.
        solver: a name in CVXPY's spelling, an `ffo.solvers.base.Solver`, or None for the default of
            the problem's class and size (`ffo.solvers.registry.choose`: the built-in kernels, except for power
            cones and large blocks, which go to Clarabel).
        gp: whether the problem is a geometric program.
        verbose: whether the solver may print.
        canon_backend: CVXPY's canonicalization backend (default "COO").
        solver_args: settings of the solver; every solver accepts `eps` and `max_iters`.
        backward: "direct" (factorize the ghost system), "iterative" (MINRES: no factors), "resolve"
            (re-solve the perturbed ghost problem with the solver itself), "auto" (direct, or iterative if the factors
            would not fit into memory), or an object of `ffo.ghost`.
        delta: size of the perturbation in "resolve", as in the paper; None chooses it. The other
            methods solve the ghost problem exactly and need no perturbation.
        backward_eps: accuracy of the re-solves of "resolve" alone. The ghost problem at the solver's own answer is then
            solved once, to this accuracy: the paper's Algorithm 1, and nothing else. Without it, answers are polished,
            and the ghost problem is solved again for the remaining residual, down to rounding.
        backward_solver: solver of the re-solves of "resolve"; by default that of the forward pass.
        on_fail: "raise" an `ffo.errors.SolverError`; "nan": a failed sample has NaN outputs and contributes no
            gradient; "relax", or an `ffo.torch.Relax` with constraints and weight: infeasible samples get the
            solution of the nearest feasible problem and its gradient, and the status RELAXED; other failures raise.
        warm_start: remember the last solution at each batch position (or for each of `keys`) and try
            its active set before calling the solver.
        retry: solvers to try, in order, on samples where the first one failed or was not accurate enough (natural
            residual above 1e-8 after polish; the better answer is kept). None: a second solver if the first is
            the default one with default settings (`layer.info` names the solver that answered).
        smoothing: radius of uniform perturbations of the right-hand sides (or an `ffo.torch.Smoothing`).
        time_limit: seconds for the forward pass of a call. Samples not solved by then have the status TIME_LIMIT
            and follow `on_fail`. It is checked between samples, solvers and steps, and passed to solvers that
            have their own limit; others finish the current solve. For a limit on each solve use
            `solver_args={"time_limit": seconds}`.

    After a call, `layer.info` holds statuses, residuals, times and the gradient certificate.

    The layer is differentiable once, in reverse and in forward mode, and works with `torch.func`
    (`jacrev`, `jacfwd`, `vmap`, and `vmap` of `grad`); a second derivative raises a `DerivativeError`. Plain
    calls (without the keywords below) can be part of a graph of `torch.compile(fullgraph=True)` and `torch.export`;
    other calls break the graph, and say so. Outputs are the same with and without gradients: always polished and
    verified.

    Example:
        >>> import cvxpy as cp, torch
        >>> x, A, b = cp.Variable(2), cp.Parameter((3, 2)), cp.Parameter(3)
        >>> problem = cp.Problem(cp.Minimize(cp.sum_squares(A @ x - b)), [x >= 0])
        >>> layer = FFOLayer(problem, parameters=[A, b], variables=[x])
        >>> A_t, b_t = torch.randn(8, 3, 2, requires_grad=True), torch.randn(3, requires_grad=True)
        >>> (solution,) = layer(A_t, b_t)  # (8, 2)
        >>> solution.sum().backward()
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
        self._suited = suited(canonical)
        #: the kinds of parameters checked last, which of them are batched, the batch size, and whether a device might
        #: solve it by dense algebra
        self._last_kinds: tuple[tuple[Kind, ...], tuple[bool, ...], int | None, bool] | None = None
        self._sets, self._backoff = ActiveSets(), Backoff()

    def forward(
        self,
        *params: torch.Tensor,
        solver_args: Mapping[str, Any] | None = None,
        keys: Sequence[Hashable] | torch.Tensor | None = None,
        warm_start: bool | None = None,
        start: Guesses | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Solve for the given parameter values.

        Args:
            params: one tensor per parameter, each of the parameter's shape or with a leading batch
                dimension; batched and unbatched tensors may be mixed. Tensors of different dtypes are promoted by
                torch's rules, and integers count as its default dtype.
            solver_args: settings for this call, in addition to the layer's.
            keys: one hashable per sample (say, its index in the data set), by which its solution is
                remembered between calls whatever the order of batches.
            warm_start: as in the constructor, for this call.
            start: an initial guess: one tensor per variable, shaped as the outputs, with or without the batch
                dimension, None where there is none (say, the outputs of another call). Its active constraints are
                tried before the solver is called, instead of remembered ones: those that it satisfies with equality
                or violates, and those with a multiplier if it contains duals. Answers are verified in any case, so a
                wrong guess costs time only. No gradient flows into it.

        Returns:
            One tensor per variable, (*batch, *variable.shape), in the (promoted) dtype of the parameters.
        """
        if torch.compiler.is_compiling() or traced():
            plain = solver_args is None and keys is None and warm_start is None and start is None
            if plain and params and fits_into_graphs(params):
                return tuple(solve_in_graph(self._number, list(params)))
            return self._outside(params, solver_args, keys, warm_start, start)
        return self._solve(params, solver_args, keys, warm_start, start)

    call = reporting(forward)
    if TYPE_CHECKING:  # torch declares that calling a module returns Any
        __call__ = forward

    def _solve(
        self,
        params: Sequence[torch.Tensor],
        solver_args: Mapping[str, Any] | None,
        keys: Sequence[Hashable] | torch.Tensor | None,
        warm_start: bool | None,
        start: Guesses | None,
    ) -> tuple[torch.Tensor, ...]:
        last = self._last_kinds
        if last is None or not have_kinds(params, last[0]):
            params = in_one_dtype(params)
            given = self.canonical.given
            shapes, labels = self.canonical.shapes[:given], self.canonical.labels[:given]
            kinds = kinds_of(params, labels)
            batched, batch = validate(kinds, shapes, labels)
            device = kinds[0].device if kinds else torch.device("cpu")
            dense = device.type != "cpu" or worthwhile(self.canonical, batch, device)
            last = self.__dict__["_last_kinds"] = kinds, batched, batch, dense
        _, batched, batch, dense = last
        named = call_keys(keys, warm_start, self.engine.options.warm_start, batch)
        if self.canonical.lifted is not None:
            params, batched = with_expressions(self.canonical, params, batched)
        found = None
        if dense and not solver_args and start is None:  # a device has no use for a guess of outputs
            found = self._dense(params, batched, batch, named)
        return found or self._run(self.canonical, params, batched, batch, solver_args, named, start=start)

    def _dense(
        self, params: Sequence[torch.Tensor], batched: tuple[bool, ...], batch: int | None, keys: list[Hashable] | None
    ) -> tuple[torch.Tensor, ...] | None:
        """The outputs by dense batched algebra on a device; None if that does not apply or is not verified."""
        if not params or not worthwhile(self.canonical, batch, params[0].device) or not self._plain or not self._suited:
            return None
        if not self._backoff.due():  # most samples of the last calls were left to the core
            return None
        left = 0

        def core(inputs: dict[int, torch.Tensor], samples: list[int], receive: Any) -> tuple[torch.Tensor, ...]:
            nonlocal left
            left += len(samples)
            named = None if keys is None else [keys[k] for k in samples]
            return self._run(self.canonical, [*inputs.values()], batched, len(samples), None, named, receive=receive)

        front = CanonicalFront(self.canonical, device_map(self.canonical, params[0].device), batched)
        known = None if keys is None else Remembered(self._sets, keys)
        form = front.form(batch, params[0].device)
        found = solve_on_device(self, form, front, known, dict(enumerate(params)), core)
        self._backoff.record(found is not None and 2 * left <= (batch or 1))
        return found

    _outside = outside_graphs(_solve)

    def from_graph(self, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        return list(self(*cast(Sequence[torch.Tensor], tensors)))

    def shapes_in_graph(self, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        params = in_one_dtype(tensors)
        shapes = self.canonical.shapes[: self.canonical.given]
        batch = [p.shape[0] for p, shape in zip(params, shapes, strict=True) if p.ndim > len(shape)][:1]
        lead = (*self.engine.options.lead, *batch)
        return [params[0].new_empty((*lead, *out.shape)) for out in self.canonical.recovery.outputs]

    def extra_repr(self) -> str:
        m = self.canonical.map
        return f"n={m.P.shape[0]}, m={m.A.shape[0]}, cones={m.cones!r}, solver={self.engine.options.solver or 'auto'}"


@lru_cache(maxsize=256)  # during training all calls of a layer are of one kind
def validate(
    kinds: tuple[Kind, ...], shapes: tuple[tuple[int, ...], ...], labels: tuple[str, ...]
) -> tuple[tuple[bool, ...], int | None]:
    """Which parameters are batched, and the batch size (None: unbatched)."""
    every = (*labels, *(f"Argument {i}" for i in range(len(labels), len(kinds))))
    check_kinds(kinds, every[: len(kinds)], range(len(kinds)))
    return read_batch([kind.shape for kind in kinds], shapes, labels)
