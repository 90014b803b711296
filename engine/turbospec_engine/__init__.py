"""The embedded engine: continuous batching and speculative decoding under a controller, on CPU or GPU.

Public are the names in `__all__` here and in the subpackages `drafter` and `lookup`, which hold the interfaces for new
ones; all other modules are private.
"""

from turbospec_engine.config import NGRAM, SUFFIX, EngineConfig
from turbospec_engine.engine import Engine
from turbospec_engine.models import Models
from turbospec_engine.profiling import measure
from turbospec_engine.request import Completion, RequestOutput, SamplingParams

__all__ = [
    "NGRAM",
    "SUFFIX",
    "Completion",
    "Engine",
    "EngineConfig",
    "Models",
    "RequestOutput",
    "SamplingParams",
    "measure",
]
