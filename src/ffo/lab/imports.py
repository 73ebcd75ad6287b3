"""The lab's processes import torch, and CVXPY without the packages that it only looks for.

CVXPY tries to import every solver that it supports. Moreau imports torch.compile, JAX and numba.cuda, which takes half
of a worker's start. Methods that use these packages import them before they are built, and CVXPY finds them then.
"""

from __future__ import annotations

import importlib
import sys

#: packages that take long to import, and that CVXPY can do without
HEAVY = ("moreau", "jax")


def import_light() -> None:
    """Import torch, and CVXPY as if the heavy packages were not installed."""
    importlib.import_module("torch")
    if "cvxpy" in sys.modules:
        return
    hidden = [name for name in HEAVY if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # None: not found
    try:
        importlib.import_module("cvxpy")
    finally:
        for name in hidden:
            del sys.modules[name]
