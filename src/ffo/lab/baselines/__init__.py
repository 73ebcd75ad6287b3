"""All methods behind one interface. To add one, write a `Baseline` and list it here."""

from ffo.lab.baselines.altdiff import ALTDIFF_BASELINE
from ffo.lab.baselines.base import DEFAULTS, Baseline, Layer, Settings
from ffo.lab.baselines.bpqp import BPQP_BASELINE
from ffo.lab.baselines.cvxpylayers_ import CVXPYLAYERS
from ffo.lab.baselines.dqp import DQP_BASELINE
from ffo.lab.baselines.ours import OURS
from ffo.lab.baselines.packages import PACKAGES
from ffo.lab.baselines.paper import PAPER

__all__ = ["BASELINES", "DEFAULTS", "Baseline", "Layer", "Settings"]

#: by display name, in the order of a report
BASELINES = {b.name: b for b in [*OURS, *PAPER, *CVXPYLAYERS, BPQP_BASELINE, DQP_BASELINE, ALTDIFF_BASELINE, *PACKAGES]}
