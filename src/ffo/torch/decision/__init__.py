"""Decisions with predicted costs: a fixed feasible region, and losses that need only solutions."""

from ffo.torch.decision.losses import PerturbedFenchelYoung, SPOPlus, normalized_regret, regret
from ffo.torch.decision.region import FixedRegion, Oracle

__all__ = ["FixedRegion", "Oracle", "PerturbedFenchelYoung", "SPOPlus", "normalized_regret", "regret"]
