"""The lower-level problem of every task, in the forms that the methods need.

minimize 1/2 y'Qy - q'y   subject to   Gy <= h,  Ay = b,  |y|_2 <= radius
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
import torch

Array = np.ndarray
Tensors = Mapping[str, torch.Tensor]
#: a quadratic form with a parametric matrix is not DPP: |Ry|^2 with Q = R'R is
Form = Literal["quad_form", "factor"]


@dataclass(frozen=True, eq=False)
class Inner:
    """The fixed part of a problem; its varying values come with every step.

    Attributes:
        Q: (n, n); G: (m, n); h: (m,).
        equalities: rows of A; A and b are learnt, hence among the values of every step.
        radius: of the norm ball; infinite if there is none.
        matrices_as_parameters: whether Q, G and h are parameters of the CVXPY problem, passed in every
            step as in the paper's decision-focused tasks, or constants.
    """

    Q: Array
    G: Array
    h: Array
    equalities: int = 0
    radius: float = np.inf
    matrices_as_parameters: bool = True

    @property
    def n(self) -> int:
        return len(self.Q)

    @property
    def is_qp(self) -> bool:
        return not np.isfinite(self.radius)

    @property
    def learnt(self) -> tuple[str, ...]:
        """The values with respect to which the loss is differentiated."""
        return ("A", "b") if self.equalities else ("q",)

    @property
    def nonnegative(self) -> bool:
        """Whether Gy <= h is just y >= 0."""
        return self.G.shape == self.Q.shape and not self.h.any() and bool((np.eye(self.n) == -self.G).all())

    @cached_property
    def sparse(self) -> dict[str, sp.csc_array]:
        """Q and G as sparse matrices."""
        return {"Q": sp.csc_array(self.Q), "G": sp.csc_array(self.G)}

    @cached_property
    def fixed(self) -> dict[str, torch.Tensor]:
        """Q, G, h as float64 tensors."""
        return {name: torch.tensor(getattr(self, name), dtype=torch.float64) for name in ("Q", "G", "h")}

    def cvxpy(
        self, form: Form = "quad_form", *, constant: bool = False
    ) -> tuple[cp.Problem, list[cp.Parameter], cp.Variable]:
        """The problem over its parameters, in the order of `arguments`.

        `constant=True` makes Q, G and h constants, which is the easier problem.
        """
        y = cp.Variable(self.n)
        parametric = self.matrices_as_parameters and not constant
        matrix = "Q" if form == "quad_form" else "R"
        parameters = {
            name: cp.Parameter(shape, name=name, PSD=name == "Q") for name, shape in self._shapes(matrix, parametric)
        }
        data: dict[str, Any] = {**self._constants(), **parameters}
        if parametric or form == "factor":
            energy = cp.quad_form(y, data["Q"], assume_PSD=True) if matrix == "Q" else cp.sum_squares(data["R"] @ y)
        else:
            energy = cp.quad_form(y, cp.psd_wrap(data["Q"]))
        constraints = [y >= 0] if self.nonnegative else [data["G"] @ y <= data["h"]]
        if self.equalities:
            constraints.append(data["A"] @ y == data["b"])
        if not self.is_qp:
            constraints.append(cp.norm(y, 2) <= self.radius)
        problem = cp.Problem(cp.Minimize(0.5 * energy - data["q"] @ y), constraints)
        return problem, list(parameters.values()), y

    def arguments(self, values: Tensors, form: Form = "quad_form", *, constant: bool = False) -> list[torch.Tensor]:
        """Tensors in the order of the parameters of `cvxpy`."""
        matrix = "Q" if form == "quad_form" else "R"
        known = {**self.fixed, **values}
        if matrix == "R":
            known["R"] = self._factor
        return [known[name] for name, _ in self._shapes(matrix, self.matrices_as_parameters and not constant)]

    @cached_property
    def _factor(self) -> torch.Tensor:
        return torch.linalg.cholesky(self.fixed["Q"]).T.contiguous()

    def _shapes(self, matrix: str, parametric: bool) -> list[tuple[str, tuple[int, ...]]]:
        n, m, p = self.n, len(self.h), self.equalities
        matrices: list[tuple[str, tuple[int, ...]]] = [(matrix, (n, n)), ("G", (m, n)), ("h", (m,))]
        equalities: list[tuple[str, tuple[int, ...]]] = [("A", (p, n)), ("b", (p,))]
        return [*(matrices if parametric else []), ("q", (n,)), *(equalities if p else [])]

    def _constants(self) -> dict[str, Any]:
        return {**self.sparse, "R": sp.csc_array(self._factor.numpy()), "h": self.h}
