"""A canonical problem without the auxiliary variables of CVXPY that constant equalities define.

`substitution` eliminates such variables from the data of each call, and recovers them afterwards. Where the rows are
constant and no user can refer to either, they are eliminated from the map of the parameters instead, once: with the
matrices M, C, D of that module,

    q' = q_v - M'(q_r + D C^-1 b_r),     b' = the other rows of b,     P' = P + M'DM.

Calls then know nothing of them (portfolio, one sample: a step takes a fifth less time).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from ffo.program.affine import AffineMap, Block, Entry
from ffo.program.cone import ConeProgram
from ffo.program.names import Named, Names
from ffo.program.recovery import Recovery
from ffo.program.sparse import SparseBatch, SymmetricBatch
from ffo.program.substitution import Definitions, chosen, definable

Array = np.ndarray


def eliminated(affine: AffineMap, recovery: Recovery, names: Names) -> tuple[AffineMap, Recovery, Names] | None:
    """The three without auxiliary variables; None if there are none to eliminate."""
    if affine.parametric_P or affine.forms:  # without the former, a substitution cannot hide an indefinite P
        return None
    found = _definitions(affine, recovery, names)
    if found is None:
        return None
    at = found.places
    kept, rest = np.arange(affine.P.shape[0])[at.kept], np.arange(affine.A.shape[0])[at.rest]
    reduced = _map(affine, found, kept, rest)
    if _entering(reduced) < _entering(affine):  # terms of a parameter cancel, and its NaN would go unnoticed
        return None
    outputs = [replace(out, select=out.select[:, rest if out.dual else kept]) for out in recovery.outputs]
    return reduced, Recovery(outputs, len(kept), len(rest)), _renumbered(names, rest, kept)


def _definitions(affine: AffineMap, recovery: Recovery, names: Names) -> Definitions | None:
    """The definitions of variables that are neither named nor shown, in rows of which the same is true."""
    P, A = affine.P, affine.A
    columns, rows = definable(affine.cones, P, A)
    seen, shown = np.zeros(A.shape[1], dtype=bool), np.zeros(A.shape[0], dtype=bool)
    _mark(seen, [v.places for v in names.variables], [out.select.indices for out in recovery.outputs if not out.dual])
    _mark(shown, [c.places for c in names.constraints], [out.select.indices for out in recovery.outputs if out.dual])
    for entry in affine.entries:
        if "A" in entry.maps:
            shown[A.rows[entry.maps["A"].indices]] = True
    curvature = np.zeros(A.shape[1])
    curvature[P.rows[P.on_diagonal]] = affine.constants["P"][P.on_diagonal]
    # b of a row without curvature, or without other variables, would vanish, and with it whatever is wrong with it
    free = ~seen[columns] & ~shown[rows] & (curvature[columns] > 0.0) & (A.row_counts[rows] > 1)
    if not free.any():
        return None
    program = ConeProgram(
        SymmetricBatch.on(P, affine.constants["P"]), affine.constants["q"][None],
        SparseBatch.on(A, affine.constants["A"]), affine.constants["b"][None], affine.cones,
    )  # fmt: skip
    return Definitions.at(program, chosen(affine.cones, P, A, columns[free], rows[free]))


def _mark(mask: Array, *places: Iterable[Array]) -> None:
    for some in places:
        for each in some:
            mask[each[each >= 0]] = True


def _map(affine: AffineMap, found: Definitions, kept: Array, rest: Array) -> AffineMap:
    at, (n, m) = found.places, (affine.P.shape[0], affine.A.shape[0])
    gone, rows = np.arange(n)[at.gone], np.arange(m)[at.rows]
    M = found.M.matrix()
    variables, weights = sp.eye_array(n, format="csr"), sp.diags_array(found.D[0] / found.C[0])
    # what q and b add to q'
    steps: dict[Block, Any] = {
        "q": variables[kept] - M.T @ variables[gone],
        "b": -(M.T @ weights @ sp.eye_array(m, format="csr")[rows]),
    }

    def moved(maps: dict[Block, sp.csc_array]) -> dict[Block, sp.csc_array]:
        blocks: dict[Block, list[Any]] = {
            "q": [step @ maps[name] for name, step in steps.items() if name in maps],
            "A": [maps["A"][at.in_A]] if "A" in maps else [],
            "b": [maps["b"][rest]] if "b" in maps else [],
        }
        made = {name: sp.csc_array(sum(terms[1:], start=terms[0])) for name, terms in blocks.items() if terms}
        for block in made.values():
            block.eliminate_zeros()
        return {name: block for name, block in made.items() if block.nnz}

    z = affine.constants
    constants: dict[Block, Array] = {
        "P": found.P.values, "q": steps["q"] @ z["q"] + steps["b"] @ z["b"], "A": z["A"][at.in_A], "b": z["b"][rest]
    }  # fmt: skip
    entries = [Entry(e.parameter, e.log, moved(e.maps)) for e in affine.entries]
    return AffineMap(affine.sizes, entries, constants, at.P, at.A, at.cones)


def _entering(affine: AffineMap) -> int:
    """How many entries of parameters enter the data."""
    used = [np.any([np.diff(M.indptr) > 0 for M in e.maps.values()], axis=0) for e in affine.entries]
    return sum(int(np.count_nonzero(each)) for each in used)


def _renumbered(names: Names, rest: Array, kept: Array) -> Names:
    def moved(named: Iterable[Named], places: Array) -> tuple[Named, ...]:
        return tuple(
            replace(one, places=np.where(one.places >= 0, np.searchsorted(places, one.places), -1)) for one in named
        )

    return Names(moved(names.constraints, rest), moved(names.variables, kept))
