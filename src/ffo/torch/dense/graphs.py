"""Functions of tensors as CUDA graphs: recorded once, replayed without launching their operations one by one.

On a GPU, launches dominate the time of a small batch: a pivoting step has forty operations of 3 us on the device, each
of which takes 15 us to launch (H200, dense programs of 100 variables, batch 128: 35 ms one by one, of which 4 ms are
work; 9 ms recorded).
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import torch

logger = logging.getLogger("ffo")
Tensor = torch.Tensor
T = TypeVar("T")
#: number of most recently used recorders that are kept, one for each structure and shape of a batch
KEPT = 16


class Eager:
    """Runs functions directly."""

    recorded = False

    def load(self, name: str, value: T) -> T:
        """The value, copied to a fixed buffer if functions are recorded."""
        return value

    def run(self, function: Callable[..., T], *arguments: Any, **constants: Any) -> T:
        """function(*arguments, **constants). Arguments must be loaded values or results of earlier functions, constants
        the same in all calls of this recorder."""
        return function(*arguments, **constants)

    def step(self, function: Callable[..., T], state: T, *arguments: Any) -> T:
        """function(state, *arguments), the next state; it may overwrite the first."""
        return function(state, *arguments)

    def steps(self, function: Callable[..., T], state: T, most: int, *arguments: Any) -> T:
        """Up to so many steps, as long as `state.going` (). A step from a state that is not changes nothing."""
        for _ in range(most):
            if not bool(state.going):  # type: ignore[attr-defined]
                break
            state = self.step(function, state, *arguments)
        return state

    def keep(self, value: T) -> Kept[T]:
        """A result that outlives the next call."""
        return Kept(value, None)


class Kept(Generic[T]):
    """A result that stays in the recorder's buffer until the buffer is needed again, and is copied then. Most steps
    take their gradient before the next solve, and copy nothing.

    Args:
        recorder: owner of the buffer; None: the result itself.
    """

    def __init__(self, value: T, recorder: Recorder | None) -> None:
        self.value, self.recorder = value, recorder
        self.copied: torch.cuda.Event | None = None

    def own(self) -> None:
        """Copy the value out of the recorder's buffer, on the stream of the caller, who must hold its lock."""
        self.value = copied(self.value)
        if self.recorder is not None:
            self.copied = torch.cuda.current_stream(self.recorder.device).record_event()
        self.recorder = None

    @contextmanager
    def reading(self) -> Iterator[tuple[T, Eager]]:
        """The value, and a runner for functions of it, while it cannot be overwritten."""
        recorder = self.recorder
        if recorder is None:
            if self.copied is not None:  # perhaps on another stream
                tensors = flatten(self.value)[0]
                stream = torch.cuda.current_stream(tensors[0].device)
                stream.wait_event(self.copied)
                for t in tensors:
                    t.record_stream(stream)
            yield self.value, Eager()
            return
        with recorder.held():
            yield self.value, recorder if self.recorder is recorder else Eager()


class Recorder(Eager):
    """Runs functions as CUDA graphs. Running a function again overwrites its results: copy what must outlive that."""

    recorded = True

    def __init__(self, device: torch.device) -> None:
        self.lock, self.device = threading.RLock(), device
        self.places: dict[Hashable, Tensor] = {}
        #: the graph, its result, and its inputs, which must not be freed before it
        self.graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Any, list[Tensor]]] = {}
        self.pool: Any = None
        self.last: torch.cuda.Event | None = None
        self.kept: weakref.ref[Kept[Any]] | None = None
        self.taken: dict[Any, int] = {}  # steps of each function in the last call
        self.results: dict[int, Any] = {}  # dataclasses among the results of graphs, by identity

    def load(self, name: str, value: T) -> T:
        tensors, spec = flatten(value)
        found = []
        for k, t in enumerate(tensors):
            key = (name, k, t.shape, t.dtype, t.stride())
            if key not in self.places:
                self.places[key] = torch.empty_like(t)
            found.append(self.places[key].copy_(t))
        return rebuild(spec, iter(found))

    def run(self, function: Callable[..., T], *arguments: Any, **constants: Any) -> T:
        return self._replayed(function, arguments, (), lambda: function(*arguments, **constants))

    def step(self, function: Callable[..., T], state: T, *arguments: Any) -> T:
        def change() -> T:
            for old, new in zip(flatten(state)[0], flatten(function(state, *arguments))[0], strict=True):
                old.copy_(new)
            return state

        return self._replayed(function, (state, *arguments), state, change)

    def steps(self, function: Callable[..., T], state: T, most: int, *arguments: Any) -> T:
        """As many steps as the last call took are launched before the first look at whether they suffice: the GPU does
        not wait for launches, which take nearly as long as a step of many small operations (SOCP with 200 variables,
        batch 512: 1.9 of 2.9 ms)."""
        going, expected = torch.empty(most, dtype=torch.bool, pin_memory=True), self.taken.get(function, 1)
        for k in range(most):
            state = self.step(function, state, *arguments)
            going[k].copy_(state.going, non_blocking=True)  # type: ignore[attr-defined]
            if k + 1 >= expected:
                torch.cuda.current_stream(self.device).synchronize()
                if not bool(going[k]):
                    break
        self.taken[function] = 1 + int(going[:k].sum())
        return state

    def keep(self, value: T) -> Kept[T]:
        kept = Kept(value, self)
        self.kept = weakref.ref(kept)
        return kept

    def vacate(self) -> None:
        """Copy the result of the last call out of the buffer."""
        kept = None if self.kept is None else self.kept()
        if kept is not None and kept.recorder is self:
            kept.own()
        self.kept = None

    @contextmanager
    def held(self, blocking: bool = True) -> Iterator[bool]:
        """Lock the recorder for this caller, ordered after work on all streams; whether that succeeded."""
        if not self.lock.acquire(blocking=blocking):
            yield False
            return
        try:
            with torch.cuda.device(self.device):
                stream = torch.cuda.current_stream(self.device)
                if self.last is not None:
                    stream.wait_event(self.last)
                try:
                    yield True
                finally:
                    self.last = stream.record_event()
        finally:
            self.lock.release()

    def _replayed(self, function: Callable[..., Any], arguments: Any, changed: Any, work: Callable[[], T]) -> T:
        tensors, spec = flatten(arguments, self.results)
        key = (function, spec, tuple(t.data_ptr() for t in tensors))
        if key not in self.graphs:
            return self._record(key, tensors, flatten(changed)[0], work)
        graph, result, _ = self.graphs[key]
        graph.replay()
        return result

    def _record(self, key: Hashable, tensors: list[Tensor], changed: list[Tensor], work: Callable[[], T]) -> T:
        """Record the work. It runs once before, to initialize libraries, and its changes are undone."""
        kept = [t.clone() for t in changed]
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream(self.device).wait_stream(side)
        for t, old in zip(changed, kept, strict=True):
            t.copy_(old)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
            result = work()
        self.pool = self.pool or graph.pool()
        self.graphs[key] = graph, result, tensors
        self.results.update((id(part), part) for part in dataclasses_in(result))
        graph.replay()
        return result


class Recorders:
    """The recorders of this process, by key."""

    def __init__(self) -> None:
        self.lock, self.found = threading.Lock(), OrderedDict[Hashable, Recorder]()
        self.failed: set[Hashable] = set()

    @contextmanager
    def of(self, key: Hashable, device: torch.device) -> Iterator[Eager]:
        """A recorder for this key, exclusive to this call; an eager one if nothing can be recorded."""
        if device.type != "cuda" or key in self.failed:
            yield Eager()
            return
        with self.lock:
            recorder = self.found.setdefault(key, Recorder(device))
            self.found.move_to_end(key)
            while len(self.found) > KEPT:
                self.found.popitem(last=False)
        with recorder.held(blocking=False) as mine:
            if mine:
                recorder.vacate()
            yield recorder if mine else Eager()  # another thread is using it

    def clear(self) -> None:
        """Drop all recorders."""
        with self.lock:
            self.found.clear()

    def give_up(self, key: Hashable, error: Exception) -> None:
        """Run functions of this key eagerly from now on."""
        logger.warning("ffo's operations run one by one on the GPU, because recording them failed: %s", error)
        with self.lock:
            self.failed.add(key)
            self.found.pop(key, None)


def flatten(value: Any, known: Mapping[int, Any] = MappingProxyType({})) -> tuple[list[Tensor], Hashable]:
    """The tensors in nested tuples and dataclasses, and the structure without them. Objects in `known`, by identity,
    stand for themselves: the many tensors in a result need not be listed to find the graph for it (a tenth of a step
    of ten variables)."""
    if isinstance(value, Tensor):
        return [value], (Tensor, value.shape, value.stride(), value.dtype)
    if id(value) in known:
        return [], ("known", id(value))
    if is_dataclass(value) and not isinstance(value, type):
        parts = [flatten(getattr(value, each.name), known) for each in fields(value)]
    elif isinstance(value, tuple):
        parts = [flatten(each, known) for each in value]
    else:
        return [], value
    return [t for tensors, _ in parts for t in tensors], (type(value), tuple(spec for _, spec in parts))


def dataclasses_in(value: Any) -> Iterator[Any]:
    """The dataclasses with tensors in nested tuples and dataclasses."""
    if is_dataclass(value) and not isinstance(value, type):
        if flatten(value)[0]:
            yield value
        for each in fields(value):
            yield from dataclasses_in(getattr(value, each.name))
    elif isinstance(value, tuple):
        for each in value:
            yield from dataclasses_in(each)


def rebuild(spec: Any, tensors: Iterator[Tensor]) -> Any:
    """Inverse of `flatten`, with other tensors."""
    if not isinstance(spec, tuple):
        return spec
    kind, *rest = spec
    if kind is Tensor:
        return next(tensors)
    parts = [rebuild(each, tensors) for each in rest[0]]
    return tuple(parts) if kind is tuple else kind(*parts)


def copied(value: T) -> T:
    """A copy of the value with its tensors."""
    tensors, spec = flatten(value)
    return rebuild(spec, iter([t.clone() for t in tensors]))
