"""Compiled code is cached between processes, and invalidated when any kernel changes."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from pathlib import Path
from types import ModuleType

import numba
import pytest

from ffo.kernels import jit

SOURCE = """
from ffo.kernels.jit import kernel

@kernel
def twice(x):
    return 2 * x
"""


class NoHelper:
    """Counts how often a second process would be started."""

    started = 0

    def take(self, name: str, full: bool) -> None:
        pass

    def start(self) -> None:
        self.started += 1


@pytest.fixture(autouse=True)
def helper(monkeypatch: pytest.MonkeyPatch) -> NoHelper:
    made = NoHelper()
    monkeypatch.setattr(jit, "helper", made)
    return made


def imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with a kernel, whose cache is in the folder."""
    path = folder / "some_kernels.py"
    if not path.exists():
        path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("some_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "some_kernels", module)
    spec.loader.exec_module(module)
    return module


def test_an_index_of_other_code_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may name classes that have been renamed."""
    module = imported(tmp_path, monkeypatch)
    index = Path(module.twice._cache._cache_file._index_path)
    index.parent.mkdir(exist_ok=True)
    index.write_bytes(pickle.dumps(numba.__version__) + b"names a class that is gone")
    stale = index.with_suffix(".2.nbc")
    stale.write_bytes(b"code of another version")
    assert module.twice(3.0) == 6.0
    assert pickle.loads(index.read_bytes()) != numba.__version__
    assert index.with_suffix(".1.nbc").exists()
    assert not stale.exists()


def test_code_for_other_types_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that save at the same time may choose the same file."""
    first = imported(tmp_path, monkeypatch)
    assert first.twice(3.5) == 7.0
    assert first.twice(3) == 6
    index = Path(first.twice._cache._cache_file._index_path)
    index.with_suffix(".2.nbc").write_bytes(index.with_suffix(".1.nbc").read_bytes())
    for hits in (0, 1):  # it is compiled again, and saved
        again = imported(tmp_path, monkeypatch)
        assert isinstance(again.twice(3), int)
        assert again.twice.stats.cache_hits.total() == hits


@pytest.mark.parametrize("writable", [True, False])
def test_a_process_that_compiles_ahead_needs_a_cache_and_something_to_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helper: NoHelper, writable: bool
) -> None:
    module = imported(tmp_path, monkeypatch)
    monkeypatch.setattr(os, "access", lambda path, mode: writable)
    assert module.twice(3.0) == 6.0
    assert helper.started == writable
    assert imported(tmp_path, monkeypatch).twice(3.0) == 6.0  # from the cache
    assert helper.started == writable


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="this platform has no owners of files")
@pytest.mark.parametrize("whose", ["everybody's", "another user's", "mine"])
def test_code_is_kept_only_where_nobody_else_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, helper: NoHelper, whose: str
) -> None:
    """What is read from there is executed."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    jit._trusted.cache_clear()
    kept = tmp_path / "__pycache__"
    kept.mkdir(mode=0o700)
    if whose == "everybody's":
        kept.chmod(0o777)
    elif whose == "another user's":
        if os.getuid() != 0:
            pytest.skip("only root can give files away")
        os.chown(kept, 54321, -1)
    module = imported(tmp_path, monkeypatch)
    assert module.twice(3.0) == 6.0
    assert bool(list(kept.glob("*.nbc"))) == (whose == "mine")
    assert ("NUMBA_CACHE_DIR" in caplog.text) == (whose != "mine")
    assert bool(helper.started) == (whose == "mine")
