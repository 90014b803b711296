"""`adaptive`: plans each step from learnt acceptance, learnt step times and a learnt price of time."""

from turbospec.policy.adaptive.config import AdaptiveConfig
from turbospec.policy.adaptive.policy import AdaptivePolicy

__all__ = ["AdaptiveConfig", "AdaptivePolicy"]
