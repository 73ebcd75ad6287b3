"""The position of arrays in memory does not change a bit of the results."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.outer import outer

import ffo.kernels
from ffo.kernels import ldl, residuals

KERNELS = sorted(Path(ffo.kernels.__file__).parent.rglob("*.py"))
multiply, full_column = outer(ldl.multiply), outer(residuals._full_column)


def placed(arrays: list[np.ndarray], order: tuple[int, ...], gap: int) -> list[np.ndarray]:
    """Copies in one block of memory, in this order, with `gap` numbers between them."""
    room, views, at = np.zeros(sum(a.size + gap for a in arrays)), list(arrays), 0
    for k in order:
        views[k] = room[at : at + arrays[k].size]
        views[k][:] = arrays[k]
        at += arrays[k].size + gap
    return views


@pytest.mark.parametrize("n", [10, 12, 23])
def test_products_with_neighbours(n: int) -> None:
    """A full symmetric matrix times a vector; the terms of one column."""
    rng = np.random.default_rng(0)
    Kp = np.concatenate([[0], np.cumsum(np.arange(1, n + 1))])
    Ki = np.concatenate([np.arange(j + 1) for j in range(n)]).astype(np.uint32)
    arrays = [rng.standard_normal(len(Ki)), rng.standard_normal(n), np.zeros(n)]
    column = [rng.standard_normal(n) for _ in range(4)]

    def product(order: tuple[int, ...], gap: int) -> np.ndarray:
        Kx, z, out = placed(arrays, order, gap)
        multiply(Kp, Ki, Kx, z, out)
        return out

    def terms(order: tuple[int, ...], gap: int) -> np.ndarray:
        values, other, r, a = placed(column, order, gap)
        own = np.zeros((2, 1))
        full_column(values, 0, n, 0.7, other, r, a, *own, 0)
        return np.concatenate([r, a, own.ravel()])

    for function, count in ((product, 3), (terms, 4)):
        far = function(tuple(range(count)), 1000)
        for order, gap in itertools.product(itertools.permutations(range(count)), range(12)):
            np.testing.assert_array_equal(function(order, gap), far)


def summing_and_writing(tree: ast.AST) -> Iterator[int]:
    """Lines of innermost loops of reducing kernels that add up products or entries, and write consecutive entries."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        if not any(isinstance(d, ast.Name) and d.id == "inner_reducing_kernel" for d in function.decorator_list):
            continue
        for loop in ast.walk(function):
            parts = list(ast.walk(loop))
            if isinstance(loop, ast.For) and not any(isinstance(p, ast.For) for p in parts[1:]):
                changes = [p for p in parts if isinstance(p, ast.AugAssign) and isinstance(p.target, ast.Name)]
                terms = [p for c in changes for p in ast.walk(c.value)]
                sums = any(isinstance(p, ast.BinOp | ast.Subscript) for p in terms)
                written = [p.slice for p in parts if isinstance(p, ast.Subscript) and isinstance(p.ctx, ast.Store)]
                names = {p.id for place in written for p in ast.walk(place) if isinstance(p, ast.Name)}
                if sums and isinstance(loop.target, ast.Name) and loop.target.id in names:
                    yield loop.lineno


@pytest.mark.parametrize("file", KERNELS, ids=lambda f: f.name)
def test_loops_that_sum_do_not_write(file: Path) -> None:
    """See `ffo.kernels.jit.inner_reducing_kernel`."""
    assert list(summing_and_writing(ast.parse(file.read_text()))) == []
