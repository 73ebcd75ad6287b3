"""Quadratic programs as parametrised cone programs."""

from __future__ import annotations

import numpy as np
import pytest
import qps

from ffo.cones import Nonneg, Zero
from ffo.errors import InputError
from ffo.program.blocks import check_shapes, is_absent, union_pattern
from ffo.program.quadratic import MatrixPattern, QuadraticStructure, quadratic_problem
from ffo.quadratic import read_arrays

Array = np.ndarray


def read(known: qps.KnownQP) -> tuple[QuadraticStructure, list[Array]]:
    blocks = read_arrays(known.blocks)
    return blocks.structure, [blocks.values[k] for k in blocks.structure.parameters]


@pytest.mark.parametrize("known", qps.KINDS.values(), ids=qps.KINDS)
def test_the_known_solution_solves_the_cone_program(known: qps.KnownQP) -> None:
    """Rows are in the documented order; multipliers are returned with their signs."""
    structure, values = read(known)
    problem = quadratic_problem(structure, duals=True)
    program = problem.map.apply(values)
    assert program.cones.kinds <= {Zero, Nonneg}
    sides = (known.lam, 1, "h"), (known.lam, -1, "lower"), (known.mu, 1, "ub"), (known.mu, -1, "lb")
    parts = [np.maximum(sign * m, 0.0) for m, sign, name in sides if name in known.blocks]
    y = np.concatenate([known.nu, *parts])[None]
    assert np.abs(program.stationarity(known.z[None], y)).max() < 1e-12
    slack = program.slack(known.z[None])
    assert slack.min(initial=0.0) > -1e-12
    assert np.abs(slack * y).max(initial=0.0) < 1e-12
    for value, expected in zip(problem.recovery.apply(known.z[None], y), known.answer, strict=True):
        np.testing.assert_allclose(value[0], expected, atol=1e-12)


def test_infinite_sides_of_all_samples_take_no_rows() -> None:
    h = np.array([[1.0, np.inf, np.inf], [2.0, np.inf, 3.0]])
    blocks = read_arrays({"Q": None, "p": np.zeros(2), "G": np.ones((3, 2)), "h": h, "ub": [np.inf, 1.0]})
    assert blocks.structure.sides["h"].tolist() == [True, False, True]
    program = quadratic_problem(blocks.structure).map.apply([blocks.values[k] for k in blocks.structure.parameters])
    np.testing.assert_array_equal(program.b, [[1.0, np.inf, 1.0], [2.0, 3.0, 1.0]])


def test_equal_structures_share_their_canonical_form() -> None:
    first, second = (read(qps.known_qp(seed, bounds=True))[0] for seed in (0, 1))
    assert first == second
    assert hash(first) == hash(second)
    assert quadratic_problem(first, True) is quadratic_problem(second, True)
    assert quadratic_problem(first, False) is not quadratic_problem(first, True)
    assert first != read(qps.known_qp(0, rows=4, bounds=True))[0]


def test_patterns_are_told_apart() -> None:
    i = np.array([0, 1])
    assert MatrixPattern(i, i, (2, 2)).key != MatrixPattern(i, i[::-1].copy(), (2, 2)).key
    assert MatrixPattern.full(2, 2).key != MatrixPattern.full(2, 3).key
    pattern, entry = union_pattern(np.array([1, 0, 1]), np.array([0, 2, 0]), (2, 3))
    assert (pattern.rows.tolist(), pattern.cols.tolist(), entry.tolist()) == ([0, 1], [2, 0], [1, 0, 1])


def test_absence_is_no_rows_and_not_no_samples() -> None:
    assert is_absent("G", (0, 3))
    assert is_absent("G", (0,))
    assert is_absent("G", (5, 0, 3))
    assert is_absent("h", (5, 0))
    assert not is_absent("G", (0, 2, 3))
    assert not is_absent("h", (0, 2))
    with pytest.raises(InputError, match="batch is empty"):
        check_shapes({"p": (3,), "G": (0, 2, 3), "h": (2,)})
    assert check_shapes({"p": (3,)}) is None
    assert check_shapes({"p": (3,), "Q": (4, 3, 3)}) == 4
