"""The benchmark in the embedded engine."""

from turbospec_bench.embedded.contender import EngineContender
from turbospec_bench.embedded.pairs import Pairs
from turbospec_bench.embedded.profiles import MeasuredProfiles
from turbospec_bench.embedded.session import Session
from turbospec_bench.embedded.transformers_contender import TransformersContender
from turbospec_bench.embedded.workloads import Load, RequestSource

__all__ = [
    "EngineContender",
    "Load",
    "MeasuredProfiles",
    "Pairs",
    "RequestSource",
    "Session",
    "TransformersContender",
]
