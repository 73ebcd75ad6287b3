"""FFOLayer on a device: its parameters are mapped to the blocks of a dense program there, and solutions to its outputs.

The affine map from parameters to data (`program.affine`) and the map from a solution to the outputs
(`program.recovery`) are sparse products on the device. Entries of P and A go to their places in dense matrices.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import scipy.sparse as sp
import torch

from ffo import cones
from ffo.program.affine import AffineMap, Block
from ffo.program.canonical import CanonicalProblem
from ffo.program.entering import EntryTerm, few_terms
from ffo.program.pattern import Pattern
from ffo.program.quadratic import Name
from ffo.torch.blocks import Form
from ffo.torch.dense.answer import LARGEST, Change
from ffo.torch.dense.blocks import outer
from ffo.torch.dense.declared import doubtful
from ffo.torch.dense.layer import accessible
from ffo.torch.dense.program import Tensor

#: a and b, c and d of the matrices a b' + c d'
Pairs = tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
#: number of rows and variables up to which dense algebra pays for any structure, and share of nonzeros above which it
#: pays for larger programs
SMALL, DENSE = 256, 0.05
#: samples from which an H200 is faster than sixteen cores: where Newton's method on the dual or pivoting solves the
#: program (n = 200: 7 and 7 ms for 8 samples, 7 and 16 for 32), and where the interior-point method does (SOCPs with
#: n = 200: 46 and 36 ms for 32 samples, 47 and 85 for 128; n = 50: 42 and 37 for 128)
ENOUGH, ENOUGH_FOR_INTERIOR_POINT = 16, 128


def suited(canonical: CanonicalProblem) -> bool:
    """Whether a problem is a quadratic or second-order cone program whose data is affine in its parameters."""
    affine, outputs = canonical.map, canonical.recovery.outputs
    known = affine.cones.kinds <= {cones.Zero, cones.Nonneg, cones.SecondOrder}
    through = any(e.log or e.factor is not None for e in affine.entries)
    return known and not through and not any(out.exponential for out in outputs) and affine.P.shape[0] > 0


def worthwhile(canonical: CanonicalProblem, batch: int | None, device: torch.device) -> bool:
    """Whether dense batched algebra on this device is faster than the core: not on the CPU, not for few samples, not
    for programs that are large and sparse. Rows with one entry are bounds; a diagonal P needs no factorization."""
    if not accessible(device):
        return False
    P, A, scalar = canonical.map.P, canonical.map.A, canonical.map.cones.scalar_rows
    direct = P.on_diagonal.sum() == P.shape[0] and scalar.all()
    if (batch or 1) < (ENOUGH if direct else ENOUGH_FOR_INTERIOR_POINT):
        return False
    rows = int((A.row_counts > 1).sum())
    size = rows if P.diagonal else rows + P.shape[0]
    entries = A.nnz + (0 if P.diagonal else 2 * P.nnz)
    pays = size <= SMALL or (size <= 2 * LARGEST and entries >= DENSE * size * P.shape[0])
    return pays and max(A.shape) <= 4 * LARGEST


@dataclass(frozen=True)
class DeviceTerm:
    """An `EntryTerm` with tensors for arrays."""

    rows: Any
    columns: Any
    weight: Any


class DeviceMatrix:
    """A sparse matrix M on a device, for products with rows: v -> v M'."""

    def __init__(self, matrix: sp.sparray, device: torch.device) -> None:
        M = sp.csr_array(matrix)
        M.eliminate_zeros()
        M.sort_indices()
        self.shape = M.shape
        found = few_terms(M)
        self.terms = None if found is None else [_there(term, device) for term in found]
        if self.terms is None:
            at = np.stack([np.repeat(np.arange(M.shape[0]), np.diff(M.indptr)), M.indices])
            found_at = torch.tensor(at, device=device), torch.tensor(M.data, device=device)
            with (
                warnings.catch_warnings()
            ):  # some releases of torch warn of unchecked invariants although asked to check
                warnings.filterwarnings("ignore", "Sparse invariant checks", UserWarning)
                self.matrix = torch.sparse_coo_tensor(*found_at, M.shape, check_invariants=True, is_coalesced=True)

    def of(self, v: Tensor) -> Tensor:
        """(·, columns) -> (·, rows), a new tensor."""
        if self.terms is None:
            return (self.matrix @ v.mT).mT
        found = None
        for term in self.terms:
            part = v[:, term.columns] * term.weight
            if term.rows is None:
                found = part if found is None else found + part
            else:
                found = v.new_zeros(len(v), self.shape[0]) if found is None else found
                found[:, term.rows] += part
        return v.new_zeros(len(v), self.shape[0]) if found is None else found


def _there(term: EntryTerm, device: torch.device) -> DeviceTerm:
    parts = (term.rows, term.columns, term.weight)
    return DeviceTerm(*(torch.from_numpy(v).to(device) if isinstance(v, np.ndarray) else v for v in parts))


@dataclass(frozen=True)
class DeviceEntry:
    """How a parameter enters a block, and the adjoint of that."""

    parameter: int
    into: DeviceMatrix
    back: DeviceMatrix


class DeviceMap:
    """The affine map and the recovery of a problem on a device.

    Attributes:
        constants: block -> its constant part, matrices as (1, rows * columns).
        entries: block -> how parameters enter it.
        outputs: products that select the outputs from x or y, and their adjoints.
    """

    def __init__(self, canonical: CanonicalProblem, device: torch.device) -> None:
        affine = canonical.map
        self.n, self.m = affine.P.shape[0], affine.A.shape[0]
        self.equalities = int(affine.cones.equalities.sum())
        curved = (block for block in affine.cones.blocks if isinstance(block[0], cones.SecondOrder))
        self.cones = tuple(cone.dim for cone, count in curved for _ in range(count))
        places = {"P": _both_triangles(affine.P), "A": _dense(affine.A)}
        self.constants: dict[Block, Tensor] = {}
        self.entries: dict[Block, list[DeviceEntry]] = {}
        for name, constant in affine.constants.items():
            spread = places.get(name, sp.eye_array(len(constant)))
            self.constants[name] = torch.from_numpy((spread @ constant)[None]).to(device)
            self.entries[name] = []
            for e in affine.entries:
                if name in e.maps:
                    M = sp.csr_array(spread @ e.maps[name])
                    entry = DeviceEntry(e.parameter, DeviceMatrix(M, device), DeviceMatrix(M.T, device))
                    self.entries[name].append(entry)
        self.outputs = [
            (DeviceMatrix(out.select, device), DeviceMatrix(out.select.T, device)) for out in canonical.recovery.outputs
        ]

    def block(self, name: Block, thetas: Sequence[Tensor]) -> Tensor:
        """(batch or 1, length) from parameters (batch or 1, size)."""
        shared, batched = self.constants[name], None
        for entry in self.entries[name]:
            term = entry.into.of(thetas[entry.parameter])
            if len(term) == 1:
                shared = shared + term
            else:
                batched = term if batched is None else batched + term
        return shared if batched is None else batched + shared


def _dense(pattern: Pattern) -> sp.csr_array:
    """(rows * columns, nnz): the place of every stored entry, in C order."""
    place = pattern.rows * pattern.shape[1] + pattern.columns
    return _placing(place, np.arange(pattern.nnz), pattern)


def _both_triangles(pattern: Pattern) -> sp.csr_array:
    """The same for a symmetric matrix of which the upper triangle is stored."""
    off = np.flatnonzero(~pattern.on_diagonal)
    upper = pattern.rows * pattern.shape[1] + pattern.columns
    lower = pattern.columns[off] * pattern.shape[1] + pattern.rows[off]
    return _placing(np.concatenate([upper, lower]), np.concatenate([np.arange(pattern.nnz), off]), pattern)


def _placing(place: np.ndarray, entry: np.ndarray, pattern: Pattern) -> sp.csr_array:
    shape = (pattern.shape[0] * pattern.shape[1], pattern.nnz)
    return sp.csr_array((np.ones(len(place)), (place, entry)), shape=shape)


_maps: WeakKeyDictionary[AffineMap, dict[torch.device, DeviceMap]] = WeakKeyDictionary()
_lock = threading.Lock()


def device_map(canonical: CanonicalProblem, device: torch.device) -> DeviceMap:
    """The maps of a problem, made once for every device."""
    with _lock:
        kept = _maps.setdefault(canonical.map, {})
        if device not in kept:
            with torch.inference_mode(False):  # they are used in both modes
                kept[device] = DeviceMap(canonical, device)
        return kept[device]


@dataclass(frozen=True, eq=False)
class CanonicalFront:
    """Parameters in, the requested variables and duals out.

    Args:
        batched: which parameters have a batch dimension.
    """

    canonical: CanonicalProblem
    made: DeviceMap
    batched: tuple[bool, ...]

    @property
    def names(self) -> tuple[int, ...]:
        return tuple(range(len(self.batched)))

    @property
    def shared(self) -> frozenset[int]:
        return frozenset(k for k, batched in enumerate(self.batched) if not batched)

    def form(self, batch: int | None, device: torch.device) -> Form:
        """The blocks that are present: of P, q, and the rows of A."""
        made, rows = self.made, self.made.m - self.made.equalities
        names: list[Name] = ["p"]
        if self.canonical.map.P.nnz:
            names.append("Q")
        names.extend(["A", "b"] if made.equalities else [])
        names.extend(["G", "h"] if rows else [])
        return Form(
            tuple(names),
            made.n,
            made.equalities,
            rows,
            batch,
            frozenset(),
            True,
            device,
            made.cones,
            id(self.canonical.map),
        )

    def blocks(self, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        made, k = self.made, self.made.equalities
        thetas = [v.reshape(len(v) if b else 1, -1) for v, b in zip(values, self.batched, strict=True)]
        q, b = made.block("q", thetas), made.block("b", thetas)
        # NaN shows in the residual, and leaves a sample to the core, which says what is wrong
        wrong = doubtful(self.canonical.declared, thetas) | ~b.isfinite().all(dim=1)
        found = [torch.where(wrong.unsqueeze(1), torch.nan, q)]
        if self.canonical.map.P.nnz:
            found.append(_matrix(made.block("P", thetas), made.n))
        if made.m:
            A = _matrix(made.block("A", thetas), made.n)
            pairs = ((A[..., :k, :], b[:, :k]), (A[..., k:, :], b[:, k:]))
            for rows, (matrix, side) in zip((k, made.m - k), pairs, strict=True):
                found.extend([matrix, _vector(side)] if rows else [])
        return (_vector(found[0]), *found[1:])

    def outputs(self, z: Tensor, nu: Tensor, lam: Tensor, mu: Tensor) -> list[Tensor]:
        y = torch.cat([nu, lam], dim=1)
        pairs = zip(self.canonical.recovery.outputs, self.made.outputs, strict=True)
        return [select.of(y if out.dual else z).reshape(len(z), *out.shape) for out, (select, _) in pairs]

    def incoming(self, gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        found: dict[bool, Tensor] = {}
        for out, (_, back), g in zip(self.canonical.recovery.outputs, self.made.outputs, gradients, strict=True):
            if g is not None:
                part = back.of(g.reshape(len(g), -1))
                found[out.dual] = found[out.dual] + part if out.dual in found else part
        c_y, k = found.get(True), self.made.equalities
        duals = (None, None) if c_y is None else (c_y[:, :k], c_y[:, k:])
        return found.get(False), *duals, None

    def wants_costs(self, wanted: Mapping[Any, bool]) -> bool:
        return any(wanted[e.parameter] for e in self.made.entries["q"])

    def gradients(self, change: Change, wanted: Mapping[Any, bool]) -> dict[Any, Tensor]:
        c, half = change, 0.5 * change.u
        pairs: dict[Block, Pairs] = {"P": ((half, c.z), (c.z, half)), "A": ((c.lam, c.u), (c.t, c.z))}
        vectors: dict[Block, Tensor] = {"q": c.u, "b": -c.t}
        found: dict[Any, Tensor] = {}
        for name, entries in self.made.entries.items():
            by_kind: dict[bool, Tensor] = {}  # batched or summed, for all parameters that need it
            for e in (e for e in entries if wanted[e.parameter]):
                summed = not self.batched[e.parameter]
                if summed not in by_kind:
                    by_kind[summed] = _gradient(vectors.get(name), pairs.get(name), summed)
                part = e.back.of(by_kind[summed])
                found[e.parameter] = found[e.parameter] + part if e.parameter in found else part
        return {k: self._shaped(found.get(k), k, c.u) for k, want in wanted.items() if want}

    def _shaped(self, g: Tensor | None, parameter: int, like: Tensor) -> Tensor:
        shape = self.canonical.shapes[parameter]
        wide = (len(like), *shape) if self.batched[parameter] else shape
        return like.new_zeros(wide) if g is None else g.reshape(wide)


def _gradient(vector: Tensor | None, pairs: Pairs | None, summed: bool) -> Tensor:
    """(batch or 1, length) gradient in a block, a vector or a matrix given by its factors."""
    if vector is not None:
        return vector.sum(dim=0, keepdim=True) if summed else vector
    assert pairs is not None
    found = outer(*pairs, summed)
    return found.reshape(1 if summed else len(found), -1)


def _matrix(flat: Tensor, n: int) -> Tensor:
    """(rows, n), or (batch, rows, n)."""
    found = flat.reshape(len(flat), -1, n)
    return found[0] if len(flat) == 1 else found


def _vector(v: Tensor) -> Tensor:
    """(length,), or (batch, length)."""
    return v[0] if len(v) == 1 else v
