"""Newton's method before a solver is called: when it is tried, which results are kept, and when it is skipped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from balls import decision
from ghost.yardstick import tight

import ffo.engine.stages as stages_module
from ffo.engine import Engine, Options
from ffo.engine.memory import LONGEST_PAUSE, Backoff
from ffo.engine.outcome import Outcome
from ffo.errors import Status
from ffo.program.cone import ConeProgram
from ffo.program.sparse import SymmetricBatch

N, BATCH = 60, 24
NEWTON = stages_module.NEWTON


def program(seed: int = 0) -> ConeProgram:
    return decision(N, BATCH, seed)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the batches on which it is tried."""
    tried: list[int] = []
    original = stages_module.from_nothing

    def wrapped(part: ConeProgram) -> object:
        tried.append(part.batch)
        return original(part)

    monkeypatch.setattr(stages_module, "from_nothing", wrapped)
    return tried


def run(engine: Engine, given: ConeProgram, keys: list[int] | None = None, **options: object) -> Outcome:
    """The size t of the ball is hidden, as in a layer."""
    return engine.run(given, keys, hidden=np.arange(given.n) == given.n - 1, **options)


def test_solutions_are_those_of_a_solver() -> None:
    mine, other = Engine(Options()), Engine(Options(solver="CLARABEL"))
    found, expected = (run(engine, program()) for engine in (mine, other))
    assert set(found.info.solver) == {NEWTON}
    assert set(expected.info.solver) == {"CLARABEL"}
    assert found.info.ok.all()
    assert found.info.certificate is not None
    assert found.info.certificate.good.all()
    assert (found.info.iterations > 1).all()
    assert found.info.residual.max() <= 1e-12
    np.testing.assert_allclose(found.x, tight(program()).x, atol=1e-10)
    c_x = np.random.default_rng(0).normal(size=found.x.shape)
    a, b = (one.adjoint(c_x, np.zeros_like(one.y)) for one in (found, expected))
    for name in ("x", "y", "u", "v", "db"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=1e-8)


@pytest.mark.parametrize(
    "options",
    [
        Options(solver="CLARABEL"),
        Options(solver_args={"max_iters": 100}),
        Options(backward="iterative"),
        Options(backward="resolve"),
    ],
    ids=["a solver", "its settings", "iterative", "resolve"],
)
def test_who_asks_for_something_else_gets_it(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = counted(monkeypatch)
    found = run(Engine(options), program())
    assert set(found.info.solver) == {options.solver or "INTERIOR"}
    assert tried == []


def test_an_accuracy_is_no_choice_of_a_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = counted(monkeypatch)
    assert run(Engine(Options()), program(), overrides={"eps": 1e-6}).info.solver[0] == NEWTON
    assert tried == [BATCH]


def test_variables_may_be_coupled_by_the_objective() -> None:
    """A chain of variables: min 1/2 x'Dx - q'x + 0.05 sum (x_i + x_{i+1})^2."""
    given = program()
    P = given.P.full().toarray()
    i = np.arange(N - 1)
    P[i, i + 1] = P[i + 1, i] = 0.1
    P[i, i] += 0.1
    chain = ConeProgram.from_matrices(P, given.q, given.A.matrix(), given.b, given.cones)
    found = run(Engine(Options()), chain)
    assert NEWTON in found.info.solver
    assert found.info.certificate is not None
    assert found.info.certificate.good.all()
    np.testing.assert_allclose(found.x[:, :N], tight(chain).x[:, :N], atol=1e-9)


def test_samples_on_which_it_fails_go_to_a_solver() -> None:
    """One has no solution (x_0 <= -1 and x_0 >= 0), one has bad data; the others are not affected."""
    given = program()
    b = np.array(given.b)
    b[3, 0] = -1.0
    b[5, 2] = np.nan
    engine = Engine(Options(on_fail="nan"))
    found = run(engine, given.with_vectors(b=b))
    assert found.info.status[3] is Status.INFEASIBLE
    assert found.info.status[5] is Status.INVALID_INPUT
    good = np.isin(np.arange(BATCH), [3, 5], invert=True)
    assert found.info.ok.tolist() == good.tolist()
    assert {found.info.solver[k] for k in np.flatnonzero(good)} == {NEWTON}
    assert found.info.solver[3] == "INTERIOR"
    np.testing.assert_allclose(found.x[good], tight(given).x[good], atol=1e-10)
    assert np.isnan(found.x[[3, 5]]).all()
    whole = run(Engine(Options()), given)
    c_x = np.random.default_rng(0).normal(size=found.x.shape)
    a, b = (one.adjoint(c_x, np.zeros_like(one.y)) for one in (found, whole))
    np.testing.assert_allclose(a.u[good], b.u[good], atol=1e-9)
    assert not a.u[[3, 5]].any()


def test_matrices_may_differ_between_samples() -> None:
    given = program()
    P = given.P
    scales = np.random.default_rng(0).uniform(0.5, 2.0, (BATCH, 1))
    batched = replace(given, P=SymmetricBatch(P.indptr, P.indices, P.values * scales, P.shape))
    found = run(Engine(Options()), batched)
    assert np.mean([name == NEWTON for name in found.info.solver]) > 0.9
    np.testing.assert_allclose(found.x, tight(batched).x, atol=1e-9)


def test_remembered_samples_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = counted(monkeypatch)
    engine, keys = Engine(Options(warm_start=True)), list(range(BATCH))
    run(engine, program(), keys)
    again = run(engine, program(), keys)
    assert tried == [BATCH]
    assert again.info.warm_hits == BATCH


def test_it_is_given_up_where_it_does_not_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs without a solution: tried in the first call, the third, the sixth."""
    tried = counted(monkeypatch)
    given = decision(10, batch=2)
    b = np.array(given.b)
    b[:, 0] = -1.0
    engine = Engine(Options(on_fail="nan"))
    calls = []
    for _ in range(6):
        found = run(engine, given.with_vectors(b=b))
        assert not found.info.ok.any()
        calls.append(len(tried))
    assert calls == [1, 1, 2, 2, 2, 3]


def test_backoff_pauses_longer_and_longer_until_an_attempt_succeeds() -> None:
    backoff = Backoff()
    pauses = []
    for _ in range(9):
        waited = 0
        while not backoff.due():
            waited += 1
        pauses.append(waited)
        backoff.record(paid=False)
    assert pauses == [0, 1, 2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE]
    for _ in range(LONGEST_PAUSE):
        assert not backoff.due()
    assert backoff.due()
    backoff.record(paid=True)
    assert backoff.due()
    backoff.record(paid=False)
    assert not backoff.due()
    assert backoff.due()
