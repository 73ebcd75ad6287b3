"""Runs chunks of a batch on threads.

One pool serves the whole process: it is made on first use, sized by the CPUs this process may use (or by the
environment variable FFO_NUM_THREADS), and dropped after a fork, which threads do not survive. Callers on several
threads share it; the calling thread works too, so nothing waits for a pool that others keep busy.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from threading import Lock
from typing import Any, cast

from threadpoolctl import ThreadpoolController

from ffo.kernels.deadline import Deadline

#: chunks per thread, because samples take unequal time, if each chunk takes at least CHUNK seconds: threads start
#: chunks one after the other (16 cores, semidefinite programs of order 8, batch 128: 17.5 ms a step instead of 20.8)
CHUNKS, CHUNK = 4, 1e-3
#: seconds of work below which other threads cost more than they save
WORTH = 3e-4
#: longest time of a chunk in seconds: Ctrl-C is noticed between chunks
LONGEST = 0.2

#: the argument of OpenMP's omp_pause_resource_all that keeps its settings
SOFT = 1

#: flag of a process, in field 9 of /proc/self/stat, that was forked and has not executed a program since
FORKED = 0x40

_lock = Lock()
_executor: ThreadPoolExecutor | None = None


def _was_forked() -> bool:
    """Whether this process was forked before it imported this module."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return bool(int(fields[6]) & FORKED)
    except (OSError, ValueError, IndexError):
        return multiprocessing.parent_process() is not None


_forked = _was_forked()


def _forget() -> None:
    global _executor, _lock, _forked
    _executor, _lock, _forked = None, Lock(), True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def is_forked() -> bool:
    """Whether this process was forked, and has not executed a program since."""
    return _forked


def cpus() -> int:
    """Threads that this process may use."""
    wished = os.environ.get("FFO_NUM_THREADS", "")
    if wished.isdigit() and int(wished) > 0:
        return int(wished)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def executor() -> ThreadPoolExecutor:
    """The pool of this process, with the cores free for it; the calling thread works too, hence one thread less than
    CPUs."""
    global _executor
    _end_spinning()
    with _lock:
        if _executor is None:
            _executor = ThreadPoolExecutor(max(1, cpus() - 1), thread_name_prefix="ffo")
        return _executor


def run_chunks(
    function: Callable[..., Any], count: int, seconds: float, *arguments: Any, longest: float = LONGEST
) -> None:
    """function(start, stop, *arguments) over 0..count.

    Args:
        seconds: an estimate of the total work.
        longest: longest time of a chunk in seconds.
    """
    threads = min(cpus(), count) if count > 1 and seconds >= WORTH else 1
    if threads <= 1 and seconds <= longest:
        function(0, count, *arguments)
        return
    chunks = min(CHUNKS * threads, max(threads, int(seconds / CHUNK))) if threads > 1 else 1
    chunks = min(count, max(chunks, int(seconds / longest)))
    ranges = list(pairwise(round(k * count / chunks) for k in range(chunks + 1)))
    todo = iter(ranges)  # all threads take their next chunk from here

    def work() -> None:
        try:
            for start, stop in todo:
                function(start, stop, *arguments)
        finally:
            list(todo)  # an error ends the work of the others too

    pending = []
    if threads > 1:
        pool = executor()
        pending = [pool.submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:
        begun = [p for p in pending if not p.cancel()]
        wait(begun)
    for p in begun:
        p.result()


def run_samples(
    function: Callable[..., Any], count: int, seconds: float, *arguments: Any, deadline: Deadline | None = None
) -> list[int]:
    """The same; returns those of 0..count that were left out because memory or time ran out."""
    if deadline is None:
        try:
            if seconds < WORTH:
                function(0, count, *arguments)
            else:
                run_chunks(function, count, seconds, *arguments)
            return []
        except MemoryError:
            pass  # the samples are tried one by one below
    left: list[int] = []

    def work(start: int, stop: int) -> None:
        if deadline is not None and deadline.passed:
            left.extend(range(start, stop))
            return
        try:
            function(start, stop, *arguments)
        except MemoryError:
            if stop - start == 1:
                left.append(start)
                return
            for k in range(start, stop):
                work(k, k + 1)

    run_chunks(work, count, seconds, longest=LONGEST if deadline is None else CHUNK)
    return left


@cache
def _gnu_openmp() -> list[Callable[[int], int]]:
    found = ThreadpoolController().select(prefix="libgomp").lib_controllers
    return [library.dynlib.omp_pause_resource_all for library in found
            if hasattr(library.dynlib, "omp_pause_resource_all")]  # fmt: skip


def _end_spinning() -> None:
    """Ends the threads that GNU OpenMP, torch's on Linux, keeps for the calling thread.

    After a parallel loop they spin for milliseconds and take the cores from the threads of this pool. The next loop
    starts new ones, which takes microseconds. A forked child has none, and would wait for them forever.
    """
    if not _forked:
        for pause in _gnu_openmp():
            pause(SOFT)


@cache
def _blas() -> list[tuple[Callable[[], int], Callable[[int], object]]]:
    """How to read and how to set the number of threads of each BLAS.

    Looking up the libraries takes a millisecond; libraries loaded later are not limited. SciPy's BLAS, which compiled
    kernels call, is not NumPy's, and must be loaded.
    """
    importlib.import_module("scipy.linalg.cython_blas")
    found: list[tuple[Callable[[], int], Callable[[int], object]]] = []
    for library in ThreadpoolController().select(user_api="blas").lib_controllers:
        get, put = (_of_openblas(library.dynlib, verb) for verb in ("get", "set"))
        found.append((get or library.get_num_threads, put or library.set_num_threads))
    return found


def _of_openblas(library: Any, verb: str) -> Callable[..., Any] | None:
    """A function of OpenBLAS under any of its names; called directly, one_blas_thread takes 2 us instead of 8."""
    for prefix, suffix in product(("", "scipy_"), ("", "64_", "_64")):
        name = f"{prefix}openblas_{verb}_num_threads{suffix}"
        if hasattr(library, name):
            return cast(Callable[..., Any], getattr(library, name))
    return None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limits BLAS and LAPACK to the calling thread; the previous setting is restored.

    Matrices of a few hundred rows gain nothing from a second thread and lose a factor of ten to it when
    the cores are busy, since waiting threads spin.
    """
    changed = [(put, threads) for get, put in _blas() if (threads := get()) != 1]
    for put, _ in changed:
        put(1)
    try:
        yield
    finally:
        for put, threads in changed:
            put(threads)
