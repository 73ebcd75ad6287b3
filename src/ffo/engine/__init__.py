"""The solve of a batch with all guarantees of a layer, independent of the framework."""

from ffo.engine.engine import Engine
from ffo.engine.info import Info
from ffo.engine.options import Options, Relax, Smoothing
from ffo.engine.outcome import Outcome

__all__ = ["Engine", "Info", "Options", "Outcome", "Relax", "Smoothing"]
