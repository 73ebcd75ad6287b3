"""The blocks of a quadratic program, given as dense or sparse tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from ffo.errors import InputError
from ffo.program.blocks import MATRICES, SIDES, Blocks, check_shapes, is_absent, make_blocks, union_pattern
from ffo.program.quadratic import MatrixPattern, Name
from ffo.torch.function import Kind, check_kinds, have_kinds, in_one_dtype, inside_transform


@dataclass(frozen=True)
class Form:
    """What the kinds of a call's blocks determine.

    Attributes:
        names: of the blocks present.
        n: variables; equalities, inequalities: rows of A and of G.
        batch: samples, None if no block has a batch dimension.
        shared: blocks without one.
        dense: whether no block is sparse; device: of all of them.
        cones: sizes of the second-order cones that the last rows of G form.
        owner: distinguishes programs of the same sizes that are given by different layers.
    """

    names: tuple[Name, ...]
    n: int
    equalities: int
    inequalities: int
    batch: int | None
    shared: frozenset[Name]
    dense: bool
    device: torch.device
    cones: tuple[int, ...] = ()
    owner: int = 0


class Checked(NamedTuple):
    """The names and kinds of blocks that were checked, and the form of programs made of them."""

    names: tuple[Name, ...]
    kinds: tuple[Kind, ...]
    form: Form


class Given(NamedTuple):
    """The blocks of a call as given, without those that are None."""

    tensors: dict[Name, torch.Tensor]
    checked: Checked

    @property
    def form(self) -> Form:
        return self.checked.form

    @property
    def closed(self) -> bool:
        """Whether all blocks are dense, and no bound is infinite."""
        if not self.form.dense or inside_transform():  # in a transform the engine checks the values
            return self.form.dense
        sides = [t.numpy(force=True) == SIDES[name] for name, t in self.tensors.items() if name in SIDES]
        return not any(map(np.count_nonzero, sides))

    def values(self, names: Iterable[str]) -> list[torch.Tensor]:
        """The values of dense blocks, flattened: (entries,) or (batch, entries)."""
        blocks: dict[Any, torch.Tensor] = self.tensors
        return [blocks[k].flatten(-2) if k in MATRICES else blocks[k] for k in names]


def read_given(given: Mapping[Name, torch.Tensor | None], last: Checked | None = None) -> Given:
    """Check the blocks of a call; those of the same kinds as `last` need no check."""
    names = tuple([name for name, t in given.items() if t is not None])
    listed: Sequence[Any] = [given[name] for name in names]
    if last is None or last.names != names or not have_kinds(listed, last.kinds):
        listed = in_one_dtype(listed)
        for name, t in zip(names, listed, strict=True):
            if not isinstance(t, torch.Tensor):
                raise InputError(f"{name} must be a torch tensor, got {type(t).__name__}")
        kinds = tuple([Kind(t.shape, t.dtype, t.device, t.layout) for t in listed])
        last = Checked(names, kinds, _checked(tuple(zip(names, kinds, strict=True))))
    tensors = dict(zip(names, listed, strict=True))
    if len(last.form.names) < len(tensors):
        tensors = {name: tensors[name] for name in last.form.names}
    return Given(tensors, last)


@lru_cache(maxsize=256)  # during training all calls of a layer are of one kind
def _checked(kinds: tuple[tuple[Name, Kind], ...]) -> Form:
    present = {name: kind for name, kind in kinds if not is_absent(name, kind.shape)}
    batch = check_shapes({name: tuple(kind.shape) for name, kind in present.items()})
    check_kinds(list(present.values()), tuple(present), tuple(present), sparse=MATRICES)
    rows = {name: kind.shape[-2] for name, kind in present.items() if name in MATRICES}
    return Form(
        names=tuple(present),
        n=present["p"].shape[-1],
        equalities=rows.get("A", 0),
        inequalities=rows.get("G", 0),
        batch=batch,
        shared=frozenset(k for k, kind in present.items() if len(kind.shape) == (2 if k in MATRICES else 1)),
        dense=all(kind.layout is torch.strided for kind in present.values()),
        device=present["p"].device,
    )


def read_blocks(given: Given) -> Blocks[torch.Tensor]:
    """Split the blocks of a call into values and patterns."""
    values: dict[Name, torch.Tensor] = {}
    patterns: dict[Name, MatrixPattern] = {}
    for name, t in given.tensors.items():
        if name in MATRICES:
            values[name], patterns[name] = _matrix(name, t)
        else:
            values[name] = t
    return make_blocks(values, patterns, given.form.n, given.form.batch, _equal)


def _matrix(name: Name, t: torch.Tensor) -> tuple[torch.Tensor, MatrixPattern]:
    """Values (nonzeros,) or (batch, nonzeros) of a matrix, and their pattern."""
    rows, cols = t.shape[-2:]
    if t.layout is torch.strided:
        return t.reshape(*t.shape[:-2], rows * cols), MatrixPattern.full(rows, cols)
    if t.layout in (torch.sparse_csr, torch.sparse_csc):
        sample, index, values = _compressed(t)
    else:
        sample, index, values = _coordinates(name, t)
    if t.ndim == 2:
        return values, MatrixPattern(index[0], index[1], (rows, cols))
    # Samples may have different patterns: take the union, with zeros where a sample has no entry.
    pattern, entry = union_pattern(index[0], index[1], (rows, cols))
    where = (torch.from_numpy(sample).to(t.device), torch.from_numpy(entry).to(t.device))
    return values.new_zeros(t.shape[0], len(pattern.rows)).index_put(where, values), pattern


def _coordinates(name: Name, t: torch.Tensor) -> tuple[np.ndarray, np.ndarray, torch.Tensor]:
    """Sample, (row, column) and value of each nonzero of a COO tensor."""
    if t.layout is not torch.sparse_coo or t.sparse_dim() != t.ndim:
        raise InputError(f"{name} must be dense, COO, CSR or CSC without dense dimensions; pass {name}.to_dense()")
    t = t.coalesce()
    index = t.indices().cpu().numpy()
    return index[0], index[-2:], t.values()


def _compressed(t: torch.Tensor) -> tuple[np.ndarray, np.ndarray, torch.Tensor]:
    """The same for a CSR or CSC tensor; converted to COO, a batch of them would have no gradient."""
    by_rows = t.layout is torch.sparse_csr
    ends, inner = (t.crow_indices(), t.col_indices()) if by_rows else (t.ccol_indices(), t.row_indices())
    counts = ends.diff(dim=-1).cpu().numpy().astype(np.int64)  # (*batch, rows or columns)
    minor = inner.cpu().numpy().astype(np.int64).ravel()
    major = np.repeat(np.tile(np.arange(counts.shape[-1]), counts.size // max(counts.shape[-1], 1)), counts.ravel())
    index = np.stack([major, minor] if by_rows else [minor, major])
    sample = np.repeat(np.arange(inner.shape[0] if t.ndim == 3 else 1), inner.shape[-1])
    return sample, index, t.values().reshape(-1)


def _equal(t: torch.Tensor, value: float) -> np.ndarray:
    if inside_transform():  # values are not accessible here; the engine checks them
        return np.zeros(tuple(t.shape), dtype=bool)
    return np.asarray(t.numpy(force=True) == value)
