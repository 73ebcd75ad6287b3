"""Bundles of arrays by reference.

A kernel that passes a NamedTuple of arrays to another one passes seven numbers for every array, and counts references
to each: half of the code to compile. A reference is one pointer, and its fields are read like those of the tuple.

References keep nothing alive. A kernel may `refer` to its own arguments, which its caller keeps alive, and to views of
them. Arrays that it made itself must be passed to another kernel, which refers to its arguments.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr_generic, models, register_model


class _Reference(types.Type):  # type: ignore[misc]
    def __init__(self, bundle: Any) -> None:
        self.bundle = bundle
        super().__init__(name=f"Reference({bundle})")


@register_model(_Reference)
class _ReferenceModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, manager.lookup(kind.bundle).get_value_type().as_pointer())


@infer_getattr
class _Fields(AttributeTemplate):  # type: ignore[misc]
    key = _Reference

    def generic_resolve(self, kind: Any, name: str) -> Any:  # type: ignore[override]
        return kind.bundle.types[kind.bundle.fields.index(name)] if name in kind.bundle.fields else None


def _field(context: Any, builder: Any, kind: Any, pointer: Any, name: str) -> Any:
    index = kind.bundle.fields.index(name)
    value = builder.load(cgutils.gep_inbounds(builder, pointer, 0, index))
    if isinstance(kind.bundle.types[index], types.Array):  # without an owner: nothing is counted
        value = builder.insert_value(value, ir.Constant(value.type.elements[0], None), 0)
    return value


lower_getattr_generic(_Reference)(_field)


def _typed_refer(typing: Any, bundle: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return cgutils.alloca_once_value(builder, args[0])

    return _Reference(bundle)(bundle), generate


def _same(bundle: Any) -> Any:
    return bundle


refer: Any = _same if numba.config.DISABLE_JIT else intrinsic(_typed_refer)  # type: ignore[attr-defined]
