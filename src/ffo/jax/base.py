"""Common code of all layers: options, reports, and the path of a call through JAX."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from ffo.engine import Engine, Info, Options, Smoothing
from ffo.engine.call import LayerCall
from ffo.engine.records import Records
from ffo.engine.report import EngineReport
from ffo.engine.smoothing import Sampler
from ffo.errors import SOLVED, InputError, NotCalledError
from ffo.jax.host import Site
from ffo.jax.primitives import bind_solve
from ffo.jax.records import SolvedCall
from ffo.program.canonical import CanonicalProblem


class CallReport(NamedTuple):
    """What is known about a call before its derivatives: a pytree of arrays, (*batch,) each, inside and outside traces.

    Attributes:
        status: codes of `ffo.errors.Status`, 0 where the sample was solved.
        residual: natural residual of the returned point; NaN where the sample failed.
        error: estimated relative error of the solution, and therefore of the gradient.
        good: whether there is no reason to doubt the gradient so far (`layer.info.certificate.good` says more once a
            derivative has been taken).
    """

    status: jax.Array
    residual: jax.Array
    error: jax.Array
    good: jax.Array

    @property
    def ok(self) -> jax.Array:
        """(*batch,) true where the sample was solved."""
        return self.status == SOLVED


class LayerBase:
    """A layer that solves a parametrised problem for each sample of a batch."""

    def __init__(self, options: Options) -> None:
        self.engine = Engine(options)
        self.sampler = Sampler(options.smoothing) if options.smoothing else None
        self.records: Records[SolvedCall] = Records()
        self._last: Info | EngineReport | None = None

    @property
    def info(self) -> Info:
        """Report on the last call that has run; raises a `NotCalledError` before the first.

        Compiled programs run asynchronously: call `jax.block_until_ready` first.
        """
        if self._last is None:
            raise NotCalledError(
                "info reports on the last call of the layer, and none has run yet: call the layer first, and "
                "jax.block_until_ready on its outputs if it is compiled"
            )
        return self._last if isinstance(self._last, Info) else self._last.info()

    def smoothed(self, smoothing: float | Smoothing | None) -> Self:
        """The same layer with other smoothing, with its own draws and memory."""
        other = copy.copy(self)
        other.engine = Engine(replace(self.engine.options, smoothing=smoothing))  # type: ignore[arg-type]
        chosen = other.engine.options.smoothing
        other.sampler = Sampler(chosen) if chosen else None
        other.records, other._last = Records(), None
        return other

    def _receive(self, report: EngineReport) -> None:
        self._last = report

    def _run(
        self,
        canonical: CanonicalProblem,
        values: Sequence[jax.Array],
        solver_args: Mapping[str, Any] | None,
        keys: Any,
        warm_start: bool | None,
        report: bool,
        dtype: Any,
    ) -> tuple[list[jax.Array], CallReport | None]:
        """Solve a canonical problem for arrays that have been checked; `dtype`: of the outputs."""
        if self.sampler is None:  # draws perturb the program as it was given
            canonical = canonical.compact
        call = LayerCall(
            self.engine, canonical, (), None, None, dict(solver_args or {}), self.sampler, False, self._receive,
            precision=np.dtype(jnp.result_type(float)),
        )  # fmt: skip
        by_position = self.engine.options.warm_start if warm_start is None else warm_start
        site = Site(call, self.records, by_position, report)
        named = None if keys is None or warm_start is False else as_keys(keys)
        if not values:
            *found, _ = site.solve([], None if named is None else np.asarray(named), False, dtype)
            arrays = [jnp.array(v) for v in found]
            outputs, reported = arrays[: len(site.output_shapes)], arrays[len(site.output_shapes) :]
        else:
            outputs, reported = bind_solve(site, values, named, dtype)
        return outputs, CallReport(*reported) if report else None


def as_array(value: Any, label: str) -> jax.Array:
    """An array of floating-point numbers. Integers are converted; they do not affect the dtype of the outputs."""
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{label} must be an array, got {type(value).__name__}: {error}") from None
    if jnp.issubdtype(array.dtype, jnp.floating):
        return array
    if jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == bool:
        return array * 1.0
    raise InputError(f"{label} must be an array of real numbers, got {array.dtype}")


def dtype_of(values: Sequence[jax.Array]) -> Any:
    """The dtype to which JAX promotes arrays; without arrays, its default."""
    return jnp.result_type(*values) if values else jnp.result_type(float)


def as_keys(keys: Any) -> jax.Array:
    """Keys as integers, which pass through a compiled program."""
    found = keys if isinstance(keys, jax.Array) else np.asarray(keys)
    if not jnp.issubdtype(found.dtype, jnp.integer) or found.ndim != 1:
        raise InputError(f"keys must be integers, one per sample, got {found.dtype} of shape {found.shape}")
    return jnp.asarray(found)
