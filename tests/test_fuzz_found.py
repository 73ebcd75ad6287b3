"""Failures found by the fuzzer, reduced to small cases: regression tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from fuzz import families
from fuzz.exact import QP
from fuzz.judge import Outcome
from fuzz.routes import Route
from fuzz.run import Case, play
from numpy import array, inf


@dataclass(frozen=True)
class Found:
    """A program, and the routes on which it went wrong."""

    qp: QP
    routes: tuple[Route, ...] = (Route(),)


FOUND = {
    # raw errors
    "equalities alone": Found(QP(p=array([1.0, 2.0]), A=array([[1.0, 2.0]]), b=array([1.0]))),
    "a batch of sparse zeros": Found(QP(p=array([1.0]), G=array([[0.0]]), h=array([0.0])), (Route("sparse"),)),
    "a smoothed batch of sparse zeros": Found(
        QP(p=array([1.0]), Q=array([[1.0]]), G=array([[0.0]]), h=array([1.0])),
        (Route("sparse", wanted=("G",), smoothed=True),),
    ),
    "the matrix of two-sided rows": Found(
        QP(p=array([1.0]), Q=array([[1.0]]), G=array([[2.0], [1.0]]), h=array([4.0, 4.0]), lower=array([-1.0, -inf])),
        (Route(wanted=("p", "G")),),
    ),
    # with little curvature, a null vector had the rounding errors of a large solution
    "two sides that meet, flat costs": Found(
        QP(
            p=array([0.0002, -0.005]),
            Q=array([[3e-07, -1e-07], [-1e-07, 2e-07]]),
            G=array([[-1.0, 1.0]]),
            h=array([-4.5625]),
            lower=array([-4.5625]),
        ),
        (Route(wanted=("lower",)),),
    ),
    # a loss gradient with one large entry excused errors in all others, by MINRES
    "a vertex in other units": Found(
        QP(
            p=array([6e-04, 6e07]),
            Q=array([[6.461050361394882e-09, 816.0], [816.0, 182518930210816.0]]),
            G=array(
                [[-2.288818359375e-05, 7340032.0], [-2.288818359375e-05, -7340032.0], [-4.57763671875e-05, 1048576.0]]
            ),
            h=array([2.0, 0.0, 4.0]),
        ),
        (Route(backward="iterative", wanted=("Q",)),),
    ),
    # a residual of rounding, by MINRES, is a large error where two rows are nearly one
    "two rows at an angle of 3e-7": Found(
        QP(
            p=array([-1.0, 1.0]),
            Q=array([[2.25, -2.25], [-2.25, 2.25]]),
            G=array([[-6.014960437951461, 24.059841751805845], [0.04019480515853018, -0.16077942893205407]]),
            h=array([19.548621423342247, -0.13063337713763978]),
        ),
        (Route(backward="iterative", wanted=("p",)),),
    ),
    # a variable that costs nothing may be anywhere: the loss sees it, but had a large entry in other units beside it
    "a free variable in other units": Found(
        QP(p=array([3e7, 7e4, 0.0, 4e11]), lb=array([4.0, 0.0, -0.03125, 0.0])),
        (Route(backward="iterative", wanted=("p",)), Route(backward="iterative", derivative="forward")),
    ),
    # x diverges, and with it the sizes by which stationarity was judged
    "a flat direction": Found(QP(p=array([4.0, -1.0]), Q=np.diag([4.0, 0.0]))),
    "a flat direction off the axes": Found(
        QP(p=array([5.0, -1.0]), Q=array([[2.25, 0.375], [0.375, 0.0625]])),
        (Route(), Route(solver="INTERIOR"), Route(solver="PIQP")),
    ),
    "a flat direction, followed to 1e11": Found(
        QP(p=array([-0.5, 0.5]), Q=array([[0.5625, 0.1875], [0.1875, 0.0625]])),
        (Route(), Route(solver="INTERIOR")),
    ),
    # one large column excused all rows
    "contradiction, scaled columns": Found(
        QP(
            p=np.zeros(2),
            G=array([[7e5, 1e-6], [-1e6, 1e-6], [1e6, 1e-6]]),
            h=array([1.0, 0.0, 4.0]),
            lower=array([-1.0, 0.0, 3.0]),
        ),
        (Route(), Route(solver="PIQP")),
    ),
    # the multiplier of an empty row diverges
    "a distant empty row": Found(
        QP(p=array([1.0]), G=array([[-3e7], [0.0], [-1.0]]), h=array([-2e7, 2e-4, 1e13])),
        (Route(), Route(solver="INTERIOR")),
    ),
    "a distant empty row, bounded": Found(
        QP(p=array([-6.0]), Q=array([[2.0]]), G=array([[0.0], [0.0]]), h=array([0.0625, 1e9]), ub=array([2.25])),
        (Route("array", "INTERIOR", derivative="none"), Route(solver="INTERIOR")),
    ),
    # one distant constraint of a problem given by functions excused all others
    "a distant row, functions": Found(
        QP(p=array([-10.0]), Q=array([[10.0]]), G=array([[-1.0], [1.0], [0.0]]), h=array([-3.0, 2.0, 2e13])),
        (Route("function"),),
    ),
    "a contradiction beside a distant row, functions": Found(
        QP(p=array([-5.0]), Q=array([[1.0]]), G=array([[0.0], [2.0]]), h=array([-2.0, 4e13])), (Route("function"),)
    ),
    # more active rows than variables, none of them weakly active: dependent, though no pivot is small
    "six rows meet in five dimensions": Found(
        QP(
            p=array([10.0, -20.0, -10.0, -10.0, -20.0]),
            Q=array(
                [
                    [2.25, -2.25, -1.25, -2.0, -1.5],
                    [-2.25, 6.75, 3.0, 1.25, 5.0],
                    [-1.25, 3.0, 4.25, 0.0, 3.5],
                    [-2.0, 1.25, 0.0, 5.0, 3.0],
                    [-1.5, 5.0, 3.5, 3.0, 11.0],
                ]
            ),
            G=array(
                [
                    [-1.0, 1.25, -0.5, 0.25, 0.75],
                    [-1.0, 2.0, 2.0, 1.25, -2.0],
                    [-2.0, -0.75, 0.5, 2.0, 1.5],
                    [-1.75, 0.75, 1.5, 1.5, 1.25],
                    [1.0, -1.0, -1.0, 0.5, 1.5],
                    [-1.0, 1.0, 1.0, -0.5, -1.5],
                ]
            ),
            h=array([3.625, 2.125, 7.4375, 5.125, 0.125, 0.875]),
            A=array([[-1.75, 1.0, 1.0, 0.5, -1.25], [1.75, 0.75, 1.75, -1.5, 0.25], [0.25, 1.25, 1.75, -0.5, -1.75]]),
            b=array([1.8125, -2.9375, -2.3125]),
        ),
        (Route(wanted=("b",)), Route(solver="CLARABEL", wanted=("b", "h"))),
    ),
    # one solver says that there is no solution, another has a coarse point
    "a small contradiction": Found(
        QP(
            p=array([-13.0, 5.0, 2.0]),
            Q=array([[5.0, -1.0, -1.0], [-1.0, 6.0, 4.0], [-1.0, 4.0, 9.0]]),
            G=array([[2.0, 0.0, -2.0], [-2.0, 0.0, 2.0]]),
            h=array([0.125, -0.1251]),
        )
    ),
    # two rows at a small angle and a third do not quite meet, but counted as a vertex
    "a wedge": Found(
        QP(
            p=array([0.002, -0.0005]),
            G=array(
                [
                    [-2177718.9503513612, -4355437.9007027224],
                    [-0.021735491604883209, 0.021735491604883209],
                    [190897.12379549269, -190897.13888609532],
                ]
            ),
            h=array([-3266578.4255270413, 0.027169364506104011, -238621.42360761913]),
        )
    ),
    # a point diverging along an unbounded direction counted as a solution after a Newton step
    "a flat direction, followed to 1e10": Found(
        QP(
            p=array([-15.467389022476667, -9.5026058851032, -0.7894286095593815, 6.8263584976301175]),
            Q=array(
                [
                    [6.3125, 2.0, 4.0625, -0.125],
                    [2.0, 5.5625, 0.375, -1.25],
                    [4.0625, 0.375, 3.875, -0.875],
                    [-0.125, -1.25, -0.875, 1.25],
                ]
            ),
            G=array([[-1.8, 0.27, 0.57, 0.39], [0.07, -0.5, -0.61, 0.84], [-0.11, 0.45, 0.32, -0.48]]),
            h=array([-0.01, 0.72, 1.6]),
        ),
        (Route(), Route(solver="INTERIOR", backward="iterative"), Route(solver="PROXQP")),
    ),
    # the terms of Qz, which cancel each other along the ray, buried the costs
    "costs that are rounding": Found(
        QP(
            p=array([3e-12, -1e-12, 2e-12]),
            Q=array(
                [
                    [6.5536e06, 1.00663296e09, 5.0331648e08],
                    [1.00663296e09, 1.54618822656e11, 7.7309411328e10],
                    [5.0331648e08, 7.7309411328e10, 3.8654705664e10],
                ]
            ),
            G=array([[-5000.0, 200000.0, -100000.0]]),
            h=array([60.0]),
        ),
        (Route(), Route(derivative="none"), Route("array", derivative="none"), Route(solver="CLARABEL")),
    ),
    # bounds hid that the units of two variables differ by 1e10, and the smaller costs counted as rounding
    "scaled columns with bounds": Found(
        QP(
            p=array([2e5, 2e-6]),
            Q=np.diag([6e9, 0.0]),
            G=array([[-2e4, -5e-7]]),
            h=array([4.0]),
            ub=array([-3e-5, 1e6]),
        ),
        (Route(), Route(derivative="none"), Route("array", derivative="none"), Route("cvxpy"), Route(solver="PIQP")),
    ),
    "scaled columns, bounds alone": Found(
        QP(
            p=array([2e5, 2e-6, -3e-7]),
            Q=np.diag([6e9, 0.0, 0.0]),
            lb=array([-1e-5, -1e6, -1e6]),
            ub=array([1.0, 1e6, 2e6]),
        ),
        (Route(), Route("array", derivative="none"), Route("cvxpy"), Route(solver="CLARABEL")),
    ),
    # a derivative that is zero had the size of the solver's tolerance
    # a fixed right-hand side that was nearly at right angles to the null vector did not show it
    "a vertex of four rows": Found(
        QP(
            p=array([-9.0, -1.0, 2.0]),
            Q=array([[2.25, 1.5, 0.0], [1.5, 1.0, 0.0], [0.0, 0.0, 0.0]]),
            G=array([[-0.5, 1.25, -1.5], [2.0, 1.75, -1.0], [1.0, -1.0, 1.5], [-1.0, -0.5, 2.0], [-1.0, -1.5, 0.0]]),
            h=array([-0.875, 3.875, 4.5, 1.75, -2.75]),
            A=array([[1.25, -1.25, -0.25], [0.5, 0.0, 0.5]]),
            b=array([1.625, 1.5]),
        ),
        (Route(wanted=("A",)),),
    ),
    # 0 <= -1e-12 was met within the tolerance
    "a row of zeros that no point satisfies": Found(
        QP(
            p=array([-6.0, -2.0]),
            Q=array([[4.0, 1.0], [1.0, 3.0]]),
            G=array([[3.0, -4.0], [0.0, 0.0]]),
            h=array([0.1, -1e-12]),
        ),
    ),
    "a bound, differentiated by solves": Found(
        QP(p=array([-7.625]), Q=array([[4.25]]), ub=array([1.5])), (Route(solver="QOCO", backward="resolve"),)
    ),
}


@pytest.mark.parametrize("seed", range(4))
def test_six_rows_in_other_units(seed: int) -> None:
    """Columns 1e10 apart in scale: MINRES must find that the rows depend on each other."""
    qp, d = FOUND["six rows meet in five dimensions"].qp, 2.0 ** np.random.default_rng(seed).integers(-17, 18, 5)
    assert qp.Q is not None
    assert qp.G is not None
    assert qp.A is not None
    qp = replace(qp, p=qp.p * d, Q=d[:, None] * qp.Q * d, G=qp.G * d, A=qp.A * d)
    for wanted in (("b",), ("h",)):
        (verdict,) = Case([qp], [1 / d]).verdicts(Route(backward="iterative", wanted=wanted))
        assert not verdict.outcome.wrong, verdict


#: batches, by kind, seed and number
REPLAYED = {
    # x and the multipliers of both bounds of a row diverged together, and their terms excused the rest
    ("distant rows", 42, 229),
    ("distant rows, linear", 51, 102),
    # active rows with zero multipliers seemed to determine a solution that is not unique
    ("vertex", 51, 5),
    # the error of a solution along a direction of little curvature hid an active row with a zero multiplier
    ("weak, singular", 61, 160),
    # a loss of multipliers where costs choose among solutions
    ("distant rows, linear", 51, 132),
    # opposite multipliers of 1e12 cancelled each other, and excused stationarity
    ("distant rows, linear", 71, 792),
    # a loss gradient with one large entry excused errors in all others
    ("scaled all", 71, 563),
    # opposite rows at a distance of 1e-10 both counted as active
    ("contradiction", 101, 411),
    # rows of functions that depend on each other, whose coefficients are parameters
    ("dependent equalities", 101, 244),
    ("dependent equalities", 101, 3520),
    # the residual of a re-solve was small, its error was not: two rows at an angle of 1e-5
    ("large forces", 71, 253),
    # functions: the Gram matrix of two rows at an angle of 1e-6 gave their multipliers to four digits only
    ("large forces", 404, 487),
    # three lines of the plane that do not quite meet in a point
    ("large forces, scaled", 101, 3140),
    # opposite rows at an angle of 1e-6, more of them active than there are variables: another sample's right-hand sides
    # changed the units, and rows that contradict each other by 1e-8 passed as a solution
    ("large forces, scaled", 20261117, 644),
    # bounds of 1e-12 in scaled units, beside variables of 1, held to rounding of the latter only
    ("scaled all", 20261118, 485),
    # a bound of zero beside variables of 5e4 and 3e10, held to rounding of the latter only
    ("mixed", 31, 101),
    # a multiplier of 1e-8, where it is zero, at a vertex that was remembered
    ("weak, singular", 20261120, 3514),
    # functions: bounds that contradict each other by 1e-9
    ("equal bounds", 20261120, 3926),
    # conjugate gradients drifted off the active rows, across which the curvature is large
    ("scaled columns", 20261120, 872),
    # the fuzzer's judge: without any costs multipliers are rounding, so is 1e-17 times a direction of 1e16; smoothed
    # multipliers are those of other sides
    ("singular", 101, 2264),
    ("pairs of rows", 101, 2270),
    ("stiff", 202, 252),
    # infinite costs of one sample set the units of all
    ("mixed", 20261210, 12041),
    # in the units of a scaled program, costs that do not balance were rounding, and so was an indefinite Q
    ("mixed", 20261210, 16643),
    ("scaled all", 20261210, 3527),
    # rows with right-hand sides of 1e11, never active, set the unit of a variable: its costs were rounding in it
    ("mixed", 20261219, 653),
    # one of four such answers was withdrawn, but not its presolve
    ("large forces, scaled", 20261211, 5012),
    # other coefficients of two opposite rows leave no solution, though the loss does not see them
    ("mixed", 20261210, 7985),
    # four rows in three dimensions, two of them at a small angle, counted as independent
    ("large forces", 20261208, 3139),
    # the judge: ties that rounding breaks the same way three times, an error of 12 times three random changes,
    # multipliers of 1e-20 without costs, equalities that are independent by rounding alone
    ("distant rows, linear", 20261206, 2820),
    ("large forces", 20261210, 877),
    ("mixed", 20261210, 1589),
    ("dependent equalities", 20261208, 2662),
    # and a slack of 2e-10 at a bound of zero, beside variables of 2, that was not zero
    ("pairs, linear", 20261218, 1803),
    # a jump by less than the distance of two doubles; a solution of 7e-15, smoothed by a radius of 5e-11
    ("vertex", 20261301, 4607),
    ("scaled costs", 20261301, 8361),
    # x <= 0 and 1e4 x >= 1e-12: a violation of 1e-16, measured by a point of zero; a point that is excused by the
    # forces at the exact one, whose own forces are smaller
    ("contradiction", 20261401, 2423),
    ("scaled all", 20261401, 19057),
    # two rows whose bounds coincide, one of which moves up, the other one down: no solution on either side
    ("uneven forces, linear", 20261403, 1780),
    # unbounded, but bounded after a change of the last bit of its rows, two of which are at an angle of 1e-9
    ("large forces, scaled", 20261404, 582),
    # a factorization without room for it: `iterative`, and neither active rows nor curvature
    ("vertex", 20261501, 725),
    # forward mode: a variable at its bound moved by 1e-14 of what another one did
    ("scaled all", 20261910, 1394),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "seed", "number"), sorted(REPLAYED))
def test_replayed(kind: str, seed: int, number: int) -> None:
    for _, route, verdicts in play(seed, number, kind):
        assert not [f"{route}: {v}" for v in verdicts if v.outcome.wrong]


#: batches of families, by seed and number, whose correct gradients were flagged
DOUBTED = {
    # a row at a vertex has a multiplier that others could have
    "shortest_path": (21, 1),
    # null vectors of multipliers by MINRES had rounding errors in the variables
    "quantile_loss": (21, 1),
}


@pytest.mark.filterwarnings("ignore")  # solvers warn about accuracy
@pytest.mark.parametrize("name", DOUBTED)
def test_right_and_not_in_doubt(name: str) -> None:
    """The accuracy of the other solvers depends on the processor. That nothing is flagged must not."""
    for _, way, verdicts in families.play(*DOUBTED[name], name):
        unjudged = [v for v in verdicts if v.outcome is Outcome.UNJUDGED and not v.note.endswith(families.FLAGGED)]
        assert not [f"{way}: {v}" for v in verdicts if v.outcome is not Outcome.RIGHT and v not in unjudged]
        assert len(unjudged) < len(verdicts)


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    found = FOUND[name]
    case = Case([found.qp] * 2, [np.ones(found.qp.n)] * 2)
    for route in found.routes:
        assert not [f"{route}: {v}" for v in case.verdicts(route) if v.outcome.wrong or v.outcome.value == "coarse"]
