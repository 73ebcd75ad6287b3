"""Compiled code is cached between processes, and invalidated when any kernel changes."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
from pathlib import Path

import numba
import pytest

from ffo.kernels import jit

SOURCE = """
from ffo.kernels.jit import kernel

@kernel
def twice(x):
    return 2 * x
"""


def test_an_index_of_other_code_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may name classes that have been renamed."""
    (tmp_path / "some_kernels.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("some_kernels", tmp_path / "some_kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "some_kernels", module)
    spec.loader.exec_module(module)
    index = Path(module.twice._cache._cache_file._index_path)
    index.parent.mkdir(exist_ok=True)
    index.write_bytes(pickle.dumps(numba.__version__) + b"names a class that is gone")
    assert module.twice(3.0) == 6.0
    assert pickle.loads(index.read_bytes()) != numba.__version__
    assert list(index.parent.glob("*.nbc"))


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="this platform has no owners of files")
@pytest.mark.parametrize("whose", ["everybody's", "another user's", "mine"])
def test_code_is_kept_only_where_nobody_else_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, whose: str
) -> None:
    """What is read from there is executed."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    jit._trusted.cache_clear()
    (tmp_path / "other_kernels.py").write_text(SOURCE)
    kept = tmp_path / "__pycache__"
    kept.mkdir(mode=0o700)
    if whose == "everybody's":
        kept.chmod(0o777)
    elif whose == "another user's":
        if os.getuid() != 0:
            pytest.skip("only root can give files away")
        os.chown(kept, 54321, -1)
    spec = importlib.util.spec_from_file_location("other_kernels", tmp_path / "other_kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "other_kernels", module)
    spec.loader.exec_module(module)
    assert module.twice(3.0) == 6.0
    assert bool(list(kept.glob("*.nbc"))) == (whose == "mine")
    assert ("NUMBA_CACHE_DIR" in caplog.text) == (whose != "mine")
