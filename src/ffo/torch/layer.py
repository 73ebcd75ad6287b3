"""FFOLayer: any CVXPY problem as a PyTorch layer (FFOCP of the paper)."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import torch

from ffo.engine import Engine, Info, Options, Outcome, Smoothing
from ffo.engine.smoothing import Sampler
from ffo.errors import GradientWarning, InputError
from ffo.ghost.problem import Way
from ffo.program.canonical import CanonicalProblem
from ffo.program.cvxpy import canonicalize
from ffo.solvers.base import Solver
from ffo.torch.function import Slot, Solve, check_tensors

NumpyArray = np.ndarray


class FFOLayer(torch.nn.Module):
    """A parametrised convex problem whose solution is differentiable in its parameters.

    Drop-in for `cvxpylayers.torch.CvxpyLayer`: the same arguments, shapes and exceptions.

    Args:
        problem: a DPP-compliant CVXPY problem (a DGP one with `gp=True`). `quad_form(x, P)` with a
            PSD parameter P is allowed in the objective.
        parameters: all CVXPY parameters of the problem, in the order tensors will be passed.
        variables: what to return: variables of the problem or dual variables of its constraints
            (`constraint.dual_variables[0]`), in this order.
        solver: a name in CVXPY's spelling, an `ffo.solvers.base.Solver`, or None for the default of
            the problem's class and size (`ffo.solvers.registry.choose`: DAQP for small and PIQP for
            larger QPs, HiGHS for larger LPs, Clarabel for everything else).
        gp: whether the problem is a geometric program.
        verbose: whether the solver may print.
        canon_backend: CVXPY's canonicalisation backend (default "COO").
        solver_args: settings of the solver; `eps` and `max_iters` are understood by all.
        backward: "direct" (factorize the ghost system), "iterative" (matrix-free), "resolve"
            (re-solve the perturbed ghost problem with the solver itself), "auto", or an `ffo.ghost`
            way object.
        delta: size of the perturbation in "resolve", as in the paper; None chooses it. The other
            ways solve the ghost exactly, whatever the perturbation.
        on_fail: "raise" an `ffo.errors.SolverError`, or "nan": a failed sample has NaN outputs and
            contributes no gradient.
        warm_start: remember the last solution at each batch position (or for each of `keys`) and try
            its active set before calling the solver.
        retry: solvers to ask, in order, about samples that the first one failed on.
        smoothing: radius of uniform perturbations of the right-hand sides (or an `ffo.torch.Smoothing`).

    After a call, `layer.info` holds statuses, residuals, times and the gradient certificate.

    The layer is differentiable once, in reverse and in forward mode, and works with `torch.func`
    (`jacrev`, `jacfwd`, `vmap`, and `vmap` of `grad`); a second derivative is a `DerivativeError`. Under
    `torch.compile` it breaks the graph. Without gradients (`torch.no_grad`, or no parameter with
    `requires_grad`) outputs are the solver's own, accurate to its `eps`; with gradients they are polished.

    Example:
        >>> import cvxpy as cp, torch
        >>> x, A, b = cp.Variable(2), cp.Parameter((3, 2)), cp.Parameter(3)
        >>> problem = cp.Problem(cp.Minimize(cp.sum_squares(A @ x - b)), [x >= 0])
        >>> layer = FFOLayer(problem, parameters=[A, b], variables=[x])
        >>> A_t, b_t = torch.randn(8, 3, 2, requires_grad=True), torch.randn(3, requires_grad=True)
        >>> (solution,) = layer(A_t, b_t)  # (8, 2)
        >>> solution.sum().backward()
    """

    info: Info | None

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
        on_fail: Literal["raise", "nan"] = "raise",
        warm_start: bool = False,
        retry: Sequence[str | Solver] = (),
        smoothing: float | Smoothing | None = None,
    ) -> None:
        super().__init__()
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
        self.canonical = canonicalize(problem, parameters, variables, gp=gp, canon_backend=canon_backend)
        self.engine = Engine(options)
        self.sampler = Sampler(options.smoothing) if options.smoothing else None
        self.info = None

    def forward(
        self,
        *params: torch.Tensor,
        solver_args: Mapping[str, Any] | None = None,
        keys: Sequence[Hashable] | torch.Tensor | None = None,
        warm_start: bool | None = None,
    ) -> tuple[torch.Tensor, ...]:
        """Solve for the given parameter values.

        Args:
            params: one tensor per parameter, each of the parameter's shape or with one batch
                dimension in front; batched and unbatched tensors may be mixed.
            solver_args: settings for this call, on top of the layer's.
            keys: one hashable per sample (say, its index in the data set), by which its solution is
                remembered between calls whatever the order of batches.
            warm_start: as in the constructor, for this call.

        Returns:
            One tensor per variable, (*batch, *variable.shape).
        """
        if torch.compiler.is_compiling():  # a solve is no part of a graph: torch.compile breaks it here
            return torch.compiler.disable(self._solve)(params, solver_args, keys, warm_start)
        return self._solve(params, solver_args, keys, warm_start)

    def _solve(
        self,
        params: Sequence[torch.Tensor],
        solver_args: Mapping[str, Any] | None,
        keys: Sequence[Hashable] | torch.Tensor | None,
        warm_start: bool | None,
    ) -> tuple[torch.Tensor, ...]:
        check_tensors(params)
        batched, batch = validate(params, self.canonical.shapes)
        given = _keys(keys, batch)
        if given is None and (self.engine.options.warm_start if warm_start is None else warm_start):
            given = list(range(batch or 1))
        derivative = torch.is_grad_enabled() and any(p.requires_grad for p in params)
        call = LayerCall(self, batched, batch, derivative, given, dict(solver_args or {}))
        if not params:
            outputs, _ = call.solve([])
            return tuple(torch.from_numpy(v).to(torch.get_default_dtype()) for v in outputs)
        return Solve.apply(Slot(call), *params)

    def extra_repr(self) -> str:
        m = self.canonical.map
        return f"n={m.P.shape[0]}, m={m.A.shape[0]}, cones={m.cones!r}, solver={self.engine.options.solver or 'auto'}"


@dataclass(frozen=True)
class LayerRecord:
    """What backward needs of a forward pass."""

    outcome: Outcome
    values: list[NumpyArray]
    draws: int

    @property
    def solved(self) -> NumpyArray:
        """(batch * draws,) true where the sample was solved in all of its draws."""
        ok = self.outcome.info.ok.reshape(-1, self.draws).all(axis=1)
        return np.repeat(ok, self.draws)


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer, in NumPy."""

    layer: FFOLayer
    batched: tuple[bool, ...]
    batch: int | None
    derivative: bool
    keys: list[Hashable] | None
    overrides: dict[str, Any]

    @property
    def canonical(self) -> CanonicalProblem:
        return self.layer.canonical

    def parameter_dims(self) -> list[int]:
        return [len(s) for s in self.canonical.shapes]

    def folded(self, samples: int, batched: Sequence[bool]) -> LayerCall:
        """The call in which a mapped dimension of `samples` has joined the batch."""
        if self.keys is not None:
            raise InputError("keys= and warm_start= cannot be used under torch.func.vmap: pass a batch instead")
        return replace(self, batched=tuple(batched), batch=samples * (self.batch or 1))

    def solve(self, values: list[NumpyArray]) -> tuple[list[NumpyArray], LayerRecord]:
        flat = self._flat(values)
        program = self.canonical.map.apply(flat)
        sampler = self.layer.sampler
        draws = sampler.smoothing.draws if sampler else 1
        keys = self.keys
        if sampler:
            program = sampler.perturb(program)
            keys = None if keys is None else [(k, d) for k in keys for d in range(draws)]
        outcome = self.layer.engine.run(
            program,
            self.derivative,
            keys,
            self.overrides,
            check_convexity=self.canonical.map.touches("P"),
            copies=draws,
        )
        self.layer.info = outcome.info
        outputs = self.canonical.recovery.apply(outcome.x, outcome.y)
        return [self._averaged(v, draws) for v in outputs], LayerRecord(outcome, flat, draws)

    def adjoint(
        self, record: LayerRecord, gradients: list[NumpyArray | None], wanted: Sequence[bool], apart: bool
    ) -> list[NumpyArray | None]:
        outcome, recovery = record.outcome, self.canonical.recovery
        outcome.prepare()
        spread = [None if g is None else self._spread(g, record.draws) for g in gradients]
        solved = record.solved
        c_x, c_y = recovery.adjoint(spread, np.where(solved[:, None], outcome.x, 0.0))
        data = outcome.adjoint(np.where(solved[:, None], c_x, 0.0), np.where(solved[:, None], c_y, 0.0))
        warn_of_doubt(outcome.info)
        values = record.values
        if apart:  # as if every parameter were batched
            values = [np.broadcast_to(v, (self.batch or 1, v.shape[-1])) for v in values]
        found = self.canonical.map.adjoint(data, values, wanted)
        return [
            None if g is None else g.reshape(g.shape[:-1] + shape)
            for g, shape in zip(found, self.canonical.shapes, strict=True)
        ]

    def tangent(self, record: LayerRecord, tangents: list[NumpyArray | None]) -> list[NumpyArray]:
        outcome = record.outcome
        flat = [
            None if t is None else t.reshape((-1, size) if t.ndim > dims else (size,))
            for t, dims, size in zip(tangents, self.parameter_dims(), self.canonical.map.sizes, strict=True)
        ]
        change = self.canonical.map.tangent(flat, record.values, len(outcome.x) // record.draws)
        if record.draws > 1:
            change = change.repeat(record.draws)
        dx, dy = outcome.tangent(change)
        found = self.canonical.recovery.tangent(dx, dy, np.where(outcome.info.ok[:, None], outcome.x, 0.0))
        return [self._averaged(v, record.draws) for v in found]

    def _flat(self, values: list[NumpyArray]) -> list[NumpyArray]:
        sizes = self.canonical.map.sizes
        return [v.reshape((-1, s) if b else (s,)) for v, b, s in zip(values, self.batched, sizes, strict=True)]

    def _averaged(self, v: NumpyArray, draws: int) -> NumpyArray:
        if draws > 1:
            v = v.reshape(-1, draws, *v.shape[1:]).mean(axis=1)
        return v if self.batch is not None else v[0]

    def _spread(self, g: NumpyArray, draws: int) -> NumpyArray:
        full = g if self.batch is not None else g[None]
        return np.repeat(full / draws, draws, axis=0) if draws > 1 else full


def validate(params: Sequence[torch.Tensor], shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[bool, ...], int | None]:
    """Which parameters are batched, and the batch size (None: unbatched).

    The checks and their wording are those of CvxpyLayer.
    """
    if len(params) != len(shapes):
        raise InputError(
            f"A tensor must be provided for each CVXPY parameter; "
            f"received {len(params)} tensors, expected {len(shapes)}"
        )
    sizes: list[int | None] = []
    for i, (p, shape) in enumerate(zip(params, shapes, strict=True)):
        if p.ndim == len(shape):
            if tuple(p.shape) != shape:
                raise InputError(f"Invalid parameter shape for parameter {i}. Expected: {shape}, Got: {p.shape}")
            sizes.append(None)
        elif p.ndim == len(shape) + 1:
            if tuple(p.shape[1:]) != shape:
                raise InputError(
                    f"Invalid parameter shape for parameter {i}. "
                    f"Expected batched shape: (batch_size, {', '.join(map(str, shape))}), Got: {p.shape}"
                )
            if p.shape[0] == 0:
                raise InputError(
                    f"Parameter {i} has an empty batch dimension: {tuple(p.shape)}. "
                    "Skip empty batches before the layer."
                )
            sizes.append(p.shape[0])
        else:
            raise InputError(
                f"Invalid parameter dimensionality for parameter {i}. "
                f"Expected {len(shape)} or {len(shape) + 1} dimensions, Got: {p.ndim} dimensions"
            )
    distinct = {s for s in sizes if s is not None}
    if len(distinct) > 1:
        raise InputError(
            "Inconsistent batch sizes. Expected all batched parameters to have the same batch size, "
            f"but got: {[s or 0 for s in sizes]}"
        )
    return tuple(s is not None for s in sizes), next(iter(distinct), None)


def _keys(keys: Sequence[Hashable] | torch.Tensor | None, batch: int | None) -> list[Hashable] | None:
    if keys is None:
        return None
    listed = keys.tolist() if isinstance(keys, (torch.Tensor, np.ndarray)) else list(keys)
    if len(listed) != (batch or 1):
        raise InputError(f"keys must name every sample: got {len(listed)} keys for a batch of {batch or 1}")
    try:
        distinct = len(set(listed))
    except TypeError as error:
        raise InputError(f"keys must be hashable, such as the samples' indices in the data set: {error}") from None
    if distinct != len(listed):
        raise InputError("keys must be distinct within a batch")
    return listed


def warn_of_doubt(info: Info) -> None:
    """Say so when a gradient that was just computed cannot be fully trusted."""
    certificate = info.certificate
    if certificate is None:
        return
    doubtful = np.flatnonzero(~certificate.good & info.ok)
    if len(doubtful):
        first = int(doubtful[0])
        warnings.warn(
            f"the gradient of {len(doubtful)} of {len(info.status)} samples is in doubt (see "
            f"layer.info.certificate); sample {first}: {'; '.join(certificate.reasons(first))}",
            GradientWarning,
            stacklevel=2,
        )
