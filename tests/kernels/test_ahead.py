"""A second process compiles kernels ahead of their use; without it, kernels are compiled as ever."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ffo import solve_qp_batch
from ffo.kernels import ahead, batch, pool
from ffo.kernels.ahead import Helper

#: children that compile nothing: one that answers with what it was asked, one that takes two seconds, one that hangs,
#: and one that fails
ECHO = "import sys\nfor line in sys.stdin:\n    sys.stderr.write(line); print(flush=True)"
SLOW = "import sys, time; sys.stdin.readline(); time.sleep(2); print(flush=True); time.sleep(60)"
BUSY = "import time; time.sleep(60)"
FAILS = "import sys; sys.stdin.readline(); raise ImportError"
#: a process with a child that waits for its first kernel
IDLE = "from ffo.kernels.ahead import helper; helper.start(); print(helper._process.pid, flush=True)\n"
#: the first program in an empty cache
FIRST = """
import numpy as np
from ffo import solve_qp_batch
from ffo.kernels import ahead, batch

solve_qp_batch(np.eye(3), np.ones((1, 3)), np.ones((1, 3)), np.zeros(1), solver="INTERIOR", polish=True)
for kernel in (batch._ghost_chunk, batch._interior_chunk):
    print(sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()))
print(ahead.helper._process.pid if ahead.helper._process else None)
"""


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFO_NUM_THREADS", "2")
    monkeypatch.delenv(ahead.ALLOWED, raising=False)
    monkeypatch.setattr(pool, "_forked", False)


@pytest.fixture
def helper(allowed: None) -> Iterator[Helper]:
    """One that expects a quadratic program."""
    made = Helper()
    made.expect(full=False)
    yield made
    made.stop()


def wait_until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at processes through /proc")


def test_kernels_of_the_first_program_come_first(
    helper: Helper, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = tmp_path / "asked"
    monkeypatch.setattr(ahead, "CHILD", f"import sys; sys.stderr = open({str(asked)!r}, 'w')\n{ECHO}")
    helper.expect(full=True)  # a second program changes nothing
    helper.start()
    assert helper._thread is not None
    assert helper._process is not None
    helper._thread.join(30.0)
    kernels = ["_ghost_chunk light", "_interior_chunk light", "_ghost_chunk full", "_interior_chunk full"]
    assert asked.read_text().splitlines() == kernels
    assert helper._process.returncode == 0  # it has ended, and is no zombie


def test_a_kernel_that_the_child_has_not_begun_is_left_to_the_parent(
    helper: Helper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "CHILD", BUSY)
    helper.start()
    wait_until(lambda: helper._current == "_ghost_chunk light")
    begun = time.monotonic()
    helper.take("_interior_chunk", full=False)
    helper.take("another_kernel", full=False)
    assert time.monotonic() - begun < 5.0
    assert helper._todo == ["_ghost_chunk full", "_interior_chunk full"]


def test_a_kernel_that_the_child_compiles_is_waited_for(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "CHILD", SLOW)
    helper.start()
    wait_until(lambda: helper._current == "_ghost_chunk light")
    begun = time.monotonic()
    helper.take("_ghost_chunk", full=False)
    assert time.monotonic() - begun > 1.0
    wait_until(lambda: helper._current == "_interior_chunk light")


@pytest.mark.parametrize("child", [FAILS, BUSY])
def test_a_child_that_fails_or_hangs_is_not_waited_for(
    helper: Helper, monkeypatch: pytest.MonkeyPatch, child: str
) -> None:
    monkeypatch.setattr(ahead, "CHILD", child)
    monkeypatch.setattr(ahead, "LONGEST", 3.0)
    helper.start()
    wait_until(lambda: helper._current or helper._process.poll())
    begun = time.monotonic()
    helper.take("_ghost_chunk", full=False)
    assert time.monotonic() - begun < 10.0


@pytest.mark.parametrize("why", ["variable", "one core", "forked", "no interpreter", "embedded", "cannot be executed"])
def test_no_child_where_it_is_forbidden_or_useless(
    helper: Helper, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, why: str
) -> None:
    if why == "variable":
        monkeypatch.setenv("FFO_COMPILE_AHEAD", "0")
    elif why == "one core":
        monkeypatch.setenv("FFO_NUM_THREADS", "1")
    elif why == "forked":
        monkeypatch.setattr(pool, "_forked", True)
    else:
        path = {"no interpreter": "", "embedded": sys.executable.replace("python", "blender")}
        monkeypatch.setattr(sys, "executable", path.get(why, str(tmp_path / "python")))
    helper.start()
    assert helper._process is None
    helper.take("_ghost_chunk", full=False)  # returns at once


def test_the_child_compiles_for_the_types_of_real_programs() -> None:
    """Otherwise its code would never be used."""
    for name in ("_ghost_chunk", "_interior_chunk"):
        for full in (False, True):
            ahead._compile(name, full)
    known = [set(kernel.signatures) for kernel in (batch._ghost_chunk, batch._interior_chunk)]
    q, b = np.ones((2, 3)), np.zeros(1)
    solve_qp_batch(np.eye(3), q, np.ones((1, 3)), b, solver="INTERIOR")
    assert known == [set(kernel.signatures) for kernel in (batch._ghost_chunk, batch._interior_chunk)]


def run(code: str, cache: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), "FFO_NUM_THREADS": "2", ahead.ALLOWED: "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", code], stdout=pipe, stderr=pipe, text=True, env=environment)


@on_linux
@pytest.mark.parametrize("end", ["exits", "is killed", "is killed after a fork"])
def test_the_child_ends_with_its_parent(tmp_path: Path, end: str) -> None:
    after = {"exits": "", "is killed": "import time; time.sleep(60)"}
    code = IDLE + after.get(end, "import os, time; os.fork(); time.sleep(5)")
    with run(code, tmp_path) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        if end != "exits":
            time.sleep(1.0)
            assert is_running(child)
            parent.send_signal(signal.SIGKILL)
        wait_until(lambda: not is_running(child), 4.0)


@on_linux
def test_the_first_program_uses_the_code_of_the_child(tmp_path: Path) -> None:
    with run(FIRST, tmp_path) as first:
        out, log = first.communicate(timeout=200)
    ghost, interior, child = out.splitlines()
    assert (ghost, interior) == ("1 0", "0 1")
    assert not is_running(int(child))
    assert log.splitlines() == ["compiling ffo's kernels, once for this environment: this takes up to a minute"]
    with run(FIRST, tmp_path) as second:
        out, log = second.communicate(timeout=100)
    assert out.splitlines() == ["1 0", "1 0", "None"]
    assert log == ""
