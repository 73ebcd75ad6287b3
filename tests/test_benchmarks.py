"""The parts of the benchmarks that can be wrong without failing."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
import pytest
import torch
from benchmarks import cores, families, forms, jax_layers, latency, lift, peers, problems, trust
from benchmarks.accuracy import Accuracy, compare, probes
from benchmarks.family_problems import FAMILIES
from benchmarks.screen import PlainScreen
from benchmarks.timing import Timing

from ffo.engine import Engine, Options


def test_there_are_sixteen_families() -> None:
    assert len({build(1).name for build in FAMILIES}) == 16


@pytest.mark.parametrize("build", FAMILIES, ids=lambda build: build.__name__)
def test_families_follow_the_rules_for_parametrised_programs(build) -> None:
    case = build(2)
    problem, parameters, output = case.parametrised()
    assert problem.is_dcp(dpp=True)
    assert {p.name() for p in parameters} == set(case.data(0))
    assert 6 <= output.size <= 100


@pytest.mark.parametrize("name", ["logistic", "entropy", "SDP", "robust least squares", "ReLU"])
def test_exact_references_solve_their_family(name: str) -> None:
    case = next(case for case in (build(1) for build in FAMILIES) if case.name == name)
    values = case.sample(case.data(0), 0)
    problem, output = case.concrete(values)
    problem.solve(solver="CLARABEL")
    np.testing.assert_allclose(case.exact(values), output.value, atol=1e-4)


def test_gradient_error_of_a_family() -> None:
    case = FAMILIES[0](2)
    assert compare("ffo", peers.ffo, case, probes(case, samples=1, directions=2)).error < 1e-7


def outcome(seconds: float, error: float) -> families.Outcome:
    ours, peer = Timing("ffo", total=1.0, best=1.0), Timing("peer", total=seconds, best=2 * seconds)
    accuracy = Accuracy("a", "ffo", error, 1e-9)
    return families.Outcome("a", 64, ours, peer, accuracy, accuracy)


def test_ratios_of_families() -> None:
    mean, least = families._figures(families.Goal(64, 20.0, 8.0), [outcome(10.0, 0.0), outcome(40.0, 0.0)])
    assert math.isclose(mean.value, 20.0)
    assert least.value == 10.0


def test_gradient_errors_count_beyond_the_uncertainty() -> None:
    assert outcome(1.0, 2e-9).excess == 0.0
    assert math.isclose(outcome(1.0, 1e-6).excess, 1e-6 - 3e-9)
    assert math.isnan(outcome(1.0, math.nan).excess)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity")
def test_processors_are_all_of_those_allowed() -> None:
    allowed = os.sched_getaffinity(0)
    assert sorted(cores.spread_cores()) == sorted(allowed)
    with cores._restricted(cores.spread_cores()[:1]):
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == allowed


def test_a_shortest_path_has_eight_edges() -> None:
    layer = peers.ffo(case := forms.shortest_path(batch=2))
    path = layer.forward(layer.tensors(case.data(0))).detach().numpy()
    np.testing.assert_allclose(path.sum(axis=1), 8, atol=1e-8)


@pytest.mark.parametrize("case", [latency.bounds_and_row(10), latency.general(10), latency.general(10, dense=True)])
def test_both_layers_are_given_the_same_problem(case) -> None:
    steps = [contender(case) for contender in latency.CONTENDERS.values()]
    found = [step.forward(step.tensors(case.data(0))).detach().numpy() for step in steps]
    np.testing.assert_allclose(found[0], found[1], atol=1e-9)


@pytest.mark.parametrize("kind", ["infeasible", "unbounded", "unbounded quadratic"])
def test_programs_without_a_solution_have_none(kind: str) -> None:
    info = Engine(Options(on_fail="nan")).run(trust.without_solution(kind, 10, 20, 2)).info
    assert {status.name.lower() for status in info.status} == {kind.split()[0]}


def test_shares_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "best", lambda run: (run(), 1.0)[1])  # once
    monkeypatch.setattr(trust, "decision_qp", lambda _, **options: problems.decision_qp(10, **options))
    assert trust.share(norm_ball=False)["share"] == 200.0  # judge and rest; the time for null vectors is a difference


def test_plain_tables(capsys: pytest.CaptureFixture[str]) -> None:
    PlainScreen().table("title", {"name": False, "value": True}, [["[bold red]a[/]", "1"], ["bc", "20"]])
    assert capsys.readouterr().out == "\ntitle\nname  value\na         1\nbc       20\n"


@pytest.mark.parametrize("make", lift.PAIRS, ids=lambda make: make.__name__)
def test_both_ways_of_writing_a_problem_agree(make: Callable[[], lift.Pair]) -> None:
    lifted, by_hand = (step() for step in lift.steps(make(), 2))
    assert len(lifted) == len(by_hand) > 1
    for a, b in zip(lifted, by_hand, strict=True):
        assert torch.allclose(a, b, rtol=1e-7, atol=1e-8)


def test_the_contenders_of_jax_have_the_same_gradients() -> None:
    with jax_layers.double_precision():
        case = problems.small_least_squares(batch=2)
        ours = jax_layers.contest(case, jax_layers.with_torch, "torch", 1, lambda _: None, warmup=1)
        theirs = jax_layers.contest(case, jax_layers.with_cvxpylayers, "cvxpylayers", 1, lambda _: None, warmup=0)
        broken = jax_layers.contest(case, lambda *_: 1 / 0, "broken", 1, lambda _: None)
    assert not ours.reason + theirs.reason
    assert ours.difference < 1e-12
    assert 1e-12 < theirs.difference < 1e-2
    assert math.isnan(broken.ratio)
    assert "ZeroDivisionError" in broken.reason


def test_overheads_and_ratios_of_jax() -> None:
    contest = jax_layers.Contest("a", "b", jax=0.011, other=0.1, jax_best=0.005, other_best=0.004)
    assert math.isclose(contest.overhead, 1.0)
    assert math.isclose(contest.ratio, 0.8)
    assert math.isclose(contest.share, 25.0)
