"""What is learnt: acceptance and step time. Profile files.

The names below are for policies, hosts and the simulator; everything else in this package may change.
"""

from turbospec.models.latency import (
    VERIFY_KNOTS,
    LatencyModel,
    column,
    draft_features,
    host_features,
    relative_weights,
    step_features,
    verify_features,
)
from turbospec.models.logistic import MAX_CLASSES
from turbospec.models.online_regression import OnlineRegression, Regression, learn_online
from turbospec.models.profile import LatencySample, Profile

__all__ = [
    "MAX_CLASSES",
    "VERIFY_KNOTS",
    "LatencyModel",
    "LatencySample",
    "OnlineRegression",
    "Profile",
    "Regression",
    "column",
    "draft_features",
    "host_features",
    "learn_online",
    "relative_weights",
    "step_features",
    "verify_features",
]
