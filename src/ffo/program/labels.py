"""Names for the rows and columns of a canonical program, from the constraints and variables of a CVXPY problem."""

from __future__ import annotations

from collections.abc import Sequence

import cvxpy as cp
import numpy as np
from cvxpy.constraints import SOC, ExpCone, NonNeg, PowCone3D, SvecPSD, Zero
from cvxpy.reductions.dcp2cone.cone_matrix_stuffing import ParamConeProg
from cvxpy.reductions.solvers.solving_chain import SolvingChain

from ffo.program.names import Named, Names

Array = np.ndarray

#: most characters of a constraint that are shown
SHOWN = 60


def constraint_starts(program: ParamConeProg) -> dict[int, int]:
    """First row of each canonical constraint, by its id."""
    starts, row = {}, 0
    for kind in (Zero, NonNeg, SOC, SvecPSD, ExpCone, PowCone3D):
        for c in program.constr_map.get(kind, []):
            starts[c.id] = row
            row += c.size
    return starts


def names_of(
    problem: cp.Problem, program: ParamConeProg, chain: SolvingChain, columns: Sequence[tuple[cp.Variable, Array]]
) -> Names:
    """The names of a problem; `columns`: those of each variable's entries, in C order."""
    final, starts = chain.compose_constr_id_map(), constraint_starts(program)
    canonical = {c.id: c for kind in program.constr_map.values() for c in kind}
    ids = [final.get(c.id, c.id) for c in problem.constraints]
    found = []
    for k, (c, mine) in enumerate(zip(problem.constraints, ids, strict=True)):
        nothing: tuple[Array, tuple[int, ...]] = np.zeros((0, 1), dtype=int), (0,)
        places, shape = _entries(canonical[mine], starts[mine], c) if mine in canonical else nothing
        found.append(Named(f"constraint {k} ({_text(c)})", places, shape, "{name}, entry [{index}]"))
    renamed = {chain.compose_var_id_map().get(v.id, [v.id])[0]: v for v, _ in columns}
    for c in canonical.values():
        owners = [v.id for v in c.variables()]
        if c.id not in ids and len(owners) == 1 and owners[0] in renamed:
            places, shape = _entries(c, starts[c.id], None)
            name = f"what {renamed[owners[0]].name()} was declared to be"
            found.append(Named(name, places, shape, "{name}, entry [{index}]", relaxable=False))
    variables = [Named(v.name(), at[:, None], v.shape) for v, at in columns]
    return Names(tuple(found), tuple(variables))


def _text(constraint: cp.Constraint) -> str:
    text = " ".join((constraint.label or str(constraint)).split())
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _entries(canonical: cp.Constraint, start: int, given: cp.Constraint | None) -> tuple[Array, tuple[int, ...]]:
    """(entries, k) rows of a constraint and the shape of its entries: scalars, or cones."""
    rows = start + np.arange(canonical.size)
    if isinstance(canonical, SvecPSD):
        return rows[None], ()
    if isinstance(canonical, (Zero, NonNeg)):
        shape = tuple(canonical.args[0].shape if given is None else given.shape)
        if int(np.prod(shape)) != len(rows):
            shape = (len(rows),)
        return rows.reshape(shape, order="F").reshape(-1, 1), shape
    count = canonical.num_cones()
    return rows.reshape(count, -1), (count,) if count > 1 else ()
