"""Whether speculation pays on a server, TurboSpec's or not, from its metrics or from benchmark results."""

from turbospec.doctor.counts import BenchResult, DraftCounts, read_bench, read_metrics, read_server
from turbospec.doctor.diagnosis import Diagnosis, Finding, StepCost, compare, diagnose

__all__ = [
    "BenchResult",
    "Diagnosis",
    "DraftCounts",
    "Finding",
    "StepCost",
    "compare",
    "diagnose",
    "read_bench",
    "read_metrics",
    "read_server",
]
