"""Verdicts and ratios from rows small enough to work out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab.report.synthetic import MACHINE_OF_THE_ROWS, synthetic_rows

from ffo.lab.report.results import Results, Spread
from ffo.lab.report.standings import Accuracy, headline_settings, standings
from ffo.lab.report.tables import Cell, accuracy_table, figures_table, ratio_tables, trouble_table
from ffo.lab.report.verdicts import ClaimVerdict, verdicts
from ffo.lab.rows import Row

FAST_CP, FAST_QP, GRADIENT, LOSS, MEMORY, BY_FAR = range(6)


def results(rows: Iterable[Row]) -> Results:
    return Results(Path(), tuple(rows), MACHINE_OF_THE_ROWS)


def result(method: str, family: str, total: float, seed: int = 0, **values: Any) -> Row:
    values = {
        "experiment": "dfl",
        "task": "qp",
        "d_y": 800,
        "batch": 32,
        "forward_s": total / 2,
        "backward_s": total / 2,
        "cosine": 1 - 1e-9,
        "l2": 1e-4,
        "train_loss": -10.0,
        "epoch": 5,
    } | values
    return Row(method=method, family=family, seed=seed, total_s=total, **values)


def check(verdict: ClaimVerdict, where: str = "Decision-focused QP, d_y = 800") -> tuple[str, str]:
    found = next(each for each in verdict.checks if each.where == where)
    return found.state, found.text


def test_a_whole_run_reaches_everything() -> None:
    assert [verdict.state for verdict in verdicts(results(synthetic_rows()))] == ["reached"] * 6


def changed(rows: list[Row], where: Callable[[Row], bool], **values: Any) -> list[Row]:
    return [replace(row, **values) if where(row) else row for row in rows]


@pytest.mark.parametrize(
    ("missed", "where", "values"),
    [
        (FAST_CP, lambda r: r.method == "FFOCP" and r.experiment == "socp" and r.total_s, {"total_s": 99.0}),
        (FAST_QP, lambda r: r.method == "FFOQP" and r.task == "sudoku9" and r.total_s, {"total_s": 999.0}),
        (GRADIENT, lambda r: r.method == "FFOQP" and r.experiment == "dfl" and r.seed == 1, {"cosine": 0.9998}),
        (LOSS, lambda r: r.method == "FFOCP" and r.experiment == "sudoku" and r.train_loss, {"train_loss": 1.0}),
        (MEMORY, lambda r: r.method == "FFOCP" and r.experiment == "memory" and r.d_y == 1000, {"peak_mb": 800.0}),
    ],
    ids=["FFOCP slow", "FFOQP slow", "gradient off", "loss off", "memory grows"],
)
def test_each_claim_can_be_missed(missed: int, where: Callable[[Row], bool], values: dict[str, Any]) -> None:
    """One miss in one place turns the headline, and what decided it is shown."""
    found = verdicts(results(changed(synthetic_rows(), where, **values)))
    assert found[missed].state == "not reached"
    assert found[missed].decisive.state == "not reached"
    others = {each.state for order, each in enumerate(found) if order not in (missed, FAST_QP, BY_FAR)}
    assert others == {"reached"}


def test_nearest_rival_and_its_ratio() -> None:
    """Ratios are paired by seed: 3/1, 4/2 and 8/2 have median 3; of unpaired medians 4/2 would be 2."""
    ours = [result("FFOCP", "conic", t, seed) for seed, t in enumerate((1.0, 2.0, 2.0))]
    near = [result("CvxpyLayer", "conic", t, seed) for seed, t in enumerate((3.0, 4.0, 8.0))]
    far = [result("BPQP", "conic", 50.0, seed) for seed in range(3)]
    state, text = check(verdicts(results([*ours, *near, *far]))[FAST_CP])
    assert state == "reached"
    assert "FFOCP 2.0 s per step; the nearest of 2 whose gradient is not wrong is CvxpyLayer" in text
    assert "3.0× as long (2.0–4.0)" in text


def test_a_fast_wrong_gradient_is_no_rival_but_is_named() -> None:
    rows = [
        result("FFOCP", "conic", 1.0),
        result("CvxpyLayer", "conic", 2.0),
        result("LPGD", "conic", 0.1, cosine=0.5),
        result("Mean", "conic", 0.1, l2=0.97),
    ]
    state, text = check(verdicts(results(rows))[FAST_CP])
    assert state == "reached"
    assert "LPGD is faster, its gradient wrong (cosine 0.500)" in text
    assert "Mean is faster, its gradient wrong (right direction, relative distance 0.970)" in text
    table = ratio_tables(results(rows))[0]
    cells = {row[0].text: row[1] for row in table.rows}
    assert cells["LPGD"] == Cell("0.10× ✗", "bad", mark="1")
    assert cells["Mean"] == Cell("0.10× ✗", "bad", mark="2")
    assert table.notes == ("wrong direction", "wrong length")
    assert cells["CvxpyLayer"] == Cell("2.0×", "good", "")


def test_a_right_and_faster_peer_is_a_miss() -> None:
    rows = [result("FFOQP", "qp", 1.0), result("dQP", "qp", 0.9)]
    state, text = check(verdicts(results(rows))[FAST_QP])
    assert state == "not reached"
    assert "dQP: 900 ms, 0.90× as long" in text
    assert ratio_tables(results(rows))[0].rows[0][1] == Cell("0.90×", "bad", "")


def test_families_do_not_mix() -> None:
    """A QP layer may be faster than FFOCP: it does not take every convex problem."""
    rows = [result("FFOCP", "conic", 1.0), result("CvxpyLayer", "conic", 2.0), result("dQP", "qp", 0.5)]
    assert check(verdicts(results(rows))[FAST_CP])[0] == "reached"


def test_without_peers_or_accuracy_nothing_is_claimed() -> None:
    alone = [result("FFOCP", "conic", 1.0)]
    assert check(verdicts(results(alone))[FAST_CP])[0] == "not measured"
    blind = [result("FFOCP", "conic", 1.0, cosine=None, l2=None), result("CvxpyLayer", "conic", 2.0)]
    assert check(verdicts(results(blind))[FAST_CP])[0] == "not measured"
    unjudged = [result("FFOCP", "conic", 1.0), result("CvxpyLayer", "conic", 0.5, cosine=None, l2=None)]
    state, text = check(verdicts(results(unjudged))[FAST_CP])
    assert state == "not measured"
    assert "CvxpyLayer, 0.50× as long, has no measured accuracy" in text
    rival = result("BPQP", "conic", 3.0)
    assert check(verdicts(results([*unjudged, rival]))[FAST_CP])[0] == "not measured"
    slow = replace(unjudged[1], total_s=9.0)
    assert check(verdicts(results([unjudged[0], slow, rival]))[FAST_CP])[0] == "reached"


@pytest.mark.parametrize(("status", "state"), [("failed", "not reached"), ("skipped", "not measured")])
def test_where_ours_gives_no_time(status: str, state: str) -> None:
    """One seed that failed is a miss, however fast the others were; what was never tried is no miss."""
    lost = replace(result("FFOCP", "conic", 1.0, 1), status=status, reason="killed", total_s=None, cosine=None)
    peer = result("CvxpyLayer", "conic", 2.0)
    assert check(verdicts(results([lost, peer]))[FAST_CP]) == (
        state,
        "FFOCP failed: killed" if status == "failed" else "killed",
    )
    assert check(verdicts(results([lost]))[FAST_CP])[0] == "not measured"
    others = [result("FFOCP", "conic", 1.0), peer]
    assert check(verdicts(results([*others, lost]))[FAST_CP])[0] == ("not reached" if status == "failed" else "reached")


def test_accuracy_of_both_is_needed() -> None:
    rows = [result("FFOCP", "conic", 1.0), result("FFOQP", "qp", 1.0, cosine=None, l2=None)]
    assert check(verdicts(results(rows))[GRADIENT])[0] == "not measured"
    wrong = [replace(rows[0], cosine=0.9), rows[1]]
    assert check(verdicts(results(wrong))[GRADIENT])[0] == "not reached"


def test_a_peer_that_did_not_run_is_named_with_its_reason() -> None:
    lost = replace(result("LPGD", "conic", 1.0), status="failed", reason="time limit of 9 s", total_s=None)
    rows = [result("FFOCP", "conic", 1.0), result("CvxpyLayer", "conic", 2.0), lost]
    assert "no time for LPGD: time limit of 9 s" in check(verdicts(results(rows))[FAST_CP])[1]
    ratios = ratio_tables(results(rows))[0]
    cells = {row[0].text: row[1] for row in ratios.rows}
    assert cells["LPGD"] == Cell("–", "muted", mark="1")
    assert ratios.notes == ("time limit of 9 s",)
    table = trouble_table(results(rows))
    assert table is not None
    assert [cell.text for cell in table.rows[0]][3:] == ["failed", "time limit of 9 s", "0"]


def test_a_run_that_was_timed_before_it_stopped_counts() -> None:
    """Its time is compared and its reason shown; its loss, after fewer epochs, is not."""
    stopped = replace(result("CvxpyLayer", "conic", 7.0, epoch=1), status="failed", reason="time limit of 9 s")
    rows = [result("FFOCP", "conic", 1.0), stopped]
    found = verdicts(results(rows))
    assert check(found[FAST_CP])[0] == "reached"
    assert check(found[LOSS])[0] == "not measured"
    (table,) = ratio_tables(results(rows))
    assert (table.rows[0][1], table.notes) == (Cell("7.0×", "good", mark="1"), ("time limit of 9 s",))


def test_settings_judged_and_settings_missing() -> None:
    """A quick run is judged at its own size, and the paper's size is named as not measured."""
    quick = [result("FFOCP", "conic", 1.0, d_y=100), result("CvxpyLayer", "conic", 2.0, d_y=100)]
    verdict = verdicts(results(quick))[FAST_CP]
    assert verdict.state == "not measured"
    assert verdict.count == "1 of 5 reached, 4 not measured"
    assert check(verdict, "Decision-focused QP, d_y = 100")[0] == "reached"
    assert check(verdict)[0] == "not measured"
    sweep = [replace(row, experiment="scaling_qp", d_y=800) for row in quick]
    assert check(verdicts(results([*quick, *sweep]))[FAST_CP])[0] == "reached"
    labels = [setting.label for setting in headline_settings(results([*quick, *sweep]))]
    assert labels == ["Decision-focused QP, d_y = 100", "Decision-focused QP, d_y = 800"]


@pytest.mark.parametrize(("loss", "state"), [(-9.95, "reached"), (-9.85, "not reached"), (-12.0, "reached")])
def test_losses_within_one_percent(loss: float, state: str) -> None:
    rows = [result("FFOCP", "conic", 1.0, train_loss=loss), result("QPTH", "qp", 2.0)]
    assert check(verdicts(results(rows))[LOSS])[0] == state


def test_losses_are_judged_where_models_were_trained() -> None:
    rows = [result("FFOCP", "conic", 1.0, d_y=50), result("QPTH", "qp", 2.0, d_y=50)]
    sweep = [replace(row, experiment="scaling_qp", d_y=800, train_loss=None) for row in rows]
    verdict = verdicts(results([*rows, *sweep]))[LOSS]
    assert {check.where: check.state for check in verdict.checks} == {
        "Decision-focused QP, d_y = 50": "reached",
        "Sudoku": "not measured",
        "Decision-focused SOCP": "not measured",
    }


def test_losses_are_compared_with_exact_methods_after_as_many_epochs() -> None:
    ours = result("FFOCP", "conic", 1.0, train_loss=-5.0)
    inexact = [result("LPGD (tight)", "conic", 2.0), result("QPTH", "qp", 2.0, cosine=0.9)]
    stopped = result("CvxpyLayer", "conic", 2.0, epoch=2)
    assert check(verdicts(results([ours, *inexact, stopped]))[LOSS])[0] == "not measured"


def phases(d_y: int, peak: float, data: float) -> list[Row]:
    names = ("build", "forward", "backward")
    base = Row("memory", "qp", "FFOCP", "conic", 0, d_y=d_y, record="phase", data_mb=data, base_mb=100.0)
    return [replace(base, phase=name, peak_mb=peak * part) for name, part in zip(names, (0.5, 1.0, 0.9), strict=True)]


@pytest.mark.parametrize(("peak", "state"), [(400.0, "not reached"), (349.0, "reached")])
def test_memory_growth_is_of_the_highest_phase_beyond_the_data(peak: float, state: str) -> None:
    """200 − 0 MB at the small size; with 50 MB of data, 1.5× is 350 MB."""
    found = verdicts(results([*phases(200, 200.0, 0.0), *phases(1000, peak, 50.0)]))[MEMORY]
    assert found.state == state
    assert f"200 MB at d_y = 200, {peak - 50:.0f} MB at d_y = 1000" in found.decisive.text


def test_memory_at_other_sizes_is_told_but_not_judged() -> None:
    found = verdicts(results([*phases(100, 200.0, 0.0), *phases(400, 210.0, 0.0)]))[MEMORY]
    assert found.state == "not measured"
    assert "200 MB at d_y = 100, 210 MB at d_y = 400" in found.decisive.text


def test_accuracy_is_the_worst_of_all_seeds() -> None:
    rows = [result("FFOCP", "conic", 1.0, seed, cosine=c, l2=d) for seed, (c, d) in enumerate([(1.0, 0.0), (0.9, 0.5)])]
    assert Accuracy.of(rows) == Accuracy(0.9, 0.5)
    assert Accuracy.of(rows).judgement == "wrong direction"
    assert Accuracy.of(rows[:1]).right
    assert Accuracy.of([replace(row, cosine=None) for row in rows]).judgement == "not measured"


def test_accuracy_table_puts_the_fastest_right_method_first() -> None:
    rows = [
        result("LPGD", "conic", 0.1, cosine=0.5),
        result("CvxpyLayer", "conic", 2.0),
        result("FFOCP", "conic", 1.0),
        replace(result("QPTH", "qp", 1.0), status="failed", reason="out of memory", total_s=None),
    ]
    setting = headline_settings(results(rows))[0]
    table = accuracy_table(setting, standings(results(rows), setting))
    assert [row[0].text for row in table.rows] == ["FFOCP", "CvxpyLayer", "LPGD", "QPTH"]
    assert table.rows[2][-1] == Cell("✗ wrong direction", "bad")
    assert (table.rows[3][1], table.notes) == (Cell("–", "muted", mark="1"), ("out of memory",))


def test_spread_leaves_out_what_is_missing() -> None:
    assert Spread.of([3.0, None, 1.0]) == Spread(2.0, 1.0, 3.0, 2)
    assert Spread.of([None]) is None


def test_a_peer_that_is_nearly_right_is_a_rival_and_ours_must_be_right() -> None:
    ours, close = result("FFOCP", "conic", 2.0), result("BPQP", "conic", 1.5, cosine=1 - 5e-4)
    state, text = check(verdicts(results([ours, close]))[FAST_CP])
    assert state == "not reached"
    assert "BPQP: 1.5 s" in text
    inexact = replace(ours, cosine=1 - 5e-4)
    state, text = check(verdicts(results([inexact, replace(close, total_s=9.0)]))[FAST_CP])
    assert (state, "not right" in text) == ("not reached", True)
    assert check(verdicts(results([inexact]))[GRADIENT])[0] == "not reached"


def test_a_wrong_solution_is_wrong_whatever_its_gradient() -> None:
    """And its loss, lower than what the problem allows, is no yardstick."""
    ours = result("FFOQP", "qp", 2.0)
    wrong = result("QPTH", "qp", 1.0, solution=0.4, train_loss=-70.0)
    right = result("dQP", "qp", 3.0, solution=1e-7)
    found = verdicts(results([ours, wrong, right]))
    state, text = check(found[FAST_QP])
    assert (state, "QPTH is faster, its solution wrong (off by 0.400)" in text) == ("reached", True)
    assert check(found[LOSS]) == ("reached", "largest gap of 1: FFOQP 0.00% against dQP")
    (table,) = (t for t in ratio_tables(results([ours, wrong, right])) if "FFOQP" in t.caption)
    assert Cell("0.50× ✗", "bad", mark="1") in next(row for row in table.rows if row[0].text == "QPTH")
    assert table.notes == ("wrong solution",)


def test_what_was_stopped_has_a_lower_bound() -> None:
    ours = [result("FFOCP", "conic", total, seed, build_s=0.5) for seed, total in ((0, 0.1), (1, 0.2))]
    stopped = result("Moreau (direct)", "conic", 1.0, status="failed", reason="time limit: longer than 5 s")
    stopped = replace(stopped, total_s=None, cosine=None, train_loss=None, build_s=1.0, elapsed_s=5.0, at_least_s=4.0)
    unbuilt = replace(stopped, method="CvxpyLayer", build_s=None, at_least_s=None, elapsed_s=7.0)
    skipped = replace(unbuilt, method="LPGD", status="skipped", reason="not tried: in an easier case, time limit")
    found = results([*ours, stopped, unbuilt, skipped])
    table = ratio_tables(found)[0]
    rows = {row[0].text: row[1] for row in table.rows}
    notes = {name: table.notes[int(cell.mark) - 1] for name, cell in rows.items() if cell.mark}
    assert (rows["Moreau (direct)"].text, rows["Moreau (direct)"].tone) == ("> 20×", "good")
    assert "in its first step" in notes["Moreau (direct)"]
    assert rows["CvxpyLayer"].text == rows["LPGD"].text == "> 10×"  # with building: 7 s over 0.5 + 0.2
    assert "built" in notes["CvxpyLayer"]
    text = check(verdicts(found)[FAST_CP])[1]
    assert "Moreau (direct) > 20×: time limit: longer than 5 s (in its first step)" in text


def test_the_figures_stand_in_one_table() -> None:
    found = verdicts(results(synthetic_rows()))
    table = figures_table(found)
    assert all(verdict.target in head for verdict, head in zip(found, table.header[1:], strict=True))
    assert len(table.rows) == len({check.where for verdict in found for check in verdict.checks})
    cells = [cell for row in table.rows for cell in row[1:] if cell.text]
    assert len(cells) == sum(len(verdict.checks) for verdict in found)
    assert all(cell.text.startswith("✓") and cell.tone == "good" for cell in cells)
