"""Guarantees of a solved batch, for every layer and program, tested through the public interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from contracts.subjects import DIFFERENTIABLE, QPS, QUADRATIC, SIZE, SUBJECTS, Subject, Tensors, layer_of, subject
from layers import loss_of

from ffo.engine.info import Info
from ffo.errors import Status

# issued by torch's own forward mode
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")

Array = np.ndarray
#: two routes to one answer, relative to its largest entry
OUTPUT, GRADIENT = 1e-8, 1e-6

every = pytest.mark.parametrize("name", SUBJECTS)
differentiable = pytest.mark.parametrize("name", DIFFERENTIABLE)
quadratic = pytest.mark.parametrize("name", QUADRATIC)


@dataclass(frozen=True)
class Outcome:
    """Outputs, gradients of `loss_of` over the samples that were solved (None without any), and the report."""

    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor] | None
    info: Info


def solve(layer: Callable[..., Tensors], values: Sequence[Array], gradients: bool = True, **options: object) -> Outcome:
    """One call on a batch of samples."""
    given = [torch.tensor(v, requires_grad=gradients) for v in values]
    outputs = layer(*given, **options)
    info = layer.info
    if not gradients:
        return Outcome([v.detach() for v in outputs], None, info)
    loss = loss_of([v[torch.tensor(info.ok)] for v in outputs], batched=True).sum()
    return Outcome([v.detach() for v in outputs], list(torch.autograd.grad(loss, given)), info)


def outcome(name: str, values: Sequence[Array], **options: object) -> Outcome:
    return solve(layer_of(name), values, subject(name).differentiable, **options)


def rows(values: Sequence[Array], samples: Sequence[int]) -> list[Array]:
    return [v[list(samples)] for v in values]


def close(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], tolerance: float, what: str) -> None:
    """Equal up to a share of the largest entry of all."""
    size = max(float(e.abs().max()) for e in expected if e.numel())
    for k, (f, e) in enumerate(zip(found, expected, strict=True)):
        torch.testing.assert_close(f, e, rtol=0, atol=tolerance * size, msg=lambda m, k=k: f"{what} {k}: {m}")


def assert_same(found: Outcome, expected: Outcome, samples: Sequence[int] | slice = slice(None)) -> None:
    """These samples of an outcome are another outcome."""
    close([v[samples] for v in found.outputs], expected.outputs, OUTPUT, "output")
    if expected.gradients is not None:
        assert found.gradients is not None
        close([g[samples] for g in found.gradients], expected.gradients, GRADIENT, "gradient")


def not_a_number(subject: Subject, values: list[Array], k: int) -> None:
    values[-1].reshape(len(values[-1]), -1)[k, 0] = np.nan


def infeasible(subject: Subject, values: list[Array], k: int) -> None:
    """g'z <= -1 and -g'z <= -1."""
    blocks = dict(zip(subject.names, values, strict=True))
    blocks["G"][k, 1] = -blocks["G"][k, 0]
    blocks["h"][k, :2] = -1.0
    if "lower" in blocks:
        blocks["lower"][k, :2] = -50.0


#: name of a failure -> what makes it, and the statuses that may come of it
FAILURES: dict[str, tuple[Callable[[Subject, list[Array], int], None], set[Status]]] = {
    "nan": (not_a_number, {Status.INVALID_INPUT}),
    "infeasible": (infeasible, {Status.INFEASIBLE}),
}
#: geometric programs refuse such data before anything is solved
BAD = [("nan", name) for name in SUBJECTS if name != "FFOLayer: box_volume"] + [
    ("infeasible", name) for name in QUADRATIC if QPS[name.split(": ")[1]].get("rows", 5)
]


@quadratic
def test_solutions_are_the_known_ones(name: str) -> None:
    chosen = subject(name)
    found = outcome(name, chosen.values)
    assert chosen.known is not None
    np.testing.assert_allclose(found.outputs[0], chosen.known, atol=1e-8 * np.abs(chosen.known).max())


@differentiable
def test_outputs_do_not_depend_on_gradients(name: str) -> None:
    chosen = subject(name)
    polished, plain = (solve(layer_of(name), chosen.values, gradients) for gradients in (True, False))
    with torch.no_grad():
        again = layer_of(name)(*(torch.tensor(v, requires_grad=True) for v in chosen.values))
    close(plain.outputs, polished.outputs, OUTPUT, "output")
    close(again, polished.outputs, OUTPUT, "output")


@every
def test_a_batch_is_its_samples(name: str) -> None:
    """Called without a batch dimension, and with one of size 1."""
    chosen = subject(name)
    whole = outcome(name, chosen.values)
    for k in range(SIZE):
        assert_same(whole, outcome(name, rows(chosen.values, [k])), [k])
        alone = layer_of(name)(*(torch.tensor(v[k]) for v in chosen.values))
        close(alone, [v[k] for v in whole.outputs], OUTPUT, "output")


@every
def test_the_order_of_samples_does_not_matter(name: str) -> None:
    chosen, order = subject(name), [2, 0, 1, 0]
    whole = outcome(name, chosen.values)
    assert_same(
        outcome(name, rows(chosen.values, order)),
        Outcome(
            [v[order] for v in whole.outputs],
            None if whole.gradients is None else [g[order] for g in whole.gradients],
            whole.info,
        ),
    )


@differentiable
def test_shared_values_are_those_expanded(name: str) -> None:
    """Matrices shared by all samples: their gradient is the sum over the batch."""
    chosen, layer = subject(name), layer_of(name)
    first = [v[:1] for v in chosen.values]
    shared = [torch.tensor(v[0], requires_grad=True) for v in first]
    spread = [torch.tensor(np.repeat(v, SIZE, axis=0), requires_grad=True) for v in first]
    mixed = [*spread[:1], *shared[1:]] if len(shared) > 1 else spread
    outputs, expected = layer(*mixed), layer(*spread)
    close([v.detach() for v in outputs], [v.detach() for v in expected], OUTPUT, "output")
    wanted = torch.autograd.grad(loss_of(expected, batched=True).sum(), spread)
    found = torch.autograd.grad(loss_of(outputs, batched=True).sum(), mixed)
    close(found, [w if f.shape == w.shape else w.sum(0) for f, w in zip(found, wanted, strict=True)], GRADIENT, "of")


@pytest.mark.parametrize(("failure", "name"), BAD)
def test_a_failed_sample_leaves_the_others_alone(failure: str, name: str) -> None:
    chosen, (spoil, statuses) = subject(name), FAILURES[failure]
    values = [v.copy() for v in chosen.values]
    spoil(chosen, values, 1)
    found, good = outcome(name, values), [0, 2]
    info, certificate = found.info, found.info.certificate
    assert info.ok.tolist() == [True, False, True]
    assert info.status[1] in statuses
    assert set(info.detail) <= {1}
    assert failure != "nan" or "NaN" in info.detail[1]
    assert certificate is not None
    assert certificate.good.tolist() == [True, False, True]
    assert certificate.reasons(1) == ["the sample was not solved"]
    assert found.outputs[0][1].isnan().any()
    for v in found.outputs:  # except for what is structurally zero
        assert v[1][v[0] != 0].isnan().all()
    for k in good:
        assert_same(found, outcome(name, rows(chosen.values, [k])), [k])
    if found.gradients is not None:
        assert not any(g[1].any() for g in found.gradients)


@differentiable
def test_repeated_backward_gives_the_same(name: str) -> None:
    given = [torch.tensor(v, requires_grad=True) for v in subject(name).values]
    outputs = layer_of(name)(*given)
    loss, other = loss_of(outputs, batched=True).sum(), sum(v.square().sum() for v in outputs)
    first = torch.autograd.grad(loss, given, retain_graph=True)
    torch.autograd.grad(other, given, retain_graph=True)
    for f, e in zip(torch.autograd.grad(loss, given), first, strict=True):
        torch.testing.assert_close(f, e, rtol=0, atol=0)


@differentiable
def test_jvp_and_vjp_are_transposes(name: str) -> None:
    chosen, layer = subject(name), layer_of(name)
    given = [torch.tensor(v) for v in chosen.values]
    directions = [torch.tensor(d) for d in chosen.directions]
    outputs, along = torch.func.jvp(lambda *v: tuple(layer(*v)), tuple(given), tuple(directions))
    found = solve(layer, chosen.values)
    close(outputs, found.outputs, OUTPUT, "output")
    pushed = loss_of(along, batched=True)
    assert found.gradients is not None
    terms = [(g * d).reshape(SIZE, -1).sum(1) for g, d in zip(found.gradients, directions, strict=True)]
    size = sum(t.abs().max() for t in terms)
    torch.testing.assert_close(pushed, sum(terms), rtol=0, atol=float(GRADIENT * size))


@every
def test_the_report_speaks_of_every_sample(name: str) -> None:
    chosen, layer = subject(name), layer_of(name)
    found = outcome(name, chosen.values)
    info = found.info
    assert info.status == [Status.SOLVED] * SIZE
    assert info.ok.all()
    assert len(info.solver) == SIZE
    assert all(info.solver)
    for field in ("residual", "iterations", "retried", "rescued"):
        assert getattr(info, field).shape == (SIZE,), field
    assert info.residual.max() <= 1e-9
    assert (info.iterations >= -1).all()
    assert info.warm_hits == 0
    assert not info.retried.any()
    assert not info.rescued.any()
    assert info.detail == {}
    assert info.certificate is not None
    assert all(v.shape == (SIZE,) for v in vars(info.certificate).values())
    assert info.certificate.good.tolist() == [True] * SIZE
    times = info.times
    assert 0 < times.solve + times.setup + times.polish <= times.forward
    if chosen.differentiable:
        assert times.backward > 0
        assert (info.certificate.ghost_residual <= 1e-8).all()
        assert layer.info is info


# Quadratic programs


def with_blocks(name: str, **changed: Array) -> list[Array]:
    return list((subject(name).blocks | changed).values())


MISSING = [
    (name, side)
    for name in QUADRATIC
    for side in ("h", "lower", "lb", "ub")
    if subject(name).open_sides and side in subject(name).blocks
]


@pytest.mark.parametrize(("name", "side"), MISSING)
def test_an_infinite_side_is_no_constraint(name: str, side: str) -> None:
    """Inactive rows, removed in some samples: the same solutions, and no gradient in the removed rows."""
    chosen = subject(name)
    whole = outcome(name, chosen.values)
    value, z = chosen.blocks[side], chosen.known
    reached = z if side in ("lb", "ub") else np.einsum("bij,bj->bi", chosen.blocks["G"], z)
    slack = np.abs(value - reached) > 0.1
    slack[1] = False  # this sample has all its rows
    assert slack.any()
    open_side = -np.inf if side in ("lb", "lower") else np.inf
    found = outcome(name, with_blocks(name, **{side: np.where(slack, open_side, value)}))
    assert_same(found, whole)
    if found.gradients is not None:
        assert not found.gradients[chosen.names.index(side)][torch.tensor(slack)].any()
        assert all(g.isfinite().all() for g in found.gradients)


def assert_same_in_other_units(name: str, blocks: dict[str, Array], unit: Array | float, costs: float) -> None:
    """Blocks that stand for the subject's own: z = unit z', p = costs p' / unit.

    Compared are solutions and, for a loss w'z, gradients in p.
    """
    chosen, layer = subject(name), layer_of(name)
    assert chosen.known is not None
    weights = np.cos(1.7 * np.arange(chosen.known.shape[1]))

    def solved(values: Sequence[Array], unit: Array | float) -> tuple[Array, Array]:
        given = [torch.tensor(v, requires_grad=chosen.differentiable) for v in values]
        z = layer(*given)[0]
        if not chosen.differentiable:
            return z.numpy() * unit, np.zeros(z.shape)
        p = given[chosen.names.index("p")]
        (gradient,) = torch.autograd.grad((z * torch.tensor(weights * unit)).sum(), p)
        return z.detach().numpy() * unit, gradient.numpy()

    found, gradient = solved(list((chosen.blocks | blocks).values()), unit)
    _, expected = solved(chosen.values, 1.0)
    np.testing.assert_allclose(found, chosen.known, rtol=0, atol=1e-7 * np.abs(chosen.known).max())
    size = max(np.abs(expected).max(), 1.0)  # zero at a vertex
    np.testing.assert_allclose(gradient * unit / costs, expected, rtol=0, atol=GRADIENT * size)


def powers(power: int, count: int) -> Array:
    """(count,) units of rows or columns: 10^power, 10^-power and 1 in turn."""
    return 10.0 ** np.resize([power, -power, 0.0], count)


@quadratic
def test_units_of_rows_do_not_matter(name: str) -> None:
    blocks = dict(subject(name).blocks)
    for matrix, sides in (("G", ("h", "lower")), ("A", ("b",))):
        if matrix in blocks:
            unit = powers(5, blocks[matrix].shape[1])
            blocks[matrix] = blocks[matrix] * unit[:, None]
            blocks |= {side: blocks[side] * unit for side in sides if side in blocks}
    assert_same_in_other_units(name, blocks, unit=1.0, costs=1.0)


#: 10^5 and 10^-5 in one program only where the current code handles it
COLUMNS = [
    (name, power)
    for name in QUADRATIC
    for power in (3, 5)
    if power == 3 or name.split(": ")[1] in ("inequalities and equalities", "equalities", "everything")
]


@pytest.mark.parametrize(("name", "power"), COLUMNS)
def test_units_of_variables_do_not_matter(name: str, power: int) -> None:
    """z = D z' with D of 10^power, 10^-power and 1."""
    blocks = subject(name).blocks
    unit = powers(power, blocks["p"].shape[1])
    scaled = {key: v * unit for key, v in blocks.items() if key in ("Q", "p", "G", "A")}
    scaled |= {key: blocks[key] / unit for key in ("lb", "ub") if key in blocks}
    if "Q" in scaled:
        scaled["Q"] = scaled["Q"] * unit[:, None]
    assert_same_in_other_units(name, scaled, unit=unit, costs=1.0)


@pytest.mark.parametrize("size", [1e-5, 1e5])
@quadratic
def test_units_of_costs_do_not_matter(name: str, size: float) -> None:
    scaled = {key: size * v for key, v in subject(name).blocks.items() if key in ("Q", "p")}
    assert_same_in_other_units(name, scaled, unit=1.0, costs=1.0 / size)


# Warm starts


@differentiable
def test_warm_starts_give_the_same(name: str) -> None:
    """Keys in another order, then keys of other samples: speed may change, answers must not."""
    chosen, layer = subject(name), subject(name).make(on_fail="nan")
    cold = solve(layer, chosen.values)
    assert_same(solve(layer, chosen.values, keys=["a", "b", "c"]), cold)
    for samples, keys in (([2, 0], ["c", "a"]), ([1, 2, 0], ["a", "b", "c"]), ([0, 1], ["new", "b"])):
        warm = solve(layer, rows(chosen.values, samples), keys=keys)
        expected = solve(layer, rows(chosen.values, samples))
        assert_same(warm, expected)
        assert 0 <= warm.info.warm_hits <= len(samples)
    again = solve(layer, chosen.values, keys=["x", "y", "z"])
    again = solve(layer, chosen.values, keys=["x", "y", "z"])
    assert again.info.warm_hits == SIZE
