"""`python -m ffo.lab`: the same as `ffo lab`."""

from ffo.lab.cli import lab

lab(prog_name="python -m ffo.lab")
