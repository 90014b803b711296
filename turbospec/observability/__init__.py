"""What the controller did: Prometheus metrics, the decision trace and its summary."""

from turbospec.observability.metrics import HostSeconds, StepMetrics
from turbospec.observability.summary import Summary
from turbospec.observability.trace import DecisionTrace, TraceStep, read_trace

__all__ = [
    "DecisionTrace",
    "HostSeconds",
    "StepMetrics",
    "Summary",
    "TraceStep",
    "read_trace",
]
