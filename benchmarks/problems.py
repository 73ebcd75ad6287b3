"""The problems that are timed and checked.

A `Case` writes its problem once, as a function of named data. With CVXPY parameters as the data, the result is the
problem of a layer. With the values themselves, it is a plain CVXPY problem, which the accuracy check solves tightly
without any code of the package under test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp

from benchmarks import exact

Array = np.ndarray
Formulate = Callable[[Mapping[str, Any]], tuple[cp.Problem, cp.Variable]]


@dataclass(frozen=True)
class Case:
    """A parametrised problem with a way to draw its data.

    Attributes:
        formulate: named data -> (problem, the variable that is the layer's output).
        shared: values of the unbatched parameters, in the order of the layer's arguments.
        draw: seed -> values of the batched parameters, each (batch, ...).
        attributes: CVXPY attributes of parameters, by name.
        differentiate: names of the parameters whose gradients are computed.
        exact: data of one sample -> solution, accurate to rounding, by a method for this problem alone (on curved cones
            an interior-point method has an error of 1e-5 in x, too much for a reference).
        gp: whether the problem is a geometric program.
    """

    name: str
    formulate: Formulate
    shared: Mapping[str, Array]
    draw: Callable[[int], dict[str, Array]]
    differentiate: tuple[str, ...]
    attributes: Mapping[str, dict[str, bool]] = field(default_factory=dict)
    exact: Callable[[Mapping[str, Array]], Array] | None = None
    gp: bool = False

    def data(self, seed: int) -> dict[str, Array]:
        """All values by parameter name: the shared ones, and batched ones drawn with this seed."""
        return {**self.shared, **self.draw(seed)}

    def parametrised(self) -> tuple[cp.Problem, list[cp.Parameter], cp.Variable]:
        """The problem with CVXPY parameters, as a layer takes it."""
        shapes = {name: value.shape for name, value in self.shared.items()}
        shapes |= {name: value.shape[1:] for name, value in self.draw(0).items()}
        parameters = {
            name: cp.Parameter(shape, name=name, **self.attributes.get(name, {})) for name, shape in shapes.items()
        }
        problem, variable = self.formulate(parameters)
        return problem, list(parameters.values()), variable

    def concrete(self, data: Mapping[str, Array]) -> tuple[cp.Problem, cp.Variable]:
        """The problem of one sample, with its values as constants."""
        return self.formulate({name: _constant(value) for name, value in data.items()})

    def sample(self, data: Mapping[str, Array], k: int) -> dict[str, Array]:
        """The values of sample k."""
        return {name: value if name in self.shared else value[k] for name, value in data.items()}

    def weights(self, seed: int) -> Array:
        """(batch, *output shape) weights of the random linear loss."""
        batch = len(next(iter(self.draw(seed).values())))
        _, _, variable = self.parametrised()
        return np.random.default_rng([seed, 1]).standard_normal((batch, *variable.shape))


def _constant(value: Array) -> Any:
    mostly_zero = value.ndim == 2 and np.count_nonzero(value) < 0.2 * value.size
    return sp.csc_array(value) if mostly_zero else value


def decision_qp(
    n: int, *, quad_form: bool = True, norm_ball: bool = False, constant: bool = False, batch: int = 32
) -> Case:
    """The decision-focused problem of the paper.

        minimize 1/2 y'Qy - q'y   subject to   Gy <= h   (and |y|_2 <= 1 for the SOCP)

    with Q = I and G = [I; -I; 1'], all declared as dense parameters; only q is batched. Bounds of the box [0, 1] and
    the row of the sum are active at the solution. `quad_form=False` passes the factor R of Q = R'R and writes |Ry|^2,
    the form that cvxpylayers accepts. `constant=True` makes the matrices constants of the problem, which is easier, for
    packages that cannot build the problem with parameters.
    """
    budget = 0.5 * np.sqrt(n) if norm_ball else 0.2 * n
    identity = np.eye(n)
    matrix = "Q" if quad_form else "R"
    matrices = {matrix: identity, "G": np.vstack([identity, -identity, np.ones((1, n))])}
    fixed = {name: _constant(value) for name, value in matrices.items()} if constant else {}

    def formulate(d: Mapping[str, Any]) -> tuple[cp.Problem, cp.Variable]:
        y, d = cp.Variable(n), {**d, **fixed}
        energy = cp.quad_form(y, d["Q"], assume_PSD=True) if quad_form else cp.sum_squares(d["R"] @ y)
        constraints = [d["G"] @ y <= d["h"]]
        if norm_ball:
            constraints.append(cp.norm(y, 2) <= 1)
        return cp.Problem(cp.Minimize(0.5 * energy - d["q"] @ y), constraints), y

    return Case(
        name=f"{'SOCP' if norm_ball else 'QP'} n={n}",
        formulate=formulate,
        shared={
            **({} if constant else matrices),
            "h": np.concatenate([np.ones(n), np.zeros(n), [budget]]),
        },
        draw=lambda seed: {"q": np.random.default_rng(seed).standard_normal((batch, n))},
        differentiate=("q",),
        attributes={"Q": {"PSD": True}} if quad_form else {},
        exact=lambda d: exact.box_and_budget(d["q"], d["h"][-1], 1.0 if norm_ball else np.inf),
    )


def small_least_squares(n: int = 10, rows: int = 20, batch: int = 128) -> Case:
    """minimize |Ax - b|^2 subject to x >= 0, sum(x) <= 3, with batched A and b."""

    def formulate(d: Mapping[str, Any]) -> tuple[cp.Problem, cp.Variable]:
        x = cp.Variable(n)
        return cp.Problem(cp.Minimize(cp.sum_squares(d["A"] @ x - d["b"])), [x >= 0, cp.sum(x) <= 3]), x

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        A = rng.standard_normal((batch, rows, n))
        x = rng.uniform(-0.5, 1.1, (batch, n, 1))
        return {"A": A, "b": (A @ x)[..., 0] + 0.1 * rng.standard_normal((batch, rows))}

    return Case(f"small n={n}, batch {batch}", formulate, {}, draw, ("A", "b"))


def semidefinite(order: int, batch: int = 3) -> Case:
    """minimize <C, X> + |X|^2/20 subject to <F_i, X> = b_i, X positive semidefinite."""
    rng = np.random.default_rng(order)
    F = rng.standard_normal((order, order, order))
    F = (F + F.transpose(0, 2, 1)) / 2

    def formulate(d: Mapping[str, Any]) -> tuple[cp.Problem, cp.Variable]:
        X = cp.Variable((order, order), PSD=True)
        equalities = [cp.trace(F[i] @ X) == d["b"][i] for i in range(order)]
        return cp.Problem(cp.Minimize(cp.trace(d["C"] @ X) + 0.05 * cp.sum_squares(X)), equalities), X

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        inside = rng.standard_normal((batch, order, order))
        inside = inside @ inside.transpose(0, 2, 1) / order + 0.1 * np.eye(order)
        C = rng.standard_normal((batch, order, order))
        return {"C": (C + C.transpose(0, 2, 1)) / 2, "b": np.einsum("ijk,bjk->bi", F, inside)}

    return Case(
        f"SDP order {order}", formulate, {}, draw, ("C", "b"), exact=lambda d: exact.semidefinite(d["C"], d["b"], F)
    )


def entropy(n: int = 15, rows: int = 4, batch: int = 3) -> Case:
    """maximize entropy(x) + c'x subject to Ax = b, x in [0, 1]: the exponential cone."""
    A = np.random.default_rng(5).uniform(0, 1, (rows, n))

    def formulate(d: Mapping[str, Any]) -> tuple[cp.Problem, cp.Variable]:
        x = cp.Variable(n)
        return cp.Problem(cp.Maximize(cp.sum(cp.entr(x)) + d["c"] @ x), [A @ x == d["b"], x <= 1]), x

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        return {"c": rng.standard_normal((batch, n)), "b": rng.uniform(0.1, 0.9, (batch, n)) @ A.T}

    return Case("entropy", formulate, {}, draw, ("c", "b"))


def log_sum_exp(n: int = 8, rows: int = 12, batch: int = 3) -> Case:
    """minimize log sum exp(Ax + b) + |x|^2/2 subject to x <= 0.3: the exponential cone."""

    def formulate(d: Mapping[str, Any]) -> tuple[cp.Problem, cp.Variable]:
        x = cp.Variable(n)
        objective = cp.log_sum_exp(d["A"] @ x + d["b"]) + 0.5 * cp.sum_squares(x)
        return cp.Problem(cp.Minimize(objective), [x <= 0.3]), x

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        return {"A": rng.standard_normal((batch, rows, n)), "b": rng.standard_normal((batch, rows))}

    return Case("log-sum-exp", formulate, {}, draw, ("A", "b"))


def p_norm(n: int = 8, rows: int = 14, p: float = 3.0, batch: int = 3) -> Case:
    """minimize |Ax - b|_p subject to -1/2 <= x <= 1/2: power cones."""

    def formulate(d: Mapping[str, Any]) -> tuple[cp.Problem, cp.Variable]:
        x = cp.Variable(n)
        return cp.Problem(cp.Minimize(cp.pnorm(d["A"] @ x - d["b"], p, approx=False)), [cp.abs(x) <= 0.5]), x

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        return {"A": rng.standard_normal((batch, rows, n)), "b": rng.standard_normal((batch, rows))}

    def solve(d: Mapping[str, Array]) -> Array:
        problem, x = formulate(d)
        problem.solve(solver="CLARABEL")
        return exact.p_norm(d["A"], d["b"], p, 0.5, start=x.value)

    return Case(f"{p:g}-norm", formulate, {}, draw, ("A", "b"), exact=solve)


def power_utility(n: int = 8, batch: int = 3) -> Case:
    """maximize sum_i x_i^0.3 + c'x subject to a'x <= 1: power cones with a parameter in a constraint."""

    def formulate(d: Mapping[str, Any]) -> tuple[cp.Problem, cp.Variable]:
        x = cp.Variable(n)
        utility = cp.sum(cp.power(x, 0.3, approx=False)) + d["c"] @ x
        return cp.Problem(cp.Maximize(utility), [d["a"] @ x <= 1]), x

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        return {"c": 0.5 * rng.standard_normal((batch, n)), "a": rng.uniform(0.5, 2.0, (batch, n))}

    return Case("power utility", formulate, {}, draw, ("c", "a"))


def sparse_qp(n: int, batch: int = 4, per_row: int = 3) -> Case:
    """A QP whose constant sparse matrix has a number of nonzeros proportional to n; q is batched."""
    rng = np.random.default_rng(n)
    rows = np.repeat(np.arange(n // 2), per_row)
    A = sp.csc_array((rng.standard_normal(rows.size), (rows, rng.integers(0, n, rows.size))), shape=(n // 2, n))

    def formulate(d: Mapping[str, Any]) -> tuple[cp.Problem, cp.Variable]:
        x = cp.Variable(n)
        return cp.Problem(cp.Minimize(0.5 * cp.sum_squares(x) - d["q"] @ x), [A @ x <= 0.5, x >= -1]), x

    draw = lambda seed: {"q": np.random.default_rng(seed).standard_normal((batch, n))}  # noqa: E731
    return Case(f"sparse QP n={n}", formulate, {}, draw, ("q",))


def sudoku(clues: int = 35, batch: int = 8) -> Case:
    """The Sudoku layer of the paper, whose equalities are to be learnt.

        minimize tau/2 |y|^2 + p'y   subject to   Ay = b, y >= 0,   tau = 0.1

    A (249, 729) is dense, with as many rows as the rank of the rules of the game; b = A exp(log z0); p marks the clues
    of each puzzle. A and b are shared by the batch and differentiated.
    """
    rows, cells, n = 249, 81, 729
    rng = np.random.default_rng(rows)
    A = rng.uniform(size=(rows, n))
    b = A @ np.exp(0.1 * rng.standard_normal(n))
    line = np.arange(9)
    solved = ((3 * (line % 3) + line // 3)[:, None] + line).ravel() % 9  # digits of a valid grid

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        p = np.zeros((batch, cells, 9))
        for puzzle in p:
            given = rng.permutation(cells)[:clues]
            puzzle[given, rng.permutation(9)[solved][given]] = -1.0
        return {"p": p.reshape(batch, n)}

    shared = {"Q": 0.1 * np.eye(n), "A": A, "b": b, "lb": np.zeros(n)}
    return Case(f"Sudoku n={n}", quadratic, shared, draw, ("A", "b"), {"Q": {"PSD": True}})


def dense_qp(n: int, batch: int = 128) -> Case:
    """minimize 1/2 y'Qy + p'y subject to Gy <= h, with n rows; every block is dense, batched and differentiated."""

    def draw(seed: int) -> dict[str, Array]:
        rng = np.random.default_rng(seed)
        L = rng.standard_normal((batch, n, n))
        G, inside = rng.standard_normal((batch, n, n)), rng.standard_normal((batch, n, 1))
        return {
            "Q": L @ L.transpose(0, 2, 1) / n + 0.1 * np.eye(n),
            "p": rng.standard_normal((batch, n)),
            "G": G,
            "h": (G @ inside)[..., 0] + rng.uniform(size=(batch, n)),
        }

    names = ("Q", "p", "G", "h")
    return Case(f"dense QP n=m={n}", quadratic, {}, draw, names, {"Q": {"PSD": True}})


def quadratic(d: Mapping[str, Any]) -> tuple[cp.Problem, cp.Variable]:
    """minimize 1/2 y'Qy + p'y subject to Gy <= h, Ay = b, y >= lb, for the blocks that are given."""
    y = cp.Variable(d["p"].shape[0])
    constraints = [d["G"] @ y <= d["h"]] if "G" in d else []
    constraints += [d["A"] @ y == d["b"]] if "A" in d else []
    constraints += [y >= d["lb"]] if "lb" in d else []
    return cp.Problem(cp.Minimize(0.5 * cp.quad_form(y, d["Q"], assume_PSD=True) + d["p"] @ y), constraints), y
