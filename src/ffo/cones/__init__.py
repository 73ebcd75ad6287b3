"""Cones, one file each: projection and dual."""

from ffo.cones.base import Cone
from ffo.cones.exponential import Exponential
from ffo.cones.nonneg import Nonneg
from ffo.cones.power import Power
from ffo.cones.product import Group, Product
from ffo.cones.psd import PSD
from ffo.cones.soc import SecondOrder
from ffo.cones.zero import Zero

__all__ = ["PSD", "Cone", "Exponential", "Group", "Nonneg", "Power", "Product", "SecondOrder", "Zero"]
