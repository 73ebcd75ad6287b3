"""A solver that fails, claims success wrongly or returns nonsense on one sample: refused there, right elsewhere."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from faults.faulty import BATCH, FAULTS, TRAP, Faulty, FaultyBatch, blocks, memory, raises, wrong_point

import ffo.kernels.batch as kernels
import ffo.solvers.dense as dense
from ffo import solve_qp_batch
from ffo.errors import InaccurateError, NumericalError, Status
from ffo.solvers.workspace import Point
from ffo.torch import FFOFunctionLayer, FFOQPLayer

OTHERS = [k for k in range(BATCH) if k != TRAP]
every_fault = pytest.mark.parametrize("fault", FAULTS)
every_solver = pytest.mark.parametrize("solver", [Faulty, FaultyBatch])


def solved(layer: FFOQPLayer) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Solutions, and gradients of a sum over those there are."""
    given = {name: torch.tensor(v, requires_grad=True) for name, v in blocks().items()}
    z = layer(given["Q"], given["p"], given["G"], given["h"])
    z.nan_to_num(0.0).sum().backward()
    return z.detach(), {name: t.grad for name, t in given.items()}


@every_fault
@every_solver
def test_a_fault_costs_its_sample_and_no_other(fault: str, solver: type[Faulty]) -> None:
    layer = FFOQPLayer(solver=solver(FAULTS[fault]), on_fail="nan")
    z, gradients = solved(layer)
    expected, right = solved(FFOQPLayer(solver="CLARABEL"))
    torch.testing.assert_close(z[OTHERS], expected[OTHERS], rtol=0, atol=1e-9)
    status = layer.info.status[TRAP]
    if status.ok:  # Newton's method refuted the verdict, or got to the solution from there
        torch.testing.assert_close(z, expected, rtol=0, atol=1e-9)
    else:
        assert z[TRAP].isnan().all()
        assert all((g[TRAP] == 0).all() for g in gradients.values())
        assert layer.info.certificate.reasons(TRAP) == ["the sample was not solved"]
    for name, g in gradients.items():
        torch.testing.assert_close(g[OTHERS], right[name][OTHERS], rtol=0, atol=1e-7)
    assert layer.info.certificate.good[OTHERS].all()


@every_fault
@every_solver
def test_without_gradients_too(fault: str, solver: type[Faulty]) -> None:
    b = blocks()
    found = solve_qp_batch(**b, solver=solver(FAULTS[fault]), on_fail="nan")
    expected = solve_qp_batch(**b).z
    good = [s.ok for s in found.status]
    assert all(good[k] for k in OTHERS)
    np.testing.assert_allclose(found.z[good], expected[good], atol=1e-9)


@pytest.mark.parametrize("fault", ["raises", "memory", "not_numbers", "multipliers_not_numbers"])
@every_solver
def test_what_cannot_be_used_is_refused_and_named(fault: str, solver: type[Faulty]) -> None:
    found = solve_qp_batch(**blocks(), solver=solver(FAULTS[fault]), on_fail="nan")
    assert [k for k, s in enumerate(found.status) if not s.ok] == [TRAP]
    assert np.isnan(found.z[TRAP]).all()
    assert found.info.detail[TRAP]


def test_the_error_names_the_sample_and_says_what_the_solver_said() -> None:
    with pytest.raises(NumericalError, match=r"sample 2 of the batch.*ZeroDivisionError: it broke") as caught:
        solve_qp_batch(**blocks(), solver=FaultyBatch(raises))
    assert caught.value.samples == (TRAP,)
    with pytest.raises(InaccurateError, match=r"sample 2 of the batch.*claimed success"):
        solve_qp_batch(**blocks(), solver=Faulty(FAULTS["not_numbers"]))


def test_another_solver_is_asked_about_that_sample_alone() -> None:
    b = blocks()
    found = solve_qp_batch(**b, solver=FaultyBatch(raises), retry=["CLARABEL"])
    np.testing.assert_allclose(found.z, solve_qp_batch(**b).z, atol=1e-9)
    assert found.info.solver == tuple("CLARABEL" if k == TRAP else "FAULTY_BATCH" for k in range(BATCH))
    assert found.info.retried.tolist() == [k == TRAP for k in range(BATCH)]


def test_a_plausible_wrong_point_is_never_returned() -> None:
    """For any sample and size of the error, the result is the solution or a refusal."""
    b = blocks(trap=False)
    b["p"][:, 0] *= -1.0  # all samples meet the fault
    expected = solve_qp_batch(**b).z
    for fault in (wrong_point, *(partial(moved, share) for share in (1e-7, 1e-4, 1e-2, 0.3))):
        found = solve_qp_batch(**b, solver=Faulty(fault), on_fail="nan")
        for k, status in enumerate(found.status):
            assert not status.ok or np.abs(found.z[k] - expected[k]).max() < 1e-9


def moved(share: float, point: Point) -> Point:
    return replace(point, x=point.x * (1.0 + share))


# Memory runs out in a kernel of this package


@pytest.mark.parametrize("solver", ["INTERIOR", "DENSE", "SEPARABLE"])
def test_memory_that_runs_out_in_a_kernel_costs_one_sample(monkeypatch: pytest.MonkeyPatch, solver: str) -> None:
    b, batch, trap = blocks(batch=9), 9, 7
    if solver == "SEPARABLE":
        b = {"Q": np.stack([np.diag(np.diag(Q)) for Q in b["Q"]]), "p": b["p"], "lb": np.full((batch, 4), -0.1)}
    expected = solve_qp_batch(**b).z

    def starved(function, unit=1):
        def run(start: int, stop: int, *arguments: object) -> None:
            if start <= trap // unit < stop:
                raise MemoryError
            function(start, stop, *arguments)

        return run

    if solver == "INTERIOR":
        monkeypatch.setattr(kernels, "_interior_chunk", starved(kernels._interior_chunk, kernels.LANES))
        lost = range(4, 8)  # the samples that share its registers
    else:
        original = dense.run_samples
        monkeypatch.setattr(dense, "run_samples", lambda work, *a, **k: original(starved(work), *a, **k))
        lost = range(7, 8)
    found = solve_qp_batch(**b, solver=solver, on_fail="nan")
    assert [k for k, s in enumerate(found.status) if not s.ok] == list(lost)
    assert found.status[trap] is Status.NUMERICAL
    assert "memory" in found.info.detail[trap]
    kept = [s.ok for s in found.status]
    np.testing.assert_allclose(found.z[kept], expected[kept], atol=1e-9)


def test_memory_that_runs_out_in_newtons_method_costs_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    b, original = blocks(), kernels._ghost_chunk

    def starved(start: int, stop: int, *arguments: Any) -> None:
        q, samples, rows = arguments[3], arguments[-5], arguments[-2]
        if (q[samples[rows[start:stop]], 0] > 0).any():
            raise MemoryError
        original(start, stop, *arguments)

    expected = solve_qp_batch(**b).z
    monkeypatch.setattr(kernels, "_ghost_chunk", starved)
    found = solve_qp_batch(**b, on_fail="nan")
    assert [k for k, s in enumerate(found.status) if not s.ok] == [TRAP]
    np.testing.assert_allclose(found.z[OTHERS], expected[OTHERS], atol=1e-9)


def test_memory_that_runs_out_in_a_derivative_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero would be a wrong gradient."""
    p = torch.tensor(blocks()["p"], requires_grad=True)
    z = FFOQPLayer()(*(torch.tensor(blocks()[name]) if name != "p" else p for name in ("Q", "p", "G", "h")))

    def starved(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(kernels, "_ghost_chunk", starved)
    with pytest.raises(MemoryError, match="derivative"):
        z.sum().backward()


# Problems given by functions


def box(**options: object) -> FFOFunctionLayer:
    """The projection of a onto y <= 1."""
    return FFOFunctionLayer(
        lambda a, y: (y - a).square().sum(), lambda a, y: y - 1, shape=2, dims=(1,), on_fail="nan", **options
    )


@pytest.mark.parametrize("fault", ["raises", "memory", "nan", "wrong"])
def test_a_users_solver_with_a_fault(fault: str) -> None:
    def solve(g, h, e, y0):
        if float(g(torch.full((2,), 5.0, dtype=torch.float64))) < 1e-12:  # a = (5, 5)
            if fault in ("raises", "memory"):
                raise (ZeroDivisionError if fault == "raises" else MemoryError)("it broke")
            return y0 * torch.nan if fault == "nan" else y0 + 0.25
        return torch.tensor([0.5, 0.5], dtype=torch.float64)

    layer = box(solver=solve)
    a = torch.tensor([[0.5, 0.5], [5.0, 5.0], [0.5, 0.5]], dtype=torch.float64, requires_grad=True)
    y = layer(a)
    status = layer.info.status
    assert status[0].ok
    assert status[2].ok
    torch.testing.assert_close(y.detach()[[0, 2]], a.detach()[[0, 2]])
    if status[1].ok:  # Newton's method from there
        torch.testing.assert_close(y.detach()[1], torch.ones(2, dtype=torch.float64))
    else:
        assert y[1].isnan().all()
    if fault in ("raises", "memory"):
        assert layer.info.status[1] in (Status.SOLVED, Status.NUMERICAL)
    y.nan_to_num(0.0).sum().backward()
    torch.testing.assert_close(a.grad[[0, 2]], torch.ones(2, 2, dtype=torch.float64))


def test_memory_is_the_same_for_solvers_of_samples_and_of_batches() -> None:
    for solver in (Faulty(memory), FaultyBatch(memory)):
        found = solve_qp_batch(**blocks(), solver=solver, on_fail="nan")
        assert found.info.detail == {TRAP: "MemoryError: no more"}
