"""Samples for which an expression of parameters has no finite value: they fail alone, and without a trace."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import torch

from ffo.torch import FFOLayer

EYE, SINGULAR = np.eye(3), np.diag([1.0, 1.0, 0.0])
NAN = np.where(np.eye(3, k=1) > 0, np.nan, np.eye(3))


def layer_of(bound: cp.Expression, parameters: list[cp.Parameter]) -> FFOLayer:
    """Minimize |x - 1|^2 so that the sum of x is equal to an expression."""
    x = cp.Variable(3)
    return FFOLayer(
        cp.Problem(cp.Minimize(cp.sum_squares(x - 1)), [cp.sum(x) == bound]), parameters, [x], on_fail="nan"
    )


@pytest.mark.parametrize(
    ("atom", "bad"),
    [
        (cp.normNuc, NAN),
        (cp.sigma_max, NAN),
        (cp.lambda_max, NAN),
        (cp.lambda_max, np.diag([np.inf, 1.0, 1.0])),
        (lambda A: cp.matrix_frac(np.ones(3), A), SINGULAR),
        (lambda A: cp.gen_lambda_max(EYE, A), SINGULAR),
        (cp.tr_inv, SINGULAR),
    ],
)
def test_matrices_without_a_spectrum_or_inverse_fail_alone(atom, bad: np.ndarray) -> None:
    A = cp.Parameter((3, 3), symmetric=True)
    layer = layer_of(atom(A), [A])
    given = torch.tensor(np.stack([EYE, bad, 2 * EYE]), requires_grad=True)
    (x,) = layer(given)
    assert torch.isnan(x).all(dim=1).tolist() == [False, True, False]
    x[[0, 2]].sum().backward()
    assert torch.isfinite(given.grad).all()
    assert (given.grad[1] == 0).all()
    assert all((given.grad[k] != 0).any() for k in (0, 2))


def test_a_failed_sample_adds_nothing_to_the_gradient_of_a_shared_parameter() -> None:
    shared, own = cp.Parameter(name="shared"), cp.Parameter(name="own")
    layer = layer_of(cp.sqrt(own) * shared, [shared, own])
    s = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    t = torch.tensor([4.0, -1.0, 9.0], dtype=torch.float64, requires_grad=True)
    (x,) = layer(s, t)
    assert torch.isnan(x).all(dim=1).tolist() == [False, True, False]
    x.nansum().backward()
    assert s.grad.item() == pytest.approx(2.0 + 3.0)
    assert t.grad.tolist() == pytest.approx([0.5, 0.0, 1 / 3])


def test_a_single_sample_that_fails_has_no_gradient() -> None:
    own = cp.Parameter(name="own")
    t = torch.tensor(-1.0, dtype=torch.float64, requires_grad=True)
    (x,) = layer_of(cp.sqrt(own), [own])(t)
    assert torch.isnan(x).all()
    x.nansum().backward()
    assert t.grad.item() == 0.0


def test_a_matrix_of_one_entry_multiplies_a_vector() -> None:
    x, a, b = cp.Variable(3), cp.Parameter((1, 1)), cp.Parameter()
    layer = FFOLayer(cp.Problem(cp.Minimize(cp.sum_squares(x - a * (b * np.arange(3))))), [a, b], [x])
    a_t = torch.tensor([[[2.0]], [[3.0]]], dtype=torch.float64, requires_grad=True)
    (found,) = layer(a_t, torch.tensor(0.5, dtype=torch.float64))
    assert torch.allclose(found, a_t.detach()[:, 0] * 0.5 * torch.arange(3))
    found.sum().backward()
    assert a_t.grad.ravel().tolist() == pytest.approx([1.5, 1.5])
