"""The rows of each kind of job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

import pytest
import torch

from ffo.lab import training, work
from ffo.lab.baselines import BASELINES, Layer, Settings
from ffo.lab.bilevel.jobs import BilevelJob
from ffo.lab.experiments import CATALOGUE, PRESETS, plan
from ffo.lab.experiments.estimate import estimate, seconds_per_sample
from ffo.lab.experiments.presets import Preset
from ffo.lab.jobs import NOT_MEASURED, Job
from ffo.lab.rows import Row
from ffo.lab.step import Clock, Step
from ffo.lab.tasks import Inner, TaskSizes, make_task
from ffo.lab.training import Trainer
from ffo.lab.work import rows_of

MakeJob = Callable[..., Job]


def kept(job: Job) -> list[Row]:
    """The rows of a job that go into files."""
    return [row for row in rows_of(job) if row.record != "progress"]


def test_kernels_are_compiled_before_the_time_of_a_job(tiny: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a small step of the same method, once; other packages are not touched."""
    built = []

    def noted(inner: Inner, settings: Settings) -> Layer:
        built.append(inner.n)
        raise RuntimeError("a failure is the job's to report")

    for name in ("FFOQP", "dQP"):
        monkeypatch.setitem(BASELINES, name, replace(BASELINES[name], make=noted))
        work.warm_up.cache_clear()
        for seed in (0, 1):
            work.prepare(tiny(method=name, seed=seed))
    assert built == [20]


def test_training_leaves_a_curve_and_a_result(tiny: MakeJob) -> None:
    *curve, result = kept(tiny(epochs=3))
    assert [row.epoch for row in curve] == [1, 2, 3]
    assert {row.record for row in curve} == {"curve"}
    assert result.record == "result"
    assert result.status == "ok"
    assert (result.train_loss, result.test_loss) == (curve[-1].train_loss, curve[-1].test_loss)
    assert result.step == 6  # 16 training samples, 8 a step
    assert result.total_s is not None
    assert result.total_s > 0
    assert result.processor_s is not None
    assert result.processor_s > 0
    assert result.cosine == pytest.approx(1.0, abs=1e-9)
    assert result.solution is not None
    assert result.solution < 1e-9
    assert result.adam_eps == 1e-8
    assert {row.job for row in (*curve, result)} == {tiny(epochs=3).key}


@pytest.mark.parametrize("task", ["qp", "socp", "sudoku4"])
def test_training_learns(tiny: MakeJob, task: str) -> None:
    sizes = TaskSizes(d_y=6, samples=40, d_x=5, hidden=16, learning_rate=3e-2)
    rows = list(rows_of(tiny(task=task, method="FFOCP", sizes=sizes, epochs=6)))
    losses = [row.train_loss for row in rows if row.record == "curve" and row.train_loss is not None]
    assert len(losses) == 6
    assert losses[-1] < losses[0] - 0.02 * abs(losses[0])


def test_exact_methods_learn_the_same(tiny: MakeJob) -> None:
    final = {}
    for method in ("FFOCP", "FFOQP", "dQP", "QPLayer"):
        sizes = TaskSizes(d_y=6, samples=40, d_x=5, hidden=16, learning_rate=3e-2, adam_eps=1e-5)
        *_, result = rows_of(tiny(method=method, sizes=sizes, epochs=6))
        if result.status == "ok":
            final[method] = result.train_loss
    assert len(final) >= 3
    # Adam turns a gradient that is zero up to rounding into a full step: they agree no better than this
    assert max(final.values()) == pytest.approx(min(final.values()), rel=1e-2)


def test_timing_stops_at_its_budget(tiny: MakeJob) -> None:
    (row,) = kept(tiny(kind="time", steps=3))
    assert row.status == "ok"
    assert row.l2 is not None
    assert row.l2 < 1e-9
    (row,) = kept(tiny(kind="time", steps=10**9, budget=0.0))
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


def bilevel_job(experiment: str, task: str, label: str) -> BilevelJob:
    """The job of the quick preset, with less to do."""
    jobs = plan(PRESETS["quick"], [experiment], list(BASELINES))
    (job,) = (job for job in jobs if isinstance(job, BilevelJob) and (job.task, job.label) == (task, label))
    return job


@pytest.mark.parametrize("task", ["corners", "disc"])
def test_a_walk_has_a_row_for_each_epsilon(task: str) -> None:
    *curve, result = rows_of(replace(bilevel_job("bilevel", task, "minimize"), values=(0.5, 0.35)))
    assert [(row.epsilon, row.method, row.record) for row in curve] == [(e, "minimize", "curve") for e in (0.5, 0.35)]
    assert all(row.calls and row.distance is not None and row.distance <= row.epsilon for row in curve)
    assert (result.calls, result.d_y, result.batch) == (sum(row.calls or 0 for row in curve), None, None)
    assert result.family == ("conic" if task == "disc" else "qp")


def test_a_hypergradient_has_a_row_for_each_accuracy_and_perturbation() -> None:
    job = replace(bilevel_job("hypergradient", "ball", "Algorithm 1"), values=(1e-7, 1e-9), deltas=(1e-2,))
    *curve, result = rows_of(job)
    assert [(row.tolerance, row.delta) for row in curve] == [(1e-7, None), (1e-9, None), (1e-9, 1e-2)]
    errors = [row.l2 for row in curve if row.l2 is not None]
    assert errors[1] < min(errors[0], errors[2])
    assert max(errors) < 1e-2
    assert result.l2 == errors[1]
    *curve, result = rows_of(replace(bilevel_job("hypergradient", "ball", "penalty method"), values=(10.0,)))
    assert [row.epsilon for row in curve] == [0.1]
    assert result.status == "ok"


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
    built, first, row = rows_of(tiny(epochs=10**7, time_limit=1.0))
    assert row.status == "failed"
    assert row.reason.startswith("time limit: left out, would take about ")
    assert "the limit is 1 s" in row.reason
    assert (built.record, built.total_s, first.record) == ("progress", None, "progress")
    assert built.build_s is not None
    assert first.total_s is not None
    assert first.cosine == pytest.approx(1.0, abs=1e-9)


def test_training_that_would_take_too_long_stops_after_an_epoch(tiny: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "FIRST_STEPS", ())
    *_, epoch, row = rows_of(tiny(epochs=10**7, time_limit=1.0))
    assert (epoch.record, epoch.epoch) == ("curve", 1)
    assert row.status == "failed"
    assert row.reason.startswith("time limit: left out, would take about ")
    assert "(10000000 epochs, of which one took" in row.reason


def test_untimed_training_has_no_times(tiny: MakeJob) -> None:
    rows = list(rows_of(tiny(timed=False)))
    assert all(row.total_s is None and row.build_s is None for row in rows)
    assert rows[-1].cosine == pytest.approx(1.0, abs=1e-9)


def test_a_solution_that_goes_wrong_on_the_way_is_noticed(tiny: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right at the first step, 10 % too large at the last, as from a solver that gives up."""
    right = BASELINES["FFOQP"].build
    calls = []

    def spoilt(inner: Inner, settings: Settings) -> Layer:
        layer = right(inner, settings)

        def solve(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
            calls.append(None)
            return layer(values) * (1.0 if len(calls) == 1 else 1.1)

        return solve

    monkeypatch.setitem(BASELINES, "FFOQP", replace(BASELINES["FFOQP"], make=spoilt))
    result = kept(tiny())[-1]
    assert result.cosine == pytest.approx(1.0, abs=1e-9)
    assert result.solution is not None
    assert 0.01 < result.solution < 0.11


@pytest.mark.filterwarnings("ignore")  # where bounds and budget are dependent, FFOQP says so
def test_epsilon_decides_what_becomes_of_rounding(tiny: MakeJob) -> None:
    """Where the exact gradient is zero, Adam turns the error of a solver into a full step, unless epsilon is larger."""
    sizes = TaskSizes(d_y=20, samples=80, d_x=64, hidden=32, learning_rate=1e-2)
    reason = BASELINES["QPLayer"].why_not(make_task("qp", sizes).inner)
    if reason:
        pytest.skip(reason)
    apart = {}
    for eps in (1e-8, 1e-5):
        job = tiny(sizes=replace(sizes, adam_eps=eps), batch=32, epochs=15)
        ours, theirs = (kept(replace(job, method=method))[-1].test_loss for method in ("FFOQP", "QPLayer"))
        assert ours is not None
        assert theirs is not None
        apart[eps] = abs(ours / theirs - 1)
    assert apart[1e-5] < 1e-3
    assert apart[1e-5] < 0.1 * apart[1e-8]


def test_the_first_step_does_not_count_in_medians() -> None:
    clock = Clock()
    for forward, backward, busy in ((10.0, 10.0, 40.0), (1.0, 2.0, 6.0), (3.0, 1.0, 7.0), (2.0, 3.0, 8.0)):
        clock.add(Step({}, 0.0, torch.zeros(1), {}, forward, backward, busy))
    assert clock.medians() == {"forward_s": 2.0, "backward_s": 2.0, "total_s": 4.0, "processor_s": 7.0}


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
    for experiment in (
        "dfl",
        "sudoku",
        "socp",
        "dense",
        "scaling_qp",
        "scaling_socp",
        "scaling_dense",
        "scaling_sudoku",
    ):
        assert {job.method for job in jobs if job.experiment == experiment} == set(preset.swept or BASELINES)
    assert 800 in {job.d_y for job in jobs if job.experiment == "scaling_qp"}
    assert {200, 1000} <= {job.d_y for job in jobs if job.experiment == "memory"}
    kinds = [(not job.timed, job.fresh) for job in jobs]
    assert kinds == sorted(kinds)
    assert all(job.time_limit >= preset.time_limit for job in jobs)
    assert {job.time_limit for job in plan(preset, ["dfl", "batch"], ["FFOCP"], time_limit=7.0)} == {7.0}
    known = {""}
    for job in jobs:  # what a job waits for comes before it
        assert job.after in known
        known.add(job.key)


def test_keys_of_the_paper_s_setting_are_those_from_before_there_were_settings(tiny: MakeJob) -> None:
    job = tiny()
    assert job.key != tiny(sizes=replace(job.sizes, setting="authors")).key
    spec = {k: v for k, v in asdict(job).items() if k not in NOT_MEASURED}
    del spec["sizes"]["setting"]
    assert job.key == hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]


def test_clipping_scales_long_gradients(tiny: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer.of(tiny())
    trainer.step(next(trainer.batches(1)))
    norm = torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]).norm()
    other = Trainer.of(tiny())
    monkeypatch.setattr(other.task, "clip", 0.5 * norm.item())
    other.step(next(other.batches(1)))
    clipped = torch.cat([p.grad.flatten() for p in other.model.parameters() if p.grad is not None]).norm()
    assert clipped.item() == pytest.approx(0.5 * norm.item(), rel=1e-5)


def test_the_standard_preset_trains_and_times_the_papers_sizes() -> None:
    jobs = plan(PRESETS["standard"], ["dfl", "socp", "scaling_qp", "scaling_socp"], ["FFOCP"])
    for experiment in ("dfl", "socp", "scaling_qp", "scaling_socp"):
        mine = [job for job in jobs if job.experiment == experiment]
        assert {(job.d_y, job.seed) for job in mine} == {(d, s) for d in (200, 500, 800, 1000) for s in (0, 1, 2)}
        assert {job.epochs for job in mine if job.kind == "train"} <= {10}
    timed = {job.key: job for job in jobs if job.kind == "time"}
    first = [job for job in jobs if job.kind == "train" and job.after in timed]
    assert {(job.task, job.d_y, timed[job.after].task, timed[job.after].d_y) for job in first} == {
        ("qp", 200, "qp", 200),
        ("socp", 200, "socp", 200),
    }, "a model is trained only if a step of it could be timed"


def test_the_device_of_a_plan() -> None:
    def devices(device: str) -> dict[str, str | None]:
        jobs = plan(PRESETS["quick"], ["dfl", "memory"], list(BASELINES), device=device)
        return {job.method: job.settings.device for job in jobs}

    assert "QPTH (GPU)" not in devices("cpu")
    assert (devices("cuda")["QPTH (GPU)"], devices("cuda:1")["FFOQP (GPU)"]) == ("cuda", "cuda:1")
    assert devices("cuda:1")["QPTH"] is None


def test_the_estimate_knows_presets_limits_and_cores() -> None:
    everything = list(CATALOGUE), list(BASELINES)
    quick, paper = (plan(PRESETS[name], *everything) for name in ("quick", "paper"))
    assert 60 < estimate(quick, 2) < 600
    assert estimate(paper, 2) > 86_400
    assert 3600 < estimate(plan(PRESETS["standard"], *everything), 2) < 8 * 3600
    assert estimate(paper, 8, 8) < estimate(paper, 8) < estimate(paper, 2) < estimate(paper, 1)
    assert estimate(plan(PRESETS["paper"], ["dfl"], ["FFOCP"], time_limit=1.0), 2) < 10  # ten seeds, all refused
    assert seconds_per_sample("FFOCP iterative", "qp", 200) == pytest.approx(0.42e-3)
    growth = [seconds_per_sample("BPQP", "socp", d_y) for d_y in (20, 50, 100, 200, 500, 800, 1000)]
    assert growth == sorted(growth)


def test_a_larger_size_waits_for_the_first_seed_of_the_smaller() -> None:
    """Not for one that was not repeated: that says nothing about the larger size."""
    jobs = plan(PRESETS["quick"], ["scaling_qp"], ["BPQP"])
    key = {(job.d_y, job.seed): job.key for job in jobs}
    assert list(key) == [(d_y, seed) for d_y in (100, 200, 800) for seed in (0, 1)]
    before = [(100, 0), (100, 0), (200, 0), (200, 0), (800, 0)]
    assert [job.after for job in jobs] == ["", *(key[each] for each in before)]
