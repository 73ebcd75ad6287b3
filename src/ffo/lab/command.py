"""The command `ffo`: runs the lab, or says how to install it."""

from __future__ import annotations

import sys

from ffo.lab.imports import import_light

_MISSING = (
    "The command ffo runs the experiments of ffo's lab. It needs packages that are not installed ({name}).\n"
    'Install them with:  pip install "ffo[lab]"\n'
    "The layers need no command: import them with `from ffo.torch import FFOLayer`."
)


def main() -> None:
    """Run the command line."""
    try:
        import_light()
        from ffo.lab.cli import app
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "ffo":
            raise
        sys.exit(_MISSING.format(name=error.name))
    app()
