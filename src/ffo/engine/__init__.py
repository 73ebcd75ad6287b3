"""One solve of a batch, with everything a layer promises around it; no framework needed."""

from ffo.engine.engine import Engine
from ffo.engine.info import Info
from ffo.engine.options import Options, Relax, Smoothing
from ffo.engine.outcome import Outcome

__all__ = ["Engine", "Info", "Options", "Outcome", "Relax", "Smoothing"]
