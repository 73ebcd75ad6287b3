"""Proofs that there is no solution, by multipliers or a ray: they need no second opinion."""

from __future__ import annotations

import numpy as np
import pytest

from ffo import solve_qp_batch
from ffo.cones import PSD, Exponential, Nonneg, Power, Product, SecondOrder, Zero
from ffo.cones.base import Array, Cone
from ffo.engine import Engine, Options, Relax, stages
from ffo.engine.proof import find_proofs, recedes, refutes
from ffo.errors import InfeasibleError, Status
from ffo.kernels.batch import KernelPlan
from ffo.program.cone import ConeProgram
from ffo.program.names import Named, Names
from ffo.solvers import get_solver
from ffo.solvers.base import Solver
from ffo.solvers.workspace import Point, Workspace


def strips(n: int, width: float) -> ConeProgram:
    """|x|^2 / 2 + q'x within -width <= Gx <= width: empty for negative widths."""
    rng = np.random.default_rng(n)
    G = rng.normal(size=(n // 2, n))
    rows = np.concatenate([G, -G])
    return ConeProgram.from_matrices(
        np.eye(n), rng.normal(size=(3, n)), rows, np.full((3, len(rows)), width), Product([(Nonneg(), len(rows))])
    )


@pytest.mark.parametrize("n", [6, 40, 160])
def test_multipliers_prove_that_nothing_is_feasible(n: int) -> None:
    program, other = strips(n, -1.0), strips(n, 1.0)
    answer = get_solver("DENSE").solve(program)
    assert (answer.status == Status.INFEASIBLE).all()
    assert refutes(answer.y, program).all()
    assert not refutes(get_solver("DENSE").solve(other).y, other).any()
    assert not refutes(answer.y, other).any()  # another program's proof proves nothing
    y = answer.y + 1e-6 * np.random.default_rng(0).normal(size=answer.y.shape)
    assert not refutes(y, program).any()
    found, _ = find_proofs(program, answer.x, y)  # but the nearest one does
    assert [found[k].status for k in range(3)] == [Status.INFEASIBLE] * 3
    assert refutes(np.array([found[k].vector for k in range(3)]), program).all()


def test_no_point_proves_nothing() -> None:
    nothing = np.full((3, 6), np.nan)
    assert find_proofs(strips(6, 1.0), nothing, nothing)[0] == {}


def test_nobody_else_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for kind in {type(get_solver(name)) for name in ("DENSE", "INTERIOR", "CLARABEL", "PIQP", "HIGHS")}:
        solve = kind.solve
        monkeypatch.setattr(kind, "solve", lambda self, p, solve=solve: asked.append(self.name) or solve(self, p))
    outcome = Engine(Options(on_fail="nan")).run(strips(40, -1.0))
    assert outcome.info.status == [Status.INFEASIBLE] * 3
    assert asked == ["DENSE"]


def test_a_proof_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A point that is a proof is not examined further: neither residuals nor a second proof."""
    asked: list[str] = []
    find, judge = stages.find_proofs, KernelPlan.judge
    monkeypatch.setattr(stages, "find_proofs", lambda *a: asked.append("proof") or find(*a))
    monkeypatch.setattr(KernelPlan, "judge", lambda *a: asked.append("residual") or judge(*a))
    for program in (strips(40, -1.0), open_below(10, False), open_below(10, True)):
        info = Engine(Options(on_fail="nan")).run(program).info
        assert len(info.proofs) == program.batch
        assert asked == ["proof"]
        asked.clear()


@pytest.mark.parametrize("quadratic", [False, True])
def test_the_interior_point_ends_where_it_diverges(quadratic: bool) -> None:
    answer = get_solver("INTERIOR").solve(open_below(10, quadratic))
    assert answer.iterations[0] <= 15
    assert answer.status[0] == Status.NUMERICAL


NAMES = Names((Named("rows", np.arange(6)[:, None], (6,)),), ())


class _Lying(Workspace):
    claim: Status

    def start(self, sample: int) -> None:
        pass

    def run(self, sample: int) -> Point:
        nothing = np.zeros(self.program.m)
        return Point(np.zeros(self.program.n), nothing, nothing, self.claim, 1)


class Liar(Solver):
    """Returns the same status for everything, with zeros and without a proof."""

    name = "LIAR"
    capabilities = get_solver("CLARABEL").capabilities

    def __init__(self, claim: Status = Status.INFEASIBLE) -> None:
        super().__init__()
        self.claim = claim

    def workspace(self, program: ConeProgram) -> Workspace:
        found = _Lying(program)
        found.claim = self.claim
        return found


def test_claims_without_a_proof_are_looked_into() -> None:
    outcome = Engine(Options(solver=Liar(), retry=["CLARABEL"])).run(strips(6, 1.0))
    assert outcome.info.status == [Status.SOLVED] * 3
    assert outcome.info.solver == ("CLARABEL",) * 3


def test_claims_are_refuted_by_a_feasible_point() -> None:
    for on_fail in ("nan", Relax(rest="nan")):
        info = Engine(Options(solver=Liar(), on_fail=on_fail)).run(strips(6, 1.0), names=NAMES).info
        assert info.status == [Status.INACCURATE] * 3
        assert info.detail[0] == "called infeasible, but there is a feasible point"
        assert not info.proofs
    info = Engine(Options(on_fail="relax")).run(strips(6, -1.0), names=NAMES).info
    assert info.status == [Status.RELAXED] * 3
    np.testing.assert_allclose(info.violation, np.sqrt(6), rtol=1e-3)


def open_below(n: int, quadratic: bool, equalities: int = 0) -> ConeProgram:
    """Integers, so that (1, ..., 1) is an exact ray; x = 0 is feasible except for equalities."""
    rng = np.random.default_rng(n)
    rows = rng.integers(-4, 5, size=(2 * n, n)).astype(float)
    rows[:, 0] -= rows.sum(axis=1)
    rows[n:, 1] -= rng.integers(1, 4, size=n)
    root = rng.integers(-3, 4, size=(n // 2, n)).astype(float)
    root[:, 0] -= root.sum(axis=1)
    q = rng.integers(-5, 6, size=n).astype(float)
    q[0] -= q.sum() + 1
    cones = Product([(Zero(), equalities), (Nonneg(), 2 * n - equalities)])
    b = rng.integers(1, 6, size=2 * n).astype(float)
    return ConeProgram.from_matrices(root.T @ root if quadratic else np.zeros((n, n)), q, rows, b, cones)


def around(cone: Cone, q: Array, rows: Array, b: Array) -> ConeProgram:
    """|x|^2 / 2 over points of a cone with rows x <= b; without rows: q'x over the cone."""
    n = cone.dim
    A, blocks = np.concatenate([rows, -np.eye(n)]), [(Nonneg(), len(rows)), (cone, 1)]
    return ConeProgram.from_matrices(
        np.eye(n) * bool(len(rows)), q, A, np.concatenate([b, np.zeros(n)]), Product(blocks)
    )


NONE = np.zeros((0, 3)), np.zeros(0)
UNBOUNDED = {
    "nothing": ConeProgram.from_matrices(
        np.array([[0.5625, 0.1875], [0.1875, 0.0625]]),
        np.array([-0.5, 0.5]),
        np.zeros((0, 2)),
        np.zeros(0),
        Product([]),
    ),
    "linear": open_below(10, False),
    "larger linear": open_below(60, False),
    "quadratic": open_below(10, True),
    "larger quadratic": open_below(60, True),
    "equalities": open_below(12, True, 3),
    "linear equalities": open_below(12, False, 3),
    "second-order": around(SecondOrder(3), np.array([-1.0, 0.5, 0.25]), *NONE),
    "semidefinite": around(PSD(2), np.array([1.0, 0.0, -1.0]), *NONE),
    "exponential": around(Exponential(), np.array([1.0, 1.0, -1.0]), *NONE),
}
first = np.array([[1.0, 0.0, 0.0]])
INFEASIBLE = {
    "strips": strips(6, -1.0).take(np.array([0])),
    "bounds": ConeProgram.from_matrices(
        np.eye(2), np.ones(2), np.array([[1.0, 0], [-1, 0], [0, 1]]), np.array([0.0, -1, 1]), Product([(Nonneg(), 3)])
    ),
    "no lower end": ConeProgram.from_matrices(
        np.zeros((2, 2)),
        np.array([0.0, -1.0]),
        np.array([[1.0, 0], [-1, 0]]),
        np.array([-1.0, -1]),
        Product([(Nonneg(), 2)]),
    ),
    "second-order": around(SecondOrder(3), np.ones(3), first, -np.ones(1)),
    "on the boundary": around(SecondOrder(3), np.ones(3), np.array([[1.0, -1.0, 0.0]]), -np.ones(1)),
    "semidefinite": around(PSD(2), np.ones(3), first, -np.ones(1)),
    "exponential": around(Exponential(), np.ones(3), np.array([[0.0, 0.0, 1.0]]), -np.ones(1)),
}
SOLVERS = (None, "CLARABEL", "INTERIOR", "SCS", "QOCO", "DENSE", "PIQP", "HIGHS", "OSQP", "PROXQP", "DAQP")


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("program", "status"),
    [pytest.param(p, Status.INFEASIBLE, id=f"infeasible {name}") for name, p in INFEASIBLE.items()]
    + [pytest.param(p, Status.UNBOUNDED, id=f"unbounded {name}") for name, p in UNBOUNDED.items()],
)
def test_every_solver_leads_to_a_proof(program: ConeProgram, status: Status, solver: str | None) -> None:
    if solver is not None and not program.cones.kinds <= get_solver(solver).capabilities.cones:
        pytest.skip("the solver does not take these cones")
    outcome = Engine(Options(solver=solver, on_fail="nan")).run(program)
    assert outcome.info.status == [status]
    proof = outcome.info.proofs[0]
    assert proof.status == status
    assert (refutes if status is Status.INFEASIBLE else recedes)(proof.vector[None], program).all()


def test_a_ray_of_an_empty_set_proves_nothing() -> None:
    program = INFEASIBLE["no lower end"]
    assert recedes(np.array([[0.0, 1.0]]), program).all()
    assert Engine(Options(solver="SCS", on_fail="nan")).run(program).info.status == [Status.INFEASIBLE]


def test_solutions_far_out_stay_solutions() -> None:
    far = ConeProgram.from_matrices(
        np.diag([1e-9, 1.0]), np.array([-1.0, 1.0]), np.array([[0.0, 1.0]]), np.ones(1), Product([(Nonneg(), 1)])
    )
    for solver in (None, "CLARABEL", "DENSE"):
        outcome = Engine(Options(solver=solver)).run(far)
        np.testing.assert_allclose(outcome.x, [[1e9, -1.0]])


SOLVABLE = {
    "quadratic": strips(6, 1.0).take(np.array([0])),
    "linear": around(SecondOrder(3), np.array([1.0, 0.5, 0.25]), *NONE),
}


@pytest.mark.parametrize("claim", [Status.INFEASIBLE, Status.UNBOUNDED])
@pytest.mark.parametrize("second", [Status.NUMERICAL, Status.ITERATION_LIMIT, Status.SOLVED])
@pytest.mark.parametrize(
    ("program", "truth"),
    [
        *((SOLVABLE[name], Status.INACCURATE) for name in SOLVABLE),
        *((INFEASIBLE[name], Status.INFEASIBLE) for name in ("strips", "second-order")),
        *((UNBOUNDED[name], Status.UNBOUNDED) for name in ("linear", "quadratic", "second-order")),
    ],
)
def test_a_retry_that_fails_after_a_verdict_without_a_proof(
    program: ConeProgram, truth: Status, claim: Status, second: Status
) -> None:
    """The verdict is kept if a proof is found eventually; if it is refuted, the sample is just unsolved."""
    info = Engine(Options(solver=Liar(claim), retry=[Liar(second)], on_fail="nan")).run(program).info
    assert info.status == [truth]
    assert info.retried.all()
    assert bool(info.proofs) == (truth is not Status.INACCURATE)
    if truth is Status.INACCURATE:
        assert info.detail[0].startswith(f"called {claim.name.lower()}, but")


@pytest.mark.parametrize("n", [20, 80, 200])
@pytest.mark.parametrize(
    ("solver", "limit"), [(None, None), ("INTERIOR", 3), ("PIQP", 3), ("CLARABEL", 2), ("DENSE", 3)]
)
def test_limits_hide_no_verdict(n: int, solver: str | None, limit: int | None) -> None:
    """Contradictions that involve all rows, and programs that have a solution."""
    rng = np.random.default_rng(n)
    rows, weights = rng.normal(size=(2 * n, n)), rng.uniform(0.5, 1.5, 2 * n)
    rows[-1] = -(weights[:-1] @ rows[:-1]) / weights[-1]
    b = rng.normal(size=(2, 2 * n))
    b[0, -1] = (-1.0 - weights[:-1] @ b[0, :-1]) / weights[-1]
    b[1] = rows @ rng.normal(size=n) + rng.uniform(0.0, 1.0, 2 * n)
    program = ConeProgram.from_matrices(np.eye(n), rng.normal(size=n), rows, b, Product([(Nonneg(), 2 * n)]))
    settings = {} if limit is None else {"max_iters": limit}
    info = Engine(Options(solver=solver, solver_args=settings, on_fail="nan")).run(program).info
    assert info.status[0] == Status.INFEASIBLE
    assert set(info.proofs) == {0}
    if limit is None:
        assert info.status[1] == Status.SOLVED


MIXES = {
    "linear": [(Zero(), 2), (Nonneg(), 12)],
    "second-order": [(Zero(), 1), (Nonneg(), 4), (SecondOrder(4), 2)],
    "semidefinite": [(Nonneg(), 3), (PSD(3), 1)],
    "exponential": [(Nonneg(), 3), (Exponential(), 2)],
    "power": [(Nonneg(), 3), (Power(0.3), 2)],
    "mixed": [(Zero(), 1), (Nonneg(), 3), (SecondOrder(3), 1), (PSD(2), 1), (Exponential(), 1)],
}


def random_program(blocks: list[tuple[Cone, int]], seed: int, status: Status) -> ConeProgram:
    """A random program around a random proof; its costs are linear, strictly convex or neither, in turn."""
    rng, cones = np.random.default_rng(seed), Product(blocks)
    n, m, scale = int(rng.integers(3, 9)), cones.dim, 10.0 ** rng.uniform(-3, 3)
    A, b, q, root = rng.normal(size=(m, n)), rng.normal(size=m), rng.normal(size=n), rng.normal(size=(n // 2, n))
    P = (np.zeros((n, n)), np.eye(n), root.T @ root)[seed % 3]
    if status is Status.INFEASIBLE:
        y = cones.project_dual(rng.normal(size=(1, m)))[0]
        A -= np.outer(y, y @ A) / (y @ y)
        b -= y * (b @ y + 1) / (y @ y)
    else:
        d, move, inside = rng.normal(size=n), *cones.project(rng.normal(size=(2, m)))
        A -= np.outer(A @ d + move, d) / (d @ d)
        b = A @ rng.normal(size=n) + inside
        q -= d * (q @ d + 1) / (d @ d)
        off = np.eye(n) - np.outer(d, d) / (d @ d)
        P = off @ P @ off
    return ConeProgram.from_matrices(P * scale, q * scale, A, b * scale, cones)


@pytest.mark.parametrize("status", [Status.INFEASIBLE, Status.UNBOUNDED])
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_of_every_cone(mix: str, status: Status, seed: int) -> None:
    program = random_program(MIXES[mix], seed, status)
    info = Engine(Options(on_fail="nan")).run(program).info
    assert info.status == [status]
    assert (refutes if status is Status.INFEASIBLE else recedes)(info.proofs[0].vector[None], program).all()


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value")
def test_a_proof_beside_entries_whose_squares_overflow() -> None:
    """A row of zeros that no point satisfies, and a coefficient of 1e300 in another row."""
    Q = np.array([[1.826, 0.632, -1.6], [0.632, 1.107, -1.123], [-1.6, -1.123, 3.513]])
    G = np.array([[0.0, -0.12, -0.28], [0.26, -1.5, 0.0], [0.03, 0.12, 0.28], [0.0, 1.5, 0.0], [0.0, 0.0, 0.0]])
    A, h = np.array([[1.99, 1e300, -0.47]]), np.array([-0.06, -0.74, 0.54, 0.88, -1.1448509802472834e-14])
    with pytest.raises(InfeasibleError, match="infeasible"):
        solve_qp_batch(Q, np.array([0.03, -0.2, 0.006]), G, h, A, np.array([-6.6]))
