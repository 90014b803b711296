"""Builds `adaptive` from its settings."""

from __future__ import annotations

from turbospec.interface import Policy
from turbospec.models.latency import LatencyModel
from turbospec.models.profile import Profile
from turbospec.policy.adaptive.policy import AdaptivePolicy
from turbospec.policy.adaptive.settings import AdaptiveSettings
from turbospec.policy.adaptive.warm_up import compile_kernels


class AdaptiveConfig(AdaptiveSettings):
    """TurboSpec's own policy."""

    def build(self, profile: Profile | None, seed: int) -> Policy:
        del seed  # nothing here is drawn
        compile_kernels(self)
        return AdaptivePolicy(self, LatencyModel.fit(profile.samples) if profile else None)
