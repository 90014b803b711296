"""The mechanisms of `adaptive` that an ablation switches off, each by replacing parts of the product from outside."""

from turbospec_bench.ablation.mechanisms.exploration import EXPLORATION
from turbospec_bench.ablation.mechanisms.mechanism import Mechanism
from turbospec_bench.ablation.mechanisms.models import MODELS
from turbospec_bench.ablation.mechanisms.planning import PLANNING

__all__ = ["MECHANISMS", "NOTHING", "Mechanism"]

NOTHING = Mechanism("nothing", "", "", "`adaptive` as it is", lambda: ())
MECHANISMS = {mechanism.name: mechanism for mechanism in (*PLANNING, *EXPLORATION, *MODELS)}
"""By name, in the order of the table."""
