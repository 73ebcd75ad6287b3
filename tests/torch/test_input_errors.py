"""Wrong input: the exceptions and messages of CvxpyLayer, and further ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest
import torch
import zoo
from layers import make_layer, tensors

from ffo.engine import Smoothing
from ffo.errors import (
    FFOError,
    InputError,
    InvalidDataError,
    MissingSolverError,
    UnknownSettingError,
    UnsupportedProblemError,
)
from ffo.torch import FFOLayer, FFOQPLayer, Relax

peer = pytest.mark.skipif(importlib.util.find_spec("cvxpylayers") is None, reason="cvxpylayers is not installed")


@pytest.fixture
def case() -> zoo.Case:
    return zoo.build("constrained_least_squares")  # A (6, 4), b (6,)


WRONG_CALLS: dict[str, list[tuple[int, ...]]] = {
    "too few": [(6, 4)],
    "too many": [(6, 4), (6,), (6,)],
    "wrong shape": [(6, 4), (7,)],
    "transposed": [(4, 6), (6,)],
    "wrong batched shape": [(6, 4), (3, 7)],
    "wrong batched matrix": [(3, 4, 6), (3, 6)],
    "too many dimensions": [(6, 4), (2, 3, 6)],
    "too few dimensions": [(6,), (6,)],
    "batch sizes differ": [(3, 6, 4), (2, 6)],
    "batch of one beside a batch": [(1, 6, 4), (2, 6)],
}


@peer
@pytest.mark.parametrize("shapes", WRONG_CALLS.values(), ids=WRONG_CALLS.keys())
def test_wrong_calls_fail_in_the_words_of_cvxpylayers(case: zoo.Case, shapes: list[tuple[int, ...]]) -> None:
    from cvxpylayers.torch import CvxpyLayer

    params = [torch.ones(s, dtype=torch.float64) for s in shapes]
    with pytest.raises(ValueError, match=r".") as theirs:
        CvxpyLayer(case.problem, case.parameters, case.variables)(*params)
    with pytest.raises(InputError) as ours:
        make_layer(case)(*params)
    assert str(ours.value).startswith(str(theirs.value))


def _toy() -> tuple[cp.Problem, cp.Parameter, cp.Parameter, cp.Variable]:
    x, a, b = cp.Variable(2), cp.Parameter(2), cp.Parameter(nonneg=True)
    return cp.Problem(cp.Minimize(cp.sum_squares(x - a) + b * cp.sum(x))), a, b, x


WRONG_LAYERS: dict[str, Callable[[type], object]] = {
    "missing parameter": lambda make: (lambda p, a, b, x: make(p, [a], [x]))(*_toy()),
    "foreign parameter": lambda make: (lambda p, a, b, x: make(p, [a, b, cp.Parameter(name="z")], [x]))(*_toy()),
    "parameters as a set": lambda make: (lambda p, a, b, x: make(p, {a, b}, [x]))(*_toy()),
    "variables as a set": lambda make: (lambda p, a, b, x: make(p, [a, b], {x}))(*_toy()),
    "foreign variable": lambda make: (lambda p, a, b, x: make(p, [a, b], [x, cp.Variable(name="z")]))(*_toy()),
}


@peer
@pytest.mark.parametrize("wrong", WRONG_LAYERS.values(), ids=WRONG_LAYERS.keys())
def test_wrong_layers_fail_in_the_words_of_cvxpylayers(wrong: Callable[[type], object]) -> None:
    from cvxpylayers.torch import CvxpyLayer

    with pytest.raises(ValueError, match=r".") as theirs:
        wrong(CvxpyLayer)
    with pytest.raises(InputError) as ours:
        wrong(FFOLayer)
    assert str(ours.value).startswith(str(theirs.value))


@pytest.mark.parametrize(
    ("gp", "text"),
    [
        (False, r"Problem must be DPP, or at least DCP. The expression a @? ?.*is not DCP: .* the sign of a decides"),
        (True, "Problem must be DPP for geometric programming. The expression .* is not DGP"),
    ],
)
def test_problems_that_are_not_convex_for_all_parameters(gp: bool, text: str) -> None:
    x, a = cp.Variable(pos=True, name="x"), cp.Parameter(name="a")
    problem = cp.Problem(cp.Minimize(a * cp.square(x) - cp.log(x)))
    with pytest.raises(ValueError, match=text) as error:
        FFOLayer(problem, [a], [x], gp=gp)
    assert "FFOFunctionLayer" in str(error.value)


@pytest.mark.parametrize("kind", ["integer", "boolean"])
def test_integer_variables_get_a_clear_word(kind: str) -> None:
    x, a = cp.Variable(2, **{kind: True}), cp.Parameter(2)
    with pytest.raises(
        UnsupportedProblemError,
        match=r"integer and boolean variables have no gradient. Relax .* use ffo.torch.decision",
    ):
        FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - a))), [a], [x])


def test_complex_variables_get_a_clear_word() -> None:
    x, a = cp.Variable(2, complex=True), cp.Parameter(2)
    with pytest.raises(UnsupportedProblemError, match="real and imaginary"):
        FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - a))), [a], [x])


def test_a_parameter_named_twice() -> None:
    problem, a, b, x = _toy()
    with pytest.raises(ValueError, match=r"must exactly match problem\.parameters"):
        FFOLayer(problem, [a, b, a], [x])


# Beyond CvxpyLayer: names and advice


def _named() -> tuple[cp.Problem, list[cp.Parameter], cp.Variable]:
    x, a, b = cp.Variable(2, name="x"), cp.Parameter(2, name="target"), cp.Parameter(nonneg=True, name="price")
    return cp.Problem(cp.Minimize(cp.sum_squares(x - a) + b * cp.sum(x))), [a, b], x


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([torch.ones(3), torch.ones(())], r"Got: torch.Size\(\[3\]\). This is parameter 0 \(target\)"),
        ([torch.ones(4, 3), torch.ones(())], r"Expected batched shape.* This is parameter 0 \(target\)"),
        ([torch.ones(2), torch.ones(2, 2)], r"dimensionality for parameter 1.* This is parameter 1 \(price\)"),
        ([torch.ones(2), 3.0], r"Parameter 1 \(price\) must be a torch tensor"),
        ([torch.ones(2), -torch.ones(3)], r"samples 0, 1, 2 .*parameter 1 \(price\) was declared nonneg"),
        ([torch.tensor([[0.0, 1.0], [0.0, torch.nan]]), torch.ones(())], r"sample 1 .*Parameter 0 \(target\) has NaN"),
        ([torch.ones(2), torch.tensor([1.0, torch.inf])], r"sample 1 .*Parameter 1 \(price\) has infinite entries"),
    ],
)
def test_errors_name_the_parameter_and_the_sample(values: list[torch.Tensor], text: str) -> None:
    problem, parameters, x = _named()
    with pytest.raises(ValueError, match=text):
        FFOLayer(problem, parameters, [x])(*values)


def test_errors_of_blocks_name_the_block_and_the_sample() -> None:
    Q, p, G, h = torch.eye(2), torch.ones(3, 2), torch.ones(1, 2), torch.ones(3, 1)
    for name, blocks in {
        r"p has NaN": (Q, p * torch.tensor([[1.0], [torch.nan], [1.0]]), G, h),
        r"h has infinite": (Q, p, G, torch.tensor([[torch.inf], [-torch.inf], [1.0]])),
        r"smallest eigenvalue -1 \(Q\)": (torch.stack([Q, -Q, Q]), p, G, h),
    }.items():
        with pytest.raises(InvalidDataError, match=f"sample 1 .*{name}"):
            FFOQPLayer()(*blocks)


def test_parameters_that_do_not_match_are_named() -> None:
    problem, (a, _), x = _named()
    foreign = cp.Parameter(name="foreign")
    with pytest.raises(InputError, match="missing: price; not in the problem: foreign; given twice: target"):
        FFOLayer(problem, [a, a, foreign], [x])


def test_geometric_programs_are_recognized_and_others_too() -> None:
    x, y, a = cp.Variable(pos=True), cp.Variable(pos=True), cp.Parameter(pos=True, value=1.0)
    geometric = cp.Problem(cp.Minimize(a * x / y), [x * y >= 2, y <= 3])
    with pytest.raises(InputError, match=r"It is a geometric program \(DGP\): pass gp=True"):
        FFOLayer(geometric, [a], [x])
    FFOLayer(geometric, [a], [x], gp=True)
    with pytest.raises(InputError, match="it is DCP: omit gp=True"):
        FFOLayer(cp.Problem(cp.Minimize(cp.square(x - 3)), [x <= a]), [a], [x], gp=True)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda x, a: _concave(x), r"The objective minimize .*\(x, 0.5\).* has the wrong curvature.*FFOFunctionLayer"),
        (
            lambda x, a: cp.Problem(cp.Minimize(cp.sum(x)), [x @ x >= a]),
            r"x @ x.* is not DCP: both factors have variables",
        ),
        (lambda x, a: cp.Problem(cp.Minimize(a * cp.norm(x))), r"the sign of a decides .*nonneg=True or nonpos=True"),
    ],
)
def test_what_is_not_convex_is_named_with_advice(make: Callable[..., cp.Problem], text: str) -> None:
    x, a = cp.Variable(2, name="x"), cp.Parameter(name="a")
    problem = make(x, a)
    with pytest.raises(InputError, match=text) as error:
        FFOLayer(problem, problem.parameters(), [x])
    assert "FFOFunctionLayer" in str(error.value)


def _concave(x: cp.Variable) -> cp.Problem:
    return cp.Problem(cp.Minimize(cp.sum(cp.sqrt(x))))


# Requirements on tensors


@pytest.mark.parametrize("value", [None, 1.0, np.ones(6), [1.0] * 6], ids=lambda v: type(v).__name__)
def test_parameters_are_tensors(case: zoo.Case, value: object) -> None:
    layer, A = make_layer(case), torch.ones(6, 4, dtype=torch.float64)
    with pytest.raises(
        InputError,
        match=rf"Parameter 1 \({case.parameters[1].name()}\) must be a torch tensor, got {type(value).__name__}",
    ) as error:
        layer(A, value)
    assert isinstance(error.value, AttributeError)  # what CvxpyLayer raises for None


def test_parameters_are_not_complex(case: zoo.Case) -> None:
    with pytest.raises(InputError, match=r"Parameter 0 \(.*\) must have a floating-point dtype, got torch.complex128"):
        make_layer(case)(torch.ones(6, 4, dtype=torch.complex128), torch.ones(6))


def test_parameters_share_a_device(case: zoo.Case) -> None:
    with pytest.raises(InputError, match=r"same device; got 0: cpu, 1: meta"):
        make_layer(case)(torch.ones(6, 4), torch.ones(6, device="meta"))


def test_sparse_tensors_get_advice(case: zoo.Case) -> None:
    with pytest.raises(InputError, match=r"Parameter 0 \(.*\) is a sparse tensor; pass parameter.to_dense\(\)"):
        make_layer(case)(torch.ones(6, 4).to_sparse(), torch.ones(6))


def test_empty_batches_are_refused(case: zoo.Case) -> None:
    with pytest.raises(InputError, match=r"Parameter 1 \(.*\) has an empty batch dimension: \(0, 6\)"):
        make_layer(case)(torch.ones(6, 4), torch.ones(0, 6))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_geometric_programs_need_positive_parameters(value: float) -> None:
    case = zoo.build("box_volume")
    params = tensors(case.values)
    params[2] = torch.tensor(value, dtype=torch.float64)
    with pytest.raises(
        InvalidDataError, match=r"sample 0 .*the parameter 2 .* of a geometric program must be positive"
    ):
        make_layer(case)(*params)


# Options


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"backward": "sideways"}, InputError, "backward must be one of auto, direct, iterative, resolve"),
        ({"on_fail": "ignore"}, InputError, "on_fail must be 'raise', 'nan', 'relax' or a Relax object"),
        ({"delta": 0.0}, InputError, "delta must be positive"),
        ({"delta": float("nan")}, InputError, "delta must be positive"),
        ({"backward": "resolve", "backward_eps": 0.0}, InputError, "backward_eps must be positive and finite"),
        ({"backward_eps": 1e-6}, InputError, "backward_eps is for backward='resolve'"),
        ({"backward": "direct", "backward_solver": "SCS"}, InputError, "backward_solver is for backward='resolve'"),
        ({"backward": "resolve", "backward_solver": "NOBODY"}, InputError, "unknown solver 'NOBODY'"),
        ({"retry": "SCS"}, InputError, r"such as retry=\['SCS'\]"),
        ({"retry": ["NOBODY"]}, InputError, "unknown solver 'NOBODY'"),
        ({"smoothing": -1.0}, InputError, "smoothing radius must be positive"),
        ({"smoothing": "much"}, InputError, "smoothing must be a radius"),
        ({"smoothing": True}, InputError, "smoothing must be a radius"),
        ({"solver": "NOBODY"}, InputError, "unknown solver 'NOBODY'; available here: "),
        ({"solver": 3}, InputError, "solver must be a name or an ffo Solver, not int"),
        ({"solver": "OSQP", "solver_args": {"epss": 1}}, UnknownSettingError, "did you mean 'eps"),
        ({"solver": "OSQP", "solver_args": {"eps": -1.0}}, InputError, "eps must be a positive number"),
        ({"solver": "OSQP", "solver_args": {"max_iters": "many"}}, InputError, "max_iters must be a positive number"),
    ],
    ids=lambda v: str(v) if isinstance(v, dict) else "",
)
def test_wrong_options_fail_when_the_layer_is_made(
    case: zoo.Case, options: dict[str, object], error: type[FFOError], text: str
) -> None:
    with pytest.raises(error, match=text):
        make_layer(case, **options)


def test_wrong_draws() -> None:
    with pytest.raises(InputError, match="draws must be a positive integer"):
        Smoothing(0.1, draws=0)


def test_a_missing_solver_names_the_pip_command(case: zoo.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    from ffo.solvers.table import adapter

    monkeypatch.setattr(adapter("QOCO"), "installed", classmethod(lambda cls: False))
    with pytest.raises(MissingSolverError, match=r"pip install qoco \(or: pip install 'ffo\[qoco\]'\)"):
        make_layer(case, solver="qoco")


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ([1, 2], "got 2 keys for a batch of 3"),
        ([1, 1, 2], "must be distinct"),
        ([[1], [2], [3]], "must be hashable"),
    ],
)
def test_wrong_keys(case: zoo.Case, keys: list[object], text: str) -> None:
    values = case.batch(3, np.random.default_rng(0))
    with pytest.raises(InputError, match=text):
        make_layer(case)(*tensors(values), keys=keys)


def _projection(**options: object) -> FFOLayer:
    x, b = cp.Variable(2), cp.Parameter(2)
    return FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - b)), [x <= 5]), [b], [x], **options)


WRONG_ARGUMENTS: dict[str, tuple[Callable[[], object], str]] = {
    "keys: a number": (lambda: _projection()(torch.ones(3, 2), keys=5), "sequence with one hashable per sample, not 5"),
    "keys: a text": (lambda: _projection()(torch.ones(3, 2), keys="abc"), "sequence with one hashable per sample"),
    "keys: a scalar": (lambda: _projection()(torch.ones(1, 2), keys=torch.tensor(3)), "one hashable per sample"),
    "mapped keys": (
        lambda: torch.func.vmap(lambda v, k: _projection()(v, keys=k)[0])(torch.ones(3, 2, 2), torch.ones(3, 2)),
        "no values inside a transform",
    ),
    "verbose": (lambda: _projection(verbose="x"), "verbose must be true or false, not 'x'"),
    "verbose of programs": (lambda: FFOQPLayer(verbose="x"), "verbose must be true or false"),
    "warm_start": (lambda: _projection(warm_start="yes"), "warm_start must be true or false"),
    "warm_start of a call": (
        lambda: _projection()(torch.ones(2), warm_start="yes"),
        "warm_start must be true or false",
    ),
    "time_limit": (lambda: _projection(solver_args={"time_limit": -1})(torch.ones(2)), "time_limit must be a positive"),
    "nothing to relax": (lambda: Relax(constraints=[]), "nothing that may be violated"),
}


@pytest.mark.parametrize(("call", "words"), WRONG_ARGUMENTS.values(), ids=WRONG_ARGUMENTS.keys())
def test_wrong_arguments(call: Callable[[], object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


def test_a_single_constraint_may_be_relaxed() -> None:
    x, b = cp.Variable(), cp.Parameter()
    upper = x <= b
    problem = cp.Problem(cp.Minimize(x**2), [x >= 1, upper])
    one, several = (FFOLayer(problem, [b], [x], on_fail=Relax(constraints=c)) for c in (upper, [upper]))
    below = torch.tensor(0.0, dtype=torch.float64)
    torch.testing.assert_close(one(below)[0], several(below)[0], rtol=0, atol=0)
