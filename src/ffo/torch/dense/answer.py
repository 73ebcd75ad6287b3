"""A call on a device: the program of its blocks, its solution, and the derivative of that along a gradient."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from ffo.errors import InputError
from ffo.program.blocks import MATRICES, SIDES
from ffo.program.quadratic import Name
from ffo.torch.blocks import Form
from ffo.torch.dense.graphs import KEPT, Kept, Recorders
from ffo.torch.dense.presolve import Owners, SingleRows, with_bounds
from ffo.torch.dense.program import SINGULAR, DenseProgram, Tensor, are_definite
from ffo.torch.dense.solve import (
    METHODS,
    Begun,
    DenseSolution,
    begin,
    finish,
    solve_guessed,
)  # fmt: skip
from ffo.torch.dense.warm import Remembered

#: most variables, and most rows that are not bounds, of programs treated as dense
LARGEST = 2000
#: rows that are not bounds, relative to variables, up to which programs with cones are treated as few rows
FEW = 0.5
#: if pivoting leaves a larger share of samples unsolved, the interior-point method is tried
MISSED = 0.1


class UnverifiedError(Exception):
    """No sample could be verified, or the core fails on one: the whole batch goes to the core."""


@dataclass(frozen=True)
class Recognised:
    """What is known about programs before their values are examined.

    Attributes:
        kind: of Q, "diagonal", "definite" or "general"; "few rows": with cones, everything but a few rows is diagonal.
        single: rows with one entry, and `pattern` (r, n) of the entries that any sample has; None if there are none.
    """

    kind: str
    single: SingleRows | None = None
    pattern: Tensor | None = None


@dataclass(frozen=True)
class Assembled:
    """The program, which rows its bounds come from, and whether it has the expected structure ()."""

    program: DenseProgram
    owners: Owners | None
    valid: Tensor


@dataclass(frozen=True)
class DenseAnswer:
    """The solution of a call, the owners of its bounds, and the name of the method; how many samples are not solved,
    and how many are in doubt. `hits` (batch,) marks samples that were solved from their remembered active set; None if
    there are none."""

    kept: Kept[tuple[DenseSolution, Owners | None]]
    solver: str
    unsolved: int
    doubts: int
    hits: Tensor | None = None


_recorders = Recorders()
#: the last structure recognised in blocks of a form; the device checks whether it still holds
_recognised: OrderedDict[Hashable, Recognised] = OrderedDict()
_lock = threading.Lock()


def release() -> None:
    """Free what is cached on devices for later calls."""
    _recorders.clear()
    with _lock:
        _recognised.clear()
    torch.cuda.empty_cache()


def answered(given: tuple[Tensor, ...], form: Form, derivative: bool, remembered: Remembered | None) -> DenseAnswer:
    """The answer for float64 values of the blocks."""
    if form.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise InputError("a solve cannot be part of a CUDA graph: call the layer outside of torch.cuda.graph")
    values = tuple(
        v[:1] if name in MATRICES and v.ndim == 3 and v.stride(0) == 0 else v
        for name, v in zip(form.names, given, strict=True)
    )
    key = (form, derivative, tuple((v.shape, v.stride()) for v in values))
    remembered = None if form.cones else remembered  # active sets do not determine the solution on a curved face
    for known in (_recognised.get(key), None):
        structure = known or _recognise(values, form)
        _remember(key, structure)
        found = _guessed(values, form, derivative, structure, remembered) if remembered is not None else None
        found = found or _answered(values, form, derivative, structure, (key, structure.kind))
        suits = found is None or found.unsolved <= MISSED * (form.batch or 1)
        if not suits and structure.kind in ("diagonal", "definite"):
            structure = replace(structure, kind="general")
            _remember(key, structure)
            found = _answered(values, form, derivative, structure, (key, structure.kind))
        if found is not None:
            if remembered is not None:
                remembered.keep(found)
            return found
    raise UnverifiedError


def _remember(key: Hashable, structure: Recognised) -> None:
    with _lock:
        _recognised[key] = structure
        _recognised.move_to_end(key)
        while len(_recognised) > KEPT:
            _recognised.popitem(last=False)


def _answered(
    values: tuple[Tensor, ...], form: Form, derivative: bool, structure: Recognised, key: Hashable
) -> DenseAnswer | None:
    """The answer, or None if the programs turn out not to have this structure."""
    method = METHODS[structure.kind]
    with _recorders.of(key, form.device) as run:
        try:
            loaded = run.load("values", values)
            begun, owners = run.run(_begun, loaded, structure, form=form, method=method, derivative=derivative)
            solution = finish(begun, method, derivative, run)
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if not run.recorded:
                raise
            _recorders.give_up(key, error)
            return None
        if solution is None:
            return None
        name = method.NAME if run.recorded or form.device.type == "cpu" else f"{method.NAME} (not recorded)"
        return DenseAnswer(run.keep((solution, owners)), name, *solution.counts.tolist())


def _begun(
    values: tuple[Tensor, ...], structure: Recognised, form: Form, method: Any, derivative: bool
) -> tuple[Begun, Owners | None]:
    made = assembled(values, form, structure)
    begun = begin(made.program, method, derivative)
    return replace(begun, valid=begun.valid & made.valid), made.owners


def _guessed(
    values: tuple[Tensor, ...], form: Form, derivative: bool, structure: Recognised, remembered: Remembered
) -> DenseAnswer | None:
    """The answer from remembered active sets; None if they are unknown or not worth trying."""
    made = assembled(values, form, structure)
    guess = remembered.guess(made.program) if bool(made.valid) else None
    method = METHODS[structure.kind]
    if guess is None or (structure.kind == "general" and not bool(method.prepare(made.program).valid)):
        return None
    solution, hits = solve_guessed(made.program, guess, method, derivative)
    if solution is None:
        return None
    remembered.record(hits)
    unsolved, doubts = solution.counts.tolist()
    return DenseAnswer(Kept((solution, made.owners), None), method.NAME, unsolved, doubts, hits)


def assembled(values: tuple[Tensor, ...], form: Form, structure: Recognised) -> Assembled:
    """The program of float64 values; a missing block is empty, zero or infinite. Rows with one entry become
    bounds, whose owners are recorded."""
    blocks: dict[Name, Tensor] = dict(zip(form.names, values, strict=True))
    n, size, p = form.n, form.batch or 1, blocks["p"]
    valid = torch.ones((), dtype=torch.bool, device=p.device)
    Q = _three(blocks["Q"]) if "Q" in blocks else p.new_zeros(1, n, n)
    if structure.kind in ("diagonal", "few rows"):
        diagonal = Q.diagonal(dim1=1, dim2=2)
        valid = torch.eq(Q.abs().sum(dim=2), diagonal.abs()).all()
        Q = diagonal.clone()
    else:
        Q = 0.5 * (Q + Q.mT)
    low, upp = (_side(blocks, name, form.inequalities, form) for name in ("lower", "h"))
    lb, ub, owners = _side(blocks, "lb", n, form), _side(blocks, "ub", n, form), None
    if form.equalities:
        b = _two(blocks["b"], size)
        low, upp = torch.cat([b, low], dim=1), torch.cat([b, upp], dim=1)
    R = _stacked([_three(blocks[name]) for name in ("A", "G") if name in blocks], p.new_zeros(1, 0, n))
    single = structure.single
    if single is not None and structure.pattern is not None:
        entries = R[:, single.rows, single.columns]
        valid = valid & torch.eq((R != 0).any(dim=0), structure.pattern).all() & (entries != 0).all()
        single = replace(single, entries=entries)
        owners, low, upp, lb, ub = with_bounds(single, low, upp, lb, ub)
        R = R[:, single.rest]
    bounded = single is not None or "lb" in blocks or "ub" in blocks
    program = DenseProgram(Q, _two(p, size), R, low, upp, lb, ub, form.equalities, bounded, form.cones)
    if structure.kind == "few rows":
        valid = valid & _covered(program)
    return Assembled(program, owners, valid)


def _recognise(values: tuple[Tensor, ...], form: Form) -> Recognised:
    program = assembled(values, form, Recognised("general")).program
    single = SingleRows.of(program.R, slice(form.equalities, program.r - program.curved_rows))
    rows = program.r if single is None else len(single.rest)
    if program.n + rows > LARGEST:
        raise UnverifiedError
    pattern = None if single is None else (program.R != 0).any(dim=0)
    if not form.cones:
        return Recognised(_kind(program), single, pattern)
    few = Recognised("few rows", single, pattern)
    kept = rows - program.curved_rows + len(form.cones)
    if kept <= FEW * program.n and bool(assembled(values, form, few).valid):
        return few
    return Recognised("general", single, pattern)


def _kind(program: DenseProgram) -> str:
    Q = program.Q
    diagonal = Q.diagonal(dim1=1, dim2=2)
    least, most = torch.aminmax(diagonal, dim=1)
    if bool((Q.abs().sum(dim=2) == diagonal).all() & (least > SINGULAR * most).all()):
        return "diagonal"
    L, info = torch.linalg.cholesky_ex(Q)
    if bool(are_definite(L, info)):
        return "definite"
    return "general"


def _covered(program: DenseProgram) -> Tensor:
    """() whether the rows of cones have at most one entry, and every variable has a curvature, bound or cone."""
    there = program.R[:, program.r - program.curved_rows :] != 0
    bound = program.lb.isfinite() | program.ub.isfinite()
    return (there.sum(dim=2) <= 1).all() & ((program.Q > 0) | bound | there.any(dim=1)).all()


def _side(blocks: dict[Name, Tensor], name: Name, length: int, form: Form) -> Tensor:
    """(batch, length) bounds of inequalities, infinite if none are given."""
    size = form.batch or 1
    if name in blocks:
        return _two(blocks[name], size)
    return torch.full((1, 1), SIDES[name], dtype=torch.float64, device=form.device).expand(size, length)


def _three(M: Tensor) -> Tensor:
    """(batch or 1, rows, n)."""
    return M if M.ndim == 3 else M.unsqueeze(0)


def _two(v: Tensor, size: int) -> Tensor:
    """(batch, length)."""
    return v if v.ndim == 2 else v.expand(size, -1)


def _stacked(matrices: list[Tensor], empty: Tensor) -> Tensor:
    """(batch or 1, rows of all, n), without a copy if there is only one."""
    if len(matrices) < 2:
        return matrices[0] if matrices else empty
    size = max(len(M) for M in matrices)
    return torch.cat([M.expand(size, -1, -1) for M in matrices], dim=1)


def multipliers(solution: DenseSolution, owners: Owners | None, equalities: int) -> tuple[Tensor, Tensor, Tensor]:
    """nu, lam and mu, those of rows that became bounds at the rows."""
    point, bounds = solution.point, solution.verdict.bounds
    lam, mu = point.lam, point.mu
    if owners is not None:
        lam, mu = owners.rows(mu, lam, bounds), owners.own(mu, bounds)
    return lam[:, :equalities], lam[:, equalities:], mu


@dataclass(frozen=True)
class Change:
    """The ghost solution u (batch, n), t (batch, r), w at bounds (batch, n); z, the rows' multipliers and active
    bounds, and the variables' active bounds; and the relative residual (batch,)."""

    u: Tensor
    t: Tensor
    w: Tensor
    z: Tensor
    lam: Tensor
    rows: Tensor
    bounds: Tensor
    residual: Tensor

    def without(self, samples: Tensor) -> Change:
        """With zeros at some samples, marked (batch,)."""
        wide = samples.unsqueeze(1)
        names = ("u", "t", "w", "z", "lam")
        changed = {name: torch.where(wide, 0.0, getattr(self, name)) for name in names}
        return replace(self, residual=torch.where(samples, 0.0, self.residual), **changed)


@contextmanager
def changed(answer: DenseAnswer, incoming: tuple[Tensor | None, ...], form: Form) -> Iterator[Change]:
    """How the solution changes along incoming gradients of z, nu, lam and mu (None: zero), until the context ends."""
    with answer.kept.reading() as ((solution, owners), run):
        with torch.inference_mode():
            try:
                found = run.run(_changed, solution, owners, run.load("gradients", incoming), form=form)
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError:
                if not run.recorded:
                    raise
                found = _changed(solution, owners, incoming, form)
        yield found


def _changed(solution: DenseSolution, owners: Owners | None, incoming: tuple[Tensor | None, ...], form: Form) -> Change:
    ghost, point, verdict = solution.ghost, solution.point, solution.verdict
    assert ghost is not None
    bounds, rows = verdict.bounds, verdict.rows
    c_z, *c_duals = incoming
    r_x = torch.zeros_like(point.z) if c_z is None else -c_z
    r_rows, r_bounds = _sides_of(c_duals, form, point.z, bounds, owners)
    if ghost.program.r > rows.shape[1]:  # bounds are rows of the ghost
        both = None if r_rows is None or r_bounds is None else torch.cat([r_rows, r_bounds], dim=1)
        u, every, residual = ghost.solve(r_x, both)
        t, w = every[:, : rows.shape[1]], every[:, rows.shape[1] :]
    else:
        u, t, residual = ghost.solve(r_x, r_rows, r_bounds)
        w = ghost.on_bounds(r_x, u, t)
    lam = point.lam
    if owners is not None:
        t, lam = owners.rows(w, t, bounds), owners.rows(point.mu, lam, bounds)
        rows, w = owners.rows(bounds, rows, bounds, per_entry=False), owners.own(w, bounds)
    return Change(u, t, w, point.z, lam, rows, bounds, residual)


def _sides_of(
    c_duals: list[Tensor | None], form: Form, z: Tensor, bounds: Tensor, owners: Owners | None
) -> tuple[Tensor | None, Tensor | None]:
    """Right-hand sides at rows and bounds for gradients of multipliers; None: zero."""
    if all(c is None for c in c_duals):
        return None, None
    widths = (form.equalities, form.inequalities, form.n)
    c_nu, c_lam, c_mu = (
        z.new_zeros(len(z), width) if c is None else c for c, width in zip(c_duals, widths, strict=True)
    )
    rows = torch.cat([c_nu, c_lam], dim=1)
    if owners is None:
        return -rows, torch.where(bounds != 0, -c_mu, 0.0)
    return -rows[:, owners.single.rest], -owners.bounds(c_mu, rows, bounds)
