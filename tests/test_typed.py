"""A strict type checker knows what the layers return: the code of the README and of the quickstart passes it."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")

ROOT = Path(__file__).parents[1]
PAGES = [path for path in (ROOT / "README.md", ROOT / "docs" / "quickstart.md") if path.exists()]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: strict but for other packages: torch does not annotate `Tensor.backward`, nor CVXPY most of its functions (`cp.sum`)
SETTINGS = "[mypy]\nstrict = true\nuntyped_calls_exclude = torch\n[mypy-cvxpy.*]\nfollow_imports = skip\n"
#: calls and the types that a checker must find
TYPES = """
from typing import assert_type

import torch

from ffo.engine import Info
from ffo.ghost.certificate import Certificate
from ffo.torch import FFOFunctionLayer, FFOLayer, FFOQPLayer, QPSolution

Solution = QPSolution[torch.Tensor]


def typed(layer: FFOLayer, function: FFOFunctionLayer, p: torch.Tensor, flag: bool) -> None:
    assert_type(layer(p, keys=[1]), tuple[torch.Tensor, ...])
    assert_type(layer.call(p, start=[p]), tuple[tuple[torch.Tensor, ...], Info])
    assert_type(layer.info, Info)
    assert_type(layer.info.certificate, Certificate)
    plain, both = FFOQPLayer(eps=1e-8), FFOQPLayer(duals=True, reduction="mean")
    assert_type(plain(None, p, lb=p), torch.Tensor)
    assert_type(both(None, p, lb=p), Solution)
    assert_type(FFOQPLayer(duals=flag)(p, p), torch.Tensor | Solution)
    assert_type(both.call(p, p), tuple[Solution, Info])
    assert_type(plain.smoothed(0.1), FFOQPLayer[torch.Tensor])
    assert_type(function(p, y0=p), torch.Tensor)


def named(layer: FFOQPLayer) -> torch.Tensor:
    return layer(None, torch.ones(2))
"""
WRONG = """
import torch

from ffo.torch import FFOLayer, FFOQPLayer


def wrong(layer: FFOLayer, p: torch.Tensor) -> None:
    layer(p, key=[1])
    layer(1.0)
    FFOQPLayer(dual=True)
    FFOQPLayer(duals=True)(p, p).square()
"""


def checked(folder: Path, name: str, code: str) -> subprocess.CompletedProcess[str]:
    """mypy on a file with this code. What it knows about torch and others is kept between runs in build/mypy."""
    (folder / "mypy.ini").write_text(SETTINGS)
    (folder / f"{name}.py").write_text(code)
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", str(ROOT / "build" / "mypy")]
    return subprocess.run([*command, f"{name}.py"], cwd=folder, capture_output=True, text=True)


def code_of(page: Path) -> str:
    """The blocks of a page, on the lines where they are on the page."""
    text, lines = page.read_text(), list[str]()
    for block in BLOCK.finditer(text):
        lines += [""] * (text.count("\n", 0, block.start(1)) - len(lines)) + block.group(1).splitlines()
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_documented_code_is_strictly_typed(page: Path, tmp_path: Path) -> None:
    found = checked(tmp_path, page.stem.lower(), code_of(page))
    assert found.returncode == 0, found.stdout


def test_calls_have_the_right_types(tmp_path: Path) -> None:
    found = checked(tmp_path, "types_of_calls", TYPES)
    assert found.returncode == 0, found.stdout


def test_wrong_calls_are_noticed(tmp_path: Path) -> None:
    found = checked(tmp_path, "wrong_calls", WRONG)
    wrong = sorted({int(line.split(":")[1]) for line in found.stdout.splitlines() if ": error:" in line})
    assert wrong == [8, 9, 10, 11], found.stdout
