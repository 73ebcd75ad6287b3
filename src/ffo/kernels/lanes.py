"""Several samples at once, one number of each in the lanes of a vector register; LDL' factorization on them.

Samples of one structure take the same steps on the same pattern, so four of them cost as much as one: the indices are
read once, and the processor computes on all lanes at once (eleven families at batch 64: the interior-point method takes
a quarter to a fifth of the time it takes sample by sample). Arrays are (size, LANES); `load` and `store` move a row.
Lanes support + - * /, `sqrt`, `magnitude`, `log`, `choose`, `any_below` and `spread`, and mix with plain numbers.
Without the compiler (NUMBA_DISABLE_JIT=1) they are rows of NumPy arrays.
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

_VECTOR, _BITS = ir.VectorType(ir.DoubleType(), LANES), ir.VectorType(ir.IntType(64), LANES)

#: ln 2 in two parts, of which the first times an exponent is exact; and the coefficients of (log((1 + s) / (1 - s)) -
#: 2 s) / s in powers of s^2, as in FreeBSD's msun
LN2_HIGH, LN2_LOW, ROOT2 = 6.93147180369123816490e-01, 1.90821492927058770002e-10, float(np.sqrt(2.0))
SERIES = (
    6.666666666666735130e-01, 3.999999999940941908e-01, 2.857142874366239149e-01, 2.222219843214978396e-01,
    1.818357216161805012e-01, 1.531383769920937332e-01, 1.479819860511658591e-01,
)  # fmt: skip


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


def _typed_any_below(typing: Any, a: Any, b: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        below = builder.fcmp_ordered("<", *(_wide(builder, v) for v in args))
        bits = builder.bitcast(below, ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, ir.Constant(bits.type, 0))

    return types.boolean(*(v if v == _lanes else types.float64 for v in (a, b))), generate


def _typed_exponent(typing: Any, v: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        shifted = builder.lshr(builder.bitcast(args[0], _BITS), _every(52))
        return builder.sitofp(builder.sub(builder.and_(shifted, _every(2047)), _every(1023)), _VECTOR)

    return _lanes(v), generate


def _typed_significand(typing: Any, v: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        digits = builder.and_(builder.bitcast(args[0], _BITS), _every(2**52 - 1))
        return builder.bitcast(builder.or_(digits, _every(1023 << 52)), _VECTOR)

    return _lanes(v), generate


def _every(number: int) -> Any:
    return ir.Constant(_BITS, [number] * LANES)


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
    any_below: Any = intrinsic(_typed_any_below)
    sqrt, magnitude = _of_one("llvm.sqrt"), _of_one("llvm.fabs")
    _exponent: Any = intrinsic(_typed_exponent)
    _significand: Any = intrinsic(_typed_significand)
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

    def any_below(a: Any, b: Any) -> bool:
        return bool(np.any(np.less(a, b)))

    def _exponent(v: Array) -> Array:
        return np.frexp(v)[1] - 1.0

    def _significand(v: Array) -> Array:
        return np.abs(2.0 * np.frexp(v)[0])

    sqrt, magnitude = np.sqrt, np.abs


@inner_kernel
def largest(a: Any, b: Any) -> Any:
    """The larger one in every lane; b where either is NaN."""
    return choose(b, a, a, b)


@inner_kernel
def smallest(a: Any, b: Any) -> Any:
    """The smaller one in every lane; a where either is NaN."""
    return choose(b, a, b, a)


@inner_kernel
def log(v: Any) -> Any:
    """Natural logarithms, to one unit in the last place; numbers below 1e-308 count as about that.

    LLVM's calls the C library for every lane (logistic regression, with the pairs of columns of
    `factor`, the interior-point method takes 0.87 times as long).
    """
    exponent, m = _exponent(v), _significand(v)
    exponent += choose(ROOT2, m, 1.0, 0.0)
    f = choose(ROOT2, m, 0.5 * m, m) - 1.0
    s = f / (2.0 + f)
    z, half = s * s, 0.5 * f * f
    series = z * SERIES[6]
    for k in range(5, -1, -1):
        series = z * (SERIES[k] + series)
    found = exponent * LN2_HIGH - (half - (s * (half + series) + exponent * LN2_LOW) - f)
    return choose(0.0, v, choose(v, np.inf, found, v), choose(v, 0.0, np.nan, v - np.inf))


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
        t = Rp[k]
        while t < Rp[k + 1]:
            c = np.int64(Ri[t])
            v, first, end = load(y, c), Lp[c], place[c]
            w, other, after = zero, c, np.int64(Ri[min(t + 1, Rp[k + 1] - 1)])
            if first < end and after == Li[first] and place[after] - Lp[after] == end - first - 1:
                other = after  # the next column has the same entries: both are subtracted at once
                w = load(y, other) - load(Lx, first) * v
                first, shift_to = first + 1, Lp[other] - first - 1
                for q in range(first, end):
                    i = Li[q]
                    store(y, i, load(y, i) - load(Lx, q) * v - load(Lx, q + shift_to) * w)
                d -= _divided(Dinv, Lx, place, other, w, y)
                t += 1
            else:
                for q in range(first, end):
                    i = Li[q]
                    store(y, i, load(y, i) - load(Lx, q) * v)
            d -= _divided(Dinv, Lx, place, c, v, y)
            t += 1
        d = choose(0.5 * shift, d * sign[k], d, shift * sign[k])
        store(Dinv, k, 1.0 / d)


@inner_kernel
def _divided(Dinv: Array, Lx: Array, place: Array, c: Any, v: Any, y: Array) -> Any:
    """Append v / D_c to column c of L; returns v^2 / D_c."""
    entry = v * load(Dinv, c)
    store(y, c, spread(0.0))
    store(Lx, place[c], entry)
    place[c] += 1
    return v * entry


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
