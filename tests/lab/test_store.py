from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ffo.lab.jobs import Job
from ffo.lab.machine import this_machine
from ffo.lab.rows import COLUMNS, DONE, ROWS, Row, read_lines, read_machine, read_rows
from ffo.lab.runner.progress import bars
from ffo.lab.runner.schedule import hopeless, pending, skip
from ffo.lab.store import JobOutcome, Limits, Store

LIMITS = Limits(1000.0)
MakeJob = Callable[..., Job]


def test_a_row_survives_its_file(tmp_path: Path, tiny: MakeJob) -> None:
    row = tiny().row(train_loss=float("nan"), total_s=0.25, record="curve", epoch=1)
    with Store(tmp_path) as store:
        store.add(row)
        assert read_rows(tmp_path) == [replace(row, train_loss=None)]  # while the store is still open
    (entry,) = read_lines(tmp_path / ROWS)
    assert tuple(entry) == COLUMNS
    assert entry["train_loss"] is None


def test_a_line_cut_short_is_left_out(tmp_path: Path, tiny: MakeJob) -> None:
    line = tiny().row().as_json()
    (tmp_path / ROWS).write_text(f"{line}\n{line}\n{line[:40]}")
    assert len(read_rows(tmp_path)) == 2
    (tmp_path / ROWS).write_text(f"{line[:40]}\n{line}\n")
    with pytest.raises(json.JSONDecodeError):  # not an interruption: the file is broken
        read_rows(tmp_path)


def test_finished_jobs_are_not_pending(tmp_path: Path, tiny: MakeJob) -> None:
    jobs = [tiny(seed=k) for k in range(3)]
    with Store(tmp_path) as store:
        for job, status in zip(jobs[:2], ("ok", "failed"), strict=True):
            store.add(job.row(record="curve"))
            store.add(job.row(status=status))
            store.finish(job, LIMITS, JobOutcome(status, seconds=1.0))
        store.add(jobs[2].row(record="curve"))  # interrupted here
    with Store(tmp_path) as store:
        assert pending(jobs, store, LIMITS) == [jobs[2]]
        assert [(row.seed, row.record) for row in read_rows(tmp_path)] == [
            (0, "curve"),
            (0, "result"),
            (1, "curve"),
            (1, "result"),
        ]


def test_what_failed_is_tried_again_under_looser_limits(tmp_path: Path, tiny: MakeJob) -> None:
    job = tiny(time_limit=5.0)
    with Store(tmp_path) as store:
        store.add(job.failed("time limit"))
        store.finish(job, LIMITS, JobOutcome("failed", "time limit"))
        assert store.is_done(replace(job, time_limit=4.0), LIMITS)
        assert not store.is_done(replace(job, time_limit=6.0), LIMITS)
        assert store.is_done(job, Limits(2000.0)), "more memory does not make it faster"
        store.finish(job, LIMITS, JobOutcome("failed", "memory limit: more than 1.0 GB"))
        assert store.is_done(replace(job, time_limit=6.0), LIMITS)
        assert store.is_done(job, Limits(1100.0)), "a little more memory is no reason to repeat what takes long"
        assert not store.is_done(job, Limits(2000.0))
        store.finish(job, LIMITS, JobOutcome("failed", "RuntimeError: it broke"))
        assert pending([replace(job, time_limit=6.0)], store, LIMITS)
        assert read_rows(tmp_path) == []
        assert list(read_lines(tmp_path / DONE)) == []


def test_keys_tell_jobs_apart_and_know_nothing_of_limits(tiny: MakeJob) -> None:
    job = tiny()
    assert job.key == tiny(time_limit=1.0, budget=0.1, after="x").key
    others = [tiny(seed=1), tiny(method="FFOCP"), tiny(batch=4), tiny(epochs=3), tiny(processes=2)]
    assert len({job.key, *(other.key for other in others)}) == 6


def test_what_met_a_limit_is_not_tried_in_a_harder_case(tmp_path: Path, tiny: MakeJob) -> None:
    easy = tiny()
    hard = tiny(seed=1, after=easy.key)
    expected = {
        JobOutcome("ok"): "",
        JobOutcome("failed", "time limit: longer than 5 s"): "not tried",
        JobOutcome("failed", "RuntimeError: it broke"): "",
        JobOutcome("skipped", "not installed: x"): "not installed",
    }
    for outcome, beginning in expected.items():
        with Store(tmp_path) as store:
            assert hopeless(hard, store) == "" or store.outcome(easy.key) is not None
            store.finish(easy, LIMITS, outcome)
            found = hopeless(hard, store)
            assert found.startswith(beginning)
            assert bool(found) == bool(beginning)


def test_what_takes_long_is_not_repeated(tmp_path: Path, tiny: MakeJob) -> None:
    easy = tiny()
    again = tiny(seed=1, after=easy.key, repeat_limit=2.0)
    with Store(tmp_path) as store:
        store.finish(easy, LIMITS, JobOutcome("ok", seconds=1.9))
        assert hopeless(again, store) == ""
        store.finish(easy, LIMITS, JobOutcome("ok", seconds=2.1))
        assert hopeless(again, store) == "not repeated: another seed took 2.1 s"
        assert hopeless(replace(again, repeat_limit=math.inf), store) == ""


def test_the_machine_keeps_the_date_of_the_first_run(tmp_path: Path) -> None:
    first = replace(this_machine("quick", [0, 1], ["dfl"], ["FFOCP"], 2), date="2020-01-01T00:00:00+00:00")
    with Store(tmp_path) as store:
        store.describe(first)
        store.describe(this_machine("quick", [0], ["dfl"], ["FFOCP"], 1))
    found = read_machine(tmp_path)
    assert found.command.startswith("ffo lab")
    assert found.date == first.date
    assert found.threads == 1
    assert found.cores >= 1
    assert {"ffo", "torch", "numpy", "cvxpy"} <= set(found.packages)


def test_rows_document_every_field() -> None:
    assert Row.__doc__ is not None
    described = Row.__doc__.replace(",", " ").replace(":", " ").split()
    assert set(COLUMNS) <= set(described)


def test_what_is_not_tried_inherits_the_bound_of_the_easier_case(tmp_path: Path, tiny: MakeJob) -> None:
    easy = tiny()
    with Store(tmp_path) as store, bars([easy], Console(quiet=True)) as shown:
        store.finish(easy, LIMITS, JobOutcome("failed", "time limit: longer than 5 s", 6.0, 5.5, 4.5))
        hard = tiny(seed=1, after=easy.key)
        shown.left.remaining.append(hard)
        skip(hard, hopeless(hard, store), store, LIMITS, shown)
        assert store.outcome(hard.key) == JobOutcome("skipped", hopeless(hard, store), 0.0, 5.5, 4.5)
    (row,) = read_rows(tmp_path)
    assert (row.status, row.elapsed_s, row.at_least_s) == ("skipped", 5.5, 4.5)
