"""CVXPY problems as parametrised cone programs.

CVXPY does the modelling: DPP analysis and the reduction to cones. What is asked of it here is the
tensor form (parameters -> data), canonicalised with its COO backend, which is the one whose time and
memory stay proportional to the number of entries.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.constraints import PSD as PSDConstraint
from cvxpy.constraints import SOC, Equality, ExpCone, Inequality, NonNeg, NonPos, PowCone3D, SvecPSD, Zero
from cvxpy.reductions.dcp2cone.cone_matrix_stuffing import ParamConeProg
from cvxpy.reductions.dgp2dcp.dgp2dcp import Dgp2Dcp
from cvxpy.reductions.solvers.conic_solvers.conic_solver import ConicSolver
from cvxpy.reductions.solvers.solving_chain import SolvingChain, resolve_and_build_chain
from cvxpy.utilities import scopes
from cvxpy.utilities.psd_utils import TriangleKind

from ffo import cones
from ffo.errors import InputError, UnsupportedProblemError
from ffo.program.affine import AffineMap, Block, Entry, Pattern
from ffo.program.canonical import CanonicalProblem
from ffo.program.recovery import Output, Recovery, selection

Array = np.ndarray

#: constraints whose duals are rows of the canonical program; others are rewritten on the way
_DIRECT = (Equality, Zero, Inequality, NonNeg, NonPos, SOC, PSDConstraint, ExpCone, PowCone3D)


class _Target(ConicSolver):
    """The canonical form of this package, stated as a solver so that CVXPY reduces to it.

    Its `apply` stops at the parametrised program, so that no parameter needs a value. It also leaves
    the rows in the order of the constraints' arguments: CVXPY's own reordering multiplies matrices
    with (variables x parameters) columns, which took 75 s where the rest takes one.
    """

    MIP_CAPABLE = False
    SUPPORTED_CONSTRAINTS = [*ConicSolver.SUPPORTED_CONSTRAINTS, SOC, ExpCone, PowCone3D, SvecPSD]
    PSD_TRIANGLE_KIND = TriangleKind.UPPER
    PSD_SQRT2_SCALING = True
    EXP_CONE_ORDER = [0, 1, 2]

    def name(self) -> str:
        return "FFO"

    def import_solver(self) -> None:
        pass

    def is_installed(self) -> bool:
        return True

    def supports_quad_obj(self) -> bool:
        return True

    def cite(self, data: Any) -> str:
        return ""

    def apply(self, problem: ParamConeProg) -> tuple[dict[str, Any], dict[str, Any]]:
        return {cp.settings.PARAM_PROB: problem}, {}

    def solve_via_data(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("this target canonicalises only; solving is done by ffo.solvers")


def canonicalize(
    problem: cp.Problem,
    parameters: Sequence[cp.Parameter],
    variables: Sequence[cp.Variable],
    gp: bool = False,
    canon_backend: str | None = None,
) -> CanonicalProblem:
    """Reduce a DPP problem (DGP if `gp`) to a parametrised cone program.

    Args:
        parameters: all parameters of the problem, in the order values will be given.
        variables: what to return: variables of the problem, or dual variables of its constraints.
        canon_backend: CVXPY's canonicalisation backend; its COO backend by default.
    """
    _validate(problem, parameters, variables, gp)
    chain, program = _reduce(problem, gp, canon_backend or cp.settings.COO_CANON_BACKEND)
    canonical = _affine_map(program, _parameter_columns(program, chain, parameters), parameters)
    n, m = canonical.P.shape[0], canonical.A.shape[0]
    outputs = [_output(v, problem, program, chain, gp, n, m) for v in variables]
    return CanonicalProblem(canonical, Recovery(outputs, n, m), tuple(p.shape for p in parameters))


def _validate(
    problem: cp.Problem, parameters: Sequence[cp.Parameter], variables: Sequence[cp.Variable], gp: bool
) -> None:
    """The checks and the wording that users of CvxpyLayer know."""
    if problem.is_mixed_integer():
        raise UnsupportedProblemError(
            "Problem must be convex: integer and boolean variables have no gradient. "
            "Relax them to bounded continuous variables, or solve the integer problem outside the layer."
        )
    if gp:
        if not problem.is_dpp("dgp"):
            raise InputError("Problem must be DPP for geometric programming.")
    elif not problem.is_dpp(quad_form_dpp="qp"):
        if not problem.is_dcp():
            raise InputError(
                "Problem must be DPP. It is not even DCP: CVXPY cannot tell that it is convex. "
                "problem.is_dcp() and the curvature of its parts show where."
            )
        raise InputError(
            "Problem must be DPP. Note: quad_form(x, P) with parametric P is only supported in the "
            "objective, not in constraints. Products of two parameters are not DPP either: "
            "multiply them in torch and pass the product as one parameter."
        )
    if not isinstance(parameters, (list, tuple)):
        raise InputError("The layer's parameters must be provided as a list or tuple")
    if not isinstance(variables, (list, tuple)):
        raise InputError("The layer's variables must be provided as a list or tuple")
    if set(problem.parameters()) != set(parameters) or len(set(parameters)) != len(parameters):
        raise InputError("The layer's parameters must exactly match problem.parameters")
    known = {v.id for v in problem.variables()}
    known |= {d.id for c in problem.constraints for d in c.dual_variables}
    for v in variables:
        if v.id not in known:
            raise InputError(f"Variable {v} must be a subset of problem.variables or a constraint dual variable")
    if any(leaf.is_complex() for leaf in [*problem.variables(), *parameters]):
        raise UnsupportedProblemError(
            "Complex variables and parameters are not supported: write the problem in real and imaginary parts."
        )


def _reduce(problem: cp.Problem, gp: bool, canon_backend: str) -> tuple[SolvingChain, ParamConeProg]:
    with scopes.quad_form_dpp_scope(), warnings.catch_warnings():
        # CVXPY itself reads the values of sparse variables the way it warns users about.
        warnings.filterwarnings("ignore", "Reading from a sparse CVXPY expression", RuntimeWarning)
        chain = resolve_and_build_chain(problem, solver=_Target(), gp=gp, enforce_dpp=True, canon_backend=canon_backend)
        data, _ = chain.apply(problem)
    if not isinstance(data, dict):
        raise UnsupportedProblemError("The problem has no variables.")
    return chain, data[cp.settings.PARAM_PROB]


@dataclass(frozen=True)
class _Columns:
    """Where a parameter stands in CVXPY's parameter vector: `lower` maps its C-order entries there."""

    parameter: int
    log: bool
    start: int
    lower: sp.csc_array


def _parameter_columns(
    program: ParamConeProg, chain: SolvingChain, parameters: Sequence[cp.Parameter]
) -> list[_Columns]:
    final = {k: v[0] for k, v in chain.compose_param_id_map().items()}
    logarithms: dict[cp.Parameter, cp.Parameter] = {}
    for reduction in chain.reductions:
        if isinstance(reduction, Dgp2Dcp):
            logarithms = reduction.canon_methods._parameters
    columns = []
    for i, parameter in enumerate(parameters):
        # A parameter of a geometric program enters through its logarithm, as an exponent, or both.
        logarithm = logarithms.get(parameter)
        ids = {False: parameter.id if logarithm else final.get(parameter.id, parameter.id)}
        if logarithm:
            ids[True] = final.get(logarithm.id, logarithm.id)
        for log, identifier in ids.items():
            start = program.param_id_to_col.get(identifier)
            if start is not None:
                columns.append(_Columns(i, log, start, _lowering(parameter)))
    return columns


def _lowering(parameter: cp.Parameter) -> sp.csc_array:
    """C-order entries of a parameter -> the entries CVXPY keeps of it, in its (Fortran) order.

    Of a symmetric parameter CVXPY keeps one triangle. The mean of the two is read here, so that the
    gradient is symmetric.
    """
    shape, size = parameter.shape, parameter.size
    place = np.arange(size).reshape(shape)
    attributes = parameter.attributes
    if attributes["symmetric"] or attributes["PSD"] or attributes["NSD"]:
        i, j = np.triu_indices(shape[-1])
        upper, lower = place[..., i, j].ravel(order="F"), place[..., j, i].ravel(order="F")
        return sp.csc_array(0.5 * (selection(upper, size) + selection(lower, size)))
    if attributes["diag"]:
        return sp.csc_array(selection(np.diagonal(place).copy(), size))
    if parameter.sparse_idx is not None:
        return sp.csc_array(selection(place[parameter.sparse_idx], size))
    return sp.csc_array(selection(place.ravel(order="F"), size))


@dataclass(frozen=True)
class _Tensor:
    """Stored entries of one block and the triplets (entry, column of the parameter vector, value)."""

    length: int
    entry: Array
    column: Array
    value: Array


def _affine_map(program: ParamConeProg, columns: Sequence[_Columns], parameters: Sequence[cp.Parameter]) -> AffineMap:
    n = program.x.size
    P, P_tensor = _quadratic(program, n)
    A, A_tensor, b_tensor = _constraints(program, n)
    q = sp.coo_array(program.q)
    inside = q.coords[0] < n  # the last row is the constant of the objective
    q_tensor = _Tensor(n, q.coords[0][inside], q.coords[1][inside], q.data[inside])
    tensors: dict[Block, _Tensor] = {"P": P_tensor, "q": q_tensor, "A": A_tensor, "b": b_tensor}
    last = q.shape[1] - 1
    constants = {name: _column(t, last) for name, t in tensors.items()}
    entries = [_entry(c, tensors) for c in columns]
    return AffineMap([p.size for p in parameters], entries, constants, P, A, _cones(program))


def _column(t: _Tensor, column: int) -> Array:
    at = t.column == column
    # bincount of nothing is integer, whatever the weights
    return np.bincount(t.entry[at], weights=t.value[at], minlength=t.length).astype(float)


def _entry(c: _Columns, tensors: dict[Block, _Tensor]) -> Entry:
    maps: dict[Block, sp.csc_array] = {}
    size = c.lower.shape[0]
    for name, t in tensors.items():
        at = (t.column >= c.start) & (t.column < c.start + size)
        if at.any():
            tensor = sp.csc_array((t.value[at], (t.entry[at], t.column[at] - c.start)), shape=(t.length, size))
            maps[name] = sp.csc_array(tensor @ c.lower)
    return Entry(c.parameter, c.log, maps)


def _quadratic(program: ParamConeProg, n: int) -> tuple[Pattern, _Tensor]:
    empty = np.zeros(0, dtype=np.int64)
    if program.P is None:
        return Pattern(np.zeros(n + 1, dtype=np.int64), empty, (n, n)), _Tensor(0, empty, empty, np.zeros(0))
    coo = sp.coo_array(program.P)
    flat, column, value = _nonzero(coo)
    i, j = flat % n, flat // n
    # (P + P')/2, upper triangle: an off-diagonal entry is half the sum of its two places.
    value = np.where(i == j, value, 0.5 * value)
    flat = np.minimum(i, j) + n * np.maximum(i, j)
    pattern, entry = Pattern.of_positions(flat, (n, n))
    return pattern, _Tensor(pattern.nnz, entry, column, value)


def _constraints(program: ParamConeProg, n: int) -> tuple[Pattern, _Tensor, _Tensor]:
    coo = sp.coo_array(program.A)
    m = coo.shape[0] // (n + 1)
    flat, column, value = _nonzero(coo)
    place, sign = _row_order(program)
    col, row = np.divmod(flat, m) if m else (flat, flat)
    flat, value = place[row] + m * col, sign[row] * value
    vector = flat >= m * n
    b = _Tensor(m, flat[vector] - m * n, column[vector], value[vector])
    matrix = ~vector
    pattern, entry = Pattern.of_positions(flat[matrix], (m, n))
    # CVXPY says A x + b in K, this package b - A x in K.
    return pattern, _Tensor(pattern.nnz, entry, column[matrix], -value[matrix]), b


def _row_order(program: ParamConeProg) -> tuple[Array, Array]:
    """Where each row (arguments of the constraints, one after the other) belongs, and its sign.

    The arguments of second-order, exponential and power cones are interleaved, cone by cone.
    Equalities change sign, so that duals come out as CVXPY defines them.
    """
    places, signs, start = [np.zeros(0, dtype=np.int64)], [np.zeros(0)], 0
    for c in program.constraints:
        sizes = [arg.size for arg in c.args]
        total = sum(sizes)
        if isinstance(c, SOC):
            count, dim = sizes[0], sizes[1] // sizes[0]
            first = np.arange(count) * (dim + 1)
            place = np.concatenate([first, (first[:, None] + 1 + np.arange(dim)).ravel()])
        elif isinstance(c, (ExpCone, PowCone3D)):
            place = (3 * np.arange(sizes[0]) + np.arange(3)[:, None]).ravel()
        else:
            place = np.arange(total)
        places.append(start + place)
        signs.append(np.full(total, -1.0 if isinstance(c, Zero) else 1.0))
        start += total
    return np.concatenate(places), np.concatenate(signs)


def _nonzero(coo: sp.coo_array) -> tuple[Array, Array, Array]:
    keep = coo.data != 0
    row, col = coo.coords
    return row[keep].astype(np.int64), col[keep].astype(np.int64), np.asarray(coo.data[keep], float)


def _cones(program: ParamConeProg) -> cones.Product:
    dims = program.cone_dims
    return cones.Product(
        [
            (cones.Zero(), dims.zero),
            (cones.Nonneg(), dims.nonneg),
            *((cones.SecondOrder(d), 1) for d in dims.soc),
            *((cones.PSD(k), 1) for k in dims.psd),
            (cones.Exponential(), dims.exp),
            *((cones.Power(float(alpha)), 1) for alpha in dims.p3d),
        ]
    )


def _output(
    v: cp.Variable, problem: cp.Problem, program: ParamConeProg, chain: SolvingChain, gp: bool, n: int, m: int
) -> Output:
    if any(v.id == own.id for own in problem.variables()):
        final = chain.compose_var_id_map().get(v.id, [v.id])[0]
        index = _variable_columns(v) + program.var_id_to_col[final]
        index[_variable_columns(v) < 0] = -1
        return Output(selection(index, n), dual=False, exponential=gp, shape=v.shape)
    constraint = next(c for c in problem.constraints if any(d.id == v.id for d in c.dual_variables))
    final_id = chain.compose_constr_id_map().get(constraint.id, constraint.id)
    start = _constraint_starts(program).get(final_id)
    if start is None or not isinstance(constraint, _DIRECT):
        raise UnsupportedProblemError(
            f"The dual variable of {constraint} cannot be returned: the constraint is rewritten into "
            "others before solving. Write it with the cones SOC, PSD, ExpCone or PowCone3D directly."
        )
    index, scale = _dual_rows(v, constraint)
    return Output(selection(index + start, m, scale), dual=True, exponential=False, shape=v.shape)


def _variable_columns(v: cp.Variable) -> Array:
    """For each entry of v in C order, its place among the entries CVXPY keeps of it (-1: always zero)."""
    shape = v.shape
    if v.attributes["symmetric"] or v.attributes["PSD"] or v.attributes["NSD"]:
        k = shape[-1]
        i, j = np.triu_indices(k)
        batch = int(np.prod(shape[:-2]))
        triangle = np.arange(batch * len(i)).reshape((*shape[:-2], len(i)), order="F")
        index = np.empty(shape, dtype=np.int64)
        index[..., i, j] = triangle
        index[..., j, i] = triangle
        return index.ravel()
    if v.attributes["diag"]:
        return np.where(np.eye(shape[0], dtype=bool), np.arange(shape[0]), -1).ravel()
    if v.sparse_idx is not None:
        index = np.full(shape, -1)
        index[v.sparse_idx] = np.arange(len(v.sparse_idx[0]))
        return index.ravel()
    return np.arange(v.size).reshape(shape, order="F").ravel()


def _constraint_starts(program: ParamConeProg) -> dict[int, int]:
    starts, row = {}, 0
    for kind in (Zero, NonNeg, SOC, SvecPSD, ExpCone, PowCone3D):
        for c in program.constr_map.get(kind, []):
            starts[c.id] = row
            row += c.size
    return starts


def _dual_rows(v: cp.Variable, constraint: cp.Constraint) -> tuple[Array, Array | None]:
    """Rows of the constraint's part of y for each entry of the dual variable v in C order, and scales."""
    position = next(k for k, d in enumerate(constraint.dual_variables) if d.id == v.id)
    if isinstance(constraint, SOC):
        size = constraint.cone_sizes()[0]
        first = np.arange(constraint.num_cones()) * size
        if position == 0:
            return first, None
        rows = first[:, None] + 1 + np.arange(size - 1)  # (cones, dim)
        return (rows.T if constraint.axis == 0 else rows).ravel(), None
    if isinstance(constraint, (ExpCone, PowCone3D)):
        return (3 * np.arange(v.size) + position).reshape(v.shape, order="F").ravel(), None
    if isinstance(constraint, PSDConstraint):
        k = v.shape[-1]
        if v.ndim > 2:
            raise UnsupportedProblemError("Duals of stacks of PSD constraints are not supported: write one each.")
        i, j = np.triu_indices(k)
        row = np.empty((k, k), dtype=np.int64)
        row[i, j] = row[j, i] = i + j * (j + 1) // 2
        return row.ravel(), np.where(np.eye(k, dtype=bool), 1.0, np.sqrt(0.5)).ravel()
    return np.arange(v.size).reshape(v.shape, order="F").ravel(), None
