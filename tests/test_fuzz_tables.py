"""Tables of the fuzzer in a page, and other packages on programs whose answers are known."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from fuzz import peers
from fuzz.__main__ import table
from fuzz.exact import QP
from fuzz.judge import Outcome, Truth, judge
from fuzz.routes import Found
from fuzz.table import markdown, write_block

#: one row is active
KNOWN = QP(
    p=np.array([-2.0, 1.0]), Q=np.diag([1.0, 1.5]), G=np.array([[1.0, 0.0], [1.0, 1.0]]), h=np.array([1.0, -2.0])
)
EMPTY = QP(p=np.zeros(2), Q=np.eye(2), G=np.array([[1.0, 0.0], [-1.0, 0.0]]), h=np.array([-1.0, -1.0]))
PACKAGES = {"cvxpylayers": "cvxpylayers", "qpth": "qpth", "QPLayer (proxsuite)": "proxsuite"}
C = np.array([1.0, 2.0])


def verdict(name: str, qp: QP) -> Outcome:
    truth = Truth(qp, C, 0)
    try:
        said = peers.CONTENDERS[name](qp, C)
    except Exception as error:
        said = Found(type(error).__name__, np.full(qp.n, np.nan))
    return judge(said, truth, ("p",), truth.direction(qp.blocks, 1), single=True).outcome


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", peers.CONTENDERS)
def test_every_package_is_called_rightly(name: str) -> None:
    """On a well-posed problem, a package that is called correctly is right."""
    module = PACKAGES.get(name)
    if module and importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    assert verdict(name, KNOWN) is Outcome.RIGHT


@pytest.mark.parametrize("name", ["FFOQPLayer", "FFOLayer"])
def test_ours_refuses_what_has_no_solution(name: str) -> None:
    assert verdict(name, EMPTY) is Outcome.REFUSED


def test_a_block_of_a_page_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- fuzz: begin (by a command) -->\nold\n<!-- fuzz: end -->\nafter\n")
    for _ in range(2):
        write_block(page, "fuzz", markdown(("kind", "cases"), [("weak", 3)]))
    expected = "before\n<!-- fuzz: begin (by a command) -->\n| kind | cases |\n| --- | --: |\n| weak | 3 |\n"
    assert page.read_text() == expected + "<!-- fuzz: end -->\nafter\n"
    with pytest.raises(ValueError, match="no block"):
        write_block(page, "peers", "")


def test_the_table_adds_up() -> None:
    counts = Counter({("weak", Outcome.RIGHT): 2, ("weak", Outcome.FLAGGED): 1, ("stiff", Outcome.RIGHT): 4})
    lines = table(counts, ["weak", "stiff"]).splitlines()
    assert lines[0].startswith("| kind | cases | right | flagged | WRONG solution")
    assert lines[2].startswith("| weak | 3 | 2 | 1 | 0 |")
    assert lines[4].startswith("| all | 7 | 6 | 1 | 0 |")


def test_the_page_has_the_blocks() -> None:
    text = (Path(__file__).parents[1] / "docs" / "guarantees.md").read_text()
    for name in ("fuzz", "peers"):
        assert f"<!-- {name}: begin" in text
        assert f"<!-- {name}: end -->" in text
