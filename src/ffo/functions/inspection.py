"""What autograd does not see of users' functions: parts that depend on y, and tensors that require gradients."""

from __future__ import annotations

import torch

from ffo.errors import FFOError, InputError
from ffo.functions.active import generator, largest
from ffo.functions.problem import NAMES, Problem, Tensor, graph_nodes, pull

_UNKNOWN = (
    "the functions use a tensor that requires gradients and is not known to the layer{shape}: pass it as theta, "
    "or give its module in modules=, or detach it"
)
_CUT = (
    "{name} depends on y, but autograd does not see how: between y and the result use no NumPy, .item(), .detach() or "
    "integers"
)
_BROKEN = (
    "autograd cannot differentiate the functions: {error}. They may not use torch.utils.checkpoint on modules, which "
    "evaluates these again when the layer has taken its copies of the weights away"
)
#: steps of differences, relative to 1 + |y|; the next is tried if one does not agree with autograd. And rounding
#: errors of values: those of single precision, and of double precision for functions that oscillate
STEPS = (1e-3, 1e-7), (1e-4, 1e-7), (1e-6, 1e-12)
#: part of a derivative that may be missing
MISSED = 1e-4
#: distance, relative to 1 + |y|, of another point where derivatives must not agree either
ELSEWHERE = 1e-2


def check_graph(problem: Problem, y: Tensor, leaves: bool) -> None:
    """Raise if part of a function depends on y where autograd does not see it, and so would count as constant; or if
    functions close over tensors that require gradients (`leaves`): these would silently get none.

    Derivatives are compared with differences, which costs two more evaluations. Where autograd cannot differentiate
    functions under vmap (`torch.utils.checkpoint`), they are evaluated sample by sample from now on.
    """
    try:
        _check(problem, y, leaves)
    except RuntimeError as error:
        if isinstance(error, FFOError | torch.OutOfMemoryError):
            raise
        if not problem.functions.mapped:
            raise InputError(_BROKEN.format(error=str(error).splitlines()[0])) from error
        problem.functions.mapped = False
        check_graph(problem, y, leaves)


def _check(problem: Problem, y: Tensor, leaves: bool) -> None:
    source = generator(y)
    for which, given in enumerate(problem.functions.given):
        if given is None:
            continue
        with torch.enable_grad():
            at = y.detach().requires_grad_()
            value = problem.value(which, at)
        if value.requires_grad:
            # where values are equal, a derivative of their median need not be between the differences: only there
            elsewhere = y + ELSEWHERE * _direction(y, source)
            cut = _is_cut(problem, which, at, value, source) and _is_cut(problem, which, elsewhere, None, source)
        else:
            cut = _changes(value, problem, which, y)
        if cut:
            raise InputError(_CUT.format(name=NAMES[which]))
        for node in graph_nodes(value) if leaves and value.requires_grad else ():
            leaf = getattr(node, "variable", None)
            if leaf is not None and leaf is not at:
                raise InputError(_UNKNOWN.format(shape=f" (shape {tuple(leaf.shape)})"))


def _direction(y: Tensor, source: torch.Generator) -> Tensor:
    return torch.randn(y.shape, generator=source, dtype=y.dtype, device=y.device) * (1.0 + largest(y)).unsqueeze(1)


def _is_cut(problem: Problem, which: int, at: Tensor, value: Tensor | None, source: torch.Generator) -> bool:
    """Whether the derivative of a function along a random direction is outside the range of the differences ahead and
    behind, widened by their distance: at a kink it may be anywhere between the two. `value`: at this point, if known.
    """
    along, size = _direction(at.detach(), source), len(at)
    with torch.enable_grad():
        at = at if value is not None else at.detach().requires_grad_()
        value = problem.value(which, at) if value is None else value
        factors = torch.randn(value[0].numel(), generator=source, dtype=at.dtype, device=at.device)
        here = value.reshape(size, -1) @ factors
    terms, y, here = pull(here, at, torch.ones_like(here), keep=True) * along, at.detach(), here.detach()
    slope, most = terms.sum(1), torch.maximum(terms.abs().sum(1), here.abs())
    cut = slope.isfinite()
    for t, rounding in STEPS:
        steps = [problem.value(which, y + sign * t * along).reshape(size, -1) @ factors for sign in (1.0, -1.0)]
        ahead, behind = (steps[0] - here) / t, (here - steps[1]) / t
        most = torch.maximum(most, torch.maximum(ahead.abs(), behind.abs()))
        slack = (ahead - behind).abs() + (MISSED + rounding / t) * most
        cut &= (slope < torch.minimum(ahead, behind) - slack) | (slope > torch.maximum(ahead, behind) + slack)
        cut &= ahead.isfinite() & behind.isfinite()
        if not cut.any():
            return False
    return True


def _changes(value: Tensor, problem: Problem, which: int, y: Tensor) -> bool:
    """Whether a function has another value elsewhere."""
    try:
        other = problem.value(which, y + y.abs() + 1.0)
    except FFOError:
        return False
    both = value.isfinite() & other.isfinite()
    return bool((both & (value != other)).any())
