"""Search of a policy's settings on simulated servers. Public: `__all__`."""

from turbospec_sim.tuning.objective import Trials
from turbospec_sim.tuning.policy_file import write_policy
from turbospec_sim.tuning.search import Tuned, tune
from turbospec_sim.tuning.space import Dimension, search_space

__all__ = ["Dimension", "Trials", "Tuned", "search_space", "tune", "write_policy"]
