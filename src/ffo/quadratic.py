"""Batches of quadratic programs in NumPy, without gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import scipy.sparse as sp

from ffo.engine import Engine, Info, Options
from ffo.engine.memory import Matrices
from ffo.engine.options import OnFail, check_relaxed
from ffo.errors import InputError, Status
from ffo.program.blocks import MATRICES, Blocks, split_blocks, union_pattern
from ffo.program.quadratic import MatrixPattern, Name, quadratic_problem
from ffo.solvers.base import Solver

Array = np.ndarray

#: matrices of the last call, kept for reuse (n = 10: 0.54 ms a call instead of 0.69)
_made_last = Matrices()


@dataclass(frozen=True)
class QPBatch:
    """Solutions of a batch of quadratic programs: Qz + p + A'nu + G'lam + mu = 0.

    Attributes:
        z: (*batch, n), NaN where a sample failed.
        nu: (*batch, p) multipliers of Az = b.
        lam: (*batch, m) multipliers of lower <= Gz <= h, negative where the lower bound is active.
        mu: (*batch, n) multipliers of lb <= z <= ub, negative where the lower bound is active.
        status: one per sample.
        info: the report that layers keep in `layer.info`.
    """

    z: Array
    nu: Array
    lam: Array
    mu: Array
    status: list[Status]
    info: Info


def solve_qp_batch(
    Q: Any,
    p: Any,
    G: Any = None,
    h: Any = None,
    A: Any = None,
    b: Any = None,
    *,
    lb: Any = None,
    ub: Any = None,
    lower: Any = None,
    solver: str | Solver | None = None,
    solver_args: Mapping[str, Any] | None = None,
    on_fail: OnFail = "raise",
    retry: Sequence[str | Solver] | None = None,
    polish: bool = True,
    verbose: bool = False,
    time_limit: float | None = None,
) -> QPBatch:
    """Solve  minimize 1/2 z'Qz + p'z  subject to  Az = b, lower <= Gz <= h, lb <= z <= ub.

    Every block may have a leading batch dimension; blocks without one are shared by the batch. The blocks are those
    of `ffo.torch.FFOQPLayer`.

    Args:
        Q: (n, n) positive semidefinite; its symmetric part is used. None: a linear program.
        p: (n,).
        G, h: (m, n) and (m,); A, b: (p, n) and (p,); None or empty arrays where absent. Matrices may
            be SciPy matrices, or sequences of them, one per sample.
        lb, ub: (n,) bounds; lower: (m,) lower bounds of the rows of G. Infinite bounds are ignored.
        solver: a name, a `Solver`, or None for the default of the problem's class and size.
        solver_args: settings of the solver; every solver accepts `eps` and `max_iters`.
        on_fail: "raise" an `ffo.errors.SolverError`, "nan" to keep the rest of the batch, or "relax" (an
            `ffo.engine.Relax`): infeasible samples get the solution of the nearest feasible problem.
        retry: solvers to try, in order, on samples where the first one failed or was not accurate enough (natural
            residual above 1e-8 after polish; the better answer is kept). None: a second solver if the first is the
            default one with default settings (`info` names the solver that answered).
        polish: has no effect; answers are always refined by Newton steps, typically to 1e-12.
        verbose: whether the solver may print.
        time_limit: seconds for the call; samples not solved by then have the status TIME_LIMIT (see
            `ffo.torch.FFOLayer`).

    Example:
        >>> import numpy as np
        >>> from ffo import solve_qp_batch
        >>> solution = solve_qp_batch(np.eye(3), np.random.normal(size=(8, 3)), lb=np.zeros(3))
        >>> solution.z.shape
        (8, 3)
    """
    settings = dict(solver_args or {})
    options = Options(solver, settings, on_fail=on_fail, retry=retry, verbose=verbose, time_limit=time_limit)
    check_relaxed(options.relax)
    engine = Engine(options)
    blocks = read_arrays({"Q": Q, "p": p, "G": G, "h": h, "A": A, "b": b, "lb": lb, "ub": ub, "lower": lower})
    canonical = quadratic_problem(blocks.structure, duals=True)
    program = _made_last.program(canonical.map, [blocks.values[name] for name in blocks.structure.parameters])
    convex = canonical.map.parametric_P
    outcome = engine.run(program, check_convexity=convex, open_sides=canonical.open_sides, names=canonical.names)
    found = canonical.recovery.apply(outcome.x, outcome.y)
    z, nu, lam, mu = found if blocks.batch is not None else [v[0] for v in found]
    return QPBatch(z, nu, lam, mu, outcome.info.status, outcome.info)


def read_arrays(given: Mapping[str, Any]) -> Blocks[Array]:
    """Check the blocks of a call and split them into values and patterns."""
    read: dict[Name, tuple[Array, tuple[int, ...], MatrixPattern | None]] = {}
    for key, block in given.items():
        if block is not None:
            name = cast(Name, key)
            read[name] = _sparse(name, block) if _is_sparse(block) else _dense(name, block)
    return split_blocks(read, np.equal)


def _is_sparse(block: Any) -> bool:
    return sp.issparse(block) or (isinstance(block, (list, tuple)) and any(map(sp.issparse, block)))


def _dense(name: Name, block: Any) -> tuple[Array, tuple[int, ...], None]:
    try:
        value = np.asarray(block)
        if np.iscomplexobj(value):
            raise TypeError("complex numbers")
        value = value.astype(float)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of real numbers: {error}") from None
    return value, value.shape, None


def _sparse(name: Name, block: Any) -> tuple[Array, tuple[int, ...], MatrixPattern]:
    """Values on the union of the samples' patterns."""
    if name not in MATRICES:
        raise InputError(f"{name} must be a dense array, got {type(block).__name__}")
    samples = [sp.coo_array(m) for m in ([block] if sp.issparse(block) else block)]
    shapes = {m.shape for m in samples}
    if len(shapes) > 1:
        raise InputError(f"{name} has samples of different shapes: {', '.join(map(str, sorted(shapes)))}")
    (shape,) = shapes
    rows, cols = (np.concatenate([m.coords[k] for m in samples]) for k in (0, 1))
    pattern, entry = union_pattern(rows, cols, shape)
    which = np.repeat(np.arange(len(samples)), [m.nnz for m in samples])
    values = np.zeros((len(samples), len(pattern.rows)))
    np.add.at(values, (which, entry), np.concatenate([m.data for m in samples]))  # repeated entries add up
    if sp.issparse(block):
        return values[0], shape, pattern
    return values, (len(samples), *shape), pattern
