"""Linear and quadratic programs whose costs leave almost nothing to choose a point on a face."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch
from fuzz.exact import QP, solve
from fuzz.routes import Route
from fuzz.run import Case

from ffo import solve_qp_batch
from ffo.cones import Nonneg, Product
from ffo.engine import face, stages
from ffo.engine.batch import Batch
from ffo.engine.stages import by_own_choice
from ffo.errors import Status
from ffo.program.cone import ConeProgram
from ffo.torch import FFOLayer, FFOQPLayer

#: the costs along a face, or of a direction without curvature, are 1e-6 to 1e-10 of the others. No solver finds the
#: solutions of most of these programs, and answers were off by up to 1e5; the last three were refused
SMALL_COSTS = {
    "flat": QP(
        np.array([1.25e-8, 3.75]), np.diag([0.0, 3.0]), np.array([[-25, -200], [1, 0.25], [-1.75, 1.5]]),
        np.array([300, 1e6, 3.375]),
    ),
    "flat, three variables": QP(
        np.array([1e-8, -1.428571428571429e-9, 2.25]), np.diag([0.0, 0.0, 3.0]),
        np.array([[0, 17.5, -5], [-17.5, -15, 7.5], [100, 125, -125]]), np.array([30, -45.625, 125000381.25]),
    ),
    "linear": QP(
        np.array([-0.500000035, 1.4999999975, 2.00000003]), None,
        np.array([[0.5, -1.5, -2], [2, 0.25, -1.75], [1.5, 0, -1.25], [0.25, 1.5, 0], [0.75, -1, 2]]),
        np.array([1, 2.4375, 1.6875, 10.875, 998.375]),
    ),
    "linear, distant rows": QP(
        np.array([0.25000000015, 0.2500000001]), None, np.array([[-0.25, -0.25], [-1.5, -1], [1, -0.5], [-0.5, 0.5]]),
        np.array([0.8125, 4.25, 9999999998.625, 10000000000.375]),
    ),
    "large": QP(
        np.array([-64.1824362, -2.29687499e10]), np.diag([0.0, 3.0625]),
        np.array([[7.36865507e-4, 2.21059652e-3], [7.78264989e-3, 4.07756277e-3], [128.364872, -141.791536]]),
        np.array([1.65794747e7, 6.42222168e13, -1.06343652e12]),
    ),
    "linear, costs nearly parallel to a row": QP(
        np.array([0.99999775, 0.50000175, -1.74999975]), None,
        np.array([[-1, -0.5, 1.75], [1.5, -1.5, 0.25], [0.75, -0.25, -0.5], [1.25, -1.75, 1], [0.75, -2, -1]]),
        np.array([-3.8125, 1.3125, 1.625, 10, 1000.25]),
    ),
    "flat, small costs, a distant first point": QP(
        np.array([-1.53131950e-03, -1.05516946e-03, -9.82304807e-04, -1.23774374e-04, -1.49890850]),
        np.diag([0.0, 0.0, 0.0, 0.0, 1.0]),
        np.array([
            [-0.75, 0.75, -1, 0.25, 0.75], [-0.5, -2, 1.25, -0.75, -2], [1, 1.5, 0.75, 0.25, -1.5],
            [1.75, 0.5, 1, 0, -0.5], [0.5, 0.5, 1.25, -1.5, -2], [1, 1.25, 1, 0, 2], [-1.25, -1.25, 0.75, -1, 1],
            [1.25, -1.25, -0.75, -0.75, -1.5],
        ]),
        np.array([1.375, -2.1875, -4.3125, -2.125, -3.5, 9.0625, 1002.4375, 1e6]),
    ),
    "linear, a distant first point": QP(
        np.array([9.52339788e-04, -1.27005382e-03, -7.86813342e-08, 1.58847525e-04, 4.76249299e-04]), None,
        np.array([
            [-1.5, 2, 0, -0.25, -0.75], [-2, 1.5, 0.25, -2, -1.5], [0, 1.5, 2, -2, -1.5], [-0.25, 2, 1.25, -1.5, -1],
            [1.75, 1.25, -1.75, 1.25, 1.25], [-0.5, 1.5, -0.5, -1.5, 1.25], [-1, -0.5, -0.5, -1.75, -1],
            [0.5, -1.25, -0.75, 0.25, 0.75],
        ]),
        np.array([-3.75, -1.75, -2.75, -3.25, -2.4375, 8.6875, 1001.8125, 1000002.94]),
    ),
    "flat, numerical trouble": QP(
        np.array([-0.623986098, 0.779985579, 0.623989609, 2.09423150e-06, -1.99797236]),
        np.diag([0.0, 0.0, 0.0, 0.0, 1.0]),
        np.array([
            [1, -1.25, -1, 0, 2], [0.5, 1.25, -1, -1.25, 2], [1.75, 0, -1, -0.75, -1], [-1, -1.5, -0.75, -1, -2],
            [0, -1.5, -1.75, -1, 0.25], [2, -2, 1.25, 0.75, -0.5], [0, 1.25, 0.75, -1.75, -1],
            [-0.75, -0.5, -0.75, 0.75, 1.75],
        ]),
        np.array([3.8125, 1.625, 0.5625, 1.6875, 4.125, 8.625, 998.4375, 1000001.94]),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SMALL_COSTS)
def test_solutions_with_small_costs_are_right(name: str) -> None:
    qp = SMALL_COSTS[name]
    layer = FFOQPLayer()
    found = layer(*(None if v is None else torch.tensor(v) for v in (qp.Q, qp.p, qp.G, qp.h)))
    exact = solve(qp).z
    assert exact is not None
    z = exact.astype(float)
    np.testing.assert_allclose(found, z, rtol=1e-8, atol=1e-8 + 1e-15 * np.abs(z).max())
    assert layer.info.residual[0] <= 1e-10


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SMALL_COSTS)
@pytest.mark.parametrize("layer", ["qp", "cvxpy"])
def test_gradients_with_small_costs_are_right_or_flagged(name: str, layer: str) -> None:
    qp = SMALL_COSTS[name]
    verdicts = Case([qp], [np.ones(qp.n)]).verdicts(Route(layer))
    assert {v.outcome.value for v in verdicts} <= {"right", "false alarm", "flagged"}


def random_program(rng: np.random.Generator, sizes: np.ndarray, flat: bool) -> QP:
    """A vertex whose multipliers have these sizes; the last variable has curvature, if `flat`."""
    n = len(sizes)
    G, z = rng.integers(-8, 9, (n + 3, n)) / 4, rng.integers(-8, 9, n) / 4
    slack = np.concatenate([np.zeros(n), [float(rng.integers(1, 9)), 1e3, 1e6]])
    y = np.concatenate([sizes * rng.integers(1, 9, n) / 4, np.zeros(3)])
    Q = np.diag([0.0] * (n - 1) + [1.0]) if flat else None
    return QP(-G.T @ y - (Q @ z if Q is not None else 0.0), Q, G, G @ z + slack)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("ratio", [1e-6, 1e-8, 1e-9])
def test_random_programs_with_small_multipliers_are_right(ratio: float, flat: bool) -> None:
    rng = np.random.default_rng(2)
    for _ in range(30):
        case = Case([random_program(rng, np.array([1.0, ratio**0.5, ratio, ratio]), flat)], [np.ones(4)])
        outcomes = [v.outcome.value for v in case.verdicts(Route(derivative="none"))]
        assert outcomes in (["right"], ["unjudged"])


def test_a_sample_refined_on_its_face_leaves_the_others_alone() -> None:
    qp = SMALL_COSTS["linear, costs nearly parallel to a row"]
    G, h = torch.tensor(qp.G), torch.tensor(qp.h)
    p = torch.tensor(np.stack([-2 * qp.G[0] - qp.G[1] - qp.G[2], qp.p, -qp.G[0] - 3 * qp.G[1] - qp.G[2]]))
    layer = FFOQPLayer(solver="CLARABEL")
    found = layer(None, p, G, h)
    assert layer.info.rescued.tolist() == [False, True, False]
    assert layer.info.solver == ("CLARABEL",) * 3
    np.testing.assert_allclose(found, np.broadcast_to([2, 1, -0.75], (3, 3)), atol=1e-9)
    alone = torch.cat([layer(None, p[[k]], G, h) for k in (0, 2)])
    torch.testing.assert_close(found[[0, 2]], alone, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("what", ["no step", "a wrong step"])
def test_an_answer_without_a_better_one_on_its_face_is_kept(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    calls = []

    def wrong(program: ConeProgram, coarse: float) -> Batch:
        calls.append(batch := by_own_choice(program, coarse))
        if what == "no step":
            batch.status[:] = Status.NUMERICAL
        else:
            batch.point[0][:] = np.nan
        return batch

    monkeypatch.setattr(face, "by_own_choice", wrong)
    qp = SMALL_COSTS["linear, costs nearly parallel to a row"]
    layer = FFOQPLayer(solver="CLARABEL")
    found = layer(None, *(torch.tensor(v) for v in (qp.p, qp.G, qp.h)))
    assert calls
    assert found.isfinite().all()
    assert not layer.info.rescued[0]
    assert layer.info.residual[0] > 1e-10


def test_a_better_answer_replaces_the_linearization_of_the_first_one() -> None:
    """That of the first one was kept, too, and its null vectors caused false alarms."""
    qp = SMALL_COSTS["linear"]
    assert qp.G is not None
    assert qp.h is not None
    cones = Product([(Nonneg(), len(qp.h))])
    program = ConeProgram.from_matrices(np.zeros((3, 3)), np.tile(qp.p, (3, 1)), qp.G, np.tile(qp.h, (3, 1)), cones)
    batch = by_own_choice(program)
    batch.put(np.array([1]), by_own_choice(program.take(np.array([1]))), final_only=True)
    assert sorted(np.concatenate([piece.samples for piece in batch.pieces]).tolist()) == [0, 1, 2]


#: programs whose costs leave 1e-9 of their size on a face: answers with residuals below 1e-10 were off by 1
BELOW_TOLERANCES = {
    "two variables": QP(
        np.array([-1.0000000011929189, 0.8750000011929188]), None,
        np.array([[2, -1.75], [0.5, -0.5], [-1.75, -1], [-1.75, -0.75]]), np.array([-2.125, -0.625, -0.9375, -0.5625]),
    ),
    "three variables": QP(
        np.array([1.1249999913819249, 2.1875000172361503, 4.062500020108842]), None,
        np.array([[1.5, -1.75, -1.75], [-2, 0, -1.25], [0.75, -1.5, -1.75], [-1.5, -1, 1], [-2, -1, -1.5]]),
        np.array([0.6875, -3.375, -0.1875, 2.625, -1.5]),
    ),
    # the refined point is 1e-44 instead of 0, by which it was judged
    "at the origin": QP(
        np.array([-0.31249999349838625, 0.12499999814239607]), None,
        np.array([[1.25, -0.5], [-1.75, 0.5], [-1.5, -0.75], [1, 0.5]]), np.array([0.0, 0.0, 2.0, 1.0]),
    ),
}  # fmt: skip
SOLVERS = [None, "CLARABEL", "PIQP", "HIGHS", "INTERIOR"]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", BELOW_TOLERANCES)
def test_costs_below_the_tolerances_of_solvers(name: str, solver: str | None) -> None:
    qp = BELOW_TOLERANCES[name]
    layer = FFOQPLayer(solver=solver)
    found = layer(None, *(torch.tensor(v) for v in (qp.p, qp.G, qp.h)))
    exact = solve(qp).z
    assert exact is not None
    np.testing.assert_allclose(found, exact.astype(float), rtol=0.0, atol=1e-9)
    assert layer.info.residual[0] <= 1e-13


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("p", "G", "h"),
    [
        ([-0.3750000047259461, 1.124999995274054], [[0.25, -0.75], [-0.25, -0.25]], [-0.3125, 0.0625]),
        ([2.499999868835589, 3.499999803253384], [[-1.25, -1.75], [-1, -1.5]], [-2.375, -2.0]),
    ],
)
def test_a_face_without_bound(p: list[float], G: list[list[float]], h: list[float], solver: str | None) -> None:
    """Costs decrease along a face, by 1e-8 of their size, without bound. Solvers stop anywhere."""
    assert solve(QP(np.array(p), None, np.array(G), np.array(h))).status == "unbounded"
    layer = FFOQPLayer(solver=solver, on_fail="nan")
    layer(None, *(torch.tensor(v, dtype=torch.float64) for v in (p, G, h)))
    assert layer.info.status[0] is Status.UNBOUNDED
    assert layer.info.proofs[0].status is Status.UNBOUNDED


def test_programs_with_curved_cones_that_are_not_active() -> None:
    x, p = cp.Variable(3), cp.Parameter(3)
    G = np.array([[-0.75, -1.5, 1], [2, 2, 1.25], [-1.75, -1.25, -2], [1.25, 1.5, -1.75], [0, -0.5, 0.5]])
    h = np.array([2.5625, 1, -2.6875, 995.5625, 2])
    layer = FFOLayer(cp.Problem(cp.Minimize(p @ x), [G @ x <= h, cp.norm(x) <= 20]), [p], [x])
    (found,) = layer(torch.tensor([0.5620185859285949, 1.1245185848319526, -0.7503008818069641], dtype=torch.float64))
    assert layer.info.residual[0] <= 1e-12
    np.testing.assert_allclose(found, [-0.75, 0.0, 2.0], atol=1e-6)


@pytest.mark.parametrize("solver", [None, "CLARABEL", "PIQP", "INTERIOR"])
@pytest.mark.parametrize("K", [50.0, 1e3, 1e5])
@pytest.mark.parametrize("name", ["two variables", "at the origin"])
def test_large_terms_of_another_variable_cancel_each_other(name: str, K: float, solver: str | None) -> None:
    """K / 2 (w - 1)^2 is added. Beside K, no multiplier seemed large."""
    qp = BELOW_TOLERANCES[name]
    assert qp.G is not None
    G, p = np.hstack([qp.G, np.zeros((len(qp.G), 1))]), np.append(qp.p, -K)
    found = FFOQPLayer(solver=solver)(*(torch.tensor(v) for v in (np.diag([0.0, 0.0, K]), p, G, qp.h)))
    exact = solve(qp).z
    assert exact is not None
    np.testing.assert_allclose(found, [*exact.astype(float), 1.0], rtol=0.0, atol=1e-9)


def test_multipliers_of_three_sizes_beside_a_cone_that_is_not_active() -> None:
    """1.75, 0.0137 and 7.5e-9: the step along the first face is coarse in turn."""
    x, p = cp.Variable(3), cp.Parameter(3)
    G = np.array([[2, 1.25, -0.75], [1.25, 1, 1.5], [0.5, 1, 1], [1.75, 0, 0.5], [0, -2, 0.75], [-1, 1.5, -2]])
    h = np.array([2.1875, 3.9375, 2.375, 4.8125, 2.9375, 0])
    layer = FFOLayer(cp.Problem(cp.Minimize(p @ x), [G @ x <= h, cp.norm(x - 0.5) <= 11.25]), [p], [x])
    costs = torch.tensor([-3.5170898474752903, -2.2011718824505806, 1.2919921800494194], dtype=torch.float64)
    np.testing.assert_allclose(layer(costs)[0], [1.25, 0.5, 1.25], rtol=0.0, atol=1e-6)


#: two nearly opposite rows, and the direction that both leave free
OPPOSITE = np.array([
    [-1.2764581420148186e-06, -8.93520699410373e-06, -6.382290710074093e-06],
    [227361.61185549514, 1591531.2950675106, 1136808.070427363],
])  # fmt: skip
SIDES, EDGE = np.array([5.025221495817128e-06, -895088.0821219179]), np.array([-0.73185267, 0.46222272, -0.50074128])


@pytest.mark.parametrize("solver", [None, "INTERIOR", "CLARABEL", "PIQP", "HIGHS"])
@pytest.mark.parametrize("share", [1e-5, -1e-5, 1e-3])
def test_multipliers_of_nearly_opposite_rows_do_not_excuse_costs(share: float, solver: str | None) -> None:
    """They are 7e8 times as large as the costs, and left 0.1 % of these. A share of the costs points along the edge
    between the rows, so the program is unbounded."""
    p = np.array([1e-6, 5e-7, -1e-6])
    p = p + share * np.linalg.norm(p) * EDGE
    assert solve(QP(p, None, OPPOSITE, SIDES)).status == "unbounded"
    layer = FFOQPLayer(solver=solver, on_fail="nan")
    layer(None, *(torch.tensor(v) for v in (p, OPPOSITE, SIDES)))
    assert layer.info.status[0] is Status.UNBOUNDED


def test_costs_below_the_rounding_errors_of_forces() -> None:
    """The costs along the edge are 2e-8 of the others, the rounding errors of the forces 2e-7: whether the program is
    unbounded, doubles do not tell. If it counts as bounded, the forces leave no more than these errors."""
    p = np.array([1e-6, 5e-7, -1e-6])
    answer = solve_qp_batch(None, p, OPPOSITE, SIDES, on_fail="nan")
    if answer.status[0] is not Status.UNBOUNDED:
        forces = answer.lam[:, None] * OPPOSITE
        assert answer.status[0] is Status.SOLVED
        assert (np.abs(p + forces.sum(axis=0)) <= 4 * np.finfo(float).eps * np.abs(forces).sum(axis=0)).all()


def projections(batch: int, n: int = 20) -> tuple[FFOLayer, tuple[torch.Tensor, ...]]:
    """max(Wx + b, 0) as projections: 420 equalities, most of whose multipliers are zero up to those of others."""
    z, V, W, b, x = cp.Variable(n), cp.Variable((n, n)), cp.Parameter((n, n)), cp.Parameter(n), cp.Parameter(n)
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(z - V @ x - b)), [z >= 0, W == V]), [W, b, x], [z])
    rng = np.random.default_rng(1)
    draws = (rng.standard_normal((batch, n, n)) / n**0.5, 0.1 * rng.standard_normal(n), rng.standard_normal((batch, n)))
    return layer, tuple(torch.tensor(v) for v in draws)


def test_rounding_errors_are_not_refined(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were, one sample after the other: 3.5 s for 300 of these layers, whose steps take 0.08 s."""
    monkeypatch.setattr(face, "by_own_choice", lambda program, coarse: pytest.fail("refined"))
    layer, given = projections(60)
    (found,) = layer(*given)
    W, b, x = given
    torch.testing.assert_close(found, ((W @ x[..., None])[..., 0] + b).clamp(min=0), rtol=0.0, atol=1e-12)
    assert layer.info.residual.max() <= 1e-12


def test_slow_solvers_are_not_asked_about_quadratic_steps() -> None:
    program = ConeProgram.from_matrices(
        np.eye(300), np.ones(300), np.eye(300), np.ones(300), Product([(Nonneg(), 300)])
    )
    names = [solver.name for solver in stages._own_choice(program)]
    assert "HIGHS" not in names
    assert len(names) > 1
    linear = ConeProgram.from_matrices(
        np.zeros((300, 300)), np.ones(300), np.eye(300), np.ones(300), Product([(Nonneg(), 300)])
    )
    assert "HIGHS" in [solver.name for solver in stages._own_choice(linear)]
