"""Claims beyond speed and accuracy, the opening picture and its sentence, and the table of features."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.report.synthetic import MACHINE_OF_THE_ROWS, synthetic_rows

from ffo.lab.baselines import BASELINES
from ffo.lab.report.bilevel import bilevel_claims
from ffo.lab.report.claims import claims, exponent
from ffo.lab.report.figures.opening import opening
from ffo.lab.report.looks import looks
from ffo.lab.report.page import BY_FAR, RIGHT
from ffo.lab.report.results import Results, distinct
from ffo.lab.report.tables import features_table
from ffo.lab.report.verdicts import ClaimVerdict, verdicts
from ffo.lab.rows import Row

PAPERS_OWN, GROWTH, AMORTISED, INSENSITIVE, UNSTABLE, STATIONARY, LOGARITHMIC = range(7)


def results(rows: list[Row]) -> Results:
    return Results(Path(), tuple(rows), MACHINE_OF_THE_ROWS)


def all_claims(rows: list[Row]) -> list[ClaimVerdict]:
    return [*claims(results(rows)), *bilevel_claims(results(rows))]


def test_a_whole_run_reaches_every_claim() -> None:
    assert [verdict.state for verdict in all_claims(synthetic_rows())] == ["reached"] * 7


def test_without_rows_nothing_is_claimed() -> None:
    assert {verdict.state for verdict in all_claims([])} == {"not measured"}


@pytest.mark.parametrize(
    ("missed", "where", "values"),
    [
        (PAPERS_OWN, lambda r: r.method == "FFOCP (paper)" and r.experiment == "scaling_socp", {"cosine": 0.9998}),
        (GROWTH, lambda r: r.method == "FFOCP" and r.experiment == "scaling_qp" and r.d_y == 1000, {"total_s": 9.0}),
        (AMORTISED, lambda r: r.method == "FFOQP" and r.experiment == "batch" and r.batch == 256, {"total_s": 9.0}),
        (INSENSITIVE, lambda r: r.backward_tolerance == 1e-3 and r.method == "FFOCP (paper)", {"cosine": 0.999}),
        (UNSTABLE, lambda r: r.tolerance == 1e-3 and r.method == "LPGD", {"cosine": 0.9999}),
        (STATIONARY, lambda r: r.experiment == "bilevel" and r.epsilon == 0.25, {"calls": 10**6}),
        (STATIONARY, lambda r: r.experiment == "bilevel" and r.epsilon == 0.25, {"calls": None}),
        (STATIONARY, lambda r: r.experiment == "bilevel" and r.epsilon == 0.25, {"distance": 0.3}),
        (LOGARITHMIC, lambda r: r.method == "Algorithm 1" and r.tolerance == 1e-13, {"calls": 10**6}),
    ],
    ids="inexact, superlinear, no gain from batches, sensitive, LPGD stable, steep, unreached, false, costly".split(
        ", "
    ),
)
def test_each_claim_can_be_missed(missed: int, where: Callable[[Row], bool], values: dict[str, Any]) -> None:
    rows = [replace(row, **values) if where(row) else row for row in synthetic_rows()]
    found = all_claims(rows)
    assert found[missed].state == "not reached"
    assert {each.state for k, each in enumerate(found) if k != missed} == {"reached"}


def test_exponents_are_fitted_seed_by_seed() -> None:
    def row(seed: int, d_y: int, power: float) -> Row:
        return Row("scaling_qp", "qp", "FFOCP", "conic", seed, d_y=d_y, batch=32, total_s=1e-3 * d_y**power)

    rows = [row(seed, d_y, power) for seed, power in ((0, 0.5), (1, 0.9)) for d_y in (100, 200, 800)]
    found = exponent(rows)
    assert found is not None
    assert (found.low, found.median, found.high) == pytest.approx((0.5, 0.7, 0.9))
    assert exponent(rows[:1]) is None


def test_losses_that_move_with_the_tolerance_are_a_miss() -> None:
    rows = [
        replace(row, train_loss=-5.0)
        if row.backward_tolerance == 1e-3 and row.method == "FFOCP (paper)" and row.task == "qp"
        else row
        for row in synthetic_rows()
    ]
    assert claims(results(rows))[INSENSITIVE].state == "not reached"


def opened(rows: list[Row]) -> Any:
    found = verdicts(results(rows))
    return opening(results(rows), looks(distinct(rows, "method")), found[BY_FAR], found[RIGHT])


def test_the_opening_shows_three_tasks_and_marks_what_is_wrong() -> None:
    found = opened(synthetic_rows())
    assert [panel.title.split(",")[0] for panel in found.panels] == [
        "Decision-focused QP",
        "Sudoku 9×9",
        "Decision-focused SOCP",
    ]
    for panel in found.panels:
        assert "LPGD ✗" in panel.svg
        assert "FFOCP (paper)" in panel.svg
    assert "QPTH" not in found.panels[2].svg
    assert "our defaults are faster than every layer with a right gradient" in found.sentence
    assert "gradients are right everywhere" in found.sentence
    assert "missed" not in found.sentence


def test_the_sentence_names_what_was_missed_and_what_was_not_measured() -> None:
    slow = [
        replace(row, total_s=0.2) if (row.method, row.task, row.d_y) == ("Moreau (direct)", "qp", 800) else row
        for row in synthetic_rows()
    ]
    assert "The target of 3× is missed on the QP." in opened(slow).sentence
    one = [row for row in synthetic_rows() if row.experiment == "scaling_qp"]
    assert "Not measured: the dense QP, the SOCP and Sudoku 9×9." in opened(one).sentence
    assert opened([]).sentence == "Not decided by this run: the paper's sizes were not timed."
    assert opened([]).panels == ()


def test_features_are_those_of_table_1() -> None:
    """As the paper has them; of this package, also the ways that factorize."""
    rows = [Row("dfl", "qp", name, each.family, 0) for name, each in BASELINES.items()]
    cells = {row[0].text: "".join(cell.text for cell in row[1:]) for row in features_table(results(rows)).rows}
    table_1 = {"CvxpyLayer": "✓✗✗✓", "QPTH": "✗✗✗✓", "Alt-Diff": "✗✗✗✓", "LPGD": "✓✓✓✗", "BPQP": "✓✗✗✓", "dQP": "✗✗✓✓"}
    for name, features in {**table_1, "FFOCP (paper)": "✓✓✓✗", "FFOCP": "✓✗✓✓"}.items():
        assert cells[name] == features, name
