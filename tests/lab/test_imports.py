"""What a worker process imports before its first job: nothing that only CVXPY looks for."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from ffo.lab.imports import HEAVY, import_light

WORKER = """
import sys
from ffo.lab.imports import import_light

import_light()
import ffo.lab.work

print(*(name for name in ("moreau", "jax", "torch._dynamo", "cvxpylayers", "qpth") if name in sys.modules))
"""
LATER = """
from ffo.lab.imports import import_light

import_light()
import cvxpy
import moreau

print("MOREAU" in cvxpy.installed_solvers())
"""


def printed(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


def test_a_worker_imports_no_packages_that_only_some_methods_use() -> None:
    assert printed(WORKER) == ""


@pytest.mark.skipif(importlib.util.find_spec("moreau") is None, reason="moreau is not installed")
def test_hidden_packages_can_be_imported_later_and_cvxpy_finds_them() -> None:
    assert printed(LATER) == "True"


def test_nothing_is_hidden_afterwards() -> None:
    import_light()
    assert not [name for name in HEAVY if name in sys.modules and sys.modules[name] is None]
