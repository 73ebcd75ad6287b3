"""FFOFunctionLayer: a problem given by differentiable functions as a PyTorch layer (P0 of the paper)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch

from ffo.engine import Options, Smoothing
from ffo.engine.keys import call_keys
from ffo.errors import DerivativeError, InputError
from ffo.functions.outcome import Runner
from ffo.functions.problem import Functions
from ffo.functions.solvers import FunctionSolver
from ffo.torch.base import Reporting, ordinary, reporting
from ffo.torch.function import check_kinds, inside_transform, kinds_of
from ffo.torch.function_call import CallLayout, FunctionCall, SolveFunctions
from ffo.torch.graph import outside_graphs, traced

Tensor = torch.Tensor
Function = Callable[..., Tensor]

HVP, BACKWARDS = ("difference", "autograd"), ("auto", "resolve")
_TRANSFORMED = (
    "FFOFunctionLayer does not run inside torch.func transforms: pass a batch, and take Jacobians row by row with "
    "torch.autograd.functional.jacobian"
)


class FFOFunctionLayer(Reporting):
    """Solves  minimize g(theta, y)  subject to  h(theta, y) <= 0,  e(theta, y) = 0,  and differentiates y.

    The functions are plain torch, written for one sample: `objective(*theta, y)` returns a number,
    `inequality` and `equality` return vectors (m,) and (p,). A batch goes through `torch.func.vmap`, or sample
    by sample where vmap is impossible. They must be differentiable in y and theta; no second
    derivative is taken unless `hvp="autograd"`. Everything is computed in double precision on the device of
    the tensors, and returned in their dtype.

    Args:
        objective, inequality, equality: g, h and e; modules are functions too.
        shape: of y for one sample; an integer for a vector. May be omitted if y0 is always given (then y is a
            vector).
        dims: number of dimensions of each theta for one sample. A tensor with one more has a leading batch
            dimension; one with as many is shared by the batch, and its gradient is the sum over it. Without
            `dims`, the dimensions of y0 decide: (*shape) is a single sample, (batch, *shape) a batch in which
            every theta is batched.
        modules: modules that the functions call; their parameters receive gradients, and are parameters of this
            layer.
        solver: "SLSQP", "TRUST-CONSTR" (SciPy), "IPOPT" (cyipopt), "AUGLAG" (built in: batched, first-order, on any
            device), or a function `solve(g, h, e, y0)` that returns y or (y, lam, nu) for one sample; by
            default SLSQP for a few small problems and AUGLAG otherwise; samples on which it fails go to the other one
            (SLSQP only if they are small).
        solver_args: `eps` and `max_iters`, and the solver's own settings.
        hvp: products with the Hessian of the Lagrangian: "difference" of gradients, or "autograd", exact by
            a second backward pass.
        delta: the perturbation of the paper's finite difference; None chooses it from the scales of the problem.
        backward: "auto": the ghost as a linear system, by projected conjugate gradients; "resolve": the paper's
            Algorithm 1 taken literally: the perturbed ghost is passed to the solver, and the difference is one-sided,
            with an error of O(delta). Answers are then not polished.
        backward_eps, backward_solver: accuracy and solver of the re-solves of "resolve".
        on_fail, warm_start, retry, smoothing: as in `FFOLayer` (smoothing perturbs inequalities only).
        time_limit: as in `FFOLayer`; a solver function that you pass is stopped when it next evaluates the objective.

    Attributes:
        info: report on the last call, with the gradient certificate; raises a `NotCalledError` before the first.

    Example:
        >>> import torch
        >>> layer = FFOFunctionLayer(lambda a, y: (y - a).square().sum(), lambda a, y: y.sum() - 1, shape=3, dims=(1,))
        >>> a = torch.randn(8, 3, requires_grad=True)
        >>> y = layer(a)  # (8, 3)
        >>> y.sum().backward()
    """

    def __init__(
        self,
        objective: Function,
        inequality: Function | None = None,
        equality: Function | None = None,
        *,
        shape: int | Sequence[int] | None = None,
        dims: Sequence[int] | None = None,
        modules: Sequence[torch.nn.Module] = (),
        solver: str | FunctionSolver | Callable[..., Any] | None = None,
        solver_args: Mapping[str, Any] | None = None,
        hvp: Literal["difference", "autograd"] = "difference",
        delta: float | None = None,
        backward: Literal["auto", "resolve"] = "auto",
        backward_eps: float | None = None,
        backward_solver: str | FunctionSolver | Callable[..., Any] | None = None,
        on_fail: Literal["raise", "nan"] = "raise",
        warm_start: bool = False,
        retry: Sequence[Any] | None = None,
        smoothing: float | Smoothing | None = None,
        time_limit: float | None = None,
    ) -> None:
        super().__init__()
        options = Options(
            solver=solver,  # type: ignore[arg-type]
            solver_args=dict(solver_args or {}),
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
        if options.relax is not None:
            raise InputError("on_fail='relax' is for convex problems: add slack to the functions instead")
        if backward not in BACKWARDS:
            raise InputError(f"backward must be one of {', '.join(BACKWARDS)}, not {backward!r}")
        if hvp not in HVP:
            raise InputError(f"hvp must be one of {', '.join(HVP)}, not {hvp!r}")
        if options.smoothing is not None and options.smoothing.costs:
            raise InputError("Smoothing(costs=...) needs a linear term, which functions do not have: use a radius")
        for name, function in (("objective", objective), ("inequality", inequality), ("equality", equality)):
            if not callable(function) and (function is not None or name == "objective"):
                raise InputError(f"{name} must be a function of (*theta, y), not {type(function).__name__}")
        own = [f for f in (objective, inequality, equality) if isinstance(f, torch.nn.Module)]
        self.functions = Functions(objective, inequality, equality, [*own, *modules])
        self.held = self.functions.holder.held
        self.shape = None if shape is None else (shape,) if isinstance(shape, int) else tuple(shape)
        self.dims = None if dims is None else tuple(dims)
        self.runner = Runner(options, exact=hvp == "autograd")
        self._random = np.random.default_rng(options.smoothing.seed) if options.smoothing else None

    def smoothed(self, smoothing: float | Smoothing | None) -> Self:
        """The same layer with other smoothing, with its own draws and memory."""
        other = copy.copy(self)
        options = replace(self.runner.options, smoothing=smoothing)  # type: ignore[arg-type]
        other.runner = Runner(options, exact=self.runner.exact)
        other._random = np.random.default_rng(options.smoothing.seed) if options.smoothing else None
        other._last = None
        return other

    def forward(
        self,
        *theta: Tensor,
        y0: Tensor | None = None,
        solver_args: Mapping[str, Any] | None = None,
        keys: Sequence[Hashable] | Tensor | None = None,
        warm_start: bool | None = None,
    ) -> Tensor:
        """Solve for the given parameters.

        Args:
            theta: tensors of one dtype on one device, with or without a leading batch dimension.
            y0: starting point, (*shape) or (batch, *shape); zero by default. The functions must be finite there.
            solver_args: settings for this call, in addition to the layer's.
            keys, warm_start: as in `FFOLayer`.

        Returns:
            y (*batch, *shape).
        """
        arguments = (theta, y0, solver_args, keys, warm_start)
        if torch.compiler.is_compiling() or traced():
            return self._outside(*arguments)
        return self._solve(*arguments)

    call = reporting(forward)
    if TYPE_CHECKING:  # torch declares that calling a module returns Any
        __call__ = forward

    def _solve(
        self,
        theta: tuple[Tensor, ...],
        y0: Tensor | None,
        solver_args: Mapping[str, Any] | None,
        keys: Sequence[Hashable] | Tensor | None,
        warm_start: bool | None,
    ) -> Tensor:
        if inside_transform():
            raise DerivativeError(_TRANSFORMED)
        if torch.is_inference_mode_enabled():
            # The functions are differentiated in every call, and enable_grad() has no effect in inference mode.
            with torch.inference_mode(False), torch.no_grad():
                found = self._solve(theta, y0, solver_args, keys, warm_start)
            return found.clone()
        layout = self._layout(theta, y0)
        weights = self.functions.weights
        given = call_keys(keys, warm_start, self.runner.options.warm_start, layout.batch)
        inputs = [ordinary(t) for t in (*theta, *weights.values())]
        watched = torch.is_grad_enabled()
        derivative = watched and any(t.requires_grad for t in inputs)
        call = FunctionCall(self, layout, tuple(weights), derivative, watched, given, dict(solver_args or {}))
        return SolveFunctions.apply(call, *inputs)

    _outside = outside_graphs(_solve)

    def _layout(self, theta: Sequence[Tensor], y0: Tensor | None) -> CallLayout:
        """Check the tensors of a call against each other and against the layer's arguments."""
        names = [f"theta {i}" for i in range(len(theta))]
        check_kinds(kinds_of(theta, names), names, names)
        if y0 is not None and not isinstance(y0, torch.Tensor):
            raise InputError(f"y0 must be a torch tensor, got {type(y0).__name__}")
        shape = self.shape
        if shape is None:
            if y0 is None:
                raise InputError("the layer does not know the shape of y: pass y0, or shape= to the constructor")
            if y0.ndim not in (1, 2):
                raise InputError(f"y0 has {y0.ndim} dimensions: if y is not a vector, pass shape= to the constructor")
            shape = tuple(y0.shape[-1:])
        size = None
        if y0 is not None:
            if tuple(y0.shape[y0.ndim - len(shape) :]) != shape or y0.ndim not in (len(shape), len(shape) + 1):
                raise InputError(f"y0 must be {shape} or (batch, *{shape}), got {tuple(y0.shape)}")
            size = y0.shape[0] if y0.ndim > len(shape) else None
        batched = _batched(theta, self.dims, y0 is None, size)
        sizes = {f"theta {i}": len(t) for i, (t, b) in enumerate(zip(theta, batched, strict=True)) if b}
        sizes |= {} if size is None else {"y0": size}
        if len(set(sizes.values())) > 1:
            raise InputError(f"batch sizes differ: {', '.join(f'{k} has {v}' for k, v in sizes.items())}")
        batch = next(iter(sizes.values()), None)
        if batch == 0:
            raise InputError("the batch is empty: skip empty batches before the layer")
        like = next((t for t in (*theta, y0, *self.functions.weights.values()) if t is not None), None)
        if like is None:
            raise InputError("nothing to solve for: pass theta or y0")
        return CallLayout(batched, batch, shape, y0, like.dtype, like.device)

    def extra_repr(self) -> str:
        return f"shape={self.shape}, dims={self.dims}, solver={self.runner.options.solver or 'auto'}"


def _batched(theta: Sequence[Tensor], dims: Sequence[int] | None, nowhere: bool, size: int | None) -> tuple[bool, ...]:
    """Which theta have a batch dimension."""
    if dims is None:
        if nowhere and theta:
            raise InputError(
                "is the leading dimension of theta a batch? Pass dims= to the constructor, the number of dimensions of "
                "each theta for one sample, or y0 with or without a batch dimension"
            )
        if size is not None and any(t.ndim == 0 or len(t) != size for t in theta):
            raise InputError(
                f"y0 has a batch of {size}, theta have the shapes {[tuple(t.shape) for t in theta]}: pass dims= to the "
                "constructor to say which of them are shared by the batch"
            )
        return (size is not None,) * len(theta)
    if len(theta) != len(dims):
        raise InputError(f"dims= has {len(dims)} entries, but {len(theta)} theta were passed")
    for i, (t, d) in enumerate(zip(theta, dims, strict=True)):
        if t.ndim not in (d, d + 1):
            raise InputError(f"theta {i} must have {d} dimensions, or {d + 1} with a batch; got {tuple(t.shape)}")
    return tuple(t.ndim > d for t, d in zip(theta, dims, strict=True))
