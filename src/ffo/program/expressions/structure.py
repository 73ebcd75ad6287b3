"""Atoms that move entries, add them up, or multiply: rows of the table of translations.

A rule takes an atom and returns a function `f(xp, *values)`: a partial of a function of this file, so that it can be
copied to other processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.broadcast_to import broadcast_to
from cvxpy.atoms.affine.concatenate import Concatenate
from cvxpy.atoms.affine.conj import conj
from cvxpy.atoms.affine.conv import conv, convolve
from cvxpy.atoms.affine.cumsum import cumsum
from cvxpy.atoms.affine.diag import diag_mat, diag_vec
from cvxpy.atoms.affine.hstack import Hstack
from cvxpy.atoms.affine.index import index, special_index
from cvxpy.atoms.affine.kron import kron
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.real import real
from cvxpy.atoms.affine.reshape import reshape
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.trace import Trace
from cvxpy.atoms.affine.transpose import transpose
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.affine.upper_tri import upper_tri
from cvxpy.atoms.affine.vstack import Vstack
from cvxpy.atoms.affine.wraps import Wrap
from cvxpy.atoms.atom import Atom
from cvxpy.atoms.one_minus_pos import one_minus_pos

Array = np.ndarray
Function = Callable[..., Any]
Rule = Callable[[Any], Function]
Shape = tuple[int, ...]


def lead(value: Any, shape: Shape) -> Shape:
    """The batch dimension of a value of an expression with this shape: (), or one number."""
    return tuple(value.shape[: len(value.shape) - len(shape)])


def aligned(xp: Any, values: Sequence[Any], shapes: Sequence[Shape]) -> list[Any]:
    """Values that broadcast against each other, whichever of them have a batch dimension."""
    ndim = max(map(len, shapes))
    return [
        v if len(v.shape) == len(s) or len(s) == ndim else xp.reshape(v, (*lead(v, s), *(1,) * (ndim - len(s)), *s))
        for v, s in zip(values, shapes, strict=True)
    ]


def axes_of(atom: Any) -> tuple[int, ...]:
    """The axes that an atom reduces, counted from the end."""
    ndim = len(atom.args[0].shape)
    if atom.axis is None:
        return tuple(range(-ndim, 0))
    axes = (atom.axis,) if isinstance(atom.axis, int | np.integer) else tuple(atom.axis)
    return tuple(int(a) % ndim - ndim for a in axes)


def shapes_of(atom: Any) -> tuple[Shape, ...]:
    return tuple(tuple(arg.shape) for arg in operands(atom))


def with_shapes(function: Function) -> Rule:
    """The rule of functions that need the shapes of their arguments."""
    return lambda atom: partial(function, shapes=shapes_of(atom))


def operands(atom: Any) -> list[Any]:
    """The arguments of an atom; scalars that CVXPY repeats beside arrays are broadcast by the function itself."""
    if not isinstance(atom, AddExpression | DivExpression | multiply):
        return list(atom.args)
    own = [arg.args[0] if isinstance(arg, Promote) and arg.args[0].shape == () else arg for arg in atom.args]
    return own if any(arg.shape == atom.shape for arg in own) else list(atom.args)


def gather(xp: Any, *values: Any, places: Array, held: Array | None, shapes: tuple[Shape, ...], shape: Shape) -> Any:
    """Entries of the values, one after the other in C order, at some places; zero where nothing is `held`."""
    flat = [v if len(s) == 1 else xp.reshape(v, (*lead(v, s), prod(s))) for v, s in zip(values, shapes, strict=True)]
    joined = flat[0]
    if len(flat) > 1:
        batch = next((lead(v, s) for v, s in zip(values, shapes, strict=True) if len(v.shape) > len(s)), ())
        joined = xp.concatenate([xp.broadcast_to(v, (*batch, v.shape[-1])) for v in flat], axis=-1)
    found = xp.take(joined, places, axis=-1)
    if held is not None:
        found = xp.where(xp.asarray(held), found, 0.0)
    return found if len(shape) == 1 else xp.reshape(found, (*lead(joined, (1,)), *shape))


def gathered(places: Array, shapes: tuple[Shape, ...], shape: Shape) -> Function:
    """`gather`; a place of -1 holds zero."""
    held = places >= 0
    return partial(
        gather, places=np.maximum(places, 0), held=None if held.all() else held, shapes=shapes, shape=shape
    )  # fmt: skip


def gathering(atom: Any) -> Function:
    """An atom that moves entries, told by what it does to their numbers."""
    numbers, first = [], 1
    for arg in atom.args:
        numbers.append(first + np.arange(arg.size, dtype=float).reshape(arg.shape))
        first += arg.size
    places = np.asarray(atom.numeric(numbers)).astype(np.int64).ravel() - 1
    return gathered(places, shapes_of(atom), tuple(atom.shape))


def on_diagonal(xp: Any, x: Any, places: Array) -> Any:
    """A diagonal matrix, by a mask of its places: half the time of `gather`."""
    return xp.where(xp.asarray(places), xp.reshape(x, (*x.shape[:-1], 1, x.shape[-1])), 0.0)


def diagonal(atom: Any) -> Function:
    if atom.k or atom.args[0].ndim != 1:
        return gathering(atom)
    return partial(on_diagonal, places=np.eye(atom.args[0].size, dtype=bool))


def added(xp: Any, *values: Any, shapes: tuple[Shape, ...]) -> Any:
    first, *others = aligned(xp, values, shapes)
    for other in others:
        first = first + other
    return first


def multiplied(xp: Any, a: Any, b: Any, shapes: tuple[Shape, ...]) -> Any:
    a, b = aligned(xp, (a, b), shapes)
    return a * b


def divided(xp: Any, a: Any, b: Any, shapes: tuple[Shape, ...]) -> Any:
    a, b = aligned(xp, (a, b), shapes)
    return a / b


def matrix_product(xp: Any, a: Any, b: Any, shapes: tuple[Shape, ...], shape: Shape) -> Any:
    left, right = shapes
    if len(left) == len(right) == 2:
        return xp.matmul(a, b)
    batch = lead(a, left) or lead(b, right)
    if len(left) == 1:
        a = xp.reshape(a, (*lead(a, left), 1, left[0]))
    if len(right) == 1:
        b = xp.reshape(b, (*lead(b, right), right[0], 1))
    a, b = aligned(xp, (a, b), [s if len(s) > 1 else (1, 1) for s in shapes])
    return xp.reshape(xp.matmul(a, b), (*batch, *shape))


def product(atom: Any) -> Function:
    if isinstance(atom, multiply) or any(arg.shape == () for arg in atom.args):
        return partial(multiplied, shapes=shapes_of(atom))
    return partial(matrix_product, shapes=shapes_of(atom), shape=tuple(atom.shape))


def negated(xp: Any, x: Any) -> Any:
    return -x


def same(xp: Any, x: Any) -> Any:
    return x


def one_minus(xp: Any, x: Any) -> Any:
    return 1.0 - x


def summed(xp: Any, x: Any, axes: tuple[int, ...], keepdims: bool) -> Any:
    return xp.sum(x, axis=axes, keepdims=keepdims) if axes else x


def expanded(xp: Any, x: Any, source: Shape, shape: Shape) -> Any:
    batch = lead(x, source)
    source = source[max(len(source) - len(shape), 0) :]  # CVXPY repeats a matrix of one entry as a vector, too
    return xp.broadcast_to(xp.reshape(x, (*batch, *(1,) * (len(shape) - len(source)), *source)), (*batch, *shape))


def reshaped(xp: Any, x: Any, source: Shape, shape: Shape) -> Any:
    return xp.reshape(x, (*lead(x, source), *shape))


def reshaping(atom: Any) -> Function:
    if tuple(atom.shape) == tuple(atom.args[0].shape):
        return same
    if atom.order == "C" or max(len(atom.args[0].shape), len(atom.shape)) <= 1:
        return partial(reshaped, source=tuple(atom.args[0].shape), shape=tuple(atom.shape))
    return gathering(atom)


def transposed(xp: Any, x: Any, axes: tuple[int, ...]) -> Any:
    first = len(x.shape) - len(axes)
    return xp.transpose(x, (*range(first), *(first + a for a in axes)))


def transposing(atom: Any) -> Function:
    ndim = len(atom.args[0].shape)
    axes = range(ndim)[::-1] if atom.axes is None else [int(a) % ndim for a in atom.axes]
    return partial(transposed, axes=tuple(axes))


def accumulated(xp: Any, x: Any, axis: int) -> Any:
    return xp.cumsum(x, axis=axis)


def accumulating(atom: Any) -> Function:
    source = tuple(atom.args[0].shape)
    if atom.axis is None:
        return partial(accumulated_all, source=source)
    if not source:
        return same
    return partial(accumulated, axis=int(atom.axis) % len(source) - len(source))


def accumulated_all(xp: Any, x: Any, source: Shape) -> Any:
    return xp.cumsum(xp.reshape(x, (*lead(x, source), prod(source))), axis=-1)


def trace(xp: Any, x: Any) -> Any:
    return xp.sum(x * xp.asarray(np.eye(x.shape[-1])), axis=(-2, -1))


def kronecker(xp: Any, a: Any, b: Any, shapes: tuple[Shape, ...], shape: Shape) -> Any:
    """Entry (i, k), (j, l) of the product is a_ij b_kl; axes that one of them lacks have length one."""
    ndim = max(map(len, shapes))
    full = [(1,) * (ndim - len(s)) + s for s in shapes]
    left = [n for k in full[0] for n in (k, 1)]
    right = [n for k in full[1] for n in (1, k)]
    batch = lead(a, shapes[0]) or lead(b, shapes[1])
    both = xp.reshape(a, (*lead(a, shapes[0]), *left)) * xp.reshape(b, (*lead(b, shapes[1]), *right))
    return xp.reshape(both, (*batch, *shape))


def convolution(xp: Any, a: Any, b: Any, shapes: tuple[Shape, ...], shape: Shape) -> Any:
    """A Toeplitz matrix of a, times b."""
    n, m = (prod(s) for s in shapes)
    offset = np.arange(n + m - 1)[:, None] - np.arange(m)
    places = np.where((offset >= 0) & (offset < n), offset, -1)
    batch = lead(a, shapes[0]) or lead(b, shapes[1])
    a = xp.reshape(a, (*lead(a, shapes[0]), n))
    matrix = gathered(places.ravel(), ((n,),), places.shape)(xp, a)
    b = xp.reshape(b, (*lead(b, shapes[1]), m, 1))
    return xp.reshape(xp.matmul(matrix, b), (*batch, *shape))


def _shaped(function: Function) -> Rule:
    return lambda atom: partial(function, shapes=shapes_of(atom), shape=tuple(atom.shape))


def _expanding(atom: Any) -> Function:
    return partial(expanded, source=tuple(atom.args[0].shape), shape=tuple(atom.shape))


RULES: dict[type[Atom], Rule] = {
    AddExpression: with_shapes(added),
    DivExpression: with_shapes(divided),
    MulExpression: product,
    multiply: product,
    NegExpression: lambda atom: negated,
    Wrap: lambda atom: same,
    conj: lambda atom: same,
    real: lambda atom: same,
    one_minus_pos: lambda atom: one_minus,
    Sum: lambda atom: partial(summed, axes=axes_of(atom), keepdims=bool(atom.keepdims)),
    cumsum: accumulating,
    Trace: lambda atom: trace,
    diag_vec: diagonal,
    Promote: _expanding,
    broadcast_to: _expanding,
    reshape: reshaping,
    transpose: transposing,
    kron: _shaped(kronecker),
    conv: _shaped(convolution),
    convolve: _shaped(convolution),
    **dict.fromkeys(
        (index, special_index, diag_mat, upper_tri, Vstack, Hstack, Concatenate), gathering
    ),
}  # fmt: skip
