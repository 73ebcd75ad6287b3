"""Worker processes under limits, interruption and resumption, Ray and distributed training."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from ffo.kernels.pool import cpus
from ffo.lab.jobs import Job
from ffo.lab.rows import DONE, Row, read_lines, read_rows
from ffo.lab.runner import worker as worker_module
from ffo.lab.runner.local import run_here
from ffo.lab.runner.progress import TimeLeft, bars
from ffo.lab.runner.schedule import Ended, run_at_once
from ffo.lab.runner.worker import Worker
from ffo.lab.stopwatch import Stopwatch
from ffo.lab.store import JobOutcome, Limits, Store
from ffo.lab.tasks import TaskSizes
from ffo.lab.work import rows_of

MakeJob = Callable[..., Job]
PLENTY = Limits(8000.0)


def quiet() -> Console:
    return Console(quiet=True)


def test_one_worker_serves_many_jobs_under_limits(tmp_path: Path, tiny: MakeJob) -> None:
    worker = Worker(tmp_path / "log", threads=1)
    rows: list[Row] = []
    try:
        assert worker.run(tiny(), PLENTY, rows.append).status == "ok"
        assert [row.record for row in rows] == ["curve", "curve", "result"]
        process = worker.process
        assert process is not None

        slow = tiny(kind="time", steps=10**9, budget=1e9, time_limit=0.5)
        outcome = worker.run(slow, PLENTY, rows.append)
        assert (outcome.status, outcome.reason) == ("failed", "time limit: longer than 0.5 s")
        assert outcome.seconds >= 0.5
        assert worker.process is process, "a job that ends by itself leaves its process to the next"
        assert worker.run(tiny(seed=1), PLENTY, rows.append).status == "ok"

        outcome = worker.run(replace(slow, time_limit=60.0), Limits(10.0), rows.append)
        assert outcome.reason.startswith("memory limit")
        assert rows[-1].reason == outcome.reason
        assert not psutil.pid_exists(process.pid)

        outcome = worker.run(tiny(task="sudoku7"), PLENTY, rows.append)
        assert outcome.reason == "the process ended with exit code 1"
        assert worker.run(tiny(seed=2), PLENTY, rows.append).status == "ok"
    finally:
        worker.close()


SWALLOWS = """
import time
from ffo.lab.baselines import BASELINES
from dataclasses import replace

def make(inner, settings):
    calls = []
    def solve(values):
        calls.append(None)
        if len(calls) == 1:
            return values["q"] * 1.0
        try:
            end = time.process_time() + 60
            while time.process_time() < end:
                pass
        except:
            pass
        return values["q"] * 2.0
    return solve

BASELINES["FFOQP"] = replace(BASELINES["FFOQP"], make=make)
import sys
from multiprocessing.connection import Connection
from ffo.lab.runner.child import serve
serve(Connection(int(sys.argv[1])))
"""


def test_a_contender_that_swallows_its_time_limit_has_failed(
    tmp_path: Path, tiny: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bare `except` that then returns its last iterate: nothing after the limit counts."""
    monkeypatch.setattr(worker_module, "CHILD", ["-c", SWALLOWS])
    worker = Worker(tmp_path / "log", threads=1)
    rows: list[Row] = []
    try:
        outcome = worker.run(tiny(time_limit=0.5), PLENTY, rows.append)
    finally:
        worker.close()
    assert outcome.reason == "time limit: longer than 0.5 s"
    (row,) = rows
    assert (row.status, row.train_loss) == ("failed", None)
    assert row.total_s is not None  # of the first step, which was timed
    assert row.elapsed_s is not None
    assert row.elapsed_s >= 0.4


def test_a_run_that_is_ended_in_its_first_step_says_how_long_that_took(tmp_path: Path, tiny: MakeJob) -> None:
    worker = Worker(tmp_path / "log", threads=1)
    rows: list[Row] = []
    slow = tiny(method="Alt-Diff", sizes=TaskSizes(d_y=150, samples=80), batch=32, time_limit=1.0)
    try:
        outcome = worker.run(slow, PLENTY, rows.append)
    finally:
        worker.close()
    assert outcome.reason.startswith("time limit")
    assert rows[-1].build_s is not None
    assert rows[-1].total_s is None
    assert rows[-1].at_least_s is not None
    assert 0.5 < rows[-1].at_least_s <= rows[-1].elapsed_s  # type: ignore[operator]


def test_jobs_that_are_not_timed_run_side_by_side(tmp_path: Path, tiny: MakeJob) -> None:
    first = tiny(timed=False)
    jobs = [first, *(tiny(seed=k, timed=False, after=first.key) for k in (1, 2)), tiny(seed=3)]
    with Store(tmp_path) as store, bars(jobs, quiet(), at_once=2) as shown:
        run_here(jobs, store, PLENTY, shown, threads=1)
    rows = read_rows(tmp_path)
    assert {row.seed for row in rows if row.record == "result" and row.status == "ok"} == {0, 1, 2, 3}
    assert rows[0].seed == 3, "what is timed comes first, alone"
    assert all((row.total_s is None) == (row.seed != 3) for row in rows)


SAYS = """
import os, sys
from multiprocessing.connection import Connection
connection = Connection(int(sys.argv[1]))
connection.send("ready")
while True:
    job = connection.recv()
    connection.send("prepared")
    connection.send(job.row(reason=str(sorted(os.sched_getaffinity(0)))))
    connection.send(None)
"""


@pytest.mark.skipif(cpus() < 2, reason="needs two cores")
def test_timed_jobs_side_by_side_have_cores_of_their_own(
    tmp_path: Path, tiny: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "CHILD", ["-c", SAYS])
    jobs = [tiny(seed=k) for k in range(6)]
    with Store(tmp_path) as store, bars(jobs, quiet(), 2, 2) as shown:
        run_here(jobs, store, PLENTY, shown, threads=1, at_once=2)
    used = {row.reason for row in read_rows(tmp_path)}
    cores = sorted(os.sched_getaffinity(0))
    half = len(cores) // 2
    assert used == {str(cores[:half]), str(cores[half : 2 * half])}


def test_a_timed_job_has_the_device_to_itself(tmp_path: Path, tiny: MakeJob) -> None:
    """Of six jobs, three at a time: two timed ones on the device never meet, untimed ones may."""
    jobs = [tiny(seed=k, method="FFOQP (GPU)") for k in (0, 1)] + [tiny(seed=k) for k in (2, 3)]
    jobs += [tiny(seed=k, method="FFOQP (GPU)", timed=False) for k in (4, 5)]
    running: list[Job] = []
    met: set[frozenset[int]] = set()

    def submit(job: Job) -> int:
        running.append(job)
        met.add(frozenset(each.seed for each in running if each.method == "FFOQP (GPU)"))
        return job.seed

    def result(seed: int, job: Job) -> Ended:
        running.remove(job)
        return [], JobOutcome("ok")

    with Store(tmp_path) as store, bars(jobs, quiet()) as shown:
        run_at_once(jobs, store, PLENTY, shown, submit, min, result, most=3)
        assert all(store.outcome(job.key) for job in jobs)
    assert met == {frozenset(s) for s in ([0], [1], [4], [4, 5])}


def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    process = subprocess.Popen(command(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    waited = 0.0
    while not list(read_lines(tmp_path / DONE)) and waited < 120:
        time.sleep(0.1)
        waited += 0.1
    workers = psutil.Process(process.pid).children(recursive=True)
    assert workers
    process.kill()
    process.wait()
    assert not psutil.wait_procs(workers, timeout=20)[1]


def test_memory_is_measured_in_fresh_processes(tmp_path: Path, tiny: MakeJob) -> None:
    worker = Worker(tmp_path / "log", threads=1)
    rows: list[Row] = []
    try:
        worker.run(tiny(kind="memory", experiment="memory"), PLENTY, rows.append)
        assert rows[-1].status == "ok"
        assert worker.process is None
    finally:
        worker.close()


def test_jobs_run_in_order_and_hopeless_ones_leave_a_row(tmp_path: Path, tiny: MakeJob) -> None:
    first = tiny(kind="time", steps=10**9, budget=1e9, time_limit=0.3)
    jobs = [first, tiny(seed=1, after=first.key), tiny(seed=2)]
    with Store(tmp_path) as store, bars(jobs, quiet()) as shown:
        run_here(jobs, store, PLENTY, shown, threads=1)
    results = [row for row in read_rows(tmp_path) if row.record == "result"]
    assert [row.status for row in results] == ["failed", "skipped", "ok"]
    assert "easier case" in results[1].reason


def test_a_stopwatch_counts_what_was_worked() -> None:
    here = Stopwatch()
    other = Stopwatch(psutil.Process())
    time.sleep(0.3)
    assert here.seconds < 0.2
    assert other.seconds < 0.2
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    assert here.seconds >= 0.25
    assert other.seconds >= 0.2


def test_time_left(tiny: MakeJob) -> None:
    jobs = [tiny(seed=k) for k in range(3)] + [tiny(experiment="socp", seed=k) for k in range(2)]
    left = TimeLeft(jobs, at_once=2)
    assert left.estimate() is None
    left.finished(jobs[0], 2.0)
    assert left.estimate() == 8.0
    left.finished(jobs[3], 10.0)
    assert left.estimate() == 2 * 2.0 + 10.0
    left = TimeLeft([jobs[0], tiny(timed=False), tiny(timed=False, seed=5)], at_once=2)
    left.finished(jobs[0], 3.0)
    assert left.estimate() == 3.0


def command(out: Path, *more: str) -> list[str]:
    chosen = ["--experiments", "batch,solvers", "--methods", "FFOCP,FFOQP", "--time-limit", "30", "--threads", "1"]
    return [sys.executable, "-m", "ffo.lab", "run", "--out", str(out), *chosen, *more]


def test_an_interrupted_run_goes_on_where_it_was(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells ignore it in the background
    )
    waited = 0.0
    while len(list(read_lines(tmp_path / DONE))) < 2 and waited < 120:
        time.sleep(0.1)
        waited += 0.1
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "resumes the run" in said
    assert not any(worker.is_running() for worker in workers)
    done = [entry["job"] for entry in read_lines(tmp_path / DONE)]
    assert done
    before = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert all(json.loads(line) for line in before)

    again = subprocess.run(command(tmp_path), capture_output=True, text=True, timeout=300, check=True)
    finished = [entry["job"] for entry in read_lines(tmp_path / DONE)]
    assert len(finished) == len(set(finished))
    assert finished[: len(done)] == done
    assert f"{len(finished) - len(done)} of {len(finished)} jobs to run" in again.stdout
    results = [row.job for row in read_rows(tmp_path) if row.record == "result"]
    assert sorted(results) == sorted(finished)


def test_distributed_training_is_training(tiny: MakeJob) -> None:
    job = tiny(method="FFOQP", epochs=2)
    *_, alone = rows_of(job)
    *curve, shared = (row for row in rows_of(replace(job, processes=2)) if row.record != "progress")
    assert shared.status == "ok", shared.reason
    assert [row.epoch for row in curve] == [1, 2]
    assert shared.step == alone.step
    assert alone.train_loss is not None
    assert shared.train_loss == pytest.approx(alone.train_loss, rel=1e-9)
    assert shared.test_loss == pytest.approx(alone.test_loss, rel=1e-9)


def test_a_broken_training_process_is_a_row(tiny: MakeJob) -> None:
    from ffo.lab.baselines import Settings

    (row,) = rows_of(tiny(processes=2, settings=Settings(solver="NO_SUCH_SOLVER")))
    assert row.status == "failed"
    assert "NO_SUCH_SOLVER" in row.reason


def test_a_killed_training_process_ends_the_job_with_a_row(tmp_path: Path, tiny: MakeJob) -> None:
    job = tiny(processes=2, epochs=10**6, time_limit=300.0)
    rows = rows_of(job)
    assert next(rows).record == "progress"
    ranks = [process for process in psutil.Process().children() if "spawn_main" in " ".join(process.cmdline())]
    assert len(ranks) == 2
    ranks[1].kill()
    *_, last = rows
    assert last.status == "failed"
    assert not any(process.is_running() for process in ranks)


def busy_ray_workers(driver: psutil.Process) -> list[psutil.Process]:
    """Ray's workers that are running a job, which is a process of its own below them."""
    found = []
    for process in driver.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.cmdline()[:1] == ["ray::run_in_process"] and process.children():
                found.append(process)
    return found


def test_a_ray_sweep_takes_over_the_jobs_of_a_killed_worker(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed (extra test)")
    chosen = ["--experiments", "dfl,socp", "--methods", "FFOCP,FFOQP", "--seeds", "0", "--d-y", "8"]
    two_at_once = ["--ray", "local", "--cpus-per-job", str(cpus() / 2)]
    process = subprocess.Popen(
        [sys.executable, "-m", "ffo.lab", "run", "--out", str(tmp_path), "--time-limit", "60", *chosen, *two_at_once],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "RAY_worker_niceness": "0"},  # by default workers have the lowest priority
    )
    driver, until = psutil.Process(process.pid), time.monotonic() + 120
    while len(workers := busy_ray_workers(driver)) < 2 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    assert len(workers) == 2
    workers[0].kill()
    said, _ = process.communicate(timeout=180)
    assert process.returncode == 0, said
    rows = [row for row in read_rows(tmp_path) if row.record == "result"]
    done = {(row.experiment, row.method): (row.status, row.reason) for row in rows}
    assert len(rows) == len(done) == 4
    assert done.pop(("socp", "FFOQP"))[0] == "skipped"
    assert set(done.values()) == {("ok", "")}, "a killed worker is no failure of its job"
