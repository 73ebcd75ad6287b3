"""`python -m ffo.lab`: the same as `ffo lab`."""

from ffo.lab.imports import import_light

import_light()

from ffo.lab.cli import lab  # noqa: E402 - imports CVXPY

lab(prog_name="python -m ffo.lab")
