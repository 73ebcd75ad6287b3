"""Coarse answers: another solver is tried, and the better answer is kept, with its derivative."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ffo.engine import face, stages
from ffo.program.cone import ConeProgram
from ffo.solvers.highs import HiGHSSolver
from ffo.solvers.workspace import Workspace
from ffo.torch import FFOQPLayer


def blocks(batch: int = 5) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    made = {
        "Q": root @ root.T + np.eye(6),
        "p": rng.normal(size=(batch, 6)),
        "G": rng.normal(size=(4, 6)),
        "h": rng.uniform(0.1, 1.0, 4),
    }
    return {name: torch.tensor(v, requires_grad=True) for name, v in made.items()}


def step(layer: FFOQPLayer) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    given = blocks()
    z = layer(**given)
    return z, torch.autograd.grad((z**2).sum(), list(given.values()))


@pytest.mark.parametrize("solver_args", [{"eps": 1e-8}, {"eps": 1e-9}])
def test_answers_and_gradients_stay_when_everything_counts_as_coarse(
    monkeypatch: pytest.MonkeyPatch, solver_args: dict[str, float]
) -> None:
    plain = FFOQPLayer(solver_args=solver_args)
    z, gradients = step(plain)
    monkeypatch.setattr(stages, "ACCEPT", -1.0)
    monkeypatch.setattr(face, "FINE", -1.0)
    asked = FFOQPLayer(solver_args=solver_args)
    again, others = step(asked)
    torch.testing.assert_close(again, z, rtol=1e-10, atol=1e-12)
    for a, b in zip(others, gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
    assert asked.info is not None
    assert plain.info is not None
    assert asked.info.ok.all()
    assert (asked.info.residual <= plain.info.residual).all()
    replaced = np.array(asked.info.solver) != np.array(plain.info.solver)
    assert replaced.any()
    assert asked.info.retried[replaced].all()


@pytest.mark.parametrize("quadratic", [True, False])
def test_a_slow_solver_is_not_asked_to_improve_a_coarse_answer(
    monkeypatch: pytest.MonkeyPatch, quadratic: bool
) -> None:
    asked: list[int] = []
    made = HiGHSSolver.workspace

    def counted(self: HiGHSSolver, program: ConeProgram) -> Workspace:
        asked.append(program.batch)
        return made(self, program)

    monkeypatch.setattr(HiGHSSolver, "workspace", counted)
    monkeypatch.setattr(stages, "ACCEPT", -1.0)
    given = blocks()
    box = {"lb": -torch.ones(6, dtype=torch.float64), "ub": torch.ones(6, dtype=torch.float64)}
    layer = FFOQPLayer(solver="CLARABEL", retry=["HIGHS"])
    layer(**{**given, "Q": given["Q"] if quadratic else 0 * given["Q"]}, **box)
    assert layer.info.ok.all()
    assert bool(asked) is not quadratic
