"""Simulated workloads: arrivals, lengths and acceptance of requests. Public: `__all__`."""

from turbospec_sim.workload.config import RequestClass, Workload
from turbospec_sim.workload.offered import offered_requests

__all__ = ["RequestClass", "Workload", "offered_requests"]
