"""What the controller did: Prometheus metrics, the decision trace and its summary."""

from turbospec.observability.metrics import HostSeconds, StepMetrics
from turbospec.observability.summary import Summary
from turbospec.observability.trace import DecisionTrace, TraceStep, check_writable, read_trace

__all__ = [
    "DecisionTrace",
    "HostSeconds",
    "StepMetrics",
    "Summary",
    "TraceStep",
    "check_writable",
    "read_trace",
]
