"""torch.func and forward mode; second derivatives raise an error."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import zoo
from layers import gradients, loss_of, make_layer, tensors, weights
from torch.autograd import forward_ad
from torch.autograd.functional import jacobian
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

from ffo.errors import DerivativeError, InputError

# issued by torch's own forward mode
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")

Function = Callable[..., torch.Tensor]
NAMES = ["constrained_least_squares", "box_volume", "ball_constrained"]
SAMPLES = 3


class Subject:
    """A layer as plain functions, with its Jacobian from repeated backward passes."""

    def __init__(self, name: str) -> None:
        self.case = zoo.build(name)
        self.layer = make_layer(self.case)
        self.values = tensors(self.case.values, requires_grad=False)
        self.batch = tensors(self.case.batch(SAMPLES, np.random.default_rng(0)), requires_grad=False)
        self.every = tuple(range(len(self.values)))

    def solution(self, *params: torch.Tensor) -> torch.Tensor:
        return self.layer(*params)[0]

    def loss(self, *params: torch.Tensor) -> torch.Tensor:
        return loss_of(self.layer(*params))

    def jacobian(self, *params: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return jacobian(self.solution, params)

    def sample(self, k: int) -> list[torch.Tensor]:
        return [p[k] for p in self.batch]


@pytest.fixture(params=NAMES)
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject(request.param)


def close(found: object, expected: object) -> None:
    torch.testing.assert_close(tuple(found), tuple(expected), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("transform", [jacrev, jacfwd])
def test_jacobians(subject: Subject, transform: Function) -> None:
    found = transform(subject.solution, argnums=subject.every)(*subject.values)
    close(found, subject.jacobian(*subject.values))


def test_grad_and_vjp(subject: Subject) -> None:
    found = grad(subject.loss, argnums=subject.every)(*subject.values)
    close(found, map(torch.from_numpy, gradients(subject.layer, subject.case.values)))
    value, pull = vjp(subject.solution, *subject.values)
    ones = torch.ones_like(value)
    close(pull(ones), [J.sum(tuple(range(value.ndim))) for J in subject.jacobian(*subject.values)])


def test_forward_mode(subject: Subject) -> None:
    tangents = [weights(v.shape, 5) for v in subject.values]
    J = subject.jacobian(*subject.values)
    dims = subject.solution(*subject.values).ndim
    expected = sum((j * t).flatten(dims).sum(-1) for j, t in zip(J, tangents, strict=True))
    _, found = jvp(subject.solution, tuple(subject.values), tuple(tangents))
    close([found], [expected])
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(v, t) for v, t in zip(subject.values, tangents, strict=True)]
        close([forward_ad.unpack_dual(subject.solution(*duals)).tangent], [expected])


def test_forward_mode_along_some_parameters(subject: Subject) -> None:
    direction = weights(subject.values[-1].shape, 2)
    J = subject.jacobian(*subject.values)[-1]
    _, found = jvp(lambda p: subject.solution(*subject.values[:-1], p), (subject.values[-1],), (direction,))
    close([found], [(J * direction).flatten(found.ndim).sum(-1)])


def test_vmap_is_the_batch(subject: Subject) -> None:
    close([vmap(subject.solution)(*subject.batch)], [subject.solution(*subject.batch)])
    mixed = [subject.values[0], *subject.batch[1:]]
    dims = (None, *(0,) * (len(mixed) - 1))
    close([vmap(subject.solution, in_dims=dims)(*mixed)], [subject.solution(*mixed)])


def test_vmap_over_another_dimension(subject: Subject) -> None:
    moved = [p.movedim(0, -1) for p in subject.batch]
    close([vmap(subject.solution, in_dims=-1)(*moved)], [subject.solution(*subject.batch)])


def test_vmap_around_a_batch() -> None:
    """Mapped outside, batched inside: both dimensions are joined, and separated again."""
    subject = Subject("constrained_least_squares")
    A, b = subject.batch
    expected = torch.stack([subject.solution(A[k], b) for k in range(SAMPLES)])
    close([vmap(subject.solution, in_dims=(0, None))(A, b)], [expected])
    close([vmap(vmap(subject.solution, in_dims=(None, 0)), in_dims=(0, None))(A, b)], [expected])

    def loss(A: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return loss_of(subject.layer(A, b), batched=True).sum()

    every = [grad(loss, argnums=(0, 1))(A[k], b) for k in range(SAMPLES)]
    found = vmap(grad(loss, argnums=(0, 1)), in_dims=(0, None))(A, b)
    close(found, map(torch.stack, zip(*every, strict=True)))


@pytest.mark.parametrize("shared", [False, True], ids=["all mapped", "first shared"])
def test_gradients_per_sample(subject: Subject, shared: bool) -> None:
    """vmap of grad: a shared parameter has one gradient for every sample, not their sum."""
    params = [subject.values[0], *subject.batch[1:]] if shared else subject.batch
    dims = tuple(None if shared and i == 0 else 0 for i in subject.every)
    found = vmap(grad(subject.loss, argnums=subject.every), in_dims=dims)(*params)
    each = []
    for k in range(SAMPLES):
        sample = [p if d is None else p[k] for p, d in zip(params, dims, strict=True)]
        each.append(grad(subject.loss, argnums=subject.every)(*sample))
    close(found, map(torch.stack, zip(*each, strict=True)))


@pytest.mark.parametrize("transform", [jacrev, jacfwd])
def test_jacobians_per_sample(subject: Subject, transform: Function) -> None:
    found = vmap(transform(subject.solution, argnums=subject.every))(*subject.batch)
    each = [subject.jacobian(*subject.sample(k)) for k in range(SAMPLES)]
    close(found, map(torch.stack, zip(*each, strict=True)))


def test_nested_maps_of_gradients() -> None:
    subject = Subject("constrained_least_squares")
    A, b = subject.batch
    found = vmap(vmap(grad(subject.loss, argnums=(0, 1)), in_dims=(None, 0)), in_dims=(0, None))(A, b)
    rows = [[grad(subject.loss, argnums=(0, 1))(A[i], b[j]) for j in range(SAMPLES)] for i in range(SAMPLES)]
    expected = [torch.stack([torch.stack([g[k] for g in row]) for row in rows]) for k in range(2)]
    close(found, expected)


def _twice_backward(subject: Subject) -> None:
    params = [v.clone().requires_grad_() for v in subject.values]
    first = torch.autograd.grad(subject.loss(*params), params, create_graph=True)
    sum(g.sum() for g in first).backward()


@pytest.mark.parametrize(
    "second",
    [
        _twice_backward,
        lambda s: hessian(s.loss)(*s.values),
        lambda s: jacrev(jacrev(s.solution))(*s.values),
        lambda s: jacfwd(jacfwd(s.solution))(*s.values),
        lambda s: jacrev(jacfwd(s.solution))(*s.values),
        lambda s: jacfwd(jacrev(s.solution))(*s.values),
        lambda s: torch.autograd.functional.hessian(s.loss, tuple(s.values)),
    ],
    ids=["create_graph", "hessian", "rev-rev", "fwd-fwd", "rev-fwd", "fwd-rev", "autograd.hessian"],
)
def test_second_derivatives_are_refused(second: Callable[[Subject], object]) -> None:
    """Silently returning zeros would be worse than no answer."""
    with pytest.raises(DerivativeError, match="differentiable once"):
        second(Subject("constrained_least_squares"))


def test_first_derivatives_under_create_graph() -> None:
    """Asking for a graph that is then not used is harmless."""
    subject = Subject("constrained_least_squares")
    params = [v.clone().requires_grad_() for v in subject.values]
    found = torch.autograd.grad(subject.loss(*params), params, create_graph=True)
    close([f.detach() for f in found], map(torch.from_numpy, gradients(subject.layer, subject.case.values)))


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_legacy_vectorization_is_refused_with_advice(strategy: str) -> None:
    subject = Subject("constrained_least_squares")
    with pytest.raises(DerivativeError, match=r"torch\.func\.jacrev"):
        jacobian(subject.solution, tuple(subject.values), vectorize=True, strategy=strategy)


def test_keys_cannot_be_mapped() -> None:
    subject = Subject("constrained_least_squares")
    with pytest.raises(InputError, match=r"keys=, warm_start= and start= cannot be used under torch\.func\.vmap"):
        vmap(lambda A, b: subject.layer(A, b, keys=[1])[0])(*subject.batch)
