"""CVXPY problems as parametrised cone programs.

CVXPY does the modelling: DPP analysis and the reduction to cones. It is stopped before it extracts the
coefficients of the cone program. `extraction` does that, with CVXPY's COO backend for the small parts: its
time and memory are proportional to the number of entries.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.constraints import PSD as PSDConstraint
from cvxpy.constraints import SOC, Equality, ExpCone, Inequality, NonNeg, NonPos, PowCone3D, SvecPSD, Zero
from cvxpy.reductions.dcp2cone.cone_matrix_stuffing import ConeMatrixStuffing, ParamConeProg
from cvxpy.reductions.dgp2dcp.dgp2dcp import Dgp2Dcp
from cvxpy.reductions.solvers.conic_solvers.conic_solver import ConicSolver
from cvxpy.reductions.solvers.solving_chain import SolvingChain, resolve_and_build_chain
from cvxpy.utilities import scopes
from cvxpy.utilities.psd_utils import TriangleKind

from ffo import cones
from ffo.errors import UnsupportedProblemError
from ffo.program.affine import AffineMap, Block, Entry
from ffo.program.assembly import Columns, Stored, placed
from ffo.program.canonical import CanonicalProblem
from ffo.program.declared import declarations
from ffo.program.discipline import check_arguments, known_backend, lifted_if_needed
from ffo.program.extraction import Extractor, Tensor
from ffo.program.factor import Factor
from ffo.program.labels import constraint_starts, names_of
from ffo.program.lift import ConstraintForm
from ffo.program.pattern import Pattern
from ffo.program.powers import with_power_cones
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
        raise NotImplementedError("this target only canonicalizes; solving is done by ffo.solvers")


class _Stuffing(ConeMatrixStuffing):
    """CVXPY's last step, with this package's extraction of coefficients.

    The tensors stay here; the program that CVXPY makes has none.
    """

    P: list[Tensor]
    q: Tensor
    A: list[Tensor]

    def stuffed_objective(self, problem: cp.Problem, extractor: Any) -> tuple[None, None, cp.Variable]:
        own = Extractor(
            extractor.id_map,
            extractor.x_length,
            extractor.param_id_map,
            extractor.param_to_size,
            extractor.canon_backend,
        )

        def constraints(expressions: list[cp.Expression]) -> None:
            self.A = own.affine(expressions)

        self.P, self.q = own.quadratic(problem.objective.expr.copy())
        extractor.affine = constraints  # which `apply` calls next
        return None, None, cp.Variable(own.length)


def canonicalize(
    problem: cp.Problem,
    parameters: Sequence[cp.Parameter],
    variables: Sequence[cp.Variable],
    gp: bool = False,
    canon_backend: str | None = None,
    power_cones: bool = True,
) -> CanonicalProblem:
    """Reduce a DPP problem (DGP if `gp`) to a parametrised cone program.

    Args:
        parameters: all parameters of the problem, in the order values will be given.
        variables: what to return: variables of the problem, or dual variables of its constraints.
        canon_backend: CVXPY's canonicalisation backend; its COO backend by default.
        power_cones: whether powers and p-norms become power cones; else towers of second-order cones.
    """
    check_arguments(problem, parameters, variables)
    lift = lifted_if_needed(problem, parameters, gp)
    given = [*parameters, *lift.parameters] if lift else parameters
    whole = lift.problem if lift else problem
    chain, program, stuffing = _reduce(whole, gp, known_backend(canon_backend), power_cones)
    every = [*given, *(form.M for form in lift.forms)] if lift else given
    canonical = _affine_map(program, stuffing, _parameter_columns(program, chain, every), every)
    if lift and lift.forms:
        canonical = _with_factors(canonical, lift.forms, program, chain, given)
    n, m = canonical.P.shape[0], canonical.A.shape[0]
    outputs = [_output(v, problem, program, chain, gp, n, m) for v in variables]
    blocks = [{b for e in canonical.entries if e.parameter == i for b in e.maps} for i in range(len(given))]
    return CanonicalProblem(
        canonical,
        Recovery(outputs, n, m),
        tuple(p.shape for p in given),
        _labels(given, len(parameters)),
        declared=declarations(given, [own == {"P"} for own in blocks], canonical.logged, len(parameters)),
        names=names_of(problem, program, chain, [(v, _columns(v, program, chain)) for v in problem.variables()]),
        lifted=lift.expressions if lift else None,
    )


def _labels(parameters: Sequence[cp.Parameter], given: int) -> tuple[str, ...]:
    """What parameters are called in messages; the first `given` are the user's, the others expressions of these."""
    own = (f"Parameter {i} ({p.name()})" for i, p in enumerate(parameters[:given]))
    return (*own, *(f"The parameter expression {p.name()}" for p in parameters[given:]))


def _reduce(
    problem: cp.Problem, gp: bool, canon_backend: str, power_cones: bool
) -> tuple[SolvingChain, ParamConeProg, _Stuffing]:
    with scopes.quad_form_dpp_scope(), warnings.catch_warnings():
        # CVXPY itself reads the values of sparse variables the way it warns users about.
        warnings.filterwarnings("ignore", "Reading from a sparse CVXPY expression", RuntimeWarning)
        chain = resolve_and_build_chain(problem, solver=_Target(), gp=gp, enforce_dpp=True, canon_backend=canon_backend)
        if power_cones:
            with_power_cones(chain)
        place = next((i for i, r in enumerate(chain.reductions) if isinstance(r, ConeMatrixStuffing)), None)
        if place is None:
            raise UnsupportedProblemError("The problem has no variables.")
        stuffing = _Stuffing(chain.reductions[place].quad_obj, canon_backend)
        chain.reductions[place] = stuffing
        data, _ = chain.apply(problem)
    return chain, data[cp.settings.PARAM_PROB], stuffing


def _parameter_columns(
    program: ParamConeProg, chain: SolvingChain, parameters: Sequence[cp.Parameter]
) -> list[Columns]:
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
                columns.append(Columns(i, log, start, program.param_id_to_size[identifier]))
    return columns


def _affine_map(
    program: ParamConeProg, stuffing: _Stuffing, columns: list[Columns], parameters: Sequence[cp.Parameter]
) -> AffineMap:
    """The map, block by block; the memory for one block is freed before the next."""
    n, last = program.x.size, program.total_param_size
    constants: dict[Block, Array] = {}
    maps: list[dict[Block, sp.csc_array]] = [{} for _ in columns]

    def take(name: Block, block: Stored) -> None:
        constants[name] = block.constant(last)
        for c, own in zip(columns, maps, strict=True):
            found = block.map(c, parameters[c.parameter])
            if found is not None:
                own[name] = found

    take("q", Stored(n, [stuffing.q.where(stuffing.q.position < n)]))  # the last one is the objective's constant
    P = _quadratic(stuffing, n, take)
    A = _constraints(program, stuffing, n, take)
    entries = [Entry(c.parameter, c.log, own) for c, own in zip(columns, maps, strict=True)]
    return AffineMap([p.size for p in parameters], entries, constants, P, A, _cones(program))


def _with_factors(
    found: AffineMap,
    forms: Sequence[ConstraintForm],
    program: ParamConeProg,
    chain: SolvingChain,
    given: Sequence[cp.Parameter],
) -> AffineMap:
    """The map in which factors of matrices, its last parameters, are entries of the matrices."""
    starts, final, count = constraint_starts(program), chain.compose_constr_id_map(), len(given)
    entries = []
    for e in found.entries:
        if e.parameter >= count:
            form = forms[e.parameter - count]
            row = starts[final.get(form.cone.id, form.cone.id)]
            factor = Factor(_columns(form.z, program, chain), np.array([row, row + 1]))
            e = Entry(next(i for i, p in enumerate(given) if p is form.P), False, e.maps, factor)
        entries.append(e)
    return AffineMap(found.sizes[:count], entries, found.constants, found.P, found.A, found.cones)


def _quadratic(stuffing: _Stuffing, n: int, take: Callable[[Block, Stored], None]) -> Pattern:
    tensors = []
    while stuffing.P:
        t = stuffing.P.pop()
        j, i = np.divmod(t.position, max(n, 1))
        # (P + P')/2, upper triangle: an off-diagonal entry is half the sum of its two places.
        position = np.minimum(i, j) + np.maximum(i, j) * t.position.dtype.type(n)
        tensors.append(Tensor(position, t.column, np.where(i == j, t.value, 0.5 * t.value)))
    pattern, stored = placed(tensors, (n, n))
    take("P", stored)
    return pattern


def _constraints(program: ParamConeProg, stuffing: _Stuffing, n: int, take: Callable[[Block, Stored], None]) -> Pattern:
    place, sign = _row_order(program)
    m = len(place)
    matrix, vector = [], []
    while stuffing.A:
        t = _reordered(stuffing.A.pop(), place, sign)
        inside = t.position < m * n
        # CVXPY says A x + b in K, this package b - A x in K.
        part = t.where(inside)
        matrix.append(replace(part, weight=-part.weight))
        part = t.take(~inside)
        vector.append(replace(part, position=part.position - m * n))
    take("b", Stored(m, vector))
    pattern, stored = placed(matrix, (m, n))
    take("A", stored)
    return pattern


def _reordered(t: Tensor, place: Array, sign: Array) -> Tensor:
    """Rows moved to their places, and changed in sign."""
    m = len(place)
    if not m or ((sign > 0).all() and (place == np.arange(m)).all()):
        return t
    column, row = np.divmod(t.position, m)
    position = place.astype(row.dtype)[row] + column * row.dtype.type(m)
    return Tensor(position, t.column, sign[row] * t.value)


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
        return Output(selection(_columns(v, program, chain), n), dual=False, exponential=gp, shape=v.shape)
    constraint = next(c for c in problem.constraints if any(d.id == v.id for d in c.dual_variables))
    final_id = chain.compose_constr_id_map().get(constraint.id, constraint.id)
    start = constraint_starts(program).get(final_id)
    if start is None or not isinstance(constraint, _DIRECT):
        raise UnsupportedProblemError(
            f"The dual variable of {constraint} cannot be returned: the constraint is rewritten into "
            "others before solving. Write it with the cones SOC, PSD, ExpCone or PowCone3D directly."
        )
    index, scale = _dual_rows(v, constraint)
    return Output(selection(index + start, m, scale), dual=True, exponential=False, shape=v.shape)


def _columns(v: cp.Variable, program: ParamConeProg, chain: SolvingChain) -> Array:
    """For each entry of v in C order, its column in the program (-1: always zero)."""
    final = chain.compose_var_id_map().get(v.id, [v.id])[0]
    within = _variable_columns(v)
    return np.where(within < 0, -1, within + program.var_id_to_col[final])


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
            raise UnsupportedProblemError("Duals of stacked PSD constraints are not supported: write one per matrix.")
        i, j = np.triu_indices(k)
        row = np.empty((k, k), dtype=np.int64)
        row[i, j] = row[j, i] = i + j * (j + 1) // 2
        return row.ravel(), np.where(np.eye(k, dtype=bool), 1.0, np.sqrt(0.5)).ravel()
    return np.arange(v.size).reshape(v.shape, order="F").ravel(), None
