"""Shared by the other packages: rows of per-request state, plans in flight and their reuse, compiled kernels.

The names below are for policies, hosts and the simulator; everything else in this package may change.
"""

from turbospec.runtime.kernels import PACKAGE, compiled, drop_stale_kernels, unnamed
from turbospec.runtime.plan_reuse import RunningPlan, plan_again
from turbospec.runtime.plans_in_flight import PlansInFlight
from turbospec.runtime.slots import RequestSlots

__all__ = [
    "PACKAGE",
    "PlansInFlight",
    "RequestSlots",
    "RunningPlan",
    "compiled",
    "drop_stale_kernels",
    "plan_again",
    "unnamed",
]
