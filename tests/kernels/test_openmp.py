"""Threads of torch's OpenMP, which spin after a parallel loop, do not take the cores from ours."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="torch uses GNU OpenMP on Linux only")

PARALLEL = """
import os, sys, torch
torch.set_num_threads(3)
numbers = torch.rand(1 << 20)
threads = lambda: len(os.listdir("/proc/self/task"))
before = threads()
numbers.add(1.0).sum()
"""
PAUSED = """
from ffo.kernels import pool
assert threads() == before + 2, (before, threads())
pool.executor()  # starts no thread before the first task
assert threads() == before, (before, threads())
assert numbers.add(1.0).mean() > 1.0 and torch.get_num_threads() == 3
assert threads() == before + 2
"""
FORKED = """
from ffo.kernels import pool
child = os.fork()
if not child:
    done = []
    pool.run_chunks(lambda start, stop: done.append(stop - start), 8, 1.0)
    os._exit(0 if sum(done) == 8 else 1)
assert os.waitpid(child, 0)[1] == 0
"""
IMPORTED_LATER = FORKED.replace("from ffo.kernels import pool\n", "", 1).replace(
    "    done = []", "    from ffo.kernels import pool\n    done = []"
)


@pytest.mark.parametrize("rest", [PAUSED, FORKED, IMPORTED_LATER])
def test_threads_of_openmp(rest: str) -> None:
    """A forked child would wait for its parent's threads forever: hence the time limit."""
    environment = {**os.environ, "FFO_NUM_THREADS": "2"}
    subprocess.run([sys.executable, "-c", PARALLEL + rest], check=True, timeout=120, env=environment)
