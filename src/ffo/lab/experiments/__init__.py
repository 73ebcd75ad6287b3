"""The experiments of the paper, each as a list of jobs."""

from ffo.lab.experiments.catalogue import CATALOGUE, plan
from ffo.lab.experiments.presets import PRESETS, Course, Preset

__all__ = ["CATALOGUE", "PRESETS", "Course", "Preset", "plan"]
