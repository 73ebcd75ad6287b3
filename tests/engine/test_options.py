"""The options common to all layers."""

from __future__ import annotations

import pickle

import pytest

from ffo.engine import Engine, Options, Smoothing
from ffo.errors import InputError
from ffo.ghost.direct import Direct
from ffo.ghost.iterative import Iterative


def test_defaults() -> None:
    options = Options()
    assert (options.backward, options.on_fail, options.solver, options.smoothing) == ("auto", "raise", None, None)


def test_a_number_is_a_radius() -> None:
    assert Options(smoothing=0.5).smoothing == Smoothing(0.5)
    assert Options(smoothing=1).smoothing == Smoothing(1.0)
    assert Options(smoothing=Smoothing(0.1, draws=3)).smoothing.draws == 3


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"backward": "adjoint"}, "backward must be one of"),
        ({"backward": None}, "backward must be one of"),
        ({"on_fail": "skip"}, "on_fail must be"),
        ({"delta": -1.0}, "delta must be positive"),
        ({"retry": "SCS"}, "retry must be a list"),
        ({"smoothing": 0.0}, "radius must be positive"),
        ({"smoothing": float("nan")}, "radius must be positive"),
        ({"smoothing": [1.0]}, "must be a radius"),
    ],
)
def test_wrong_values_are_named(wrong: dict[str, object], text: str) -> None:
    with pytest.raises(InputError, match=text):
        Options(**wrong)


def test_options_are_values() -> None:
    options = Options(backward="direct", smoothing=0.5, solver_args={"eps": 1e-6})
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize("way", [Direct(), Iterative(rtol=1e-10)])
def test_a_way_may_be_given_as_an_object(way: object) -> None:
    assert Engine(Options(backward=way)).way(None, None) is way


def test_unknown_solvers_are_refused_at_once() -> None:
    with pytest.raises(InputError, match="unknown solver"):
        Engine(Options(solver="NOBODY"))
    with pytest.raises(InputError, match="unknown solver"):
        Engine(Options(retry=("NOBODY",)))
