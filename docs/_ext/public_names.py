"""Warns of public names that are missing in the reference: those in `__all__`, or all that a module defines."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

logger = logging.getLogger(__name__)


def public(module_name: str) -> list[str]:
    """Names of what a module offers."""
    module = importlib.import_module(module_name)
    if hasattr(module, "__all__"):
        return [f"{module_name}.{name}" for name in module.__all__ if not name.startswith("__")]
    own = inspect.getmembers(module, lambda each: getattr(each, "__module__", None) == module_name)
    return [f"{module_name}.{name}" for name, _ in own if not name.startswith("_")]


def definition(name: str) -> str:
    """Where a public name is defined: a name that two modules offer is documented once."""
    module, _, own = name.rpartition(".")
    found = getattr(importlib.import_module(module), own)
    return f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', own)}"


def check(app: Sphinx, env: BuildEnvironment) -> None:
    documented = env.domains.python_domain.objects
    for module in app.config.public_modules:
        for name in public(module):
            if name not in documented and definition(name) not in documented:
                logger.warning("%s is public, but not in the reference", name)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("public_modules", [], "env", [list])
    app.connect("env-check-consistency", check)
    return {"parallel_read_safe": True}
