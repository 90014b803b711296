from turbospec_bench.ablation.mechanisms.mechanism import Mechanism
from turbospec_bench.ablation.mechanisms.registry import MECHANISMS, NOTHING

__all__ = ["MECHANISMS", "NOTHING", "Mechanism"]
