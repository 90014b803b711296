"""Steps run to learn, within a budget: probes while drafting does not pay, comparison steps while it does.

The names below are for policies; everything else in this package may change.
"""

from turbospec.exploration.no_draft_steps import NoDraftSteps
from turbospec.exploration.probing import ProbeBudget, probe_loss_seconds

__all__ = ["NoDraftSteps", "ProbeBudget", "probe_loss_seconds"]
