"""What is learnt: acceptance, step time, the price of time. Profile files.

The names below are for policies, hosts and the simulator; everything else in this package may change.
"""

from turbospec.models.acceptance import AcceptanceModel, survival
from turbospec.models.confidence import BIN_CENTRES, ConfidenceCalibration
from turbospec.models.decode_rate import DecodeRate
from turbospec.models.drafter import MIN_CONFIDENCE_OBSERVATIONS, DrafterModels
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
    "BIN_CENTRES",
    "MAX_CLASSES",
    "MIN_CONFIDENCE_OBSERVATIONS",
    "VERIFY_KNOTS",
    "AcceptanceModel",
    "ConfidenceCalibration",
    "DecodeRate",
    "DrafterModels",
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
    "survival",
    "verify_features",
]
