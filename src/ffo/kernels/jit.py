"""How kernels are compiled.

`nogil`: chunks of a batch run on threads. `cache`: compiled once per environment; Numba keeps the code next to the
source (in `__pycache__`), in the user's cache directory if that is not writable, or in NUMBA_CACHE_DIR. What is read
from there is executed, so a directory that others can write to is not used. `error_model="numpy"`: a division by zero
gives inf, as in NumPy; an exception would fail the whole batch. With NUMBA_DISABLE_JIT=1 the same code runs as
Python, for debugging.
"""

from __future__ import annotations

import gc
import logging
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numba
from numba import types
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.compiler import Compiler, Flags
from numba.core.runtime.nrt import rtsys
from numba.core.typed_passes import NopythonRewrites
from numba.core.typing.context import BaseContext
from numba.core.untyped_passes import InlineClosureLikes

from ffo.kernels.ahead import helper

F = TypeVar("F", bound=Callable[..., Any])


def _stamp() -> tuple[tuple[str, int, int], ...]:
    """Changes with any kernel: compiled code contains the functions it calls, also those of other files."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return tuple((f.name, f.stat().st_mtime_ns, f.stat().st_size) for f in files)


_STAMP = _stamp()


@cache
def _trusted(folder: str, source: str) -> bool:
    """Whether the files in a folder were written by this user, by the system, or by the owner of the source."""
    if not hasattr(os, "getuid") or not os.path.isdir(folder):
        return True
    found = os.stat(folder)
    own = found.st_uid in (os.getuid(), 0, os.stat(source).st_uid)
    if own and not found.st_mode & stat.S_IWOTH:
        return True
    logging.getLogger("ffo").warning(
        "compiled kernels are not cached: %s belongs to another user or is writable by all, and its contents would be "
        "executed. Set NUMBA_CACHE_DIR to a directory of your own", folder
    )  # fmt: skip
    return False


@cache
def _announce() -> None:
    logging.getLogger("ffo").warning("compiling ffo's kernels, once for this environment: this takes up to a minute")


def _load(name: str, store: Any, index: Any) -> Callable[[Any, Any], Any]:
    """How a kernel is loaded from its cache, or compiled ahead of its use if it is not there.

    Numba's own way prepares to compile before it looks for the code, which takes half of the time (a first QP: 0.5 s
    instead of 1.0). The code itself needs no more than memory management, and the compiler prepares itself.
    """

    def load_overload(signature: Any, context: Any) -> Any:
        helper.take(name, full=signature[-1:] != (types.none,))
        rtsys.initialize(context)
        found = None
        with store._guard_against_spurious_io_errors():
            found = store._load_overload(signature, context)
        # two processes may have saved code for different arguments under the same name
        if found is not None and found.signature.args == signature:
            return found
        _announce()
        if store._enabled and os.access(store.cache_path, os.W_OK):
            if not index._load_index():  # Numba would write a new index before it replaces code of another version
                for old in Path(store.cache_path).glob(f"{Path(index._index_path).stem}.*.nbc"):
                    with suppress(OSError):
                        old.unlink()
            helper.start()
        return None

    return load_overload


def _compiled(function: F, **options: Any) -> F:
    compiled = numba.njit(nogil=True, error_model="numpy", **options)(function)
    # Numba compares only the time stamp of the function's own file, after reading an index that may name classes that
    # no longer exist. There is no public way to change that; without these attributes (another release of Numba, JIT
    # disabled) its own rule applies.
    store: Any = getattr(compiled, "_cache", None)
    if (
        store is not None
        and store.cache_path is not None
        and not _trusted(store.cache_path, function.__code__.co_filename)
    ):
        store.disable()
    index: Any = getattr(store, "_cache_file", None)
    if hasattr(index, "_version"):
        index._version = (index._version, _STAMP)
    if hasattr(index, "_load_index") and hasattr(store, "_load_overload"):
        store.load_overload = _load(function.__name__, store, index)
    template: Any = getattr(compiled, "get_call_template", None)
    if template is not None:  # Numba would compile a kernel again for every constant among its arguments
        compiled.get_call_template = lambda args, kws: template(tuple(map(types.unliteral, args)), kws)
    return cast(F, compiled)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Garbage collection takes a sixth of the compile time, and finds little. Numba holds its lock here."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _KernelLibrary(JITCodeLibrary):  # type: ignore[misc]
    """Code of a kernel that Python calls: linked with all inner kernels, each of them once, and optimised."""

    def add_linking_library(self, library: Any) -> None:
        for each in (library, *(library._linking_libraries if isinstance(library, _Inner) else ())):
            if each not in self._linking_libraries:
                super().add_linking_library(each)

    def _optimize_final_module(self) -> None:
        """As Numba's, but once: without optimising for the removal of reference counts alone."""
        manager, builder = self._codegen._module_pass_manager()
        manager.run(self._final_module, builder)


class _Inner(_KernelLibrary):
    """Code of an inner kernel: linked, optimised and made executable as a part of the kernels that call it."""

    def _optimize_functions(self, module: Any) -> None:
        """Keep this short: the rest is done when it is linked. Numba optimises fully, even functions that are merely
        declared: a tenth of the compile time."""
        module.data_layout = self._codegen._data_layout
        builder = self._codegen._pass_builder()
        for function in module.functions:
            if not function.is_declaration:
                manager = llvm.create_new_function_pass_manager()
                manager.add_sroa_pass()
                manager.add_simplify_cfg_pass()
                manager.add_instruction_combine_pass()
                manager.add_refprune_pass()
                manager.run(function, builder)

    def finalize(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


class _KernelFlags(Flags):  # type: ignore[misc]
    """Numba's compilation options, the key of its cache; their hash is stored, since computing it is slow."""

    _HASH, _DEFAULTS = hash(Flags()), Flags().values()

    def __hash__(self) -> int:
        return self._HASH

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Flags) and self._DEFAULTS | self._values == self._DEFAULTS | other._values


#: types of calls of built-in functions, by function, types of the arguments, and compilation options
_calls: dict[tuple[Any, ...], Any] = {}
#: passes of Numba's compiler for closures, which kernels do not have, and to fuse operations on whole arrays, of which
#: they have few
_NEEDLESS = (InlineClosureLikes, NopythonRewrites)


class _Typing:
    """Numba's typing context. It finds the type of a call such as `a + b` by trying dozens of rules, anew in each
    function: a tenth of the compile time. Here the result is kept."""

    def __init__(self, context: Any, flags: Flags) -> None:
        self._context, self._flags = context, flags

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def resolve_function_type(self, function: Any, args: Any, kws: Any) -> Any:
        builtin = self._context._lookup_global(function) or function
        if kws or not isinstance(builtin, types.Function):
            return self._context.resolve_function_type(function, args, kws)
        call = builtin, tuple(args), self._flags
        if _calls.get(call) is None:
            _calls[call] = self._context.resolve_function_type(function, args, kws)
        return _calls[call]


class _KernelCompiler(Compiler):  # type: ignore[misc]
    def compile_extra(self, function: Any) -> Any:
        self.state.flags = _KernelFlags(self.state.flags)
        self.state.typingctx = _Typing(self.state.typingctx, self.state.flags)
        if self.state.library is None:
            self.state.library = _KernelLibrary(self.state.targetctx.codegen(), function.__qualname__)
            self.state.library.enable_object_caching()
        with _no_garbage_collection():
            return super().compile_extra(function)

    def define_pipelines(self) -> list[Any]:
        managers: list[Any] = super().define_pipelines()
        for manager in managers:
            manager.passes[:] = [p for p in manager.passes if p[0] not in _NEEDLESS]
        return managers


class _InnerCompiler(_KernelCompiler):
    """Numba's compiler without its last steps.

    It optimises every function together with everything it calls, and generates machine code for it: ten times for code
    at the end of a chain of ten calls.
    """

    def compile_extra(self, function: Any) -> Any:
        context = self.state.targetctx
        self.state.library = _Inner(context.codegen(), function.__qualname__)
        self.state.flags.no_compile = True
        result = super().compile_extra(function)
        # callers find the code by its Python entry point: there is none, so any builtin object will do
        entry: Any = {}.update
        context.insert_user_function(entry, result.fndesc, [result.library])
        return result._replace(entry_point=entry)


#: sums may be reordered, so that loops over long vectors are vectorised (about 3x); results differ by rounding
_REDUCING: dict[str, Any] = {"fastmath": {"reassoc", "contract"}}
#: without the wrapper for calls from Python, which takes longer to compile than the function itself where arguments are
#: tuples of arrays; not cached, because what calls it is
_INNER: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_KERNEL: dict[str, Any] = {"cache": True, "no_cfunc_wrapper": True}
#: private parts of Numba that are used here; without them (another release) kernels compile like any function
_PRIVATE = {
    JITCodeLibrary: ("_optimize_functions", "_optimize_final_module", "_finalize_dynamic_globals"),
    JITCPUCodegen: ("_pass_builder", "_module_pass_manager"),
    Flags: ("_values",),
    BaseContext: ("_lookup_global",),
}
if all(hasattr(owner, name) for owner, names in _PRIVATE.items() for name in names):
    _KERNEL["pipeline_class"], _INNER["pipeline_class"] = _KernelCompiler, _InnerCompiler


def kernel(function: F) -> F:
    """Compile a function on first call."""
    return _compiled(function, **_KERNEL)


def inner_kernel(function: F) -> F:
    """The same for a function called only by kernels, never by Python or other compiled functions: compiles several
    times faster."""
    return _compiled(function, **_INNER)


def inner_reducing_kernel(function: F) -> F:
    """An `inner_kernel` in which sums may be reordered.

    A loop that sums must not write arrays too: LLVM would check whether they overlap, and sum in another order if they
    are adjacent, so that the same call would not always give the same bits.
    """
    return _compiled(function, **_REDUCING, **_INNER)
