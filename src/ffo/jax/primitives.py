"""A solve and its two derivatives as JAX primitives, with the rules of every transformation.

    solve:    (*parameters, [keys])             -> (*outputs, [report], token)
    tangent:  (*parameters, token, *tangents)   -> tangents of the outputs, linear in `tangents`
    adjoint:  (*parameters, token, *cotangents) -> cotangents of the parameters, the transpose of `tangent`

Outside of a trace they run at once; in a compiled program they are callbacks to the host. Derivatives take
the parameters as arguments to solve again if the record of the token is gone, and so that JAX sees that they
depend on them: a second derivative raises an error instead of being zero.

Under `jax.vmap` the mapped axis joins the batch: one solve, in which unmapped parameters stay shared. Where only
right-hand sides are mapped (the rows of a Jacobian), they go through one factorization.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import NamedSharding, PartitionSpec

from ffo.errors import DerivativeError, InputError
from ffo.jax.axes import Dim, Fold, inner_batch, mapped_size, with_axis
from ffo.jax.host import REPORT, Site, report_dtype
from ffo.jax.records import AGAIN

SECOND = (
    "ffo layers are differentiable once: a second derivative (grad of grad, jax.hessian) is not defined by the ghost "
    "problem. Use finite differences of the gradient instead."
)
TOKEN = ((2,), np.dtype(np.uint32))


# What the host does


def _solve_host(*arrays: np.ndarray, site: Site, keys: bool, keep: bool, dtype: np.dtype) -> tuple[np.ndarray, ...]:
    return site.solve(arrays[: len(arrays) - keys], arrays[-1] if keys else None, keep, dtype)


def _tangent_host(*arrays: np.ndarray, site: Site, **params: Any) -> tuple[np.ndarray, ...]:
    values, token, tangents = _split(arrays, site)
    return site.tangent(values, token, tangents, **params)


def _adjoint_host(*arrays: np.ndarray, site: Site, **params: Any) -> tuple[np.ndarray, ...]:
    values, token, gradients = _split(arrays, site)
    return site.adjoint(values, token, gradients, **params)


def _split(arguments: Sequence[Any], site: Site) -> tuple[list[Any], Any, list[Any]]:
    count = len(site.dims)
    return [*arguments[:count]], arguments[count], [*arguments[count + 1 :]]


# Shapes


def _solve_shapes(*avals: ShapedArray, site: Site, keys: bool, keep: bool, dtype: np.dtype) -> list[ShapedArray]:
    count = len(site.dims)
    batch = _batch(avals[:count], site)
    shapes: list[tuple[tuple[int, ...], Any]] = [(shape, dtype) for shape in site.shaped(batch)]
    if site.report:
        real = report_dtype(dtype)
        shapes += [(site.report_shape(batch), each) for each in (np.dtype(np.int32), real, real, np.dtype(bool))]
    return [_aval(avals, *each) for each in (*shapes, TOKEN)]


def _tangent_shapes(*avals: ShapedArray, site: Site, rows: int | None, dtype: np.dtype, **_: Any) -> list[ShapedArray]:
    values, _token, _tangents = _split(avals, site)
    lead = () if rows is None else (rows,)
    return [_aval(avals, (*lead, *shape), dtype) for shape in site.shaped(_batch(values, site))]


def _adjoint_shapes(
    *avals: ShapedArray, site: Site, wanted: Sequence[bool], per_sample: bool, rows: int | None, **_: Any
) -> list[ShapedArray]:
    values, _token, _gradients = _split(avals, site)
    lead = () if rows is None else (rows,)
    batch = _batch(values, site) if per_sample else None
    found = []
    for v, d, w in zip(values, site.dims, wanted, strict=True):
        if w:
            more = () if batch is None or v.ndim > d else (batch,)
            found.append(_aval(avals, (*lead, *more, *v.shape), v.dtype))
    return found


def _batch(values: Sequence[Any], site: Site) -> int | None:
    return inner_batch([v.shape for v in values], (None,) * len(values), site.dims)


def _aval(avals: Sequence[ShapedArray], shape: tuple[int, ...], dtype: Any) -> ShapedArray:
    """Like the first argument except for shape and dtype: inside `jax.shard_map`, types also contain the mesh."""
    like = avals[0]
    sharding = NamedSharding(like.sharding.mesh, PartitionSpec(*(None,) * len(shape)))
    return like.update(shape=shape, dtype=dtype, weak_type=False, sharding=sharding)


# Making primitives


def _run_now(host: Callable[..., tuple[np.ndarray, ...]], *arguments: Any, **params: Any) -> list[jax.Array]:
    found = host(*(np.asarray(a) for a in arguments), **params)
    device = _device(arguments)
    # a copy: what the engine remembers must not be in a buffer that may be donated
    return [jnp.array(v) if device is None else jax.device_put(np.array(v), device) for v in found]


def _device(arguments: Sequence[Any]) -> Any:
    """Where to place results: as an argument that was placed explicitly, on all devices of its mesh; None: anywhere."""
    for a in arguments:
        if getattr(a, "committed", False):
            if len(a.sharding.device_set) == 1:
                return a.sharding
            if isinstance(a.sharding, NamedSharding):
                return NamedSharding(a.sharding.mesh, PartitionSpec())
    return None


try:  # on which of several devices a callback runs; JAX has no public function for it
    from jax._src.callback import _callback_op_sharding as _placement
except ImportError:  # another release of JAX
    _placement = None  # type: ignore[assignment]


try:  # JAX's cache of shapes would keep the layers of its last few thousand calls alive
    from jax._src.util import weakref_cache_key_types
except ImportError:  # another release of JAX
    pass
else:
    weakref_cache_key_types.add(Site)


def _lower(host: Callable[..., tuple[np.ndarray, ...]], ctx: Any, *operands: Any, **params: Any) -> Any:
    """A callback that receives NumPy arrays.

    JAX's own `pure_callback` first copies them to a device. That takes a quarter of a millisecond, and deadlocks if all
    threads of the runtime wait for such copies. It is used only for programs on several devices, in releases of JAX
    that place callbacks differently.
    """
    call = partial(host, **params)
    context = ctx.module_context.axis_context
    alone = isinstance(context, mlir.ShardingContext) and context.num_devices == 1
    if alone or _placement is not None:
        sharding = None if alone else _placement(context, None, ctx.avals_out)
        found, *_ = mlir.emit_python_callback(
            ctx, call, None, list(operands), ctx.avals_in, ctx.avals_out, has_side_effect=False, returns_token=False,
            sharding=sharding,
        )  # fmt: skip
        return found
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in ctx.avals_out]

    def portable(*arrays: jax.Array) -> Any:
        return jax.pure_callback(lambda *given: call(*map(np.asarray, given)), shapes, *arrays)

    return mlir.lower_fun(portable, multiple_results=True)(ctx, *operands)


def _make(name: str, host: Callable[..., Any], shapes: Callable[..., Any]) -> Primitive:
    primitive = Primitive(f"ffo_{name}")
    primitive.multiple_results = True
    primitive.def_impl(partial(_run_now, host))
    primitive.def_abstract_eval(shapes)
    mlir.register_lowering(primitive, partial(_lower, host))
    return primitive


solve_p = _make("solve", _solve_host, _solve_shapes)
tangent_p = _make("tangent", _tangent_host, _tangent_shapes)
adjoint_p = _make("adjoint", _adjoint_host, _adjoint_shapes)


# Derivatives


def _given(vectors: Sequence[Any]) -> tuple[tuple[bool, ...], list[Any]]:
    """Which vectors are not symbolic zeros, and these vectors."""
    given = tuple(type(v) is not ad.Zero for v in vectors)
    return given, [v for v, g in zip(vectors, given, strict=True) if g]


def _solve_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, site: Site, **params: Any) -> Any:
    count = len(site.dims)
    outputs = solve_p.bind(*primals, site=site, **{**params, "keep": True})
    shown = len(site.output_shapes)
    zeros = [ad.Zero(jax.typeof(v).to_tangent_aval()) for v in outputs[shown:]]
    given, moved = _given(tangents[:count])
    found = tangent_p.bind(
        *primals[:count], outputs[-1], *moved, site=site, given=given, rows=None, dtype=params["dtype"]
    )
    return outputs, [*found, *zeros]


def _linear_jvp(primitive: Primitive, primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
    """The rule for `tangent` and `adjoint`: linear in what follows the token, an error in the parameters."""
    values, token, _ = _split(primals, params["site"])
    moved, _, changes = _split(tangents, params["site"])
    if any(type(t) is not ad.Zero for t in moved):
        raise DerivativeError(SECOND)
    outputs = primitive.bind(*primals, **params)
    if all(type(t) is ad.Zero for t in changes):
        return outputs, [ad.Zero(jax.typeof(v).to_tangent_aval()) for v in outputs]
    full = [ad.instantiate_zeros(t) for t in changes]
    return outputs, primitive.bind(*values, token, *full, **params)


def _tangent_transpose(cotangents: Sequence[Any], *arguments: Any, site: Site, **params: Any) -> list[Any]:
    values, token, tangents = _split(arguments, site)
    nothing: list[Any] = [None] * (len(values) + 1)
    given, vectors = _given(cotangents)
    wanted, rows = params["given"], params["rows"]
    if not any(given):
        return [*nothing, *(ad.Zero(t.aval) if ad.is_undefined_primal(t) else None for t in tangents)]
    avals = iter([t.aval if ad.is_undefined_primal(t) else None for t in tangents])
    expected = [next(avals) if w else None for w in wanted]
    lead = int(rows is not None)
    # a tangent may differ between samples that share the parameter
    per_sample = any(
        e is not None and e.ndim - lead > d >= v.ndim for e, v, d in zip(expected, values, site.dims, strict=True)
    )
    asked = tuple(e is not None for e in expected)
    found = adjoint_p.bind(
        *values, token, *vectors, site=site, given=given, wanted=asked, per_sample=per_sample, rows=rows
    )
    gradients = iter(found)
    summed = [None if e is None else _like(next(gradients), e, lead) for e in expected]
    return [*nothing, *(g for g, w in zip(summed, wanted, strict=True) if w)]


def _like(gradient: jax.Array, aval: ShapedArray, lead: int) -> jax.Array:
    """The gradient like its tangent: summed over the batch if that had none, sharded over the same explicit axes."""
    found = gradient.sum(lead) if gradient.ndim > aval.ndim else gradient
    known = isinstance(found, jax.core.Tracer) or not jax.sharding.get_abstract_mesh().empty
    if known and any(axis is not None for axis in aval.sharding.spec):
        return jax.sharding.reshard(found, aval.sharding)
    return found


def _adjoint_transpose(cotangents: Sequence[Any], *arguments: Any, site: Site, **params: Any) -> list[Any]:
    values, token, gradients = _split(arguments, site)
    nothing: list[Any] = [None] * (len(values) + 1)
    some, vectors = _given(cotangents)
    if not any(some):
        return [*nothing, *(ad.Zero(g.aval) if ad.is_undefined_primal(g) else None for g in gradients)]
    present = iter(some)
    given = tuple(w and next(present) for w in params["wanted"])
    dtype = next(g.aval if ad.is_undefined_primal(g) else g for g in gradients).dtype
    found = tangent_p.bind(*values, token, *vectors, site=site, given=given, rows=params["rows"], dtype=dtype)
    shown = [t for t, g in zip(found, params["given"], strict=True) if g]
    return [
        *nothing, *(t if ad.is_undefined_primal(g) else None for t, g in zip(shown, gradients, strict=True))
    ]  # fmt: skip


ad.primitive_jvps[solve_p] = _solve_jvp
for each in (tangent_p, adjoint_p):
    ad.primitive_jvps[each] = partial(_linear_jvp, each)
ad.primitive_transposes[tangent_p] = _tangent_transpose
ad.primitive_transposes[adjoint_p] = _adjoint_transpose


# Mapped axes


def _fold(site: Site, values: Sequence[Any], dims: Sequence[Dim], size: int) -> tuple[Fold, list[Any]]:
    """The parameters of the joint batch."""
    site.call.check_foldable("jax.vmap")
    if size == 0:
        raise InputError("jax.vmap maps an empty axis. Skip empty batches before the layer.")
    fold = Fold(size, inner_batch([v.shape for v in values], dims, site.dims))
    return fold, [fold.join(v, d, k) for v, d, k in zip(values, dims, site.dims, strict=True)]


def _solve_batch(arguments: Sequence[Any], dims: Sequence[Dim], *, site: Site, keys: bool, **params: Any) -> Any:
    count, size = len(site.dims), mapped_size(arguments, dims)
    if all(d is None for d in dims[:count]):
        raise InputError("keys are mapped by jax.vmap, but no parameter is: map a parameter as well")
    fold, joint = _fold(site, arguments[:count], dims[:count], size)
    if keys:
        if dims[count] is None:
            raise InputError("keys must be mapped by jax.vmap like the parameters: every sample needs its own key")
        joint.append(with_axis(arguments[count], dims[count], size).reshape(-1))
    *found, token = solve_p.bind(*joint, site=site, keys=keys, **params)
    return [*(fold.part(v) for v in found), token], (*(0,) * len(found), None)


def _rows_batch(primitive: Primitive, arguments: Sequence[Any], dims: Sequence[Dim], **params: Any) -> Any:
    """Only right-hand sides are mapped."""
    values, token, vectors = _split(arguments, params["site"])
    size, rows = mapped_size(arguments, dims), params["rows"]
    front = [with_axis(v, d, size) for v, d in zip(vectors, dims[len(values) + 1 :], strict=True)]
    if rows is not None:
        front = [v.reshape(size * rows, *v.shape[2:]) for v in front]
    found = primitive.bind(*values, token, *front, **{**params, "rows": size * (rows or 1)})
    if rows is not None:
        found = [v.reshape(size, rows, *v.shape[1:]) for v in found]
    return found, (0,) * len(found)


def _derivative_batch(primitive: Primitive, arguments: Sequence[Any], dims: Sequence[Dim], **params: Any) -> Any:
    site: Site = params["site"]
    values, token, vectors = _split(arguments, site)
    count, size = len(values), mapped_size(arguments, dims)
    if all(d is None for d in dims[:count]):
        if dims[count] is not None:  # several solves for the same parameters
            token = jnp.asarray(AGAIN)
        joined = [*values, token, *vectors]
        return _rows_batch(primitive, joined, [*(None,) * (count + 1), *dims[count + 1 :]], **params)
    if dims[count] is not None or token.ndim > 1:  # one token for each part of the joint batch
        token = with_axis(token, dims[count], size).reshape(-1, 2)
    fold, joint = _fold(site, values, dims[:count], size)
    rule = _adjoint_fold if primitive is adjoint_p else _tangent_fold
    found = rule(fold, joint, token, vectors, dims[count + 1 :], **params, inner=_inner(values, dims, site))
    return found, (0,) * len(found)


def _inner(values: Sequence[Any], dims: Sequence[Dim], site: Site) -> list[bool]:
    """Which parameters have a batch axis beside the mapped one."""
    return [v.ndim - (d is not None) > k for v, d, k in zip(values, dims, site.dims, strict=False)]


def _tangent_fold(
    fold: Fold, joint: list[Any], token: Any, vectors: Sequence[Any], dims: Sequence[Dim], *, inner: Any, **params: Any
) -> list[Any]:
    rows = params["rows"] is not None
    own = [k for k, g in zip(params["site"].dims, params["given"], strict=True) if g]
    moved = [fold.join(t, d, k, rows) for t, d, k in zip(vectors, dims, own, strict=True)]
    return [fold.part(v, rows) for v in tangent_p.bind(*joint, token, *moved, **params)]


def _adjoint_fold(
    fold: Fold,
    joint: list[Any],
    token: Any,
    vectors: Sequence[Any],
    dims: Sequence[Dim],
    *,
    inner: Sequence[bool],
    **params: Any,
) -> list[Any]:
    """A parameter shared by mapped samples has a separate gradient in each of them."""
    rows, per_sample = params["rows"] is not None, params["per_sample"]
    moved = [fold.spread(g, d, rows) for g, d in zip(vectors, dims, strict=True)]
    found = adjoint_p.bind(*joint, token, *moved, **{**params, "per_sample": True})
    parted = [fold.part(v, rows) for v in found]
    batched = [b for b, w in zip(inner, params["wanted"], strict=True) if w]
    over = [fold.batch is not None and not b and not per_sample for b in batched]
    return [v.sum(1 + rows) if o else v for v, o in zip(parted, over, strict=True)]


batching.primitive_batchers[solve_p] = _solve_batch
for each in (tangent_p, adjoint_p):
    batching.primitive_batchers[each] = partial(_derivative_batch, each)


# Binding


def bind_solve(
    site: Site, values: Sequence[jax.Array], keys: jax.Array | None, dtype: np.dtype
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Outputs and report (empty if it is not wanted)."""
    arguments = _alike([*values, *(() if keys is None else (keys,))])
    found = solve_p.bind(*arguments, site=site, keys=keys is not None, keep=False, dtype=dtype)
    shown = len(site.output_shapes)
    return found[:shown], found[shown : shown + (REPORT if site.report else 0)]


def _alike(arrays: list[jax.Array]) -> list[jax.Array]:
    """Inside `jax.shard_map`, arrays that vary over the same axes of the mesh: those that are the same on all devices
    are cast, so that their cotangents are summed over the devices."""
    varying = [_varying(a) for a in arrays]
    axes = frozenset().union(*varying)
    if not axes:
        return arrays
    return [
        a if axes <= own else jax.lax.pcast(a, tuple(sorted(axes - own, key=str)), to="varying")
        for a, own in zip(arrays, varying, strict=True)
    ]


def _varying(a: jax.Array) -> frozenset[Any]:
    aval = jax.typeof(a)
    kind = getattr(aval, "manual_axis_type", None)
    return frozenset(kind.varying if kind is not None else getattr(aval, "vma", ()))
