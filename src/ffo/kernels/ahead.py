"""Compiles kernels in a second process, while this one compiles others.

Threads do not help, since compiling is mostly Python code. The first kernel that is not in the cache starts a child
process. Once the kind of the first program is known, the child compiles the two largest kernels, each without and with
the code of curved cones, into the same cache. The first of them will be needed soon, the others may be. A kernel that
the child is compiling is waited for. One that it has not begun is compiled here, and so are all if the child fails.

The child reads one kernel per line from its standard input, answers with an empty line, and ends when the input ends.
If this process is killed, the child therefore ends after the kernel that it is compiling.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Condition, Thread

import numpy as np
from numba import config

from ffo.kernels import pool

#: longest time in seconds to wait for a kernel, several times what compiling takes; then it is compiled here
LONGEST = 60.0
#: the environment variable that forbids the child process if it is 0, as it is in the child
ALLOWED = "FFO_COMPILE_AHEAD"
#: the program of the child; its argument is sys.path
CHILD = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from ffo.kernels.ahead import serve; serve(sys.stdin)"


class Helper:
    """The child process, and the kernels that it is to compile: name, and "light" or "full"."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._todo: list[str] | None = None  # None: the first program is not known yet
        self._current = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: Thread | None = None

    def expect(self, full: bool) -> None:
        """Say whether the first program needs the full kernels."""
        with self._changed:
            if self._todo is None:
                variants = ("full", "light") if full else ("light", "full")
                self._todo = [f"{name} {v}" for v in variants for name in ("_ghost_chunk", "_interior_chunk")]
                self._changed.notify_all()

    def take(self, name: str, full: bool) -> None:
        """Wait for a kernel if the child is compiling it, and make sure that it does not begin to."""
        kernel = f"{name} {'full' if full else 'light'}"
        with self._changed:
            if self._todo and kernel in self._todo:
                self._todo.remove(kernel)
            self._changed.wait_for(lambda: self._current != kernel, LONGEST)

    def start(self) -> None:
        """Start the child if there is none yet, where it is allowed and useful."""
        with self._changed:
            if self._process is not None or not _useful():
                return
            # isolated, with this process's sys.path: imports are found where this process finds them
            command = [sys.executable, "-IB", "-c", CHILD, json.dumps([p for p in sys.path if isinstance(p, str)])]
            environment = {**os.environ, ALLOWED: "0", "NUMBA_CACHE_DIR": config.CACHE_DIR}  # type: ignore[attr-defined]
            pipe, null = subprocess.PIPE, subprocess.DEVNULL
            with suppress(OSError):
                self._process = subprocess.Popen(command, 0, stdin=pipe, stdout=pipe, stderr=null, env=environment)
                self._thread = Thread(target=self._feed, args=(self._process,), name="ffo-compile", daemon=True)
                self._thread.start()
                atexit.register(self.stop)

    def stop(self) -> None:
        """End the child."""
        if self._process is not None and self._thread is not None:
            with self._changed:
                self._todo = []
                self._changed.notify_all()
            self._process.terminate()
            self._thread.join(1.0)

    def forget(self) -> None:
        """After a fork: the child is the parent's, which alone may hold its pipes open."""
        process = self._process
        self.__init__()  # type: ignore[misc]
        if process is not None and process.stdin is not None and process.stdout is not None:
            process.returncode = 0  # not to be waited for
            process.stdin.close()
            process.stdout.close()

    def _feed(self, process: subprocess.Popen[bytes]) -> None:
        """Give the child one kernel after the other."""
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError), process:  # closes the pipes, and waits for the child's end
            while kernel := self._next():
                process.stdin.write(f"{kernel}\n".encode())
                if not process.stdout.readline():
                    break
        with self._changed:
            self._current = ""
            self._changed.notify_all()

    def _next(self) -> str:
        """The kernel that the child is to compile next; empty if there is none."""
        with self._changed:
            self._current = ""
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._todo is not None)
            self._current = self._todo.pop(0) if self._todo else ""
            return self._current


helper = Helper()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=helper.forget)


def _useful() -> bool:
    """Whether a second process can be started, and has a core. Forked processes start none: they have siblings."""
    python = Path(sys.executable or "").name.lower().startswith("python")  # not an application with Python inside
    return python and os.environ.get(ALLOWED) != "0" and pool.cpus() > 1 and not pool.is_forked()


def serve(kernels: Iterable[str]) -> None:
    """Compile kernels, in the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    for kernel in kernels:
        name, variant = kernel.split()
        _compile(name, variant == "full")
        sys.stdout.write("\n")
        sys.stdout.flush()


def _compile(name: str, full: bool) -> None:
    """Call a kernel as programs do, on one with one variable and one row."""
    from ffo.kernels import batch, kkt  # they import this module
    from ffo.kernels.values import Values

    entry = np.zeros(1, int), np.zeros(1, int)
    row = kkt.ConeBlocks(np.array([kkt.NONNEG]), np.ones(1, int), np.zeros(1))
    plan = batch.KernelPlan(partial(kkt.build, entry, entry, 1, 1, row), full)
    values, (x, y, s) = Values(*np.ones((4, 1, 1))), np.zeros((3, 1, 1))
    if name == "_ghost_chunk":
        plan.judge(values, x, y, s)
    else:
        plan.interior(values, x, y, s, 1e-8, 1)
