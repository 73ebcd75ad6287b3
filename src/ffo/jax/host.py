"""The host side of a call: NumPy arrays in the caller's dtypes in and out.

This code may run inside a compiled program, on a thread of its runtime. It never calls JAX, and keeps no array it
was given: the runtime reuses their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ffo.engine.call import LayerCall
from ffo.engine.info import Info
from ffo.engine.keys import sample_keys
from ffo.engine.options import Options
from ffo.engine.records import GONE, NOTHING, Records
from ffo.engine.report import EngineReport
from ffo.errors import DerivativeError
from ffo.jax.records import SolvedCall

Array = np.ndarray
#: codes of `ffo.errors.Status`, residual, error estimate, certificate
REPORT = 4


@dataclass(frozen=True, eq=False)
class Site:
    """The part of a call that does not depend on its arrays, nor on their batch size.

    Attributes:
        call: the call without a batch; records: of the layer.
        by_position: whether samples are remembered by their positions in the batch.
        report: whether the call returns its report.
    """

    call: LayerCall
    records: Records[SolvedCall]
    by_position: bool
    report: bool

    @property
    def dims(self) -> list[int]:
        """Dimensions of each parameter without a batch."""
        return self.call.parameter_dims()

    @property
    def output_shapes(self) -> list[tuple[int, ...]]:
        """Shape of each output for one sample, and of the draws where each is returned."""
        return [(*self._options.lead, *out.shape) for out in self.call.canonical.recovery.outputs]

    def shaped(self, batch: int | None) -> list[tuple[int, ...]]:
        """Shapes of the outputs; a dimension of draws comes before the batch."""
        if batch is None:
            return self.output_shapes
        lead = len(self._options.lead)
        return [(*s[:lead], batch, *s[lead:]) for s in self.output_shapes]

    def report_shape(self, batch: int | None) -> tuple[int, ...]:
        """(*batch,), followed by a dimension of draws if there are any."""
        return (*(() if batch is None else (batch,)), *(() if self.call.sampler is None else (self._options.draws,)))

    @property
    def _options(self) -> Options:
        return self.call.engine.options

    def solve(self, values: Sequence[Array], keys: Array | None, keep: bool, dtype: np.dtype) -> tuple[Array, ...]:
        """Outputs, a token for the derivative, and the report where it is wanted."""
        call = self._shaped_call(values, keys)
        outputs, record = call.solve([owned(v) for v in values])
        token = self.records.keep(SolvedCall(call, record), record) if keep else NOTHING
        found = [in_dtype(v, dtype) for v in outputs]
        if self.report:
            shape = self.report_shape(call.batch)
            found += [v.reshape(shape) for v in report_arrays(record.outcome.info, dtype)]
        return *found, token

    def adjoint(
        self,
        values: Sequence[Array],
        token: Array,
        gradients: Sequence[Array],
        *,
        given: Sequence[bool],
        wanted: Sequence[bool],
        per_sample: bool,
        rows: int | None,
    ) -> tuple[Array, ...]:
        """Gradients in the wanted parameters, for each of `rows` right-hand sides."""
        solved = self._solved(values, token)
        kept = [v for v, w in zip(values, wanted, strict=True) if w]
        if solved is None or rows == 0:
            batch = self._shaped_call(values, None).batch if per_sample else None
            own = [d for d, w in zip(self.dims, wanted, strict=True) if w]
            more = [() if batch is None or v.ndim > d else (batch,) for v, d in zip(kept, own, strict=True)]
            return tuple(_zeros(rows, (*m, *v.shape), v.dtype) for v, m in zip(kept, more, strict=True))

        def one(vectors: Sequence[Array | None]) -> list[Array | None]:
            return solved.call.adjoint(solved.record, list(vectors), wanted, per_sample)

        found = _by_rows(one, gradients, given, rows)
        return tuple(in_dtype(g, v.dtype) for g, v in zip(found, kept, strict=True))

    def tangent(
        self,
        values: Sequence[Array],
        token: Array,
        tangents: Sequence[Array],
        *,
        given: Sequence[bool],
        rows: int | None,
        dtype: np.dtype,
    ) -> tuple[Array, ...]:
        """Tangents of the outputs, for each of `rows` directions."""
        solved = self._solved(values, token)
        if solved is None or rows == 0:
            shapes = self.shaped(self._shaped_call(values, None).batch)
            return tuple(_zeros(rows, shape, dtype) for shape in shapes)

        def one(vectors: Sequence[Array | None]) -> list[Array | None]:
            return [*solved.call.tangent(solved.record, list(vectors))]

        return tuple(in_dtype(t, dtype) for t in _by_rows(one, tangents, given, rows))

    def _shaped_call(self, values: Sequence[Array], keys: Array | None) -> LayerCall:
        batched = tuple(v.ndim > d for v, d in zip(values, self.dims, strict=True))
        batch = next((len(v) for v, b in zip(values, batched, strict=True) if b), None)
        named = sample_keys(keys, batch)
        if named is None and self.by_position:
            named = list(range(batch or 1))
        return replace(self.call, batched=batched, batch=batch, keys=named)

    def _solved(self, values: Sequence[Array], token: Array) -> SolvedCall | None:
        """The record of a token, or a new one: the same solve again.

        A mapped `lax.cond` stacks tokens, one for each part of the batch, and leaves zeros in the tokens and parameters
        of samples that took another branch, whose derivatives are not used. None if all samples took another branch.
        """
        tokens = token.reshape(-1, 2)
        used = (tokens != NOTHING).any(axis=1)
        if not used.any():
            return None
        call = replace(self._shaped_call(values, None), keys=None, receive=_ignore)
        doubles = [owned(v) for v in values]
        samples = np.repeat(used, (call.batch or 1) // len(used))
        found = self.records.find(tokens[used][0]) if (tokens[used] == tokens[used][0]).all() else None
        same = found is not None and (found.call.batched, found.call.batch) == (call.batched, call.batch)
        # stacked samples may have been reordered
        if found is not None and same and (token.ndim == 1 or found.is_of(doubles, samples)):
            return found
        if call.sampler is not None:
            raise DerivativeError(GONE)
        for v, batched in zip(doubles, call.batched, strict=True):
            if batched:
                v[~samples] = v[samples.argmax()]  # zeros may have no solution
        return SolvedCall(call, call.solve(doubles)[1])


def _zeros(rows: int | None, shape: tuple[int, ...], dtype: np.dtype) -> Array:
    return np.zeros(shape if rows is None else (rows, *shape), dtype)


def _ignore(_: EngineReport) -> None:
    pass


def _by_rows(
    one: Callable[[Sequence[Array | None]], list[Array | None]],
    vectors: Sequence[Array],
    given: Sequence[bool],
    rows: int | None,
) -> list[Array]:
    """With the existing factors, each row costs two triangular solves."""

    def spread(row: int | None) -> list[Array | None]:
        present = iter(vectors if row is None else [v[row] for v in vectors])
        return [owned(next(present)) if g else None for g in given]

    if rows is None:
        return [v for v in one(spread(None)) if v is not None]
    found = [[v for v in one(spread(row)) if v is not None] for row in range(rows)]
    return [np.stack(column) for column in zip(*found, strict=True)]


def owned(v: Array) -> Array:
    """A copy in double precision."""
    return np.array(v, dtype=np.float64, order="C")


def in_dtype(v: Array, dtype: np.dtype) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # a number may overflow in float32
        return np.ascontiguousarray(v).astype(dtype, copy=False).reshape(v.shape)


def report_arrays(info: Info, dtype: np.dtype) -> list[Array]:
    """Status codes, residuals, errors and verdicts, in the order of `CallReport`."""
    certificate = info.certificate
    real = report_dtype(dtype)
    return [
        np.array([int(s) for s in info.status], dtype=np.int32),
        in_dtype(info.residual, real),
        in_dtype(certificate.error, real),
        np.asarray(certificate.good),
    ]


def report_dtype(dtype: np.dtype) -> np.dtype:
    """float64 for float64, else float32: half precision would round residuals of 1e-12 to zero."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)
