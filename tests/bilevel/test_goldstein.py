"""GoldsteinDescent as an optimizer: its steps one by one, its certificate, its state."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch

from ffo.bilevel import GoldsteinDescent, plan
from ffo.errors import InputError, NotFiniteError

D = torch.float64


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=D, requires_grad=True)


def kinky(*tensors: torch.Tensor) -> torch.Tensor:
    """Piecewise linear with a minimum at 0."""
    return sum((torch.maximum(2 * t, -t).sum() for t in tensors), start=torch.zeros((), dtype=D))


def closure_of(
    optimizer: torch.optim.Optimizer, loss: Callable[..., torch.Tensor], *tensors: torch.Tensor
) -> Callable[[], torch.Tensor]:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(*tensors)
        value.backward()
        return value

    return closure


def test_steps_are_those_of_the_algorithm() -> None:
    """Against the four lines of the module's docstring, written out."""
    radius, lr, window, steps = 0.05, 0.02, 7, 40
    x = vector(0.6, -0.3)
    walk = GoldsteinDescent([x], radius, lr, window, generator=generator(5))
    random = generator(5)
    at, move, points, gradients = x.detach().clone(), torch.zeros(2, dtype=D), [], []
    closure = closure_of(walk, kinky, x)
    for t in range(1, steps + 1):
        s = torch.rand((), generator=random, dtype=D)
        z = at + s * move
        g = torch.where(z > 0, 2.0, -1.0).to(D)
        at = at + move
        move = move - lr * g
        move = move * min(1.0, radius / float(move.norm()))
        points, gradients = [*points, z], [*gradients, g]
        loss = walk.step(closure)
        assert float(loss.detach()) == pytest.approx(float(kinky(z)))
        torch.testing.assert_close(x.detach(), at)
        if t % window == 0:
            last = walk.last
            torch.testing.assert_close(last.centre[0], torch.stack(points).mean(0))
            assert last.stationarity == pytest.approx(float(torch.stack(gradients).mean(0).norm()))
            assert last.value == pytest.approx(float(torch.stack([kinky(p) for p in points]).mean()))
            assert max(float((p - last.centre[0]).norm()) for p in points) <= last.radius <= window * radius + 1e-12
            points, gradients = [], []


def test_the_best_window_is_kept_and_loaded() -> None:
    x = vector(1.0, 1.0)
    walk = GoldsteinDescent.from_theory([x], delta=0.5, epsilon=0.5, lipschitz=2 * 2**0.5, generator=generator())
    closure = closure_of(walk, kinky, x)
    seen = []
    while len(seen) < 12:
        walk.step(closure)
        if walk.filled == 0:
            seen.append(walk.last)
    best = min(seen, key=lambda w: w.stationarity)
    assert walk.best.index == best.index
    assert best.stationarity <= 0.5
    walk.load_best()
    torch.testing.assert_close(x.detach(), best.centre[0])
    assert float(x.detach().norm()) <= 0.5  # 0 must lie within delta: gradients are large elsewhere


def test_maximize_is_minimize_of_the_negative() -> None:
    runs = []
    for sign in (1, -1):
        x = vector(0.4, -0.8)
        walk = GoldsteinDescent([x], 0.05, 0.01, 10, maximize=sign < 0, generator=generator(2))
        closure = closure_of(walk, lambda t, s=sign: s * kinky(t), x)
        for _ in range(50):
            walk.step(closure)
        runs.append((x.detach(), walk.best.stationarity))
    torch.testing.assert_close(runs[0][0], runs[1][0])
    assert runs[0][1] == pytest.approx(runs[1][1])


def test_one_walk_over_several_parameters_of_any_shape() -> None:
    """Clipped together, as one vector, as in the theory."""
    whole, runs = torch.linspace(-1, 1, 7, dtype=D), []
    for parts in ([whole], [whole[:3], whole[3].reshape(()), whole[4:6].reshape(2, 1), whole[6:]]):
        tensors = [p.clone().requires_grad_() for p in parts]
        walk = GoldsteinDescent(tensors, 0.05, 0.01, 10, generator=generator())
        closure = closure_of(walk, kinky, *tensors)
        for _ in range(35):
            walk.step(closure)
        runs.append((torch.cat([t.detach().reshape(-1) for t in tensors]), walk.best.stationarity, walk.best.radius))
    torch.testing.assert_close(runs[0], runs[1])


def test_groups_have_their_own_radius_and_rate() -> None:
    a, b = vector(3.0), vector(3.0)
    walk = GoldsteinDescent([{"params": [a], "radius": 0.01}, {"params": [b], "lr": 1e-4}], 0.1, 10.0, 5)
    closure = closure_of(walk, kinky, a, b)
    for _ in range(4):
        walk.step(closure)
    assert float(a.detach()) == pytest.approx(3.0 - 3 * 0.01)  # clipped; the first step has no direction yet
    assert float(b.detach()) == pytest.approx(3.0 - (1 + 2 + 3) * 1e-4 * 2)


def test_a_parameter_that_the_loss_does_not_use_stays() -> None:
    a, b = vector(1.0), vector(1.0)
    walk = GoldsteinDescent([a, b], 0.1, 0.1, 3)
    for _ in range(6):
        walk.step(closure_of(walk, kinky, a))
    assert float(b.detach()) == 1.0
    assert float(a.detach()) < 1.0


def test_same_generator_same_walk() -> None:
    def run(seed: int) -> torch.Tensor:
        x = vector(0.3, 0.2)
        walk = GoldsteinDescent([x], 0.05, 0.05, 10, generator=generator(seed))
        for _ in range(60):
            walk.step(closure_of(walk, kinky, x))
        return torch.cat([x.detach(), *walk.best.centre])

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))


@pytest.mark.parametrize("at", [7, 10, 24], ids=["in the first window", "between windows", "later"])
def test_a_saved_walk_goes_on_as_if_nothing_had_happened(at: int, tmp_path: object) -> None:
    x = vector(0.3, -0.2)
    walk = GoldsteinDescent([x], 0.05, 0.05, 10, generator=generator(3))
    for _ in range(at):
        walk.step(closure_of(walk, kinky, x))
    torch.save({"walk": walk.state_dict(), "x": x}, f"{tmp_path}/saved.pt")
    saved = torch.load(f"{tmp_path}/saved.pt", weights_only=True)
    other = saved["x"].detach().requires_grad_()
    resumed = GoldsteinDescent([other], 1.0, 1.0, 99, generator=generator(99))
    resumed.load_state_dict(saved["walk"])
    for _ in range(31):
        walk.step(closure_of(walk, kinky, x))
        resumed.step(closure_of(resumed, kinky, other))
    assert torch.equal(x, other)
    assert walk.best.index == resumed.best.index
    assert torch.equal(walk.best.centre[0], resumed.best.centre[0])
    assert walk.window == resumed.window == 10


def test_a_loaded_state_is_a_copy() -> None:
    x = vector(0.3)
    walk = GoldsteinDescent([x], 0.05, 0.05, 10)
    walk.step(closure_of(walk, kinky, x))
    other = GoldsteinDescent([vector(0.3)], 0.05, 0.05, 10)
    other.load_state_dict(walk.state_dict())
    walk.step(closure_of(walk, kinky, x))
    assert (walk.filled, other.filled) == (2, 1)


def test_a_deep_copy_walks() -> None:
    x = vector(0.3)
    walk = copy.deepcopy(GoldsteinDescent([x], 0.05, 0.05, 2))
    (mine,) = walk.param_groups[0]["params"]
    for _ in range(4):
        walk.step(closure_of(walk, kinky, mine))
    assert walk.last.index == 1


def test_following_another_plan_gives_up_the_window_and_shortens_the_step() -> None:
    x = vector(3.0)
    walk = GoldsteinDescent([x], 1.0, 1.0, 10)
    for _ in range(3):
        walk.step(closure_of(walk, kinky, x))
    before = float(x.detach())
    new = plan(0.1, 1.0, 2.0)
    walk.follow(new)
    assert (walk.filled, walk.window) == (0, new.window)
    for _ in range(new.window):
        walk.step(closure_of(walk, kinky, x))
    assert walk.last.radius <= 0.1 + 1e-12
    assert abs(float(x.detach()) - before) <= 0.1 + 1e-12


def test_an_unfinished_window_can_be_finished() -> None:
    x = vector(3.0)
    walk = GoldsteinDescent([x], 0.1, 0.1, 100)
    assert walk.finish_window() is None
    for _ in range(3):
        walk.step(closure_of(walk, kinky, x))
    assert walk.finish_window().stationarity == pytest.approx(2.0)
    assert walk.filled == 0


def test_single_precision_windows_are_accurate() -> None:
    x = torch.tensor([1000.0], requires_grad=True)
    walk = GoldsteinDescent([x], 1e-3, 1e-9, 20_000, generator=generator())
    for _ in range(20_000):
        walk.to_random_point()
        x.grad = torch.full((1,), 0.1)
        walk.advance()
    assert walk.last.stationarity == pytest.approx(0.1, rel=1e-5)
    assert float(walk.last.centre[0]) == pytest.approx(1000.0, rel=1e-5)


def test_a_closure_that_fails_leaves_the_iterate() -> None:
    x = vector(1.0, -1.0)
    walk = GoldsteinDescent([x], 0.1, 0.1, 5, generator=generator())
    for _ in range(3):
        walk.step(closure_of(walk, kinky, x))
    before = x.detach().clone()

    def broken() -> torch.Tensor:
        raise RuntimeError("no solution")

    with pytest.raises(RuntimeError, match="no solution"):
        walk.step(broken)
    assert torch.equal(x.detach(), before)


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    x = vector(1.0)
    walk = GoldsteinDescent([x], 0.1, 0.1, 5)
    walk.step(closure_of(walk, kinky, x))
    walk.step(closure_of(walk, kinky, x))
    before = x.detach().clone()
    with pytest.raises(NotFiniteError, match="not finite"):
        walk.step(closure_of(walk, lambda t: (t * torch.nan).sum(), x))
    assert torch.equal(x.detach(), before)


@pytest.mark.parametrize(
    ("bad", "word"),
    [({"radius": 0.0}, "radius"), ({"lr": -1.0}, "lr"), ({"window": 0}, "window"), ({"window": 2.5}, "window")],
)
def test_nonsense_is_named(bad: dict[str, float], word: str) -> None:
    with pytest.raises(InputError, match=word):
        GoldsteinDescent([vector(1.0)], **{"radius": 1.0, "lr": 1.0, "window": 1} | bad)
    if word != "window":
        with pytest.raises(InputError, match=word):
            GoldsteinDescent([{"params": [vector(1.0)], **bad}], 1.0, 1.0, 1)


def test_a_step_needs_a_closure_and_an_answer_a_window() -> None:
    walk = GoldsteinDescent([vector(1.0)], 1.0, 1.0, 4)
    with pytest.raises(InputError, match="closure"):
        walk.step()
    with pytest.raises(InputError, match="4 more steps"):
        walk.load_best()
