"""Several samples at once, one number of each in the lanes of a vector register; LDL' factorization on them.

Samples of one structure take the same steps on the same pattern, so four of them cost as much as one: the indices are
read once, and the processor computes on all lanes at once (eleven families at batch 64: the interior-point method takes
a quarter to a fifth of the time it takes sample by sample). Arrays are (size, LANES); `load` and `store` move a row.
Lanes support + - * /, `sqrt`, `magnitude`, `log`, `choose` and `spread`, and mix with plain numbers. Without the
compiler (NUMBA_DISABLE_JIT=1) they are rows of NumPy arrays.
"""

from __future__ import annotations

import operator
from typing import Any

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

from ffo.kernels.jit import inner_kernel

Array = np.ndarray

#: number of samples: what a 256-bit register holds. With eight, more time is lost when they end at different
#: iterations, and nothing is gained except on processors with wider registers.
LANES = 4

_VECTOR = ir.VectorType(ir.DoubleType(), LANES)


class _Lanes(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name=f"Lanes{LANES}")


_lanes = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _row(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    """Address of a row of the array args[0]."""
    array = context.make_array(signature.args[0])(context, builder, args[0])
    index = context.cast(builder, args[1], signature.args[1], types.intp)
    first = builder.gep(array.data, [builder.mul(index, ir.Constant(index.type, LANES))])
    return builder.bitcast(first, _VECTOR.as_pointer())


def _typed_load(typing: Any, a: Any, i: Any) -> Any:
    """Row i of an array."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_row(context, builder, signature, args), align=8)

    return _lanes(a, i), generate


def _typed_store(typing: Any, a: Any, i: Any, v: Any) -> Any:
    """Row i of an array := v."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(_wide(builder, args[2]), _row(context, builder, signature, args), align=8)
        return context.get_dummy_value()

    return types.void(a, i, v), generate


def _wide(builder: Any, value: Any) -> Any:
    """A number in every lane; lanes unchanged."""
    if value.type == _VECTOR:
        return value
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), zeros)


def _typed_spread(typing: Any, x: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _wide(builder, args[0])

    return _lanes(types.float64), generate


def _typed_choose(typing: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, b, yes, no = (_wide(builder, v) for v in args)
        return builder.select(builder.fcmp_ordered("<", a, b), yes, no)

    return _lanes(*(v if v == _lanes else types.float64 for v in (a, b, yes, no))), generate


def _of_one(name: str) -> Any:
    """An LLVM intrinsic of one argument."""

    def typed(typing: Any, v: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.FunctionType(_VECTOR, [_VECTOR])
            function = cgutils.get_or_insert_function(builder.module, kind, f"{name}.v{LANES}f64")
            return builder.call(function, args)

        return _lanes(v), generate

    return intrinsic(typed)


def _register(symbol: Any, instruction: str) -> None:
    def typer(context: Any) -> Any:
        def result(a: Any, b: Any) -> Any:
            return _lanes if _lanes in (a, b) else None

        return result

    def lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = [
            v if kind == _lanes else context.cast(builder, v, kind, types.float64)
            for v, kind in zip(args, signature.args, strict=True)
        ]
        return getattr(builder, instruction)(*(_wide(builder, v) for v in values), flags=("contract",))

    type_callable(symbol)(typer)
    for kinds in ((_lanes, _lanes), (_lanes, types.Number), (types.Number, _lanes)):
        lower_builtin(symbol, *kinds)(lower)


if not numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
    load: Any = intrinsic(_typed_load)
    store: Any = intrinsic(_typed_store)
    spread: Any = intrinsic(_typed_spread)
    choose: Any = intrinsic(_typed_choose)
    sqrt, magnitude, log = _of_one("llvm.sqrt"), _of_one("llvm.fabs"), _of_one("llvm.log")
    for _symbol, _instruction in (("add", "fadd"), ("sub", "fsub"), ("mul", "fmul"), ("truediv", "fdiv")):
        _register(getattr(operator, _symbol), _instruction)
        _register(getattr(operator, f"i{_symbol}"), _instruction)

else:  # the same in NumPy

    def load(a: Array, i: int) -> Array:
        return a[i].copy()

    def store(a: Array, i: int, v: Any) -> None:
        a[i] = v

    def spread(x: float) -> Array:
        return np.full(LANES, x)

    def choose(a: Any, b: Any, yes: Any, no: Any) -> Array:
        return np.where(np.less(a, b), yes, no)

    sqrt, magnitude, log = np.sqrt, np.abs, np.log


@inner_kernel
def largest(a: Any, b: Any) -> Any:
    """The larger one in every lane; b where either is NaN."""
    return choose(b, a, a, b)


@inner_kernel
def smallest(a: Any, b: Any) -> Any:
    """The smaller one in every lane; a where either is NaN."""
    return choose(b, a, b, a)


@inner_kernel
def clear(a: Array) -> None:
    """a := 0."""
    zero = spread(0.0)
    for i in range(a.shape[0]):
        store(a, i, zero)


@inner_kernel
def factor(
    Kp: Array, Ki: Array, Lp: Array, Li: Array, Rp: Array, Ri: Array, sign: Array,
    Kx: Array, shift: float, y: Array, Lx: Array, Dinv: Array,
) -> None:  # fmt: skip
    """`ldl.factor` on lanes, of a matrix that is equilibrated already; y: (n, LANES) of workspace."""
    n = sign.size
    place = Lp[:n].copy()
    zero = spread(0.0)
    clear(y)
    for k in range(n):
        d = spread(shift * sign[k])
        for p in range(Kp[k], Kp[k + 1]):
            i = Ki[p]
            if i == k:
                d += load(Kx, p)
            else:
                store(y, i, load(Kx, p))
        for t in range(Rp[k], Rp[k + 1]):
            c = Ri[t]
            v, end = load(y, c), place[c]
            store(y, c, zero)
            for q in range(Lp[c], end):
                i = Li[q]
                store(y, i, load(y, i) - load(Lx, q) * v)
            entry = v * load(Dinv, c)
            d -= v * entry
            store(Lx, end, entry)
            place[c] = end + 1
        d = choose(0.5 * shift, d * sign[k], d, shift * sign[k])
        store(Dinv, k, 1.0 / d)


@inner_kernel
def solve(Lp: Array, Li: Array, Lx: Array, Dinv: Array, x: Array) -> None:
    """x := (LDL')^-1 x."""
    n = x.shape[0]
    for i in range(n):
        v = load(x, i)
        for p in range(Lp[i], Lp[i + 1]):
            j = Li[p]
            store(x, j, load(x, j) - load(Lx, p) * v)
    for i in range(n - 1, -1, -1):
        v = load(x, i) * load(Dinv, i)
        for p in range(Lp[i], Lp[i + 1]):
            v -= load(Lx, p) * load(x, Li[p])
        store(x, i, v)


@inner_kernel
def residual(Kp: Array, Ki: Array, Kx: Array, z: Array, rhs: Array, out: Array) -> Any:
    """out := rhs - K z, K symmetric, upper CSC; returns the squares of its norms."""
    for j in range(z.shape[0]):
        store(out, j, load(rhs, j))
    for j in range(z.shape[0]):
        total, zj = load(out, j), load(z, j)
        for p in range(Kp[j], Kp[j + 1]):
            i = Ki[p]
            entry = load(Kx, p)
            total -= entry * load(z, i)
            if i != j:
                store(out, i, load(out, i) - entry * zj)
        store(out, j, total)
    norm = spread(0.0)
    for j in range(z.shape[0]):
        v = load(out, j)
        norm += v * v
    return norm
