"""Compiled code is kept between processes, and forgotten when any kernel changes."""

from __future__ import annotations

import importlib.util
import pickle
import sys
from pathlib import Path

import numba
import pytest

SOURCE = """
from ffo.kernels.jit import kernel

@kernel
def twice(x):
    return 2 * x
"""


def test_an_index_of_other_code_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may name classes that have other names now."""
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
