"""The fuzzer itself, and a short slice of it; `make fuzz` runs the rest."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from fuzz import exact, families, shrink
from fuzz.exact import QP
from fuzz.judge import EXCUSE, Outcome, Truth, judge
from fuzz.routes import Found, Route
from fuzz.run import NAMES, Case, draw_case, play
from tests.catalogue import FAMILIES, build

Array = np.ndarray
BOX = QP(p=np.array([-3.0, 1.0]), Q=np.eye(2), ub=np.array([1.0, 5.0]))  # z = (1, -1)


# The exact solver


def test_exact_solutions() -> None:
    answer = exact.solve(BOX)
    assert (answer.status, answer.z.tolist(), answer.y.tolist()) == ("solved", [1, -1], [2, 0])
    third = exact.solve(QP(p=np.array([0.0]), Q=np.array([[3.0]]), A=np.array([[3.0]]), b=np.array([1.0])))
    assert (third.z.tolist(), third.nu.tolist()) == ([Fraction(1, 3)], [Fraction(-1, 3)])


@pytest.mark.parametrize(
    ("qp", "status"),
    [
        (QP(p=np.ones(1)), "unbounded"),
        (QP(p=np.ones(2), Q=np.diag([1.0, 0.0])), "unbounded"),
        (QP(p=np.ones(1), lb=np.ones(1), ub=np.zeros(1)), "infeasible"),
        (QP(p=np.zeros(1), G=np.array([[1.0], [-1.0]]), h=np.array([0.1, -0.1])), "solved"),
        (QP(p=np.zeros(1), G=np.array([[1.0], [-1.0]]), h=np.array([1e-17, -2e-17])), "infeasible"),
    ],
)
def test_exact_verdicts(qp: QP, status: str) -> None:
    assert exact.solve(qp).status == status


def test_random_programs_meet_the_optimality_conditions_exactly() -> None:
    for index in range(60):
        for qp in draw_case(5, index, NAMES[index % 20])[0].samples:
            truth = Truth(qp, np.ones(qp.n), 0)
            if truth.answer.status == "solved":
                a, rows = truth.answer, exact.constraints(qp)
                left = exact.quadratic(qp) @ a.z + exact.rational(qp.p) + rows.R.T @ a.y + rows.E.T @ a.nu
                slack = rows.r - rows.R @ a.z
                assert not left.any()
                assert (rows.E @ a.z == rows.e).all()
                assert (slack >= 0).all()
                assert (a.y >= 0).all()
                assert not (slack * a.y).any()


def test_slopes_and_spreads() -> None:
    kink = QP(p=np.array([0.0]), Q=np.eye(1), lb=np.zeros(1))  # z = max(-p, 0) at p = 0
    answer, one = exact.solve(kink), np.ones(1)
    assert exact.slope(kink, {"p": one}, one, answer) == 0
    assert exact.slope(kink, {"p": one}, one, answer, -exact.STEP) == -1
    edge = QP(p=np.zeros(2), Q=np.ones((2, 2)), lb=np.zeros(2), ub=np.ones(2), A=np.ones((1, 2)), b=np.ones(1))
    assert exact.spread(edge, exact.solve(edge), np.array([1.0, 0.0])) == 1
    assert exact.spread(edge, exact.solve(edge), np.array([1.0, 1.0])) == 0
    assert exact.spread(QP(p=np.zeros(1)), exact.solve(QP(p=np.zeros(1))), one) == math.inf


# The judge


def found(
    z: list[float], gradient: list[float] | None = None, good: bool | None = None, status: str = "solved"
) -> Found:
    return Found(status, np.array(z), 0.0, good, (), {} if gradient is None else {"p": np.array(gradient)})


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (found([1.0, -1.0]), Outcome.RIGHT),
        (found([1.0, -1.001]), Outcome.WRONG_SOLUTION),
        (found([np.nan, -1.0]), Outcome.WRONG_SOLUTION),
        (found([np.nan, np.nan], status="infeasible"), Outcome.FALSE_REFUSAL),
        (found([1.0, -1.0], [0.0, -1.0], True), Outcome.RIGHT),
        (found([1.0, -1.0], [0.0, -1.001], True), Outcome.WRONG_GRADIENT),
        (found([1.0, -1.0], [0.0, -1.001], False), Outcome.FLAGGED),
        (found([1.0, -1.0], [0.0, -1.0], False), Outcome.FALSE_ALARM),
    ],
)
def test_the_judge(answer: Found, outcome: Outcome) -> None:
    truth = Truth(BOX, np.ones(2), 0)
    assert judge(answer, truth, ["p"], truth.direction(["p"], 1), False).outcome is outcome


def test_a_kink_must_be_flagged() -> None:
    truth = Truth(replace(BOX, p=np.array([-1.0, 1.0])), np.ones(2), 0)  # the bound is active with a zero multiplier
    for good, outcome in ((True, Outcome.WRONG_GRADIENT), (False, Outcome.FLAGGED)):
        answer = found([1.0, -1.0], [0.0, -1.0], good)
        assert judge(answer, truth, ["p"], truth.direction(["p"], 1), False).outcome is outcome


@pytest.mark.parametrize(("gradient", "outcome"), [(-1.0, Outcome.RIGHT), (-1.001, Outcome.WRONG_GRADIENT)])
def test_the_edge_of_what_has_a_solution_is_judged_from_within(gradient: float, outcome: Outcome) -> None:
    truth = Truth(replace(BOX, G=np.zeros((1, 2)), h=np.zeros(1)), np.ones(2), 0)  # 0 <= h: h must not decrease
    answer = replace(
        found([1.0, -1.0], [0.0, gradient], True), gradient={"p": np.array([0.0, gradient]), "h": np.zeros(1)}
    )
    assert None in truth.sides(truth.direction(["p", "h"], 1))
    assert judge(answer, truth, ["p", "h"], truth.direction(["p", "h"], 1), False).outcome is outcome
    doubted = replace(answer, good=False)
    assert judge(doubted, truth, ["p", "h"], truth.direction(["p", "h"], 1), False).outcome is Outcome.FLAGGED


@pytest.mark.parametrize(("gap", "outcome"), [(2e-8, Outcome.UNJUDGED), (2e-6, Outcome.WRONG_SOLUTION)])
def test_how_far_a_point_may_be_from_feasible(gap: float, outcome: Outcome) -> None:
    """-x + 2y <= -6 - gap, 3x + y = 4, x <= 2: y must be -2 and less; the zero bound has no terms to measure by."""
    qp = QP(
        p=np.zeros(3),
        G=np.array([[-1.0, 2.0, -4.0]]),
        h=np.array([-6.0 - gap]),
        A=np.array([[1.5, 0.5, 1.25]]),
        b=np.array([2.0]),
        ub=np.array([2.0, -1.0, 0.0]),
    )
    truth = Truth(qp, np.ones(3), 0)
    assert truth.answer.status == "infeasible"
    assert exact.nearly_feasible(qp, gap, np.array([2.0, -2.0, 0.0]))
    assert not exact.nearly_feasible(qp, 1e-2 * gap, np.array([2.0, -2.0, 0.0]))
    point = found([2.0, -2.0 - gap / 3, gap / 24])
    assert judge(point, truth, ["p"], truth.direction(["p"], 1), False).outcome is outcome


@pytest.mark.parametrize(
    ("gap", "bound", "cost", "outcome"),
    [
        (1e-16, 1.0, 0.5, Outcome.UNJUDGED),
        (1e-7, 1.0, 0.5, Outcome.WRONG_SOLUTION),
        (1e-16, 1e-10, 0.5, Outcome.WRONG_SOLUTION),  # the costs pull far, but the bounds are near
        (1e-16, 1.0, 1e-10, Outcome.WRONG_SOLUTION),
    ],
)
def test_a_point_of_zero_is_as_large_as_the_costs_and_bounds(
    gap: float, bound: float, cost: float, outcome: Outcome
) -> None:
    """-bound <= x <= 0 and 1e4 x >= 1e4 gap."""
    G, h = np.array([[-1.0], [1.0], [-1e4]]), np.array([bound, 0.0, -1e4 * gap])
    truth = Truth(QP(p=np.array([cost]), Q=np.array([[2.0]]), G=G, h=h), np.ones(1), 0)
    assert truth.answer.status == "infeasible"
    assert judge(found([0.0]), truth, ["p"], truth.direction(["p"], 1), False).outcome is outcome


@pytest.mark.parametrize("good", [False, True])
def test_coefficients_of_dependent_equalities_must_be_flagged(good: bool) -> None:
    """Whether or not their right-hand sides, or bounds that coincide, move too."""
    qp = QP(
        p=np.ones(2), Q=np.eye(2), A=np.array([[1.0, 0.0], [2.0, 0.0]]), b=np.array([1.0, 2.0]),
        G=np.array([[0.0, 1.0]]), h=np.array([0.0]), lower=np.array([0.0]),
    )  # fmt: skip
    truth = Truth(qp, np.ones(2), 0)
    for wanted in (["A"], ["A", "b"], ["A", "h"], ["A", "b", "h"]):
        direction = truth.direction(wanted, 1)
        answer = replace(
            found([1.0, 0.0]), good=good, gradient={name: np.zeros_like(d) for name, d in direction.items()}
        )
        expected = Outcome.WRONG_GRADIENT if good else Outcome.FLAGGED
        assert judge(answer, truth, wanted, direction, False).outcome is expected
    direction = truth.direction(["h"], 1)
    answer = replace(found([1.0, 0.0]), good=good, gradient={"h": np.zeros(1)})
    assert not judge(answer, truth, ["h"], direction, False).outcome.wrong


@pytest.mark.parametrize(("force", "outcome"), [(1e-5, Outcome.RIGHT), (10.0, Outcome.WRONG_SOLUTION)])
def test_multipliers_of_an_excused_point(force: float, outcome: Outcome) -> None:
    """Forces of 1e6 x balance each other to 1e-10 at the exact point; they are small at another one."""
    Q = 1e6 * np.array([[1.0, 1.0], [1.0, 1.0 + 1e-15]])
    truth = Truth(QP(p=np.array([1e-10, 0.0]), Q=Q, lb=np.array([-100.0, -100.0])), np.ones(2), 0)
    point = replace(found([0.0, 0.0]), duals=[np.zeros(0), np.zeros(0), np.array([force, 0.0])])
    assert judge(point, truth, ["p"], truth.direction(["p"], 1), False).outcome is outcome


def test_a_tie_is_seen_whichever_way_rounding_broke_it() -> None:
    """Costs parallel to the equality but for rounding: one end of the line is as good as the other."""
    A = np.array([[-0.024725311577169087, -0.44701082975002343]])
    for sign in (1.0, -1.0):
        p = sign * np.array([-0.020902864179704852, -0.3779045061559432])
        qp = QP(p=p, G=np.array([[0.0, 1.0], [2.0, -1.0]]), h=np.array([2e7, 8e12]), A=A, b=np.zeros(1))
        for seed in range(20):
            assert Truth(qp, np.ones(2), seed).moves(EXCUSE) > 1e11


def test_multipliers_without_costs_are_rounding() -> None:
    qp = QP(
        p=np.zeros(1), Q=np.zeros((1, 1)), G=np.ones((1, 1)), h=np.array([4.0]), A=-np.ones((1, 1)), b=np.array([-2.0])
    )
    truth = Truth(qp, np.ones(1), 0)
    for size, outcome in ((1e-17, Outcome.RIGHT), (1e-3, Outcome.WRONG_SOLUTION)):
        answer = replace(found([2.0]), duals=[np.array([size]), np.zeros(1), np.zeros(1)])
        assert judge(answer, truth, ["p"], truth.direction(["p"], 1), False).outcome is outcome


def test_costs_move_by_their_own_size() -> None:
    """Two rows that differ by rounding hold z, with multipliers of 1e16: a derivative of 1e-17 in p counts as zero."""
    G = np.array([[1.0, 1.0], [-1.0, np.nextafter(-1.0, 0.0)]])
    truth = Truth(QP(p=np.array([0.0, -4.0]), Q=np.eye(2), G=G, h=np.array([2.0, -2.0])), np.ones(2), 0)
    assert truth.answer.y.max() > 1e16
    along = truth.direction(["p"], 1)
    assert np.abs(along["p"]).max() <= 4
    for size, outcome in ((1e-17, Outcome.RIGHT), (1e-3, Outcome.WRONG_GRADIENT)):
        answer = found(truth.z.tolist(), [size, -size], True)
        assert judge(answer, truth, ["p"], along, False).outcome is outcome


@pytest.mark.parametrize(("gap", "outcome"), [(2.0**-54, Outcome.UNJUDGED), (2.0**-50, Outcome.WRONG_GRADIENT)])
def test_a_jump_between_equal_numbers_is_no_jump(gap: float, outcome: Outcome) -> None:
    """-gap <= x - 1 <= 0: without costs every such x is a solution, and for a small gap all are the same number."""
    one, free = np.array([np.inf, 1.0]), np.array([-np.inf, 1.0])  # the second variable is 1
    G, h = np.array([[1.0, 0.0], [-1.0, -gap]]), np.array([1.0, -1.0])
    truth = Truth(QP(p=np.zeros(2), G=G, h=h, lb=free, ub=one), np.array([1.0, 0.0]), 0)
    answer = replace(found([1.0, 1.0], [0.0, 0.0], True), gradient={"p": np.zeros(2)})
    assert judge(answer, truth, ["p"], {"p": np.array([1.0, 0.0])}, False).outcome is outcome


def test_rows_that_rounding_separates_excuse_one_point_only() -> None:
    """x + y = 1 as two rows, unbounded along it; once rounding makes a wedge of them, its solution is far away."""
    rows = np.array([[1.0, 1.0], [-1.0, -1.0]])
    truth = Truth(QP(p=np.array([1.0, 0.0]), G=rows, h=np.array([1.0, -1.0])), np.ones(2), 0)
    found = Found("solved", np.array([0.5, 0.5]))
    assert judge(found, truth, [], {}, single=False).outcome is Outcome.WRONG_SOLUTION


def test_a_failure_is_shrunk_and_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    case, _ = draw_case(0, 0, "ordinary")

    def wrong(route: Route, samples: list[QP], cs: object, directions: object) -> list[Found]:
        return [found([9.0] * qp.n) for qp in samples]

    monkeypatch.setattr("fuzz.run.run", wrong)
    route = Route(solver="PIQP", alone=True)
    verdict = case.verdicts(route)[0]
    small = shrink.shrink(case, route, verdict.outcome)
    (qp,) = small[0].samples
    assert (qp.n, small[1]) == (1, Route())
    text = shrink.snippet(small, verdict, 0, 0, "ordinary")
    space: dict[str, object] = {}
    exec(text, space)
    with pytest.raises(AssertionError):
        space["test_ordinary_0"]()  # type: ignore[operator]


# Families of CVXPY problems


def test_catalogue_follows_the_rules() -> None:
    for name in FAMILIES:
        family = build(name)
        assert family.problem.is_dgp(dpp=True) if family.gp else family.problem.is_dcp(dpp=True), name
    assert len(FAMILIES) >= 40


@pytest.mark.parametrize(("last", "outcome"), [(20.0, Outcome.WRONG_GRADIENT), (0.4, Outcome.UNJUDGED)])
def test_a_kink_is_seen_by_both_solvers_with_both_steps(last: float, outcome: Outcome) -> None:
    """Curvature in the large steps and noise in a small one may look alike."""
    x, slopes = np.ones(1), (-655.2, -657.5, -655.2, -655.1)
    known = families.Known(x, x, slopes, (19.7, 20.1, 19.7, last))
    answer = families.FoundHere("solved", x, np.array([-655.1]), True, ())
    assert families.judge(answer, known).outcome is outcome


@pytest.mark.filterwarnings("ignore")  # solvers warn about accuracy
@pytest.mark.parametrize("kind", families.NAMES)
def test_families(kind: str) -> None:
    """One batch of each: nothing is wrong without a warning."""
    for _, way, verdicts in families.play(SEED, 0, kind):
        assert not [f"{way}: {v}" for v in verdicts if v.outcome.wrong]


# The slice

SEED = 15


@pytest.mark.parametrize("kind", NAMES)
def test_slice(kind: str) -> None:
    """One batch of each kind through its routes: nothing is wrong without a warning."""
    for _, route, verdicts in play(SEED, 0, kind):
        assert not [f"{route}: {v}" for v in verdicts if v.outcome.wrong]


def test_equal_seeds_give_equal_cases() -> None:
    one, other = (draw_case(3, 7, "mixed") for _ in range(2))
    assert one[1] == other[1]
    for a, b in zip(one[0].samples, other[0].samples, strict=True):
        np.testing.assert_equal(a.blocks, b.blocks)
    assert isinstance(one[0], Case)


def test_several_processes_share_the_work(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fuzz", "--workers", "2", "--batches", "2", "--only", "no rows"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "no rows" in done.stdout
