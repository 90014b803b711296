"""The policies that a file can name: the built-in ones and those that other packages register."""

from __future__ import annotations

from turbospec.policy.acceptance_gate import AcceptanceGateConfig
from turbospec.policy.adaptive import AdaptiveConfig
from turbospec.policy.adaptive_verification import VllmAdaptiveVerificationConfig
from turbospec.policy.bandit import BanditConfig
from turbospec.policy.batch_table import BatchTableConfig
from turbospec.policy.confidence import ConfidenceConfig
from turbospec.policy.config import PolicyConfig
from turbospec.policy.ema_tiers import EmaTiersConfig
from turbospec.policy.goodput import GoodputConfig
from turbospec.policy.heuristic import HeuristicConfig
from turbospec.policy.lookup_first import LookupFirstConfig
from turbospec.policy.registered import load_registered, registered_kinds
from turbospec.policy.static import OffConfig, StaticConfig

BUILT_IN: dict[str, type[PolicyConfig]] = {
    "acceptance_gate": AcceptanceGateConfig,
    "adaptive": AdaptiveConfig,
    "bandit": BanditConfig,
    "batch_table": BatchTableConfig,
    "confidence": ConfidenceConfig,
    "ema_tiers": EmaTiersConfig,
    "goodput": GoodputConfig,
    "heuristic": HeuristicConfig,
    "lookup_first": LookupFirstConfig,
    "off": OffConfig,
    "static": StaticConfig,
    "vllm_adaptive_verification": VllmAdaptiveVerificationConfig,
}
"""Settings class of each built-in policy, by name. The class's `policy` field has the same name."""


def known_kinds() -> list[str]:
    """Names of all policies, sorted. Imports no other package."""
    return sorted([*BUILT_IN, *registered_kinds()])


def config_class(kind: str) -> type[PolicyConfig] | None:
    """The settings class of a policy; None if there is no such policy.

    Entry points are read only for a name that is not built in, and only the package that registers it is imported.

    Raises:
        UserError: the registration of this name is invalid.
    """
    return BUILT_IN[kind] if kind in BUILT_IN else load_registered(kind)
