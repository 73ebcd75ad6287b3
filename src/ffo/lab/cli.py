"""The command line: `ffo lab`, `ffo lab run`, `ffo lab report DIR`, `ffo lab list`."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.table import Table

from ffo.kernels.pool import cpus
from ffo.lab.baselines import BASELINES
from ffo.lab.baselines.base import CUDA
from ffo.lab.experiments import CATALOGUE, PRESETS, Course, Preset, plan
from ffo.lab.experiments.estimate import estimate
from ffo.lab.experiments.presets import as_the_authors
from ffo.lab.jobs import Job
from ffo.lab.machine import this_machine
from ffo.lab.rows import EXPERIMENTS
from ffo.lab.runner.local import run_here
from ffo.lab.runner.progress import bars, duration
from ffo.lab.runner.schedule import pending
from ffo.lab.store import Limits, Store
from ffo.lab.tasks import make_task

app = typer.Typer(help="ffo: differentiable convex optimization layers.", no_args_is_help=True)
lab = typer.Typer(help="Run the paper's experiments against every system it names, and write a report.")
app.add_typer(lab, name="lab")

RESULTS = Path("ffo-lab")
INTERRUPTED = 130


@app.callback()
def _ffo() -> None:
    """Differentiable convex optimization layers with a fully first-order backward pass."""


def _names(text: str, known: list[str], what: str) -> list[str]:
    """Parse a comma-separated list of known names; empty: all."""
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    for name in chosen:
        if name not in known:
            raise typer.BadParameter(f"no {what} {name!r}; available: {', '.join(known)}")
    return chosen or known


def _device(name: str) -> str:
    if name != "cpu" and not re.fullmatch(r"cuda(:\d+)?", name):
        raise typer.BadParameter(f"no device {name!r}; available: cpu, cuda, cuda:N")
    return name


def _check_jobs(at_once: int, ray: str) -> None:
    if at_once and ray:
        raise typer.BadParameter("--jobs is for this machine alone: on a Ray cluster, --cpus-per-job sets how many run")
    if not 0 <= at_once <= cpus():
        raise typer.BadParameter(f"--jobs {at_once}: there are {cpus()} cores, and every job needs one of its own")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise typer.BadParameter(f"expected numbers separated by commas, not {text!r}") from None


def _adjusted(preset: Preset, seeds: str, sizes: str, d_y: int | None, adam_eps: float | None) -> Preset:
    changes: dict[str, Any] = {}
    if seeds:
        changes["seeds"] = changes["ablation_seeds"] = _numbers(seeds)
        changes["bilevel"] = replace(preset.bilevel, seeds=_numbers(seeds))
    if sizes:
        changes |= dict.fromkeys(("sizes", "memory_sizes", "similarity_sizes"), _numbers(sizes))
    if d_y is not None:
        changes["trained"] = (d_y,)
    chosen = replace(preset, **changes)
    if adam_eps is None:
        return chosen
    boards = {size: _with_eps(course, adam_eps) for size, course in chosen.boards.items()}
    decision, ablation, lpgd = (_with_eps(each, adam_eps) for each in (chosen.decision, chosen.ablation, chosen.lpgd))
    return replace(chosen, boards=boards, decision=decision, ablation=ablation, lpgd=lpgd)


def _with_eps(course: Course, eps: float) -> Course:
    return replace(course, sizes=replace(course.sizes, adam_eps=eps))


@lab.callback(invoke_without_command=True)
def _default(context: typer.Context) -> None:
    """Without a command: run the quick preset, then write the report."""
    if context.invoked_subcommand is None:
        run()
        report(RESULTS)


@lab.command()
def run(
    preset: Annotated[
        str, typer.Option(help="quick: six minutes on two idle cores; standard: two hours; paper: two weeks.")
    ] = "quick",
    out: Annotated[Path, typer.Option(help="Results folder; an interrupted run in it is resumed.")] = RESULTS,
    experiments: Annotated[str, typer.Option(help="Names separated by commas; default: all (`ffo lab list`).")] = "",
    methods: Annotated[str, typer.Option(help="Names separated by commas; default: all (`ffo lab list`).")] = "",
    seeds: Annotated[str, typer.Option(help="Seeds separated by commas.")] = "",
    sizes: Annotated[str, typer.Option(help="Dimensions of the scaling, memory and similarity experiments.")] = "",
    d_y: Annotated[int | None, typer.Option(help="Dimension of the trained QP and SOCP tasks.")] = None,
    adam_eps: Annotated[
        float | None, typer.Option(help="Adam's epsilon in every training run; default: torch's, 1e-8.")
    ] = None,
    setting: Annotated[
        str, typer.Option(help="paper: tasks as in the paper's text; authors: as in its authors' public code.")
    ] = "paper",
    time_limit: Annotated[float | None, typer.Option(help="Seconds for one job.")] = None,
    memory_limit: Annotated[
        float | None, typer.Option(help="Gigabytes for one job; default: 3/4 of the free memory.")
    ] = None,
    threads: Annotated[int, typer.Option(help="OpenMP and BLAS threads per job.")] = 1,
    at_once: Annotated[
        int,
        typer.Option(
            "--jobs",
            help="Jobs at a time, timed ones too, each on cores of its own; default: timed ones one at a time.",
        ),
    ] = 0,
    device: Annotated[
        str, typer.Option(help="Device of the methods that run on one: cuda, cuda:1; cpu leaves them out.")
    ] = CUDA,
    ddp: Annotated[int, typer.Option(help="Processes per training run (DistributedDataParallel).")] = 1,
    ray: Annotated[str, typer.Option(help="Address of a Ray cluster: auto, local, or ray://host:port.")] = "",
    cpus_per_job: Annotated[float, typer.Option(help="Cores that Ray reserves for a job.")] = 1,
) -> None:
    """Run experiments; jobs finished by an earlier run in the same folder are not repeated."""
    (name,) = _names(preset, list(PRESETS), "preset")[:1]
    (whose,) = _names(setting, ["paper", "authors"], "setting")[:1]
    basis = as_the_authors(PRESETS[name]) if whose == "authors" else PRESETS[name]
    chosen = _adjusted(basis, seeds, sizes, d_y, adam_eps)
    wanted = _names(experiments, list(CATALOGUE), "experiment")
    contenders = _names(methods, list(BASELINES), "method")
    jobs = plan(chosen, wanted, contenders, ddp, time_limit, _device(device))
    _check_jobs(at_once, ray)
    limits = Limits(memory_limit * 2**10 if memory_limit else 0.75 * psutil.virtual_memory().available / 2**20)
    console = Console()
    with Store(out) as store:
        planned = Counter(job.experiment for job in plan(chosen, list(CATALOGUE), list(BASELINES), device=device))
        machine = this_machine(name, chosen.seeds, wanted, contenders, threads, whose, at_once)
        try:
            store.describe(replace(machine, planned=dict(planned)))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        left = pending(jobs, store, limits)
        expected = duration(estimate(left, at_once or cpus(), at_once or 1))
        console.print(f"{len(left)} of {len(jobs)} jobs to run, about {expected}; results in {out}", highlight=False)
        try:
            _run(left, store, limits, console, threads, at_once, ray, cpus_per_job)
        except KeyboardInterrupt:
            console.print(f"Interrupted. Results so far are in {out}; the same command resumes the run.")
            raise typer.Exit(INTERRUPTED) from None


def _run(
    jobs: list[Job],
    store: Store,
    limits: Limits,
    console: Console,
    threads: int,
    at_once: int,
    ray: str,
    cpus_per_job: float,
) -> None:
    if not ray:
        with bars(jobs, console, at_once or 1, at_once or cpus()) as shown:
            run_here(jobs, store, limits, shown, threads, at_once=at_once)
        return
    try:
        from ffo.lab.runner.cluster import run_on_ray
    except ImportError:
        raise typer.BadParameter("--ray needs the package ray: pip install 'ffo[ray]'") from None
    with bars(jobs, console, cpus(), cpus()) as shown:
        run_on_ray(jobs, store, limits, shown, threads, ray, cpus_per_job)


@lab.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Results folder.")] = RESULTS,
    publish: Annotated[
        Path | None, typer.Option(help="Write a page for a documentation site into this folder instead.")
    ] = None,
) -> None:
    """Write the report of a results folder."""
    from ffo.lab import report as written

    page = written.write_report(folder) if publish is None else written.publish(folder, publish)
    Console().print(f"Report: {page}", highlight=False)


@lab.command("list")
def show() -> None:
    """List the experiments and methods, and which of them can run here."""
    console = Console()
    table = Table("experiment", "what it shows", title="Experiments", title_justify="left")
    for name, text in EXPERIMENTS.items():
        table.add_row(name, text)
    console.print(table)
    table = Table("method", "takes", "here", title="Methods", title_justify="left")
    inner = make_task("qp", replace(PRESETS["quick"].decision.sizes, d_y=2)).inner
    for baseline in BASELINES.values():
        takes = "quadratic programs" if baseline.family == "qp" else "convex programs"
        table.add_row(baseline.name, takes, baseline.why_not(inner) or "yes")
    console.print(table)
