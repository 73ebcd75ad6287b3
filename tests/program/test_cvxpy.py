"""CVXPY problems as parametrised cone programs: data, variables, duals, derivatives, refusals."""

from __future__ import annotations

import warnings

import cvxpy as cp
import numpy as np
import pytest
from ghost.yardstick import tight
from program.problems_cvxpy import CASES, Case

from ffo.errors import InputError, UnsupportedProblemError
from ffo.ghost.direct import Direct
from ffo.ghost.oracle import Linearization, linearize
from ffo.program.cvxpy import CanonicalProblem, canonicalize
from ffo.program.declared import refused

Array = np.ndarray

each_case = pytest.mark.parametrize("name", CASES)


def make(name: str) -> Case:
    return CASES[name](np.random.default_rng([3, *map(ord, name)]))


def reduce(case: Case) -> CanonicalProblem:
    return canonicalize(case.problem, case.parameters, case.outputs, gp=case.gp)


def solve(canonical: CanonicalProblem, values: list[Array]) -> list[Array]:
    found = tight(canonical.map.apply(values))
    return canonical.recovery.apply(found.x, found.y)


def reference(case: Case) -> list[Array]:
    """CVXPY's own answer, as accurate as Clarabel can make it."""
    for tolerance in (1e-12, 1e-10, 1e-8):
        names = ("tol_gap_abs", "tol_gap_rel", "tol_feas")
        settings = {**dict.fromkeys(names, tolerance), "static_regularization_constant": 1e-10}
        settings |= {"iterative_refinement_reltol": 1e-15, "iterative_refinement_abstol": 1e-15}
        settings["iterative_refinement_max_iter"] = 30
        with warnings.catch_warnings():  # the tightest tolerance may not be reached
            warnings.simplefilter("ignore")
            try:
                case.problem.solve(solver=cp.CLARABEL, gp=case.gp, canon_backend=cp.SCIPY_CANON_BACKEND, **settings)
            except cp.SolverError:
                continue
            return [np.asarray(getattr(v.value, "toarray", lambda v=v: v.value)()) for v in case.outputs]
    raise AssertionError("CVXPY did not solve the problem")


def directions(case: Case, seed: int = 0) -> list[Array]:
    """A change of each parameter that keeps its attributes, flat."""
    rng = np.random.default_rng([seed, 11])
    found = []
    for p in case.parameters:
        change = rng.normal(size=p.shape)
        if p.attributes["symmetric"] or p.attributes["PSD"] or p.attributes["NSD"]:
            change = (change + change.swapaxes(-1, -2)) / 2
        if p.attributes["diag"]:
            change = np.diag(np.diag(change))
        if p.sparse_idx is not None:
            mask = np.zeros(p.shape)
            mask[p.sparse_idx] = 1.0
            change = change * mask
        found.append(np.asarray(change).ravel())
    return found


@each_case
def test_solution_is_that_of_cvxpy(name: str) -> None:
    case = make(name)
    expected = reference(case)
    for v, found, wanted in zip(case.outputs, solve(reduce(case), case.values), expected, strict=True):
        assert found.shape == (1, *v.shape)
        # CVXPY gives the dual of a single second-order cone one axis more than its variable
        np.testing.assert_allclose(found[0], wanted.reshape(v.shape), rtol=1e-6, atol=1e-6)


def linearized(canonical: CanonicalProblem, values: list[Array]) -> Linearization:
    program = canonical.map.apply(values)
    return linearize(program, tight(program), Direct())


@each_case
def test_gradient_is_that_of_the_solutions(name: str) -> None:
    """Parameters -> data -> solution -> outputs, and back, against differences of the whole."""
    case = make(name)
    if not case.parameters:
        pytest.skip("nothing to differentiate in")
    canonical, values, moves = reduce(case), case.values, directions(case)
    rng = np.random.default_rng(5)
    weights = [rng.normal(size=(1, *v.shape)) for v in case.outputs]
    derivative = linearized(canonical, values)
    c_x, c_y = canonical.recovery.adjoint(weights, derivative.x)
    data, residual = derivative.adjoint(c_x, c_y)
    gradients = canonical.map.adjoint(data, values, [True] * len(values))
    assert derivative.certificate.after_backward(residual, derivative.dependent).good.all()

    change = canonical.map.tangent(moves, values, batch=1)
    along = derivative.tangent(change)
    tangents = canonical.recovery.tangent(along.u, along.w, derivative.x)
    forward = sum((w * t).sum() for w, t in zip(weights, tangents, strict=True))
    backward = sum(g @ m for g, m in zip(gradients, moves, strict=True))
    np.testing.assert_allclose(forward, backward, rtol=1e-8, atol=1e-10)

    def loss(t: float) -> float:
        outputs = solve(canonical, [v + t * m for v, m in zip(values, moves, strict=True)])
        return sum((w * o).sum() for w, o in zip(weights, outputs, strict=True))

    step = 1e-5
    expected = (8 * (loss(step) - loss(-step)) - (loss(2 * step) - loss(-2 * step))) / (12 * step)
    np.testing.assert_allclose(backward, expected, rtol=2e-6, atol=1e-7)


@each_case
def test_batches_are_their_samples(name: str) -> None:
    """Every mix of shared and batched parameters gives the data of each sample."""
    case = make(name)
    canonical, values, moves = reduce(case), case.values, directions(case)
    batched = [np.stack([v, v + 1e-3 * m, v - 1e-3 * m]) for v, m in zip(values, moves, strict=True)]
    for mask in range(1, 2 ** min(len(values), 3)):
        mixed = [b if mask >> i & 1 else v for i, (b, v) in enumerate(zip(batched, values, strict=True))]
        together = canonical.map.apply(mixed)
        assert together.batch == 3
        for k in range(3):
            alone = canonical.map.apply([v[k] if v.ndim == 2 else v for v in mixed])
            for name_, matrix in (("P", together.P), ("A", together.A)):
                expected = getattr(alone, name_).matrix().toarray()
                np.testing.assert_allclose(matrix.matrix(k).toarray(), expected, atol=1e-14)
            np.testing.assert_allclose(together.q[k], alone.q[0], atol=1e-14)
            np.testing.assert_allclose(together.b[k], alone.b[0], atol=1e-14)


@pytest.mark.parametrize("name", ["quadratic_form", "cones_by_rows", "matrix_inequality", "exponential_cones"])
def test_canonicalisation_backend_does_not_matter(name: str) -> None:
    case = make(name)
    ours = reduce(case).map.apply(case.values)
    other = canonicalize(case.problem, case.parameters, case.outputs, canon_backend=cp.SCIPY_CANON_BACKEND)
    theirs = other.map.apply(case.values)
    for a, b in ((ours.P, theirs.P), (ours.A, theirs.A)):
        np.testing.assert_allclose(a.matrix().toarray(), b.matrix().toarray(), atol=1e-14)
    np.testing.assert_allclose(ours.q, theirs.q, atol=1e-14)
    np.testing.assert_allclose(ours.b, theirs.b, atol=1e-14)


def test_parameter_values_are_not_needed() -> None:
    x, a = cp.Variable(2), cp.Parameter(2)
    canonical = canonicalize(cp.Problem(cp.Minimize(cp.sum_squares(x - a))), [a], [x])
    assert a.value is None
    np.testing.assert_allclose(solve(canonical, [np.array([1.0, -2.0])])[0], [[1.0, -2.0]], atol=1e-10)


@pytest.mark.parametrize(
    "attribute", [{"symmetric": True}, {"PSD": True}, {"diag": True}], ids=["symmetric", "PSD", "diag"]
)
def test_gradient_has_the_structure_of_its_parameter(attribute: dict[str, bool]) -> None:
    X, C = cp.Variable((3, 3)), cp.Parameter((3, 3), **attribute)
    weight = np.arange(9.0).reshape(3, 3)
    canonical = canonicalize(cp.Problem(cp.Minimize(cp.sum_squares(X - C))), [C], [X])
    value = np.eye(3).ravel()
    derivative = linearized(canonical, [value])
    data, _ = derivative.adjoint(*canonical.recovery.adjoint([weight[None]], derivative.x))
    (gradient,) = canonical.map.adjoint(data, [value], [True])
    expected = np.diag(np.diag(weight)) if "diag" in attribute else (weight + weight.T) / 2
    np.testing.assert_allclose(gradient.reshape(3, 3), expected, atol=1e-10)


def test_gradient_off_the_pattern_of_a_sparse_parameter_is_zero() -> None:
    where = (np.array([0, 2]), np.array([1, 0]))
    X, S = cp.Variable((3, 3)), cp.Parameter((3, 3), sparsity=where)
    canonical = canonicalize(cp.Problem(cp.Minimize(cp.sum_squares(X - S))), [S], [X])
    values = [np.arange(9.0)]  # entries outside the pattern are ignored
    derivative = linearized(canonical, values)
    expected = np.zeros((3, 3))
    expected[where] = values[0].reshape(3, 3)[where]
    np.testing.assert_allclose(canonical.recovery.apply(derivative.x, derivative.y)[0][0], expected, atol=1e-10)
    data, _ = derivative.adjoint(*canonical.recovery.adjoint([np.ones((1, 3, 3))], derivative.x))
    (gradient,) = canonical.map.adjoint(data, values, [True])
    np.testing.assert_allclose(gradient.reshape(3, 3), expected != 0, atol=1e-10)


def test_every_order_of_the_parameters_of_a_geometric_program() -> None:
    case = make("geometric_program")
    expected = solve(reduce(case), case.values)
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]):
        parameters = [case.parameters[i] for i in order]
        canonical = canonicalize(case.problem, parameters, case.outputs, gp=True)
        for a, b in zip(solve(canonical, [case.values[i] for i in order]), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9)


@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_parameters_of_geometric_programs_are_positive(value: float) -> None:
    case = make("geometric_program")
    values = case.values
    values[0] = np.full_like(values[0], value)
    canonical = reduce(case)
    assert not canonical.map.apply(values).finite.any()
    said = refused(canonical.declared, [np.ravel(v) for v in values], 2)
    assert [*said] == [0, 1]
    assert "the parameter 0" in said[0]
    assert f"of a geometric program must be positive, but has the entry {value:.4g}" in said[0]


def not_dcp() -> tuple[cp.Problem, list, list]:
    x, a, b = cp.Variable(2), cp.Parameter(), cp.Parameter(2)
    return cp.Problem(cp.Minimize(a * cp.sum_squares(x - b))), [a, b], [x]


def quad_form_of_unknown_definiteness() -> tuple[cp.Problem, list, list]:
    x, P = cp.Variable(2), cp.Parameter((2, 2), symmetric=True)
    return cp.Problem(cp.Minimize(cp.sum(x)), [cp.quad_form(x, P) <= 1]), [P], [x]


def good() -> tuple[cp.Problem, list, list]:
    x, a, b = cp.Variable(2), cp.Parameter(2), cp.Parameter()
    return cp.Problem(cp.Minimize(cp.sum_squares(x - a)), [cp.sum(x) == b]), [a, b], [x]


def missing_parameter() -> tuple[cp.Problem, list, list]:
    problem, parameters, variables = good()
    return problem, parameters[:1], variables


def foreign_parameter() -> tuple[cp.Problem, list, list]:
    problem, parameters, variables = good()
    return problem, [*parameters, cp.Parameter()], variables


def repeated_parameter() -> tuple[cp.Problem, list, list]:
    problem, parameters, variables = good()
    return problem, [*parameters, parameters[0]], variables


def foreign_variable() -> tuple[cp.Problem, list, list]:
    problem, parameters, variables = good()
    return problem, parameters, [*variables, cp.Variable(2)]


def foreign_dual() -> tuple[cp.Problem, list, list]:
    problem, parameters, _ = good()
    return problem, parameters, [(cp.Variable() >= 0).dual_variables[0]]


def parameters_not_in_a_list() -> tuple[cp.Problem, object, list]:
    problem, parameters, variables = good()
    return problem, iter(parameters), variables


def variable_not_in_a_list() -> tuple[cp.Problem, list, object]:
    problem, parameters, variables = good()
    return problem, parameters, variables[0]


def integer_variable() -> tuple[cp.Problem, list, list]:
    x, a = cp.Variable(2, integer=True), cp.Parameter(2)
    return cp.Problem(cp.Minimize(cp.sum_squares(x - a))), [a], [x]


def boolean_variable() -> tuple[cp.Problem, list, list]:
    x, a = cp.Variable(2, boolean=True), cp.Parameter(2)
    return cp.Problem(cp.Minimize(cp.sum_squares(x - a))), [a], [x]


def complex_variable() -> tuple[cp.Problem, list, list]:
    x, a = cp.Variable(2, complex=True), cp.Parameter(2)
    return cp.Problem(cp.Minimize(cp.sum_squares(x - a))), [a], [x]


def complex_parameter() -> tuple[cp.Problem, list, list]:
    x, a = cp.Variable(2), cp.Parameter(2, complex=True)
    return cp.Problem(cp.Minimize(cp.sum_squares(x - a))), [a], [x]


REFUSED = [
    (not_dcp, InputError, "must be DPP, or at least DCP"),
    (quad_form_of_unknown_definiteness, InputError, "QuadForm.* is not DCP"),
    (missing_parameter, InputError, "must exactly match problem.parameters"),
    (foreign_parameter, InputError, "must exactly match problem.parameters"),
    (repeated_parameter, InputError, "must exactly match problem.parameters"),
    (foreign_variable, InputError, "must be a subset of problem.variables"),
    (foreign_dual, InputError, "must be a subset of problem.variables"),
    (parameters_not_in_a_list, InputError, "parameters must be provided as a list or tuple"),
    (variable_not_in_a_list, InputError, "variables must be provided as a list or tuple"),
    (integer_variable, UnsupportedProblemError, "integer and boolean variables have no gradient"),
    (boolean_variable, UnsupportedProblemError, "integer and boolean variables have no gradient"),
    (complex_variable, UnsupportedProblemError, "Complex variables and parameters"),
    (complex_parameter, UnsupportedProblemError, "Complex variables and parameters"),
]


@pytest.mark.parametrize(("build", "error", "text"), REFUSED, ids=[r[0].__name__ for r in REFUSED])
def test_what_is_refused(build, error: type[Exception], text: str) -> None:
    problem, parameters, variables = build()
    with pytest.raises(error, match=text):
        canonicalize(problem, parameters, variables)


def test_geometric_programs_need_gp() -> None:
    case = make("geometric_program")
    with pytest.raises(InputError, match="must be DPP"):
        canonicalize(case.problem, case.parameters, case.outputs)
    x, a = cp.Variable(pos=True), cp.Parameter()
    with pytest.raises(InputError, match="DPP for geometric programming"):
        canonicalize(cp.Problem(cp.Minimize(cp.exp(a * x))), [a], [x], gp=True)


def test_duals_of_rewritten_constraints_are_refused() -> None:
    """An n-dimensional power cone becomes several three-dimensional ones: its dual is not one of their rows."""
    W, z, c = cp.Variable(3), cp.Variable(), cp.Parameter(3)
    cone = cp.PowConeND(W, z, np.array([0.3, 0.3, 0.4]))
    problem = cp.Problem(cp.Minimize(cp.sum_squares(W - c) - z), [cone])
    canonicalize(problem, [c], [W, z])
    for dual in cone.dual_variables:
        with pytest.raises(UnsupportedProblemError, match=r"cannot be returned.*PowCone3D directly"):
            canonicalize(problem, [c], [W, dual])


def test_duals_of_stacks_of_matrices_are_refused() -> None:
    X, C = cp.Variable((2, 3, 3)), cp.Parameter((2, 3, 3))
    cone = cp.PSD(X)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(X - C)), [cone])
    canonicalize(problem, [C], [X])
    with pytest.raises(UnsupportedProblemError, match="write one per matrix"):
        canonicalize(problem, [C], [X, *cone.dual_variables])


def test_a_problem_without_variables_is_refused() -> None:
    a = cp.Parameter(2)
    with pytest.raises(UnsupportedProblemError, match="no variables"):
        canonicalize(cp.Problem(cp.Minimize(cp.sum(a))), [a], [])


@pytest.mark.parametrize("order", [1, -1])
def test_duals_of_two_matrix_inequalities(order: int) -> None:
    """Each dual belongs to its own constraint, whatever the order in the problem."""
    x, C = cp.Variable(2), cp.Parameter((2, 2), symmetric=True)
    cones = [cp.diag(x) + C >> 0, cp.diag(x) - C >> -0.1 * np.eye(2)]
    problem = cp.Problem(cp.Minimize(cp.sum_squares(x + 1)), cones[::order])
    C.value = np.array([[0.3, 0.7], [0.7, -0.2]])
    case = Case(problem, [C], [x, cones[0].dual_variables[0], cones[1].dual_variables[0]])
    for found, wanted in zip(solve(reduce(case), case.values), reference(case), strict=True):
        np.testing.assert_allclose(found[0], wanted, atol=1e-6)
