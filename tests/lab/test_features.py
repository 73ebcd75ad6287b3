"""What the methods declare, and Table 1 of the report shows, is what they do."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg as sla
import scipy.sparse.linalg as spla
import torch

from ffo.kernels import kkt
from ffo.lab.baselines import BASELINES, Baseline, Settings
from ffo.lab.reference import Reference
from ffo.lab.step import accuracy, first_batch, take_step, true_gradient
from ffo.lab.tasks import Task, TaskSizes, make_task

SIZES = TaskSizes(d_y=9, samples=10, d_x=5, hidden=4)
#: solvers to try, other than the default
SOLVERS = dict.fromkeys(("LPGD", "LPGD (tight)"), ("ECOS",))
SOLVERS |= dict.fromkeys(("dQP", "FFOQP (paper)"), ("osqp", "proxqp"))
OTHERS = ("CLARABEL", "PIQP")
here = [each for each in BASELINES.values() if not each.why_not(make_task("qp", SIZES).inner)]


def solved(method: Baseline, task: Task, settings: Settings = Settings()) -> tuple[object, Reference]:  # noqa: B008
    values, targets = first_batch(task, 1, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # other packages issue their own warnings
        layer = method.build(task.inner, settings)
        return take_step(task, layer, values, targets), true_gradient(task, values, targets)


@pytest.mark.parametrize("method", here, ids=lambda each: each.name)
def test_convex_constraints(method: Baseline) -> None:
    """Those that take them solve the task with a norm ball; the others say that they do not."""
    socp = make_task("socp", SIZES)
    if method.family == "qp":
        assert "second-order" in method.why_not(socp.inner)
        return
    step, _ = solved(method, socp)
    assert torch.isfinite(step.gradient["q"]).all()


@pytest.mark.parametrize("method", [each for each in here if each.any_solver], ids=lambda each: each.name)
def test_any_solver_will_do(method: Baseline) -> None:
    assert "solver" in method.settings
    task = make_task("qp", SIZES)
    for solver in SOLVERS.get(method.name, OTHERS):
        tolerance = 1e-9 if "tolerance" in method.settings else None
        step, true = solved(method, task, Settings(solver=solver, tolerance=tolerance))
        assert accuracy(step, true).cosine > 0.9999


@pytest.mark.parametrize(
    "method", [each for each in here if each.ours and not each.on_device], ids=lambda each: each.name
)
def test_only_first_order_methods_of_ours_factorize_nothing(method: Baseline, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every factorization of this package, SciPy and NumPy refused, they still run, and the others do not. What
    the solver of the forward pass does is its own affair: it is a compiled one from elsewhere."""

    class Refused(Exception):
        pass

    def refuse(*_: object, **__: object) -> None:
        raise Refused

    # a size of its own: structures are cached
    task = make_task("qp", replace(SIZES, d_y=30 + here.index(method)))
    values, targets = first_batch(task, 1, 4)
    layer = method.build(task.inner, Settings(solver="OSQP" if method.name == "FFOQP (paper)" else "SCS"))
    for module, names in (
        (kkt, ("symbolic", "_ordering")),
        (sla, ("inv", "cho_factor", "cholesky", "lu_factor", "solve", "lstsq")),
        (spla, ("splu", "factorized", "spsolve")),
        (np.linalg, ("solve", "inv", "cholesky", "lstsq", "qr")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if method.first_order:
            take_step(task, layer, values, targets)
        else:
            with pytest.raises(Refused):
                take_step(task, layer, values, targets)


@pytest.mark.parametrize("method", here, ids=lambda each: each.name)
def test_what_is_not_exact_is_controlled_by_a_tolerance_or_a_perturbation(method: Baseline) -> None:
    """Exact ones are right as they are (`test_baselines`); the others get right with a tighter setting."""
    if method.exact:
        return
    tight = Settings(tolerance=1e-11, delta=1e-4) if "delta" in method.settings else Settings(tolerance=1e-13)
    step, true = solved(method, make_task("qp", SIZES), tight)
    assert accuracy(step, true).l2 < 1e-4 or method.name.startswith("ffolayer")
