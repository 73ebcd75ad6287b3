"""A call of a layer, independent of the framework of its tensors.

A front end converts tensors to arrays and back, and registers the two derivatives with its autograd. Everything in
between is here: smoothing by draws, keys, averages and their derivatives, warnings about gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from ffo.engine.blame import blamed
from ffo.engine.engine import Engine
from ffo.engine.info import Info
from ffo.engine.notices import tells_nothing
from ffo.engine.outcome import Outcome, only
from ffo.engine.report import EngineReport
from ffo.engine.smoothing import Sampler, centred
from ffo.engine.start import Start
from ffo.errors import GradientWarning, InputError
from ffo.program.affine import DataGradient
from ffo.program.canonical import CanonicalProblem
from ffo.program.cone import ConeProgram
from ffo.program.declared import refused

Array = np.ndarray


@dataclass(eq=False)
class LayerRecord:
    """What backward needs from a forward pass.

    Attributes:
        irregular: parameters that are expressions without a derivative in some samples: (batch,) which, or () if all
            samples share the expression.
    """

    outcome: Outcome
    values: list[Array]
    draws: int
    score: Array | None = None
    irregular: dict[int, Array] = field(default_factory=dict)

    @property
    def solved(self) -> Array | None:
        """(batch * draws,) true where the sample was solved in all of its draws; None: everywhere."""
        ok = self.outcome.solved
        return None if ok is None else np.repeat(ok.reshape(-1, self.draws).all(axis=1), self.draws)


@dataclass(eq=False)
class LayerCall:
    """One call of a layer, in NumPy: parameters in, outputs out, and both derivatives.

    Attributes:
        batched: which parameters have a batch dimension; batch: its size, or None.
        keys: under which the samples are remembered; None: they are not.
        overrides: solver settings for this call.
        sampler: draws of a smoothed layer.
        mean: whether gradients of shared parameters are means over the batch instead of sums.
        receive: takes the report on the call, to which derivatives add later.
        precision: the dtype in which the front end computes expressions of parameters.
        start: the user's guess of each output, (batch, *shape) or None; an empty tuple: there is no guess.
    """

    engine: Engine
    canonical: CanonicalProblem
    batched: tuple[bool, ...]
    batch: int | None
    keys: list[Hashable] | None
    overrides: dict[str, Any]
    sampler: Sampler | None
    mean: bool
    receive: Callable[[EngineReport], None]
    precision: Any = np.float64
    start: tuple[Array | None, ...] = ()

    def parameter_dims(self) -> list[int]:
        return [len(s) for s in self.canonical.shapes]

    def folded(self, samples: int, batched: Sequence[bool]) -> LayerCall:
        """The call with a mapped dimension of `samples` joined to the batch."""
        if self.keys is not None or self.start:
            raise InputError("keys=, warm_start= and start= cannot be used under torch.func.vmap: pass a batch instead")
        self.check_foldable("torch.func.vmap")
        return replace(self, batched=tuple(batched), batch=samples * (self.batch or 1))

    def check_foldable(self, transform: str) -> None:
        """Whether a mapped dimension may join the batch; `transform` is for the message."""
        if self.engine.options.lead:
            raise InputError(f"smoothing with average=False cannot be used under {transform}: pass a batch instead")

    def solve(self, values: list[Array]) -> tuple[list[Array], LayerRecord]:
        flat = self._flat(values)
        program = self.engine.matrices.program(self.canonical.map, flat)
        sampler = self.sampler
        draws = self.engine.options.draws
        keys, score = self.keys, None
        if sampler:
            program, score = sampler.perturb(program)
            keys = None if keys is None else [(k, d) for k in keys for d in range(draws)]
        bad = refused(self.canonical.declared, flat, self.batch or 1) if self.canonical.declared else {}
        if bad and draws > 1:
            bad = {k * draws + d: text for k, text in bad.items() for d in range(draws)}
        outcome = self.engine.run(
            program,
            keys,
            self.overrides,
            refused=bad,
            check_convexity=self.canonical.map.parametric_P,
            copies=draws,
            open_sides=self.canonical.open_sides,
            hidden=self.canonical.recovery.hidden,
            names=self.canonical.names,
            start=self._guess(draws),
            explain=partial(blamed, canonical=self.canonical, values=flat),
        )
        record = LayerRecord(outcome, flat, draws, score, self._irregular(values) if self.canonical.lifted else {})
        if record.irregular:
            self._doubt(record, dict.fromkeys(record.irregular, np.True_), first=True)
        self.receive(outcome.report)
        outputs = self.canonical.recovery.apply(outcome.x, outcome.y)
        if self.sampler is not None or self.batch is None:
            outputs = [self._averaged(v, draws) for v in outputs]
        return outputs, record

    def adjoint(
        self, record: LayerRecord, gradients: list[Array | None], wanted: Sequence[bool], per_sample: bool
    ) -> list[Array | None]:
        outcome, recovery = record.outcome, self.canonical.recovery
        spread = [None if g is None else self._spread(g, record.draws) for g in gradients]
        solved = record.solved
        c_x, c_y = recovery.adjoint(spread, only(solved, outcome.x))
        first = bool(record.irregular) and not outcome.info.differentiated
        ghost = record.score is None or self.canonical.map.touches("P", "A", "b", wanted=wanted)
        if ghost:
            data = outcome.adjoint(only(solved, c_x), only(solved, c_y), lambda g: self.canonical.map.feels(g, wanted))
            if self.engine.notices_vertices and not outcome.program.P.nnz and record.score is None:
                self._notice_vertices(outcome.program, c_x, data, wanted)
        else:  # the solutions suffice
            data = DataGradient(outcome.x, outcome.y, np.zeros_like(c_x), np.zeros_like(c_y))
        if record.score is not None:
            data = replace(data, other_q=self._score_gradient(record, spread))
        values = record.values
        if per_sample:  # as if every parameter were batched
            values = [np.broadcast_to(v, (self.batch or 1, v.shape[-1])) for v in values]
        found = self.canonical.map.adjoint(data, values, wanted)
        if record.irregular:
            through = {k: found[k] for k in record.irregular}
            self._doubt(record, {k: g.any(axis=-1) for k, g in through.items() if g is not None}, first)
        if (ghost or record.irregular) and not outcome.report.undoubted:
            warn_of_doubt(outcome.info)
        if self.mean and not per_sample:
            size = self.batch or 1
            found = [g if g is None or b else g / size for g, b in zip(found, self.batched, strict=True)]
        return [
            None if g is None else g.reshape(g.shape[:-1] + shape)
            for g, shape in zip(found, self.canonical.shapes, strict=True)
        ]

    def _notice_vertices(
        self, program: ConeProgram, c_x: Array, gradient: DataGradient, wanted: Sequence[bool]
    ) -> None:
        if self.canonical.map.touches("q", wanted=wanted) and tells_nothing(program, c_x, gradient):
            self.engine.notice_vertices()

    def tangent(self, record: LayerRecord, tangents: list[Array | None]) -> list[Array]:
        outcome = record.outcome
        flat = [
            None if t is None else t.reshape((-1, size) if t.ndim > dims else (size,))
            for t, dims, size in zip(tangents, self.parameter_dims(), self.canonical.map.sizes, strict=True)
        ]
        change = self.canonical.map.tangent(flat, record.values, len(outcome.x) // record.draws)
        if record.draws > 1:
            change = change.repeat(record.draws)
        if self.canonical.map.forms:
            point = (only(outcome.solved, v) for v in (outcome.x, outcome.y))
            change = self.canonical.map.along_forms(change, flat, *point)
        along = None if record.score is None else np.einsum("ij,ij->i", record.score, change.q)
        first = bool(record.irregular) and not outcome.info.differentiated
        dx, dy = outcome.tangent(
            change if along is None else change.with_vectors(q=np.zeros_like(change.q)), self.canonical.recovery.shows
        )
        if record.irregular:
            self._doubt(record, {k: np.True_ for k in record.irregular if flat[k] is not None}, first)
        warn_of_doubt(outcome.info)
        found = self.canonical.recovery.tangent(dx, dy, only(outcome.solved, outcome.x))
        if along is not None:
            outputs = self.canonical.recovery.apply(*self._solved_points(record))
            found = [
                f + centred(v, record.draws) * along.reshape(-1, *(1,) * (v.ndim - 1))
                for f, v in zip(found, outputs, strict=True)
            ]
        return [self._averaged(v, record.draws) for v in found]

    def _irregular(self, values: Sequence[Array]) -> dict[int, Array]:
        lifted, given = self.canonical.lifted, self.canonical.given
        assert lifted is not None
        return {given + k: at for k, at in lifted.irregular(values[:given], self.precision).items()}

    def _doubt(self, record: LayerRecord, felt: dict[int, Any], first: bool) -> None:
        """Report the samples in which a derivative goes through an expression that has none.

        Args:
            felt: for some parameters, whether a derivative goes through them, (batch,) or ().
            first: whether this is the first derivative, which replaces what the forward pass expected.
        """
        info, lifted = record.outcome.info, self.canonical.lifted
        assert lifted is not None
        flags = np.zeros(len(info.status), dtype=bool) if first else info.certificate.irregular.copy()
        for k, through in felt.items():
            where = np.broadcast_to(record.irregular[k] & through, self.batch or 1)
            where = np.repeat(where, record.draws) & info.answered
            flags |= where
            text = f"the parameter expression {lifted.texts[k - self.canonical.given]} has no derivative here"
            info.detail.update({int(i): text for i in np.flatnonzero(where) if int(i) not in info.detail})
        info.evidence = replace(info.certificate, irregular=flags)

    def _score_gradient(self, record: LayerRecord, gradients: Sequence[Array | None]) -> Array:
        """Gradient in the linear term of the mean over perturbed costs (see `engine.smoothing`)."""
        assert record.score is not None
        outputs = self.canonical.recovery.apply(*self._solved_points(record))
        loss = sum(
            ((g * v).reshape(len(v), -1).sum(axis=1) for g, v in zip(gradients, outputs, strict=True) if g is not None),
            start=np.zeros(len(record.score)),
        )
        return centred(loss, record.draws)[:, None] * record.score

    @staticmethod
    def _solved_points(record: LayerRecord) -> tuple[Array, Array]:
        return only(record.solved, record.outcome.x), only(record.solved, record.outcome.y)

    def _flat(self, values: list[Array]) -> list[Array]:
        sizes = self.canonical.map.sizes
        return [v.reshape((len(v), s) if b else (s,)) for v, b, s in zip(values, self.batched, sizes, strict=True)]

    def _guess(self, draws: int) -> Start | None:
        if not self.start:
            return None
        guess = Start(*self.canonical.recovery.guess(self.start, self.batch or 1))
        return guess.repeat(draws) if draws > 1 else guess

    def _averaged(self, v: Array, draws: int) -> Array:
        if self.sampler is not None:
            by_draw = v.reshape(len(v) // draws, draws, *v.shape[1:])
            if self.engine.options.lead:
                return by_draw.swapaxes(0, 1) if self.batch is not None else by_draw[0]
            v = by_draw.mean(axis=1)
        return v if self.batch is not None else v[0]

    def _spread(self, g: Array, draws: int) -> Array:
        if self.sampler is None:
            return g if self.batch is not None else g[None]
        if self.engine.options.lead:
            by_draw = g if self.batch is not None else g[:, None]
            return by_draw.swapaxes(0, 1).reshape(len(g) * by_draw.shape[1], *by_draw.shape[2:])
        full = g if self.batch is not None else g[None]
        return np.repeat(full / draws, draws, axis=0) if draws > 1 else full


def read_batch(
    given: Sequence[Sequence[int]], shapes: Sequence[tuple[int, ...]], labels: Sequence[str]
) -> tuple[tuple[bool, ...], int | None]:
    """Which arrays of these shapes are batched, and the batch size (None: unbatched).

    The checks are those of CvxpyLayer, and so is their wording, followed by the parameter's name.

    Args:
        given: shapes of the arrays of a call; shapes: those of the parameters they are for; labels: of the parameters.
    """
    if len(given) != len(shapes):
        raise InputError(
            f"A tensor must be provided for each CVXPY parameter; received {len(given)} tensors, expected {len(shapes)}"
        )
    sizes: list[int | None] = []
    for i, (found, shape) in enumerate(zip(given, shapes, strict=True)):
        if len(found) == len(shape):
            if tuple(found) != shape:
                raise InputError(
                    f"Invalid parameter shape for parameter {i}. Expected: {shape}, Got: {found}. {_which(labels[i])}"
                )
            sizes.append(None)
        elif len(found) == len(shape) + 1:
            if tuple(found[1:]) != shape:
                raise InputError(
                    f"Invalid parameter shape for parameter {i}. "
                    f"Expected batched shape: (batch_size, {', '.join(map(str, shape))}), Got: {found}. "
                    f"{_which(labels[i])}"
                )
            if found[0] == 0:
                raise InputError(
                    f"{labels[i]} has an empty batch dimension: {tuple(found)}. Skip empty batches before the layer."
                )
            sizes.append(found[0])
        else:
            raise InputError(
                f"Invalid parameter dimensionality for parameter {i}. "
                f"Expected {len(shape)} or {len(shape) + 1} dimensions, Got: {len(found)} dimensions. "
                f"{_which(labels[i])}"
            )
    distinct = {s for s in sizes if s is not None}
    if len(distinct) > 1:
        raise InputError(
            "Inconsistent batch sizes. Expected all batched parameters to have the same batch size, "
            f"but got: {[s or 0 for s in sizes]}"
        )
    return tuple(s is not None for s in sizes), next(iter(distinct), None)


def _which(label: str) -> str:
    return f"This is {label[0].lower()}{label[1:]}."


def read_start(
    start: Sequence[Array | None], shapes: Sequence[tuple[int, ...]], batch: int | None
) -> tuple[Array | None, ...]:
    """The guesses of a call as (batch, *shape) arrays, checked.

    Args:
        start: one array per output, with or without a batch dimension, None where there is no guess.
        shapes: of the outputs for one sample.
    """
    if len(start) != len(shapes):
        raise InputError(f"start= must have one guess per output: got {len(start)}, expected {len(shapes)}")
    size, found = batch or 1, list[Array | None]()
    for i, (guess, shape) in enumerate(zip(start, shapes, strict=True)):
        if guess is None:
            found.append(None)
        elif guess.shape == shape or (batch is not None and guess.shape == (batch, *shape)):
            found.append(np.broadcast_to(guess, (size, *shape)))
        else:
            more = "" if batch is None else f" or {(batch, *shape)}"
            raise InputError(f"guess {i} in start= must have the shape {shape}{more}, got {guess.shape}")
    return tuple(found) if any(guess is not None for guess in found) else ()


def warn_of_doubt(info: Info) -> None:
    """Warn if a gradient that was just computed cannot be fully trusted."""
    certificate = info.evidence
    if certificate is None or certificate.all_good:
        return
    doubtful = np.flatnonzero(~certificate.good & info.answered)
    if len(doubtful):
        first = int(doubtful[0])
        reasons = certificate.reasons(first)
        if certificate.irregular[first]:
            reasons.append(info.detail[first])
        warnings.warn(
            f"the gradient of {len(doubtful)} of {len(info.status)} samples is in doubt (see "
            f"layer.info.certificate); sample {first}: {'; '.join(reasons)}",
            GradientWarning,
            stacklevel=2,
        )
