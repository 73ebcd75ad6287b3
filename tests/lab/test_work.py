"""What each kind of job leaves behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ffo.lab import work
from ffo.lab.baselines import BASELINES, Settings
from ffo.lab.experiments import CATALOGUE, PRESETS, plan
from ffo.lab.experiments.presets import Preset
from ffo.lab.jobs import Job
from ffo.lab.step import Clock, Step
from ffo.lab.tasks import Sizes
from ffo.lab.training import Trainer
from ffo.lab.work import rows_of

MakeJob = Callable[..., Job]


def test_training_leaves_a_curve_and_a_result(tiny: MakeJob) -> None:
    *curve, result = rows_of(tiny(epochs=3))
    assert [row.epoch for row in curve] == [1, 2, 3]
    assert {row.record for row in curve} == {"curve"}
    assert result.record == "result"
    assert result.status == "ok"
    assert (result.train_loss, result.test_loss) == (curve[-1].train_loss, curve[-1].test_loss)
    assert result.step == 6  # 16 training samples, 8 a step
    assert result.total_s is not None
    assert result.total_s > 0
    assert result.cosine == pytest.approx(1.0, abs=1e-9)
    assert {row.job for row in (*curve, result)} == {tiny(epochs=3).key}


@pytest.mark.parametrize("task", ["qp", "socp", "sudoku4"])
def test_training_learns(tiny: MakeJob, task: str) -> None:
    sizes = Sizes(d_y=6, samples=40, d_x=5, hidden=16, learning_rate=3e-2)
    rows = list(rows_of(tiny(task=task, method="FFOCP", sizes=sizes, epochs=6)))
    losses = [row.train_loss for row in rows if row.record == "curve" and row.train_loss is not None]
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.02 * abs(losses[0])


def test_exact_methods_learn_the_same(tiny: MakeJob) -> None:
    final = {}
    for method in ("FFOCP", "FFOQP", "dQP", "QPLayer"):
        sizes = Sizes(d_y=6, samples=40, d_x=5, hidden=16, learning_rate=3e-2)
        *_, result = rows_of(tiny(method=method, sizes=sizes, epochs=6))
        if result.status == "ok":
            final[method] = result.train_loss
    assert len(final) >= 3
    # Adam makes a whole step of a gradient that is zero but for rounding: they agree no better than this
    assert max(final.values()) == pytest.approx(min(final.values()), rel=1e-2)


def test_timing_stops_at_its_budget(tiny: MakeJob) -> None:
    (row,) = rows_of(tiny(kind="time", steps=3))
    assert row.status == "ok"
    assert row.l2 is not None
    assert row.l2 < 1e-9
    (row,) = rows_of(tiny(kind="time", steps=10**9, budget=0.0))
    assert row.status == "ok"


def test_similarity_compares_every_few_steps(tiny: MakeJob) -> None:
    *curve, result = rows_of(tiny(kind="similarity", method="FFOCP", steps=5, every=2))
    assert [row.step for row in curve] == [0, 2, 4]
    cosines = [row.cosine for row in curve if row.cosine is not None]
    assert result.cosine == min(cosines)
    assert min(cosines) > 0.9999


def test_memory_has_a_row_for_each_phase(tiny: MakeJob) -> None:
    *phases, result = rows_of(tiny(kind="memory", experiment="memory"))
    assert [row.phase for row in phases] == ["build", "forward", "backward"]
    peaks = [row.peak_mb for row in phases if row.peak_mb is not None]
    assert result.peak_mb == max(peaks)
    assert result.base_mb is not None
    assert min(peaks) >= 0.9 * result.base_mb > 50
    # Q, G, h, q and the gradient in q, in doubles
    assert result.data_mb == pytest.approx(8 * (36 + 13 * 6 + 13 + 2 * 8 * 6) / 2**20)


def test_failures_and_refusals_are_rows(tiny: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = rows_of(tiny(task="socp"))
    assert (row.status, "second-order" in row.reason) == ("skipped", True)
    (row,) = rows_of(tiny(settings=Settings(solver="NO_SUCH_SOLVER")))
    assert row.status == "failed"
    assert "NO_SUCH_SOLVER" in row.reason
    assert row.solver == "NO_SUCH_SOLVER"

    def slow(job: Job) -> list[object]:
        raise TimeoutError("longer than 1 s")

    monkeypatch.setitem(work.KINDS, "train", slow)  # type: ignore[arg-type]
    (row,) = rows_of(tiny())
    assert row.reason == "time limit: longer than 1 s"


def test_training_that_would_take_far_too_long_stops_after_a_step(tiny: MakeJob) -> None:
    (row,) = rows_of(tiny(epochs=10**7, time_limit=1.0))
    assert row.status == "failed"
    assert "steps would take" in row.reason


def test_the_first_step_does_not_count_in_medians() -> None:
    clock = Clock()
    for forward, backward in ((10.0, 10.0), (1.0, 2.0), (3.0, 1.0), (2.0, 3.0)):
        clock.add(Step(0.0, torch.zeros(1), {}, forward, backward))
    assert clock.medians() == {"forward_s": 2.0, "backward_s": 2.0, "total_s": 4.0}


def test_batches_of_an_epoch_are_whole_and_disjoint(tiny: MakeJob) -> None:
    trainer = Trainer.of(tiny(batch=5))
    batches = list(trainer.batches(1))
    assert [len(b) for b in batches] == [5, 5, 5]
    assert len(set(torch.cat(batches).tolist())) == 15
    assert torch.cat(batches).tolist() != torch.cat(list(trainer.batches(2))).tolist()


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_plans_cover_every_experiment_and_method(preset: Preset) -> None:
    jobs = plan(preset, list(CATALOGUE), list(BASELINES))
    assert len({job.key for job in jobs}) == len(jobs)
    assert {job.experiment for job in jobs} == set(CATALOGUE)
    for experiment in ("dfl", "sudoku", "socp"):
        assert {job.method for job in jobs if job.experiment == experiment} == set(BASELINES)
    assert 800 in {job.d_y for job in jobs if job.experiment == "scaling_qp"}
    assert {200, 1000} <= {job.d_y for job in jobs if job.experiment == "memory"}
    kinds = [job.fresh for job in jobs]
    assert kinds == sorted(kinds)
    known = {""}
    for job in jobs:  # what a job waits for comes before it
        assert job.after in known
        known.add(job.key)
