"""Steps run to learn, within a budget: probes while drafting does not pay, comparison steps while it does.

The names below are for policies; everything else in this package may change.
"""

from turbospec.exploration.comparison_steps import ComparisonSteps
from turbospec.exploration.probing import ProbeBudget, probe_loss_seconds

__all__ = ["ComparisonSteps", "ProbeBudget", "probe_loss_seconds"]
